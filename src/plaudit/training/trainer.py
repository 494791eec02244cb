"""The synchronous loop: `plaudit train`. A rollout of a vectorized simulation, what is learned from it, and again.

    while not finished:
        rollout = collect a rollout of num_envs episodes from seeds, the judge decides
        store it, audit the judge, update the learner
        log, evaluate and save a checkpoint when due

Everything random comes from generators that a checkpoint keeps, and a rollout starts from seeds alone. A resumed run
drops the episodes that were stored after its checkpoint and plays them again, so that it makes the same curve as one
that was never interrupted. A run that is asked to stop between two updates keeps the numbers of the rollout in its
checkpoint, and a resumed one makes the updates that are left of it first.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import fields, replace

import numpy as np

from plaudit.data.store import Store, is_store
from plaudit.errors import DataError
from plaudit.rollout.collector import collecting
from plaudit.rollout.vector import RolloutBatch, collect_rollout
from plaudit.training.audit import Audit, true_success
from plaudit.training.config import TrainingConfig
from plaudit.training.demos import check_demos, open_demos
from plaudit.training.evaluation import evaluate, make_eval_env
from plaudit.training.learner_setup import build_learner, learner_env_spec, learner_threads
from plaudit.training.progress import Progress, RolloutStats
from plaudit.training.reward import RolloutJudge, describe_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.seeds import train_seed
from plaudit.training.updates import ProgressBar, RunEpisodes, ShouldStop, make_updates

Callback = Callable[[Progress], bool]  # called after each rollout; returns whether to continue


def check_run(config: TrainingConfig) -> tuple[str, ...]:
    """Refuse a run whose demonstrations, stores or judge are not usable, before anything is made.

    Returns what to know of its judge, in sentences.
    """
    check_demos(config)
    if config.collect is not None:
        config.collect.check()
    return describe_judge(config)


class Trainer:
    """`plaudit train`.

    with Trainer(folder, progress_bar) as trainer:
        end = trainer.run(lambda progress: True)
    """

    def __init__(self, folder: RunFolder, progress_bar: ProgressBar):
        """progress_bar: for what is done before the first rollout"""
        self.folder, self.config, self._progress_bar = folder, folder.config, progress_bar
        self._stack = ExitStack()

    def __enter__(self) -> "Trainer":
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        config, folder = self.config, self.folder
        stack.callback(folder.close)
        self.env = stack.enter_context(closing(config.env.build(config.run.num_envs)))
        env_spec = learner_env_spec(config, self.env)
        stack.enter_context(learner_threads(config, env_spec))
        if config.learner.action_horizon > self.env.max_steps:
            raise DataError(
                f"learner.horizon is {config.learner.action_horizon}, and an episode is over after "
                f"{self.env.max_steps} steps"
            )
        self.learner = build_learner(config, env_spec)
        self.eval_env = stack.enter_context(closing(make_eval_env(config, self.learner)))
        self.judge = RolloutJudge(config, self.env)
        self.audit = Audit(config.audit, config.run.seed)
        self.episodes = self._open_episodes(stack)
        demos = open_demos(folder, self._progress_bar)
        if demos is not None:
            demos = self.judge.label_demos(demos, folder.demo_labels, self._progress_bar)
        self.updates = make_updates(config, self.learner, self.episodes, demos, self.judge)
        self.collection = stack.enter_context(collecting(config.collect, folder.path))

    def _open_episodes(self, stack: ExitStack) -> RunEpisodes | None:
        """The run's own episodes as the newest checkpoint has them, with labels of the current judge."""
        config, path = self.config, self.folder.episodes
        if not config.off_policy and not config.run.keep_episodes:
            return None
        capacity = int(config.run.capacity_gb * 1e9)
        store = Store.open(path, write=True) if is_store(path) else Store.create(path, capacity_bytes=capacity)
        stack.callback(store.close)
        episodes, state = RunEpisodes(store, self.judge), self.folder.newest_state()
        episodes.truncate(state["num_episodes_stored"] if state else 0)
        self.judge.relabel(store, self._progress_bar)
        return episodes

    def run(self, callback: Callback, should_stop: ShouldStop = lambda: False) -> Progress:
        """To the end, or until it is asked to stop; starts from the newest checkpoint."""
        progress, rollout = self._resume()
        start = time.monotonic() - progress.elapsed_s
        going = rollout is not None or not self._is_finished(progress)
        while going:
            # Collect a rollout, store it and learn from it.
            rollout = rollout or self._collect(progress)
            if not self.audit.blocks_learning:
                rollout.metrics |= self.updates.learn(should_stop)
            now = self._advance(progress, rollout, time.monotonic() - start)
            if self.updates.pending and not self.audit.blocks_learning:
                progress = replace(progress, elapsed_s=now.elapsed_s)
                self._save(progress, rollout)
                break
            self.folder.log(now.step, {**rollout.metrics, **_speed(now)})
            # Evaluate and save what is due.
            before, progress, rollout = progress.step, now, None
            finished = self._is_finished(progress)
            if finished or _is_due(before, progress.step, self.config.evaluation.freq):
                progress.eval_success = self._evaluate(progress.step, start)
                finished = self._is_finished(progress)
            going = callback(progress) and not finished
            if not going or _is_due(before, progress.step, self.config.run.checkpoint_freq):
                self._save(progress)
        return progress

    def _collect(self, progress: Progress) -> RolloutStats:
        """Play a rollout, store it and compare the judge with the simulator; the updates that it allows are due."""
        config = self.config
        seeds = [train_seed(config.run.seed, progress.episodes + i) for i in range(config.run.num_envs)]
        rollout = collect_rollout(
            self.env,
            self.updates.act_fn(progress.step),
            seeds,
            self.judge.detector,
            reward=config.reward,
            gamma=config.learner.gamma,
            terminate_on_success=config.reward.terminates,
            steps_after_end=0 if config.judge.is_simulator else config.audit.onset_tolerance,
        )
        rollout = self.judge.flag(rollout)
        self.updates.add(rollout, progress.step)
        stats = _rollout_stats(rollout)
        stats.metrics |= self._audit(rollout, progress.episodes)
        if self.collection is not None:
            stats.metrics |= self.collection.take(rollout, self.env)
        return stats

    def _audit(self, rollout: RolloutBatch, first_episode: int) -> dict[str, float]:
        """Compare the judge with the simulator. The learner never sees the result."""
        if self.config.judge.is_simulator:
            return {}
        tolerance = self.config.audit.onset_tolerance
        predicted, unlike = rollout.success_once, [bool(reason) for reason in rollout.unlike]
        unlike = unlike or [False] * len(predicted)
        truth = [true_success(*onsets, tolerance) for onsets in zip(rollout.first_success, rollout.first_true)]
        for n, (actual, early) in enumerate(truth):
            is_decided = not (unlike[n] and self.judge.judge.rule.withholds)
            if is_decided and self.audit.draws(first_episode + n, bool(predicted[n]), disputed=unlike[n]):
                self.audit.add(first_episode + n, actual, early)
        actual = np.array([is_true for is_true, _ in truth])
        return {
            "judge/accuracy": float((actual == predicted).mean()),
            **({"judge/unlike_share": float(np.mean(unlike))} if rollout.unlike else {}),
            "time/compute_model_rewards": self.judge.detector.read_step_ms(),
            **self.audit.metrics(),
        }

    def _advance(self, progress: Progress, rollout: RolloutStats, elapsed_s: float) -> Progress:
        return Progress(
            step=progress.step + rollout.steps,
            episodes=progress.episodes + rollout.episodes,
            judge_success=rollout.metrics["judge/success_once"],
            eval_success=progress.eval_success,
            elapsed_s=elapsed_s,
            alarm=self.audit.alarm,
        )

    def _is_finished(self, progress: Progress) -> bool:
        """Whether the run is over; evaluated at its end in any case."""
        config, target = self.config, self.config.evaluation.stop_success_rate
        if self.collection is not None and self.collection.enough:
            return True
        if target is not None and progress.eval_success is not None and progress.eval_success >= target:
            return True
        return self.audit.blocks_learning or progress.reaches(config.max_steps, config.max_episodes)

    def _evaluate(self, step: int, start: float) -> float:
        result = evaluate(self.eval_env, self.learner, self.config.evaluation.episodes)
        elapsed_s = time.monotonic() - start
        self.folder.log(step, {"eval/success_once": result.success_rate, "time/elapsed_s": elapsed_s})
        self.folder.save_policy(self.learner.policy_config(), self.learner.weights())
        return result.success_rate

    def _save(self, progress: Progress, rollout: RolloutStats | None = None) -> None:
        """
        rollout: collected after `progress`, with updates left to make
        """
        state = {
            **vars(progress),
            "rollout": None if rollout is None else vars(rollout),
            "num_episodes_stored": 0 if self.episodes is None else self.episodes.end,
            "updates": self.updates.state_dict(),
            "judge": self.judge.judge.id.fingerprint,
            "audit": self.audit.state_dict(),
        }
        self.folder.save_checkpoint(progress.step, self.learner, state)

    def _resume(self) -> tuple[Progress, RolloutStats | None]:
        """Where the newest checkpoint stands, with everything as it was; the beginning where there is none.

        Beside it, a rollout with updates left to make.
        """
        start, state = time.monotonic(), self.folder.resume(self.learner)
        if state is None:
            if self.updates.pretrain(self._progress_bar):  # what the demonstrations alone are worth
                self._evaluate(0, start)
            return Progress(elapsed_s=time.monotonic() - start), None
        self.updates.load_state_dict(state["updates"])
        progress = Progress(**{field.name: state[field.name] for field in fields(Progress)})
        if state["judge"] == self.judge.judge.id.fingerprint:
            self.audit.load_state_dict(state["audit"])
        else:  # another judge is audited from the start
            self.audit.restart(number=state["audit"]["number"] + 1)
        progress.alarm = self.audit.alarm
        rollout = state["rollout"]
        return progress, None if rollout is None else RolloutStats(**rollout)


def _is_due(before: int, now: int, freq: int) -> bool:
    """Whether a multiple of `freq` lies between two steps."""
    return now // freq > before // freq


def _rollout_stats(rollout: RolloutBatch) -> RolloutStats:
    metrics = {
        "judge/success_once": float(rollout.success_once.mean()),
        "env/success_once": float(np.any(rollout.privileged["success"] & rollout.valid, axis=0).mean()),
        "rollout/rewards": float(rollout.reward[rollout.valid].mean()),
        "rollout/episode_length": float(rollout.length.mean()),
    }
    return RolloutStats(rollout.steps, len(rollout.length), metrics)


def _speed(progress: Progress) -> dict[str, float]:
    return {
        "rollout/episodes": progress.episodes,
        "time/env_steps_per_s": progress.step / max(progress.elapsed_s, 1e-9),
        "time/elapsed_s": progress.elapsed_s,
    }

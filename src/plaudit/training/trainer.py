"""The synchronous loop: `plaudit train`. A rollout of a vectorized simulation, what is learned from it, and again.

    while not finished:
        rollout = collect a rollout of num_envs episodes from seeds, the judge decides
        store it, update the learner, audit the judge
        log, evaluate and save a checkpoint when due

Everything random comes from generators that a checkpoint keeps, and a rollout starts from seeds alone. A resumed run
drops the episodes that were stored after its checkpoint and plays them again, so that it makes the same curve as one
that was never interrupted.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import fields
from typing import Any

import numpy as np

from plaudit.data.batch import to_torch
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.rollout.vector import ActFn, RolloutBatch, collect_rollout
from plaudit.training.audit import Audit
from plaudit.training.collect import collecting
from plaudit.training.config import TrainingConfig
from plaudit.training.demos import check_demos, open_demos
from plaudit.training.evaluation import evaluate, make_eval_env
from plaudit.training.learner_setup import build_learner, learner_env_spec, learner_threads
from plaudit.training.progress import Progress
from plaudit.training.reward import RolloutJudge, describe_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.seeds import train_seed
from plaudit.types import Observation

ProgressBar = Callable[[str], Any]  # name -> a function that wraps a sequence in a progress bar
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
        self.updates = _updates(config, self.learner, self.episodes, demos, self.judge)
        self.collection = stack.enter_context(collecting(config.collect, folder.path))

    def _open_episodes(self, stack: ExitStack) -> "RunEpisodes | None":
        """The run's own episodes as the newest checkpoint has them, with labels of the current judge."""
        config, path = self.config, self.folder.episodes
        if not config.off_policy and not config.run.keep_episodes:
            return None
        capacity = int(config.run.capacity_gb * 1e9)
        store = Store.open(path, write=True) if path.exists() else Store.create(path, capacity_bytes=capacity)
        stack.callback(store.close)
        episodes, state = RunEpisodes(store, self.judge), self.folder.newest_state()
        episodes.truncate(state["num_episodes_stored"] if state else 0)
        self.judge.relabel(store, self._progress_bar)
        return episodes

    def run(self, callback: Callback) -> Progress:
        """To the end, or until the callback returns False; starts from the newest checkpoint."""
        progress = self._resume()
        start = time.monotonic() - progress.elapsed_s
        going = not self._finished(progress)
        while going:
            # Collect a rollout, store it and learn from it.
            rollout = self._collect(progress)
            metrics = dict(self.updates.learn(rollout, progress.step))
            metrics |= self._audit(rollout, progress.episodes)
            if self.collection is not None:
                metrics |= self.collection.take(rollout, self.env)
            before, progress = progress.step, self._advance(progress, rollout, time.monotonic() - start)
            self.folder.log(progress.step, {**metrics, **_rollout_metrics(rollout, progress)})
            # Evaluate and save what is due.
            finished = self._finished(progress)
            if finished or _passed(before, progress.step, self.config.evaluation.freq):
                progress.eval_success = self._evaluate(progress.step, start)
                finished = self._finished(progress)
            going = callback(progress) and not finished
            if not going or _passed(before, progress.step, self.config.run.checkpoint_freq):
                self._save(progress)
        return progress

    def _collect(self, progress: Progress) -> RolloutBatch:
        config = self.config
        seeds = [train_seed(config.run.seed, progress.episodes + i) for i in range(config.run.num_envs)]
        return collect_rollout(
            self.env,
            self.updates.act_fn(progress.step),
            seeds,
            self.judge.detector,
            reward=config.reward,
            gamma=config.learner.gamma,
            terminate_on_success=config.reward.terminates,
        )

    def _audit(self, rollout: RolloutBatch, first_episode: int) -> dict[str, float]:
        """Compare the judge with the simulator, which the learner is told nothing of."""
        if self.config.judge.is_simulator:
            return {}
        actual = np.any(rollout.privileged["success"] & rollout.valid, axis=0)
        predicted = rollout.success_once
        for episode, pair in enumerate(zip(predicted, actual, strict=True), first_episode):
            if self.audit.selects(episode):
                self.audit.add(*pair)
        return {
            "judge/accuracy": float((actual == predicted).mean()),
            "time/compute_model_rewards": self.judge.detector.read_step_ms(),
            **self.audit.metrics(),
        }

    def _advance(self, progress: Progress, rollout: RolloutBatch, elapsed_s: float) -> Progress:
        return Progress(
            step=progress.step + rollout.steps,
            episodes=progress.episodes + len(rollout.length),
            judge_success=float(rollout.success_once.mean()),
            eval_success=progress.eval_success,
            elapsed_s=elapsed_s,
            alarm=self.audit.alarm,
        )

    def _finished(self, progress: Progress) -> bool:
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

    def _save(self, progress: Progress) -> None:
        state = {
            **vars(progress),
            "num_episodes_stored": 0 if self.episodes is None else self.episodes.end,
            "updates": self.updates.state_dict(),
            "judge": self.judge.judge.id.fingerprint,
            "audit": self.audit.state_dict(),
        }
        self.folder.save_checkpoint(progress.step, self.learner, state)

    def _resume(self) -> Progress:
        """Where the newest checkpoint stands, with everything as it was; the beginning where there is none."""
        start, state = time.monotonic(), self.folder.resume(self.learner)
        if state is None:
            if self.updates.pretrain(self._progress_bar):  # what the demonstrations alone are worth
                self._evaluate(0, start)
            return Progress(elapsed_s=time.monotonic() - start)
        self.updates.load_state_dict(state["updates"])
        if state["judge"] == self.judge.judge.id.fingerprint:  # another judge is audited from the start
            self.audit.load_state_dict(state["audit"])
        progress = Progress(**{field.name: state[field.name] for field in fields(Progress)})
        progress.alarm = self.audit.alarm
        return progress


class RunEpisodes:
    """The run's own episodes with their labels."""

    def __init__(self, store: Store, judge: RolloutJudge):
        self.store, self._judge = store, judge
        self.end = 0  # ids from here on are not of the run as it stands; a checkpoint keeps this

    def add(self, rollout: RolloutBatch) -> None:
        """Store a rollout."""
        pairs = self._judge.episodes(rollout)
        ids = self.store.extend([episode for episode, _ in pairs])
        self.store.ledger.extend(zip(ids, (labels for _, labels in pairs), strict=True))
        self.end = ids[-1] + 1

    def truncate(self, end: int) -> None:
        """Go back to where a checkpoint stands: episodes that were stored after it are evicted."""
        later = [i for i in self.store.ids if i >= end]
        if later:
            self.store.evict(later)
        self.end = end


class Updates(ABC):
    """How a learner learns from rollouts."""

    @abstractmethod
    def pretrain(self, progress_bar: ProgressBar) -> bool:
        """Learn from demonstrations before the first rollout; returns whether something was learned."""

    @abstractmethod
    def act_fn(self, step: int) -> ActFn:
        """What acts in the rollout that starts at this step."""

    @abstractmethod
    def learn(self, rollout: RolloutBatch, step: int) -> Mapping[str, float]:
        """Learn from a rollout that started at this step; returns metrics."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the learner, as JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned."""


class OnPolicyUpdates(Updates):
    """PPO: each rollout is used once, and stored only when asked for. Demonstrations are cloned first."""

    def __init__(self, learner: Any, episodes: RunEpisodes | None, demos: Store | None, seed: int):
        self._learner, self._episodes, self._demos, self._seed = learner, episodes, demos, seed

    def pretrain(self, progress_bar: ProgressBar) -> bool:
        if self._demos is None:
            return False
        config, cameras = self._learner.config, tuple(self._learner.env_spec.cameras)
        replay = ReplaySampler(self._demos, cameras=cameras, seed=self._seed)
        for _ in progress_bar("pretraining on demonstrations")(range(config.pretrain_updates)):
            self._learner.bc_update(to_torch(replay.sample(config.pretrain_batch_size), self._learner.device))
        return config.pretrain_updates > 0

    def act_fn(self, step: int) -> ActFn:
        return self._learner.act_fn(explore=True)

    def learn(self, rollout: RolloutBatch, step: int) -> Mapping[str, float]:
        if self._episodes is not None:
            self._episodes.add(rollout)
        return self._learner.update(rollout)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A rollout is used once, and the learner has it."""


class OffPolicyUpdates(Updates):
    """SAC, Q-chunking: episodes are stored with their labels, batches come from replay, demonstrations mixed in."""

    def __init__(
        self,
        config: TrainingConfig,
        learner: Any,
        episodes: RunEpisodes,
        demos: Store | None,
        trusts_demos: bool,
    ):
        self._learner, self._episodes, self._demos = learner, episodes, demos
        seed = config.run.seed
        options = {
            **learner.replay_options,
            "reward": config.reward,
            "terminate_on_success": config.reward.terminates,
            "seed": seed,
        }
        if demos is not None:
            ends, ratio = (trusts_demos, True), learner.config.demo_ratio
            self._replay = ReplaySampler.mix(demos, episodes.store, ratio, trust_terminated=ends, **options)
        else:
            self._replay = ReplaySampler(episodes.store, **options)
        self._rng = np.random.default_rng([seed, 1])  # of random actions
        self._updates_due = 0.0  # less than one between rollouts

    def pretrain(self, progress_bar: ProgressBar) -> bool:
        updates = self._learner.pretrain_updates if self._demos is not None else 0
        for _ in progress_bar("pretraining on demonstrations")(range(updates)):
            self._update()
        return updates > 0

    def act_fn(self, step: int) -> ActFn:
        if step < self._learner.config.random_steps:
            return self._random_actions
        return self._learner.act_fn(explore=True)

    def _random_actions(self, observation: Observation) -> Any:
        return self._rng.uniform(-1, 1, (len(observation.state), self._learner.env_spec.action_dim)).astype(np.float32)

    def learn(self, rollout: RolloutBatch, step: int) -> Mapping[str, float]:
        self._episodes.add(rollout)
        self._replay.refresh()
        config = self._learner.config
        self._updates_due += config.updates_due(step + rollout.steps) - config.updates_due(step)
        metrics: dict[str, Any] = {}
        while self._updates_due >= 1:
            metrics |= self._update()
            self._updates_due -= 1
        return {name: float(value) for name, value in metrics.items()}

    def _update(self) -> Mapping[str, Any]:
        batch = self._replay.sample(self._learner.config.batch_size)
        return self._learner.update(to_torch(batch, self._learner.device))

    def state_dict(self) -> dict[str, Any]:
        generators = {"replay": self._replay.rng, "random": self._rng}
        return {
            "updates_due": self._updates_due,
            "rng": {name: rng.bit_generator.state for name, rng in generators.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates_due = state["updates_due"]
        self._replay.rng.bit_generator.state = state["rng"]["replay"]
        self._rng.bit_generator.state = state["rng"]["random"]


def _updates(
    config: TrainingConfig, learner: Any, episodes: RunEpisodes | None, demos: Store | None, judge: RolloutJudge
) -> Updates:
    if not config.off_policy:
        return OnPolicyUpdates(learner, episodes, demos, config.run.seed)
    assert episodes is not None
    return OffPolicyUpdates(config, learner, episodes, demos, judge.trusts_demos)


def _passed(before: int, now: int, freq: int) -> bool:
    """Whether a multiple of `freq` lies between two steps."""
    return now // freq > before // freq


def _rollout_metrics(rollout: RolloutBatch, progress: Progress) -> dict[str, float]:
    return {
        "judge/success_once": progress.judge_success or 0.0,
        "env/success_once": float(np.any(rollout.privileged["success"] & rollout.valid, axis=0).mean()),
        "rollout/rewards": float(rollout.reward[rollout.valid].mean()),
        "rollout/episode_length": float(rollout.length.mean()),
        "rollout/episodes": progress.episodes,
        "time/env_steps_per_s": progress.step / max(progress.elapsed_s, 1e-9),
        "time/elapsed_s": progress.elapsed_s,
    }

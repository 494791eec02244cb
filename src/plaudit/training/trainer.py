"""The synchronous loop: `plaudit train`. A rollout of a vectorized simulation, what is learned from it, and again.

    while not finished:
        rollout = collect a rollout of num_envs episodes from seeds, the judge decides
        store it, audit the judge, update the learner
        log, evaluate and save a checkpoint when due

All randomness comes from generators that a checkpoint keeps, and a rollout starts from seeds alone. A resumed run drops
the episodes that were stored after its checkpoint and plays them again, so it makes the same curve as one that was
never interrupted. Learners from replay stop between any two updates: the checkpoint keeps the count of pending updates
and the numbers of the rollout. PPO's update of a rollout is not divided, because a checkpoint would have to keep the
rollout with all its images.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

import numpy as np

from plaudit.data.batch import FeatureCache, to_torch
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.learners.base import extra_updates
from plaudit.learners.config import FromBaseConfig
from plaudit.rollout.collector import collecting
from plaudit.rollout.vector import ActFn, RolloutBatch, collect_rollout
from plaudit.training.audit import OOD_WINDOW, Audit, LabelChanges, true_success, withheld_warning
from plaudit.training.config import TrainingConfig, train_seed
from plaudit.training.evaluation import check_noise, evaluate_learner, make_eval_env
from plaudit.training.replay_buffer import Dataset, make_sampler
from plaudit.training.rollout_judge import RolloutJudge, describe_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import (
    build_learner,
    check_demos,
    check_demos_fit,
    device_frames,
    feature_cache,
    frozen_encoder_of_run,
    learner_env_spec,
    learner_threads,
    open_demos,
    sample_options,
)
from plaudit.training.trackers import check_trackers

ProgressBar = Callable[[str], Any]  # name -> a function that wraps a sequence in a progress bar
ShouldStop = Callable[[], bool]  # asked before each update from replay: whether to stop there
Phase = Literal["collecting", "updating", "evaluating", "saving"]  # what the loop does now


@dataclass
class RunState:
    """The state of a synchronous run."""

    step: int = 0  # env steps
    episodes: int = 0
    judge_success: float | None = None  # success rate of the last rollout, by the judge
    eval_success: float | None = None  # true success rate on eval seeds, at the last evaluation
    elapsed_s: float = 0.0  # over all sessions
    alarm: str | None = None  # why the audit has stopped the judge

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        speed = self.step / max(self.elapsed_s, 1e-9)
        return {"rollout/episodes": self.episodes, "time/env_steps_per_s": speed, "time/elapsed_s": self.elapsed_s}


@dataclass
class RolloutStats:
    """The numbers of a rollout, without its steps. A checkpoint keeps them while updates are pending."""

    steps: int  # of all its episodes
    episodes: int
    metrics: dict[str, float]  # by the names in docs/metrics.md, with those of the updates so far


Callback = Callable[[RunState], bool]  # called after each rollout; returns whether to continue


def check_run(config: TrainingConfig) -> tuple[str, ...]:
    """Validate demonstrations, stores and judge before anything is created. Returns messages about the judge."""
    check_demos(config)
    if config.collect is not None:
        config.collect.check()
    return describe_judge(config)


class Trainer:
    """`plaudit train`.

    with Trainer(folder, progress_bar) as trainer:
        end = trainer.run(lambda state: True)
    """

    def __init__(self, folder: RunFolder, progress_bar: ProgressBar):
        """progress_bar: for what is done before the first rollout"""
        self.folder, self.config, self._progress_bar = folder, folder.config, progress_bar
        self.state, self.phase = RunState(), cast(Phase, "updating")  # pages read both in another thread
        self._stack = ExitStack()

    def __enter__(self) -> "Trainer":
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        config, folder, horizon = self.config, self.folder, self.config.learner.action_horizon
        check_trackers(config.run.trackers)
        stack.callback(folder.close)
        self.env = stack.enter_context(closing(config.env.build(config.run.num_envs)))
        env_spec = learner_env_spec(config, self.env)
        if horizon > self.env.max_steps:
            raise DataError(f"learner.horizon is {horizon}, and an episode is over after {self.env.max_steps} steps")
        demos = open_demos(folder, self._progress_bar)
        if demos is not None:
            check_demos_fit(demos, env_spec, config.target_name)
        frozen = frozen_encoder_of_run(folder, env_spec, demos, self._progress_bar)  # by all threads
        stack.enter_context(learner_threads(config, env_spec))
        self.learner = build_learner(config, env_spec, frozen)
        self.judge = RolloutJudge(config, self.env)
        self._eval_judge = None if config.judge.is_simulator else self.judge.judge
        self.eval_env = stack.enter_context(closing(make_eval_env(config, self.learner, self._eval_judge)))
        self.audit = Audit(config.audit, config.run.seed)
        self._ood: deque[bool] = deque(maxlen=OOD_WINDOW)  # whether the newest episodes are out of distribution
        self._warned = False  # that most of them are
        self.episodes = None
        if config.off_policy or config.run.keep_episodes:
            self.episodes = RunEpisodes(folder, self.judge)
            stack.callback(self.episodes.store.close)
            self.episodes.evict()  # what was stored after the checkpoint
            self.judge.relabel(self.episodes.store, self._progress_bar)
        if demos is not None:
            demos = self.judge.label_demos(demos, folder.demo_labels, self._progress_bar)
        features = feature_cache(self.learner, folder.features)
        if self.episodes is not None and config.off_policy:
            self.updates = OffPolicyUpdates(config, self.learner, self.episodes, demos, self.judge, features)
        else:
            self.updates = OnPolicyUpdates(self.learner, self.episodes, demos, features, config.run.seed)
        self.collection = stack.enter_context(collecting(config.collect, folder.path))

    def run(self, callback: Callback, should_stop: ShouldStop = lambda: False) -> RunState:
        """Run to the end, or until asked to stop; starts from the newest checkpoint."""
        state, rollout = self._resume()
        self.state, start = state, time.monotonic() - state.elapsed_s
        going = rollout is not None or not self._is_finished(state)
        while going:
            # Collect a rollout, store it and learn from it.
            rollout = rollout or self._collect(state)
            if not self.audit.blocks_learning:
                self.phase = "updating"
                rollout.metrics |= self.updates.learn(should_stop)
            now = self._advance(state, rollout, time.monotonic() - start)
            if self.updates.pending and not self.audit.blocks_learning:
                state = replace(state, elapsed_s=now.elapsed_s)
                self._save(state, rollout)
                break
            self.folder.log(now.step, {**rollout.metrics, **now.metrics()})
            # Evaluate and save at their intervals.
            before, state, rollout = state.step, now, None
            self.state = state
            finished = self._is_finished(state)
            if finished or _is_due(before, state.step, self.config.evaluation.freq):
                state.eval_success = self._evaluate(state.step, start)
                finished = self._is_finished(state)
            going = callback(state) and not finished
            is_due = _is_due(before, state.step, self.config.run.checkpoint_freq)
            if is_due and self.episodes is not None:
                self.episodes.drop_surplus()
            if not going or is_due:
                self._save(state)
        return state

    def _collect(self, state: RunState) -> RolloutStats:
        """Play a rollout, store it and compare the judge with the simulator; the updates that it allows come next."""
        config, self.phase = self.config, "collecting"
        seeds = [train_seed(config.run.seed, state.episodes + i) for i in range(config.run.num_envs)]
        rollout = collect_rollout(
            self.env,
            self.updates.act_fn(state.step),
            seeds,
            self.judge.detector,
            reward=config.reward,
            gamma=config.learner.gamma,
            terminate_on_success=config.reward.terminates,
            steps_after_end=0 if config.judge.is_simulator else config.audit.onset_tolerance,
        )
        rollout = self.judge.flag(rollout)
        self.updates.add(rollout, state.step)
        metrics = {
            "judge/success_once": float(rollout.success_once.mean()),
            "env/success_once": float(np.any(rollout.privileged["success"] & rollout.valid, axis=0).mean()),
            "rollout/rewards": float(rollout.reward[rollout.valid].mean()),
            "rollout/episode_length": float(rollout.length.mean()),
            **self._audit(rollout, state.episodes),
        }
        if self.collection is not None:
            metrics |= self.collection.take(rollout, self.env)
        return RolloutStats(rollout.steps, len(rollout.length), metrics)

    def _audit(self, rollout: RolloutBatch, first_episode: int) -> dict[str, float]:
        """Compare the judge with the simulator. The learner never sees the result."""
        if self.config.judge.is_simulator:
            return {}
        tolerance = self.config.audit.onset_tolerance
        predicted, ood = rollout.success_once, [bool(reason) for reason in rollout.ood]
        ood = ood or [False] * len(predicted)
        truth = [true_success(*onsets, tolerance) for onsets in zip(rollout.first_success, rollout.first_true)]
        for n, (actual, early) in enumerate(truth):
            is_decided = not (ood[n] and self.judge.judge.rule.withholds)
            if is_decided and self.audit.draws(first_episode + n, bool(predicted[n]), disputed=ood[n]):
                self.audit.add(first_episode + n, actual, early)
        actual = np.array([is_true for is_true, _ in truth])
        self._ood.extend(ood)
        if not self._warned and (warning := withheld_warning(self._ood, self.judge.judge.rule)):
            self._warned = True
            self.folder.on_warning(warning)
        return {
            "judge/accuracy": float((actual == predicted).mean()),
            **({"judge/ood_share": float(np.mean(ood))} if rollout.ood else {}),
            "time/compute_model_rewards": self.judge.detector.read_step_ms(),
            **self.audit.metrics(),
        }

    def _advance(self, state: RunState, rollout: RolloutStats, elapsed_s: float) -> RunState:
        return replace(
            state,
            step=state.step + rollout.steps,
            episodes=state.episodes + rollout.episodes,
            judge_success=rollout.metrics["judge/success_once"],
            elapsed_s=elapsed_s,
            alarm=self.audit.alarm,
        )

    def _is_finished(self, state: RunState) -> bool:
        """Whether the run is over; evaluated at its end in any case."""
        return (
            self.config.is_complete(state.step, state.episodes)
            or self.config.evaluation.ends_run(state.eval_success)
            or self.audit.blocks_learning
            or (self.collection is not None and self.collection.enough)
        )

    def _evaluate(self, step: int, start: float) -> float:
        self.phase = "evaluating"
        result = evaluate_learner(self.config, self.learner, self.eval_env, self._eval_judge)
        self.folder.log(step, {**result.metrics, "time/elapsed_s": time.monotonic() - start})
        if result.video is not None:
            self.folder.log_video(step, result.video)
        self.folder.save_policy(self.learner.policy_config(), self.learner.weights())
        return result.success_rate

    def _save(self, state: RunState, rollout: RolloutStats | None = None) -> None:
        """Save a checkpoint. rollout: collected after `state`, with updates left to make"""
        self.phase = "saving"
        saved = {
            **vars(state),
            "rollout": None if rollout is None else vars(rollout),
            "first_episode": 0 if self.episodes is None else self.episodes.first,
            "num_episodes_stored": 0 if self.episodes is None else self.episodes.end,
            "updates": self.updates.state_dict(),
            "judge": self.judge.judge.id.model,
            "audit": self.audit.state_dict(),
        }
        self.folder.save_checkpoint(state.step, self.learner, saved)
        if self.episodes is not None:
            self.episodes.evict()

    def _resume(self) -> tuple[RunState, RolloutStats | None]:
        """The state of the newest checkpoint, and a rollout with updates left to make; or the beginning of the run."""
        start, saved = time.monotonic(), self.folder.resume(self.learner)
        if saved is None:
            check_noise(self.config, self.learner, self.eval_env, self._progress_bar)
            pretrained = self.updates.pretrain(self._progress_bar)
            if pretrained or isinstance(self.config.learner, FromBaseConfig):  # what demonstrations or base are worth
                self._evaluate(0, start)
            return RunState(elapsed_s=time.monotonic() - start), None
        self.updates.load_state_dict(saved["updates"])
        state = RunState(**{field.name: saved[field.name] for field in fields(RunState)})
        if saved["judge"] == self.judge.judge.id.model:
            self.audit.load_state_dict(saved["audit"])
        else:  # another judge is audited from the start
            self.audit.restart(number=saved["audit"]["number"] + 1)
        state.alarm = self.audit.alarm
        rollout = saved["rollout"]
        return state, None if rollout is None else RolloutStats(**rollout)


def _is_due(before: int, now: int, freq: int) -> bool:
    """Whether a multiple of `freq` lies between two steps."""
    return now // freq > before // freq


class RunEpisodes:
    """The run's own episodes with their labels, as the newest checkpoint has them.

    Episodes beyond the capacity are evicted at regular checkpoints only, after the checkpoint is written. A run that is
    killed between two checkpoints therefore still has every episode that the older one needs.
    """

    def __init__(self, folder: RunFolder, judge: RolloutJudge):
        path, capacity = folder.episodes, int(folder.config.run.capacity_gb * 1e9)
        self._judge = judge
        saved = folder.newest_state() or {"first_episode": 0, "num_episodes_stored": 0}
        how = {"images": folder.config.run.store_images, "compress_old": folder.config.run.compress_old}
        self.store = Store.open_or_create(path, capacity_bytes=capacity, **how)
        self._overdue = 0  # episodes before it exceed the capacity although all that could be compressed was
        self.first: int = saved["first_episode"]  # id of the oldest episode to keep; part of a checkpoint
        self.end: int = saved["num_episodes_stored"]  # next id of the run; part of a checkpoint

    def add(self, rollout: RolloutBatch) -> None:
        """Store a rollout."""
        pairs = self._judge.episodes(rollout)
        ids = self.store.extend([episode for episode, _ in pairs], evict=False)
        self.store.ledger.extend(zip(ids, (labels for _, labels in pairs), strict=True))
        self.end = ids[-1] + 1

    def drop_surplus(self) -> None:
        """Keep only what fits into the capacity, from the next checkpoint on."""
        if not self.store.settings.compress_old.is_raw:
            self.first = max(self.first, self._overdue)
        elif surplus := self.store.surplus():
            self.first = surplus[-1] + 1

    def evict(self) -> None:
        """Evict all episodes that the newest checkpoint does not contain; compress what exceeds the capacity."""
        if outside := [i for i in self.store.ids if not self.first <= i < self.end]:
            self.store.evict(outside)
        self.store.compress_surplus()
        self._overdue = max(self.store.surplus(), default=-1) + 1


class OnPolicyUpdates:
    """PPO: each rollout is used once, and stored only when asked for. Demonstrations are cloned first."""

    def __init__(
        self,
        learner: Any,
        episodes: RunEpisodes | None,
        demos: Store | None,
        features: FeatureCache | None,
        seed: int,
    ):
        self._learner, self._episodes, self._demos, self._seed = learner, episodes, demos, seed
        self._features = features
        self._rollout: RolloutBatch | None = None

    def pretrain(self, progress_bar: ProgressBar) -> bool:
        """Learn from demonstrations before the first rollout; returns whether something was learned."""
        if self._demos is None:
            return False
        config = self._learner.config
        options = {**self._learner.replay_options, "features": self._features, "demonstrations": True}
        replay = ReplaySampler(self._demos, **options, seed=self._seed)
        for _ in progress_bar("pretraining on demonstrations")(range(config.pretrain_updates)):
            self._learner.bc_update(to_torch(replay.sample(config.pretrain_batch_size), self._learner.device))
        return config.pretrain_updates > 0

    def act_fn(self, step: int) -> ActFn:
        """What acts in the rollout that starts at this step."""
        return self._learner.act_fn(explore=True)

    def add(self, rollout: RolloutBatch, step: int) -> None:
        """Take a rollout that started at this step, to learn from it."""
        self._rollout = rollout
        if self._episodes is not None:
            self._episodes.add(rollout)

    def learn(self, should_stop: ShouldStop) -> Mapping[str, float]:
        """Make the updates that the data allows, or some if asked to stop in between; returns metrics."""
        rollout, self._rollout = self._rollout, None
        return self._learner.update(rollout)

    @property
    def pending(self) -> bool:
        """Whether updates are left to make before the next rollout."""
        return self._rollout is not None

    @property
    def due(self) -> int:
        """Updates that are due, also those that wait for labels."""
        return 0 if self._rollout is None else 1

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the learner, as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A rollout is used once, and the learner has it."""


class OffPolicyUpdates:
    """SAC, Q-chunking: episodes are stored with their labels, and batches are sampled from replay and demonstrations.

    The methods are those of `OnPolicyUpdates`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        learner: Any,
        episodes: RunEpisodes,
        demos: Store | None,
        judge: RolloutJudge,
        features: FeatureCache | None,
    ):
        self._learner, self._episodes, self._demos = learner, episodes, demos
        options = sample_options(config, learner, judge.judge.id.source, config.run.seed)
        stores: dict[Dataset, Store] = {"episodes": episodes.store, **({} if demos is None else {"demos": demos})}
        self._replay = make_sampler(stores, options, features, device_frames(config, learner))
        self._rng = np.random.default_rng([config.run.seed, 1])  # of random actions
        self._changes = LabelChanges(judge.judge.id.source) if config.resets_after_relabeling else None
        self._updates_due = 0.0

    def pretrain(self, progress_bar: ProgressBar) -> bool:
        updates = self._learner.pretrain_updates if self._demos is not None and len(self._replay) else 0
        for _ in progress_bar("pretraining on demonstrations")(range(updates)):
            self._update()
        return updates > 0

    def act_fn(self, step: int) -> ActFn:
        config = self._learner.config
        if step >= config.random_steps or not config.random_actions:
            return self._learner.act_fn(explore=True)
        dim = self._learner.env_spec.action_dim
        return lambda seen: self._rng.uniform(-1, 1, (len(seen.state), dim)).astype(np.float32)

    def add(self, rollout: RolloutBatch, step: int) -> None:
        self._episodes.add(rollout)
        self._replay.refresh()
        config = self._learner.config
        self._updates_due += config.updates_due(step + rollout.steps) - config.updates_due(step)
        if self._changes is not None:
            before = extra_updates(self._learner)
            self._learner.take_label_changes(*self._changes.read(self._episodes.store.ledger))
            self._updates_due += extra_updates(self._learner) - before

    def learn(self, should_stop: ShouldStop) -> Mapping[str, float]:
        metrics: dict[str, Any] = {}
        while self.pending and not should_stop():
            metrics |= self._update()
            self._updates_due -= 1
        return {name: float(value) for name, value in metrics.items()}

    @property
    def pending(self) -> bool:
        return self._updates_due >= 1 and len(self._replay) > 0  # updates add up while all labels are late

    @property
    def due(self) -> int:
        return int(self._updates_due)

    def _update(self) -> Mapping[str, Any]:
        return self._learner.update(self._replay.sample_torch(self._learner.config.batch_size, self._learner.device))

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

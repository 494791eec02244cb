"""How learners learn from the rollouts of `plaudit train`: from each as a whole, or by batches of replay.

    updates.add(rollout, step)
    metrics = updates.learn(should_stop)      # updates.pending: it was stopped between two updates

Replay is on disk and the count of updates that are due is in the checkpoint, so the learners of replay stop between any
two updates and go on exactly there. PPO's one update of a rollout is not divided: a checkpoint would have to keep the
rollout, with all its images.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plaudit.data.batch import to_torch
from plaudit.data.label_order import counted_sources
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.rollout.vector import ActFn, RolloutBatch
from plaudit.training.config import TrainingConfig
from plaudit.training.rollout_judge import RolloutJudge
from plaudit.types import Observation

ProgressBar = Callable[[str], Any]  # name -> a function that wraps a sequence in a progress bar
ShouldStop = Callable[[], bool]  # asked before each update from replay: whether to stop there


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
    def add(self, rollout: RolloutBatch, step: int) -> None:
        """Take a rollout that started at this step, to learn from it."""

    @abstractmethod
    def learn(self, should_stop: ShouldStop) -> Mapping[str, float]:
        """Make the updates that are due, or some if asked to stop in between; returns metrics."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether updates are left to make before the next rollout."""

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
        self._rollout: RolloutBatch | None = None

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

    def add(self, rollout: RolloutBatch, step: int) -> None:
        self._rollout = rollout
        if self._episodes is not None:
            self._episodes.add(rollout)

    def learn(self, should_stop: ShouldStop) -> Mapping[str, float]:
        rollout, self._rollout = self._rollout, None
        return self._learner.update(rollout)

    @property
    def pending(self) -> bool:
        return self._rollout is not None

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
        judge: RolloutJudge,
    ):
        self._learner, self._episodes, self._demos = learner, episodes, demos
        seed = config.run.seed
        options = {
            **learner.replay_options,
            "reward": config.reward,
            "terminate_on_success": config.reward.terminates,
            "seed": seed,
        }
        late, own = config.labels_late_by, counted_sources(judge.judge.id.source)
        if demos is not None:
            ends, ratio = (judge.trusts_demos, True), learner.config.demo_ratio
            options |= {"trust_terminated": ends, "hold_back": (0, late), "sources": (None, own)}
            self._replay = ReplaySampler.mix(demos, episodes.store, ratio, **options)
        else:
            self._replay = ReplaySampler(episodes.store, hold_back=(late,), sources=(own,), **options)
        self._rng = np.random.default_rng([seed, 1])  # of random actions
        self._updates_due = 0.0  # less than one when all are made that can be

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

    def add(self, rollout: RolloutBatch, step: int) -> None:
        self._episodes.add(rollout)
        self._replay.refresh()
        config = self._learner.config
        self._updates_due += config.updates_due(step + rollout.steps) - config.updates_due(step)

    def learn(self, should_stop: ShouldStop) -> Mapping[str, float]:
        metrics: dict[str, Any] = {}
        while self.pending and not should_stop():
            metrics |= self._update()
            self._updates_due -= 1
        return {name: float(value) for name, value in metrics.items()}

    @property
    def pending(self) -> bool:
        return self._updates_due >= 1 and len(self._replay) > 0  # while all labels are late, updates add up

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


def make_updates(
    config: TrainingConfig, learner: Any, episodes: RunEpisodes | None, demos: Store | None, judge: RolloutJudge
) -> Updates:
    """As the learner of a run learns."""
    if not config.off_policy:
        return OnPolicyUpdates(learner, episodes, demos, config.run.seed)
    assert episodes is not None
    return OffPolicyUpdates(config, learner, episodes, demos, judge)

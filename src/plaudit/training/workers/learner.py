"""The learner's side: as many updates as the data has earned, and what came of them for everyone else.

How many updates are due is counted by the loop (training/online.py): the same number goes to each rank of a group, so
that they stay in step. What is on disk is one checkpoint, whoever wrote it: a group of two resumes what one
worker began.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from plaudit.data.batch import to_torch
from plaudit.data.checkpoint import dump_checkpoint, load_dumped
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.errors import PolicyError, did_you_mean
from plaudit.policies.loader import PolicySpec, load_policy, read_weights
from plaudit.policies.networks import load_components
from plaudit.training.config import TrainingConfig
from plaudit.training.distributed import SINGLE, DistributedGroup
from plaudit.training.evaluation import evaluate, make_eval_env
from plaudit.training.handles import Handle
from plaudit.training.learner_setup import build_learner, learner_threads
from plaudit.training.replay_buffer import RemoteSampler, ReplayBuffer, SampleOptions, make_sampler
from plaudit.training.run_folder import RunFolder
from plaudit.training.state_manager import StateManager
from plaudit.types import AnyArray, Batch, EnvSpec


@dataclass(frozen=True)
class UpdateReport:
    """What a trainer did when it was last asked."""

    updates: int  # since the beginning of the run
    made: int  # of these, just now
    seconds: float  # that they took
    waiting: float  # of these, for batches
    metrics: Mapping[str, float] = field(default_factory=dict)  # the mean over these, by the names in docs/metrics.md
    version: int | None = None  # of the weights that were published meanwhile


@dataclass(frozen=True)
class LearnerInfo:
    """What a learner tells of itself once it is set up."""

    updates: int  # made so far, over all sessions of the run
    pretrain_updates: int  # that it makes on demonstrations before the robot moves
    policy_config: Any  # of the policy that it learns
    exploring_config: Any  # of the same as the robot acts with it


class LearnerWorker:
    """One learner, or one rank of several that make the same updates.

    info = worker.setup(env_spec, source)          # goes on from the newest checkpoint
    report = worker.update(200)                  # publishes weights and saves when due
    """

    learner: Any  # an OffPolicyLearner, from `setup` on

    def __init__(
        self, config: TrainingConfig, folder: str | Path, replay: Handle[ReplayBuffer], state: Handle[StateManager]
    ):
        self._config, self._replay, self._state = config, replay, state
        self._folder = RunFolder(Path(folder), config)
        normalizer = config.policy.normalizer
        self._normalizer = None if normalizer is None else Normalizer.load(normalizer)
        self._group = SINGLE

    def setup(self, env_spec: EnvSpec, source: str, group: DistributedGroup = SINGLE) -> LearnerInfo:
        """
        env_spec: what it sees and does
        source: whose labels count
        """
        config, self._group = self._config, group
        self._threads = partial(learner_threads, config, env_spec)
        self.learner = build_learner(config, env_spec)
        check_policy_fits(config, self.learner)
        self._sampler = self._make_sampler(source)
        self._resume()
        if group.size > 1:
            self.learner.sync = group.all_reduce_mean
            self.learner.rng.manual_seed(
                config.run.seed * 1009 + self.updates * group.size + group.rank
            )  # noise of its own
        self._published = self._saved = self.updates
        self._unpublished = True  # whether the weights may differ from the newest version: those of a checkpoint do
        self._batch = -(-self.learner.config.batch_size // group.size)
        policy = self.learner.policy_config
        return LearnerInfo(self.updates, self.learner.pretrain_updates, policy(), policy(explore=True))

    def _make_sampler(self, source: str) -> ReplaySampler | RemoteSampler:
        where, learner = self._replay.call(ReplayBuffer.location), self.learner
        options = SampleOptions(
            source=source,
            **learner.replay_options,
            demo_ratio=learner.config.demo_ratio,
            reward=self._config.reward,
            terminate_on_success=self._config.reward.terminates,
            trust_demos=not self._config.relabels_demos,
            seed=self._config.run.seed * 1009 + self._group.rank,
        )
        sampling = self._config.run.sampling
        local = where.is_here if sampling == "auto" else sampling == "local"
        return make_sampler(where, options) if local else RemoteSampler(self._replay, options)

    def _resume(self) -> None:
        """The first worker reads what there is, and all have the same then."""
        if self._group.rank == 0 and self._folder.load_checkpoint(self.learner) is None:
            load_pretrained(self._config, self.learner)
        state = self._group.broadcast(dump_checkpoint(self.learner) if self._group.rank == 0 else None)
        if self._group.rank:
            load_dumped(state, self.learner)

    @property
    def updates(self) -> int:
        return self.learner.version

    def publish(self) -> int:
        """Make the weights as they are the newest version."""
        version = self._state.call(StateManager.publish, self.learner.weights())
        self._published, self._unpublished = self.updates, False
        return version

    def save_checkpoint(self) -> None:
        """All of the learner; the policy on disk is not older than that."""
        try:
            if self._unpublished:
                self.publish()
        finally:
            self._folder.save_checkpoint(self.updates, self.learner, {"step": self.updates})
            self._saved = self.updates

    def update(self, updates: int, max_s: float = math.inf, rejected: frozenset[str] = frozenset()) -> UpdateReport:
        """Make at most `updates` updates; then publish and save what is due.

        max_s: no further update begins after this many seconds, so that a slow learner reports and can be stopped after
            each of them. Ranks of a group ignore it, since all must make the same number.
        rejected: fingerprints of judges that an alarm has stopped; their labels are not sampled

        Nothing that can fail stands between two updates: a worker that stops there leaves the others waiting.
        """
        begun, clock, before = time.monotonic(), _Clock(), self.updates
        until = begun + max_s if self._group.size == 1 else math.inf
        with self._threads():
            means = self._learn(updates, until, rejected, clock)
        self._unpublished |= self.updates > before
        seconds = time.monotonic() - begun
        version = None
        if self._group.rank == 0:
            if self.updates - self._published >= self._config.run.publish_freq:
                version = self.publish()
            if self.updates - self._saved >= self._updates_per_checkpoint:
                self.save_checkpoint()
        return UpdateReport(self.updates, self.updates - before, seconds, clock.seconds, means, version)

    def _learn(self, updates: int, until: float, rejected: frozenset[str], clock: "_Clock") -> dict[str, float]:
        """The updates themselves; returns the mean of each metric over them."""
        totals: dict[str, list[Any]] = {}
        with clock.running():
            if not self._sampler.refresh(rejected):  # all is evicted, excluded or withheld
                return {}
        for made in range(updates):
            if made and time.monotonic() >= until:
                break
            with clock.running():
                batch = to_torch(
                    normalize_batch(self._sampler.sample(self._batch), self._normalizer), self.learner.device
                )
            for name, number in self.learner.update(batch).items():
                totals.setdefault(name, []).append(number)
        return {name: float(sum(numbers) / len(numbers)) for name, numbers in totals.items()}  # waits for the GPU once

    @property
    def _updates_per_checkpoint(self) -> int:
        """The updates that `run.checkpoint_freq` env steps allow."""
        return max(1, round(self._config.run.checkpoint_freq * self.learner.config.utd_ratio))

    def evaluate(self) -> float:
        """True success rate on eval seeds, of the policy as it is now."""
        with self._threads(), closing(make_eval_env(self._config, self.learner)) as env:
            return evaluate(env, self.learner, self._config.evaluation.episodes).success_rate

    def close(self) -> None:
        self._group.close()


class _Clock:
    """Seconds spent on one thing."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds += time.monotonic() - begun


def normalize_batch(batch: Batch[AnyArray], normalizer: Normalizer | None) -> Batch[AnyArray]:
    """In the learner's units, see training/normalization.py; images are left as they are."""
    if normalizer is None:
        return batch
    return replace(
        batch,
        state=normalizer.normalize_state(batch.state),
        next_state=normalizer.normalize_state(batch.next_state),
        actions=normalizer.normalize_action(batch.actions),
    )


def robot_policy(config: TrainingConfig, learner: LearnerInfo) -> PolicySpec:
    """What the robot builds to act with."""
    if config.policy.behavior == "pretrained":
        assert config.policy.path is not None
        return load_policy(config.policy.path).on(config.policy.device)
    return PolicySpec.of(learner.exploring_config).on(config.policy.device)


def load_pretrained(config: TrainingConfig, learner: Any) -> None:
    """Put the weights of the policy that a run begins with into its learner."""
    if config.policy.path is None or config.policy.behavior == "pretrained":
        return
    spec = load_policy(config.policy.path)
    if spec.weights is not None:
        weights = read_weights(spec.weights)
        parts = {name.partition("/")[0] for name in weights.tensors}
        load_components({name: part for name, part in learner.components.items() if name in parts}, weights)


def check_policy_fits(config: TrainingConfig, learner: Any) -> None:
    """Refuse a policy whose components are not the learner's, naming each that is not."""
    if config.policy.path is None or config.policy.behavior == "pretrained":
        return
    spec = load_policy(config.policy.path)
    shapes = _shapes(spec.on("cpu").build().components)
    wrong = _differences(shapes, _shapes(learner.components), {name.partition("/")[0] for name in shapes})
    if wrong:
        raise PolicyError(
            "\n".join(f"{config.policy.path} does not fit learner '{config.learner_name}': {what}" for what in wrong)
        )


Shapes = Mapping[str, tuple[int, ...]]


def _shapes(components: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        f"{part}/{name}": tuple(tensor.shape)
        for part, module in components.items()
        for name, tensor in module.state_dict().items()
    }


def _differences(theirs: Shapes, own: Shapes, parts: set[str]) -> list[str]:
    wrong: list[str] = []
    own_parts = {name.partition("/")[0] for name in own}
    if not parts:
        return [
            "it has no component that learns; write policy.behavior=pretrained to let it act while the learner watches"
        ]
    for part in sorted(parts - own_parts):
        wrong.append(f"component '{part}' is not one of the learner's; {did_you_mean(part, own_parts)}")
    for name in sorted(n for n in {*theirs, *own} if n.partition("/")[0] in parts & own_parts):
        if name not in own:
            wrong.append(f"'{name}' has no place in the learner; {did_you_mean(name, own)}")
        elif name not in theirs:
            wrong.append(f"'{name}' of the learner is missing; {did_you_mean(name, theirs)}")
        elif theirs[name] != own[name]:
            wrong.append(f"'{name}' is {list(theirs[name])}, the learner's is {list(own[name])}")
    return wrong

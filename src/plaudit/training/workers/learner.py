"""The learner's side: updates, checkpoints, evaluations, and new weights for everyone who acts with them.

The loop counts the updates that are due (training/online.py) and sends the same number to each rank of a group, so that
they stay in step. There is one checkpoint on disk, so a group of two can resume what one worker began.

Data-parallel learners each take a part of every batch, and all of them take the same step. This is plain
`torch.distributed` between steps of an ordinary learner: gradients are averaged right before an optimizer uses them
(`Learner.sync`), so the networks stay the same everywhere and nothing of the algorithm is written twice. (Rejected:
`DistributedDataParallel`, which wraps one forward pass; a learner of critics, actors and targets has several.)
"""

import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from plaudit.data.batch import to_torch
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.weights import dump_checkpoint, load_dumped
from plaudit.errors import PlauditError, PolicyError, did_you_mean
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.simulator import NoisyJudgeConfig
from plaudit.learners.base import CriticLearner, extra_updates, relearning
from plaudit.learners.config import DsrlConfig
from plaudit.policies.loader import PolicySpec, load_policy, read_weights
from plaudit.policies.networks import FROZEN, load_components, weights_of
from plaudit.training.config import TrainingConfig
from plaudit.training.evaluation import EvalResult, check_noise, evaluate_learner, make_eval_env, run_judge
from plaudit.training.replay_buffer import RemoteSampler, ReplayBuffer, StateManager, make_sampler
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import (
    build_learner,
    check_demos_fit,
    device_frames,
    feature_cache,
    frozen_encoder,
    learner_threads,
    sample_options,
)
from plaudit.training.workers.handles import Handle
from plaudit.trust import print_plain
from plaudit.types import AnyArray, Batch, EnvSpec, ProgressFn

TIMEOUT = timedelta(seconds=60)  # for the slowest of the others, before its absence is an error


class DistributedGroup:
    """One rank of several, in a process group that is there; alone, it has nothing to do."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def init_process_group(cls, rank: int, size: int, address: str) -> "DistributedGroup":
        """All ranks call this at the same time with the same address, host:port of the first."""
        host, _, port = address.rpartition(":")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to(host) or "lo")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        where = f"tcp://{host}:{port}"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=TIMEOUT)
        return cls(rank, size)

    def all_reduce_mean(self, parameters: Sequence[Tensor]) -> None:
        """Make the gradients of these the mean over all ranks."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def broadcast(self, data: bytes | None) -> bytes:
        """Send the first rank's value to all ranks."""
        sent: list[bytes | None] = [data]
        if self.size > 1:
            dist.broadcast_object_list(sent, src=0)
        assert sent[0] is not None
        return sent[0]

    def close(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


SINGLE = DistributedGroup()


def rendezvous_address(host: str = "127.0.0.1") -> str:
    """Where ranks can meet: an unused port of this host."""
    with socket.socket() as chosen:
        chosen.bind((host, 0))
        return f"{host}:{chosen.getsockname()[1]}"


def interface_to(host: str) -> str | None:
    """The name of the network interface that leads to a host; None where the system does not say."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            own_address = probe.getsockname()[0]
    except OSError:
        return None
    every = psutil.net_if_addrs().items()
    return next((name for name, addresses in every if any(one.address == own_address for one in addresses)), None)


@dataclass(frozen=True)
class UpdateReport:
    """What a trainer did in its last call."""

    updates: int  # since the beginning of the run
    made: int  # of these, just now
    seconds: float  # that they took
    waiting: float  # of these, for batches
    extra_updates: int = 0  # due after resets by relabeling, since the beginning of the run
    metrics: Mapping[str, float] = field(default_factory=dict)  # the mean over these, by the names in docs/metrics.md


@dataclass(frozen=True)
class LearnerInfo:
    """Properties of a learner, reported after setup."""

    updates: int  # made so far, over all sessions of the run
    pretrain_updates: int  # that it makes on demonstrations before the robot moves
    policy_config: Any  # of the policy that it learns
    exploring_config: Any  # of the same as the robot acts with it
    extra_updates: int = 0  # due after resets by relabeling, over all sessions of the run


class LearnerWorker:
    """One learner, or one rank of several that make the same updates.

    info = worker.setup(env_spec, source)          # resumes from the newest checkpoint
    report = worker.update(200)                    # publishes weights and saves when due
    """

    learner: Any  # an OffPolicyLearner, from `setup` on

    def __init__(
        self, config: TrainingConfig, folder: str | Path, replay: Handle[ReplayBuffer], state: Handle[StateManager]
    ):
        self._config, self._replay, self._state = config, replay, state
        self._folder = RunFolder(Path(folder), config)
        normalizer = config.policy.normalizer
        loaded = None if normalizer is None else Normalizer.load(normalizer)
        self._prepare = partial(normalize_batch, normalizer=loaded)
        self._group = SINGLE

    def setup(self, env_spec: EnvSpec, source: str, group: DistributedGroup = SINGLE) -> LearnerInfo:
        """Build the learner in the state of the newest checkpoint.

        env_spec: what it sees and does
        source: whose labels count
        """
        config, self._group = self._config, group
        self._threads = partial(learner_threads, config, env_spec)
        where = self._replay.call(ReplayBuffer.location)
        if where.is_here and where.demos is not None:
            check_demos_fit(Store.open(where.demos), env_spec, config.target_name)
        self.learner = build_learner(config, env_spec, self._frozen_encoder(env_spec))
        check_policy_fits(config, self.learner)
        # The first rank reads what there is, and all have the same then.
        if group.rank == 0 and self._folder.load_checkpoint(self.learner) is None:
            load_pretrained(config, self.learner)
            if config.simulated and isinstance(config.learner, DsrlConfig):
                with closing(make_eval_env(config, self.learner)) as env:
                    check_noise(config, self.learner, env, _announce)
        state = group.broadcast(dump_checkpoint(self.learner) if group.rank == 0 else None)
        if group.rank:
            load_dumped(state, self.learner)
        if group.size > 1:
            self.learner.sync = group.all_reduce_mean
            own_noise = config.run.seed * 1009 + self.updates * group.size + group.rank
            self.learner.rng.manual_seed(own_noise)
        self._sampler = self._make_sampler(source)
        self._published = self._saved = self.updates
        self._unpublished = True  # whether the weights may differ from the newest version: those of a checkpoint do
        self._batch = -(-self.learner.config.batch_size // group.size)
        policy = self.learner.policy_config
        exploring, extra = policy(explore=True), extra_updates(self.learner)
        return LearnerInfo(self.updates, self.learner.pretrain_updates, policy(), exploring, extra)

    def _frozen_encoder(self, env_spec: EnvSpec) -> Any:
        """The first worker trains or loads the frozen part of the policy's image encoder; all have the same then."""
        config, demos = self._config, None
        if not config.policy.encoder.is_frozen:
            return None
        if self._group.rank:
            self._group.broadcast(None)
        saved = self._state.call(StateManager.get_frozen)
        if saved is None:
            demos = self._replay.call(ReplayBuffer.location).open().get("demos")
        frozen = frozen_encoder(config, env_spec, saved, demos, _announce, self._prepare)
        if self._group.rank == 0:
            if frozen is not None and saved is None:
                self._state.call(StateManager.publish_frozen, weights_of(0, {FROZEN: frozen}))
            self._group.broadcast(b"published")
        return frozen

    def _make_sampler(self, source: str) -> ReplaySampler | RemoteSampler:
        where, learner, sampling = self._replay.call(ReplayBuffer.location), self.learner, self._config.run.sampling
        options = sample_options(self._config, learner, source, self._config.run.seed * 1009 + self._group.rank)
        local = where.is_here if sampling == "auto" else sampling == "local"
        self._features = feature_cache(learner, self._folder.features if where.is_here else None)
        if not local:
            return RemoteSampler(self._replay, options)
        sampler = make_sampler(where.open(), options, self._features, device_frames(self._config, learner))
        sampler.rng = np.random.default_rng([options.seed, self.updates])  # a resumed run does not draw the same again
        return sampler

    @property
    def updates(self) -> int:
        """Updates since the beginning of the run."""
        return self.learner.version

    def publish(self) -> int:
        """Make the weights as they are the newest version."""
        version = self._state.call(StateManager.publish, self.learner.weights())
        self._published, self._unpublished = self.updates, False
        return version

    def save_checkpoint(self) -> None:
        """Save the whole learner; the policy on disk is not older than that."""
        try:
            if self._unpublished and not relearning(self.learner):
                self.publish()
        finally:
            self._folder.save_checkpoint(self.updates, self.learner, {"step": self.updates})
            self._saved = self.updates

    def update(
        self,
        updates: int,
        max_s: float = math.inf,
        rejected: frozenset[str] = frozenset(),
        label_changes: tuple[int, int] | None = None,
    ) -> UpdateReport:
        """Make at most `updates` updates; then publish and save at their intervals.

        max_s: no further update begins after this many seconds, so that a slow learner reports and can be stopped after
            each of them. Ranks of a group ignore it, since all must make the same number.
        rejected: fingerprints of judges that an alarm has stopped; their labels are not sampled
        label_changes: how often a label changed an episode's success, and the number of labeled episodes

        Nothing that can fail stands between two updates: a worker that stops there leaves the others waiting.
        """
        begun, before, run = time.monotonic(), self.updates, self._config.run
        until = begun + max_s if self._group.size == 1 else math.inf
        if label_changes is not None and isinstance(self.learner, CriticLearner):
            self.learner.take_label_changes(*label_changes)
        with self._threads():
            metrics, waited = self._learn(updates, until, rejected)
        self._unpublished |= self.updates > before
        seconds = time.monotonic() - begun
        if self._group.rank == 0:
            if self.updates - self._published >= run.publish_freq and not relearning(self.learner):
                self.publish()
            if self.updates - self._saved >= max(1, round(run.checkpoint_freq * self.learner.config.utd_ratio)):
                self.save_checkpoint()
        extra = extra_updates(self.learner)
        return UpdateReport(self.updates, self.updates - before, seconds, waited, extra, metrics)

    def _learn(self, updates: int, until: float, rejected: frozenset[str]) -> tuple[dict[str, float], float]:
        """The updates themselves; returns the mean of each metric over them, and the seconds spent on batches."""
        totals: dict[str, list[Any]] = {}
        begun = time.monotonic()
        has_samples = self._sampler.refresh(rejected)  # False: all is evicted, excluded or withheld
        waited = time.monotonic() - begun
        for made in range(updates if has_samples else 0):
            begun = time.monotonic()
            if made and begun >= until:
                break
            batch = self._sample()
            waited += time.monotonic() - begun
            for name, number in self.learner.update(batch).items():
                totals.setdefault(name, []).append(number)
        means = {name: float(sum(numbers) / len(numbers)) for name, numbers in totals.items()}  # waits for the GPU once
        return means, waited

    def _sample(self) -> Batch[Any]:
        if isinstance(self._sampler, ReplaySampler):
            return self._sampler.sample_torch(self._batch, self.learner.device, self._prepare)
        batch = self._prepare(self._sampler.sample(self._batch))
        if self._features is not None:
            encode = self._features.encode
            batch = replace(batch, images=encode(batch.images), next_images=encode(batch.next_images))
        return to_torch(batch, self.learner.device)

    def evaluate(self) -> EvalResult:
        """The policy as it is now, on eval seeds: by the simulator, and by a classifier or a noisy judge."""
        config, judge = self._config, None
        if isinstance(config.judge.config, ClassifierJudgeConfig | NoisyJudgeConfig) and self._folder.path.exists():
            with suppress(PlauditError):  # its model is on another machine; the judge's worker reports a damaged one
                judge = run_judge(self._folder)
        with self._threads(), closing(make_eval_env(config, self.learner, judge)) as env:
            return evaluate_learner(config, self.learner, env, judge)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()


def _announce(what: str) -> ProgressFn:
    """In place of a progress bar, which a worker on another machine cannot draw."""
    print_plain(what)
    return iter


def normalize_batch(batch: Batch[AnyArray], normalizer: Normalizer | None) -> Batch[AnyArray]:
    """In the learner's units, see training/setup.py; images are left as they are."""
    if normalizer is None:
        return batch
    return replace(
        batch,
        state=normalizer.normalize_state(batch.state),
        next_state=normalizer.normalize_state(batch.next_state),
        actions=normalizer.normalize_action(batch.actions),
    )


def robot_policy(config: TrainingConfig, learner: LearnerInfo) -> PolicySpec:
    """The policy config from which the robot builds its policy."""
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
    """Refuse a policy whose components are not the learner's, naming each difference."""
    if config.policy.path is None or config.policy.behavior == "pretrained":
        return
    theirs = _shapes(load_policy(config.policy.path).on("cpu").build().components)
    own = _shapes(learner.components)
    parts, own_parts = ({name.partition("/")[0] for name in shapes} for shapes in (theirs, own))
    wrong = [
        f"component '{part}' is not one of the learner's; {did_you_mean(part, own_parts)}"
        for part in sorted(parts - own_parts)
    ]
    if not parts:
        wrong = ["it has no component that learns; write policy.behavior=pretrained to let it act unchanged"]
    for name in sorted(n for n in {*theirs, *own} if n.partition("/")[0] in parts & own_parts):
        if name not in own:
            wrong.append(f"'{name}' has no place in the learner; {did_you_mean(name, own)}")
        elif name not in theirs:
            wrong.append(f"'{name}' of the learner is missing; {did_you_mean(name, theirs)}")
        elif theirs[name] != own[name]:
            wrong.append(f"'{name}' is {list(theirs[name])}, the learner's is {list(own[name])}")
    if wrong:
        raise PolicyError(
            "\n".join(f"{config.policy.path} does not fit learner '{config.learner_name}': {what}" for what in wrong)
        )


def _shapes(components: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        f"{part}/{name}": tuple(tensor.shape)
        for part, module in components.items()
        for name, tensor in module.state_dict().items()
    }

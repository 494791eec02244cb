"""What learners have in common: random numbers, networks from a seed, optimizers, weights for the robot, checkpoints.

An algorithm's file holds its networks, its losses and its config; a learner of your own may derive from `LearnerBase`
too, or implement `plaudit.protocols.Learner` without it.

On a GPU an update is a CUDA graph: it is launched at once, instead of some hundred kernels one after the other. The
first update with a batch of a new shape is captured. Later ones copy their batch to the captured one's place and
replay. The same kernels run in the same order, with the same random numbers. A fine-tuned image encoder has long
kernels, and with one a graph was slower on an H200 (122 ms instead of 99), so there is none.

Critics start anew after labels were corrected, or at intervals where there are many updates per step. Critics that were
trained on wrong labels keep some of them after the labels are corrected, and critics that are trained often on few
episodes overfit them (arXiv 2205.07802). A reset gives the critics new weights and forgets the moments of their
optimizer. Their image encoders stay. Then only the critics learn for a while, from replay with the labels as they are
now: the actor does not follow untrained critics, and the robot keeps its policy. Everything follows from the number of
updates and from the ledger, so a resumed run makes the same resets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plaudit.data.normalize import Normalizer
from plaudit.data.weights import Stateful
from plaudit.devices import Adam, tf32
from plaudit.policies.config import ImageEncoderConfig
from plaudit.policies.networks import (
    CriticEnsemble,
    Encoder,
    Linear,
    ObsTensors,
    cut_patches,
    is_small,
    obs_to_tensors,
    random_offsets,
    random_shift,
    run_parallel,
    seeded,
    takes_patches,
    weights_of,
)
from plaudit.rollout.vector import ActFn
from plaudit.types import Batch, EnvSpec, FloatArray, Observation, PolicyWeights

if TYPE_CHECKING:
    from plaudit.policies.pretrained import FrozenEncoder


WARMUP = 3  # updates before a capture, in which libraries choose kernels and allocate memory

Step = Callable[..., Mapping[str, Tensor]]  # (batch, **options) -> metrics


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]
    metrics: Tensor  # [names]


class CudaGraphs:
    """The captured updates of one learner. Drop it when a checkpoint is loaded: optimizers then have new tensors."""

    def __init__(self, learner: Any):
        self._learner = learner
        self._captured: dict[Any, _Captured] = {}

    def __call__(self, step: Step, batch: Any, **options: bool) -> dict[str, Tensor]:
        """`step(batch, **options)`, a method of the learner."""
        tensors = list(_tensors(batch))
        key = (step.__name__, *options.items(), *(tensor.shape for tensor in tensors))
        if key not in self._captured:
            self._captured[key] = self._capture(step, batch, options)
        captured = self._captured[key]
        for place, tensor in zip(captured.inputs, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        captured.graph.replay()
        return dict(zip(captured.names, captured.metrics.clone().unbind(), strict=True))

    def _capture(self, step: Step, batch: Any, options: dict[str, bool]) -> _Captured:
        inputs = _clone(batch)
        optimizers = self._learner.optimizers.values()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["capturable"] = True
        saved, rng = {id(t): t.detach().clone() for t in self._state()}, self._learner.rng.get_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            with torch.cuda.stream(stream):
                for _ in range(WARMUP):
                    step(inputs, **options)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.no_grad():
                for tensor in self._state():  # moments that had not existed start at zero
                    before = saved.get(id(tensor))
                    tensor.zero_() if before is None else tensor.copy_(before)
            self._learner.rng.set_state(rng)
            for optimizer in optimizers:
                optimizer.zero_grad()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._learner.rng)
            with torch.cuda.graph(graph):
                metrics = step(inputs, **options)
                packed = torch.stack([number.float() for number in metrics.values()])
        return _Captured(graph, list(_tensors(inputs)), list(metrics), packed)

    def _state(self) -> Iterator[Tensor]:
        """All tensors that an update changes."""
        yield from self._learner.net.parameters()
        yield from self._learner.net.buffers()
        for optimizer in self._learner.optimizers.values():
            for moments in optimizer.state.values():
                yield from moments.values()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a batch: a dataclass of tensors, maps of tensors and other such dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    parts = value.values() if isinstance(value, Mapping) else (getattr(value, field.name) for field in fields(value))
    for part in parts:
        yield from _tensors(part)


def _clone(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: _clone(part) for name, part in value.items()}
    return replace(value, **{field.name: _clone(getattr(value, field.name)) for field in fields(value)})


# Called with the parameters whose gradients are about to be used, so that data-parallel workers average theirs.
GradSync = Callable[[list[nn.Parameter]], None]
EVAL_SEED = 0  # of the noise in evaluations: two of them differ in nothing but the weights


@dataclass(frozen=True)
class EncoderSpec:
    """The encoder of a learner: its config, the frozen part where there is one, and the history that it sees."""

    config: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)
    frozen: "FrozenEncoder | None" = None
    history: int = 0  # earlier observations


class LearnerBase(Stateful):
    """Base of all learners. A derived class makes its networks in `make_net` and their optimizers in
    `make_optimizers`."""

    on_policy = False
    config: Any  # derived from LearnerConfig
    net: Any  # the networks, an `nn.Module`

    def __init__(
        self,
        config: Any,
        env_spec: EnvSpec,
        seed: int = 0,
        device: str = "cpu",
        encoder: "EncoderSpec | None" = None,
        around: Normalizer | None = None,
    ):
        """around: the run's normalizer, for a learner whose base policy has units of its own"""
        self.config, self.env_spec, self.seed, self.around = config, env_spec, seed, around
        self.device, self.encoder = torch.device(device), encoder or EncoderSpec()
        # With demonstrations alone, where there are some, before the first episode.
        self.pretrain_updates: int = getattr(config, "pretrain_updates", 0)
        self.version = 0  # updates made
        self.sync: GradSync | None = None
        self._graphs: CudaGraphs | None = None
        self.rng = torch.Generator(device).manual_seed(seed)
        with seeded(seed):  # the seed gives the initial weights; torch's own generator does not change
            self.net = self.make_net().to(self.device)
        self.optimizers: Mapping[str, torch.optim.Optimizer] = self.make_optimizers()

    def make_net(self) -> nn.Module:
        """All networks of the learner, with initial weights."""
        raise NotImplementedError

    def make_optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers of `net`, by name."""
        raise NotImplementedError

    def make_encoder(self) -> Encoder:
        """An image encoder as the run's config describes it."""
        spec = self.encoder
        return Encoder(self.env_spec, spec.config, spec.frozen, history=spec.history, pretrained=True)

    def tensors(self, observation: Observation) -> ObsTensors:
        """Observations of N environments, as the encoders take them."""
        return obs_to_tensors(observation, self.env_spec, self.device, self.encoder.frozen, self.encoder.history)

    def augment(self, *seen: ObsTensors, pad: int) -> list[ObsTensors]:
        """Observations with images shifted at random by up to `pad` pixels; features of images stay as they are."""
        if self.encoder.frozen is not None:
            return list(seen)
        images = [image for obs in seen for image in obs.images.values()]
        if self.device.type == "cuda" and self.config.mixed_precision and takes_patches(self.net):
            offsets = [random_offsets(len(image), self.rng, pad) for image in images]
            images = run_parallel(*(partial(cut_patches, *each) for each in zip(images, offsets, strict=True)))
        else:
            images = [random_shift(image, self.rng, pad) for image in images]
        moved = iter(images)
        return [ObsTensors({camera: next(moved) for camera in obs.images}, obs.state) for obs in seen]

    def augment_batch(self, batch: Batch[Tensor], pad: int) -> list[ObsTensors]:
        """The observations before and after the actions of a batch, in the same way."""
        before, after = ObsTensors(batch.images, batch.state), ObsTensors(batch.next_images, batch.next_state)
        return self.augment(before, after, pad=pad)

    def run_step(self, step: Step, batch: Any, **options: bool) -> Mapping[str, Tensor]:
        """`step(batch, **options)`, as a CUDA graph where that is possible.

        Metrics stay on the device, because reading a number waits for the GPU.
        """
        if self.device.type != "cuda":
            return step(batch, **options)
        with tf32(enabled=self.config.mixed_precision):
            if not self.config.cuda_graphs or self.sync is not None or not is_small(self.net):
                return step(batch, **options)
            self._graphs = self._graphs or CudaGraphs(self)
            return self._graphs(step, batch, **options)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of an object with the same config."""
        super().load_state_dict(state)
        self._graphs = None

    def rollout_rng(self, *, explore: bool) -> torch.Generator:
        """The randomness of one rollout, apart from that of updates.

        A rollout takes more or fewer steps by the simulator's success, which must not change what is learned: a
        simulation is stepped on after a success, to tell an early one from a false one.
        """
        seed = int(torch.randint(2**31, (1,), generator=self.rng, device=self.device)) if explore else EVAL_SEED
        return torch.Generator(self.device).manual_seed(seed)

    @property
    def components(self) -> Mapping[str, nn.Module]:
        """The modules whose weights the robot's policy takes, by the policy's names for them."""
        raise NotImplementedError

    @property
    def windows(self) -> Mapping[str, int]:
        """Lengths of what is sampled: `n_step` rewards of a return, a `horizon` of actions; {} for single steps."""
        return {}

    @property
    def replay_options(self) -> Mapping[str, Any]:
        """How to sample the batches that `update` takes."""
        seen = {"cameras": tuple(self.env_spec.cameras), "history": self.encoder.history}
        return {"gamma": self.config.gamma, **self.windows, **seen}

    def policy_fields(self, *, explore: bool) -> dict[str, Any]:
        """The fields that all configs of its policy have. explore: with the run's own noise, not that of evaluations"""
        seen = {"encoder": self.encoder.config, "history": self.encoder.history}
        return {**self.env_spec.policy_fields(), **seen, "seed": self.seed if explore else EVAL_SEED}

    @property
    def executed(self) -> int:
        """Actions of a chunk that a rollout executes."""
        return self.config.backup_horizon

    def act_fn(self, *, explore: bool) -> ActFn:
        """For one rollout: chunks are planned from the observations of N envs; the first actions of each are executed.

        A learner of single actions has an `act_fn` of its own.
        """
        plan = partial(self.plan, rng=self.rollout_rng(explore=explore), explore=explore)
        return act_by_chunks(plan, self.executed)

    def plan(self, observation: Observation, rng: torch.Generator, *, explore: bool = True) -> FloatArray:
        """Chunks [N, H, A] for N observations."""
        with torch.inference_mode():
            return self.choose_chunks(self.tensors(observation), rng, explore=explore).cpu().numpy()

    def choose_chunks(self, obs: ObsTensors, rng: torch.Generator, *, explore: bool = True) -> Tensor:
        """Chunks [N, H, A] for N observations, on the device. explore: whether an actor is sampled"""
        raise NotImplementedError

    def weights(self) -> PolicyWeights:
        """The newest weights of the policy, as a robot needs them."""
        return weights_of(self.version, self.components)


def act_by_chunks(plan: Callable[[Observation], FloatArray], executed: int) -> ActFn:
    """For one rollout: plan chunks [N, H, A] from observations of N envs, and execute their first actions."""
    planned: list[FloatArray] = []  # [N, A] each

    def act(observation: Observation) -> FloatArray:
        if not planned:
            planned.extend(plan(observation).swapaxes(0, 1)[:executed])
        return planned.pop(0)

    return act


def make_adam(lr: float, *parts: nn.Module | nn.Parameter, eps: float = 1e-8) -> Adam:
    """Adam over parameters and those of modules."""
    parameters = [p for part in parts for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())]
    return Adam(parameters, lr=lr, eps=eps, fused=True)


def optimizer_step(optimizer: torch.optim.Optimizer, loss: Tensor, sync: GradSync | None = None) -> None:
    """One gradient step of what this optimizer has; other networks that the loss went through get no gradient."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    loss.backward(inputs=parameters)
    if sync is not None:
        sync(parameters)
    optimizer.step()


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: target <- (1 - tau) * target + tau * source."""
    slow: list[Tensor] = list(target.parameters())
    fast: list[Tensor] = list(source.parameters())
    if slow:
        with torch.no_grad():
            torch._foreach_lerp_(slow, fast, tau)  # pyright: ignore[reportPrivateImportUsage]


def chunk_critic_loss(values: Tensor, target: Tensor, batch: Batch[Tensor], valued: int) -> Tensor:
    """Squared errors of the values [E, B] of windows of `valued` actions, summed over the critics.

    A window that the time limit cut short does not count. One in which the episode terminated does: it has the reward.
    """
    whole = (batch.action_mask[:, valued - 1] | (batch.discount == 0)).float()
    return ((values - target).square() * whole).sum() / whole.sum().clamp(min=1)


def sample_critics(num_subsample: int, num_critics: int, rng: torch.Generator) -> Tensor | None:
    """Indices of the critics that a target uses: a random subset, or all of them (None)."""
    if num_subsample == num_critics:
        return None
    return torch.rand(num_critics, generator=rng, device=rng.device).topk(num_subsample).indices


@contextmanager
def torch_threads(count: int | None, *, images: bool) -> Iterator[None]:
    """Set torch's number of threads in this block; it is a setting of the whole process, where a judge may run too.

    count: None: one for a learner of states, whose small products gain little from more threads and wait for them on a
        busy machine; torch's default for one of images
    """
    before = torch.get_num_threads()
    if count or not images:
        torch.set_num_threads(count or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


RESETS = "resets"  # of a learner, among dumped tensors


class CriticLearner(LearnerBase):
    """Base of `Sac` and `QChunk`."""

    extra_updates = 0  # due after resets by relabeling, over the whole run
    _relearn_until = 0  # the version up to which only the critics learn
    _label_changes = 0  # that were taken into account

    @property
    def critics(self) -> Sequence[tuple[nn.Module, nn.Module | None]]:
        """Each critic with its target network; None for one without."""
        raise NotImplementedError

    @property
    def relearning(self) -> bool:
        """Whether the critics are too new for a policy to follow them."""
        return self.version < self._relearn_until

    def count_update(self) -> bool:
        """Begin an update; resets the critics at their interval. Returns whether a policy may follow them."""
        every = self.config.resets.every
        if every is not None and self.version and self.version % every == 0:
            self.reset_critics()
        follows = not self.relearning
        self.version += 1
        return follows

    def take_label_changes(self, changes: int, episodes: int) -> None:
        """Reset the critics if enough labels were corrected since they were last reset for this reason.

        changes: how often a later label changed the success of an episode, over the whole run
        episodes: that have a label
        """
        share = self.config.resets.relabeled
        if share is None or changes - self._label_changes < max(1, share * episodes):
            return
        self._label_changes = changes
        if self.version:  # nothing is learned yet otherwise
            self.reset_critics()
            self.extra_updates += self.config.resets.relearn_updates

    def reset_critics(self) -> None:
        """Give the critics new weights, in place, as CUDA graphs need it."""
        self._relearn_until = self.version + self.config.resets.relearn_updates
        with seeded(self.seed * 1009 + self.version):
            for critic, target in self.critics:
                for module in critic.modules():
                    if isinstance(module, CriticEnsemble | Linear | nn.LayerNorm):
                        module.reset_parameters()
                if target is not None:
                    target.load_state_dict(critic.state_dict())
        for parameter in (parameter for critic, _ in self.critics for parameter in critic.parameters()):
            for optimizer in self.optimizers.values():
                for tensor in optimizer.state.get(parameter, {}).values():
                    tensor.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, by name; on the CPU."""
        counts = [self.extra_updates, self._relearn_until, self._label_changes]
        return super().state_dict() | {RESETS: torch.tensor(counts)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of an object with the same config."""
        super().load_state_dict(state)
        counts = state.get(RESETS, torch.zeros(3, dtype=torch.long)).tolist()  # a checkpoint of an earlier version
        self.extra_updates, self._relearn_until, self._label_changes = counts


def extra_updates(learner: Any) -> int:
    """Updates of a learner that resets by relabeling have added, over the whole run."""
    return learner.extra_updates if isinstance(learner, CriticLearner) else 0


def relearning(learner: Any) -> bool:
    """Whether its policy should not be published now."""
    return isinstance(learner, CriticLearner) and learner.relearning

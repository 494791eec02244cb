"""What learners have in common: random numbers, networks from a seed, optimizers, weights for the robot, checkpoints.

An algorithm's file holds its networks, its losses and its config; a learner of your own may derive from `LearnerBase`
too, or implement `plaudit.protocols.Learner` without it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plaudit.data.normalize import Normalizer
from plaudit.data.weights import Stateful
from plaudit.devices import Adam, tf32
from plaudit.learners.cuda_graph import CudaGraphs, Step
from plaudit.policies.config import CNN, ImageEncoderConfig
from plaudit.policies.networks import (
    Encoder,
    ObsTensors,
    cut_patches,
    obs_to_tensors,
    random_offsets,
    random_shift,
    run_parallel,
    seeded,
    weights_of,
)
from plaudit.rollout.vector import ActFn
from plaudit.types import Batch, EnvSpec, FloatArray, Observation, PolicyWeights

if TYPE_CHECKING:
    from plaudit.policies.pretrained import FrozenEncoder

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
    net: nn.Module

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
        if self.device.type == "cuda" and self.config.mixed_precision and self.encoder.config.type == CNN:
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
        """`step(batch, **options)`, as a CUDA graph where that is possible."""
        if self.device.type != "cuda":
            return step(batch, **options)
        with tf32(enabled=self.config.mixed_precision):
            if not self.config.cuda_graphs or self.sync is not None:
                return step(batch, **options)
            self._graphs = self._graphs or CudaGraphs(self)
            return self._graphs(step, batch, **options)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of an object with the same config."""
        super().load_state_dict(state)
        self._graphs = None

    @property
    def components(self) -> Mapping[str, nn.Module]:
        """The modules whose weights the robot's policy takes, by the policy's names for them."""
        raise NotImplementedError

    @property
    def replay_options(self) -> Mapping[str, Any]:
        """How to sample the batches that `update` takes: gamma, n_step or horizon, cameras."""
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

"""What learners have in common: random numbers, networks from a seed, optimizers, weights for the robot, checkpoints.

An algorithm's file holds its networks, its losses and its config; a learner of your own may derive from `LearnerBase`
too, or implement `plaudit.protocols.Learner` without it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plaudit.data.checkpoint import Stateful
from plaudit.devices import Adam
from plaudit.policies.config import ImageEncoderConfig
from plaudit.policies.networks import Encoder, ObsTensors, obs_to_tensors, random_shift, seeded, weights_of
from plaudit.types import EnvSpec, Observation, PolicyWeights

if TYPE_CHECKING:
    from plaudit.policies.pretrained import FrozenEncoder

# Called with the parameters whose gradients are about to be used, so that data-parallel workers average theirs.
GradSync = Callable[[list[nn.Parameter]], None]


@dataclass(frozen=True)
class EncoderSpec:
    """The image encoder of a learner: its config, and the frozen part where there is one."""

    config: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)
    frozen: "FrozenEncoder | None" = None


class LearnerBase(Stateful):
    """Base of `Sac`, `Ppo` and `QChunk`. A derived class makes `net` and `optimizers` in its `__init__`."""

    on_policy = False
    pretrain_updates = 0  # with demonstrations alone, where there are some, before the first episode

    def __init__(self, env_spec: EnvSpec, seed: int, device: str, encoder: "EncoderSpec | None" = None):
        self.env_spec, self.seed, self.device = env_spec, seed, torch.device(device)
        self.encoder = encoder or EncoderSpec()
        self.version = 0  # updates made
        self.sync: GradSync | None = None
        self.rng = torch.Generator(device).manual_seed(seed)

    def seeded(self) -> AbstractContextManager[None]:
        """Networks that are made meanwhile have initial weights by this learner's seed; torch's own state stays."""
        return seeded(self.seed)

    def make_encoder(self) -> Encoder:
        """An image encoder as the run's config describes it."""
        return Encoder(self.env_spec, self.encoder.config, self.encoder.frozen, pretrained=True)

    def tensors(self, observation: Observation) -> ObsTensors:
        """Observations of N environments, as the encoders take them."""
        return obs_to_tensors(observation, self.env_spec, self.device, self.encoder.frozen)

    def augment(self, images: Mapping[str, Tensor], state: Tensor, pad: int) -> ObsTensors:
        """Observations with images shifted at random by up to `pad` pixels; features of images stay as they are."""
        if self.encoder.frozen is not None:
            return ObsTensors(images, state)
        return ObsTensors({camera: random_shift(image, self.rng, pad) for camera, image in images.items()}, state)

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


def make_adam(lr: float, *modules: nn.Module, eps: float = 1e-8) -> Adam:
    """Adam over the parameters of modules."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
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
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
            slow.lerp_(fast, tau)


def sample_critics(num_subsample: int, num_critics: int, rng: torch.Generator) -> Tensor | None:
    """Indices of the critics that a target uses: a random subset, or all of them (None)."""
    if num_subsample == num_critics:
        return None
    return torch.randperm(num_critics, generator=rng, device=rng.device)[:num_subsample]


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

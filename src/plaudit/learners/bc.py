"""Behavior cloning of a flow policy, by conditional flow matching on windows of H actions, and of an image encoder.

    train_flow(policy, Observation({}, state), chunks, normalizer, steps=2000)      # arrays, [N, S] and [N, H, A]
    train_flow_from_store(policy, store, normalizer, steps=20_000)                  # demonstrations in a store

Which episodes of a store are cloned is decided in demonstrations.py. The loss is `matching_loss` in policies/flow.py.
Actions past the end of an episode do not count.

An encoder (`policy.encoder.type=cloned`) belongs to a network that learns to imitate the demonstrations from frames and
state. It has then learned to see what the actions depend on, and is kept, frozen. The rest is dropped: the learner
trains its own actor on the features.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from plaudit.data.batch import to_torch
from plaudit.data.demonstrations import Demonstrations
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.weights import Stateful
from plaudit.devices import Adam, AdamW
from plaudit.errors import PolicyError
from plaudit.learners.config import BCConfig
from plaudit.policies.config import ImageEncoderConfig
from plaudit.policies.flow import FlowPolicy, matching_loss
from plaudit.policies.networks import Linear, mlp, random_shift, seeded, to_tensor, weights_of
from plaudit.policies.pretrained import FrozenEncoder
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, Batch, BoolArray, EnvSpec, FloatArray, Observation, PolicyWeights

Callback = Callable[[int, float], bool]  # (step, loss) -> whether to go on
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, eq=False)
class ActionWindows:
    """B observations and the H actions that followed each."""

    observation: Observation  # with a leading B
    chunks: FloatArray  # [B, H, A] in the robot's units
    mask: BoolArray  # [B, H] False past the end of an episode
    tasks: Sequence[str] = ()  # [B] the instructions, for a policy that takes one

    @classmethod
    def of(cls, batch: Batch[AnyArray], tasks: Mapping[int, str] = MappingProxyType({})) -> Self:
        """The windows of a batch from replay. tasks: of each episode, for a policy that takes an instruction"""
        named = [tasks[episode] for episode in batch.episode.tolist()] if tasks else ()
        return cls(Observation(batch.images, batch.state), batch.actions, batch.action_mask, named)

    def __getitem__(self, rows: AnyArray) -> "ActionWindows":
        images = {camera: frames[rows] for camera, frames in self.observation.images.items()}
        observation = Observation(images, self.observation.state[rows])
        tasks = np.asarray(self.tasks)[rows].tolist() if len(self.tasks) else ()
        return ActionWindows(observation, self.chunks[rows], self.mask[rows], tasks)


class FlowBC(Stateful):
    """Trains a flow policy, one batch of windows at a time."""

    def __init__(self, policy: FlowPolicy, normalizer: Normalizer, config: BCConfig):
        self.policy, self.normalizer, self.config = policy, normalizer, config
        self.version = 0
        self.rng = torch.Generator(policy.device).manual_seed(config.seed)
        self.net = nn.ModuleDict(dict(policy.components))
        if config.lora_rank is not None:
            add_lora(policy, config.lora_rank, config.seed)
        learning = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizers = {"all": AdamW(learning, lr=config.lr, weight_decay=1e-4, fused=True)}

    def update(self, windows: ActionWindows) -> Mapping[str, float]:
        """One gradient step; returns metrics."""
        chunks = self._tensor(self.normalizer.normalize_action(windows.chunks))
        mask = self._tensor(windows.mask)
        half = self.config.precision == "bfloat16"
        with torch.autocast(self.policy.device.type, torch.bfloat16, enabled=half):
            features = self.policy.with_task(self._encode(windows.observation), windows.tasks)
            loss = matching_loss(self.policy.velocity_net, features, chunks, mask, self.rng)
        self._optimizer_step(loss)
        return {"loss/flow": float(loss.detach())}

    def _optimizer_step(self, loss: Tensor) -> None:
        config, optimizer = self.config, self.optimizers["all"]
        rising = min(1.0, (self.version + 1) / (config.warmup_steps + 1))
        falling = 0.5 * (1 + math.cos(math.pi * min(1.0, self.version / config.steps)))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * rising * falling
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        self.version += 1

    def _encode(self, observation: Observation) -> Tensor:
        """As the policy does, with gradients and with shifted images."""
        images, state = observation.images, observation.state
        normalized = {c: self._tensor(self.normalizer.normalize_image(images[c])) for c in self.policy.config.cameras}
        shifted = {c: random_shift(image, self.rng, self.config.random_shift_pad) for c, image in normalized.items()}
        if self.policy.config.state_dim:
            state = self.normalizer.normalize_state(state)
        return self.policy.encoder.normalized(shifted, self._tensor(state))

    def _tensor(self, array: AnyArray) -> Tensor:
        return to_tensor(array, self.policy.device)

    def weights(self) -> PolicyWeights:
        """The policy's weights. Low-rank additions are merged, which ends the training."""
        for layer in [layer for layer in self.policy.velocity_net.modules() if parametrize.is_parametrized(layer)]:
            parametrize.remove_parametrizations(layer, "weight")
        return weights_of(self.version, self.policy.components)


class LowRank(nn.Module):
    """A weight [I, O] plus a learned product of rank r, which starts at 0 (LoRA, arXiv 2106.09685).

    peft knows the layers of torch and not our `Linear`, so it is not used.
    """

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        inputs, outputs = weight.shape
        self.down = nn.Parameter(torch.randn(inputs, rank, device=weight.device) / math.sqrt(inputs))
        self.up = nn.Parameter(torch.zeros(rank, outputs, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the layer uses."""
        return weight + self.down @ self.up


def add_lora(policy: FlowPolicy, rank: int, seed: int) -> None:
    """Make low-rank additions to the flow's linear layers all that learns."""
    for component in policy.components.values():
        component.requires_grad_(False)
    with seeded(seed):
        for layer in [layer for layer in policy.velocity_net.modules() if isinstance(layer, Linear)]:
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))


def train_flow(
    policy: FlowPolicy,
    observations: Observation,
    chunks: FloatArray,
    normalizer: Normalizer,
    *,
    mask: BoolArray | None = None,
    tasks: Sequence[str] = (),
    callback: Callback = lambda step, loss: True,
    **options: Any,
) -> FlowBC:
    """Train on arrays: observations with a leading N, chunks [N, H, A], mask [N, H]; options are a BCConfig's.

    tasks: [N] the instructions, for a policy that takes one
    """
    config = BCConfig(**options)
    windows = ActionWindows(observations, chunks, np.ones(chunks.shape[:2], bool) if mask is None else mask, tasks)
    _check(policy, windows)
    rng = np.random.default_rng(config.seed)
    batches = (windows[rng.integers(len(chunks), size=config.batch_size)] for _ in range(config.steps))
    return _train(FlowBC(policy, normalizer, config), batches, callback)


def train_flow_from_store(
    policy: FlowPolicy,
    store: Store,
    normalizer: Normalizer,
    *,
    callback: Callback = lambda step, loss: True,
    **options: Any,
) -> FlowBC:
    """Train on the demonstrations in a store; options are a BCConfig's."""
    config, cameras = BCConfig(**options), tuple(policy.config.cameras)
    with Demonstrations.of(store, include_failures=config.include_failures).open(store) as chosen:
        horizon, history = policy.config.horizon, policy.config.history
        windows = {"horizon": horizon, "history": history, "cameras": cameras}
        replay = ReplaySampler(chosen, **windows, demonstrations=True, seed=config.seed)
        tasks = {n: chosen.entry(n).line["task"] for n in chosen.ids} if policy.config.tasks else {}
        batches = (ActionWindows.of(replay.sample(config.batch_size), tasks) for _ in range(config.steps))
        return _train(FlowBC(policy, normalizer, config), batches, callback)


def _train(trainer: FlowBC, batches: Iterable[ActionWindows], callback: Callback) -> FlowBC:
    for windows in batches:
        if trainer.version == 0:
            _check(trainer.policy, windows)
        loss = trainer.update(windows)["loss/flow"]
        if not callback(trainer.version, loss):
            break
    return trainer


def _check(policy: FlowPolicy, windows: ActionWindows) -> None:
    config, observation = policy.config, windows.observation
    count = len(windows.chunks)
    seen = (count, 1 + config.history) if config.history else (count,)
    wanted = {"chunks": (count, config.horizon, config.action_dim), "mask": (count, config.horizon)}
    wanted |= {"state": (*seen, config.state_dim)}
    wanted |= {f"images of '{camera}'": (*seen, *size, 3) for camera, size in config.cameras.items()}
    shapes = {"chunks": windows.chunks.shape, "mask": windows.mask.shape, "state": observation.state.shape}
    shapes |= {f"images of '{camera}'": frames.shape for camera, frames in observation.images.items()}
    if config.tasks and len(windows.tasks) != count:
        raise PolicyError(f"this policy learns from {count} observations with a task each, not {len(windows.tasks)}")
    for name, shape in wanted.items():
        if shapes.get(name) != shape:
            raise PolicyError(f"this policy learns from {name} {list(shape)}, not {list(shapes.get(name, ()))}")


LR = 1e-3
HIDDEN_DIMS = (256, 256)
SHIFT_PAD = 3  # pixels by which frames are shifted at random
MIN_DEVIATION = 1e-2  # of a feature, that features are divided by


def clone_encoder(
    config: ImageEncoderConfig,
    env_spec: EnvSpec,
    demos: Store,
    prepare: Callable[[Batch[AnyArray]], Batch[AnyArray]] = lambda batch: batch,
    *,
    seed: int,
    device: torch.device,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> FrozenEncoder:
    """Train an encoder on demonstrations. The features of their frames get a mean of 0 and a deviation of 1.

    prepare: normalizes states and actions of a batch
    track: shows the progress of a loop
    """
    with seeded(seed):
        encoder = FrozenEncoder(config, env_spec.cameras).to(device).requires_grad_(True)
        inputs = env_spec.state_dim + sum(shape[0] for shape in encoder.shapes.values())
        actor = nn.Sequential(
            mlp([inputs, *HIDDEN_DIMS], nn.ReLU, norm=True), Linear(HIDDEN_DIMS[-1], env_spec.action_dim)
        )
    actor.to(device)
    networks = encoder.networks.train()
    optimizer = Adam([*networks.parameters(), *actor.parameters()], lr=LR, weight_decay=1e-5)
    rng = torch.Generator(device).manual_seed(seed)
    cloned = Demonstrations.of(demos)
    with cloned.open(demos) as chosen:
        replay = ReplaySampler(chosen, cameras=tuple(env_spec.cameras), demonstrations=True, seed=seed)
        for _ in track(range(config.clone_updates)):
            batch = to_torch(prepare(replay.sample(config.clone_batch_size)), device)
            frames = {camera: random_shift(images, rng, SHIFT_PAD) for camera, images in batch.images.items()}
            features = torch.cat([*encoder(frames).values(), batch.state], dim=1)
            loss = F.mse_loss(actor(features).tanh(), batch.actions.clamp(-1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    encoder.requires_grad_(False).eval()
    encoded = [encoder.encode(demos.episode(i).frames) for i in cloned.labels]
    encoder.forget()
    for camera in encoder.shapes:
        values = torch.from_numpy(np.concatenate([features[camera] for features in encoded]))
        encoder.offset[camera].copy_(values.mean(dim=0))
        encoder.scale[camera].copy_(values.std(dim=0) + MIN_DEVIATION)
    return encoder

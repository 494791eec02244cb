"""Networks that learners train: layers, an encoder of observations, actors, critics; and the policies around them.

Images come as the store keeps them, uint8 [B, H, W, 3]; `permute` makes that channels-last memory without a copy, which
is also the fastest layout for convolutions. On a GPU the convolutions of `ConvNet` run in bfloat16, fused with ReLU.
The first one has 3 input channels, which is slow in cuDNN, so it is computed as a 1x1 convolution over patches of
pixels. `cut_patches` cuts the frames of a batch once, for all networks that see them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.devices import resolve_device
from plaudit.errors import PolicyError, did_you_mean
from plaudit.policies.config import CLONED, CNN, GaussianConfig, ImageEncoderConfig, NetworkPolicyConfig
from plaudit.policies.guidance import BlendedPolicy
from plaudit.protocols import Normalizer
from plaudit.types import ANY_TASK, AnyArray, EnvSpec, FloatArray, Observation, PolicyWeights

if TYPE_CHECKING:
    from plaudit.policies.pretrained import FrozenEncoder


WIDTHS = (32, 32, 64, 64)  # channels of the convolutions, each 3x3 with stride 2
_IDLE: "list[torch.cuda.Stream]" = []  # streams for branches of CUDA graphs
PATCH = 32  # values of a patch: 3x3 pixels of 3 channels, 1 for the bias, and 4 that count for nothing


class Linear(nn.Module):
    """As `nn.Linear`, by a plain matrix product: on ARM the fused kernel takes three times as long at these sizes."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0):
        super().__init__()
        self._gain = gain
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.weight.uniform_(-self._gain, self._gain).div_(math.sqrt(len(self.weight)))
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.dim() == 2:
            return torch.addmm(self.bias, x, self.weight)
        return x @ self.weight + self.bias


def mlp(sizes: Sequence[int], activation: type[nn.Module], *, norm: bool = False) -> nn.Sequential:
    """A multilayer perceptron, by the sizes of its layers."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [Linear(before, after), *([nn.LayerNorm(after)] if norm else []), activation()]
    return nn.Sequential(*layers)


class ConvNet(nn.Module):
    """Four convolutions and a projection: a frame to a few numbers in [-1, 1]."""

    def __init__(self, size: tuple[int, int], features: int):
        super().__init__()
        self.convs: Any = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise((3, *WIDTHS))
        )
        height, width = (-(-length // 2 ** len(WIDTHS)) for length in size)
        self.projection = Linear(WIDTHS[-1] * height * width, features)
        self.norm = nn.LayerNorm(features)
        self.unused = nn.Buffer(torch.zeros(WIDTHS[0], PATCH - 28), persistent=False)  # columns of a patch's weights

    def forward(self, frames: Tensor) -> Tensor:
        """Features [B, F]. frames: pixels in [0, 1] minus 0.5, [B, 3, H, W]; or their patches"""
        if frames.dtype == torch.bfloat16:
            return self._from_patches(frames)
        for conv in self.convs:
            frames = F.relu(conv(frames))
        return self.norm(self.projection(frames.permute(0, 2, 3, 1).flatten(1))).tanh()

    def _from_patches(self, patches: Tensor) -> Tensor:
        first = self.convs[0]
        columns = first.weight.permute(0, 2, 3, 1).flatten(1)
        weight = torch.cat([columns, first.bias[:, None], self.unused], dim=1).bfloat16()
        x: Tensor = _ConvReLU.apply(patches.permute(0, 3, 1, 2), weight[:, :, None, None], None, 1, 0)
        for conv in self.convs[1:]:
            weight = conv.weight.to(torch.bfloat16, memory_format=torch.channels_last)
            x = _ConvReLU.apply(x, weight, conv.bias.bfloat16(), 2, 1)
        x = x.permute(0, 2, 3, 1).flatten(1) @ self.projection.weight.bfloat16()
        return self.norm(x.float() + self.projection.bias).tanh()


def random_shift(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Each image moved by up to `pad` pixels, its edge repeated (DrQ, arXiv 2004.13649): [B, H, W, C] to the same.

    All images of a history [B, N, H, W, C] are moved in the same way, so that only real motion is seen.
    """
    if not pad:
        return images
    frames, offsets = _pair(images, random_offsets(len(images), generator, pad).to(images.device))
    batch, height, width, _ = frames.shape
    if frames.device.type == "cpu":  # which copies slices many times as fast as it gathers pixels
        padded = np.pad(frames.numpy(), ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
        starts = enumerate((offsets + pad).tolist())
        moved = np.stack([padded[n, y : y + height, x : x + width] for n, (y, x) in starts])
        return torch.from_numpy(moved).view(images.shape)
    rows, columns = _sources(offsets, height, width)
    each = torch.arange(batch, device=images.device)[:, None, None]
    return frames[each, rows[:, :, None], columns[:, None, :]].view(images.shape)


def random_offsets(batch: int, generator: torch.Generator, pad: int) -> Tensor:
    """Pixels to move each image by, [B, 2]."""
    return torch.randint(-pad, pad + 1, (batch, 2), generator=generator, device=generator.device)


def _pair(images: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Images [B, ..., H, W, C] one after the other, and the offsets [B, 2] of each."""
    frames = images.flatten(0, -4)
    return frames, offsets[:, None].expand(-1, len(frames) // len(offsets), -1).reshape(-1, 2)


def cut_patches(images: Tensor, offsets: Tensor) -> Tensor:
    """Frames moved and cut into the patches that the first convolution sees.

    images: uint8 [B, ..., H, W, 3]
    offsets: pixels to move each image or history by, [B, 2]; its edge is repeated
    returns: bfloat16 [B, ..., H / 2, W / 2, 32]
    """
    frames, offsets = _pair(images, offsets)
    batch, height, width, _ = frames.shape
    rows, columns = _sources(offsets, height, width)
    pixels = F.pad(frames, (0, 1)).view(torch.int32).view(batch, -1)  # one number per pixel: fast to gather
    moved = pixels.gather(1, (rows[:, :, None] * width + columns[:, None]).flatten(1))
    moved = moved.view(torch.uint8).view(batch, height, width, 4)[..., :3]
    padded = torch.zeros(batch, height + 2, width + 2, 3, dtype=torch.bfloat16, device=frames.device)
    torch.add(torch.tensor(-0.5), moved, alpha=1 / 255, out=padded[:, 1:-1, 1:-1])
    windows = padded.unfold(1, 3, 2).unfold(2, 3, 2).permute(0, 1, 2, 4, 5, 3)  # [B, H / 2, W / 2, 3, 3, channels]
    patches = torch.ones(*windows.shape[:3], PATCH, dtype=torch.bfloat16, device=frames.device)
    patches[..., :27].unflatten(-1, (3, 3, 3)).copy_(windows)
    return patches.unflatten(0, images.shape[:-3])


def _sources(offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The rows [B, H] and columns [B, W] of an image that the moved image consists of."""
    rows = torch.arange(height, device=offsets.device) + offsets[:, :1]
    columns = torch.arange(width, device=offsets.device) + offsets[:, 1:]
    return rows.clamp(0, height - 1), columns.clamp(0, width - 1)


def run_parallel(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls. While a CUDA graph is captured, they become branches of it that run at the same time."""
    if len(calls) < 2 or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return [call() for call in calls]
    main = torch.cuda.current_stream()
    branches = [_IDLE.pop() if _IDLE else torch.cuda.Stream() for _ in calls[1:]]
    for branch in branches:
        branch.wait_stream(main)
    results = [calls[0]()]
    for branch, call in zip(branches, calls[1:], strict=True):
        with torch.cuda.stream(branch):
            results.append(call())
        if isinstance(results[-1], Tensor):  # else the branch could reuse its memory before `main` has read it
            results[-1].record_stream(main)
    for branch in branches:
        main.wait_stream(branch)
    _IDLE.extend(branches)
    return results


class _ConvReLU(torch.autograd.Function):
    """A convolution and ReLU in one kernel, where cuDNN has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        if x.is_cuda:
            out = torch.cudnn_convolution_relu(x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], 1)
        else:
            out = F.relu(F.conv2d(x, weight, bias, stride, padding))
        ctx.save_for_backward(x, weight, out)
        ctx.has_bias, ctx.stride, ctx.padding = bias is not None, stride, padding
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grads[0], out, 0)
        wanted = [ctx.needs_input_grad[0], True, ctx.has_bias]
        sizes = [len(weight)] if ctx.has_bias else None
        stride, padding = [ctx.stride] * 2, [ctx.padding] * 2
        of_x, of_weight, of_bias = torch.ops.aten.convolution_backward(
            grad, x, weight, sizes, stride, padding, [1, 1], False, [0, 0], 1, wanted
        )
        return of_x, of_weight, of_bias, None, None


@dataclass(frozen=True)
class ObsTensors:
    """A batch of observations as tensors."""

    images: Mapping[str, Tensor]  # camera -> uint8 [B, H, W, 3]; with a history [B, 1 + history, H, W, 3]
    state: Tensor  # f32 [B, S]; with a history [B, 1 + history, S]

    def __getitem__(self, rows: Tensor) -> "ObsTensors":
        return ObsTensors({c: images[rows] for c, images in self.images.items()}, self.state[rows])


def obs_to_tensors(
    observation: Observation,
    env_spec: EnvSpec,
    device: torch.device,
    frozen: "FrozenEncoder | None" = None,
    history: int = 0,
) -> ObsTensors:
    """The cameras and states of N environments that a learner uses. frozen: encodes each frame once"""
    observation = observation.window(history, env_spec.cameras)
    frames = {camera: observation.images[camera] for camera in env_spec.cameras}
    inputs = frames if frozen is None else frozen.encode(frames)
    images = {camera: torch.from_numpy(array).to(device) for camera, array in inputs.items()}
    return ObsTensors(images, torch.from_numpy(observation.state).to(device))


def weights_of(version: int, parts: Mapping[str, nn.Module]) -> PolicyWeights:
    """Components as plain arrays, "component/parameter" each."""
    named = {f"{part}/{name}": t for part, module in parts.items() for name, t in module.state_dict().items()}
    return PolicyWeights(version, {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()})


class Encoder(nn.Module):
    """Observations to features: the state as it is, each camera through a network of its own.

    With a frozen encoder in front, a camera's network takes features instead of frames. Frames are encoded first. With
    a history, the same networks see every frame of it, and the features of all frames and states are joined.
    """

    frozen: "FrozenEncoder | None"

    def __init__(
        self,
        env_spec: EnvSpec,
        config: ImageEncoderConfig | None = None,
        frozen: "FrozenEncoder | None" = None,
        *,
        history: int = 0,
        pretrained: bool = False,
    ):
        """
        history: earlier observations in front of each
        pretrained: whether an encoder to fine-tune starts with its pretrained weights
        """
        super().__init__()
        self.env_spec, self.history, config = env_spec, history, config or ImageEncoderConfig()
        self.small = frozen is not None or config.type == CNN  # whether its networks leave room on a GPU for others
        self.__dict__["frozen"] = frozen  # no submodule: it is neither trained nor sent to the robot with new weights
        self.cameras = nn.ModuleDict(
            {
                camera: _camera_net(config, size, frozen.shapes[camera] if frozen else None, pretrained=pretrained)
                for camera, size in sorted(env_spec.cameras.items())
            }
        )
        sizes = [frozen.shapes[c][0] if frozen and config.type == CLONED else config.features for c in self.cameras]
        self.size = (1 + history) * (env_spec.state_dim + sum(sizes))

    def forward(self, seen: ObsTensors) -> Tensor:
        """Features [B, size] of frames as they are stored, or of what the frozen encoder has made of them."""
        if any(image.dtype == torch.uint8 for image in seen.images.values()):
            return self.normalized({camera: seen.images[camera].float() / 255 for camera in self.cameras}, seen.state)
        return self._heads(self._frames(seen.images), seen.state)

    def normalized(self, images: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """The same of frames in [0, 1] and a normalized state, as policies have them."""
        frames = self._frames(images)
        if self.frozen is not None:
            return self._heads(self.frozen({camera: 255 * image for camera, image in frames.items()}), state)
        return self._heads({camera: image.permute(0, 3, 1, 2) - 0.5 for camera, image in frames.items()}, state)

    def _heads(self, inputs: Mapping[str, Tensor], state: Tensor) -> Tensor:
        state = state.flatten(1)
        if not self.cameras:
            return state
        calls = [partial(net, inputs[camera]) for camera, net in self.cameras.items()]
        outputs = run_parallel(*calls) if self.small else [call() for call in calls]
        features = [one.reshape(len(state), -1) for one in outputs]
        return torch.cat([*features, state], dim=1)

    def _frames(self, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The frames or features of each camera, those of a history one after the other."""
        return {camera: images[camera].flatten(0, 1) if self.history else images[camera] for camera in self.cameras}


def takes_patches(net: nn.Module) -> bool:
    """Whether all image encoders in a network take the patches of `cut_patches` instead of frames."""
    return all(isinstance(part, ConvNet) for encoder in _encoders(net) for part in encoder.cameras.values())


def is_small(net: nn.Module) -> bool:
    """Whether a network has short kernels only, which take a GPU less time than their launch: no fine-tuned encoder."""
    return all(encoder.small for encoder in _encoders(net))


def _encoders(net: nn.Module) -> list[Encoder]:
    return [module for module in net.modules() if isinstance(module, Encoder)]


def _camera_net(
    config: ImageEncoderConfig, size: tuple[int, int], shape: tuple[int, ...] | None, *, pretrained: bool
) -> nn.Module:
    """The trained network of one camera. shape: of its input, if a frozen encoder is in front"""
    if config.type == CNN:
        return ConvNet(size, config.features)
    if config.type == CLONED:
        return nn.Identity()
    from plaudit.policies.pretrained import FineTunedEncoder, projection

    if shape is None:
        return FineTunedEncoder(config, size, pretrained=pretrained)
    return projection(shape, config.features)


class TanhGaussian(nn.Module):
    """An actor whose actions lie in [-1, 1]: a Gaussian squashed by tanh."""

    def __init__(
        self, features: int, action_dim: int, hidden_dims: Sequence[int], log_std: tuple[float, float] = (-5, 2)
    ):
        super().__init__()
        self.trunk = mlp([features, *hidden_dims], nn.ReLU, norm=True)
        self.head = Linear(hidden_dims[-1], 2 * action_dim)
        self.low, self.high = log_std

    def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] for standard normal noise [B, A], and the log of their density [B]."""
        mean, log_std = self.head(self.trunk(features)).chunk(2, dim=-1)
        log_std = log_std.clamp(self.low, self.high)
        raw = mean + log_std.exp() * noise
        log_density = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        log_det = (2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1)  # of tanh's Jacobian
        return raw.tanh(), log_density - log_det

    def mode(self, features: Tensor) -> Tensor:
        """The action of the mean, [B, A]."""
        return self.head(self.trunk(features)).chunk(2, dim=-1)[0].tanh()


def gaussian_actor(features: int, action_dim: int, hidden_dims: Sequence[int]) -> nn.Sequential:
    """The mean of a Gaussian over actions; it starts near 0."""
    return nn.Sequential(mlp([features, *hidden_dims], nn.Tanh), Linear(hidden_dims[-1], action_dim, gain=0.01))


class CriticEnsemble(nn.Module):
    """E critics in parallel: each layer is one batched product."""

    def __init__(self, num_critics: int, inputs: int, hidden_dims: Sequence[int]):
        super().__init__()
        sizes = [inputs, *hidden_dims, 1]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(num_critics, before, after)) for before, after in pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(num_critics, 1, after)) for after in sizes[1:])
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            weight.uniform_(-1, 1).div_(math.sqrt(weight.shape[1]))
            bias.zero_()

    def forward(self, features: Tensor, actions: Tensor, members: Tensor | None = None) -> Tensor:
        """Values [E, B], of all critics or of some."""
        if members is not None and features.is_cuda:  # fewer kernels than with the weights of some
            return self(features, actions)[members]
        weights: list[Tensor] = list(self.weights)
        biases: list[Tensor] = list(self.biases)
        if members is not None:
            weights, biases = [w[members] for w in weights], [b[members] for b in biases]
        x = torch.cat([features, actions], dim=-1).expand(len(biases[0]), -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = F.relu(F.layer_norm(x, x.shape[-1:]))
        return torch.baddbmm(biases[-1], x, weights[-1]).squeeze(-1)


def grasp_critic(features: int, hidden_dims: Sequence[int]) -> nn.Sequential:
    """Values [B, 3] of closing the gripper, holding it and opening it (HIL-SERL, arXiv 2410.21845)."""
    return nn.Sequential(mlp([features, *hidden_dims], nn.ReLU, norm=True), Linear(hidden_dims[-1], 3))


def with_gripper(actions: Tensor, values: Tensor) -> Tensor:
    """Actions [B, A] from those of the arm and the values of a grasp critic: the best of -1, 0 and 1."""
    return torch.cat([actions, values.argmax(dim=1, keepdim=True).to(actions.dtype) - 1], dim=1)


def to_tensor(array: AnyArray, device: torch.device) -> Tensor:
    """An array as a tensor on a device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def encode(encoder: Encoder, observation: Observation, normalizer: Normalizer, device: torch.device) -> Tensor:
    """Features [1, size] of one observation, normalized."""
    check_observation(encoder.env_spec, observation)
    observation = observation.window(encoder.history, encoder.cameras)
    frames = {camera: observation.images[camera] for camera in encoder.cameras}
    state = normalizer.normalize_state(observation.state) if encoder.env_spec.state_dim else observation.state
    with torch.no_grad():
        if encoder.frozen is not None:  # it sees frames as they are stored, in training and here
            frames = encoder.frozen.encode({camera: images[None] for camera, images in frames.items()})
            inputs = {camera: to_tensor(features, device) for camera, features in frames.items()}
            return encoder(ObsTensors(inputs, to_tensor(state[None], device)))
        images = {c: to_tensor(normalizer.normalize_image(images)[None], device) for c, images in frames.items()}
        return encoder.normalized(images, to_tensor(state[None], device))


def check_observation(env_spec: EnvSpec, observation: Observation) -> None:
    """Refuse an observation of other sizes than a policy takes."""
    if observation.state.shape != (env_spec.state_dim,):
        raise PolicyError(
            f"this policy takes states of [{env_spec.state_dim}], the observation's is {list(observation.state.shape)}"
        )
    for camera, size in env_spec.cameras.items():
        if camera not in observation.images:
            raise PolicyError(
                f"this policy uses camera '{camera}', which the observation lacks; "
                f"{did_you_mean(camera, observation.images)}"
            )
        shape = observation.images[camera].shape
        if shape != (*size, 3):
            raise PolicyError(f"camera '{camera}' has images of {list(shape)}, this policy takes {[*size, 3]}")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Networks made in this block get their initial weights from `seed`; torch's own generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def load_components(components: Mapping[str, nn.Module], weights: PolicyWeights) -> None:
    """Load weights into components: all of them, or none with a message about the first that does not fit."""
    own = {f"{part}/{name}": t for part, module in components.items() for name, t in module.state_dict().items()}
    what = f"weights of version {weights.version}"
    for name in own:
        if name not in weights.tensors:
            raise PolicyError(f"{what} lack '{name}' of this policy; {did_you_mean(name, weights.tensors)}")
    for name, array in weights.tensors.items():
        if name not in own:
            raise PolicyError(f"{what} have '{name}', which this policy does not have; {did_you_mean(name, own)}")
        if array.shape != tuple(own[name].shape):
            raise PolicyError(f"{what}: '{name}' is {list(array.shape)}, this policy's is {list(own[name].shape)}")
        if not np.isfinite(array).all():
            raise PolicyError(f"{what}: '{name}' contains NaN or infinity; a robot must not use it")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(np.array(weights.tensors[name])))


FROZEN = "frozen"  # component of a frozen encoder's weights


def frozen_encoder(
    config: ImageEncoderConfig, cameras: Mapping[str, tuple[int, int]], device: torch.device
) -> "FrozenEncoder | None":
    """The frozen image encoder of a policy, with random weights; None for a policy that has none."""
    if not config.is_frozen or not cameras:
        return None
    from plaudit.policies.pretrained import FrozenEncoder

    return FrozenEncoder(config, cameras, pretrained=False).to(device)


class NetworkPolicy(BlendedPolicy):
    """A `Policy` with networks; a derived class makes `components`."""

    components: dict[str, nn.Module]

    def __init__(self, config: NetworkPolicyConfig):
        self.device = resolve_device(config.device)
        self.env_spec = EnvSpec(config.state_dim, config.action_dim, config.cameras)
        self.frozen = frozen_encoder(config.encoder, config.cameras, self.device)
        self.rng = torch.Generator(self.device).manual_seed(config.seed)

    def warmup(self) -> None:
        """Call both methods on zeros."""
        spec = self.env_spec
        images = {camera: np.zeros((*size, 3), np.uint8) for camera, size in spec.cameras.items()}
        zeros = Observation(images, np.zeros(spec.state_dim, np.float32), task=ANY_TASK)
        normalizer = AffineNormalizer.identity(spec.state_dim, spec.action_dim)
        with self._preserve_rng():
            chunk = self.predict(zeros, normalizer)
            self.guided_inference(zeros, normalizer, chunk, 0, 0)

    def freeze_all_model_params(self) -> None:
        """Turn gradients off and switch to evaluation mode."""
        for component in self.components.values():
            component.requires_grad_(False).eval()

    def load_weights(self, weights: PolicyWeights) -> None:
        """Load all components at once, or raise and load none."""
        load_components(self.components, weights)

    def load_frozen(self, weights: PolicyWeights) -> None:
        """Load the frozen image encoder. It is part of no later `load_weights`."""
        if self.frozen is None:
            raise PolicyError("this policy has no frozen encoder, but its file names weights of one (frozen)")
        load_components({FROZEN: self.frozen}, weights)

    @contextmanager
    def _preserve_rng(self) -> Iterator[None]:
        """What is sampled in this block does not change the noise of later chunks."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        state = self.rng.get_state()
        yield
        self.rng.set_state(state)


class GaussianPolicy(NetworkPolicy):
    """The actor of PPO or SAC: returns the mode of its distribution over chunks of actions, or a sample.

    The components have the names of the learners' (`encoder`, `actor`), so that the weights of `plaudit train` load as
    they are. Those learners use states and actions in the robot's own units, so their normalizer is the identity.
    """

    def __init__(self, config: GaussianConfig):
        super().__init__(config)
        self.config = config
        self._is_discrete = config.gripper == "discrete"
        self._outputs = config.horizon * config.action_dim - self._is_discrete
        with seeded(config.seed):
            self.encoder = Encoder(self.env_spec, config.encoder, self.frozen, history=config.history).to(self.device)
            make = TanhGaussian if config.actor.kind == "squashed" else gaussian_actor
            self.actor = make(self.encoder.size, self._outputs, config.actor.hidden_dims).to(self.device)
            self.components = {"encoder": self.encoder, "actor": self.actor}
            if self._is_discrete:
                self.critic_encoder = self.encoder
                if not config.encoder.shared:
                    encoder = Encoder(self.env_spec, config.encoder, self.frozen, history=config.history)
                    self.components["critic_encoder"] = self.critic_encoder = encoder.to(self.device)
                critic = grasp_critic(self.encoder.size, config.actor.hidden_dims).to(self.device)
                self.components["grasp_critic"] = self.grasp_critic = critic

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        features = encode(self.encoder, observation, normalizer, self.device)
        with torch.no_grad():
            actions = self._act(features)
            if self._is_discrete:
                if self.critic_encoder is not self.encoder:
                    features = encode(self.critic_encoder, observation, normalizer, self.device)
                actions = with_gripper(actions, self.grasp_critic(features))
            actions = actions.view(self.config.horizon, self.config.action_dim)
        return normalizer.denormalize_action(actions.cpu().numpy())

    def _act(self, features: Tensor) -> Tensor:
        if not isinstance(self.actor, TanhGaussian):
            return self.actor(features)
        if not self.config.stochastic:
            return self.actor.mode(features)
        return self.actor(features, torch.randn(1, self._outputs, generator=self.rng, device=self.device))[0]

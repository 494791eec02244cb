"""A policy that an installed LeRobot builds from its folder: the network, and the processors around it.

    observation -> preprocessor (rename, batch, tokens, device, statistics) -> predict_action_chunk -> postprocessor

The processors have the statistics of the training data, so the run's normalizer is not used. Observations of the last
steps come from `Observation.window`, so the queues of `select_action` are not needed. lerobot has no version in its
folders. A folder of another version shows in keys or weights that the installed one does not have.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.devices import resolve_device
from plaudit.errors import BadFile, MissingPackage, PolicyError
from plaudit.files import open_safetensors, safetensors_shapes
from plaudit.policies.guidance import MAX_SAMPLES, BlendedPolicy, LimitedSampling, Sampling
from plaudit.policies.lerobot_folder import ACTION, STATE, WEIGHTS_FILE, LeRobotPolicyConfig
from plaudit.policies.networks import check_observation, load_components
from plaudit.protocols import Normalizer
from plaudit.trust import HUB, is_allowed_host
from plaudit.types import AnyArray, BoolArray, FloatArray, Observation, PolicyWeights

RELEASE = "'lerobot>=0.6,<0.7'"
COMPONENT = "policy"


class LeRobotPolicy(BlendedPolicy, LimitedSampling):
    """A `Policy` around one of lerobot's."""

    def __init__(self, config: LeRobotPolicyConfig):
        self.config, self.folder = config, config.folder
        self.device = resolve_device(config.device)
        self.policy, self._preprocess, self._postprocess = load_lerobot_policy(config, str(self.device))
        # Empty, as for all policies that normalize by themselves. `load_weights` still takes "policy/...".
        self.components: dict[str, Any] = {}
        self.sampling = Sampling(1 if self.folder.kind == "act" else MAX_SAMPLES, self.folder.noise_shape)
        self.noise_shape = self.folder.noise_shape
        self._rng = torch.Generator(self.device).manual_seed(config.seed)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        return self.sample(observation, normalizer, 1)[0]

    def sample(
        self, observation: Observation, normalizer: Normalizer, count: int, noise: FloatArray | None = None
    ) -> FloatArray:
        """Chunks [count, H, A] in the robot's units."""
        noise = self.sampling.check(f"the LeRobot policy '{self.folder.kind}'", count, noise)
        options = {} if self.folder.noise_shape is None else {"noise": self._noise(count, noise)}
        self.policy.eval()
        with torch.no_grad(), self._own_randomness():
            inputs = self._preprocess(self._inputs(observation, count))
            chunks = self._postprocess(self.policy.predict_action_chunk(inputs, **options))
        return chunks.float().cpu().numpy()

    def loss(self, observation: Observation, chunks: FloatArray, mask: BoolArray) -> Tensor:
        """The policy's own training loss, a scalar, of B observations and the actions [B, H, A] that followed.

        mask: [B, H] False past the end of an episode. Gradients flow into `policy`.
        """
        actions, padded = torch.from_numpy(chunks), torch.from_numpy(~mask)
        if (
            self.folder.kind == "diffusion"
        ):  # its windows begin at the earliest observation; what came before is padding
            actions = torch.cat([actions[:, :1].expand(-1, self.folder.history, -1), actions], dim=1)
            padded = torch.cat([padded.new_ones(len(padded), self.folder.history), padded], dim=1)
        wanted = self.train_horizon + (self.folder.history if self.folder.kind == "diffusion" else 0)
        if actions.shape[1] != wanted:
            raise PolicyError(f"this policy learns from windows of {self.train_horizon} actions, not {chunks.shape[1]}")
        batch = {**self._inputs(observation, None), ACTION: actions, "action_is_pad": padded}
        self.policy.train()
        with self._masked_padding():
            loss, _ = self.policy.forward(self._preprocess(batch))
        return loss

    @property
    def train_horizon(self) -> int:
        """Actions of a window in training."""
        if self.folder.kind != "diffusion":
            return self.folder.horizon
        return int(self.policy.config.horizon) - self.folder.history

    def save(self, folder: Path) -> None:
        """Write a folder that lerobot loads, with the processors."""
        self.policy.save_pretrained(folder)
        for part in (self._preprocess, self._postprocess):
            part.save_pretrained(folder)

    def warmup(self) -> None:
        """Infer once from zeros."""
        spec = self.folder.env_spec
        images = {camera: np.zeros((*size, 3), np.uint8) for camera, size in spec.cameras.items()}
        state = self._rng.get_state()
        self.sample(Observation(images, np.zeros(spec.state_dim, np.float32)), None, 1)  # type: ignore[arg-type]
        self._rng.set_state(state)

    def freeze_all_model_params(self) -> None:
        """Turn gradients off and switch to evaluation mode."""
        self.policy.requires_grad_(False).eval()

    def load_weights(self, weights: PolicyWeights) -> None:
        """Replace the weights of the network; the processors stay."""
        load_components({COMPONENT: self.policy}, weights)

    def _noise(self, count: int, given: FloatArray | None) -> Tensor:
        if given is not None:
            return torch.from_numpy(given).to(self.device)
        shape = self.folder.noise_shape
        assert shape is not None
        return torch.randn(count, *shape, generator=self._rng, device=self.device)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Draw what lerobot draws from this policy's seed; torch's own generator is unchanged."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(torch.randint(1 << 31, (1,), generator=self._rng, device=self.device)))
            yield

    @contextmanager
    def _masked_padding(self) -> Iterator[None]:
        """No loss on padded actions. ACT and the VLAs do so themselves; diffusion has a setting, by default off."""
        settings = vars(self.policy.config)
        before = settings.get("do_mask_loss_for_padding")
        if before is not None:
            settings["do_mask_loss_for_padding"] = True
        yield
        if before is not None:
            settings["do_mask_loss_for_padding"] = before

    def _inputs(self, observation: Observation, count: int | None) -> dict[str, Any]:
        """As lerobot's data sets have them: [B, ...], frames [.., 3, H, W] from 0 to 1, the oldest first.

        count: copies of one observation; None: the observation has a batch axis
        """
        spec, history = self.folder.env_spec, self.folder.history
        if count is not None:
            check_observation(spec, observation)
            observation = observation.window(history, spec.cameras)

        def tensor(array: AnyArray, frame: int) -> Tensor:
            """frame: trailing axes of one frame"""
            values = torch.from_numpy(np.ascontiguousarray(array))
            values = values if count is None else values[None]
            if history:
                values = values.flip(-1 - frame)
            return values if count in (None, 1) else values.expand(count, *values.shape[1:])

        inputs: dict[str, Any] = {}
        if spec.state_dim:
            inputs[STATE] = tensor(observation.state, 1)
        for camera, key in self.folder.image_keys.items():
            inputs[key] = tensor(observation.images[camera], 3).movedim(-1, -3).float() / 255
        batch = count or len(observation.state)
        return {**inputs, "task": [self.config.task or observation.task] * batch}


def load_lerobot_policy(config: LeRobotPolicyConfig, device: str) -> tuple[Any, Any, Any]:
    """lerobot's policy, its preprocessor and its postprocessor."""
    from plaudit.data.weights import fitting, numbers_at_most

    if not is_allowed_host(HUB):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported
    try:
        configs, factory = import_module("lerobot.configs"), import_module("lerobot.policies.factory")
        installed = version("lerobot")
    except ModuleNotFoundError as error:
        raise MissingPackage("lerobot" if error.name is None else error.name.partition(".")[0], RELEASE) from error
    path, kind, weights = config.path, config.folder.kind, config.path / WEIGHTS_FILE
    import_module(f"lerobot.policies.{kind}.configuration_{kind}")
    other = f"lerobot {installed} is installed, and another version wrote this folder"
    options = [f"--{key}={value}" for key, value in {**config.options, "device": device}.items()]
    try:
        described = configs.PreTrainedConfig.from_pretrained(path, cli_overrides=options)
    except (SystemExit, Exception) as error:
        raise BadFile(path / "config.json", f"{other}: {_first_line(error)}; install that version") from error
    published = vars(described).get("pretrained_backbone_weights")
    if published is not None:  # they would be fetched, and then replaced by those of the folder
        described.pretrained_backbone_weights = None
    with open_safetensors(weights):
        most = fitting(safetensors_shapes(weights).values())
    try:
        with numbers_at_most(most, weights), redirect_stdout(io.StringIO()):  # it prints that it loads
            policy = factory.get_policy_class(kind).from_pretrained(path, config=described, strict=True)
        processors = factory.make_pre_post_processors(
            described, str(path), preprocessor_overrides={"device_processor": {"device": device}}
        )
    except BadFile:
        raise
    except ImportError as error:
        raise MissingPackage(str(error.name or error), f"'lerobot[{kind}]=={installed}'") from error
    except RuntimeError as error:
        raise BadFile(weights, f"{other}: {_first_line(error)}; install that version") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        hub = f"; if it needs files of the hub, add --allow-host {HUB}" if "HF_HUB_OFFLINE" in os.environ else ""
        raise BadFile(path, f"lerobot {installed} cannot load it: {_first_line(error)}{hub}") from error
    if published is not None:
        described.pretrained_backbone_weights = published
    return policy, *processors


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__

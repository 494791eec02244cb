"""The robot's side of a policy that openpi serves: what the robot sees goes there, a chunk of actions comes back.

The server normalises by the statistics of its checkpoint and answers in the robot's units, so states are sent as they
are measured, and the normaliser that this policy is handed has nothing to do. The server knows no guidance either: a
new chunk is blended with what is left of the previous one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from plaudit.errors import PolicyError, nearest
from plaudit.policies.guidance import blended
from plaudit.policies.openpi.client import OpenpiClient
from plaudit.policies.openpi.config import OpenpiConfig
from plaudit.protocols import Normalizer
from plaudit.types import ByteArray, FloatArray, Observation, Weights


class OpenpiPolicy:
    """A `Policy` whose networks are elsewhere."""

    def __init__(self, config: OpenpiConfig):
        self.config = config
        self.components: Mapping[str, Any] = {}
        self.client = OpenpiClient(config.openpi_model)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        return self._chunk(self.client.infer(self._message(observation)))

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        return blended(previous, self.predict(observation, normalizer), delay, executed)

    def warmup(self) -> None:
        """Connect; the server's own first inference comes with the first observation."""
        _ = self.client.metadata

    def freeze_all_model_params(self) -> None:
        """There are none here."""

    def load_weights(self, weights: Weights) -> None:
        if weights.tensors:
            raise PolicyError("the weights of an openpi policy are on its server; restart that with a new checkpoint")

    def _message(self, observation: Observation) -> dict[str, Any]:
        config = self.config
        message: dict[str, Any] = {}
        for camera, key in config.image_keys.items():
            if camera not in observation.images:
                raise PolicyError(f"image_keys has camera '{camera}'; {nearest(camera, observation.images)}")
            image = observation.images[camera]
            message[key] = image if config.image_size is None else with_bars(image, config.image_size)
        if config.state_key is not None:
            message[config.state_key] = observation.state
        if config.prompt_key is not None:
            message[config.prompt_key] = config.prompt
        return message

    def _chunk(self, answer: Mapping[str, Any]) -> FloatArray:
        config = self.config
        if config.action_key not in answer:
            raise PolicyError(f"the server's answer has no '{config.action_key}'; {nearest(config.action_key, answer)}")
        actions = np.asarray(answer[config.action_key])
        horizon = config.horizon or (len(actions) if actions.ndim else 0)
        if actions.ndim != 2 or len(actions) < max(horizon, 1) or actions.shape[1] < config.action_dim:
            raise PolicyError(
                f"the server sent actions of {list(actions.shape)}, this robot needs [{config.horizon or 'H'}, "
                f"{config.action_dim}]"
            )
        chunk = actions[:horizon, : config.action_dim].astype(np.float32)
        if not np.isfinite(chunk).all():
            raise PolicyError("the server sent actions that hold NaN or infinity")
        return chunk


def with_bars(image: ByteArray, size: tuple[int, int]) -> ByteArray:
    """An image in another size (H, W): as large as fits in its own shape, in the middle, black around."""
    (height, width), (most_high, most_wide) = image.shape[:2], size
    if (height, width) == size:
        return image
    ratio = max(width / most_wide, height / most_high)
    fits = (int(width / ratio), int(height / ratio))
    new = Image.new("RGB", (most_wide, most_high))
    corner = (max(0, (most_wide - fits[0]) // 2), max(0, (most_high - fits[1]) // 2))
    new.paste(Image.fromarray(image).resize(fits, Image.Resampling.BILINEAR), corner)
    return np.asarray(new)

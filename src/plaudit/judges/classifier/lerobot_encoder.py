"""One of our encoders as a model of transformers, which is what lerobot's reward classifier builds its own from.

An exported folder (lerobot.py) names this class, so lerobot needs plaudit beside it to load the folder. Pixels come in
from 0 to 1 and are normalized here, because lerobot leaves its saved normalizer out while a robot runs.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from plaudit.registry import ENCODER_REGISTRY
from plaudit.trust import from_file


class PlauditEncoderConfig(PretrainedConfig):
    """Our encoder's config, by the names that lerobot looks for."""

    model_type = "plaudit_encoder"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        pixel_mean: tuple[float, ...] = (0.0, 0.0, 0.0),
        pixel_std: tuple[float, ...] = (255.0, 255.0, 255.0),
        hidden_sizes: tuple[int, ...] = (),
        **others: Any,
    ):
        """
        pixel_mean, pixel_std: of pixels, 0 to 255
        hidden_sizes: channels of what comes out; lerobot looks at the last
        """
        self.encoder, self.hidden_sizes = encoder, list(hidden_sizes)
        self.pixel_mean, self.pixel_std = list(pixel_mean), list(pixel_std)
        super().__init__(**others)


class PlauditEncoder(PreTrainedModel):
    """Images [B, 3, H, W], 0 to 1, to `last_hidden_state` [B, C, h, w]."""

    config_class = PlauditEncoderConfig

    def __init__(self, config: PlauditEncoderConfig):
        super().__init__(config)
        with from_file(config.name_or_path or "config.json"):
            encoder: Any = ENCODER_REGISTRY.parse(config.encoder)
            self.network = encoder.build(pretrained=False)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Nothing: every weight comes out of a file."""

    def forward(self, images: Tensor, **_: Any) -> BaseModelOutput:
        mean, std = (
            torch.tensor(values, device=images.device, dtype=images.dtype)[:, None, None]
            for values in (self.config.pixel_mean, self.config.pixel_std)
        )
        features: Any = self.network((images * 255 - mean) / std)
        return BaseModelOutput(last_hidden_state=features)

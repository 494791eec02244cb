"""The encoder of keypoints: it says where things are, more finely than by pixels."""

import pytest
import torch
from torch import nn

from plaudit.config import parse
from plaudit.devices import Adam
from plaudit.encoders import KeypointsConfig, feature_map_size
from plaudit.errors import ConfigError

SIDE = 32


def spots(count: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Dark images with one bright spot each, and its place in pixels, [count, 2]."""
    places = 4 + (SIDE - 8) * torch.rand(count, 2, generator=rng)
    axis = torch.arange(SIDE) + 0.5
    across, down = ((axis - places[:, i, None]) ** 2 for i in (0, 1))
    bright = torch.exp(-(down[:, :, None] + across[:, None, :]).clamp(max=40) / 4)
    return bright[:, None].repeat(1, 3, 1, 1), places


def test_a_linear_layer_reads_a_place_off_keypoints():
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    encoder = KeypointsConfig(widths=(8, 8)).build()
    readout = nn.Linear(encoder.channels, 2)
    optimizer = Adam([*encoder.parameters(), *readout.parameters()], lr=2e-2)
    for _ in range(100):
        images, places = spots(16, rng)
        loss = (readout(encoder(images).flatten(1)) - places / SIDE).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, places = spots(256, rng)
    with torch.inference_mode():
        error = (readout(encoder(images).flatten(1)) * SIDE - places).norm(dim=1)
    assert error.median() < 0.7  # pixels; a cell of the heat maps has two, and without the images it would be 12


def test_it_is_one_cell_of_features_whatever_the_size():
    encoder = KeypointsConfig().build()
    assert encoder.channels == 3 * 32
    for size in ((64, 64), (48, 96)):
        assert feature_map_size(encoder, size) == (1, 1)


def test_the_keypoints_of_a_blank_image_are_within_it():
    encoder = KeypointsConfig().build()
    with torch.inference_mode():
        found = encoder(torch.zeros(1, 3, 64, 64)).reshape(-1, 3)
    assert torch.isfinite(found).all() and found.abs().max() <= 1


def test_one_layer_is_refused():
    with pytest.raises(ConfigError, match="widths"):
        parse(KeypointsConfig, {"widths": [8]})

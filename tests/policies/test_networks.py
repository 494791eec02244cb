import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from plaudit.policies.config import ImageEncoderConfig
from plaudit.policies.networks import CriticEnsemble, Encoder, Linear, ObsTensors, TanhGaussian, random_shift
from plaudit.types import EnvSpec


def test_the_density_of_squeezed_actions_is_that_of_torch_distributions():
    torch.manual_seed(0)
    actor = TanhGaussian(3, 2, (8,))
    features, noise = torch.randn(16, 3), torch.randn(16, 2)
    actions, log_density = actor(features, noise)
    mean, log_std = actor.head(actor.trunk(features)).chunk(2, dim=-1)
    peer = TransformedDistribution(Normal(mean, log_std.clamp(-5, 2).exp()), [TanhTransform(cache_size=1)])
    assert torch.allclose(actions, (mean + log_std.exp() * noise).tanh(), atol=1e-6)
    assert torch.allclose(log_density, peer.log_prob(actions.clamp(-0.999999, 0.999999)).sum(-1), atol=1e-2)


def test_an_ensemble_is_its_members_one_by_one():
    torch.manual_seed(0)
    critics = CriticEnsemble(3, 5, (7, 6))
    features, actions = torch.randn(4, 3), torch.randn(4, 2)
    values = critics(features, actions)
    assert values.shape == (3, 4)
    for member in range(3):
        x = torch.cat([features, actions], dim=1)
        for weight, bias in list(zip(critics.weights, critics.biases))[:-1]:
            x = torch.relu(torch.nn.functional.layer_norm(x @ weight[member] + bias[member], (weight.shape[-1],)))
        alone = (x @ critics.weights[-1][member] + critics.biases[-1][member]).squeeze(-1)
        assert torch.allclose(values[member], alone, atol=1e-5)
    assert torch.equal(critics(features, actions, torch.tensor([2, 0])), values[[2, 0]])


def test_linear_is_torchs():
    ours, theirs = Linear(4, 3), torch.nn.Linear(4, 3)
    theirs.weight.data, theirs.bias.data = ours.weight.data.T.clone(), ours.bias.data.clone()
    x = torch.randn(5, 4)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)


def test_a_shift_moves_each_image_whole_and_repeats_its_edge():
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    images = torch.stack([rows, columns, rows + columns], dim=-1).to(torch.uint8).repeat(64, 1, 1, 1)
    moved = random_shift(images, torch.Generator().manual_seed(0), pad=2)
    assert moved.dtype == torch.uint8 and moved.shape == images.shape
    by = set()
    for image in moved:
        down = int(image[4, 4, 0]) - 4
        right = int(image[4, 4, 1]) - 4
        assert torch.equal(image[:, 0, 0].int(), (torch.arange(8) + down).clamp(0, 7).int())
        assert torch.equal(image[0, :, 1].int(), (torch.arange(8) + right).clamp(0, 7).int())
        by.add((down, right))
    assert len(by) > 15 and max(max(abs(d), abs(r)) for d, r in by) == 2


@pytest.mark.parametrize("size", [(64, 64), (33, 50), (128, 96)])
def test_an_encoder_takes_cameras_of_any_size(size):
    env_spec = EnvSpec(3, 4, {"front": size, "wrist": (16, 16)})
    encoder = Encoder(env_spec, ImageEncoderConfig(features=10))
    images = {
        "front": torch.zeros(2, *size, 3, dtype=torch.uint8),
        "wrist": torch.zeros(2, 16, 16, 3, dtype=torch.uint8),
    }
    assert encoder(ObsTensors(images, torch.zeros(2, 3))).shape == (2, encoder.size) == (2, 23)

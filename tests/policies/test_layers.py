"""Layers of policies: the fast form of the convolutional network computes what the plain one does."""

import pytest
import torch

from plaudit.policies.networks import ConvNet, cut_patches, random_offsets, random_shift


@pytest.mark.parametrize("size", [(32, 48), (33, 47)])
def test_the_network_over_patches_is_that_network(size):
    torch.manual_seed(0)
    net = ConvNet(size, features=16)
    torch.nn.init.normal_(net.convs[0].bias)
    frames = torch.randint(0, 256, (4, *size, 3), dtype=torch.uint8)
    offsets = random_offsets(4, torch.Generator().manual_seed(1), 3)
    shifted = random_shift(frames, torch.Generator().manual_seed(1), 3)
    plain = net(shifted.permute(0, 3, 1, 2).float() / 255 - 0.5)
    fast = net(cut_patches(frames, offsets))
    assert (plain - fast).abs().max() < 0.03

    def gradients(features):
        net.zero_grad()
        features.square().sum().backward()
        return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}

    expected, found = gradients(plain), gradients(fast)
    for name, gradient in expected.items():
        assert torch.cosine_similarity(gradient.flatten(), found[name].flatten(), dim=0) > 0.99, name

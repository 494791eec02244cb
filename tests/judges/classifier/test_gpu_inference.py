"""What of a GPU's ways can be seen without one: the copies that it looks with."""

import numpy as np
import pytest
import torch
from torch import nn

from plaudit.judges.classifier.checkpoint import BlockConv, ChannelsLastGroupNorm, bf16_copies, pad_batch
from tiny_reward import noise_episode, tiny_model


def test_the_encoder_of_a_copy_takes_half_the_bytes_and_the_model_stays_as_it_was():
    model = tiny_model(members=2)
    copies = bf16_copies(model.members, compiled=False)
    assert {p.dtype for copy in copies for p in copy.encoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for copy in copies for p in copy.head.parameters()} == {torch.float32}
    assert {p.dtype for member in model.members for p in member.parameters()} == {torch.float32}


def test_what_members_share_their_copies_share():
    members = tiny_model(members=2).members
    members[1].encoder = members[0].encoder
    copies = bf16_copies(members, compiled=False)
    assert copies[0].encoder is copies[1].encoder is not members[0].encoder


def test_batch_norms_keep_their_precision_and_take_what_comes():
    (member,) = tiny_model().members
    member.encoder.layers.append(torch.nn.BatchNorm2d(8))
    (copy,) = bf16_copies([member.eval()], compiled=False)
    assert copy.encoder.layers[-1].running_var.dtype == torch.float32
    assert copy.encode(torch.zeros(1, 16, 16, 3, dtype=torch.uint8), "front").dtype == torch.float32


def test_a_copy_says_almost_the_same():
    (member,) = tiny_model().members
    (copy,) = bf16_copies([member.eval()], compiled=False)
    images = {"front": torch.from_numpy(noise_episode().frames["front"])}
    with torch.inference_mode():
        assert copy(images).numpy() == pytest.approx(member(images).numpy(), abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compile", [False, True])
def test_a_gpu_says_almost_what_a_processor_says(compile):
    model, frames = tiny_model(), noise_episode(40).frames
    expected = model.score_frames(frames).success_prob
    model.to_device("cuda", compile=compile)
    for rows in (slice(0, 32), slice(8, 40), slice(0, 5), slice(0, 32)):  # sizes that were compiled before, and others
        part = {"front": frames["front"][rows]}
        assert model.score_frames(part).success_prob == pytest.approx(expected[rows], abs=0.02)
        assert model.score_frames({"front": torch.from_numpy(np.array(part["front"])).pin_memory()}).success_prob.shape


@pytest.mark.parametrize("size", [(16, 24), (17, 23)])
def test_a_first_convolution_over_blocks_is_that_convolution(size):
    conv = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
    x = torch.randn(2, 3, *size)
    assert BlockConv.fits(conv)
    assert torch.allclose(BlockConv(conv)(x), conv(x), atol=1e-5)


def test_other_convolutions_stay_as_they_are():
    assert not BlockConv.fits(nn.Conv2d(3, 8, 7, stride=2, padding=3))
    assert not BlockConv.fits(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False))


def test_a_group_norm_with_channels_last_is_a_group_norm():
    norm = nn.GroupNorm(4, 16)
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    x = torch.randn(3, 16, 5, 7).to(memory_format=torch.channels_last)
    assert torch.allclose(ChannelsLastGroupNorm(norm)(x), norm(x), atol=1e-5)


def test_a_batch_of_any_size_is_padded_to_a_power_of_two():
    x = torch.arange(37.0)[:, None]
    (padded,) = pad_batch([x])
    assert torch.equal(padded[:37], x) and len(padded) == 64 and (padded[37:] == 36).all()
    assert len(pad_batch([x[:3]])[0]) == 16 and pad_batch([x[:32]])[0].shape == (32, 1)

"""The optimizers are torch's: the same steps, and states that each reads from the other."""

import copy

import pytest
import torch
from torch import Tensor

from plaudit.devices import Adam, AdamW

LR, BETAS, EPS = 0.1, (0.9, 0.999), 1e-8


def three_steps(optimizer: torch.optim.Optimizer, weight: Tensor) -> list[float]:
    """Of loss = weight^2 / 2, whose gradient is the weight itself."""
    values = []
    for _ in range(3):
        optimizer.zero_grad()
        (0.5 * weight**2).sum().backward()
        optimizer.step()
        values.append(weight.item())
    return values


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("kind", "decay"), [(Adam, 0.0), (AdamW, 0.5)])
def test_a_step_is_the_one_of_the_paper(kind: type[Adam], decay: float, fused: bool):
    weight = torch.tensor([2.0], requires_grad=True)
    value, mean, square, expected = 2.0, 0.0, 0.0, []
    for step in (1, 2, 3):
        mean = BETAS[0] * mean + (1 - BETAS[0]) * value
        square = BETAS[1] * square + (1 - BETAS[1]) * value**2
        value *= 1 - LR * decay
        value -= LR * mean / (1 - BETAS[0] ** step) / ((square / (1 - BETAS[1] ** step)) ** 0.5 + EPS)
        expected.append(value)
    assert three_steps(kind([weight], lr=LR, weight_decay=decay, fused=fused), weight) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_a_state_that_was_saved_goes_on_as_if_nothing_had_been(kind: type[Adam]):
    weight = torch.tensor([2.0], requires_grad=True)
    optimizer = kind([weight], lr=LR)
    three_steps(optimizer, weight)
    again = weight.detach().clone().requires_grad_()
    other = kind([again], lr=1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # a file keeps a copy
    assert three_steps(other, again) == three_steps(optimizer, weight)


@pytest.mark.slow  # torch's own load its compiler, 1.7 s; the step of the paper is checked above
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_steps_are_those_of_torch_to_the_last_bit(ours: type[Adam], theirs: type[torch.optim.Adam], fused: bool):
    weights = [torch.tensor([2.0], requires_grad=True) for _ in range(2)]
    one, other = (three_steps(kind([w], lr=LR, fused=fused), w) for kind, w in zip((ours, theirs), weights))
    assert one == other

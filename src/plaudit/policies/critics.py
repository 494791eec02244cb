"""What is asked how good an action is: by a learner, or by a policy that has several to choose from."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Critics(nn.Module):
    """E critics side by side: each layer is one batched product."""

    def __init__(self, count: int, inputs: int, hidden: Sequence[int]):
        super().__init__()
        sizes = [inputs, *hidden, 1]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(count, before, after).uniform_(-1, 1) / math.sqrt(before))
            for before, after in pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(count, 1, after)) for after in sizes[1:])

    def forward(self, features: Tensor, actions: Tensor, members: Tensor | None = None) -> Tensor:
        """Values [E, B], of all critics or of some."""
        weights: list[Tensor] = list(self.weights)
        biases: list[Tensor] = list(self.biases)
        if members is not None:
            weights, biases = [w[members] for w in weights], [b[members] for b in biases]
        x = torch.cat([features, actions], dim=-1).expand(len(biases[0]), -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight)
            x = F.relu(F.layer_norm(x, x.shape[-1:]))
        return torch.baddbmm(biases[-1], x, weights[-1]).squeeze(-1)

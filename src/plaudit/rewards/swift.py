"""What a GPU needs to look fast: an encoder in half the bytes, and not a word from Python between its kernels.

    eager            each kernel is launched by itself
    graph            they are recorded once as a CUDA graph, for each of the first few sizes of batch, and played back
    compile          they are fused by torch.compile, which takes a minute the first time
    compile+graph    both

Nothing of this touches a model on a processor, and nothing the weights that are saved: these are copies. Only the
encoder is halved. What comes after it takes no time, and decides.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from plaudit.rewards.classifier import BinaryRewardClassifier

Execution = Literal["eager", "graph", "compile", "compile+graph"]
Look = Callable[..., list[Tensor]]

WARM_UP = 3  # runs before a graph is recorded, in which cuDNN chooses its kernels
MOST_GRAPHS = 4  # full mini-batches, as many scenes as a run has, and two more; each holds memory of its own


def halved(members: Sequence[BinaryRewardClassifier]) -> list[BinaryRewardClassifier]:
    """Copies whose encoders are in bfloat16; what members share, their copies share."""
    copies = copy.deepcopy(list(members))
    for member in copies:
        for module in member.encoder.modules():
            if not isinstance(module, nn.modules.batchnorm._BatchNorm):  # which takes both, and subtracts like numbers
                _halve(module)
    return copies


def _halve(module: nn.Module) -> None:
    """Its own tensors, not those of modules inside."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.bfloat16()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.bfloat16())


def executed(look: Look, execution: Execution) -> Look:
    if execution.startswith("compile"):
        look = torch.compile(look, dynamic=False)
    return Recorded(look) if execution.endswith("graph") else look


class Recorded:
    """Runs a function of CUDA tensors as graphs, one for each shape of input."""

    def __init__(self, look: Look):
        self._look = look
        self._graphs: dict[tuple[torch.Size, ...], Graph] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        shapes = tuple(given.shape for given in inputs)
        if shapes not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return self._look(*inputs)
            self._graphs[shapes] = Graph(self._look, inputs)
        return self._graphs[shapes](inputs)


class Graph:
    """One call of a function, recorded."""

    def __init__(self, look: Look, inputs: Sequence[Tensor]):
        self._inputs = [given.clone() for given in inputs]  # where the graph reads from
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.backends.cudnn.flags(benchmark=True):
            with torch.cuda.stream(beside):
                for _ in range(WARM_UP):
                    look(*self._inputs)
            torch.cuda.current_stream().wait_stream(beside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = look(*self._inputs)  # where it writes to, every time

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()
        return [output.clone() for output in self._outputs]

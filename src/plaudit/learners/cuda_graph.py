"""Updates as CUDA graphs: a whole update is launched at once, instead of some hundred kernels one after the other.

The first update with a batch of a new shape is captured. Later ones copy their batch to the captured one's place and
replay. The same kernels run in the same order, with the same random numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

WARMUP = 3  # updates before a capture, in which libraries choose kernels and allocate memory

Step = Callable[..., Mapping[str, Tensor]]  # (batch, **options) -> metrics


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    names: list[str]
    metrics: Tensor  # [names]


class CudaGraphs:
    """The captured updates of one learner. Drop it when a checkpoint is loaded: optimizers then have new tensors."""

    def __init__(self, learner: Any):
        self._learner = learner
        self._captured: dict[Any, _Captured] = {}

    def __call__(self, step: Step, batch: Any, **options: bool) -> dict[str, Tensor]:
        """`step(batch, **options)`, a method of the learner."""
        tensors = list(_tensors(batch))
        key = (step.__name__, *options.items(), *(tensor.shape for tensor in tensors))
        if key not in self._captured:
            self._captured[key] = self._capture(step, batch, options)
        captured = self._captured[key]
        for place, tensor in zip(captured.inputs, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        captured.graph.replay()
        return dict(zip(captured.names, captured.metrics.clone().unbind(), strict=True))

    def _capture(self, step: Step, batch: Any, options: dict[str, bool]) -> _Captured:
        inputs = _clone(batch)
        optimizers = self._learner.optimizers.values()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["capturable"] = True
        saved, rng = {id(t): t.detach().clone() for t in self._state()}, self._learner.rng.get_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            with torch.cuda.stream(stream):
                for _ in range(WARMUP):
                    step(inputs, **options)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.no_grad():
                for tensor in self._state():  # moments that had not existed start at zero
                    before = saved.get(id(tensor))
                    tensor.zero_() if before is None else tensor.copy_(before)
            self._learner.rng.set_state(rng)
            for optimizer in optimizers:
                optimizer.zero_grad()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._learner.rng)
            with torch.cuda.graph(graph):
                metrics = step(inputs, **options)
                packed = torch.stack([number.float() for number in metrics.values()])
        return _Captured(graph, list(_tensors(inputs)), list(metrics), packed)

    def _state(self) -> Iterator[Tensor]:
        """All tensors that an update changes."""
        yield from self._learner.net.parameters()
        yield from self._learner.net.buffers()
        for optimizer in self._learner.optimizers.values():
            for moments in optimizer.state.values():
                yield from moments.values()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a batch: a dataclass of tensors, maps of tensors and other such dataclasses."""
    if isinstance(value, Tensor):
        yield value
        return
    parts = value.values() if isinstance(value, Mapping) else (getattr(value, field.name) for field in fields(value))
    for part in parts:
        yield from _tensors(part)


def _clone(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: _clone(part) for name, part in value.items()}
    return replace(value, **{field.name: _clone(getattr(value, field.name)) for field in fields(value)})

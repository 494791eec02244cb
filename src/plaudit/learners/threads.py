"""How many threads torch computes with while something learns. It is a setting of the whole process, where a judge may
compute too, so it is put back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int | None, *, images: bool) -> Iterator[None]:
    """As many as asked for. None: one for a learner of states, whose small products gain little from more and wait long
    on a busy machine; as torch likes for one of images."""
    before = torch.get_num_threads()
    if count or not images:
        torch.set_num_threads(count or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Data-parallel learners: each takes its part of every batch, and all of them take the same step.

Plain `torch.distributed` between steps of an ordinary learner: gradients are averaged right before an optimizer uses
them (`Learner.sync`), so the networks stay the same everywhere and nothing of the algorithm is written twice.
(Rejected: `DistributedDataParallel`, which wraps one forward pass; a learner of critics, actors and targets has
several.)
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = timedelta(seconds=60)  # for the slowest of the others, before its absence is an error


class DistributedGroup:
    """One rank of several, in a process group that is there; alone, it has nothing to do."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @classmethod
    def init_process_group(cls, rank: int, size: int, address: str) -> "DistributedGroup":
        """All ranks call this at the same time with the same address, host:port of the first."""
        host, _, port = address.rpartition(":")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_to(host) or "lo")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        where = f"tcp://{host}:{port}"
        dist.init_process_group(backend, init_method=where, rank=rank, world_size=size, timeout=TIMEOUT)
        return cls(rank, size)

    def all_reduce_mean(self, parameters: Sequence[Tensor]) -> None:
        """Make the gradients of these the mean over all ranks."""
        if self.size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def broadcast(self, data: bytes | None) -> bytes:
        """Send the first rank's value to all ranks."""
        sent: list[bytes | None] = [data]
        if self.size > 1:
            dist.broadcast_object_list(sent, src=0)
        assert sent[0] is not None
        return sent[0]

    def close(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


SINGLE = DistributedGroup()


def rendezvous_address(host: str = "127.0.0.1") -> str:
    """Where ranks can meet: an unused port of this host."""
    with socket.socket() as chosen:
        chosen.bind((host, 0))
        return f"{host}:{chosen.getsockname()[1]}"


def interface_to(host: str) -> str | None:
    """The name of the network interface that leads to a host; None where the system does not say."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            own_address = probe.getsockname()[0]
    except OSError:
        return None
    every = psutil.net_if_addrs().items()
    return next((name for name, addresses in every if any(one.address == own_address for one in addresses)), None)

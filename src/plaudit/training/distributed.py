"""Data-parallel workers: each takes its part of every batch, and all of them take the same step.

Plain `torch.distributed` between steps of an ordinary learner: gradients are averaged right before an optimiser uses
them (`Learner.sync`), so the networks stay the same everywhere and nothing of the algorithm is written twice.
(Rejected:
`DistributedDataParallel`, which wraps one forward pass; a learner of critics, actors and targets has several.)
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

WAIT = timedelta(seconds=60)  # for the slowest of the others, before its absence is an error


class Group(Protocol):
    rank: int
    size: int

    def average(self, parameters: Sequence[Tensor]) -> None:
        """Make the gradients of these the mean over all workers."""
        ...

    def from_first(self, data: bytes | None) -> bytes:
        """What the first worker says, told to all."""
        ...

    def close(self) -> None: ...


class Alone:
    """A group of one."""

    rank, size = 0, 1

    def average(self, parameters: Sequence[Tensor]) -> None: ...

    def from_first(self, data: bytes | None) -> bytes:
        assert data is not None
        return data

    def close(self) -> None: ...


ALONE = Alone()


class Workers:
    """One of several, in a process group that is there."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    @classmethod
    def met(cls, rank: int, size: int, address: str) -> "Workers":
        """Who all make this at the same time with the same address, host:port of the first."""
        host, _, port = address.rpartition(":")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(host) or "lo")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, init_method=f"tcp://{host}:{port}", rank=rank, world_size=size, timeout=WAIT)
        return cls(rank, size)

    def average(self, parameters: Sequence[Tensor]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def from_first(self, data: bytes | None) -> bytes:
        told: list[bytes | None] = [data]
        dist.broadcast_object_list(told, src=0)
        assert told[0] is not None
        return told[0]

    def close(self) -> None:
        dist.destroy_process_group()


def free_address(host: str = "127.0.0.1") -> str:
    """Where workers can meet: a port of this host that nobody uses."""
    with socket.socket() as chosen:
        chosen.bind((host, 0))
        return f"{host}:{chosen.getsockname()[1]}"


def interface_of(host: str) -> str | None:
    """The name of the network interface that leads to a host; None where the system does not say."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            mine = probe.getsockname()[0]
    except OSError:
        return None
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == mine), None)


def _address_of(name: str) -> str | None:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
        except OSError:
            return None
    return socket.inet_ntoa(packed[20:24])

"""Addresses and ports of this machine, from what Linux says of them."""

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """A socket that others may connect to."""

    address: str  # "0.0.0.0" or "::" for all of the machine
    port: int
    process: str

    @property
    def everywhere(self) -> bool:
        return self.address in ("0.0.0.0", "::")


def addresses_here() -> list[str]:
    """The IPv4 addresses at which other machines may reach this one, from the kernel's routes."""
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    found = {before.split()[-1] for before, line in pairwise(lines) if "/32 host LOCAL" in line}
    return sorted(address for address in found if not address.startswith("127."))


def addresses_v6() -> list[str]:
    """The IPv6 addresses that are not for this machine or this cable alone."""
    table = Path("/proc/net/if_inet6")
    lines = table.read_text().splitlines() if table.is_file() else []
    found = [fields for fields in (line.split() for line in lines) if fields[3] == "00"]  # of global scope
    return sorted(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])) for fields in found)


def is_ours(address: str) -> bool:
    try:
        socket.create_server((address, 0)).close()
    except OSError:
        return False
    return True


def is_free(address: str, port: int) -> bool:
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


def way_to(address: str) -> str:
    """Our own address on the way to another machine's "host:port". Nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, int(port)))
        return asking.getsockname()[0]


def answers(address: str, port: int, seconds: float = 1.0) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def listeners(pids: Iterable[int]) -> list[Listener]:
    """What these processes listen on."""
    sockets = {}  # inode -> address, port
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                sockets[fields[9]] = _parse(fields[1])
    found = set()
    for pid in pids:
        for inode in _inodes(pid) & set(sockets):
            found.add(Listener(*sockets[inode], process=_name(pid)))
    return sorted(found, key=lambda one: one.port)


def _parse(text: str) -> tuple[str, int]:
    """'0100007F:1F90' -> ('127.0.0.1', 8080); words of four bytes, each backwards on a little-endian machine."""
    words, _, port = text.partition(":")
    raw = b"".join(struct.pack("=I", int(words[i : i + 8], 16)) for i in range(0, len(words), 8))
    if raw[:12] == b"\0" * 10 + b"\xff\xff":  # an IPv4 address in IPv6 clothes
        raw = raw[12:]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw), int(port, 16)


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            target = entry.readlink().name
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:  # gone meanwhile, or somebody else's
        return found
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"

"""Addresses and ports of this machine."""

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import psutil


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
    """The IPv4 addresses at which other machines may reach this one."""
    return [address for address in _addresses(socket.AF_INET) if not ipaddress.ip_address(address).is_loopback]


def addresses_v6() -> list[str]:
    """The IPv6 addresses that are not for this machine or this cable alone."""
    found = [(address, ipaddress.ip_address(address)) for address in _addresses(socket.AF_INET6)]
    return [address for address, parsed in found if not parsed.is_loopback and not parsed.is_link_local]


def _addresses(family: int) -> list[str]:
    every = [one for interface in psutil.net_if_addrs().values() for one in interface]
    return sorted({one.address.partition("%")[0] for one in every if one.family == family})


def is_ours(address: str) -> bool:
    return is_free(address, 0)


def is_free(address: str, port: int) -> bool:
    """Whether nobody listens there yet; port 0: whether anybody could."""
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
    """What these processes listen on; those that are gone, or somebody else's, are left out."""
    found = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            open_ports = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            found |= {Listener(_plain(ip), port, process.name()) for ip, port in open_ports}
        except psutil.Error:
            continue
    return sorted(found, key=lambda one: one.port)


def _plain(address: str) -> str:
    """An IPv4 address also where it comes as an IPv6 one."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)

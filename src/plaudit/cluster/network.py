"""Addresses and ports of this machine, and closing the ports of a node on its other addresses.

Ray listens on all addresses of a machine and has no setting for that. `plaudit cluster start --firewall` adds an
nftables rule that drops packets to these ports on other addresses, and `stop` removes it. Without the flag no rule is
written, and the command to do so is printed. No other port and no other rule is touched.
"""

import ipaddress
import shutil
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from plaudit.errors import ClusterError


@dataclass(frozen=True)
class Listener:
    """A socket that others may connect to."""

    address: str  # "0.0.0.0" or "::" for all of the machine
    port: int
    process: str

    @property
    def everywhere(self) -> bool:
        """Whether it listens on all addresses of the machine."""
        return self.address in ("0.0.0.0", "::")


def own_addresses(family: int = socket.AF_INET) -> list[str]:
    """The addresses at which other machines may reach this one: not loopback, and not link-local of IPv6."""
    interfaces = psutil.net_if_addrs().values()
    addresses = {one.address.partition("%")[0] for each in interfaces for one in each if one.family == family}
    parsed = {address: ipaddress.ip_address(address) for address in addresses}
    return sorted(a for a, ip in parsed.items() if not ip.is_loopback and not (ip.version == 6 and ip.is_link_local))


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of the machine itself, which no other machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def can_listen(address: str, port: int = 0) -> bool:
    """Whether the address is this machine's and the port is free; port 0: any."""
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


def can_connect(address: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def address_towards(address: str) -> str:
    """This machine's address on the route to a "host:port". Nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]


def listeners(pids: Iterable[int]) -> list[Listener]:
    """What these processes listen on, except those that have ended or belong to another user."""
    sockets = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            open_ports = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            for ip, port in open_ports:  # an IPv4 address may be written as an IPv6 one
                address = ipaddress.ip_address(ip)
                mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
                sockets.add(Listener(str(mapped or address), port, process.name()))
        except psutil.Error:
            continue
    return sorted(sockets, key=lambda one: one.port)


PortRange = tuple[int, int]  # first and last


def firewall_rules(address: str, ports: PortRange) -> str:
    """nftables syntax, in a table of the node's own."""
    table = f"inet plaudit_{ports[0]}"
    drop = f"add rule {table} input tcp dport {ports[0]}-{ports[1]}"
    return (
        f"add table {table}; add chain {table} input {{ type filter hook input priority 0; }}; "
        f"{drop} ip daddr != {{ 127.0.0.1, {address} }} drop; {drop} ip6 daddr != ::1 drop"
    )


def firewall_command(address: str, ports: PortRange) -> str:
    """The rules as a shell command."""
    return f"sudo nft '{firewall_rules(address, ports)}'"


def close_others(address: str, ports: PortRange) -> None:
    """Drop packets to these ports on other addresses of this machine."""
    if ipaddress.ip_address(address).is_loopback:  # Ray listens there only
        return
    if shutil.which("nft") is None:
        error = "nft of the package nftables is not installed"
    else:
        open_others(ports)  # the rule of a node that was killed
        error = _nft(firewall_rules(address, ports))
    if error:
        raise ClusterError(f"the other addresses of this machine could not be closed: {error}; leave out --firewall")


def open_others(ports: PortRange) -> None:
    """Remove the rule, if there is one."""
    if shutil.which("nft") is not None:
        _nft(f"delete table inet plaudit_{ports[0]}")


def _nft(script: str) -> str:
    """Run it; returns the error, "" without one."""
    done = subprocess.run(["nft", script], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nft failed"])[0]

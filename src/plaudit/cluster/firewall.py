"""Closing the ports of a node on all addresses but its own.

Ray 2.60 listens on all addresses of a machine and has no setting for that. `plaudit cluster start --firewall` makes the
kernel drop what comes to these ports on another address, before anything listens, and `stop` removes the rule. Without
the flag no rule is written, and the command to do so is printed. No other port and no other rule is touched.
"""

import ipaddress
import shutil
import subprocess

from plaudit.errors import ClusterError

PortRange = tuple[int, int]  # first and last


def rules(address: str, ports: PortRange) -> str:
    """In the syntax of nftables, in a table of the node's own."""
    table = _table(ports)
    drop = f"add rule {table} input tcp dport {ports[0]}-{ports[1]}"
    return (
        f"add table {table}; add chain {table} input {{ type filter hook input priority 0; }}; "
        f"{drop} ip daddr != {{ 127.0.0.1, {address} }} drop; {drop} ip6 daddr != ::1 drop"
    )


def command(address: str, ports: PortRange) -> str:
    """To paste into a shell."""
    return f"sudo nft '{rules(address, ports)}'"


def close_others(address: str, ports: PortRange) -> None:
    """Drop what comes to these ports on another address."""
    if ipaddress.ip_address(address).is_loopback:  # Ray listens there only
        return
    if shutil.which("nft") is None:
        error = "nft of the package nftables is not installed"
    else:
        open_others(ports)  # the rule of a node that was killed
        error = _nft(rules(address, ports))
    if error:
        raise ClusterError(f"the other addresses of this machine could not be closed: {error}; leave out --firewall")


def open_others(ports: PortRange) -> None:
    """Remove the rule, if there is one."""
    if shutil.which("nft") is not None:
        _nft(f"delete table {_table(ports)}")


def _table(ports: PortRange) -> str:
    return f"inet plaudit_{ports[0]}"


def _nft(script: str) -> str:
    """Run it; returns the error, "" without one."""
    done = subprocess.run(["nft", script], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nft failed"])[0]

"""Closing the ports of a node on all addresses but the one it was given.

Ray 2.60 listens on all addresses of a machine and has no setting for that. `plaudit cluster start --firewall` has the
kernel drop what comes to these ports by another address, before anything listens, and `stop` takes that back. Without
the flag no rule is written, and the command to do so is printed. It touches no other port and no other rule.
"""

import ipaddress
import shutil
import subprocess

from plaudit.errors import ClusterError

Range = tuple[int, int]  # first and last port


def rules(address: str, ports: Range) -> str:
    """As nftables reads them."""
    drop = f"add rule inet {table(ports)} input tcp dport {ports[0]}-{ports[1]}"
    return (
        f"add table inet {table(ports)}; add chain inet {table(ports)} input {{ type filter hook input priority 0; }}; "
        f"{drop} ip daddr != {{ 127.0.0.1, {address} }} drop; {drop} ip6 daddr != ::1 drop"
    )


def table(ports: Range) -> str:
    """Of its own for each node."""
    return f"plaudit_{ports[0]}"


def line(address: str, ports: Range) -> str:
    """To paste."""
    return f"sudo nft '{rules(address, ports)}'"


def close_others(address: str, ports: Range) -> None:
    """Drop what comes to these ports by another address."""
    if ipaddress.ip_address(address).is_loopback:  # there Ray is kept to it by other means, see ray_private.py
        return
    if shutil.which("nft") is None:
        why = "nft of the package nftables is not installed"
    else:
        open_others(ports)  # what a node that was killed has left
        why = _nft(rules(address, ports))
    if why:
        raise ClusterError(f"the other addresses of this machine could not be closed: {why}; leave out --firewall")


def open_others(ports: Range) -> None:
    """Take it back; where there is nothing, nothing."""
    if shutil.which("nft") is not None:
        _nft(f"delete table inet {table(ports)}")


def _nft(words: str) -> str:
    """What went wrong; "" where nothing did."""
    done = subprocess.run(["nft", words], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nft failed"])[0]

"""Ports of a node are closed on the other addresses of its machine, when that is asked for and at no other time."""

from dataclasses import replace

import pytest

from command import plaudit
from plaudit.cluster.state import NodeInfo, close_others, firewall_command, open_others
from plaudit.errors import ClusterError

PORTS = (6379, 6899)


@pytest.fixture
def nft(tmp_path, monkeypatch):
    """A program of that name which writes down what it is told, and does as `answer` says."""

    def install(answer: str = "true"):
        program = tmp_path / "nft"
        program.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/told\n{answer}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "told"

    return install


def test_what_comes_by_another_address_is_dropped(nft):
    told = nft()
    close_others("10.0.0.1", PORTS)
    assert told.read_text().splitlines() == [
        "delete table inet plaudit_6379",  # of a node that was killed
        "add table inet plaudit_6379; add chain inet plaudit_6379 input { type filter hook input priority 0; }; add "
        "rule inet plaudit_6379 input tcp dport 6379-6899 ip daddr != { 127.0.0.1, 10.0.0.1 } drop; add rule inet "
        "plaudit_6379 input tcp dport 6379-6899 ip6 daddr != ::1 drop",
    ]


def test_it_is_taken_back(nft):
    told = nft()
    open_others(PORTS)
    assert told.read_text() == "delete table inet plaudit_6379\n"


def test_loopback_needs_none(nft):
    told = nft()
    close_others("127.0.0.1", PORTS)
    assert not told.exists()


def test_where_it_is_not_permitted_that_is_told(nft):
    nft("echo 'Operation not permitted (you must be root)' >&2; exit 1")
    with pytest.raises(ClusterError, match=r"could not be closed: Operation not permitted .* leave out --firewall"):
        close_others("10.0.0.1", PORTS)


def test_without_nftables(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="nft of the package nftables is not installed"):
        close_others("10.0.0.1", PORTS)
    assert firewall_command("10.0.0.1", PORTS).startswith("sudo nft 'add table inet plaudit_6379;")


@pytest.mark.parametrize(("address", "warned"), [("127.0.0.1", False), ("10.0.0.1", True)])
def test_unasked_nothing_is_closed_and_a_node_that_others_reach_is_warned_of(address, warned, tmp_path, monkeypatch):
    node = NodeInfo(
        pid=1,
        began=0,
        head=f"{address}:6379",
        address=address,
        roles=("training",),
        token=str(tmp_path / "token"),
        is_head=True,
        ports=PORTS,
        closed=False,
    )
    monkeypatch.setattr("plaudit.cluster.launch.start", lambda asked, **_: replace(node, closed=asked.firewall))
    said = plaudit("cluster", "start", "--role", "training", cwd=tmp_path)
    assert ("Ray listens on all addresses" in said) == warned

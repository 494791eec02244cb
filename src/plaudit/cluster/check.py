"""Whether the machines of a cluster can work together, measured by a small actor on each node that calls the others.

Every result is a row: a value, and what to do if it is bad. A warning does not fail the check.
"""

import hashlib
import itertools
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from rich.table import Column, Table
from rich.text import Text

from plaudit.cluster.connect import DEFAULT
from plaudit.cluster.launch import NodePorts
from plaudit.cluster.placement import Node, difference, own_versions
from plaudit.cluster.state import Listener, NodeInfo, can_connect, firewall_command, listeners, members, own_addresses
from plaudit.errors import ClusterError, format_count
from plaudit.report.verdict import Verdict
from plaudit.training.config import ROLES

NUM_CALLS = 50
PROBE_TIMEOUT_S = 30.0
MAX_LATENCY_S = 0.05
MIN_BYTES_PER_S = 10e6
MAX_CLOCK_OFFSET_S = 0.1


@dataclass(frozen=True)
class CheckResult:
    """One row of `plaudit cluster check`."""

    what: str
    where: str
    value: str
    problem: str | None = None
    harmless: bool = False  # a warning, not a failure


@dataclass(frozen=True)
class NodeReport:
    """What a probe finds on its node."""

    versions: dict[str, str]
    addresses: list[str]
    listening: list[Listener]  # all processes of the node
    auth: str  # "token", "disabled", ""
    token: str  # a hash of it, "" without one


@dataclass(frozen=True)
class ActorProcess:
    """The process of an actor."""

    address: str  # of its node
    kind: str  # its class
    method: str  # that it executes; "" while it is idle
    pid: int


class NodeProbe:
    """An actor on a node while it is checked."""

    def report(self) -> NodeReport:
        """What can be found out on the node itself."""
        path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
        secret = os.environ.get("RAY_AUTH_TOKEN") or (Path(path).read_text().strip() if path else "")
        return NodeReport(
            own_versions(),
            [*own_addresses(), *own_addresses(socket.AF_INET6)],
            listeners(members(os.getsid(0))),
            os.environ.get("RAY_AUTH_MODE", ""),
            hashlib.sha256(secret.encode()).hexdigest() if secret else "",
        )

    def actors(self, address: str) -> list[ActorProcess]:
        """The other actors of this node, by the titles of their processes: "ray::EnvActor.rollout". Titles of Ray's own
        processes are in capitals ("ray::IDLE") or end in "Agent"."""
        actors = []
        for pid in members(os.getsid(0)):
            with suppress(psutil.Error):
                title = psutil.Process(pid).cmdline()[0].split()[0]
                kind, _, method = title.removeprefix("ray::").partition(".")
                own = kind.isupper() or kind.endswith("Agent") or kind == NodeProbe.__name__
                if title.startswith("ray::") and not own:
                    actors.append(ActorProcess(address, kind, method, pid))
        return sorted(actors, key=lambda actor: (actor.kind, actor.pid))

    def now(self) -> float:
        """The time of the node's clock."""
        return time.time()

    def latency_to(self, other: Any) -> float:
        """Seconds, the median of small calls."""
        import ray

        ray.get(other.now.remote())  # the first one connects
        times = []
        for _ in range(NUM_CALLS):
            began = time.perf_counter()
            ray.get(other.now.remote())
            times.append(time.perf_counter() - began)
        return median(times)

    def make(self, megabytes: int) -> list[Any]:
        """An array on this node; in a list, so that passing it does not fetch it."""
        import ray

        return [ray.put(np.random.default_rng(0).integers(0, 256, megabytes * 1_000_000, dtype=np.uint8))]

    def fetch(self, array: list[Any]) -> float:
        """Bytes per second."""
        import ray

        began = time.perf_counter()
        fetched: Any = ray.get(array[0])
        return fetched.nbytes / (time.perf_counter() - began)

    def can_connect(self, address: str, port: int) -> bool:
        """Whether a port of another machine is open from here."""
        return can_connect(address, port)


def running_actors(nodes: Sequence[Node]) -> list[ActorProcess]:
    """The actors of every node that answers. Ray's own listing needs its dashboard, which we do not run."""
    probes = {node.address: _start_probe(node) for node in nodes}
    actors = []
    for address, probe in probes.items():
        with suppress(ClusterError):
            actors += _get(probe.actors.remote(address))
    return actors


def check(nodes: Sequence[Node], megabytes: int = 50) -> list[CheckResult]:
    """Check every node and measure the connections between them."""
    results: list[CheckResult] = []
    for role in ROLES:
        names = [_name(node) for node in nodes if role in node.roles]
        problem = f"no node has this role; start one: plaudit cluster start --role {role} --head ADDRESS"
        results.append(CheckResult("role", role, ", ".join(names) or "none", None if names else problem))
    probes = {node.id: _start_probe(node) for node in nodes}
    reports: dict[str, NodeReport] = {}
    for node in nodes:
        try:
            reports[node.id] = _get(probes[node.id].report.remote())
        except ClusterError as error:
            results.append(CheckResult("answer", _name(node), "none", str(error)))
    nodes = [node for node in nodes if node.id in reports]
    for node in nodes:
        results += [*_check_software(node, reports[node.id]), _check_clock(node, probes[node.id])]
    results.append(_check_tokens(nodes, reports))
    for one, other in itertools.permutations(nodes, 2):
        results += _check_connection(one, other, probes, megabytes)
    return results + [_check_open_ports(node, reports[node.id], nodes, probes) for node in nodes]


def _start_probe(node: Node) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(NodeProbe).options(num_cpus=0, scheduling_strategy=pinned).remote()


def _get(reference: Any) -> Any:
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        return ray.get(reference, timeout=PROBE_TIMEOUT_S)
    except GetTimeoutError:
        raise ClusterError(
            f"no answer within {PROBE_TIMEOUT_S:.0f} s; do firewalls let the ports of nodes through?"
        ) from None
    except RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise ClusterError(
            f"a small actor failed there: {last}; is plaudit installed for that node's python?"
        ) from None


def _check_software(node: Node, report: NodeReport) -> list[CheckResult]:
    mismatch = difference(own_versions(), report.versions)
    problem = mismatch and f"{mismatch}; install what this machine has and start it again"
    cpu_only = bool(node.gpu_ids) and report.versions["torch"].endswith("+cpu")
    no_gpu = "it has a GPU and a torch that cannot use it; install the build for its CUDA" if cpu_only else None
    return [
        CheckResult("versions", _name(node), _versions(report.versions), problem),
        CheckResult("GPUs", _name(node), str(len(node.gpu_ids)), no_gpu),
    ]


def _check_clock(node: Node, probe: Any) -> CheckResult:
    """By the fastest of several calls: its round trip bounds the error."""
    calls = []
    for _ in range(10):
        before = time.time()
        there = _get(probe.now.remote())
        after = time.time()
        calls.append((after - before, there - (before + after) / 2))
    round_trip, offset = min(calls)
    value = f"{offset * 1000:+.1f} ms, give or take {round_trip * 500:.1f}"
    is_off = abs(offset) - round_trip / 2 > MAX_CLOCK_OFFSET_S
    problem = "set it by NTP (timedatectl set-ntp true): labels carry times" if is_off else None
    return CheckResult("clock", _name(node), value, problem)


def _check_tokens(nodes: Sequence[Node], reports: Mapping[str, NodeReport]) -> CheckResult:
    if any(reports[node.id].auth != "token" for node in nodes):
        problem = "anyone who reaches its ports may run code on it; start the nodes without RAY_AUTH_MODE to have one"
        return CheckResult("token", "all nodes", "none", problem, harmless=True)
    others = [_name(node) for node in nodes if reports[node.id].token != reports[nodes[0].id].token]
    if others:
        problem = f"copy the file from {_name(nodes[0])} and start again"
        return CheckResult("token", ", ".join(others), "another", problem)
    return CheckResult("token", "all nodes", "the same")


def _check_connection(one: Node, other: Node, probes: Mapping[str, Any], megabytes: int) -> list[CheckResult]:
    where = f"{_roles(one)} -> {_roles(other)}"
    try:
        latency = _get(probes[one.id].latency_to.remote(probes[other.id]))
        array = _get(probes[one.id].make.remote(megabytes))
        bandwidth = _get(probes[other.id].fetch.remote(array))
    except ClusterError as error:
        return [CheckResult("call", where, "none", str(error))]
    slow_calls = "calls are slow; is one of them on Wi-Fi?" if latency > MAX_LATENCY_S else None
    slow_link = "episodes and weights will wait for this link" if bandwidth < MIN_BYTES_PER_S else None
    return [
        CheckResult("call", where, f"{latency * 1000:.1f} ms", slow_calls, harmless=True),
        CheckResult("bandwidth", where, f"{bandwidth / 1e6:.0f} MB/s", slow_link, harmless=True),
    ]


def _check_open_ports(node: Node, report: NodeReport, nodes: Sequence[Node], probes: Mapping[str, Any]) -> CheckResult:
    """Ray listens on all addresses of a machine unless it is 127.0.0.1; the other nodes try to reach them."""
    ports = [one.port for one in report.listening if one.everywhere]
    other_addresses = [address for address in report.addresses if address != node.address]
    other_probes = [probes[other.id] for other in nodes if other.id != node.id]
    if not ports:
        return CheckResult("listens on", _name(node), ", ".join(sorted({one.address for one in report.listening})))
    if not other_addresses:
        return CheckResult("listens on", _name(node), "all addresses, of which this is the only one")
    reached = [a for a in other_addresses if any(_get(p.can_connect.remote(a, ports[0])) for p in other_probes)]
    if other_probes and not reached:
        value = f"all addresses; {', '.join(other_addresses)} cannot be reached from other nodes"
        return CheckResult("listens on", _name(node), value)
    node_ports = NodePorts(min(ports) if node.head else min(ports) - 1)
    return CheckResult(
        "listens on",
        _name(node),
        "all addresses" + (f"; {', '.join(reached)} can be reached" if reached else ""),
        "Ray cannot listen on one address alone; the token guards it, and this closes the others until the next boot: "
        + firewall_command(node.address, (node_ports.first, node_ports.last)),
        harmless=True,
    )


def _name(node: Node) -> str:
    return f"{_roles(node)} {node.address}"


def _roles(node: Node) -> str:
    return "+".join(node.roles) or node.hostname


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def next_steps(node: NodeInfo) -> str:
    """After a start: what to type on the other machines."""
    if not node.is_head:
        return f"{', '.join(node.roles)} at {node.address}, of the cluster at {node.head}"
    lines = [f"head of a new cluster at {node.head}: {', '.join(node.roles)}"]
    missing = [role for role in ROLES if role not in node.roles]
    if missing:
        is_default = node.token.endswith(str(DEFAULT)[1:])
        path, flag = (str(DEFAULT), "") if is_default else ("plaudit.token", " --token plaudit.token")
        lines += ["on the other machines, once, the token (anyone who has it may run code on all of them):"]
        lines += [f"  mkdir -p ~/.ray && scp {node.address}:{node.token} {path} && chmod 600 {path}", "then:"]
        lines += [f"  plaudit cluster start --role {role} --head {node.head}{flag}" for role in missing]
    return "\n".join(lines)


def status_verdict(nodes: Sequence[Node], num_actors: int) -> Verdict:
    """Whether a run can start on these nodes."""
    lost = [node.hostname for node in nodes if not node.alive]
    alive = [node for node in nodes if node.alive]
    missing = [role for role in ROLES if not any(role in node.roles for node in alive)]
    why = f"{format_count(len(alive), 'node')} alive, {len(lost)} lost, {format_count(num_actors, 'actor')} at work."
    if missing:
        start = f"plaudit cluster start --role {missing[0]} --head HOST:PORT"
        return Verdict(f"Not usable yet: no node has the role {missing[0]}.", why, "Start one", start)
    check = "Check the connections between the nodes", "plaudit cluster check"
    if lost:
        return Verdict(f"Partly usable: {', '.join(lost)} does not answer.", why, *check, tone="open")
    return Verdict("Usable: all nodes answer.", why, *check, tone="good")


def nodes_table(nodes: Sequence[Node]) -> Table:
    """One row per node."""
    right = [Column(name, justify="right") for name in ("GPUs", "CPUs", "memory")]
    table = Table("node", "address", "roles", *right, "versions", "alive", box=None, pad_edge=False)
    for node in nodes:
        has = node.resources
        table.add_row(
            f"{node.hostname}{' (head)' if node.head else ''}",
            node.address,
            ", ".join(node.roles) or "-",
            f"{has.get('GPU', 0):.0f}",
            f"{has.get('CPU', 0):.0f}",
            f"{has.get('memory', 0) / 2**30:.1f} GiB",
            _versions(node.versions) or "unknown",
            "yes" if node.alive else "no",
        )
    return table


def actors_table(actors: Sequence[ActorProcess]) -> Table:
    """One row per actor."""
    table = Table("actor", "address", "executes", Column("pid", justify="right"), box=None, pad_edge=False)
    for actor in actors:
        table.add_row(actor.kind, actor.address, actor.method or "-", str(actor.pid))
    return table


def check_table(results: Sequence[CheckResult]) -> Table:
    """One row per result."""
    table = Table("", "what", "where", "found", box=None, pad_edge=False)
    for result in results:
        mark = Text("ok", "green") if result.problem is None else Text("!", "bold red")
        table.add_row(mark, result.what, result.where, result.value)
    return table

"""Whether the machines of a cluster can work together, measured: a small actor on each node looks around and calls the
others, as the parts of the loop will.

Every finding is a row: a figure, and a sentence with what to do if it is bad. A row that is worth knowing but breaks
nothing is harmless and does not fail the check.
"""

import hashlib
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from plaudit.cluster import firewall
from plaudit.cluster.connect import Joined
from plaudit.cluster.launch import Ports, members
from plaudit.cluster.network import Listener, addresses_here, addresses_v6, answers, listeners
from plaudit.cluster.placement import Node
from plaudit.cluster.versions import difference, own_versions
from plaudit.errors import ClusterError
from plaudit.training.cluster_config import ClusterConfig

CALLS = 50
ANSWER_S = 30.0  # to wait for a probe
SLOW_CALL_S = 0.05
SLOW_BYTES_S = 10e6
CLOCKS_APART_S = 0.1


@dataclass(frozen=True)
class Row:
    """One finding."""

    what: str
    where: str
    value: str
    problem: str | None = None
    harmless: bool = False


@dataclass(frozen=True)
class Facts:
    """What a node's probe sees around it."""

    versions: dict[str, str]
    addresses: list[str]
    listening: list[Listener]  # all processes of the node
    auth: str  # "token", "disabled", ""
    token: str  # a hash of it, "" without one


class Probe:
    """Lives on a node while it is checked."""

    def facts(self) -> Facts:
        return Facts(
            own_versions(),
            [*addresses_here(), *addresses_v6()],
            listeners(members(os.getsid(0))),
            os.environ.get("RAY_AUTH_MODE", ""),
            _hash_of_token(),
        )

    def now(self) -> float:
        return time.time()

    def latency_to(self, other: Any) -> float:
        """Seconds, the median of small calls."""
        import ray

        ray.get(other.now.remote())  # the first one connects
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            ray.get(other.now.remote())
            times.append(time.perf_counter() - began)
        return median(times)

    def make(self, megabytes: int) -> list[Any]:
        """An array that lies on this node; in a list, so that it is not fetched by being passed."""
        import ray

        return [ray.put(np.random.default_rng(0).integers(0, 256, megabytes * 1_000_000, dtype=np.uint8))]

    def fetch(self, array: list[Any]) -> float:
        """Bytes a second."""
        import ray

        began = time.perf_counter()
        found: Any = ray.get(array[0])
        return found.nbytes / (time.perf_counter() - began)

    def reaches(self, address: str, port: int) -> bool:
        return answers(address, port)


def check(cluster: Joined, megabytes: int = 50) -> list[Row]:
    """Look at every node and at the ways between them."""
    nodes = cluster.nodes()
    probes = {node.id: _probe_on(node) for node in nodes}
    rows = _roles(nodes)
    facts = {}
    for node in nodes:
        try:
            facts[node.id] = _ask(probes[node.id].facts.remote())
        except ClusterError as silent:
            rows.append(Row("answer", _name(node), "none", str(silent)))
    nodes = [node for node in nodes if node.id in facts]
    for node in nodes:
        rows += [*_software(node, facts[node.id]), _clock(node, probes[node.id])]
    rows += _tokens(nodes, facts)
    for one, other in itertools.permutations(nodes, 2):
        rows += _way(one, other, probes, megabytes)
    return rows + [_open_ports(node, facts[node.id], nodes, probes) for node in nodes]


def _probe_on(node: Node) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(Probe).options(num_cpus=0, scheduling_strategy=pinned).remote()


def _ask(reference: Any) -> Any:
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        return ray.get(reference, timeout=ANSWER_S)
    except GetTimeoutError:
        raise ClusterError(f"no answer within {ANSWER_S:.0f} s; do firewalls let the ports of nodes through?") from None
    except RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise ClusterError(
            f"a small actor failed there: {last}; is plaudit installed for that node's python?"
        ) from None


def _roles(nodes: list[Node]) -> list[Row]:
    rows = []
    for role, resource in ClusterConfig().resources.model_dump().items():
        having = [_name(node) for node in nodes if resource in node.resources]
        lacking = f"no node has this role; start one: plaudit cluster start --role {role} --head ADDRESS"
        rows.append(Row("role", role, ", ".join(having) or "none", None if having else lacking))
    return rows


def _software(node: Node, facts: Facts) -> list[Row]:
    apart = difference(own_versions(), facts.versions)
    told = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    row = Row("versions", _name(node), told, apart and f"{apart}; install what this machine has and start it again")
    blind = len(node.gpu_ids) > 0 and facts.versions["torch"].endswith("+cpu")
    gpus = Row(
        "GPUs",
        _name(node),
        str(len(node.gpu_ids)),
        "it has a GPU and a torch that cannot use it; install the build for its CUDA" if blind else None,
    )
    return [row, gpus]


def _clock(node: Node, probe: Any) -> Row:
    """The quickest of some calls says most: what its way took is the doubt."""
    calls = []
    for _ in range(10):
        before = time.time()
        there = _ask(probe.now.remote())
        after = time.time()
        calls.append((after - before, there - (before + after) / 2))
    doubt, ahead = min(calls)
    value = f"{ahead * 1000:+.1f} ms, give or take {doubt * 500:.1f}"
    apart = abs(ahead) - doubt / 2 > CLOCKS_APART_S
    return Row(
        "clock", _name(node), value, "set it by NTP (timedatectl set-ntp true): labels carry times" if apart else None
    )


def _tokens(nodes: list[Node], facts: dict[str, Facts]) -> list[Row]:
    if any(facts[node.id].auth != "token" for node in nodes):
        words = "whoever reaches its ports may run code on it; start the nodes without RAY_AUTH_MODE to have one made"
        return [Row("token", "all nodes", "none", words, harmless=True)]
    first = facts[nodes[0].id].token
    other = [_name(node) for node in nodes if facts[node.id].token != first]
    if other:
        return [Row("token", ", ".join(other), "another", f"copy the file from {_name(nodes[0])} and start again")]
    return [Row("token", "all nodes", "the same")]


def _way(one: Node, other: Node, probes: dict[str, Any], megabytes: int) -> list[Row]:
    where = f"{_roles_of(one)} -> {_roles_of(other)}"
    try:
        seconds = _ask(probes[one.id].latency_to.remote(probes[other.id]))
        array = _ask(probes[one.id].make.remote(megabytes))
        rate = _ask(probes[other.id].fetch.remote(array))
    except ClusterError as silent:
        return [Row("call", where, "none", str(silent))]
    late = "calls are slow; is one of them on Wi-Fi?" if seconds > SLOW_CALL_S else None
    thin = "episodes and weights will wait for this link" if rate < SLOW_BYTES_S else None
    return [
        Row("call", where, f"{seconds * 1000:.1f} ms", late, harmless=True),
        Row("bandwidth", where, f"{rate / 1e6:.0f} MB/s", thin, harmless=True),
    ]


def _open_ports(node: Node, facts: Facts, nodes: list[Node], probes: dict[str, Any]) -> Row:
    """Ray listens on all addresses of a machine unless it is 127.0.0.1; whether others get through is tried."""
    wide = [one for one in facts.listening if one.everywhere]
    if not wide:
        return Row("listens on", _name(node), ", ".join(sorted({one.address for one in facts.listening})))
    beyond = [address for address in facts.addresses if address != node.address]
    others = [probes[other.id] for other in nodes if other.id != node.id]
    reached = [a for a in beyond if any(_ask(probe.reaches.remote(a, wide[0].port)) for probe in others)]
    if not beyond:
        return Row("listens on", _name(node), "all addresses, of which this is the only one")
    if others and not reached:
        return Row("listens on", _name(node), f"all addresses; {', '.join(beyond)} cannot be reached from other nodes")
    ports = Ports(min(one.port for one in wide) - 1 if not node.head else min(one.port for one in wide))
    return Row(
        "listens on",
        _name(node),
        "all addresses" + (f"; {', '.join(reached)} can be reached" if reached else ""),
        "Ray cannot listen on one address alone; the token guards it, and this closes the others until the next boot: "
        + firewall.line(node.address, (ports.first, ports.last)),
        harmless=True,
    )


def _hash_of_token() -> str:
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    secret = os.environ.get("RAY_AUTH_TOKEN") or (Path(path).read_text().strip() if path else "")
    return hashlib.sha256(secret.encode()).hexdigest() if secret else ""


def _name(node: Node) -> str:
    return f"{_roles_of(node)} {node.address}"


def _roles_of(node: Node) -> str:
    found = [role for role, resource in ClusterConfig().resources.model_dump().items() if resource in node.resources]
    return "+".join(found) or node.hostname

"""A cluster in tables for the terminal."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from plaudit.cluster.check import ActorProcess, CheckResult
from plaudit.cluster.placement import Node
from plaudit.cluster.state import NodeInfo
from plaudit.cluster.token import DEFAULT
from plaudit.training.settings import ROLES, ClusterConfig


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


def nodes_table(nodes: Sequence[Node]) -> Table:
    """One row per node."""
    right = [Column(name, justify="right") for name in ("GPUs", "CPUs", "memory")]
    table = Table("node", "address", "roles", *right, "versions", "alive", box=None, pad_edge=False)
    for node in nodes:
        has = node.resources
        roles = [role for role, resource in ClusterConfig().resources.model_dump().items() if resource in has]
        table.add_row(
            f"{node.hostname}{' (head)' if node.head else ''}",
            node.address,
            ", ".join(roles) or "-",
            f"{has.get('GPU', 0):.0f}",
            f"{has.get('CPU', 0):.0f}",
            f"{has.get('memory', 0) / 2**30:.1f} GiB",
            ", ".join(f"{name} {version}" for name, version in node.versions.items()) or "unknown",
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

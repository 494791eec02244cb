"""What a person sees of a cluster, for the terminal."""

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from plaudit.cluster.check import Row
from plaudit.cluster.placement import Node
from plaudit.cluster.ray_private import Actor
from plaudit.cluster.state import NodeState
from plaudit.cluster.token import DEFAULT
from plaudit.training.cluster_config import ROLES, ClusterConfig

MARKS = {True: ("ok", "green"), False: ("!", "bold red")}


def next_steps(state: NodeState) -> str:
    """After a start: what to type on the other machines."""
    if not state.is_head:
        return f"{', '.join(state.roles)} at {state.address}, of the cluster at {state.head}"
    lines = [f"head of a new cluster at {state.head}: {', '.join(state.roles)}"]
    missing = [role for role in ROLES if role not in state.roles]
    if missing:
        token = state.token
        there, flag = (
            (str(DEFAULT), "") if token.endswith(str(DEFAULT)[1:]) else ("plaudit.token", " --token plaudit.token")
        )
        lines += ["on the other machines, once, the token (whoever has it may run code on all of them):"]
        lines += [f"  mkdir -p ~/.ray && scp {state.address}:{token} {there} && chmod 600 {there}", "then:"]
        lines += [f"  plaudit cluster start --role {role} --head {state.head}{flag}" for role in missing]
    return "\n".join(lines)


def nodes_table(nodes: Sequence[Node]) -> Table:
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


def actors_table(actors: Sequence[Actor], nodes: Sequence[Node]) -> Table:
    where = {node.id: node for node in nodes}
    right = [Column(name, justify="right") for name in ("pid", "restarts")]
    table = Table("actor", "name", "address", "state", *right, box=None, pad_edge=False)
    for actor in actors:
        address = where[actor.node_id].address if actor.node_id in where else "-"
        table.add_row(actor.kind, actor.name, address, actor.state.lower(), str(actor.pid), str(actor.restarts))
    return table


def check_table(rows: Sequence[Row]) -> Table:
    table = Table("", "what", "where", "found", box=None, pad_edge=False)
    for row in rows:
        mark, style = MARKS[row.problem is None]
        table.add_row(Text(mark, style), row.what, row.where, row.value)
    return table

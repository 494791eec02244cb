"""`plaudit cluster`: start, stop and check the nodes of a Ray cluster."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from plaudit.cli.common import err, out, starting, tell
from plaudit.cli.options import Count, Option, Positive, command, group
from plaudit.errors import format_count

cluster = group("cluster", "Start, stop and check a Ray cluster of several machines.")

Folder = Annotated[
    Path | None, Option("--dir", help="The folder of this machine's node; /tmp/plaudit-UID when not given.")
]
Address = Annotated[str, Option(metavar="HOST:PORT", help="The head; 'auto' is the cluster of this machine.")]


@command(cluster, "start")
def cluster_start(
    *,
    role: list[str],  # training, inference or labeling; repeatable.
    # Join this head. Without it, this node is the head.
    head: Annotated[str | None, Option(metavar="ADDRESS")] = None,
    address: Annotated[str | None, Option(metavar="OWN_IP")] = None,  # The address of this machine to use.
    port: Annotated[int, Option(min=1024, max=65000)] = 6379,  # The first port of this node.
    gpus: Count | None = None,  # Number of GPUs to use; all when not given.
    token: Annotated[Path | None, Option(metavar="FILE")] = None,  # The token file; ~/.ray/auth_token when not given.
    firewall: bool = False,  # As root: let nftables close its ports on this machine's other addresses.
    folder: Folder = None,
) -> None:
    """Start a node on this machine, in the background. The node with --role training is the head."""
    with starting():  # imports torch
        from plaudit.cluster.check import next_steps
        from plaudit.cluster.launch import NodeOptions, start
        from plaudit.cluster.state import default_folder, firewall_command
    from plaudit.errors import ClusterError, did_you_mean
    from plaudit.judges.human.app import has_display
    from plaudit.report.verdict import Verdict, quoted, sentence_case
    from plaudit.training.config import ROLES, Role

    unknown = [name for name in role if name not in ROLES]
    if unknown:
        raise ClusterError(f"unknown role '{unknown[0]}'; {did_you_mean(unknown[0], ROLES)}")
    if "labeling" in role and not has_display():
        tell(
            "warning",
            "DISPLAY is not set, so no labeling window can be opened on this node; set it (export DISPLAY=:0) and "
            "start the node again",
        )
    roles: tuple[Role, ...] = tuple(name for name in ROLES if name in set[str](role))
    options = NodeOptions(roles, folder or default_folder(), head, address, port, gpus, token, firewall)
    node = start(options, on_progress=err.print)
    state, *steps = next_steps(node).splitlines()
    check = "plaudit cluster check" + (f" --dir {quoted(folder)}" if folder else "")
    following = ("Start the others as below", "") if steps else ("Check the cluster", check)
    started = Verdict("Usable: a node runs on this machine.", sentence_case(state), *following, tone="good")
    out.print(started, *steps, sep="\n")
    if not node.closed and not ip_address(node.address).is_loopback:  # with a loopback address Ray listens there only
        close = firewall_command(node.address, node.ports)
        tell("warning", f"Ray listens on all addresses of this machine. To close the others, run: {close}")


@command(cluster, "stop")
def cluster_stop(*, folder: Folder = None) -> None:
    """Stop the node of this machine. Other Ray processes are left alone."""
    from plaudit.cluster.launch import stop
    from plaudit.cluster.state import default_folder
    from plaudit.report.verdict import Verdict

    node = stop(folder or default_folder())
    following = "Start one again", "plaudit cluster start --role training"
    why = "There was none." if node is None else f"Stopped: {', '.join(node.roles)}, of the cluster at {node.head}."
    out.print(Verdict("No node runs on this machine.", why, *following, tone="good"))


@command(cluster, "status")
def cluster_status(*, address: Address = "auto", folder: Folder = None) -> None:
    """Show the nodes and what runs on them."""
    from plaudit.cluster.check import actors_table, nodes_table, running_actors, status_verdict
    from plaudit.cluster.connect import cluster_nodes, join_cluster

    with join_cluster(address, folder=folder):
        nodes = cluster_nodes()
        running = running_actors([node for node in nodes if node.alive])
    out.print(status_verdict(nodes, len(running)), nodes_table(nodes), sep="\n")
    if running:
        out.print("", actors_table(running), sep="\n")


@command(cluster, "check")
def cluster_check(
    *,
    address: Address = "auto",
    folder: Folder = None,
    megabytes: Positive = 50,  # To send between each two nodes.
) -> None:
    """Check nodes and measure the connections between them; returns 1 if anything is wrong."""
    from plaudit.cluster.check import check, check_table
    from plaudit.cluster.connect import cluster_nodes, join_cluster
    from plaudit.report.verdict import Verdict

    with starting("checking the cluster"), join_cluster(address, folder=folder):
        results = check([node for node in cluster_nodes() if node.alive], megabytes)
    failed = [result for result in results if result.problem and not result.harmless]
    why = f"{format_count(len(results), 'check')}, {format_count(len(failed), 'problem')}."
    if failed:
        out.print(Verdict("Not usable yet: a check failed.", why, "Solve the problems below, then check again"))
    else:
        train = "plaudit online --config CONFIG --ray auto"
        out.print(Verdict("Usable: all nodes answer.", why, "Start a run on it", train, "good"))
    out.print(check_table(results))
    for result in results:
        if result.problem:
            tell("warning" if result.harmless else "problem", f"{result.where}: {result.problem}")
    if failed:
        raise typer.Exit(1)

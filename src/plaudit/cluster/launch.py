"""Starting and stopping the node of this machine.

`ray start --block` runs detached and is the parent of all processes of the node: ending it ends them. If it is killed,
the kernel ends most of them, and the next `stop` or `start` ends the others: Ray's agents live on for a minute and
keep their ports. All ports are fixed and counted from one, so that a firewall can name them. Dashboard,
client server, autoscaler, log monitor and usage statistics are off.

Health checks are wider than Ray's defaults. A link that is down for 20 s costs nothing, and a lost machine is noticed
within a minute. Connections live as long as that. With Ray's defaults, one side gives up on a silent link after 20 s
and the other only after seven minutes. A call in progress then hung for minutes after the link was back.

Ray's limits on the start of its own processes are raised for busy machines. If Ray still gives up, it is started again
until `START_TIMEOUT_S` is over. The state of a node is written before Ray is up, so that `stop` ends whatever an
interrupted `start` left behind.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plaudit.cluster import state
from plaudit.cluster.connect import (
    JOIN_TIMEOUTS,
    LOOPBACK,
    RAY_SETTINGS,
    TIMED_OUT,
    check_private,
    check_reachable,
    make_token,
    refusal,
    token_environment,
    token_file,
    with_port,
)
from plaudit.cluster.placement import RESOURCES, need_ray, own_labels
from plaudit.cluster.state import NodeInfo
from plaudit.data.disk import defer_signals
from plaudit.errors import ClusterError
from plaudit.training.config import Role

START_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 15.0
PROGRESS_S = 5.0  # between two messages while a node starts
# `ray start` by this interpreter; the `ray` script names an interpreter by its path, which may have moved.
RAY_MAIN = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
START_HOOK = "plaudit.cluster.launch.on_ray_start"  # `ray start` calls it by the name in RAY_START_HOOK
ORPHAN_STOP_TIMEOUT_S = 2.0  # of a node whose head is gone: Ray tries in vain to tell it
SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 3000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 10,
    "grpc_keepalive_timeout_ms": 60_000,
    "grpc_client_keepalive_time_ms": 10_000,
    "grpc_client_keepalive_timeout_ms": 60_000,
    "agent_register_timeout_ms": 120_000,
    "worker_register_timeout_seconds": 180,
}


@dataclass(frozen=True)
class NodePorts:
    """The ports of a node; the first is the head's."""

    first: int = 6379

    @property
    def last(self) -> int:
        """Of those that actors and drivers get."""
        return self.first + 520

    @property
    def options(self) -> dict[str, int]:
        """Of `ray start`, without those of actors; the last three are used only where `ray[default]` is installed."""
        names = ("node-manager", "object-manager", "runtime-env-agent")
        names += ("dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export")
        return {f"{name}-port": port for port, name in enumerate(names, self.first + 1)}


@dataclass(frozen=True)
class NodeOptions:
    """Options of `start`."""

    roles: tuple[Role, ...]
    folder: Path
    head: str | None = None  # None: this node is the head
    address: str | None = None  # of this machine; None: the one on the route to the head, or the only one
    port: int = 6379
    gpus: int | None = None  # None: all
    token: Path | None = None
    firewall: bool = False  # close the ports on the other addresses of this machine


def on_ray_start(ray_params: Any, head: bool) -> None:
    """`ray start` calls this hook with its parameters before it starts anything."""
    ray_params.ray_client_server_port = None  # no server for drivers outside of the cluster; there is no flag for it


def start(options: NodeOptions, on_progress: Callable[[str], None] = lambda _: None) -> NodeInfo:
    """Start the node of this machine and wait until it has joined. If it is interrupted, nothing keeps running."""
    need_ray()
    _check(options)
    stop(options.folder)  # one that was killed may have left processes behind, which use its ports
    is_head, ports, token = options.head is None, NodePorts(options.port), token_file(options.token)
    if options.head is not None:
        check_reachable(with_port(options.head))
    address = _own_address(options)
    head = f"{address}:{ports.first}" if options.head is None else with_port(options.head)
    needed = [ports.first] * is_head + list(ports.options.values())
    taken = [port for port in needed if not state.can_listen(address, port)]
    if taken:
        raise ClusterError(
            f"port {taken[0]} is in use on this machine; a node uses {ports.first} to {ports.last}; choose "
            "another first port with --port"
        )
    _prepare_token(token, None if is_head else head)
    if state.is_loopback(address) and (not is_head or len(options.roles) < len(RESOURCES)):
        raise ClusterError(  # Ray joins no cluster at 127.0.0.1
            f"a cluster at {address} has one node with all roles (--role training --role inference --role labeling); "
            "for several nodes, start the head with another --address"
        )
    state.make_folder(options.folder)
    if options.firewall:
        state.close_others(address, (ports.first, ports.last))
    log, deadline = options.folder / "start.log", time.monotonic() + START_TIMEOUT_S
    environment = _environment(token, address, joins=not is_head)
    command = _command(options, address, head, ports)
    on_progress(f"starting Ray at {address}; its output is in {log}")
    try:
        while True:
            with log.open("wb") as file, defer_signals():
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
                )
                node = NodeInfo(
                    pid=process.pid,
                    began=state.began(process.pid) or 0,
                    head=head,
                    address=address,
                    roles=options.roles,
                    token=str(token),
                    is_head=is_head,
                    ports=(ports.first, ports.last),
                    closed=options.firewall,
                    boot=state.boot(),
                )
                state.write_state(options.folder, node)
            if _wait_until_up(process, log, deadline, on_progress):
                return node
            text = log.read_text()
            if "uthenticat" in text or "ersion mismatch" in text:
                raise ClusterError(refusal(head, token, text))
            if TIMED_OUT not in text:
                last = ([line.strip() for line in text.splitlines() if line.strip()] or ["it printed nothing"])[-1]
                raise ClusterError(f"Ray did not start: {last}; its output is in {log}")
            on_progress("Ray's processes were too slow to start; starting it again")
    except BaseException:
        on_progress("stopping what was started")
        stop(options.folder)
        raise


def stop(folder: Path) -> NodeInfo | None:
    """Stop the node of this folder and nothing else; returns None if there is none."""
    node = state.read_state(folder)
    if node is None:
        return None
    if node.alive:
        host, _, port = node.head.rpartition(":")
        patience_s = STOP_TIMEOUT_S if state.can_connect(host, int(port)) else ORPHAN_STOP_TIMEOUT_S
        state.signal_process(node.pid, node.began, signal.SIGTERM)
        _wait_until_gone(node.pid, patience_s)
    for pid in state.leftovers(folder, node):
        state.signal_process(pid, state.began(pid) or 0, signal.SIGKILL)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while state.leftovers(folder, node) and time.monotonic() < deadline:
        time.sleep(0.1)
    if node.closed:
        state.open_others(node.ports)
    (folder / "node.json").unlink()
    return node


def _check(options: NodeOptions) -> None:
    state.check_length(options.folder)
    node = state.running(options.folder)
    if node is not None:
        raise ClusterError(
            f"a node runs here already ({', '.join(node.roles)}, cluster at {node.head}); run: plaudit cluster stop"
        )
    if options.head is None and "training" not in options.roles:
        raise ClusterError(
            f"a machine for {' and '.join(options.roles)} needs a head; name it: --head ADDRESS (the machine with "
            "--role training is the head)"
        )


def _own_address(options: NodeOptions) -> str:
    addresses = state.own_addresses()
    if options.address is not None:
        if options.address in ("", "0.0.0.0") or not state.can_listen(options.address):
            raise ClusterError(
                f"'{options.address}' is not an address of this machine; it has: {', '.join(addresses) or 'none'}"
            )
        return options.address
    if options.head is not None:
        return state.address_towards(with_port(options.head))
    if len(options.roles) == len(RESOURCES):
        return "127.0.0.1"  # with all roles here no other machine connects
    if len(addresses) != 1:
        raise ClusterError(
            "name the address at which other machines reach this one, with --address; "
            f"it has: {', '.join(addresses) or 'only 127.0.0.1'}"
        )
    return addresses[0]


def _prepare_token(token: Path, head: str | None) -> None:
    """Make or check the token file, unless the environment has a token. head: to join; None for a new cluster"""
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    if head is None:
        make_token(token)
    elif not token.is_file():
        raise ClusterError(
            f"{token} is missing; copy this file from the head at {head}; it is the same on all machines"
        )
    check_private(token)


def _environment(token: Path, address: str, joins: bool) -> dict[str, str]:
    settings = {
        "RAY_START_HOOK": START_HOOK,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # otherwise `stop` waits half a minute for actors
        "PYTHONUNBUFFERED": "1",
    }
    if state.is_loopback(address):
        settings |= LOOPBACK
    if joins:
        settings["RAY_NUM_REDIS_GET_RETRIES"] = JOIN_TIMEOUTS["RAY_NUM_REDIS_GET_RETRIES"]
    # For the time until the node receives the head's settings.
    system_config = {f"RAY_{name}": str(value) for name, value in SYSTEM_CONFIG.items()}
    return {**os.environ, **RAY_SETTINGS, **system_config, **settings, **token_environment(token)}


def _command(options: NodeOptions, address: str, head: str, ports: NodePorts) -> list[str]:
    is_head = options.head is None
    args = {
        "node-ip-address": address,
        "node-name": address,
        "resources": json.dumps({f"{role}_pc": RESOURCES[role] for role in options.roles}),
        "labels": ",".join(f"{name}={value}" for name, value in own_labels().items()),
        "temp-dir": str(options.folder.absolute() / state.RAY),
        **ports.options,
        "min-worker-port": ports.first + 21,
        "max-worker-port": ports.last,
        "include-log-monitor": "false",
    }
    if is_head:
        args |= {"port": ports.first, "include-dashboard": "false", "system-config": json.dumps(SYSTEM_CONFIG)}
    else:
        args |= {"address": head}
    if options.gpus is not None:
        args |= {"num-gpus": options.gpus}
    flags = ["--block", "--disable-usage-stats", *(["--head", "--no-monitor"] if is_head else [])]
    return [sys.executable, "-c", RAY_MAIN, "start", *flags, *(f"--{name}={value}" for name, value in args.items())]


def _wait_until_up(
    process: subprocess.Popen[bytes], log: Path, deadline: float, on_progress: Callable[[str], None]
) -> bool:
    """Wait until Ray is up; returns False if it ended instead."""
    began_at = shown_at = time.monotonic()
    while "Ray runtime started" not in log.read_text():
        now = time.monotonic()
        if process.poll() is not None:
            _wait_until_gone(process.pid, STOP_TIMEOUT_S)
            return False
        if now > deadline:
            raise ClusterError(f"the node was not up after {START_TIMEOUT_S:.0f} s; its output is in {log}")
        if now - shown_at >= PROGRESS_S:
            shown_at = now
            on_progress(f"Ray is starting: {now - began_at:.0f} s (it has {deadline - now:.0f} s left)")
        time.sleep(0.1)
    return True


def _wait_until_gone(session: int, patience_s: float) -> None:
    """Wait for the processes of a session to end, and kill those that take too long."""
    deadline = time.monotonic() + patience_s
    while left := state.members(session):
        if time.monotonic() > deadline:
            for pid in left:
                since = state.began(pid)
                if since is not None and state.session_of(pid) == session:
                    state.signal_process(pid, since, signal.SIGKILL)
        time.sleep(0.1)

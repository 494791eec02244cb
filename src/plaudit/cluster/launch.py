"""Starting and stopping the node of this machine.

`ray start --block` runs detached as the parent of everything that belongs to the node: ending it ends them, by the
kernel's own doing should it be killed. All ports are fixed, counted from one, so that a firewall can name them. What we
do not use is off: dashboard, client server, autoscaler, log monitor, usage statistics.

The health checks are wider than Ray's. A link that is gone makes them fail at once or by timeout, whatever the network
says; ten of them are 30 s in the first case and 60 s in the second. So a cut of 20 s costs nothing, and a machine that
is really gone is noticed within a minute. Ray's own five are 15 s and 65 s.

Connections live as long. By Ray's settings whoever has an answer to send gives up on a silent link after 20 s, and
whoever waits for it, having nothing to send, finds out seven minutes later: a call that was under way when a link broke
for 20 s hung for minutes after it was back. Now the one holds on for a minute and the other asks every ten seconds.

A busy machine takes its time: Ray's limits on the start of its own processes are raised (also the one in
ray_private.py), and `START_S` is the one that counts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from plaudit.cluster.connect import IMPATIENT, QUIET, check_reachable, refusal, with_port
from plaudit.cluster.firewall import close_others, open_others
from plaudit.cluster.network import addresses_here, is_free, is_ours, way_to
from plaudit.cluster.ray_private import RAY_MAIN, START_HOOK
from plaudit.cluster.state import (
    RAY,
    NodeState,
    began,
    boot,
    check_length,
    make_folder,
    read_state,
    running,
    session_of,
    signal_process,
    write_state,
)
from plaudit.cluster.token import check_private, make_token, token_environment, token_file
from plaudit.cluster.versions import need_ray, own_labels
from plaudit.errors import ClusterError
from plaudit.training.cluster_config import Role

AMOUNT: dict[Role, int] = {"training": 3, "inference": 1, "labeling": 1}  # trainer, replay and state live on the first
START_S, STOP_S = 300.0, 15.0  # to wait for
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
class Ports:
    """Of a node, counted from `first`."""

    first: int = 6379

    @property
    def head(self) -> int:
        return self.first

    @property
    def node_manager(self) -> int:
        return self.first + 1

    @property
    def object_manager(self) -> int:
        return self.first + 2

    @property
    def agents(self) -> tuple[int, int, int, int]:
        """Of runtime environments; and, where `ray[default]` is installed, of the dashboard (two) and of metrics."""
        return self.first + 3, self.first + 4, self.first + 5, self.first + 6

    @property
    def workers(self) -> tuple[int, int]:
        return self.first + 21, self.first + 520

    @property
    def last(self) -> int:
        return self.workers[1]


@dataclass(frozen=True)
class Start:
    """What to start.

    head: None to be the head
    address: of this machine; None to take the one that leads to the head, or the only one there is
    gpus: None to count them
    firewall: close its ports on the other addresses of this machine
    """

    roles: tuple[Role, ...]
    folder: Path
    head: str | None = None
    address: str | None = None
    port: int = 6379
    gpus: int | None = None
    token: Path | None = None
    firewall: bool = False


def start(asked: Start) -> NodeState:
    """Start the node of this machine and wait until it has joined."""
    need_ray()
    _check(asked)
    ports, token = Ports(asked.port), token_file(asked.token)
    address = _own_address(asked)
    head = with_port(asked.head) if asked.head else f"{address}:{ports.head}"
    if asked.head:
        check_reachable(head)
    _check_ports(address, ports, is_head=asked.head is None)
    _prepare_token(token, head if asked.head else None)
    make_folder(asked.folder)
    if asked.firewall:
        close_others(address, (ports.first, ports.last))
    log = asked.folder / "start.log"
    environment = _environment(token, joins=asked.head is not None)
    process = _spawn(_command(asked, address, head, ports), log, environment)
    _wait_until_up(process, log, head, token)
    state = NodeState(
        pid=process.pid,
        began=began(process.pid) or 0,
        head=head,
        address=address,
        roles=asked.roles,
        token=str(token),
        is_head=asked.head is None,
        ports=(ports.first, ports.last),
        closed=asked.firewall,
        boot=boot(),
    )
    write_state(asked.folder, state)
    return state


def stop(folder: Path) -> NodeState | None:
    """Stop what `start` started in this folder, and nothing else; None if nothing is there."""
    state = read_state(folder)
    if state is None:
        return None
    if state.alive:
        state.end()
        _wait_until_gone(state.pid)
    if state.closed:
        open_others(state.ports)
    (folder / "node.json").unlink()
    return state


def members(session: int) -> list[int]:
    """The processes of a node: all in the session that its first one began."""
    return [pid for pid in psutil.pids() if session_of(pid) == session]


def _check(asked: Start) -> None:
    check_length(asked.folder)
    here = running(asked.folder)
    if here is not None:
        raise ClusterError(
            f"a node runs here already ({', '.join(here.roles)}, of the cluster at {here.head}); stop it first: "
            "plaudit cluster stop"
        )
    if asked.head is None and "training" not in asked.roles:
        raise ClusterError(
            f"a machine for {' and '.join(asked.roles)} joins a cluster; say where its head is: --head ADDRESS "
            "(the machine with --role training is the head)"
        )


def _own_address(asked: Start) -> str:
    if asked.address is not None:
        if not is_ours(asked.address):
            raise ClusterError(
                f"{asked.address} is not an address of this machine; it has: {', '.join(addresses_here()) or 'none'}"
            )
        return asked.address
    if asked.head is not None:
        return way_to(with_port(asked.head))
    if len(asked.roles) == len(AMOUNT):
        return "127.0.0.1"  # all roles here: nobody else has to come in
    known = addresses_here()
    if len(known) != 1:
        raise ClusterError(
            "say at which address the other machines reach this one, with --address; "
            f"this machine has: {', '.join(known) or 'none but 127.0.0.1'}"
        )
    return known[0]


def _check_ports(address: str, ports: Ports, is_head: bool) -> None:
    needed = [ports.node_manager, ports.object_manager, *ports.agents] + ([ports.head] if is_head else [])
    taken = [port for port in sorted(needed) if not is_free(address, port)]
    if taken:
        raise ClusterError(
            f"port {taken[0]} is taken on this machine; a node uses {ports.first} to {ports.last}, "
            "begin elsewhere with --port"
        )


def _prepare_token(token: Path, head: str | None) -> None:
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ:
        return
    if head is None:
        make_token(token)
    elif not token.is_file():
        raise ClusterError(
            f"{token} is missing; copy the file of that name from the head at {head}, it is the same for all"
        )
    check_private(token)


def _environment(token: Path, joins: bool) -> dict[str, str]:
    ours = {
        "RAY_START_HOOK": START_HOOK,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else `stop` waits half a minute for actors that never end
        "PYTHONUNBUFFERED": "1",
    }
    joining = {"RAY_NUM_REDIS_GET_RETRIES": IMPATIENT["RAY_NUM_REDIS_GET_RETRIES"]} if joins else {}
    early = {f"RAY_{name}": str(value) for name, value in SYSTEM_CONFIG.items()}  # until the head has told a node
    return {**os.environ, **QUIET, **early, **ours, **joining, **token_environment(token)}


def _command(asked: Start, address: str, head: str, ports: Ports) -> list[str]:
    runtime, listen, grpc, metrics = ports.agents
    options = {
        "node-ip-address": address,
        "node-name": address,
        "resources": json.dumps({f"{role}_pc": AMOUNT[role] for role in asked.roles}),
        "labels": ",".join(f"{name}={value}" for name, value in own_labels().items()),
        "temp-dir": str(asked.folder.absolute() / RAY),
        "node-manager-port": ports.node_manager,
        "object-manager-port": ports.object_manager,
        "runtime-env-agent-port": runtime,
        "dashboard-agent-listen-port": listen,
        "dashboard-agent-grpc-port": grpc,
        "metrics-export-port": metrics,
        "min-worker-port": ports.workers[0],
        "max-worker-port": ports.workers[1],
        "include-log-monitor": "false",
    }
    if asked.head is None:
        options |= {"port": ports.head, "include-dashboard": "false", "system-config": json.dumps(SYSTEM_CONFIG)}
    else:
        options |= {"address": head}
    if asked.gpus is not None:
        options |= {"num-gpus": asked.gpus}
    flags = ["--block", "--disable-usage-stats", *(["--head", "--no-monitor"] if asked.head is None else [])]
    return [sys.executable, "-c", RAY_MAIN, "start", *flags, *(f"--{name}={value}" for name, value in options.items())]


def _spawn(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )


def _wait_until_up(process: subprocess.Popen[bytes], log: Path, head: str, token: Path) -> None:
    until = time.monotonic() + START_S
    while "Ray runtime started" not in log.read_text():
        if process.poll() is not None:
            raise ClusterError(_why_not(log, head, token))
        if time.monotonic() > until:
            process.terminate()
            _wait_until_gone(process.pid)
            raise ClusterError(f"the node did not come up within {START_S:.0f} s; what it said is in {log}")
        time.sleep(0.1)


def _why_not(log: Path, head: str, token: Path) -> str:
    words = log.read_text()
    if any(sign in words for sign in ("uthenticat", "ersion mismatch")):
        return refusal(head, token, words)
    lines = [line for line in words.splitlines() if line.strip()]
    return f"Ray did not start: {lines[-1].strip() if lines else 'it said nothing'}; all it said is in {log}"


def _wait_until_gone(session: int) -> None:
    until = time.monotonic() + STOP_S
    while left := members(session):
        if time.monotonic() > until:
            for pid in left:
                since = began(pid)
                if since is not None and session_of(pid) == session:
                    signal_process(pid, since, signal.SIGKILL)
        time.sleep(0.1)

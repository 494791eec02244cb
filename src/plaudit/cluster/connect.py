"""Joining a cluster as a driver, or starting one in this process; the workers of a run.

Ray waits for minutes when the head cannot be reached, and its errors are long tracebacks. So the head is called over
plain TCP first, and Ray's refusals are translated into one sentence. A driver runs on a machine of the cluster, because
it shares memory with the node there.

Ray is configured only by its environment variables and by arguments of `ray.init`. It reads the variables when it is
imported, so `join_cluster` sets them before it imports Ray.

The secret of a cluster is Ray's own token (`RAY_AUTH_MODE=token`), in the file where Ray expects it, so `ray` commands
work too. Anyone who has it may run code on every machine, and Ray refuses everyone else. The file must be the same on
all machines. If `RAY_AUTH_MODE` is already set, it stays as it is.
"""

import logging
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from plaudit.cluster.placement import (
    RESOURCES,
    Node,
    Placement,
    gpus_of,
    need_ray,
    own_labels,
    own_versions,
    versions_of,
)
from plaudit.cluster.state import LOCAL, RAY, NodeInfo, default_folder, is_loopback, make_folder, running
from plaudit.errors import ClusterError
from plaudit.training.config import ClusterConfig, WorkerName
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.group import LocalWorkerGroup, WorkerGroup
from plaudit.trust import allowances

PORT = 6379
CONNECT_TIMEOUT_S = 5.0  # for the head
# No usage data leaves the machine. Workers have the priority of the command that starts them. By default, Ray lowers it
# by 15, and a robot's loop waits for every other program on its machine.
RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
# Keep Ray from printing the last output of each process that died over our screen, which reports lost workers itself.
NO_OUTPUT = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".*"}
# Ray replaces 127.0.0.1 by an address that other machines reach, and listens on all addresses then. With this setting,
# which is for systems with a personal firewall, 127.0.0.1 stays.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Ray gives its processes 30 s to register, which no setting changes. On a busy machine a node is started again.
TIMED_OUT = "timed out during startup"
LOCAL_STARTS = 5
JOIN_TIMEOUTS = {  # a head that answers on its port answers soon
    "RAY_NUM_REDIS_GET_RETRIES": "3",
    "RAY_gcs_server_request_timeout_seconds": "20",
}
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}")  # an address or a name
LOCAL_STORE = 512 * 2**20  # bytes of shared memory of a cluster in this process, or less on a small machine


@contextmanager
def workers_for(
    folder: RunFolder,
    address: str | None,
    *,
    serial: bool = False,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Iterator[WorkerGroup]:
    """The workers of an online run: as actors of a cluster, or in this process.

    address: of a cluster's head; "auto" for the cluster that this machine belongs to, or else one of its own; "local"
        for one of its own; None for this process
    serial: in this process, one call after the other
    on_wait: called with what takes a while
    """
    if address is None:
        with closing(LocalWorkerGroup(folder, serial=serial)) as workers:
            yield workers
        return
    config = folder.config
    has_model = not config.judge.is_human and config.judge.config.requires_gpu
    requires_gpu: list[WorkerName] = ["labeler"] if has_model else []
    on_wait("starting Ray on this machine" if address == "local" else f"joining the Ray cluster ({address})")
    with connected(None if address == "auto" else address, config.cluster, requires_gpu) as placement:
        from plaudit.cluster.ray_workers import RayWorkerGroup

        with closing(RayWorkerGroup(folder, placement)) as workers:
            yield workers


@contextmanager
def connected(
    address: str | None = None, config: ClusterConfig | None = None, requires_gpu: Collection[WorkerName] = ()
) -> Iterator[Placement]:
    """Join a cluster; where the workers go in it. Raises `ClusterError` before anything starts if they do not fit.

        with connected("auto", config.cluster, requires_gpu=["labeler"]) as placement:
            EnvActor.options(**placement.options("env")).remote(...)

    address: "host:port", "auto" for the one that this machine belongs to, "local" for one in this process, None for
        "auto" where this machine belongs to one and "local" otherwise
    """
    config = config or ClusterConfig()
    with join_cluster(address, config):
        yield Placement(config, cluster_nodes(), requires_gpu, own_versions())


@contextmanager
def join_cluster(
    address: str | None = None, config: ClusterConfig | None = None, folder: Path | None = None
) -> Iterator[bool]:
    """Join a cluster, whether or not the workers fit; yields whether this process started it.

    folder: of this machine's node
    """
    folder = folder or default_folder()
    own_node = running(folder)
    head = find(address, own_node)
    need_ray()
    own_node = own_node if own_node and own_node.head == head else None
    token = token_file(Path(own_node.token) if own_node else None)
    if head is None and not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & os.environ.keys():
        make_token(token)  # Ray would make one that every user of this machine can read
    stays_here = head is None or is_loopback(head.rpartition(":")[0])
    _set_environment(token_environment(token) | (LOOPBACK if stays_here else {}))
    os.environ |= RAY_SETTINGS | NO_OUTPUT | (JOIN_TIMEOUTS if head else {})
    import ray

    try:
        with _restore_signals():
            if head is None:
                _start_local(config or ClusterConfig())
            else:
                _join(head, token, folder, own_node)
        yield head is None
    finally:
        ray.shutdown()


def _set_environment(variables: dict[str, str]) -> None:
    """Set what Ray must know; it does not read a variable again that changes after its import."""
    late = [f"{name}={value}" for name, value in variables.items() if os.environ.get(name) != value]
    if late and "ray" in sys.modules:
        raise ClusterError(
            "ray was imported before plaudit joined a cluster; import it later, or set in the environment: "
            + " ".join(late)
        )
    os.environ |= variables


def cluster_nodes() -> list[Node]:
    """All nodes of the cluster that this process has joined, also those that died; the head first."""
    import ray

    nodes = [
        Node(
            id=entry["NodeID"],
            address=entry["NodeManagerAddress"],
            hostname=entry["NodeManagerHostname"],
            resources=entry["Resources"],
            versions=versions_of(entry["Labels"]),
            gpu_ids=gpus_of(entry["Labels"], int(entry["Resources"].get("GPU", 0))),
            head="node:__internal_head__" in entry["Resources"],
            alive=entry["Alive"],
        )
        for entry in ray.nodes()
    ]
    return sorted(nodes, key=lambda node: (not node.head, node.address, node.id))


@contextmanager
def _restore_signals() -> Iterator[None]:
    """Ray's core replaces the handler of SIGTERM when it starts, in C++, by one that dumps the stack."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if in_main_thread and handler is not None:
                signal.signal(number, handler)


def find(address: str | None, own_node: NodeInfo | None) -> str | None:
    """The head's "host:port"; None for a cluster in this process."""
    if address is None or address == "auto":
        default = os.environ.get("RAY_ADDRESS") or (own_node.head if own_node else None)
        if default is None and address == "auto":
            raise ClusterError(
                "this machine belongs to no cluster; start one with: plaudit cluster start --role training, "
                "or name one with --address HOST:PORT"
            )
        address = default
    return None if address is None or address == "local" else with_port(address)


def with_port(address: str) -> str:
    """'10.0.0.1' -> '10.0.0.1:6379'."""
    host, colon, port = address.rpartition(":")
    if not colon and _is_host(address):
        return f"{address}:{PORT}"
    good = colon and _is_host(host) and port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 1 << 16
    if not good:
        raise ClusterError(f"'{address}' is not the address of a head; write HOST:PORT, like 10.0.0.1:{PORT}")
    return address


def _is_host(text: str) -> bool:
    """A name, or a complete address: to the system `2` is 0.0.0.2, and `0x7f.1` is this machine."""
    if not _HOST.fullmatch(text):
        return False
    last = text.strip(".").rpartition(".")[2]
    if not (text.startswith("[") or re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", last)):
        return True
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


def _dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S)


def check_reachable(address: str) -> None:
    """Raise `ClusterError` unless something listens there."""
    try:
        _dial(address).close()
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ClusterError(
            f"no head at {address} ({reason.lower()}); run 'plaudit cluster start --role training' there and open port "
            f"{address.rpartition(':')[2]} in its firewall"
        ) from None


def check_answers(address: str) -> None:
    """Raise `ClusterError` unless what listens there speaks HTTP/2, as a head does.

    Ray would wait for minutes to find out, and ignore Ctrl-C meanwhile.
    """
    empty_settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    try:
        with _dial(address) as head:
            head.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings)
            answer = head.recv(9)
    except OSError:
        answer = b""
    if len(answer) < 4 or answer[3] != 4:  # the type of its settings, which come first
        raise ClusterError(
            f"the server at {address} is not the head of a Ray cluster; name one with --address HOST:PORT"
        )


def _start_local(config: ClusterConfig) -> None:
    import ray

    names, folder, shared = config.resources.model_dump(), default_folder(), os.statvfs("/dev/shm")
    make_folder(folder)
    for attempt in range(1, LOCAL_STARTS + 1):
        try:
            ray.init(
                address="local",
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder.absolute() / LOCAL),
                resources={names[role]: float(count) for role, count in RESOURCES.items()},
                labels=own_labels(),
                object_store_memory=max(80 * 2**20, min(LOCAL_STORE, shared.f_bavail * shared.f_frsize // 3)),
                include_dashboard=False,
                **_driver_options(),
            )
            return
        except Exception as error:  # Ray raises no narrower one
            if TIMED_OUT not in str(error):
                raise
            if attempt == LOCAL_STARTS:
                raise ClusterError(
                    f"Ray did not start in {attempt} attempts of 30 s each, because this machine is too busy; "
                    "leave out --ray"
                ) from error


def _join(address: str, token: Path, folder: Path, own_node: NodeInfo | None) -> None:
    """Through the node of this machine in `folder`, or through any that Ray finds."""
    import ray
    from ray.exceptions import RayError

    check_reachable(address)
    check_answers(address)
    through: dict[str, Any] = {}
    if own_node is not None:
        through = {"_node_ip_address": own_node.address, "_temp_dir": str((folder / RAY).absolute())}
    try:
        with _stderr_off():
            ray.init(address=address, **through, **_driver_options())
    except (RuntimeError, ConnectionError, RayError) as error:
        messages: list[str] = []
        cause: BaseException | None = error
        while cause is not None:
            messages.append(str(cause))
            cause = cause.__cause__ or cause.__context__
        raise ClusterError(refusal(address, token, "\n".join(messages))) from error


def _driver_options() -> dict[str, Any]:
    """Of `ray.init`: no logs on our screen; actors, which read files too, inherit what the user allowed."""
    runtime_env = {"env_vars": allowances()} if allowances() else None
    return {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": runtime_env}


def refusal(address: str, token: Path, text: str) -> str:
    """Why Ray refused, as a message. text: its own messages"""
    if "ersion mismatch" in text:
        ray, python, our_ray, our_python = re.findall(r"(?:Ray|Python): (\S+)", text)[:4]
        return (
            f"the cluster at {address} runs Ray {ray} with Python {python} and this machine Ray {our_ray} with Python "
            f"{our_python}; install the same versions on both"
        )
    if "uthenticat" in text or "token" in text.lower():
        return (
            f"the cluster at {address} does not accept this machine's token; {token} must be the same file on all "
            "machines: copy it from the head"
        )
    if "No node info found" in text:
        return (
            f"this machine is not part of the cluster at {address}; join it first: plaudit cluster start "
            f"--role inference --head {address}"
        )
    last = next((line.strip() for line in reversed(text.splitlines()) if "Error" in line), text.strip())
    return f"the server at {address} is not the head of a Ray cluster, or has another version: {last}"


@contextmanager
def _stderr_off() -> Iterator[None]:
    """Hide what Ray's C++ core prints while the connection is refused."""
    sys.stderr.flush()
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


DEFAULT = Path("~/.ray/auth_token")


def token_file(path: Path | None = None) -> Path:
    """The token of this machine. path: the user's choice; None: Ray's own"""
    return (path or Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or DEFAULT)).expanduser().absolute()


def make_token(path: Path) -> bool:
    """Create a secret that only this user can read; returns False if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return True


def token_environment(path: Path | None) -> dict[str, str]:
    """Variables for Ray's processes; none without a file, or where the environment sets its own."""
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ or path is None or not path.is_file():
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def check_private(path: Path) -> None:
    """Raise `ClusterError` for a token that is empty or that others can read."""
    if path.stat().st_size == 0:
        raise ClusterError(f"{path}: the token is empty; delete the file, and starting the head makes a new one")
    if path.stat().st_mode & 0o077:
        raise ClusterError(f"{path}: other users of this machine can read the token; run: chmod 600 {path}")

"""Joining a cluster as a driver, or starting one in this process where there is none.

Ray waits for minutes when the head cannot be reached and answers with tracebacks that end in its own advice; so the
head is called over plain TCP first, and what Ray refuses with is told in a sentence of ours. A driver lives on a
machine of the cluster: it shares memory with the node there.
"""

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from plaudit.cluster.placement import Node, Placement
from plaudit.cluster.ray_private import keep_loopback, keep_quiet, node_options, patient
from plaudit.cluster.state import LOCAL, RAY, NodeState, default_folder, make_folder, running
from plaudit.cluster.token import make_token, token_file, use_token
from plaudit.cluster.versions import gpus_of, need_ray, own_labels, own_versions, versions_of
from plaudit.errors import ClusterError
from plaudit.training.cluster_config import ClusterConfig, Part
from plaudit.trust import allowances

PORT = 6379
REACH_S = 5.0  # to wait for the head
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
IMPATIENT = {  # when joining: whoever answers on the port answers soon
    "RAY_NUM_REDIS_GET_RETRIES": "3",
    "RAY_gcs_server_request_timeout_seconds": "20",
}
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}")  # an address or a name
LOCAL_STORE = 512 * 2**20  # bytes of shared memory of a cluster in this process, or less on a small machine


@dataclass(frozen=True)
class Joined:
    """A cluster that this process belongs to, whatever it has or lacks."""

    address: str  # of its head
    local: bool  # started by this process, and gone with it

    def nodes(self) -> list[Node]:
        """Those that are alive, the head first."""
        return [node for node in self.all_nodes() if node.alive]

    def all_nodes(self) -> list[Node]:
        """With those that died."""
        import ray

        return sorted(map(node_from, ray.nodes()), key=lambda node: (not node.head, node.address, node.id))


@dataclass(frozen=True)
class Cluster(Joined):
    """One that can hold all parts of the loop."""

    placement: Placement


@contextmanager
def connected(
    address: str | None = None, config: ClusterConfig | None = None, needs_gpu: Collection[Part] = ()
) -> Iterator[Cluster]:
    """A cluster and where the parts go in it. One that cannot hold them is refused before anything starts.

        with connected("auto", config.cluster, needs_gpu=["labeler"]) as cluster:
            EnvActor.options(**cluster.placement.options("env")).remote(...)

    address: "host:port", "auto" for the one that this machine belongs to, "local" for one in this process, None for
        "auto" where this machine belongs to one and "local" otherwise
    """
    config = config or ClusterConfig()
    with joined(address, config) as found:
        placement = Placement(config, found.nodes(), needs_gpu, own_versions())
        yield Cluster(found.address, found.local, placement)


@contextmanager
def joined(
    address: str | None = None, config: ClusterConfig | None = None, folder: Path | None = None
) -> Iterator[Joined]:
    """As `connected`, with nothing checked but that it answers.

    folder: of the node of this machine
    """
    folder = folder or default_folder()
    mine = running(folder)
    found = find(address, mine)
    os.environ |= QUIET if found is None else {**QUIET, **IMPATIENT}
    need_ray()  # it is imported now, and reads these
    import ray

    keep_loopback()
    keep_quiet()
    try:
        with _our_signals():
            if found is None:
                _start_local(config or ClusterConfig())
            else:
                _join(found, folder, mine if mine and mine.head == found else None)
        yield Joined(address=ray.get_runtime_context().gcs_address, local=found is None)
    finally:
        ray.shutdown()


@contextmanager
def _our_signals() -> Iterator[None]:
    """Ray's core takes SIGTERM for itself when it starts, past Python, and answers it with a dump of the stack."""
    mine = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if mine and handler is not None:
                signal.signal(number, handler)


def find(address: str | None, mine: NodeState | None) -> str | None:
    """The head's "host:port"; None for a cluster in this process."""
    if address == "local":
        return None
    if address is None or address == "auto":
        known = os.environ.get("RAY_ADDRESS") or (mine.head if mine else None)
        if known is None and address == "auto":
            raise ClusterError(
                "this machine belongs to no cluster; start one with: plaudit cluster start --role training, "
                "or say which with --address HOST:PORT"
            )
        return None if known is None or known == "local" else with_port(known)
    return with_port(address)


def with_port(address: str) -> str:
    """'10.0.0.1' -> '10.0.0.1:6379'."""
    host, colon, port = address.rpartition(":")
    if not colon and _is_host(address):
        return f"{address}:{PORT}"
    good = colon and _is_host(host) and port.isascii() and port.isdecimal() and 0 < int(port[:9]) < 1 << 16
    if not good:
        raise ClusterError(f"'{address}' is no address of a head; write HOST:PORT, like 10.0.0.1:{PORT}")
    return address


def _is_host(text: str) -> bool:
    """A name, or an address that is written out: to the system `2` is 0.0.0.2, and `0x7f.1` is this machine."""
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


def check_reachable(address: str) -> None:
    """Whether anything listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ClusterError(
            f"no head at {address} ({why.lower()}); is 'plaudit cluster start --role training' running there, "
            f"and does its firewall let port {port} through?"
        ) from None


def check_answers(address: str) -> None:
    """Whether what listens there speaks as a head does: Ray would wait for minutes, deaf to Ctrl-C, to find out."""
    host, _, port = address.rpartition(":")
    # HTTP/2, with settings that have nothing in them.
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S) as head:
            head.sendall(hello)
            answer = head.recv(9)
    except OSError:
        answer = b""
    if len(answer) < 4 or answer[3] != 4:  # its settings, which come first
        raise ClusterError(
            f"what answers at {address} is no head of a Ray cluster; say where one is: --address HOST:PORT"
        )


def node_from(facts: dict[str, Any]) -> Node:
    """From what `ray.nodes()` says of one."""
    resources, labels = facts["Resources"], facts["Labels"]
    return Node(
        id=facts["NodeID"],
        address=facts["NodeManagerAddress"],
        hostname=facts["NodeManagerHostname"],
        resources=resources,
        versions=versions_of(labels),
        gpu_ids=gpus_of(labels, int(resources.get("GPU", 0))),
        head="node:__internal_head__" in resources,
        alive=facts["Alive"],
    )


def _start_local(config: ClusterConfig) -> None:
    import ray

    if "RAY_AUTH_MODE" not in os.environ and "RAY_AUTH_TOKEN" not in os.environ:
        make_token(token_file())  # Ray would make one that every user of this machine can read
    use_token(token_file())
    names = config.resources.model_dump()
    make_folder(default_folder())
    with patient():
        ray.init(
            address="local",
            **node_options("127.0.0.1", default_folder() / LOCAL),
            resources={names["training"]: 3.0, names["inference"]: 1.0, names["labeling"]: 1.0},
            labels=own_labels(),
            object_store_memory=_local_store(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env=_told(),
        )


def _join(address: str, folder: Path, mine: NodeState | None) -> None:
    """Through the node of this machine that lives in `folder`, or through any that Ray finds."""
    import ray
    from ray.exceptions import RayError

    token = token_file(Path(mine.token) if mine else None)
    check_reachable(address)
    check_answers(address)
    use_token(token)
    ours = node_options(mine.address, folder / RAY) if mine else {}
    try:
        with _hushed():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=_told(), **ours)
    except (RuntimeError, ConnectionError, RayError) as error:
        raise ClusterError(refusal(address, token, _words(error))) from error


def _told() -> dict[str, Any] | None:
    """What actors are to know of what the user allowed; they read files too."""
    return {"env_vars": allowances()} if allowances() else None


def refusal(address: str, token: Path, words: str) -> str:
    """Why Ray did not let us in, in one sentence."""
    if "ersion mismatch" in words:
        ray, python, our_ray, our_python = re.findall(r"(?:Ray|Python): (\S+)", words)[:4]
        return (
            f"the cluster at {address} runs Ray {ray} with Python {python} and this machine Ray {our_ray} with Python "
            f"{our_python}; install the same on both"
        )
    if "uthenticat" in words or "token" in words.lower():
        return (
            f"the cluster at {address} does not accept this machine's token; {token} must be the same file on all "
            "machines: copy it from the head"
        )
    if "No node info found" in words:
        return (
            f"this machine is not part of the cluster at {address}; join it first: plaudit cluster start "
            f"--role inference --head {address}"
        )
    return f"what answers at {address} is no head of a Ray cluster, or one of another version: {_last_line(words)}"


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what Ray's core prints past Python while it is refused: a warning a second, and then the error."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _words(error: BaseException | None) -> str:
    """With those of the errors behind it."""
    words = []
    while error is not None:
        words.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(words)


def _last_line(words: str) -> str:
    """Of a traceback: what went wrong."""
    return next((line.strip() for line in reversed(words.splitlines()) if "Error" in line), words.strip())


def _local_store() -> int:
    """A third of the shared memory at most."""
    shared = os.statvfs("/dev/shm")
    return max(80 * 2**20, min(LOCAL_STORE, shared.f_bavail * shared.f_frsize // 3))

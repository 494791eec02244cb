"""Three machines of one: Ray nodes at this machine's address, each with a folder and ports of its own, started by our
command. Ray joins no cluster at 127.0.0.1."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plaudit
from plaudit.cluster.state import members, own_addresses, read_state
from waiting import stretch

ROLES = ("training", "inference", "labeling")
SOURCE = Path(plaudit.__file__).parents[1]


@dataclass(frozen=True)
class Nodes:
    root: Path  # with a folder for each node
    ports: dict[str, int]  # node -> its first
    address: str  # of every node
    options: tuple[str, ...]  # of every start

    @property
    def head(self) -> str:
        return f"{self.address}:{self.ports['training']}"

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that belongs to the training machine."""
        return self._environment("training", SOURCE) | {"RAY_AUTH_TOKEN_PATH": str(self.root / "token")}

    def start(self, role: str, at: str | None = None, token: str = "token", **how: Any) -> str:
        """at: the node, where it isn't called as its role"""
        where = [] if role == "training" else ["--head", self.head]
        port, token = str(self.ports[at or role]), str(self.root / token)
        mine = ("--role", role, "--address", self.address, "--port", port, "--token", token)
        return self.cluster("start", *mine, *where, *self.options, at=at or role, **how)

    def stop(self, node: str) -> str:
        return self.cluster("stop", at=node)

    def kill(self, node: str) -> None:
        """All of its processes, at once."""
        state = read_state(self.root / node)
        assert state is not None
        for pid in members(state.pid):
            kill(pid)
        self.stop(node)

    def cluster(self, *words: str, at: str = "training", ok: bool = True, source: Path = SOURCE) -> str:
        """`plaudit cluster ...` as the user of a node; what it said."""
        done = self.python("-m", "plaudit", "cluster", *words, at=at, source=source)
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def python(self, *words: str, at: str, source: Path = SOURCE) -> subprocess.CompletedProcess[str]:
        env = self.at(at, source)
        return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=stretch(240))

    def at(self, node: str, source: Path = SOURCE) -> dict[str, str]:
        """The environment of a command of a node's user."""
        return self._environment(node, source) | {"COLUMNS": "200"}

    def _environment(self, node: str, source: Path) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{source}:{Path(__file__).parent}"  # workers import what tests define
        return ours | {"PLAUDIT_CLUSTER_DIR": str(self.root / node), "PYTHONPATH": path}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def three_nodes(*others: str, options: tuple[str, ...] = ("--gpus", "0")) -> Iterator[Nodes]:
    """others: nodes that have a folder and ports, and are not started yet"""
    root = Path(tempfile.mkdtemp(prefix="plt-", dir="/tmp"))  # short: sockets live in it
    names = (*ROLES, *others)
    address = next(iter(own_addresses()), "127.0.0.1")
    nodes = Nodes(root, dict(zip(names, free_ports(len(names), address), strict=True)), address, options)
    try:
        nodes.start("training")
        with ThreadPoolExecutor() as pool:
            list(pool.map(nodes.start, ROLES[1:]))
        yield nodes
    finally:
        for name in reversed(names):
            nodes.stop(name)
        shutil.rmtree(root, ignore_errors=True)


def free_ports(count: int, address: str) -> list[int]:
    """The first of as many as a node uses, for each."""
    found: list[int] = []
    first = 20_000 + os.getpid() % 20_000
    while len(found) < count:
        first += 600
        with socket.socket() as asking:
            if all(asking.connect_ex((address, first + i)) for i in range(4)):
                found.append(first)
    return found

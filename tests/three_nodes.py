"""Three machines of one: Ray nodes on 127.0.0.1, each with a folder and ports of its own, started by our command."""

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

import plaudit
from plaudit.cluster.launch import members
from plaudit.cluster.state import read_state

ROLES = ("training", "inference", "labeling")
SOURCE = Path(plaudit.__file__).parents[1]


@dataclass(frozen=True)
class Nodes:
    root: Path
    ports: dict[str, int]

    @property
    def head(self) -> str:
        return f"127.0.0.1:{self.ports['training']}"

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that belongs to the training machine."""
        return self._environment("training") | {"RAY_AUTH_TOKEN_PATH": str(self.root / "token")}

    def start(self, role: str) -> None:
        where = [] if role == "training" else ["--head", self.head]
        words = ["--role", role, "--address", "127.0.0.1", "--port", str(self.ports[role]), "--gpus", "0", *where]
        self._cluster(role, "start", "--token", str(self.root / "token"), *words)

    def stop(self, role: str) -> None:
        self._cluster(role, "stop")

    def kill(self, role: str) -> None:
        """All of its processes, at once."""
        state = read_state(self.root / role)
        assert state is not None
        for pid in members(state.pid):
            kill(pid)
        self.stop(role)

    def _cluster(self, role: str, *words: str) -> None:
        command = [sys.executable, "-m", "plaudit.cli", "cluster", *words]
        done = subprocess.run(command, env=self._environment(role), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def _environment(self, role: str) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{SOURCE}:{Path(__file__).parent}"  # workers import what tests define
        return ours | {"PLAUDIT_CLUSTER_DIR": str(self.root / role), "PYTHONPATH": path}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    root = Path(tempfile.mkdtemp(prefix="plt-", dir="/tmp"))  # short: sockets live in it
    nodes = Nodes(root, dict(zip(ROLES, _free_ports(), strict=True)))
    try:
        nodes.start("training")
        with ThreadPoolExecutor() as pool:
            list(pool.map(nodes.start, ROLES[1:]))
        yield nodes
    finally:
        for role in reversed(ROLES):
            nodes.stop(role)
        shutil.rmtree(root, ignore_errors=True)


def _free_ports() -> list[int]:
    """The first of as many as a node uses, for each."""
    found: list[int] = []
    first = 20_000 + os.getpid() % 20_000
    while len(found) < len(ROLES):
        first += 600
        with socket.socket() as asking:
            if all(asking.connect_ex(("127.0.0.1", first + i)) for i in range(4)):
                found.append(first)
    return found

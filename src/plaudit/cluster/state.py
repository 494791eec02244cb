"""What `plaudit cluster start` started on this machine: a file in the folder that Ray's session lives in.

One folder, one node. `stop` ends the processes in it and no others, and the other commands find the cluster of this
machine through it. A process is known by its id and the moment it began, since ids are used again.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NodeState:
    """A node of this machine."""

    pid: int  # of the process that all others of the node descend from
    began: int  # clock ticks after boot
    head: str  # "10.0.0.1:6379"
    address: str  # its own
    roles: tuple[str, ...]
    token: str  # the file
    is_head: bool
    ports: tuple[int, int] = (0, 0)  # the first and the last
    closed: bool = False  # whether they can be reached at its address alone

    @property
    def alive(self) -> bool:
        return began(self.pid) == self.began


def default_folder() -> Path:
    """Short, since it holds sockets, whose paths have 107 bytes."""
    return Path(os.environ.get("PLAUDIT_CLUSTER_DIR") or f"/tmp/plaudit-{os.getuid()}")


def read_state(folder: Path) -> NodeState | None:
    try:
        values: dict[str, Any] = json.loads((folder / "node.json").read_text())
    except FileNotFoundError:
        return None
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return NodeState(**{**values, **lists})


def write_state(folder: Path, state: NodeState) -> None:
    half = folder / "node.json.part"
    half.write_text(json.dumps(asdict(state)))
    half.replace(folder / "node.json")


def running(folder: Path) -> NodeState | None:
    """The node that lives in this folder now."""
    state = read_state(folder)
    return state if state is not None and state.alive else None


def began(pid: int) -> int | None:
    """When a process began; None when there is none, or only its remains."""
    return _status(pid, 19)


def session_of(pid: int) -> int | None:
    """The same for the session it belongs to."""
    return _status(pid, 3)


def _status(pid: int, field: int) -> int | None:
    """A number of what the kernel says of a process, counted from after its name."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[field])

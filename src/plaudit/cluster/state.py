"""What `plaudit cluster start` started on this machine: a file in the folder that Ray's session lives in.

One folder, one node. `stop` ends the processes in it and no others, and the other commands find the cluster of this
machine through it. A process is known by its id, its owner and the moment it began, since ids are used again.

The folder lies where every user can make one, so it is believed only if it is this user's own and nobody else can
write to it. Ray opens its own folder to everyone; that one is inside, where nobody else gets to.
"""

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from plaudit.errors import ClusterError

RAY, LOCAL = "ray", "local"  # folders of Ray's own in ours: of the node, and of clusters that live in one process
LONGEST = 36  # bytes; + /local/session_<date>_<pid>/sockets/plasma_store, within 107
LARGEST = 1 << 20  # bytes of a node.json


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
    boot: str = ""  # of the machine; clocks begin anew with each

    @property
    def alive(self) -> bool:
        return self.boot in ("", boot()) and is_process(self.pid, self.began)

    def end(self) -> None:
        """Ask the process to end, if it is the one that was started."""
        signal_process(self.pid, self.began, signal.SIGTERM)


def default_folder() -> Path:
    """Short, since it holds sockets, whose paths have 107 bytes."""
    return Path(os.environ.get("PLAUDIT_CLUSTER_DIR") or f"/tmp/plaudit-{os.getuid()}")


def check_length(folder: Path) -> None:
    if len(os.fsencode(folder.absolute())) > LONGEST:
        raise ClusterError(f"{folder} is too long for the sockets in it; give a folder of {LONGEST} letters at most")


def make_folder(folder: Path) -> None:
    """This user's own, closed to everybody else."""
    check_length(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _opened(folder) as handle:
        os.fchmod(handle, 0o700)


def read_state(folder: Path) -> NodeState | None:
    try:
        with _opened(folder) as handle:
            file = os.open("node.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
            with os.fdopen(file, "rb") as opened:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                    raise ClusterError(f"{folder / 'node.json'} was not written by you alone; it is not believed")
                return TypeAdapter(NodeState).validate_json(opened.read(LARGEST))
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:  # a link, a folder, half a file
        raise ClusterError(
            f"{folder / 'node.json'} cannot be read as what 'plaudit cluster start' wrote "
            f"({str(error).splitlines()[0]}); if no node runs here, remove it"
        ) from error


def write_state(folder: Path, state: NodeState) -> None:
    half = folder / "node.json.part"
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(TypeAdapter(NodeState).dump_json(state))
    half.replace(folder / "node.json")


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A handle on the very folder that was looked at."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except NotADirectoryError:
        raise ClusterError(f"{folder} is a link or a file; name a folder of your own with --dir") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ClusterError(f"{folder}: {error.strerror}; name a folder of your own with --dir") from None
    try:
        found = os.fstat(handle)
        if found.st_uid != os.getuid():
            raise ClusterError(
                f"{folder} belongs to another user (number {found.st_uid}); nothing in it is believed, name a folder "
                "of your own with --dir"
            )
        if found.st_mode & 0o022:
            raise ClusterError(
                f"other users can write to {folder}; nothing in it is believed. If no node of yours runs from it, "
                "remove it; or name another with --dir"
            )
        yield handle
    finally:
        os.close(handle)


def running(folder: Path) -> NodeState | None:
    """The node that lives in this folder now."""
    state = read_state(folder)
    return state if state is not None and state.alive else None


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_process(pid: int, since: int) -> bool:
    """Whether this is the one that began then, and this user's."""
    try:
        mine = psutil.Process(pid).uids().effective == os.geteuid()
    except (psutil.Error, ValueError):
        return False
    return mine and pid > 1 and began(pid) == since


def signal_process(pid: int, since: int, number: int) -> None:
    """To that process or to none: the handle stays with it, whoever has its number next."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if is_process(pid, since):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def began(pid: int) -> int | None:
    """When a process began, in clock ticks after boot; None when there is none, or only its remains.

    Not `psutil.Process.create_time`: that is a time of day, which changes when somebody sets the clock.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def session_of(pid: int) -> int | None:
    """The session that a process belongs to; None when there is none, or only its remains."""
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    except (psutil.Error, ProcessLookupError):
        return None

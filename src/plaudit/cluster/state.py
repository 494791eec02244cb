"""This machine as a node of a cluster: the file that describes the node, its processes, its addresses and its ports.

The node that `plaudit cluster start` started is described by a file in the folder of Ray's session. One folder, one
node. `stop` ends its processes and no others, and the other commands find the cluster of this machine through it. A
process is identified by its id, its owner and its start time, since ids are reused. The folder is in a place where
every user can create one, so it is trusted only if it belongs to this user and no one else can write to it. Ray opens
its own folder to everyone; that one is inside, out of reach of others.

Ray listens on all addresses of a machine and has no setting for that. `plaudit cluster start --firewall` adds an
nftables rule that drops packets to these ports on other addresses, and `stop` removes it. Without the flag no rule is
written, and the command to do so is printed. No other port and no other rule is touched.
"""

import ipaddress
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from plaudit.errors import ClusterError

RAY, LOCAL = "ray", "local"  # Ray's own folders in ours: of the node, and of clusters within one process
MAX_PATH = 36  # bytes; + /local/session_<date>_<pid>/sockets/plasma_store, within 107
MAX_FILE = 1 << 20  # bytes of a node.json


@dataclass(frozen=True)
class NodeInfo:
    """A node of this machine."""

    pid: int  # of the ancestor of all its processes
    began: int  # clock ticks after boot
    head: str  # "10.0.0.1:6379"
    address: str  # its own
    roles: tuple[str, ...]
    token: str  # the file
    is_head: bool
    ports: tuple[int, int] = (0, 0)  # the first and the last
    closed: bool = False  # whether a firewall rule closes them on the machine's other addresses
    boot: str = ""  # id of the machine's boot, which `began` counts from

    @property
    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return self.boot in ("", boot()) and is_process(self.pid, self.began)


def default_folder() -> Path:
    """Short, since it holds sockets, whose paths have 107 bytes."""
    return Path(os.environ.get("PLAUDIT_CLUSTER_DIR") or f"/tmp/plaudit-{os.getuid()}")


def check_length(folder: Path) -> None:
    """Raise `ClusterError` for a path that is too long for sockets."""
    if len(os.fsencode(folder.absolute())) > MAX_PATH:
        raise ClusterError(f"{folder} is too long for the sockets in it; give a folder of {MAX_PATH} letters at most")


def make_folder(folder: Path) -> None:
    """Create it, or check it, and close it to everybody else."""
    check_length(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder)
    folder.chmod(0o700)


def _check_owner(folder: Path) -> None:
    """Raise `ClusterError` if anyone else can change what is in the folder."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise ClusterError(f"{folder} is a link or a file; name a folder of your own with --dir")
    if status.st_uid != os.getuid():
        raise ClusterError(
            f"{folder} belongs to another user (number {status.st_uid}) and is not trusted; name a folder of your own "
            "with --dir"
        )
    if status.st_mode & 0o022:
        raise ClusterError(
            f"other users can write to {folder}, so it is not trusted. If no node of yours runs from it, remove it; or "
            "name another with --dir"
        )


def read_state(folder: Path) -> NodeInfo | None:
    """The node of a folder, dead or alive; None where there was none."""
    path = folder / "node.json"
    try:
        _check_owner(folder)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise ClusterError(f"{path} was not written by you alone; it is not trusted")
            return TypeAdapter(NodeInfo).validate_json(file.read(MAX_FILE))
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:  # a link, a folder, half a file
        raise ClusterError(
            f"{path} cannot be read as what 'plaudit cluster start' wrote ({str(error).splitlines()[0]}); if no node "
            "runs here, remove it"
        ) from error


def write_state(folder: Path, node: NodeInfo) -> None:
    """Replace the folder's node.json at once."""
    partial = folder / "node.json.part"
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(TypeAdapter(NodeInfo).dump_json(node))
    partial.replace(folder / "node.json")


def running(folder: Path) -> NodeInfo | None:
    """The node of this folder, if it is alive."""
    node = read_state(folder)
    return node if node is not None and node.alive else None


def boot() -> str:
    """The id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_process(pid: int, since: int) -> bool:
    """Whether the process of this id began then and is this user's."""
    try:
        own = psutil.Process(pid).uids().effective == os.geteuid()
    except (psutil.Error, ValueError):
        return False
    return own and pid > 1 and began(pid) == since


def signal_process(pid: int, since: int, number: int) -> None:
    """Send a signal to that process or to none: a pidfd stays with its process, whoever gets the id next."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if is_process(pid, since):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def began(pid: int) -> int | None:
    """When a process began, in clock ticks after boot; None where there is none, or a zombie.

    Not `psutil.Process.create_time`: that is a time of day, which changes when somebody sets the clock.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def session_of(pid: int) -> int | None:
    """The session that a process belongs to; None where there is none, or a zombie."""
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    except (psutil.Error, ProcessLookupError):
        return None


def members(session: int) -> list[int]:
    """The processes of a node: all in the session that its first one started."""
    return [pid for pid in psutil.pids() if session_of(pid) == session]


def leftovers(folder: Path, node: NodeInfo) -> list[int]:
    """Processes that outlived the first one of a node: in its session, with a file open in the node's folder. Both,
    because the numbers of processes are used again."""
    inside = (folder / RAY).resolve()

    def works_there(pid: int) -> bool:
        try:
            return any(Path(file.path).is_relative_to(inside) for file in psutil.Process(pid).open_files())
        except psutil.Error:
            return False

    if node.alive or node.boot not in ("", boot()):
        return []
    return [pid for pid in members(node.pid) if works_there(pid)]


@dataclass(frozen=True)
class Listener:
    """A socket that others may connect to."""

    address: str  # "0.0.0.0" or "::" for all of the machine
    port: int
    process: str

    @property
    def everywhere(self) -> bool:
        """Whether it listens on all addresses of the machine."""
        return self.address in ("0.0.0.0", "::")


def own_addresses(family: int = socket.AF_INET) -> list[str]:
    """The addresses at which other machines may reach this one: not loopback, and not link-local of IPv6."""
    interfaces = psutil.net_if_addrs().values()
    addresses = {one.address.partition("%")[0] for each in interfaces for one in each if one.family == family}
    parsed = {address: ipaddress.ip_address(address) for address in addresses}
    return sorted(a for a, ip in parsed.items() if not ip.is_loopback and not (ip.version == 6 and ip.is_link_local))


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of the machine itself, which no other machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def can_listen(address: str, port: int = 0) -> bool:
    """Whether the address is this machine's and the port is free; port 0: any."""
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


def can_connect(address: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def address_towards(address: str) -> str:
    """This machine's address on the route to a "host:port". Nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]


def listeners(pids: Iterable[int]) -> list[Listener]:
    """What these processes listen on, except those that have ended or belong to another user."""
    sockets = set()
    for pid in pids:
        try:
            process = psutil.Process(pid)
            open_ports = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            for ip, port in open_ports:  # an IPv4 address may be written as an IPv6 one
                address = ipaddress.ip_address(ip)
                mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
                sockets.add(Listener(str(mapped or address), port, process.name()))
        except psutil.Error:
            continue
    return sorted(sockets, key=lambda one: one.port)


PortRange = tuple[int, int]  # first and last


def firewall_rules(address: str, ports: PortRange) -> str:
    """nftables syntax, in a table of the node's own."""
    table = f"inet plaudit_{ports[0]}"
    drop = f"add rule {table} input tcp dport {ports[0]}-{ports[1]}"
    return (
        f"add table {table}; add chain {table} input {{ type filter hook input priority 0; }}; "
        f"{drop} ip daddr != {{ 127.0.0.1, {address} }} drop; {drop} ip6 daddr != ::1 drop"
    )


def firewall_command(address: str, ports: PortRange) -> str:
    """The rules as a shell command."""
    return f"sudo nft '{firewall_rules(address, ports)}'"


def close_others(address: str, ports: PortRange) -> None:
    """Drop packets to these ports on other addresses of this machine."""
    if ipaddress.ip_address(address).is_loopback:  # Ray listens there only
        return
    if shutil.which("nft") is None:
        error = "nft of the package nftables is not installed"
    else:
        open_others(ports)  # the rule of a node that was killed
        error = _nft(firewall_rules(address, ports))
    if error:
        raise ClusterError(f"the other addresses of this machine could not be closed: {error}; leave out --firewall")


def open_others(ports: PortRange) -> None:
    """Remove the rule, if there is one."""
    if shutil.which("nft") is not None:
        _nft(f"delete table inet plaudit_{ports[0]}")


def _nft(script: str) -> str:
    """Run it; returns the error, "" without one."""
    done = subprocess.run(["nft", script], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nft failed"])[0]

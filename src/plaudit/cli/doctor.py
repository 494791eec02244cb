"""`plaudit doctor`: what this machine has, and what is missing for which feature."""

import os
import platform
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Literal, NamedTuple

import typer

from plaudit import __version__
from plaudit.cli.common import out, starting
from plaudit.cli.options import app, command
from plaudit.errors import EnvError, PlauditError, format_count

OK, MISSING, PROBLEM = "ok", "missing", "problem"
DECODERS = {"h264": "H.264", "hevc": "HEVC", "libdav1d": "AV1", "vp9": "VP9"}  # of PyAV -> what LeRobot data sets use
FOR_DEVELOPERS = {"bench", "dev", "simulators", "test", "types"}  # extras of no use to others
PORTS = {8000: "policy servers", 8265: "the dashboard of Ray", 6379: "Ray"}
DISK_BYTES, SYNCS = 64 << 20, 20
MIN_FREE, SLOW_SYNC_S = 5 << 30, 0.05


class Check(NamedTuple):
    """One line of the result. Missing parts are optional; a problem makes something fail that should work."""

    name: str
    state: Literal["ok", "missing", "problem"]
    says: str


@command(app, "doctor")
def doctor(
    folder: Path = Path(),  # Folder whose disk is tested, where stores and runs will be.
) -> None:
    """Check this machine: versions, GPU, rendering, video codecs, display, ports, disk and extras.

    Missing parts are optional. The command fails if something is broken that the built-in tasks need.
    """
    from plaudit.report.verdict import Verdict

    if not folder.is_dir():
        raise PlauditError(f"{folder} is not a folder; name the folder in which you will keep stores and runs")
    with starting("checking"):
        checked = list(checks(folder))
    count = Counter(check.state for check in checked)
    why = f"Optional parts that are missing: {count[MISSING]}."
    if count[PROBLEM]:
        result = f"Not usable yet: {format_count(count[PROBLEM], 'problem')}."
        out.print(Verdict(result, why, "Do what the lines marked 'problem' say, then check again", "plaudit doctor"))
    else:
        out.print(Verdict("Usable: no problems.", why, "Try it", "plaudit demo", "good"))
    for check in checked:
        out.print(f"{check.name:<10} {check.state:<8} {check.says}")
    if count[PROBLEM]:
        raise typer.Exit(1)


def checks(folder: Path) -> Iterator[Check]:
    """All checks, the slow ones last."""
    yield from (versions(), gpu(), rendering(), codecs(), display())
    yield from extras()
    yield from (ports(), disk(folder))


def versions() -> Check:
    torch = metadata.version("torch")
    system = f"{platform.machine()}, glibc {platform.libc_ver()[1] or 'unknown'}, {os.cpu_count()} cores"
    says = f"plaudit {__version__}, Python {platform.python_version()}, torch {torch}; {system}"
    if sys.platform != "linux":
        return Check("versions", PROBLEM, f"{says}. Plaudit needs Linux")
    return Check("versions", OK, says)


def gpu() -> Check:
    from plaudit.devices import gpu_names

    if names := gpu_names():
        return Check("GPU", OK, "; ".join(names))
    if Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia/version").exists():
        says = "there is an NVIDIA driver, but torch cannot use the GPU"
        advice = "install the build of torch for your driver (https://pytorch.org/get-started), or update the driver"
        return Check("GPU", PROBLEM, f"{says}; {advice}")
    return Check("GPU", MISSING, "none; policies and judges run on the CPU")


def rendering() -> Check:
    """Renders one image of a built-in task."""
    if util.find_spec("mujoco") is None:
        return Check("rendering", MISSING, "MuJoCo is not installed; run: pip install 'plaudit[sim]'")
    from plaudit.envs.commands import env_config

    try:
        seconds = timed(lambda: env_config("lift", ["cameras=[front]"]).build(1).close())
    except EnvError as error:
        return Check("rendering", PROBLEM, str(error))
    return Check(
        "rendering", OK, f"MUJOCO_GL={os.environ.get('MUJOCO_GL', 'glfw')}, an environment starts in {seconds:.1f} s"
    )


def codecs() -> Check:
    import av

    missing = [name for codec, name in DECODERS.items() if codec not in av.codecs_available]
    if missing:
        return Check("video", MISSING, f"this PyAV cannot decode {', '.join(missing)}; run: pip install -U av")
    return Check("video", OK, f"PyAV {av.__version__} decodes {', '.join(DECODERS.values())}")


def display() -> Check:
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if screen:
        return Check("display", OK, screen)
    return Check("display", MISSING, "no screen; label in the browser with plaudit serve")


def extras() -> Iterator[Check]:
    """Each extra whose packages are not all installed, and one line for the others."""
    from packaging.requirements import Requirement

    wanted: dict[str, list[str]] = {}
    for line in metadata.requires("plaudit") or ():
        requirement = Requirement(line)
        for extra in set(metadata.metadata("plaudit").get_all("Provides-Extra") or ()) - FOR_DEVELOPERS:
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}):
                wanted.setdefault(extra, [])
                if requirement.name != "plaudit" and not is_installed(requirement.name):
                    wanted[extra].append(requirement.name)
    complete = sorted(extra for extra, missing in wanted.items() if not missing)
    yield Check("extras", OK, f"installed: {', '.join(complete) or 'none'}")
    for extra, missing in sorted(wanted.items()):
        if missing:
            yield Check("", MISSING, f"{extra} ({', '.join(missing)}); run: pip install 'plaudit[{extra}]'")


def is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def ports() -> Check:
    taken = [f"{port} ({what})" for port, what in PORTS.items() if not is_free(port)]
    if taken:
        return Check("ports", MISSING, f"in use: {', '.join(taken)}; give these commands another --port")
    return Check("ports", OK, f"free: {', '.join(map(str, PORTS))}")


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def disk(folder: Path) -> Check:
    """Writes and syncs as a store does: a large block, then small ones."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            block = os.urandom(DISK_BYTES)

            def write(data: bytes) -> None:
                file.write(data)
                os.fsync(file.fileno())

            speed = DISK_BYTES / timed(lambda: write(block))
            sync = sorted(timed(lambda: write(block[:4096])) for _ in range(SYNCS))[SYNCS // 2]
    except OSError as error:
        return Check("disk", PROBLEM, f"{folder.absolute()} cannot be written to: {error.strerror}")
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    says = f"{free / 2**30:.0f} GiB free, writes {speed / 2**20:.0f} MiB/s, {1e3 * sync:.1f} ms to sync"
    if free < MIN_FREE:
        return Check("disk", PROBLEM, f"{says}. Little space is left: free some, or choose another folder")
    if sync > SLOW_SYNC_S:
        return Check("disk", PROBLEM, f"{says}. That is slow for recording: use a local disk")
    return Check("disk", OK, says)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began

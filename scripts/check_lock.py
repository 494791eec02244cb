#!/usr/bin/env python3
"""Whether every line of the locks can be installed: for each Python and architecture that we support, pip is asked for
a wheel of exactly that version that runs on Debian 12 and Ubuntu 22.04 (glibc 2.35). Nothing is installed.

    scripts/check_lock.py [--download]        # with --download the wheels themselves are fetched: gigabytes

pip evaluates markers for the interpreter it runs in, whatever platform it is asked about, so that is done here.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

LOCKS = [f"requirements/{name}.txt" for name in ("lock", "lock-simulators", "lock-tools", "lock-docs")]
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
GLIBC = 35  # minor version
NO_WHEEL = {"evdev", "easyhid"}  # evdev needs a compiler, which scripts/setup.sh installs; easyhid is Python alone


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether every line of the locks can be installed.")
    parser.add_argument("--download", action="store_true", help="fetch the wheels as well")
    download = parser.parse_args().download
    root, bad = Path(__file__).parents[1], 0
    for lock in LOCKS:
        for machine in MACHINES:
            for python in PYTHONS:
                wanted = list(requirements(root / lock, python, machine))
                missing = unavailable(wanted, python, machine, download)
                what = f"no wheel of {', '.join(missing)}" if missing else "ok"
                print(f"{lock}, Python {python}, {machine}: {len(wanted)} wheels, {what}", flush=True)
                bad += len(missing)
    return 1 if bad else 0


def requirements(lock: Path, python: str, machine: str) -> Iterator[str]:
    """The lines that hold there, as name==version."""
    there = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for line in lock.read_text().splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.name not in NO_WHEEL and (requirement.marker is None or requirement.marker.evaluate(there)):
                yield f"{requirement.name}{requirement.specifier}"


def unavailable(wanted: list[str], python: str, machine: str, download: bool) -> list[str]:
    """Those of which pip finds no wheel: all at once first, one by one only when that fails."""
    if not wanted or available(wanted, python, machine, download):
        return []
    return [one for one in wanted if not available([one], python, machine, download)]


def available(wanted: list[str], python: str, machine: str, download: bool) -> bool:
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    platforms = [*tags, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"linux_{machine}"]
    command = [sys.executable, "-m", "pip", *(["download"] if download else ["install", "--dry-run"]), "-qqq"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--python-version", python]
    command += [word for platform in platforms for word in ("--platform", platform)]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--dest" if download else "--target", folder]
        return subprocess.run([*command, *wanted]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())

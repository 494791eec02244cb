"""Three hosts on one machine: network namespaces joined by a bridge, a Ray node in each, and a link that can be cut.

    sudo python benchmarks/hosts.py             # a cluster over three hosts, checked; a link cut for 20 s and restored
    sudo python benchmarks/hosts.py --cut 45    # for longer
    sudo python benchmarks/hosts.py --loop 4    # an online run over them, links cut for 20 s four times
    sudo python benchmarks/hosts.py --quick     # the online run, one cut of 5 s

A namespace has interfaces, routes and ports of its own, so that what runs in it talks to the others over the network
and no other way. The cut takes the link down, at the bridge (packets vanish, nobody is told) or at the host (it knows
at once, like a cable that is pulled). It shows what a caller on the head sees of an actor behind the cut: calls sent
before, during and after, whether the actor is the same one afterwards, and how long the way back took; and whether
episodes that an actor there pushes the other way all arrive, and once. Needs root and `ip` of iproute2.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLES = ("training", "inference", "labeling")
SOURCE, TESTS = (Path(__file__).resolve().parents[1] / name for name in ("src", "tests"))


@dataclass(frozen=True)
class Host:
    """A network namespace."""

    name: str
    address: str
    folder: Path
    link: str  # its end on the bridge
    token: Path

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def run(self, *words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command in it and wait."""
        return subprocess.run(
            self.command(words), env=self.environment, capture_output=True, text=True, timeout=seconds
        )

    def spawn(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Run a command in it beside this one."""
        return subprocess.Popen(self.command(words), env=self.environment, text=True, **options)

    def plaudit(self, *words: str, seconds: float = 120.0) -> str:
        """Run `plaudit` in it; what it said."""
        done = self.run(sys.executable, "-m", "plaudit", *words, seconds=seconds)
        if done.returncode != 0:
            raise RuntimeError(f"{self.name}: plaudit {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, role: str, head: str | None = None) -> str:
        """Make it a node."""
        where = ["--head", head] if head else []
        firewall = ["--firewall"] if shutil.which("nft") else []  # tried where this machine has what it takes
        return self.plaudit("cluster", "start", *firewall, "--role", role, "--address", self.address, *where)

    def stop(self) -> str:
        return self.plaudit("cluster", "stop")

    def cut(self, at: str = "bridge") -> None:
        self._set(at, "down")

    def restore(self, at: str = "bridge") -> None:
        self._set(at, "up")

    def _set(self, at: str, state: str) -> None:
        where = [self.link] if at == "bridge" else ["eth0"]
        _ip(*([] if at == "bridge" else ["-n", self.name]), "link", "set", *where, state)

    @property
    def environment(self) -> dict[str, str]:
        ours = {
            "PLAUDIT_CLUSTER_DIR": str(self.folder),
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "PYTHONPATH": f"{SOURCE}:{TESTS}",
        }
        return {**os.environ, **ours, "COLUMNS": "160"}


@contextmanager
def three_hosts() -> Iterator[list[Host]]:
    """For training, inference and labeling, at 10.83.0.1 to 10.83.0.3. Gone afterwards, with all that runs in them.

    Their names carry the number of this process, so that others may have hosts of their own at the same time.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise SystemExit("network namespaces need root, and 'ip' of the package iproute2")
    root = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
    tag = f"pl{os.getpid()}"
    hosts = [Host(f"{tag}-{i}", f"10.83.0.{i}", root / str(i), f"{tag}b{i}", root / "token") for i in (1, 2, 3)]
    bridge = f"{tag}br"
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host in hosts:
            _plug_in(host, bridge)
        yield hosts
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(_remove, hosts))
        _ip("link", "delete", bridge, check=False)
        shutil.rmtree(root, ignore_errors=True)


def _plug_in(host: Host, bridge: str) -> None:
    host.folder.mkdir()
    _ip("netns", "add", host.name)
    _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _ip("link", "set", host.link, "master", bridge)
    _ip("link", "set", host.link, "up")
    for words in (["addr", "add", f"{host.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
        _ip("-n", host.name, *words)
    _ip("-n", host.name, "link", "set", "lo", "up")


def _remove(host: Host) -> None:
    for number, seconds in (("TERM", 2.0), ("KILL", 0.2)):
        left = _ip("netns", "pids", host.name, check=False).split()
        until = time.monotonic() + seconds
        if left:
            subprocess.run(["kill", f"-{number}", *left], check=False, stderr=subprocess.DEVNULL)
        while time.monotonic() < until and _ip("netns", "pids", host.name, check=False):
            time.sleep(0.05)
    _ip("link", "delete", host.link, check=False)
    _ip("netns", "delete", host.name, check=False)


def _ip(*words: str, check: bool = True) -> str:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True).stdout


def start_all(hosts: Sequence[Host]) -> str:
    """A node in each; the head's "host:port"."""
    head = f"{hosts[0].address}:6379"
    hosts[0].start(ROLES[0])
    for host, role in zip(hosts[1:], ROLES[1:], strict=True):
        host.start(role, head)
    return head


CALLER = """
import json, sys, threading, time
from plaudit.cluster.connect import cluster_nodes, connected

class Counter:
    def __init__(self):
        import os
        self.pid, self.count = os.getpid(), 0
    def add(self):
        self.count += 1
        return self.pid, self.count
    def big(self):
        import numpy as np
        return np.zeros(20_000_000, np.uint8)

class Sink:
    def __init__(self):
        self.got = []
    def take(self, number, frames):
        self.got.append(number)
        return number
    def all(self):
        return self.got

class Pusher:
    def push(self, sink, seconds):
        import numpy as np
        frames, acknowledged, errors = np.zeros((50, 128, 128, 3), np.uint8), [], []
        until, number = time.time() + seconds, 0
        while time.time() < until:
            try:
                acknowledged.append(ray.get(sink.take.remote(number, frames)))
            except ray.exceptions.RayError as error:
                errors.append(type(error).__name__)
            number += 1
            time.sleep(0.2)
        return acknowledged, errors

def tell(**facts):
    print(json.dumps({"at": time.time(), **facts}), flush=True)

seconds = float(sys.argv[1])
with connected("auto") as placement:
    import ray
    options = placement.options("env") | {"max_restarts": -1, "max_task_retries": int(sys.argv[2])}
    counter = ray.remote(Counter).options(**options).remote()
    pid, _ = ray.get(counter.add.remote())
    tell(event="ready", pid=pid)
    sink = ray.remote(Sink).options(**placement.options("replay")).remote()
    pusher = ray.remote(Pusher).options(**options).remote()
    pushed = pusher.push.remote(sink, seconds)
    until = time.time() + seconds
    while time.time() < until:
        began = time.time()
        try:
            now, count = ray.get(counter.add.remote())
            tell(event="answer", took=time.time() - began, pid=now, count=count)
        except ray.exceptions.RayError as error:
            tell(event="error", took=time.time() - began, kind=type(error).__name__)
        time.sleep(0.5)
    alive = {n.address: n.alive for n in cluster_nodes()}
    began = time.time()
    try:
        big = ray.get(counter.big.remote(), timeout=60).nbytes / (time.time() - began) / 1e6
    except ray.exceptions.RayError as error:
        big = type(error).__name__
    try:
        acknowledged, errors = ray.get(pushed, timeout=120)
        got = ray.get(sink.all.remote())
        missing = len(set(acknowledged) - set(got))
        push = {"acknowledged": len(acknowledged), "lost": missing, "twice": len(got) - len(set(got)), "errors": errors}
    except ray.exceptions.RayError as error:
        push = {"failed": type(error).__name__}
    tell(event="end", alive=alive, big_mb_s=big, episodes_pushed=push)
"""


def measure_cut(hosts: Sequence[Host], seconds: float, after: float, retries: int, at: str) -> dict[str, Any]:
    """An actor on the second host, called from the first, twice a second, over a cut of its link."""
    script = hosts[0].folder / "caller.py"
    script.write_text(CALLER)
    caller = hosts[0].spawn(sys.executable, str(script), str(5 + seconds + after), str(retries), stdout=subprocess.PIPE)
    assert caller.stdout is not None
    rows = [json.loads(caller.stdout.readline())]
    time.sleep(5)
    cut_at = time.time()
    hosts[1].cut(at)
    time.sleep(seconds)
    hosts[1].restore(at)
    back_at = time.time()
    rows += [json.loads(line) for line in caller.stdout if line.startswith("{")]  # Ray prints when a node dies
    caller.wait(timeout=60)
    answers = [row for row in rows if row["event"] == "answer"]
    late = [row for row in answers if row["at"] > back_at]
    return {
        "cut_s": seconds,
        "cut_at": at,
        "task_retries": retries,
        "errors": [row["kind"] for row in rows if row["event"] == "error"],
        "longest_call_s": max((row["took"] for row in answers), default=None),
        "answered_again_after_s": late[0]["at"] - back_at if late else None,
        "same_actor": bool(late) and late[-1]["pid"] == rows[0]["pid"],
        "calls_lost": _lost(answers),
        "answers_during_cut": sum(cut_at < row["at"] < back_at for row in answers),
        **{
            k: v
            for row in rows
            if row["event"] == "end"
            for k, v in row.items()
            if k in ("alive", "big_mb_s", "episodes_pushed")
        },
    }


def run_loop(hosts: Sequence[Host], head: str, cut: float, times: int, more: Sequence[str]) -> None:
    """An online run over the three hosts whose links are cut in turn; what `benchmarks/faults.py` says of it."""
    others = ",".join(host.name for host in hosts[1:])
    words = ["--head", head, "--kinds", "link", "--times", str(times), "--hang", str(cut), *more]
    script = str(Path(__file__).with_name("faults.py"))
    done = hosts[0].run("env", f"PLAUDIT_HOSTS={others}", sys.executable, script, *words, seconds=120 + times * 120)
    print(done.stdout + done.stderr[-2000:])
    if done.returncode:
        sys.exit(f"{script} ended with {done.returncode}")


def measure_firewall(hosts: Sequence[Host]) -> dict[str, str]:
    """A second address on each host; what `check` says of it with the rules that `start` made and without them."""
    for i, host in enumerate(hosts, start=1):
        _ip("-n", host.name, "addr", "add", f"10.84.0.{i}/24", "dev", "eth0")
    found = {}
    for when in ("closed", "open"):
        done = hosts[0].run(sys.executable, "-m", "plaudit", "cluster", "check", "--megabytes", "1")
        found[when] = "\n".join(line for line in done.stdout.splitlines() if "listens on" in line)
        for host in hosts:
            host.run("nft", "delete table inet plaudit_6379")
    return found


def _lost(answers: Sequence[dict[str, Any]]) -> int:
    """Calls that the actor counted and nobody got an answer to."""
    counts = [row["count"] for row in answers if row["pid"] == answers[0]["pid"]]
    return max(counts) - 1 - len(counts) if counts else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cut", type=float, nargs="*", default=[20.0], help="seconds; several for several cuts")
    parser.add_argument("--after", type=float, default=40.0, help="seconds to watch afterwards")
    parser.add_argument("--retries", type=int, default=-1, help="max_task_retries of the actor")
    parser.add_argument("--firewall", action="store_true", help="also try a second address of each host")
    parser.add_argument("--at", choices=["bridge", "host"], default="bridge", help="which end of the link goes down")
    parser.add_argument("--loop", type=int, default=0, metavar="TIMES", help="cut the links of an online run instead")
    parser.add_argument("--quick", action="store_true", help="the online run, one cut of 5 s")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hosts are taken down
    with three_hosts() as hosts:
        began = time.time()
        head = start_all(hosts)
        print(f"three nodes up after {time.time() - began:.1f} s")
        if asked.loop or asked.quick:
            run_loop(
                hosts, head, 5 if asked.quick else asked.cut[0], asked.loop or 1, ["--quick"] if asked.quick else []
            )
            return
        print(hosts[1].run(sys.executable, "-m", "plaudit", "cluster", "status").stdout)
        done = hosts[0].run(sys.executable, "-m", "plaudit", "cluster", "check")
        print(done.stdout, done.stderr, f"exit {done.returncode}")
        for seconds in asked.cut:
            print(json.dumps(measure_cut(hosts, seconds, asked.after, asked.retries, asked.at), indent=1), flush=True)
        if asked.firewall:
            print(json.dumps(measure_firewall(hosts), indent=1))
        for host in reversed(hosts):
            print(host.stop().strip())


if __name__ == "__main__":
    main()

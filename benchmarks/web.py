"""The server of `plaudit serve`: how fast pages and frames come, whether twenty people lose a label, what a page costs.

    python benchmarks/web.py [--episodes 10000] [--people 20] [--quick]
    python benchmarks/web.py --newcomer      # from a LeRobot data set to a judge's report, in Chromium
    python benchmarks/web.py --viewers       # the same frames in Rerun's viewer, if it is installed

The server runs in a process of its own, and this script asks it over HTTP like a browser with six connections. The
floor next to each time is that of a request for a static file in the same run. What monitoring costs is measured on a
running loop: a page follows it in every second stretch of time.
"""

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from websockets.sync.client import connect

from bars import Bars
from plaudit.data.store import Store, is_store
from plaudit.types import Episode, Labels

TESTS = Path(__file__).parents[1] / "tests"
PAGE = 60  # episodes of a page, and its thumbnails
OPEN_S = 5.0  # from the start of the server to the first request: a person opens a browser, the server its stores
THINK_S = 0.5  # before each key, on average: a fast person
CONNECTIONS = 6  # of a browser to one server
RECENT_S = 10.0  # between two requests of a page for the latest episodes
LOOP = "env=glow:GlowConfig learner=sac learner.hidden_dims=[8] learner.batch_size=8 policy.cameras=[] judge=simulator"
LOOP_KEYS = "policy.inference=sequential policy.inference.realtime=false policy.inference.max_episode_steps=12"
LOOP_END = "evaluation.episodes=1 run.max_episodes=1000000 run.name=run learner.utd_ratio=0.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="of the large store")
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--each", type=int, default=10, help="episodes that each labels")
    parser.add_argument("--windows", type=int, default=24, help="stretches of time with a page, and without")
    parser.add_argument("--quick", action="store_true", help="1,000 episodes, 8 people with 4 episodes each, 3 windows")
    parser.add_argument("--newcomer", action="store_true", help="only the newcomer's path, in Chromium")
    parser.add_argument("--viewers", action="store_true", help="only the comparison with Rerun's viewer")
    options = parser.parse_args()
    if options.newcomer or options.viewers:
        (newcomer if options.newcomer else viewers)()
        return
    if options.quick:
        options.episodes, options.people, options.each, options.windows = 1000, 8, 4, 3
    bars = Bars()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_store(folder / "large", options.episodes, 3, (32, 32), labeled=True)
        make_store(folder / "small_frames", 2, 200, (128, 128))
        make_store(folder / "large_frames", 2, 100, (480, 640))
        make_store(folder / "work", options.people * options.each, 20, (64, 64))
        with Server(folder) as server:
            name = folder.name
            time.sleep(OPEN_S)
            floor = np.median([timed(server, "/static/style.css") for _ in range(50)])
            first, again = page(server, f"{name}/large"), page(server, f"{name}/large")
            print(f"floor {floor * 1e3:.1f} ms; first page {first:.3f} s, again {again:.3f} s", flush=True)
            bars.at_most("web_first_page_s", first, 0.5)
            print(f"filter over all episodes: {timed(server, f'/api/episodes/{name}/large?outcome=failure'):.2f} s")
            for kind, frames in (("small_frames", 200), ("large_frames", 100)):
                times = [timed(server, f"/frame/1/{t}/front/{name}/{kind}") for t in range(frames)]
                print(f"{kind}: median {np.median(times) * 1e3:.1f} ms, p95 {np.quantile(times, 0.95) * 1e3:.1f} ms")
                bars.at_most(f"web_{kind}_p95_ms", np.quantile(times, 0.95) * 1e3, 50)
            times, acknowledged = label(server, f"{name}/work", options.people, options.each)
        with Store.open(folder / "work") as store:
            written = Counter(version.episode for i in store.ids for version in store.ledger.history(i))
        print(f"{options.people} people, {len(acknowledged)} labels: median {np.median(times) * 1e3:.0f} ms")
        different = (Counter(acknowledged) - written) + (written - Counter(acknowledged))
        bars.exactly("web_labels_lost_or_doubled", different.total(), 0)
        bars.at_most("web_label_p99_ms", np.quantile(times, 0.99) * 1e3, 200)
        monitoring(folder, options.windows, bars)
    bars.report()


def make_store(folder: Path, episodes: int, frames: int, size: tuple[int, int], *, labeled: bool = False) -> None:
    """Episodes of random frames."""
    pixels = np.random.default_rng(0).integers(0, 256, (frames, *size, 3), np.uint8)
    state, actions = np.zeros((frames, 2), np.float32), np.zeros((frames - 1, 1), np.float32)
    episode = Episode.of(frames={"front": pixels}, state=state, actions=actions, fps=20.0, task="count")
    with Store.create(folder) as store:
        for first in range(0, episodes, 500):
            store.extend([episode] * min(500, episodes - first))
        if labeled:
            kinds = [Labels.from_cutoff(steps=frames - 1, cutoff=cut, source="human") for cut in (None, 1)]
            store.ledger.extend((i, kinds[i % 2]) for i in store.ids)


class Server:
    """`plaudit serve` of a folder."""

    def __init__(self, folder: Path):
        command = [sys.executable, "-m", "plaudit.cli", "serve", str(folder), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "")
        self.port = next(int(match[1]) for line in lines if (match := re.search(r"open http://[^:]+:(\d+)/", line)))
        self.address = f"http://127.0.0.1:{self.port}/"
        self._local = threading.local()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, body: Any = None) -> bytes:
        """The answer, over this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {} if body is None else {"content-type": "application/json", "x-plaudit": "1"}
        connection.request("GET" if body is None else "POST", path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {content[:200]!r}")
        return content


def timed(server: Server, path: str) -> float:
    began = time.perf_counter()
    server.ask(path)
    return time.perf_counter() - began


def page(server: Server, name: str) -> float:
    """Seconds for the list of a page and all of its thumbnails."""
    began = time.perf_counter()
    rows = json.loads(server.ask(f"/api/episodes/{name}?count={PAGE}"))["episodes"]
    addresses = [f"/frame/{row['id']}/{row['steps']}/front/{name}?w=160" for row in rows]
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(server.ask, addresses))
    return time.perf_counter() - began


def label(server: Server, name: str, people: int, each: int) -> tuple[list[float], list[int]]:
    """Seconds of every action, and the episodes whose labels were acknowledged."""
    times: list[float] = []
    opened: list[float] = []
    acknowledged: list[int] = []

    def person(number: int) -> None:
        rng = np.random.default_rng(number)

        def act(**request: Any) -> Any:
            time.sleep(rng.exponential(THINK_S))
            began = time.perf_counter()
            state = json.loads(server.ask(f"/api/label/{name}", {"name": f"person {number}", **request}))
            (times if request else opened).append(time.perf_counter() - began)  # a key, or the page
            return state

        state = act()
        for _ in range(each):
            episode = state["episode"]
            act(action="success_from_here", episode=episode, frame=number % 19)
            state = act(action="complete", episode=episode, frame=0)
            if f"episode {episode} is labeled" in state["status"]:
                acknowledged.append(episode)

    with ThreadPoolExecutor(people) as threads:
        list(threads.map(person, range(people)))
    print(f"{people} people open the page at once: median {np.median(opened):.2f} s, slowest {max(opened):.2f} s")
    return times, acknowledged


def monitoring(folder: Path, windows: int, bars: Bars, seconds: float = 4.0) -> None:
    """Episodes of a running loop while a page follows it, and while none does, in turn."""
    environment = {"PYTHONPATH": f"{TESTS}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "plaudit.cli", "online", *f"{LOOP} {LOOP_KEYS} {LOOP_END}".split()]
    journal = folder / "runs/run/episodes/journal"
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as loop:
        try:
            while not (is_store(journal.parent) and journal.stat().st_size > 20_000):
                if loop.poll() is not None:
                    raise SystemExit("the loop has ended")
                time.sleep(0.2)
            with Server(folder) as server:
                rates = [measure(server, folder.name, journal, n % 4 in (1, 2), seconds) for n in range(2 * windows)]
        finally:
            loop.send_signal(signal.SIGKILL)
    without, following = ([rate for is_followed, rate in rates if is_followed == kind] for kind in (False, True))
    lost = 1 - np.sum(following) / np.sum(without)
    resampled = [
        1 - np.mean(rng.choice(following, len(following))) / np.mean(rng.choice(without, len(without)))
        for rng in map(np.random.default_rng, range(500))
    ]
    low, high = np.quantile(resampled, (0.025, 0.975))
    print(f"monitoring: {np.mean(without):.1f} episodes/s without a page, {np.mean(following):.1f} with one")
    print(f"monitoring costs {lost:.1%} of the episodes ({low:.1%} to {high:.1%})")
    bars.at_most("web_monitoring_lost_episodes", lost, 0.02)


def measure(server: Server, name: str, journal: Path, followed: bool, seconds: float) -> tuple[bool, float]:
    """Whether a page followed the run, and its episodes per second."""
    with following(server, name) if followed else stillness():
        before, began = journal.read_bytes().count(b"\n"), time.perf_counter()
        time.sleep(seconds)
        return followed, (journal.read_bytes().count(b"\n") - before) / (time.perf_counter() - began)


@contextmanager
def stillness() -> Iterator[None]:
    yield


@contextmanager
def following(server: Server, name: str) -> Iterator[None]:
    """What the page of a run asks for."""
    address = f"ws://127.0.0.1:{server.port}/live/{name}/runs/run"
    done = threading.Event()

    def read() -> None:
        with connect(address, origin=server.address.rstrip("/"), max_size=None) as socket:  # type: ignore[arg-type]
            asked_at = -RECENT_S
            while not done.is_set():
                if time.monotonic() - asked_at > RECENT_S:
                    asked_at = time.monotonic()
                    server.ask(f"/api/recent/{name}/runs/run")
                try:
                    socket.recv(timeout=0.2)
                except TimeoutError:
                    continue

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def newcomer() -> None:
    """Seconds of the path of tests/web/newcomer.py, without a person's time to look."""
    sys.path[:0] = [str(TESTS), str(TESTS / "web")]
    from newcomer import make_dataset, report_of, walk

    from browser import Browser

    with TemporaryDirectory() as scratch:
        make_dataset(Path(scratch) / "squares")
        began = time.perf_counter()
        with Server(Path(scratch) / "squares") as server, Browser() as browser:
            shown = browser.open(server.address)
            print(f"`plaudit serve` and the first page: {time.perf_counter() - began:.0f} s")
            walk(shown, server.address, "squares")
            report_of(shown, server.address, "squares")
        print(f"to ten labels, a trained judge and its report: {time.perf_counter() - began:.0f} s")


def viewers() -> None:
    """Rerun's log of the same frames: seconds until they are written, and bytes that its viewer loads."""
    import rerun

    with TemporaryDirectory() as scratch:
        pixels = np.random.default_rng(0).integers(0, 256, (200, 128, 128, 3), np.uint8)
        began = time.perf_counter()
        rerun.init("frames")
        rerun.save(f"{scratch}/frames.rrd")
        for frame, image in enumerate(pixels):
            rerun.set_time("frame", sequence=frame)
            rerun.log("front", rerun.Image(image))
        rerun.disconnect()
        size = Path(f"{scratch}/frames.rrd").stat().st_size
        print(
            f"Rerun: 200 frames of 128x128 logged in {time.perf_counter() - began:.2f} s, {size / 1e6:.1f} MB to load"
        )


if __name__ == "__main__":
    main()

"""The server of `plaudit serve`: how fast pages and frames come, and whether twenty people lose a label.

    python benchmarks/web.py [--episodes 10000] [--people 20] [--quick]

The server runs in a process of its own, and this script asks it over HTTP like a browser with six connections. The
floor next to each time is that of a request for a static file in the same run.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bars import Bars
from plaudit.data.store import Store
from plaudit.types import Episode, Labels

PAGE = 60  # episodes of a page, and its thumbnails
THINK_S = 0.5  # before each key, on average: a fast person
CONNECTIONS = 6  # of a browser to one server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="of the large store")
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--each", type=int, default=10, help="episodes that each labels")
    parser.add_argument("--quick", action="store_true", help="1,000 episodes, 8 people with 4 episodes each")
    options = parser.parse_args()
    if options.quick:
        options.episodes, options.people, options.each = 1000, 8, 4
    bars = Bars()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_store(folder / "large", options.episodes, 3, (32, 32), labeled=True)
        make_store(folder / "small_frames", 2, 200, (128, 128))
        make_store(folder / "large_frames", 2, 100, (480, 640))
        make_store(folder / "work", options.people * options.each, 20, (64, 64))
        with Server(folder) as server:
            name = folder.name
            floor = np.median([timed(server, "/static/style.css") for _ in range(50)])
            first, again = page(server, f"{name}/large"), page(server, f"{name}/large")
            print(f"floor {floor * 1e3:.1f} ms; first page {first:.3f} s, again {again:.3f} s", flush=True)
            bars.at_most("web_first_page_s", first, 0.5)
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
        self.port = next(int(found[1]) for line in lines if (found := re.search(r"open http://[^:]+:(\d+)/", line)))
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
    acknowledged: list[int] = []

    def person(number: int) -> None:
        rng = np.random.default_rng(number)

        def act(**request: Any) -> Any:
            time.sleep(rng.exponential(THINK_S))
            began = time.perf_counter()
            state = json.loads(server.ask(f"/api/label/{name}", {"name": f"person {number}", **request}))
            times.append(time.perf_counter() - began)
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
    return times, acknowledged


if __name__ == "__main__":
    main()

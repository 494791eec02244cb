"""The server of `plaudit serve`: how fast pages and frames come, whether twenty people lose a label, what a page costs.

    python benchmarks/web.py [--episodes 10000] [--people 20] [--quick]
    python benchmarks/web.py --newcomer      # from a LeRobot data set to a judge's report, in Chromium
    python benchmarks/web.py --viewers       # the same frames in Rerun's viewer (pip install rerun-sdk), in Chromium

The server runs in a process of its own, and this script asks it over HTTP like a browser with six connections. The
floor next to each time is that of a request for a static file in the same run. What monitoring costs is measured on a
running loop in CPU time, because other programs of the machine change episodes per second: a page follows the loop in
every second slice of time. The share of a core is what a loop that uses one core loses where all cores are busy.
"""

import argparse
import base64
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from websockets.sync.client import connect

from bars import Bars
from plaudit.data.store import Store, is_store
from plaudit.training.live import LiveSocket, ask
from plaudit.types import Episode, Labels

TESTS = Path(__file__).parents[1] / "tests"
PAGE = 60  # episodes of a page, and its thumbnails
OPEN_S = 5.0  # from the start of the server to the first request: a person opens a browser, the server its stores
FRAMES, KEYS, COLOR_STEP = 120, 30, 37  # of the comparison of viewers: each frame has another color
VIEW = (1000, 700)
LOOK_S, SETTLE_S = 0.01, 4.0
SOFTWARE_GL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")
THINK_S = 0.5  # before each key, on average: a fast person
CONNECTIONS = 6  # of a browser to one server
RECENT_S = 10.0  # between two requests of a page for the latest episodes
LOOP = "env=glow:GlowConfig learner=sac learner.hidden_dims=[8] learner.batch_size=8 policy.cameras=[] judge=simulator"
LOOP_KEYS = "policy.inference=sequential policy.inference.realtime=false policy.inference.max_episode_steps=12"
LOOP_END = "evaluation.episodes=1 run.max_episodes=1000000 run.name=run learner.utd_ratio=0.1"
LOOP_QUIET = "evaluation.freq=100000000 run.checkpoint_freq=100000000"  # an episode costs the same in every slice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="of the large store")
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--each", type=int, default=10, help="episodes that each labels")
    parser.add_argument("--windows", type=int, default=20, help="slices of time with a page, and without")
    parser.add_argument("--quick", action="store_true", help="1,000 episodes, 8 people with 4 episodes each, 4 slices")
    parser.add_argument("--monitoring", action="store_true", help="only what monitoring costs")
    parser.add_argument("--newcomer", action="store_true", help="only the newcomer's path, in Chromium")
    parser.add_argument("--viewers", action="store_true", help="only the comparison with Rerun's viewer")
    options = parser.parse_args()
    if options.newcomer or options.viewers:
        (newcomer if options.newcomer else viewers)()
        return
    if options.quick:
        options.episodes, options.people, options.each, options.windows = 1000, 8, 4, 4
    bars = Bars()
    if options.monitoring:
        with TemporaryDirectory() as scratch:
            monitoring(Path(scratch), options.windows, bars)
        bars.report()
        return
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
            bars.at_most("web_first_filter_s", timed(server, f"/api/episodes/{name}/large?outcome=failure"), 0.5)
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
        command = [sys.executable, "-m", "plaudit", "serve", str(folder), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "")
        self.port = next(int(match[1]) for line in lines if (match := re.search(r"open http://[^:]+:(\d+)/", line)))
        self.pid = self._process.pid
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


def monitoring(folder: Path, windows: int, bars: Bars, seconds: float = 6.0) -> None:
    """CPU time of an episode of a running loop while a page follows it, and while none does, in turn."""
    environment = {"PYTHONPATH": f"{TESTS}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "plaudit", "online", *f"{LOOP} {LOOP_KEYS} {LOOP_END} {LOOP_QUIET}".split()]
    journal = folder / "runs/run/episodes/journal"
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as loop:
        try:
            while not (is_store(journal.parent) and journal.stat().st_size > 20_000):
                if loop.poll() is not None:
                    raise SystemExit("the loop has ended")
                time.sleep(0.2)
            with Server(folder) as server:
                measure(loop.pid, server, folder.name, journal, True, seconds)  # imports what draws the curves
                order = [n % 4 in (1, 2) for n in range(2 * windows)]  # a drift cancels
                slices = np.array([measure(loop.pid, server, folder.name, journal, one, seconds) for one in order])
                state = ask(folder / "runs/run")
        finally:
            loop.send_signal(signal.SIGKILL)
    answer = answer_s(state)
    blocks = slices[: len(slices) // 4 * 4].reshape(-1, 4, 4)  # each has two slices with a page and two without
    rng = np.random.default_rng(0)
    resampled = [costs(blocks[rng.integers(len(blocks), size=len(blocks))], answer) for _ in range(2000)]
    low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
    names = ("server, share of a core", "server and answers of the loop", "loop, CPU time per episode")
    for name, value, *ends in zip(names, costs(blocks, answer), low, high, strict=True):
        print(f"monitoring: {name}: {value:.2%} more ({ends[0]:.2%} to {ends[1]:.2%})")
    bars.at_most("web_monitoring_share_of_a_core", costs(blocks, answer)[1], 0.02)
    bars.at_most("web_monitoring_share_of_a_core_upper", high[1], 0.02)


def answer_s(state: Any) -> float:
    """CPU seconds of an answer of the loop with this state, and of the question: at most what the loop pays."""
    with TemporaryDirectory() as scratch, LiveSocket(Path(scratch)) as live:
        live.publish(state)
        ask(Path(scratch))
        began = time.process_time()
        for _ in range(500):
            ask(Path(scratch))
        return (time.process_time() - began) / 500


def costs(blocks: Any, answer: float) -> tuple[float, float, float]:
    """What a page adds: CPU time of the server a second, the same with an answer a second, CPU time of an episode."""
    without, following = blocks[:, (0, 3)].sum((0, 1)), blocks[:, (1, 2)].sum((0, 1))
    server = following[2] / following[3] - without[2] / without[3]
    return server, server + answer, following[1] / following[0] / (without[1] / without[0]) - 1


def measure(
    loop: int, server: Server, name: str, journal: Path, followed: bool, seconds: float
) -> tuple[float, float, float, float]:
    """In a slice of time: episodes, CPU seconds of the loop and of the server, seconds.

    followed: a page follows the run
    """

    def now() -> Any:
        return np.array([journal.read_bytes().count(b"\n"), cpu_s(loop), cpu_s(server.pid), time.perf_counter()])

    with following(server, name) if followed else stillness():
        before = now()
        time.sleep(seconds)
        return tuple(now() - before)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    family = [pid]
    for one in family:
        family += [child for child, values in fields.items() if int(values[1]) == one]
    return sum(sum(map(int, fields[one][11:13])) for one in family) / os.sysconf("SC_CLK_TCK")


@contextmanager
def stillness() -> Iterator[None]:
    yield


@contextmanager
def following(server: Server, name: str) -> Iterator[None]:
    """What the page of a run asks for."""
    address = f"ws://127.0.0.1:{server.port}/live/{name}/runs/run"
    done = threading.Event()

    def read() -> None:
        with connect(address, origin=server.address.rstrip("/"), max_size=None) as page:  # type: ignore[arg-type]
            asked_at = -RECENT_S
            while not done.is_set():
                if time.monotonic() - asked_at > RECENT_S:
                    asked_at = time.monotonic()
                    server.ask(f"/api/recent/{name}/runs/run")
                try:
                    page.recv(timeout=0.2)
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
    """Our episode page and Rerun's viewer in the same Chromium: how soon a frame is seen after a key is pressed."""
    import rerun
    import rerun.blueprint as blueprint

    sys.path.insert(0, str(TESTS))
    from browser import Browser

    print(f"Rerun {rerun.__version__}, drawn without a GPU (SwiftShader), as this page is")
    with TemporaryDirectory() as scratch, Browser(*SOFTWARE_GL) as browser:
        for size in ((128, 128), (480, 640)):
            noise = np.random.default_rng(0).integers(0, 8, (*size, 3), np.uint8)
            frames = np.stack([noise + np.uint8(COLOR_STEP * t % 240) for t in range(FRAMES)])
            state, actions = np.zeros((FRAMES, 2), np.float32), np.zeros((FRAMES - 1, 1), np.float32)
            folder = Path(scratch) / f"{size[1]}x{size[0]}"
            with Store.create(folder) as store:
                store.append(Episode.of(frames={"front": frames}, state=state, actions=actions, fps=20.0, task="x"))
            with Server(folder) as server:
                began = time.perf_counter()
                page = browser.open(f"{server.address}#/episode/{folder.name}/0?frame={FRAMES - 1}", *VIEW)
                page.wait("document.querySelector('.cameras img')?.naturalWidth")
                place = "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
                x, y = page.run(f"{place}(document.querySelector('.cameras img').getBoundingClientRect())")
                report_viewer(f"Plaudit {folder.name}", page, (x, y), began)
            recording = rerun.RecordingStream(f"frames_{folder.name}")
            began = time.perf_counter()
            source = recording.serve_grpc(grpc_port=free_port())
            view, hidden = blueprint.Spatial2DView(origin="/"), blueprint.SelectionPanel(state="hidden")
            recording.send_blueprint(blueprint.Blueprint(view, hidden, blueprint.BlueprintPanel(state="hidden")))
            for t, image in enumerate(frames):
                recording.set_time("frame", sequence=t)
                recording.log("front", rerun.Image(image))
            recording.flush()
            print(f"Rerun {folder.name}: logged in {time.perf_counter() - began:.2f} s")
            rerun.serve_web_viewer(open_browser=False, web_port=(port := free_port()))
            began = time.perf_counter()
            page = browser.open(f"http://127.0.0.1:{port}/?url={source}&renderer=webgl", *VIEW)
            report_viewer(f"Rerun {folder.name}", page, (VIEW[0] / 2, VIEW[1] / 3), began, follows=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def report_viewer(name: str, page: Any, place: tuple[float, float], began: float, *, follows: bool = False) -> None:
    """Time to the last frame, and from each of many keys until the frame before is seen at a place of the page.

    follows: the page plays until a key stops it
    """

    def level() -> float:
        clip = {"x": place[0] - 8, "y": place[1] - 8, "width": 16, "height": 16, "scale": 1}
        shot = base64.b64decode(page.call("Page.captureScreenshot", clip=clip)["data"])
        return float(np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).mean())

    def seen(frame: int) -> bool:
        return abs(level() - COLOR_STEP * frame % 240 - 3.5) < 4

    def wait_for(frame: int) -> float:
        start = time.perf_counter()
        while not seen(frame):
            time.sleep(LOOK_S)  # drawing needs the cores too
            if time.perf_counter() - start > 60:
                raise SystemExit(f"{name}: frame {frame} was not seen in 60 s")
        return time.perf_counter() - start

    wait_for(FRAMES - 1)
    first = time.perf_counter() - began
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):  # the keys are for what was clicked
        page.call("Input.dispatchMouseEvent", type=kind, x=VIEW[0] - 100, y=100, button="left", clickCount=1)
    if follows:
        page.press(" ")
    time.sleep(SETTLE_S)
    times, looks = [], []
    for n in range(1, KEYS + 1):
        start = time.perf_counter()
        page.press("ArrowLeft")
        wait_for(FRAMES - 1 - n)
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        level()
        looks.append(time.perf_counter() - start)
    print(
        f"{name}: first frame seen after {first:.1f} s; after a key median {np.median(times) * 1e3:.0f} ms, p95 "
        f"{np.quantile(times, 0.95) * 1e3:.0f} ms, of which one look takes {np.median(looks) * 1e3:.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()

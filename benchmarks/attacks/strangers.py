"""Stores of somebody else, made by hand so that every checksum fits: links, pipes, senseless lines, sizes.

Each attack begins with a copy of a good store, changes one thing and seals it again (attacks/forge.py). A child of this
process then does what a user may with a store that was downloaded: look at it, check it, read it, sample from it, label
it, export it, repair it, append to it, evict. Files of the user's own lie beside the store and in it; they must be as
they were. What a link leads to must not be served. The child is measured, and ended when it hangs.
"""

import io
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from attacks import forge
from attacks.store import EPISODES, Outcome, append, make, nth_episode, nth_labels
from attacks.tally import Tally, sample
from plaudit.cli.common import PlainConsole
from plaudit.data.check import check
from plaudit.data.ledger import Failures
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.report.tables import episode_table, store_table
from plaudit.types import Episode, Labels

QUICK, FULL = 3, 300  # of each class
SLOW = 120.0  # s that nothing here may take
MOST_DATA = 4 << 30  # bytes of memory that a child may ask for; far more than it should
FIRST_SEGMENT = set(range(0, EPISODES, 2))  # the others have frames of another size
READ_BY = (
    "segments ",
    "segments/000000 ",
    "segments/000000/steps",
    "segments/000000/camera.front",
    "journal ",
    "store.json ",
)
NOTES = b"the only copy of somebody's work"
IMPORTED_INTO = ("a link to what it was", "a second name", "of another store", "inside")  # an import takes seconds
Rng = np.random.Generator


@dataclass
class Found:
    """What a child saw, and what it cost."""

    said: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    episodes: set[int] = field(default_factory=set)  # served at any time
    at_the_end: set[int] = field(default_factory=set)
    extra_bytes: int = 0


def attacks(folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    good = make(folder / "good")
    Failures(Store.open(good).ledger).append([(0, "no answer")], "vlm", "m")
    with Store.open(good, write=True) as store:  # lines of every kind
        store.evict([store.append(nth_episode(EPISODES))])
    export_dataset(Store.open(good), folder / "set", "npy", ids=[0])
    classes: dict[str, list[forge.Named]] = {
        "links": list(forge.links()),
        "pipes, sockets, folders": list(forge.odd_files()),
        "lines of the journal": [*forge.line_changes(good, "journal"), *forge.whole_changes("journal")],
        "lines of the ledger": [*forge.line_changes(good, "labels"), *forge.whole_changes("labels")],
        "lines of failures": list(forge.line_changes(good, "labels.failures")),
        "settings and copies of schemas": list(sealed_files(good)),
        "snapshots": list(forge.snapshot_changes(good)),
        "counts": [*forge.heads("journal.head"), *forge.heads("labels.head")],
        "sizes": list(sizes()),
        "files put back, moved, mixed": list(mixtures(good)),
    }
    normal = normal_life(good, folder / "work")
    for name, changes in classes.items():
        data_set = None if quick else folder / "set"
        tally = Tally(f"strangers: {name}")
        chosen = sample(changes, rng, QUICK if quick else FULL)
        attack_each(tally, good, normal, chosen, folder / "work", data_set)
        yield tally
    yield full_disks(good, folder / "work", rng, 3 if quick else 60)


def normal_life(original: Path, work: Path) -> Found:
    """Of a store that nobody changed: what an attack is measured against."""
    normal = lived(laid_out(original, work))
    assert not normal.tracebacks and set(range(EPISODES)) <= normal.at_the_end, (normal.tracebacks, normal.said)
    return normal


def attack_each(
    tally: Tally, original: Path, normal: Found, changes: list[forge.Named], work: Path, data_set: Path | None
) -> None:
    for how, change in changes:
        store = laid_out(original, work)
        change(store)
        before = somebodys_own(work)
        found = lived(store, data_set if any(words in how for words in IMPORTED_INTO) else None)
        tally.tried += 1
        tally.named += bool(found.said)
        tally.extra_bytes = max(tally.extra_bytes, found.extra_bytes - normal.extra_bytes)
        for sentence in [*found.tracebacks, *(s[:200] for s in found.said if len(s) > 5000)][:1]:
            tally.breach("tracebacks", f"{how}: {sentence}")
        for sentence in found.wrong[:1]:
            tally.breach("wrong_arrays", f"{how}: {sentence}")
        if "a link to what it was" in how and how.startswith(READ_BY) and (served := found.episodes & FIRST_SEGMENT):
            tally.breach("paths_read", f"{how}: episodes {sorted(served)} were served")
        after = somebodys_own(work)
        for path in sorted(path for path, data in before.items() if after.get(path) != data):
            tally.breach("good_bytes_deleted", f"{how}: {path} was changed or is gone")
        lost = set() if ", evict, ids" in how else set(range(EPISODES)) - found.at_the_end
        if lost and not found.said:
            tally.breach("unnamed_losses", f"{how}: episodes {sorted(lost)}")
        for n in sorted(lost):
            if not frames_are_somewhere(work, n):
                tally.breach("good_bytes_deleted", f"{how}: the frames of episode {n} are nowhere")
    shutil.rmtree(work, ignore_errors=True)


def laid_out(original: Path, work: Path) -> Path:
    """A copy of the store, with files of the user's own in it and beside it."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(original, work / "store")
    (work / "beside").mkdir()
    for place in ("beside", "store", "store/segments", "store/segments/000000"):
        (work / place / "notes").write_bytes(NOTES)
    return work / "store"


def somebodys_own(work: Path) -> dict[Path, bytes]:
    """Everything beside the store, and notes in it; by inode where a folder of the store was moved on purpose."""
    outside = [path for place in ("beside", "away") for path in (work / place).rglob("*")]
    files = {path: path.read_bytes() for path in outside if path.is_file() and path.stat().st_size < 1 << 24}
    inside = sum(path.is_file() and path.read_bytes() == NOTES for path in (work / "store").rglob("notes"))
    return files | {work / "store/notes": b"%d" % inside}


def frames_are_somewhere(work: Path, n: int) -> bool:
    frames = nth_episode(n).frames["front"].tobytes()
    files = [path for path in work.rglob("*front*") if path.is_file() and path.stat().st_size < 1 << 24]
    return any(frames in path.read_bytes() for path in files)


def full_disks(original: Path, work: Path, rng: Rng, count: int) -> Tally:
    """A disk that takes no byte beyond some length of a file."""
    tally = Tally("strangers: full disks")
    for room in np.sort(rng.integers(0, 6000, count)).tolist():
        store = laid_out(original, work)
        found = lived(store, room=room)
        tally.tried += 1
        tally.named += bool(found.said)
        for sentence in found.tracebacks[:1]:
            tally.breach("tracebacks", f"room for {room} bytes: {sentence}")
        for sentence in found.wrong[:1]:
            tally.breach("wrong_arrays", f"room for {room} bytes: {sentence}")
        report = check(store)
        if not report.ok and not found.said:
            tally.breach("unnamed_losses", f"room for {room} bytes: {report.problems[0]}")
        if lost := set(range(EPISODES)) - found.at_the_end:
            tally.breach("unnamed_losses", f"room for {room} bytes: episodes {sorted(lost)}")
    return tally


def lived(store: Path, data_set: Path | None = None, room: int = resource.RLIM_INFINITY) -> Found:
    """What a user does with a store, in a child that is watched.

    data_set: one to import into it
    room: bytes that a file may have
    """
    result = store.parent.with_name("result")
    receive, send = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _live(store, data_set, room, result, send)
    os.close(send)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, SLOW)
    steps = b""
    while chunk := os.read(receive, 1 << 16):
        steps += chunk
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(receive)
    _, status = os.waitpid(child, 0)
    if status != 0:
        what = "it hung" if status == signal.SIGKILL else f"it ended with {status}"
        return Found(tracebacks=[f"{what}, at: {steps[-300:].decode(errors='replace')}"])
    return pickle.loads(result.read_bytes())


def _live(store: Path, data_set: Path | None, room: int, result: Path, send: int) -> None:
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error of the disk, like any other
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = _steps(store, data_set, room, send)
        found.extra_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        result.write_bytes(pickle.dumps(found))
    except BaseException as error:  # noqa: BLE001 - nothing may leave the child but its end
        os.write(send, f" {type(error).__name__}: {error}".encode(errors="replace")[:500])
        os._exit(1)
    os._exit(0)


READING = ("info", "check", "read", "replay", "check again", "read again")  # a full disk can be read


def _steps(store: Path, data_set: Path | None, room: int, send: int) -> Found:
    found, outcome = Found(), Outcome()
    steps: dict[str, Callable[[], Any]] = {
        "info": lambda: look(store),
        "check": lambda: outcome.said.extend(check(store).problems),
        "read": lambda: serve(store, outcome),
        "replay": lambda: ReplaySampler(Store.open(store), cameras=(), seed=0).sample(64),
        "label": lambda: Store.open(store).ledger.append(0, nth_labels(0)),
        "fail": lambda: Failures(Store.open(store).ledger).append([(1, "no answer")], "vlm", "m"),
        "export": lambda: export_dataset(Store.open(store), store.parent / "export", "npy"),
        "append": lambda: append(store, 1000, outcome),
        "repair": lambda: outcome.said.extend(check(store, repair=True).problems),
        "evict": lambda: evict_newest(store, outcome),
        "append again": lambda: append(store, 1001, outcome),
        "import": lambda: import_dataset(data_set, store) if data_set else None,
        "check again": lambda: outcome.said.extend(check(store).problems),
        "read again": lambda: serve(store, outcome),
    }
    for name, step in steps.items():
        os.write(send, f"{name} ".encode())
        most = resource.RLIM_INFINITY if name in READING else room  # it would also limit the memory of decoders
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        outcome.tried(name, step)
        found.episodes |= outcome.episodes
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found.said, found.tracebacks, found.wrong = outcome.said, outcome.tracebacks, outcome.wrong
    found.at_the_end = outcome.episodes
    return found


def look(folder: Path) -> None:
    """What `plaudit data info` says."""
    store, screen = Store.open(folder), io.StringIO()
    console = PlainConsole(file=screen, width=120)
    console.print(*store_table(store), *(part for i in store.ids[:3] for part in episode_table(store, i)), sep="\n")
    assert not set("\x07\x1b\0") & set(screen.getvalue()), "control characters reached the terminal"


def serve(folder: Path, outcome: Outcome) -> None:
    """Every episode that can be had, and its labels."""
    outcome.episodes = set()
    store = Store.open(folder)
    for i in store.ids:
        episode = outcome.tried(f"episode {i}", lambda i=i: store.episode(i))
        if episode is not None and episode.origin is None:  # else it is the one that was imported
            number = known().get(key_of(episode))
            if number is None:
                outcome.wrong.append(f"episode {i} is served with arrays that nobody stored")
            else:
                outcome.episodes.add(number)
        outcome.tried(f"labels {i}", lambda i=i: store.ledger.labels(i))


def key_of(episode: Episode) -> bytes:
    return b"".join(array.tobytes() for array in (*episode.frames.values(), episode.state, episode.actions))


@cache
def known() -> dict[bytes, int]:
    return {key_of(nth_episode(n)): n for n in (*range(EPISODES + 1), 1000, 1001, 1002)}


def evict_newest(folder: Path, outcome: Outcome) -> None:
    """Of what the attack itself appended."""
    with Store.open(folder, write=True) as store:
        outcome.said += store.repaired
        newest = store.ids[-1:]
        if newest and known().get(key_of(store.episode(newest[0])), 0) >= 1000:
            store.evict(newest)


def sealed_files(good: Path) -> Iterator[forge.Named]:
    for name in ("store.json", "segments/000000/schema.json"):
        for key in json.loads((good / name).read_bytes()):
            for what, value in forge.VALUES.items():
                if key != "crc":
                    yield f"{name}, {key} is {what}", forge.resealed(name, key, value)


def sizes() -> Iterator[forge.Named]:
    """Little on the disk, and much in memory or time for who believes it."""
    for name in (*forge.FILES, *forge.INSIDE[::2]):
        yield f"{name} claims 64 GB", lambda store, n=name: os.truncate(store / n, 1 << 36)
        yield f"{name} ends in 30 MB without a line", lambda store, n=name: extended(store / n, b"x" * (30 << 20))
    for name in ("journal", "labels"):
        bad = b"".join(b"x" * 30_000 + b"\n" for _ in range(300))
        yield f"{name} has 300 bad lines", lambda store, n=name, b=bad: extended(store / n, b)
        for what, value in {"[": "[" * 100_000, "[]": [[]] * 3_000_000, "text": "x" * 17_000_000}.items():
            more = {"op": "evict", "ids": value}
            yield f"{name} has a line of {what}", forge.changed(name, lambda rs, m=more: rs.append(m))
    for steps in (1 << 22, 1 << 28, 1 << 40):
        yield f"labels of {steps:,} steps", forge.changed("labels", partial(longer, steps=steps))
    yield "100,000 cameras", cameras([[f"c{i}", 4, 4] for i in range(100_000)])
    yield "1,000 cameras without a file", cameras([[f"c{i}", 4, 4] for i in range(1_000)])
    for height, width in ((65_536, 65_536), (16_384, 16_384)):
        yield f"frames of {height} x {width}", sparse([["front", height, width]], 3, 1 << 36)
    yield "a step of gigabytes", sparse([["front", 8, 8]], 1 << 24, 1 << 36)


def longer(records: list[forge.Record], steps: int) -> None:
    """The labels of an episode, as if it had so many steps; little on the disk."""
    data = zlib.compress(bytes(min(5 * steps, 1 << 28)))
    records[1].update({"steps": steps, "data": b64encode(data).decode()})


def extended(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def cameras(columns: list[Any]) -> forge.Change:
    def bend(records: list[forge.Record]) -> None:
        next(r for r in records if r.get("op") == "segment")["schema"]["cameras"] = columns

    return forge.changed("journal", bend)


def sparse(columns: list[Any], state_dim: int, size: int) -> forge.Change:
    """One more segment, whose files are holes."""

    def apply(store: Path) -> None:
        def add(records: list[forge.Record]) -> None:
            schema = {"cameras": columns, "state_dim": state_dim, "action_dim": 2, "privileged": []}
            episode = dict(next(r for r in records if r.get("op") == "episode"))
            records.append({"op": "segment", "segment": 5, "schema": schema})
            records.append({**episode, "id": 90, "segment": 5, "row": 0, "steps": 3})

        (store / "segments/000005").mkdir()
        for name in ("steps.bin", "camera.front.bin"):
            (store / "segments/000005" / name).touch()
            os.truncate(store / "segments/000005" / name, size)
        forge.changed("journal", add)(store)

    return apply


def mixtures(good: Path) -> Iterator[forge.Named]:
    """Files of an earlier day, of another store, and folders where none belong."""
    for names in (("journal",), ("journal", "journal.head"), ("labels",), ("labels", "labels.head"), ("store.json",)):
        yield f"{names} of an earlier day", lambda store, ns=names: earlier(store, ns)
        yield f"{names} of another store", lambda store, ns=names: of_another(store, ns)
    yield "a store inside", lambda store: shutil.copytree(good, store / "segments/000007")
    yield "a store in its quarantine", lambda store: shutil.copytree(good, store / "quarantine/mine")
    yield "a store in its segment", lambda store: shutil.copytree(good, store / "segments/000000/inner")
    yield "itself inside, by a link", lambda store: (store / "segments/000007").symlink_to(store)
    yield "a second name for every file", second_names
    yield "a clock that goes back", lambda store: forge.changed("journal", times_backwards)(store)
    yield "segments of one another", lambda store: exchanged(store)
    for name in ("\x1b[2J", "a b'\"$(touch x)", "..", "\udcff", "x" * 200):
        yield f"a quarantine with {name!r}", lambda store, n=name: quarantined(store, n)


def earlier(store: Path, names: tuple[str, ...]) -> None:
    before = {name: (store / name).read_bytes() for name in names}
    with Store.open(store, write=True) as opened:
        i = opened.append(nth_episode(1002))
        opened.ledger.append(i, Labels.from_cutoff(steps=nth_episode(1002).steps, cutoff=1, source="human"))
    for name, data in before.items():
        (store / name).write_bytes(data)


def of_another(store: Path, names: tuple[str, ...]) -> None:
    copied(make(store.parent / "away/other", 3), store, names)


def copied(source: Path, store: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (source / name).exists():
            shutil.copy(source / name, store / name)


def second_names(store: Path) -> None:
    shutil.copytree(store, store.parent / "away/copy", copy_function=os.link)


def times_backwards(records: list[forge.Record]) -> None:
    for number, record in enumerate(r for r in records if r.get("op") == "episode"):
        record["time"] = 2e9 - 1e7 * number


def exchanged(store: Path) -> None:
    (store / "segments/000000").rename(store / "segments/x")
    (store / "segments/000001").rename(store / "segments/000000")
    (store / "segments/x").rename(store / "segments/000001")


def quarantined(store: Path, name: str) -> None:
    place = store / "quarantine" / (name if name != ".." else "...")
    place.mkdir(parents=True)
    (place / "ABOUT.txt").write_bytes(b"\x1b[2J" + b"y" * 2_000_000)

"""The episode store under attack: bits, cuts, lines, files, locks, kills, swaps and repairs.

Every attack begins with a copy of a store whose episodes and labels are known, damages it, and then does what a user
would: read it, check it, repair it, open it for writing and append. Afterwards every episode and every label must be
what it was, or be named by somebody; good arrays must lie somewhere, in the store or in its
quarantine.
"""

import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from attacks.tally import Tally
from plaudit.data import journal
from plaudit.data.check import check
from plaudit.data.ledger import Ledger
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import PlauditError
from plaudit.types import Episode, Labels

journal.SNAPSHOT_AFTER = (2, 4)  # stores as small as these have snapshots then
EPISODES, CAPACITY = 7, 50
WHO = ("writer", "labeler", "reader")
Rng = np.random.Generator
Found = TypeVar("Found")


@cache
def nth_episode(n: int) -> Episode:
    """Given by its number alone, in one of two shapes. `make` stores one camera encoded."""
    rng = np.random.default_rng(n)
    steps = 2 + n % 3
    return Episode.of(
        frames={
            camera: rng.integers(0, 256, (steps + 1, 6 + 2 * (n % 2), 8, 3), dtype=np.uint8)
            for camera in ("front", "wrist")
        },
        state=rng.normal(size=(steps + 1, 3)),
        actions=rng.normal(size=(steps, 2)),
        privileged={"success": rng.random(steps) > 0.5},
        task="attack",
        meta={"n": n},
    )


@cache
def nth_labels(n: int) -> Labels:
    return Labels.from_cutoff(steps=nth_episode(n).steps, cutoff=1, source="human", note=str(n))


def make(folder: Path, episodes: int = EPISODES) -> Path:
    with Store.create(folder, capacity_episodes=CAPACITY, images="wrist=lossless") as store:
        for n in range(episodes):
            store.append(nth_episode(n))
            store.ledger.append(n, nth_labels(n))
    return folder


def same(one: Episode, other: Episode) -> bool:
    arrays = [(one.state, other.state), (one.actions, other.actions), (one.control_mode, other.control_mode)]
    arrays += [(one.frames.get(c), f) for c, f in other.frames.items()]
    arrays += [(one.privileged.get(n), v) for n, v in other.privileged.items()]
    facts = ("task", "fps", "robot", "terminated", "padded", "meta")
    return (
        set(one.frames) == set(other.frames)
        and all(getattr(one, fact) == getattr(other, fact) for fact in facts)
        and all(a is not None and np.array_equal(a, b) for a, b in arrays)
    )


@dataclass
class Outcome:
    """What a store said and served over the rounds of one attack."""

    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    episodes: set[int] = field(default_factory=set)  # served rightly at the end
    labels: set[int] = field(default_factory=set)

    def tried(self, what: str, call: Callable[[], Found]) -> Found | None:
        try:
            return call()
        except PlauditError as error:
            self.said.append(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever else it is, it came through
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.tracebacks.append(f"{what}: {type(error).__name__} {error} ({Path(last.filename).name}:{last.lineno})")
        return None


def read(folder: Path, outcome: Outcome) -> None:
    """Serve everything that can be, episode by episode and through replay."""
    outcome.episodes, outcome.labels = set(), set()
    store = outcome.tried("open", lambda: Store.open(folder))
    if store is None:
        return
    for i in store.ids:
        found = outcome.tried(f"episode {i}", lambda i=i: store.episode(i))
        if found is not None:
            n = found.meta.get("n")
            if isinstance(n, int) and same(found, nth_episode(n)) and (n == i or n >= 1000):
                outcome.episodes.add(n)
            else:
                outcome.wrong.append(f"episode {i} is served with other bytes than were stored")
        labels = outcome.tried(f"labels {i}", lambda i=i: store.ledger.labels(i))
        if labels is not None and i < EPISODES:
            if labels.note == str(i) and labels.targets.tolist() == nth_labels(i).targets.tolist():
                outcome.labels.add(i)
            else:
                outcome.wrong.append(f"the labels of episode {i} are not those that were given")
    outcome.tried("replay", lambda: sample(store, outcome))


def sample(store: Store, outcome: Outcome) -> None:
    """Batches of the cameras-less columns: rows of both shapes fit in one."""
    batch = ReplaySampler(store, cameras=(), seed=0).sample(64)
    for episode, step, state in zip(batch.episode.tolist(), batch.step.tolist(), batch.state):
        n = store.entry(episode).line["meta"]["n"]
        if not np.array_equal(state, nth_episode(n).state[step]):
            outcome.wrong.append(f"replay serves other bytes for step {step} of episode {episode}")
            return


def live_through(folder: Path, rounds: str = "read check write repair write check read") -> Outcome:
    """What a user does with a store: each step may refuse, with a sentence."""
    outcome = Outcome()
    for number, step in enumerate(rounds.split()):
        if step == "read":
            read(folder, outcome)
        elif step == "write":
            outcome.tried("write", lambda number=number: append(folder, 1000 + number, outcome))
        else:
            report = outcome.tried(step, lambda step=step: check(folder, repair=step == "repair"))
            if report is not None:
                outcome.said += report.problems + report.repaired
    return outcome


def append(folder: Path, n: int, outcome: Outcome) -> None:
    with Store.open(folder, write=True) as store:
        outcome.said += store.repaired
        store.append(nth_episode(n))


def judge(tally: Tally, how: str, outcome: Outcome, folder: Path, expected: int = EPISODES) -> None:
    """Count what came through."""
    tally.tried += 1
    tally.named += bool(outcome.said)
    for sentence in outcome.wrong[:1]:
        tally.breach("wrong_arrays", f"{how}: {sentence}")
    for sentence in outcome.tracebacks[:1]:
        tally.breach("tracebacks", f"{how}: {sentence}")
    lost = set(range(expected)) - outcome.episodes
    unlabeled = set(range(expected)) - outcome.labels - lost
    if (lost or unlabeled) and not outcome.said:
        tally.breach("unnamed_losses", f"{how}: episodes {sorted(lost)}, labels {sorted(unlabeled)}")
    for n in sorted(lost):
        if not kept_somewhere(folder, n):
            tally.breach("good_bytes_deleted", f"{how}: the arrays of episode {n} are nowhere")


def kept_somewhere(folder: Path, n: int, spoilt: int = 64) -> bool:
    """Whether an episode's frames still lie in a file, but for a few bytes that the attack itself spoilt."""
    frames = nth_episode(n).frames["front"].tobytes()
    parts = [frames[at : at + spoilt] for at in range(0, len(frames), spoilt)]
    files = [path.read_bytes() for path in folder.parent.rglob("*") if path.is_file() and "front" in path.name]
    return any(sum(part not in data for part in parts) <= 2 for data in files)


def fresh(original: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder / "store")
    return folder / "store"


def files_of(store: Path) -> dict[str, Path]:
    """One file of each kind."""
    names = [f"{name}{suffix}" for name in ("journal", "labels") for suffix in ("", ".head", ".snapshot")]
    names += ["store.json", "writer.lock"]
    inside = ["schema.json", "steps.bin", "camera.front.bin", "camera.wrist.bin"]
    files = {name: store / name for name in names} | {name: store / "segments/000000" / name for name in inside}
    return {name: path for name, path in files.items() if path.exists()}


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def bit_flips(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    for name, path in files_of(original).items():
        tally = Tally(f"store: bit flips in {name}")
        bits = 8 * path.stat().st_size
        for bit in sorted(rng.choice(bits, min(bits, 2 if quick else 150), replace=False).tolist()):
            store = fresh(original, folder)
            flip(files_of(store)[name], bit)
            judge(tally, f"bit {bit} of {name}", live_through(store), store)
        yield tally


def truncations(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """At nothing, one byte, the end of a line, within one, one byte short."""
    for name, path in files_of(original).items():
        tally = Tally(f"store: truncations of {name}")
        data = path.read_bytes()
        ends = [at + 1 for at, byte in enumerate(data[:-1]) if byte == 10] or [len(data) // 2]
        sizes = {0, len(data) - 1, *rng.choice(ends, min(len(ends), 1 if quick else 20), replace=False).tolist()}
        sizes |= set() if quick else {1, *rng.integers(0, max(1, len(data)), 10).tolist()}
        for size in sorted(size for size in sizes if 0 <= size < len(data)):
            store = fresh(original, folder)
            os.truncate(files_of(store)[name], size)
            outcome = live_through(store)
            spoils = name.endswith(".bin")  # those bytes are gone by the attack's own doing
            judge(tally, f"{name} cut to {size} of {len(data)} bytes", outcome, store, 0 if spoils else EPISODES)
            if spoils and not outcome.said:
                tally.breach("unnamed_losses", f"{name} cut to {size} bytes")
        yield tally


def lines(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """Removed, doubled, swapped, taken from another store."""
    other = make(folder.parent / "other", 3)
    for name in ("journal", "labels"):
        tally = Tally(f"store: lines of {name} removed, doubled, swapped")
        count = len((original / name).read_bytes().splitlines())
        for number in range(4 if quick else 4 * count):
            store = fresh(original, folder)
            found = (store / name).read_bytes().splitlines(keepends=True)
            at, size = int(rng.integers(count)), int(rng.integers(1, 4))
            match number % 4:
                case 0:
                    del found[at : at + size]
                case 1:
                    found.insert(int(rng.integers(count)), found[at])
                case 2:
                    to = int(rng.integers(count))
                    found[at], found[to] = found[to], found[at]
                case _:
                    found[at] = (other / name).read_bytes().splitlines(keepends=True)[-1]
            unchanged = b"".join(found) == (store / name).read_bytes()
            (store / name).write_bytes(b"".join(found))
            outcome = live_through(store)
            judge(tally, f"{name}, case {number % 4}, line {at + 1}, {size}", outcome, store)
            if not unchanged and not outcome.said:
                tally.breach("unnamed_losses", f"{name}, case {number % 4}, line {at + 1}: said by nobody")
        yield tally


def missing_files(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    tally = Tally("store: files and folders removed")
    names = [path.relative_to(original) for path in sorted(original.rglob("*"))]
    for name in rng.permutation(np.array(names))[: 4 if quick else None]:
        store = fresh(original, folder)
        target = store / name
        holds = name.parts[0] == "segments" and name.name != "schema.json"
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        outcome = live_through(store)
        judge(tally, f"{name} removed", outcome, store, 0 if holds else EPISODES)
        if holds and not outcome.said:
            tally.breach("unnamed_losses", f"{name} removed")
    yield tally


def foreign_folders(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """Somebody's export inside of the store."""
    tally = Tally("store: exports placed inside")
    numbered = ("segments/2024", "segments/000002", "segments/000007", "segments/000002.gone")
    for where in ("export", "segments/export", *numbered):
        store = fresh(original, folder)
        place = store / where
        if place.exists():
            continue
        (place / "data").mkdir(parents=True)
        (place / "data/file-000.parquet").write_bytes(b"somebody's work")
        outcome = live_through(store)
        judge(tally, f"an export as {where}", outcome, store)
        found = [path for path in store.rglob("file-000.parquet") if path.read_bytes() == b"somebody's work"]
        if not found:
            tally.breach("good_bytes_deleted", f"an export as {where}")
    yield tally


def swaps(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """The folder of an open writer moved away, and nothing, another store or a copy put in its place."""
    tally = Tally("store: swapped under a writer and a labeler")
    for number, kind in enumerate(("nothing", "another", "copy", "empty")):
        for who in WHO if not quick else (WHO[number % 3],):
            store = fresh(original, folder)
            outcome = Outcome()
            opened = Store.open(store, write=who == "writer")
            away = folder / "away"
            store.rename(away)
            if kind == "another":
                make(store, 5)
            elif kind == "copy":
                shutil.copytree(away, store)
            elif kind == "empty":
                store.mkdir()
            before = contents(store)
            if who == "writer":
                acknowledged = outcome.tried("append", partial(opened.append, nth_episode(EPISODES)))
            elif who == "labeler":
                acknowledged = outcome.tried("label", partial(opened.ledger.append, 0, nth_labels(0)))
            else:
                acknowledged = outcome.tried("refresh", opened.refresh)
            opened.close()
            if contents(store) != before:
                tally.breach("good_bytes_deleted", f"{who}, {kind}: the store that took its place was changed")
            there = live_through(away, "read check write check read")
            outcome.said += there.said
            there.said = outcome.said
            there.tracebacks += outcome.tracebacks
            judge(tally, f"{who}, {kind}", there, away)
            if who == "writer" and acknowledged is not None and EPISODES not in there.episodes:
                tally.breach("unnamed_losses", f"{kind}: an acknowledged episode is in neither")
    yield tally


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def locks(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """`writer.lock` deleted, replaced or emptied while it is held."""
    tally = Tally("store: locks deleted while they are held")
    for kind in ("deleted", "replaced", "moved", "a folder"):
        store = fresh(original, folder)
        outcome = Outcome()
        with Store.open(store, write=True) as first:
            (store / "writer.lock").unlink()
            if kind == "replaced":
                (store / "writer.lock").write_text("nobody")
            if kind == "a folder":
                (store / "writer.lock").mkdir()
            outcome.tried("second writer", partial(append, store, 1000, outcome))
            if not outcome.said:
                tally.breach("unnamed_losses", f"lock {kind}: a second writer was let in")
            first.append(nth_episode(EPISODES))
        if kind == "a folder":
            (store / "writer.lock").rmdir()
        there = live_through(store, "read check write check read")
        there.tracebacks += outcome.tracebacks
        judge(tally, f"lock {kind}", there, store, EPISODES)
    yield tally


def write_for_ever(folder: Path, pipe: int) -> None:
    with Store.open(folder, write=True) as store:
        n = len(store)
        while True:
            ids = store.extend([nth_episode(n + i) for i in range(1 + n % 3)])
            os.write(pipe, b"".join(b"E%d\n" % i for i in ids))
            for i in ids:
                store.ledger.append(i, nth_labels(i))
                os.write(pipe, b"L%d\n" % i)
            n += len(ids)


def kills(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """SIGKILL of a writer at random moments, over and over in one store."""
    tally = Tally("store: kills of a writer")
    store = folder / "killed"
    Store.create(store, images="wrist=lossless").close()
    context = multiprocessing.get_context("fork")
    episodes, labels = 0, set[int]()
    for _ in range(3 if quick else 200):
        receive, send = os.pipe()
        child = context.Process(target=write_for_ever, args=(store, send))
        child.start()
        os.close(send)
        said = os.read(receive, 1 << 16)
        time.sleep(float(rng.uniform(0, 0.03)))
        os.kill(child.pid or 0, signal.SIGKILL)
        while chunk := os.read(receive, 1 << 16):
            said += chunk
        os.close(receive)
        child.join()
        words = said.decode().split()
        acknowledged = {int(word[1:]) for word in words if word[0] == "E"}
        labels |= {int(word[1:]) for word in words if word[0] == "L"}
        found = Store.open(store)
        tally.tried += 1
        for i in sorted(set(found.ids) - set(range(episodes))):
            if not same(found.episode(i), nth_episode(i)):
                tally.breach("wrong_arrays", f"episode {i} is torn")
        missing = acknowledged - set(found.ids)
        missing |= {i for i in labels if (said_of := found.ledger.labels(i)) is None or said_of.note != str(i)}
        if missing:
            tally.breach("unnamed_losses", f"episodes or labels {sorted(missing)}")
        episodes = len(found)
        with Store.open(store, write=True) as opened:
            tally.named += bool(opened.repaired)
    report = check(store)
    if not report.ok:
        tally.breach("unnamed_losses", report.problems[0])
    yield tally


def label_for_a_while(path: Path, name: str, count: int, pipe: int) -> None:
    ledger = Ledger(path)
    for i in range(count):
        n = i % EPISODES
        ledger.append(n, Labels.from_cutoff(steps=nth_episode(n).steps, cutoff=1, source=name, note=str(i)))
        os.write(pipe, b"%s %d\n" % (name.encode(), i))


def repairs(original: Path, folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    """`check --repair` beside labelers: every label that was acknowledged is there."""
    tally = Tally("store: repair beside writers and labelers")
    context = multiprocessing.get_context("fork")
    for _ in range(1 if quick else 30):
        store = fresh(original, folder)
        receive, send = os.pipe()
        whose = [(store / "labels", name, 30, send) for name in ("one", "two")]
        jobs = [context.Process(target=label_for_a_while, args=arguments) for arguments in whose]
        for job in jobs:
            job.start()
        os.close(send)
        outcome = Outcome()
        while any(job.is_alive() for job in jobs):
            (store / "labels.head").unlink(missing_ok=True)  # something to repair, that loses nothing
            report = outcome.tried("repair", lambda store=store: check(store, repair=True))
            outcome.said += report.problems if report else []
            tally.tried += 1
        said = b""
        while chunk := os.read(receive, 1 << 16):
            said += chunk
        os.close(receive)
        for job in jobs:
            job.join()
        acknowledged = set(said.decode().splitlines())
        found = {f"{v.source} {v.line['note']}" for v in Ledger(store / "labels").since(0)}
        if acknowledged - found:
            tally.breach("unnamed_losses", f"{len(acknowledged - found)} labels acknowledged during a repair")
        if any(job.exitcode for job in jobs):
            tally.breach("tracebacks", "a labeler ended with an error during a repair")
        for sentence in outcome.tracebacks[:1]:
            tally.breach("tracebacks", sentence)
        with Store.open(store, write=True) as writer:
            refused = Outcome()
            refused.tried("repair", lambda store=store: check(store, repair=True))
            tally.named += bool(refused.said)
            if not refused.said:
                tally.breach("unnamed_losses", "a repair was let in beside a writer")
            live = outcome.tried("check", lambda store=store: check(store))
            writer.append(nth_episode(EPISODES))
            if live is None or not live.ok:
                tally.breach("tracebacks", f"a check of a live store: {live.problems if live else outcome.said}")
    yield tally


CLASSES = (bit_flips, truncations, lines, missing_files, foreign_folders, swaps, locks, kills, repairs)


def attacks(folder: Path, rng: Rng, quick: bool) -> Iterator[Tally]:
    original = make(folder / "original")
    for number, one in enumerate(CLASSES):
        place = folder / f"{number}" / "work"
        place.mkdir(parents=True)
        yield from one(original, place, rng, quick)

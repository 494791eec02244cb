"""Attacks on the commands, and on whoever runs them with files of somebody else.

Fuzzed commands: every option of every command gets values that nobody meant, one or two at a time, on top of words with
which the command works. Each runs in a child of this process, which has everything imported; one that is still at work
after a moment gets Ctrl-C and has to end by it. An end is an exit code of 0, 1, 2 or 130, with words where it is not 0.

Hostile files: models, policies, judges, runs and configs that name a module which leaves a trace when it is imported,
that ask for environment variables, and that name servers; a server here and a hook on every connection count who calls.
"""

import contextlib
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import typer.main

from attacks.foreign import MODULE, SECRET, VARIABLE, files_of_somebody
from attacks.tally import Tally
from plaudit.cli import load_app, main
from plaudit.data.store import Store
from plaudit.types import Episode, Labels

MOMENT, GRACE = 1.5, 8.0  # s before Ctrl-C, and after it
QUICK, FULL = 60, 3000  # fuzzed commands
# They open windows, start processes that stay, or run for minutes whatever they are told.
GROUPS = ("data", "env", "robot", "judge", "cluster")
NOT_RUN = {"demo", "cluster start", "robot twin"}
# They import what takes seconds: Ray, transformers, the learners.
NOT_QUICK = {"train", "train-policy", "run", "online", "cluster check", "cluster status", "judge explain", "eval"}

# Words with which a command comes as far as it can within a moment; it is run in a folder that has these files.
WORKS: dict[str, list[str]] = {
    "data import": ["npy", "new"],
    "data export": ["store", "new", "--to", "npy"],
    "data info": ["store"],
    "data check": ["store"],
    "data label": ["store", "cutoffs.json"],
    "data sheet": ["store", "0"],
    "data stats": ["store"],
    "env view": ["lift", "--size", "16", "--output", "x.png"],
    "env bench": ["lift", "--size", "16", "--seconds", "0.1", "--num-envs", "1"],
    "env record": ["new", "--episodes", "1", "--size", "16"],
    "robot check": ["igris_b", "--seconds", "0.1"],
    "judge eval": ["store", "--judge", "simulator"],
    "judge calibrate": ["store", "--judge", "classifier", "--model", "nothing"],
    "judge explain": ["store", "--config", "judge.yaml"],
    "label": ["store", "--judge", "simulator", "--dry-run"],
    "collect": ["new", "--target-success", "1", "--target-failure", "0", "--size", "16"],
    "train-reward": ["store", "--epochs", "1", "--device", "cpu"],
    "train": ["env=lift", "learner=sac", "run.max_steps=10"],
    "train-policy": ["store", "fit.steps=1"],
    "run": ["--robot", "sim", "--policy_yaml", "policy.yaml", "robot.env.type=lift"],
    "report": ["run"],
    "eval": ["run", "--episodes", "1"],
    "online": ["--resume", "nothing", "--serial"],
}
NUMBERS = "-1 0 1 2 1.5 nan inf -inf 1e400 ² ٣ １２ 0x10 1_000 true null 99999999999999999999 -99999999999999999999"
BRACKETS = "[1,2 { } [ a=[1,2 a={b a=${ a=${oc.env:X} = =1 a.b.c=1 [red]x [/] [link=http://x]y {0} %s * ' \" \\ `id`"
PATHS = "../../etc / /dev/null /dev/zero /dev/full /proc/self/status /etc/passwd folder fifo socket file link loop"
MORE_NUMBERS = "1e309 5e-324 -0 NaN 1e-400 +1 1. .5 0b1 1e5 -1e400j 00"
MORE_PATHS = "nothing store store/journal store/store.json npy run run/config.yaml broken_run ~"
NAMES = "deep.yaml noise.yaml a:b os:system : , ; cpu, cuda:99 cuda tcp/x localhost:99999 127.0.0.1:1 ::1 -- - --help"
LISTS = "0,1 1-0 0-99999999999 ²-³ 1,,2 0:0 999:999 1:² 16x x16 0x0 99999x99999 success, miss,, late=400 late=nan@inf"
CONTROLS = [
    "",
    " ",
    "\x1b[2J",
    "a\x1b]0;x\x07",
    "\u202ex",
    "\ud800",
    "x\udcffy",
    "a\nb",
    "x" * 5000,
    "9" * 5000,
    "[" * 5000,
    "\udcff/\udcfe",  # bytes that are no UTF-8, as Python has them in arguments
    "no_utf8_\udcff",
    "a=\udcff",
    "a=nan",
    "a=1e400",
    "a=",
    "name=../../x",
    "type=vlm",
]
RUN = '{"schedule": "train", "env": {"type": "lift"}, "learner": {"type": "sac"}}'  # a run's config.yaml
NASTY = [*" ".join([NUMBERS, MORE_NUMBERS, BRACKETS, PATHS, MORE_PATHS, NAMES, LISTS]).split(), *CONTROLS]


# Imported once, before a child is made, so that what is timed is the command.
NEEDED = ("torch", "plaudit.judges.classifier.rlinf", "plaudit.judges.labeling", "plaudit.report.tables")
HEAVY = (
    *("ray", "torch", "transformers", "openai", "plaudit.cluster.connect", "plaudit.cluster.check"),
    *("plaudit.training.online", "plaudit.training.trainer", "plaudit.training.evaluation"),
    *("plaudit.training.config_file", "plaudit.training.reward_model", "plaudit.judges.vlm.local"),
    *(
        "plaudit.judges.vlm.endpoint",
        "plaudit.judges.classifier.rlinf",
        "plaudit.judges.classifier.train_job",
    ),
    *("plaudit.report.run", "plaudit.report.judge", "plaudit.rollout.engine", "plaudit.learners.bc"),
)


def attacks(folder: Path, rng: np.random.Generator, quick: bool) -> Iterator[Tally]:
    """See the module."""
    for module in NEEDED if quick else HEAVY:
        with contextlib.suppress(ImportError):
            import_module(module)
    made(folder)
    yield from fuzzed(folder, rng, QUICK if quick else FULL, NOT_RUN | NOT_QUICK if quick else NOT_RUN)
    yield from hostile(folder, rng, quick)


def fuzzed(folder: Path, rng: np.random.Generator, count: int, not_run: set[str]) -> Iterator[Tally]:
    commands = {name: command for name, command in leaves(typer.main.get_command(load_app())) if name not in not_run}
    by_group: dict[str, list[list[str]]] = {}
    for number in range(count):
        name = list(commands)[number % len(commands)]
        by_group.setdefault(name.split()[0], []).append(fuzz(name, commands[name], rng))
    for group, lines in by_group.items():
        tally = Tally(f"commands: fuzzed {group}")
        for line, end in zip(lines, ends(lines, folder), strict=True):
            count_end(tally, line, end)
        yield tally


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its words."""
    for word, inner in command.commands.items():
        whole = f"{name} {word}".strip()
        if word in GROUPS and not name:
            yield from leaves(inner, whole)
        else:
            yield whole, inner


def fuzz(name: str, command: Any, rng: np.random.Generator) -> list[str]:
    """The words with which it works, with one or two of its options spoilt."""
    words = list(WORKS.get(name, []))
    for _ in range(int(rng.integers(1, 3))):
        value = NASTY[rng.integers(len(NASTY))]
        options = [param for param in command.params if param.param_type_name == "option" and param.name != "help"]
        chosen = rng.integers(len(options) + 1)
        if chosen < len(options):
            option = options[chosen]
            flag = option.opts[rng.integers(len(option.opts))]
            words += [flag] if option.is_flag else [flag, *[value] * option.nargs]
        elif words and not words[0].startswith("-") and rng.random() < 0.5:
            words[0] = value
        else:
            words.append(value)
    return [*name.split(), *(word.replace("\0", "") for word in words)]


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int | None  # None: it did not end
    said: str
    called: tuple[str, ...] = ()  # addresses that it tried to connect to


def ends(lines: Sequence[Sequence[str]], folder: Path) -> Iterator[End]:
    """Of each, in children of this process; a child that dies or hangs is one command's end, and another goes on."""
    done = 0
    while done < len(lines):
        for end in in_child(lines[done:], folder):
            yield end
            done += 1


def in_child(lines: Sequence[Sequence[str]], folder: Path) -> Iterator[End]:
    """Until the child has run all, or does not answer any more."""
    there, here = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(there)
        os.setsid()
        try:
            serve(lines, folder, here)
        finally:
            os._exit(0)
    os.close(here)
    with os.fdopen(there, "rb", buffering=0) as pipe:
        kept = b""
        for _ in lines:
            until = time.monotonic() + MOMENT + GRACE + 10
            while b"\n" not in kept:
                ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
                new = pipe.read(1 << 16) if ready else b""
                if not new:
                    break
                kept += new
            line, newline, kept = kept.partition(b"\n")
            if not newline:
                yield End(None, "it hung, or its process died")
                break
            found = json.loads(line)
            yield End(found["code"], found["said"], tuple(found["called"]))
            if found["code"] == 130:
                break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def serve(lines: Sequence[Sequence[str]], folder: Path, pipe: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.chdir(folder)
    os.environ |= {VARIABLE: SECRET, "OPENAI_API_KEY": SECRET, "PLAUDIT_CLUSTER_DIR": str(folder / "cluster")}
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    called: list[str] = []
    listen_in(called)
    for words in lines:
        called.clear()
        code, said = one(words)
        end = {"code": code, "said": said[-2000:], "called": called}
        os.write(pipe, json.dumps(end).encode() + b"\n")
        if code == 130:  # it may have been in the middle of an import, which this process cannot repeat
            return


def one(words: Sequence[str]) -> tuple[int | None, str]:
    """Run a command here; its exit code, -1 for an exception that nobody caught."""
    said = io.StringIO()
    sys.argv = ["plaudit", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, MOMENT, GRACE)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return code, said.getvalue()
    except BaseException:  # noqa: BLE001 - whatever came through is what is looked for
        return -1, f"{said.getvalue()}\n{traceback.format_exc()}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0, said.getvalue()


def listen_in(called: list[str]) -> None:
    """Note every connection that this process begins, and every name it looks up."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def noted(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            called.append(str(address))
        return connect(self, address)

    def looked_up(host: Any, *arguments: Any, **options: Any) -> Any:
        called.append(str(host))
        return look_up(host, *arguments, **options)

    socket.socket.connect, socket.getaddrinfo = noted, looked_up  # type: ignore[method-assign]


def count_end(tally: Tally, words: Sequence[str], end: End) -> None:
    shown = " ".join(map(ascii, words))[:300]
    tally.tried += 1
    tally.named += end.code in (1, 2)
    raw = "Traceback (most recent" in end.said or "\x1b" in end.said or "\u202e" in end.said
    if end.code not in (0, 1, 2, 130) or raw:
        tally.breach("tracebacks", f"{shown}: {end.code}, {end.said.strip()[-400:]!r}")
    elif end.code and not end.said.strip():
        tally.breach("tracebacks", f"{shown}: {end.code}, without a word")


def made(folder: Path) -> None:
    """What fuzzed commands find: a store, files of every kind, configs that are none."""
    rng = np.random.default_rng(0)
    with Store.create(folder / "store") as store:
        for _ in range(2):
            frames = {"front": rng.integers(0, 255, (5, 16, 16, 3), np.uint8)}
            facts: dict[str, Any] = {"fps": 10.0, "task": "\x1b[2J[red]lift\u202e"}
            arrays = {"state": np.zeros((5, 2), np.float32), "actions": np.zeros((4, 1), np.float32)}
            episode = Episode.of(frames=frames, **arrays, **facts)
            store.ledger.append(store.append(episode), Labels.from_cutoff(steps=4, cutoff=3, source="human"))
    (folder / "folder").mkdir()
    (folder / "npy").mkdir()
    os.mkfifo(folder / "fifo")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(folder / "socket"))
    (folder / "no_utf8_\udcff").write_bytes(b"")
    for name, text in (("run", RUN), ("broken_run", "[1,2")):
        (folder / name).mkdir()
        (folder / name / "config.yaml").write_text(text)
    (folder / "link").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")
    (folder / "file").write_bytes(bytes(range(256)))
    (folder / "noise.yaml").write_bytes(rng.bytes(500))
    (folder / "deep.yaml").write_text("a: " + "[" * 100_000)
    (folder / "cutoffs.json").write_text('{"0": 2, "1": null}')
    (folder / "judge.yaml").write_text("type: vlm\nmodel: nothing\n")
    (folder / "policy.yaml").write_text("policy: {type: scripted, expert: lift}\n")


# Files of somebody else


def hostile(folder: Path, rng: np.random.Generator, quick: bool) -> Iterator[Tally]:
    trap = folder / "python"
    trap.mkdir()
    sprung = folder / "sprung"
    (trap / f"{MODULE}.py").write_text(f"open({str(sprung)!r}, 'w').close()\nThing = print\n")
    sys.path.insert(0, str(trap))
    checks: dict[str, Callable[[End], str]] = {
        "import code": lambda end: "code_run" if sprung.exists() else "",
        "read variables": lambda end: "requests_sent" if SECRET in end.said or end.called else "",
        "call servers": lambda end: "requests_sent" if end.called else "",
    }
    for what, lines in files_of_somebody(folder, rng, quick).items():
        tally = Tally(f"commands: files that {what}")
        for line, end in zip(lines, ends(lines, folder), strict=True):
            sprung_kind: Any = checks[what](end)
            count_end(tally, line, end)
            if sprung_kind:
                tally.breach(sprung_kind, f"{' '.join(line)}: {end.called} {end.said.strip()[-300:]!r}")
            sprung.unlink(missing_ok=True)
        yield tally
    sys.path.remove(str(trap))

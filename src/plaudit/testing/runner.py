"""One simulated run: sessions of the real trainers, killed, stopped and resumed by the events of a scenario.

    result = simulate(draw(7))
    result.violation, result.log

A recording session is `plaudit record` itself, with a person at the device and one at the keys.

    recorder = Recorder(config, folder, episodes=6, seed=7)
    recorder.session()           # "" when the store has all episodes; else why the command ended before
    recorder.check(world)
"""

import errno
import gc
import json
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

from plaudit.cli.common import err, out
from plaudit.cli.record import record
from plaudit.config import parse
from plaudit.data.store import Store, is_store
from plaudit.errors import PlauditError, RobotSilent
from plaudit.rollout.operator import MARK, Operator, OperatorCommand
from plaudit.rollout.recording import DISCARDED_MARKS, LABELED_MARKS, discarded_folder
from plaudit.testing.env import SimulatedEnv, SimulatedEnvConfig
from plaudit.testing.faults import Kill, SimulatedDisk, SimulatedGroup, attending, simulated_machine
from plaudit.testing.invariants import SILENT, Watch
from plaudit.testing.people import TELEOP, People
from plaudit.testing.scenario import Event, Scenario
from plaudit.testing.world import InvariantViolated, Violation, World, entered
from plaudit.training.config import EVAL_SEEDS, TrainingConfig
from plaudit.training.online import OnlineTrainer
from plaudit.training.retrain import decisions
from plaudit.training.rollout_judge import with_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import Trainer, check_run
from plaudit.types import HUMAN, OPERATOR


class Recorder:
    """The command, which may be run again in the same folder."""

    fired = False  # no worker can fail

    def __init__(self, config: TrainingConfig, folder: Path, episodes: int, seed: int):
        self._config, self._folder, self._episodes, self._seed = config, folder, episodes, seed
        self._operator: Operator | None = None

    def operate(self, command: OperatorCommand) -> None:
        """Somebody presses a key."""
        if self._operator is not None:
            self._operator.send(command)

    def close(self) -> None: ...

    def session(self) -> str:
        """Run the command; returns why it ended early, "" if the store is complete."""
        said: list[str] = []

        def attended(*args: Any) -> Operator:
            self._operator = attending(*args)
            return self._operator

        with ExitStack() as stack:
            stack.enter_context(patch("plaudit.rollout.operator.Operator", attended))
            stack.enter_context(patch("plaudit.rollout.operator.has_terminal", lambda: True))
            stack.enter_context(patch("plaudit.rollout.operator.listen_at_terminal", lambda *_: nullcontext()))
            stack.enter_context(patch.object(out, "print", lambda *_, **__: None))
            stack.enter_context(patch.object(err, "print", lambda text: said.append(str(text))))
            try:
                record(self._folder, self._words(), **self._options())
            except typer.Exit:
                return said[-1]
            finally:
                self._operator = None
        return ""

    def _options(self) -> dict[str, Any]:
        attended = self._config.operator.auto is False
        steps = self._config.policy.inference.max_episode_steps
        options = {"teleop": TELEOP, "episodes": self._episodes, "steps": steps, "seed": self._seed}
        return {**options, "auto": not attended, "countdown": 0, "view": "none"}

    def _words(self) -> list[str]:
        """The keys as a user would write them."""
        config, kind = self._config, f"{SimulatedEnvConfig.__module__}:{SimulatedEnvConfig.__name__}"
        trees = {"robot.env": config.env.model_dump(mode="json"), "teleop": {"helps": 1.0}}
        if config.teleop is not None:
            trees["teleop"] |= config.teleop.model_dump(mode="json")
        words = [f"{key}.{name}={json.dumps(value)}" for key, tree in trees.items() for name, value in tree.items()]
        patience, gate = config.policy.inference.patience_s, json.dumps(config.operator.gate)
        inference = ["policy.inference.realtime=false", f"policy.inference.patience_s={patience}"]
        return [f"robot.env.type={kind}", *inference, f"operator.gate={gate}", *words]

    def check(self, world: World) -> None:
        """The store has as many episodes as were asked for, each by a person, with a seed and the mark of its own."""
        store, seeds = Store.open(self._folder), set[int]()
        message = f"{len(store)} episodes are recorded, {self._episodes} were asked for"
        world.check(len(store) == self._episodes, "recorded", message)
        for i, episode in store:
            mark, label = episode.meta.get(MARK), store.ledger.labels(i, {OPERATOR})
            said = None if label is None else OperatorCommand.SUCCESS if label.success_once else OperatorCommand.FAILURE
            message = f"episode {i} is marked '{mark}', and its label is '{said}'"
            world.check(said == (mark if mark in LABELED_MARKS else None), "recorded", message)
            world.check(mark not in DISCARDED_MARKS, "recorded", f"episode {i} was discarded, and is kept")
            world.check((episode.control_mode == HUMAN).all(), "recorded", f"episode {i} has steps of no person")
            seed = episode.meta["seed"]
            world.check(seed not in seeds, "recorded", f"episode {i} has seed {seed}, which an earlier one has too")
            seeds.add(seed)
        if is_store(folder := discarded_folder(self._folder)):
            for i, episode in Store.open(folder):
                mark = episode.meta.get(MARK)
                world.check(mark in DISCARDED_MARKS, "recorded", f"episode {i} is put aside with the mark '{mark}'")


MAX_SESSIONS, MAX_TURNS = 8, 2500
UNFIT = (  # in messages about what only a run can find out: of its judge, its base, its robot
    *("sees success in", "demonstrations leave them out", "the base never succeeds in"),
    *("it was not trained for such noise", "this robot reports no '"),
)
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Result:
    """The result of a scenario."""

    scenario: Scenario
    violation: Violation | None
    log: tuple[str, ...]
    counts: Counter[str]  # steps, episodes, kills, answers, ...
    alarm: bool | None  # whether the judge was stopped; None: it was not audited to the end
    equal_promoted: bool | None  # whether an equally good candidate was promoted; None: there was none
    seconds: float


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """In memory where the machine has such a file system."""
    with tempfile.TemporaryDirectory(
        prefix="plaudit-simulated-", dir=SHM if SHM.is_dir() else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def simulate(scenario: Scenario) -> Result:
    """Run a scenario in a temporary folder."""
    began, violation, run = time.perf_counter(), None, None
    with entered(World(scenario.seed)) as world, temporary_folder() as folder:
        try:
            run = SimulatedRun(scenario, world, folder)
            run.play()
            if run.resumes_exactly:
                check_resumed(run, folder / "again")
        except InvariantViolated as broken:
            (violation,) = broken.args
    alarm, promoted = (None, None) if run is None else (run.alarm, run.equal_promoted)
    seconds = time.perf_counter() - began
    return Result(scenario, violation, tuple(world.log), world.counts, alarm, promoted, seconds)


def check_resumed(run: "SimulatedRun", folder: Path) -> None:
    """A synchronous run that was killed and resumed is the same as one that was never interrupted."""
    folder.mkdir()
    with entered(World(run.scenario.seed)) as world:
        plain = SimulatedRun(replace(run.scenario, events=()), world, folder)
        plain.play()
    one, other = (_outcome(each.path) for each in (run, plain))
    for line, expected in zip(one[0], other[0]):
        differing = [key for key in {*line, *expected} if line.get(key) != expected.get(key)]
        message = f"at step {expected['step']}: {differing} differ from an uninterrupted run"
        run.world.check(not differing, "resumes_exactly", message)
    run.world.check(one == other, "resumes_exactly", "the policy, or the number of metrics, differs")


def _outcome(path: Path) -> tuple[list[dict[str, float]], bytes]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    weights = path / "policy" / "model.safetensors"
    timeless = [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]
    return timeless, weights.read_bytes() if weights.exists() else b""


class SimulatedRun:
    """The run of one scenario, over all of its sessions."""

    def __init__(self, scenario: Scenario, world: World, folder: Path):
        self.scenario, self.world, self.folder, self.path = scenario, world, folder, folder / "run"
        self.config = scenario.build(folder)
        if self._events("operator"):
            attended = self.config.operator.model_copy(update={"auto": False})
            self.config = self.config.model_copy(update={"operator": attended})
        kills = {event.at: event.kind for kind in ("kill", "power") for event in self._events(kind)}
        full = {event.at: int(event.number) for event in self._events("full")}
        self.disk = SimulatedDisk(world, kills, full)
        self.watch = Watch(world, self.config, self.path)
        self.disk.on_rename = self.watch.renamed
        self.people = People(scenario.habits, world)
        self.worker_faults = {
            (event.what.split(": ")[0], event.at): event.what.split(": ")[1] for event in self._events("worker")
        }
        self.slow = {event.what: int(event.number) for event in self._events("slow")}
        self._pending = [e for e in scenario.events if e.kind in ("person", "stop", "replace", "unreachable")]
        self._robot_events = [e for e in scenario.events if e.kind in ("operator", "silent")]
        self._turn, self._episode = 0, -1
        self._fired = self._stopped = False  # in this session: a fault of robot or judge; the run was stopped
        self._silent: Event | None = None
        self._group: SimulatedGroup | Recorder | None = None
        self._replaced = self._ended = False
        self.alarm: bool | None = None
        self.equal_promoted: bool | None = None
        world.on_batch, world.on_rollout = self.watch.on_batch, self.watch.on_rollout
        world.on_env_step = self._on_env_step

    def _events(self, kind: str) -> list[Event]:
        return [event for event in self.scenario.events if event.kind == kind]

    def play(self) -> None:
        """Run all sessions to the end."""
        config, inference = self.config, self.config.policy.inference
        self.world.note(f"{self.scenario.schedule}, judge {self.scenario.judge}: {dict(self.scenario.keys)}")
        if config.schedule == "train":
            with simulated_machine(self.world, self.disk):
                try:
                    check_run(config)
                except PlauditError as error:
                    self.world.fail("accepted_runs", f"the run is refused although its config was accepted: {error}")
        elif (
            config.backup_horizon == config.learner.action_horizon > 1 and inference.execution_horizon is None
        ):  # the default engine executes whole chunks: a backup over a chunk is one over what was executed
            realtime = config.policy.model_copy(update={"inference": inference.model_copy(update={"realtime": True})})
            kind = config.model_copy(update={"policy": realtime}).inference_type
            message = f"a learner of chunks is driven by '{kind}' in real time, which executes a part of them"
            self.world.check(kind == "sequential", "whole_chunks", message)
        for session in range(MAX_SESSIONS):
            if self._session(session):
                break
        self.world.counts["unfinished"] += not self._ended
        if is_store(self.path / "episodes"):
            self.world.counts["episodes"] += Store.open(self.path / "episodes").next_id

    @property
    def resumes_exactly(self) -> bool:
        """Whether it was interrupted, and nothing else distinguishes it from one that was not."""
        kinds = {event.kind for event in self.scenario.events}
        interrupted = self.world.counts["sessions"] > 1 and not kinds & {"person", "full", "replace"}
        return self.config.collect is None and self.config.schedule == "train" and interrupted and self._ended

    def _session(self, number: int) -> bool:
        """Whether the run is over."""
        world = self.world
        world.note(f"session {number + 1} begins")
        world.counts["sessions"] += 1
        self._fired = self._stopped = False
        if number == MAX_SESSIONS - 3:  # let it end
            self.worker_faults.clear()
            self._robot_events.clear()
            self._silent = None
        self.disk.was_full = False
        with simulated_machine(world, self.disk), self.watch.acknowledged():
            self.watch.new_session(self.config)
            try:
                if number:
                    self.watch.after_resume()
                run = {"train": self._train, "online": self._online, "record": self._record}
                self._ended = run[self.scenario.schedule]()
                return self._ended
            except Kill:
                pass
            except PlauditError as error:
                if self._is_over(error):
                    return True
            except Exception as error:  # noqa: BLE001 - of the code under test
                where = traceback.extract_tb(error.__traceback__)[-1]
                message = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
                full = isinstance(error, OSError) and error.errno == errno.ENOSPC and self.disk.was_full
                world.check(full, "no_crash", message)
                world.note(f"the session ends with {message}")
        if self.disk.dead:  # nothing of the killed process is left
            self._group = None
            self.watch.new_session(self.config)
            self.disk.revive()
            gc.collect()
        return False

    def _is_over(self, error: PlauditError) -> bool:
        """Whether a run is right to end with this error, and would end so again. Otherwise the error must name a fault
        of this session."""
        text, full, fired = f"{type(error).__name__}: {error}", self.disk.was_full, self._fired
        self.world.note(f"the session ends with {text}")
        gave_up = "did not recover within" in text and bool(self._events("unreachable"))
        judge = self.scenario.errors.get("raises", 0) and ("could not label" in text or "raises on" in text)
        unfit = any(words in text for words in UNFIT)
        is_over = bool(gave_up or judge or unfit or (self._silent is not None and self._silent.what == "always"))
        worker = self._group is not None and self._group.fired
        causes = {"is full": full, "No space left": full, SILENT: fired, "cannot be reached": fired}
        causes |= {"simulated": worker, "its process died": worker}
        excused = any(happened and word in text for word, happened in causes.items())
        self.world.check(excused or is_over, "accepted_runs", text)
        return is_over

    # The two schedules

    def _online(self) -> bool:
        folder = RunFolder.open(self.path, self.config)
        group = self._group = SimulatedGroup(folder, self.world, self.worker_faults, self.slow)

        def callback(progress: Any) -> bool:
            group.live = True
            self._check_online(trainer, progress)
            over = trainer.schedule.finished or trainer.monitor._closed  # no one acts after the end
            return over or self._act(trainer.monitor.store)

        try:
            trainer = OnlineTrainer(folder, group)
            end = trainer.run(callback)
        finally:
            if not self.disk.dead:
                group.close()
                folder.close()
        if not self._stopped:
            schedule = trainer.schedule
            over = schedule.all_collected and not trainer.monitor.blocks_learning
            due = schedule.pretrain_updates + self.config.learner.updates_due(end.replay.labeled_steps)
            checked = over and schedule.has_samples and not (schedule.target_reached or schedule.starved)
            self.watch.at_end(end.updates if checked else None, due)
            self._judge_alarm(trainer.monitor.audit.current if trainer.monitor.audit else None)
        return not self._stopped and not self._replace_after_alarm()

    def _check_online(self, trainer: OnlineTrainer, progress: Any) -> None:
        monitor = trainer.monitor
        # Counters are those of the last time that all answered, and at the end they are not read again.
        if not progress.errors and not monitor._closed:
            self.watch.check_online(progress, trainer.schedule)
        if monitor.audit is not None:
            self.watch.check_audit(monitor.audit.current, monitor.audit.fingerprint)

    def _train(self) -> bool:
        exists = self.path.exists() and (self.path / "config.yaml").exists()
        folder = RunFolder.reopen(self.path, "train") if exists else RunFolder.create(self.path, self.config)

        def callback(progress: Any) -> bool:
            self.world.now += 10
            self.watch.check_train(progress, trainer.episodes)
            if not self.config.judge.is_simulator:
                self.watch.check_audit(trainer.audit, trainer.judge.judge.id.fingerprint)
            return self._act(None if trainer.episodes is None else trainer.episodes.store)

        with Trainer(folder, lambda _: iter) as trainer:
            self.watch.audit = trainer.audit
            trainer.run(callback)
            self.watch.saved()
            if not self._stopped:
                self.watch.at_end(None, 0)
                self._judge_alarm(None if self.config.judge.is_simulator else trainer.audit)
        return not self._stopped and not self._replace_after_alarm()

    def _record(self) -> bool:
        scenario = self.scenario
        self._group = recorder = Recorder(self.config, self.path / "episodes", scenario.episodes, scenario.seed % 1000)
        why = recorder.session()
        self.world.note(f"the command ends: {why or 'all episodes are recorded'}")
        if why and not why.startswith("stopped by the operator"):
            raise PlauditError(why)
        if not why:
            recorder.check(self.world)
        return not why

    def _judge_alarm(self, audit: Any) -> None:
        """Record whether the guarantees held in this run."""
        decided = decisions(self.path / "judge")
        if self.world.counts["candidates equal"] and not self._replaced:
            kinds = self.world.candidates
            self.equal_promoted = any(d.promoted and kinds.get(d.number) == "equal" for d in decided)
        if audit is not None and not self._replaced:
            self.alarm = audit.alarm is not None

    # Events

    def _act(self, store: Store | None) -> bool:
        """What happens between two turns; False: the run is stopped here, and resumed."""
        self.world.counts["turns"] += 1
        self._turn += 1
        if store is not None and store.ids:
            store.refresh()
            store.ledger.refresh()
            if self.config.schedule == "online":
                self.people.act(store, self._turn, self.watch.source)
        for event in [e for e in self._pending if e.at <= self._turn]:
            if event.kind == "person" and (store is None or not store.ids):
                continue
            self._pending.remove(event)
            if event.kind == "person" and store is not None:
                self.people.label(store, store.ids[int(event.number) % len(store.ids)], event.what)
            elif event.kind == "unreachable":
                self._fired = True
                self.world.counts["unreachable judges"] += 1
                self.world.judge_down_until = self.world.now + event.number
                self.world.note(f"the judge cannot be reached for {event.number:g} s")
            elif event.kind == "replace":
                self._replace_judge(event)
                self._stopped = True
            elif event.kind == "stop":
                self.world.note("the run is stopped, and resumed")
                self._stopped = True
        if self._turn > MAX_TURNS:
            waits = self.config.asks_human or self._silent is not None
            self.world.check(waits, "ends", f"the run has not ended after {MAX_TURNS} turns")
            self._stopped = True
        return not self._stopped

    def _replace_after_alarm(self) -> bool:
        """Whether the run ended with an alarm, and continues with the judge that the scenario has left."""
        event = next((event for event in self._pending if event.kind == "replace"), None)
        if event is None or not self.alarm:
            return False
        self._pending.remove(event)
        self._replace_judge(event)
        return True

    def _replace_judge(self, event: Event) -> None:
        """Give the next session another judge."""
        self._replaced = True
        self.world.counts["judges replaced"] += 1
        self.world.note(f"the judge is replaced ({event.what})")
        model, calibration = str(self.folder / "judge_b"), {"temperature": 1.1, "bias": 0.01}
        tree = self.scenario.tree(self.folder)
        tree["judge"] |= {"model": model} if event.what == "model" else {"calibration": calibration}
        self.config = parse(TrainingConfig, tree).model_copy(update={"operator": self.config.operator})
        if self.config.schedule == "train":
            words = f"judge.model={model}" if event.what == "model" else f"judge.calibration={calibration}"
            with_judge(RunFolder.reopen(self.path), [words.replace("'", "")])

    def _on_env_step(self, env: SimulatedEnv) -> None:
        """An operator's commands and a silent robot; only the robot's own env is meant."""
        self.world.counts["steps"] += 1
        if self.config.schedule == "train" or env.seeds[0] >= EVAL_SEEDS:
            return
        step = int(env.frame[0])
        if step == 0:
            self._episode += 1
        for event in [e for e in self._robot_events if e.at <= self._episode and e.number == step + 1]:
            self._robot_events.remove(event)
            self._fired = True
            if event.kind == "silent":
                self._silent = replace(event, at=self._episode + {"once": 0, "often": 4, "always": 10**6}[event.what])
            elif self._group is not None:
                self.world.counts["operator commands"] += 1
                self.world.note(f"operator: {event.what} in step {step} of episode {self._episode}")
                self._group.operate(OperatorCommand(event.what))
                self.watch.robot_answers()  # an episode that the operator ends is not one that the robot has lost
        if self._silent is not None and self._episode <= self._silent.at and step >= self._silent.number - 1:
            self._fired = True
            self.world.counts["silent robots"] += 1
            self.world.note(f"the robot is silent in step {step} of episode {self._episode}")
            self.world.now += 0.1  # silence is noticed after a while, so patience is used up
            raise RobotSilent(SILENT)

"""Episodes in the viewer of Rerun, or in its files: `camera/NAME`, `state`, `action`, `takeover` and `events`.

An observation and the action that follows it have the same `frame` and `time`. A running episode is read by a process
of its own, from the memory that it is recorded in, so control waits for nothing. Where that process falls behind, it
leaves images out. A stored episode also has the newest labels of every judge:

    reward           of the labels that count: 1 where an action led to success
    simulator/NAME   what only the simulator knew, such as its own reward
    score/SOURCE     P(success) of each frame; progress/SOURCE likewise
    label/SOURCE     1 success, 0 failure
    events           text: the task, takeovers, and where each judge sees success begin

Values that follow from an action are at the frame that it led to.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from plaudit import processes
from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.data.store import Store
from plaudit.errors import DisplayError, RolloutError, TargetNotEmpty, import_extra
from plaudit.protocols import InferenceEngine
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.trust import check_host, check_no_secret, print_plain
from plaudit.types import HUMAN, AnyArray, EnvSpec, Episode, Labels, Observation, ProgressFn

VIEWER = "viewer"  # a window on this machine
START_S = 60.0  # for the process to import Rerun, before the robot moves
POLL_S = 0.02  # between looks at new rows
MAX_BEHIND = 15  # rows; of older ones the images are left out


def _check_target(text: str) -> str:
    if text == VIEWER or text.endswith(".rrd"):
        return text
    if text.startswith(("rerun+http://", "rerun+https://")):
        return check_host(check_no_secret(text))
    raise ValueError(
        f"'{text}' is not a target of Rerun; write viewer, a file like run.rrd, or rerun+http://HOST:PORT/proxy"
    )


Target = Annotated[str, AfterValidator(_check_target)]


class RerunLog:
    """Logs rows of episodes to a window, a file or another viewer."""

    def __init__(self, target: Target, name: str):
        """name: of the recording, for people"""
        self._rerun = import_extra("rerun", "rerun")
        self.recording = self._rerun.RecordingStream("plaudit")
        if target.endswith(".rrd"):
            self.recording.save(target)
        elif target != VIEWER:
            self.recording.connect_grpc(target)
        elif os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            self.recording.spawn()
        else:
            raise DisplayError("Rerun's viewer needs a screen, and there is none here; write to a .rrd file instead")
        self.recording.send_recording_name(name)

    def at(self, frame: int, seconds: float) -> None:
        """What comes next belongs to this frame."""
        self.recording.set_time("frame", sequence=frame)
        self.recording.set_time("time", duration=seconds)

    def observe(self, observation: Observation, *, images: bool = True) -> None:
        """What the robot observes."""
        for name, image in observation.images.items() if images else ():
            self.recording.log(f"camera/{name}", self._rerun.Image(image).compress(jpeg_quality=85))
        self.log("state", observation.state)

    def act(self, step: int, actions: AnyArray, control_mode: AnyArray) -> None:
        """What is sent at a step, and who sends it."""
        self.log("action", actions[step])
        person = bool(control_mode[step] == HUMAN)
        self.log("takeover", person)
        if person != (step > 0 and bool(control_mode[step - 1] == HUMAN)):
            self.say("a person takes over" if person else "the policy acts again")

    def log(self, name: str, values: Any) -> None:
        """A number, or one for each line of a plot."""
        self.recording.log(name, self._rerun.Scalars(values))

    def say(self, text: str) -> None:
        """An event."""
        self.recording.log("events", self._rerun.TextLog(text))

    def close(self) -> None:
        """Write what is left."""
        self.recording.flush()
        self.recording.disconnect()


@contextmanager
def streaming(target: Target | None, engine: InferenceEngine) -> Iterator[None]:
    """Show the episodes of this block while they are recorded; an error if that cannot begin.

    target: None for nowhere
    """
    if target is None:
        yield
        return
    process = processes.ChildProcess("rerun", "plaudit.rollout.rerun:main", engine.env_spec, _unused(target))
    try:
        ready = process.connection.poll(START_S)
        problem = process.connection.recv() if ready else f"it did not start within {START_S:g} s"
    except EOFError:
        problem = process.exit_reason()
    if problem:
        process.end()
        raise RolloutError(f"rerun={target}: {problem}")

    def pass_on(done: Event) -> None:
        passed: EpisodeBuffer | None = None
        ended = False
        while not ended:
            ended, buffer = done.wait(POLL_S), engine.recording
            if buffer is not None and buffer is not passed:
                passed = buffer
                process.send((buffer.max_steps, buffer.task), buffer.block.descriptor)

    try:
        with processes.run_thread("rerun", pass_on):
            yield
    finally:
        process.end()


def _unused(target: Target) -> Target:
    """The name of a file that does not exist: a resumed run keeps what an earlier session wrote."""
    path = Path(target).absolute()
    names = (path if number == 1 else path.with_stem(f"{path.stem}_{number}") for number in count(1))
    return str(next(name for name in names if not name.exists())) if target.endswith(".rrd") else target


def main(parent: Connection, env_spec: EnvSpec, target: Target) -> None:
    """The process that logs. An error ends it, and not the run."""
    processes.exit_with_parent(parent, processes.GRACE_S)
    os.nice(5)  # behind control and inference
    try:
        log = RerunLog(target, env_spec.name)
    except Exception as error:  # noqa: BLE001 - of Rerun; the parent reports it
        processes.send(parent, str(error) or type(error).__name__)
        return
    processes.send(parent, "")
    live = LiveEpisodes(log)
    try:
        with suppress(processes.ParentGone):
            while True:
                if parent.poll(POLL_S):
                    max_steps, task = processes.receive(parent)
                    live.begin(EpisodeBuffer.attach(processes.receive_block(parent), env_spec, max_steps), task)
                live.read()
        live.read()
        log.close()
    except Exception as error:  # noqa: BLE001 - of Rerun, or of a server that is gone
        print_plain(f"Rerun: {error}; the robot continues without it")


class LiveEpisodes:
    """Logs what is new in the memory of running episodes. Frames count on from one episode to the next."""

    def __init__(self, log: RerunLog):
        self._log = log
        self._buffer: EpisodeBuffer | None = None
        self._episodes = self._first = self._observations = self._commands = 0
        self._began: float | None = None  # of the first episode

    def begin(self, buffer: EpisodeBuffer, task: str) -> None:
        """Another episode; what is left of the one before is logged first."""
        self.read()
        self._first += self._observations
        self._episodes, self._observations, self._commands = self._episodes + 1, 0, 0
        self._buffer, self._title = buffer, f"episode {self._episodes}{f': {task}' if task else ''}"

    def read(self) -> None:
        """Log the rows that are new."""
        if (buffer := self._buffer) is None:
            return
        commands, until = buffer.num_commands, buffer.num_observations  # the command of a row comes after it
        for row in range(min(self._observations, self._commands), until):
            at = float(buffer.observed_at[row])
            self._began = at if self._began is None else self._began
            self._log.at(self._first + row, at - self._began)
            if row == 0 and not self._observations:
                self._log.say(self._title)
            if row >= self._observations:
                self._log.observe(buffer.observation(row), images=row >= until - MAX_BEHIND)
            if self._commands <= row < commands:
                self._log.act(row, buffer.actions, buffer.control_mode)
        self._observations, self._commands = until, min(commands, until)


def save_episode(store: Store, episode_id: int, path: Path, progress: ProgressFn = iter) -> None:
    """Write an episode into a new .rrd file; an interrupted call leaves none."""
    if path.suffix != ".rrd" or path.exists():
        raise TargetNotEmpty(f"{path} {'exists' if path.exists() else 'does not end with .rrd'}; name a new .rrd file")
    part = path.with_name(f".{path.stem}.part.rrd")
    try:
        show_episode(store, episode_id, str(part), progress)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def show_episode(store: Store, episode_id: int, target: str = VIEWER, progress: ProgressFn = iter) -> None:
    """Log an episode and its labels. target: see `plaudit.rollout.rerun`"""
    episode, counts = store.episode(episode_id), store.ledger.labels(episode_id)
    labels = {version.source: version.labels() for version in store.ledger.history(episode_id)}
    series, events = _of_frames(labels) | _of_steps(episode, counts), _events(episode, labels)
    log = RerunLog(target, f"{store.folder.name}, episode {episode_id}")
    try:
        for frame in progress(range(episode.steps + 1)):
            log.at(frame, frame / (episode.fps or 1.0))
            log.observe(episode.observation(frame))
            if frame < episode.steps:
                log.act(frame, episode.actions, episode.control_mode)
            for name, values in series.items():
                if np.isfinite(values[frame]).all():
                    log.log(name, values[frame])
            for text in events.get(frame, ()):
                log.say(text)
    finally:
        log.close()


def _of_frames(labels: dict[str, Labels]) -> dict[str, AnyArray]:
    """[T+1] of each judge, NaN where a frame has no value."""
    series: dict[str, AnyArray] = {}
    for source, one in labels.items():
        series[f"label/{source}"] = one.targets
        if one.scores is not None:
            series[f"score/{source}"] = one.scores.success_prob
            if one.scores.progress is not None:
                series[f"progress/{source}"] = one.scores.progress
    return series


def _of_steps(episode: Episode, counts: Labels | None) -> dict[str, AnyArray]:
    """[T+1, N] what the actions led to, NaN at the first frame."""
    steps = {f"simulator/{name}": values for name, values in episode.privileged.items()}
    if counts is not None:
        ended = np.zeros(episode.steps, bool)
        signal = learning_signal(Decisions.of(counts), ended, {}, RewardConfig(), 1.0, terminate_on_success=False)
        steps["reward"] = signal.reward
    rows = {name: values.reshape(len(values), -1).astype(float) for name, values in steps.items()}
    return {name: np.concatenate([np.full_like(values[:1], np.nan), values]) for name, values in rows.items()}


def _events(episode: Episode, labels: dict[str, Labels]) -> dict[int, list[str]]:
    """Frame -> what happens there."""
    events: dict[int, list[str]] = {0: [f"task: {episode.task}"] if episode.task else [], episode.steps: []}
    for source, one in labels.items():
        first = one.first_success
        text = f"{source}: no success" if first is None else f"{source}: success begins"
        events.setdefault(episode.steps if first is None else first, []).append(text)
        events[0] += [f"{source}: {one.note}"] if one.note else []
    events[episode.steps] += [f"ended by: {episode.meta['ended']}"] if "ended" in episode.meta else []
    return events

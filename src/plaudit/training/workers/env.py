"""The robot's side: act with the newest weights; no episode starts before the last one is in the replay buffer.

An episode that could not be sent stays in the outbox and is sent first at the next call. A failure of the robot is
raised after its last episode is sent. After a fault that may pass, like a silent camera, the episode is sent as it is,
and `load_policy` recovers robot and policy before the next one.

Weights are fetched between episodes. With `policy.update_within_episode`, a thread also fetches them during an episode,
and the inference engine uses them from the next chunk on.
"""

import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zlib import crc32

import numpy as np

from plaudit.data.store import Store, is_store
from plaudit.errors import PlauditError, RolloutError, RolloutFault, WorkerLost
from plaudit.policies.config import NetworkPolicyConfig
from plaudit.policies.loader import FROZEN_FILE, PolicySpec, write_weights
from plaudit.protocols import InferenceEngine
from plaudit.rollout.operator import Operator, OperatorCommand, OperatorStatus, listen_at_robot
from plaudit.rollout.recording import run_episode
from plaudit.rollout.rerun import streaming
from plaudit.rollout.run import advising
from plaudit.training.config import TrainingConfig
from plaudit.training.replay_buffer import ReplayBuffer, StateManager
from plaudit.training.workers.handles import Handle
from plaudit.trust import print_plain
from plaudit.types import EnvSpec, Episode

READER = "robot"  # its name for the state manager
SYNC_S = 0.2  # between two requests for new weights during an episode
OUTBOX = Path(".plaudit") / "unsent"  # in the home folder
KEEP_AFTER_S = 1.0  # that sending an episode may take before it is written to disk
KEY = "outbox"  # in the meta of an episode on disk: the key that it is sent with


@dataclass(frozen=True)
class EpisodeInfo:
    """An episode that is in the replay buffer."""

    id: int  # of one that the operator discarded: in the store of discarded episodes
    steps: int
    version: int  # of the weights that it began with
    success: bool | None  # by the simulator; None on a robot
    began: float  # s since 1970
    seconds: float  # that it took
    ended: str  # by what
    held_ticks: int  # control steps without a command
    starved_chunks: int  # that ran out before the next one was ready
    guided_fraction: float | None  # of the chunks that should continue the one before
    timing: Mapping[str, float] = field(default_factory=dict)  # means of its control steps, ms (recording.py)
    fault: bool = False  # whether it ended by a fault that may pass; `load_policy` comes next then


class PendingEpisode(NamedTuple):
    """An episode that is not in the replay buffer yet."""

    episode: Episode
    key: str  # of its own, so that it may be sent twice
    began: float  # s since 1970
    seconds: float  # that it took


class Outbox:
    """The recorded episode on its way to the replay buffer.

    On a cluster the replay buffer may be away for longer than this process lives. There, an episode that takes long to
    send, or fails, is also written to this machine's disk, and the next process sends it. It is not written otherwise:
    an episode may have a hundred megabytes.
    """

    def __init__(self, replay: Handle[ReplayBuffer], *, on_disk: bool):
        self._replay, self._on_disk = replay, on_disk
        self._folder: Path | None = None  # one for each run, named by the id of its store
        self.pending: PendingEpisode | None = None

    def open(self) -> None:
        """Send what an earlier process could not."""
        if not self._on_disk:
            return
        self._folder = Path.home() / OUTBOX / self._replay.call(ReplayBuffer.location).store_id[:12]
        for folder in sorted(self._folder.glob("*")):
            # One episode, or none if the process ended while it was written.
            for _, episode in Store.open(folder) if is_store(folder) else ():
                meta = {name: value for name, value in episode.meta.items() if name != KEY}
                self._replay.call(ReplayBuffer.add, replace(episode, meta=meta), episode.meta[KEY])
            shutil.rmtree(folder)

    def send(self) -> int:
        """Send the pending episode; returns its id in the replay buffer. If that fails, it stays pending."""
        assert self.pending is not None
        with nullcontext() if self._folder is None else self._backup(self._folder / self.pending.key):
            episode_id = self._replay.call(ReplayBuffer.add, self.pending.episode, self.pending.key)
        self.pending = None
        return episode_id

    @contextmanager
    def _backup(self, folder: Path) -> Iterator[None]:
        """Write the pending episode into a folder unless this ends soon; removed again on success."""
        timer = threading.Timer(KEEP_AFTER_S, self._write, (folder,))
        timer.daemon = True
        timer.start()
        try:
            yield
        except PlauditError:
            timer.cancel()
            timer.join()
            self._write(folder)
            raise
        timer.cancel()
        timer.join()
        shutil.rmtree(folder, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        pending = self.pending
        if pending is None or folder.exists():
            return
        try:
            with Store.create(folder) as store:
                store.append(replace(pending.episode, meta={**pending.episode.meta, KEY: pending.key}))
        except (PlauditError, OSError) as error:
            print_plain(f"an episode that could not be sent is in memory only: {error}")


class EnvWorker:
    """Drives one robot.

    body = env.describe()
    env.load_policy(policy)
    info = env.rollout(seed)
    """

    def __init__(
        self,
        config: TrainingConfig,
        replay: Handle[ReplayBuffer],
        state: Handle[StateManager],
        *,
        outbox_on_disk: bool = False,
    ):
        """outbox_on_disk: on a cluster, see `Outbox`"""
        self._config, self._replay, self._state = config, replay, state
        self._follows = config.policy.behavior == "learner"  # or a policy that acts as it is
        self._engine: InferenceEngine | None = None
        self._has_policy = False
        self._version = 0
        self._outbox = Outbox(replay, on_disk=outbox_on_disk)
        self._failure: RolloutError | None = None  # of the robot, raised after its last episode is sent
        self._operator = Operator(config.operator.gate) if config.operator.attended else None
        self._open = ExitStack()  # what listens to the operator

    def describe(self) -> EnvSpec:
        """What the robot sees and does. Connects it at the first call."""
        return (self._engine or self._connect(None)).env_spec

    def _connect(self, policy: PolicySpec | None) -> InferenceEngine:
        """Start the engine, listen to the operator and empty the outbox."""
        config = self._config.engine
        if config.teleop is not None:
            acted_s = self._replay.call(ReplayBuffer.person_s).get("person/time_correcting_s", 0.0)
            config = config.model_copy(update={"teleop": config.teleop.resumed(acted_s)})
        self._engine = engine = config.start(policy)
        if self._operator is not None:
            self._operator.emergency_stop = engine.emergency_stop
            listening = listen_at_robot(self._config.operator, self._operator.send, self._config.robot)
            self._open.enter_context(listening)
            self._open.enter_context(advising(self._config.forecast, engine, self._operator))
        self._open.enter_context(streaming(self._config.rerun, engine))
        self._outbox.open()
        return engine

    def load_policy(self, policy: PolicySpec) -> str:
        """Let this policy drive the robot; returns a message about its inference time.

        Called again, it restarts what a fault has ended.
        """
        if self._has_policy:
            assert self._engine is not None
            self._engine.recover()
            return self._engine.inference_summary
        if self._follows:
            start = self._state.call(StateManager.count_start, READER)
            if "seed" in policy.policy:  # the same one again would explore the same actions again
                mixed = np.random.SeedSequence([policy.policy["seed"], crc32(READER.encode()), start])
                seed = int(mixed.generate_state(1)[0])
                policy = policy.model_copy(update={"policy": {**policy.policy, "seed": seed}})
            policy = self._with_frozen(policy)
        if self._engine is None:
            self._engine = self._connect(policy)
        else:
            self._engine.load_policy(policy)
        self._has_policy = True
        return self._engine.inference_summary

    def _with_frozen(self, policy: PolicySpec) -> PolicySpec:
        """The learner's policy with a file of its frozen encoder, which new weights do not contain."""
        config = policy.config
        if not isinstance(config, NetworkPolicyConfig) or not config.encoder.is_frozen or not config.cameras:
            return policy
        path = Path(self._open.enter_context(TemporaryDirectory())) / FROZEN_FILE
        weights = self._state.call(StateManager.get_frozen)
        assert weights is not None  # published before the learner is set up
        write_weights(path, weights)
        return policy.model_copy(update={"frozen": path})

    def close(self) -> None:
        """The robot holds."""
        self._open.close()
        if self._engine is not None:
            self._engine.close()

    def stop(self) -> None:
        """End the current episode, from another thread."""
        if self._engine is not None:
            self._engine.stop()
        if self._operator is not None:
            self._operator.send(OperatorCommand.STOP)

    def operate(self, command: OperatorCommand) -> None:
        """Take a command of an operator elsewhere, from another thread."""
        if self._operator is not None:
            self._operator.send(command)

    def operator_status(self) -> OperatorStatus | None:
        """The status of the operator, from another thread; None without one."""
        return None if self._operator is None else self._operator.status

    def rollout(self, seed: int | None = None) -> EpisodeInfo | None:
        """Play one episode and send it; a pending one is sent first, instead of playing another.

        With an operator, it begins when they say so. Returns None for an episode that was stopped before anything was
        sent to the robot. If the robot fails, the recorded part is sent before the error is raised; a fault that may
        pass is reported with the episode.
        """
        engine = self._engine
        if engine is None or not self._has_policy:
            raise WorkerLost("env", "its process was started again and has no policy yet")
        if self._outbox.pending is None:
            if self._operator is not None and not self._operator.wait_until_ready():
                return None
            if self._follows:
                self._sync_weights(engine)
            began, clock = time.time(), time.monotonic()
            episode, self._failure = self._run_episode(engine, seed)
            if episode is None:
                return None
            self._outbox.pending = PendingEpisode(episode, uuid.uuid4().hex, began, time.monotonic() - clock)
        pending = self._outbox.pending
        episode_id, episode = self._outbox.send(), pending.episode
        fault = isinstance(self._failure, RolloutFault)
        if self._failure is not None and not fault:
            raise self._failure
        return EpisodeInfo(
            id=episode_id,
            steps=episode.steps,
            version=int(episode.meta["weights"]),
            success=None if episode.success is None else bool(episode.success.any()),
            began=pending.began,
            seconds=pending.seconds,
            ended=str(episode.meta["ended"]),
            held_ticks=episode.meta.get("held_ticks", 0),  # an inference engine of the user's own may not count them
            starved_chunks=episode.meta.get("starved_chunks", 0),
            guided_fraction=episode.meta.get("guided_fraction"),
            timing=episode.meta.get("timing", {}),
            fault=fault,
        )

    def _run_episode(self, engine: InferenceEngine, seed: int | None) -> tuple[Episode | None, RolloutError | None]:
        """The recorded episode, and the error that ended it."""
        done, task = threading.Event(), self._config.task

        def follow_weights() -> None:
            while not done.wait(SYNC_S):
                with suppress(WorkerLost):  # the next request finds it
                    self._sync_weights(engine, now=True)

        follower = threading.Thread(target=follow_weights, daemon=True)
        if self._follows and self._config.policy.update_within_episode:
            follower.start()
        try:
            episodes = run_episode(engine, self._operator, task=task, seed=seed)
            episode = next(episodes, None)
            try:
                next(episodes, None)
            except RolloutError as error:
                if episode is None:
                    raise
                return episode, error
            return episode, None
        finally:
            done.set()
            if follower.ident is not None:
                follower.join()

    def _sync_weights(self, engine: InferenceEngine, now: bool = False) -> None:
        weights = self._state.call(StateManager.get_weights, self._version)
        if weights is not None:
            engine.push(weights, now)
            self._version = weights.version

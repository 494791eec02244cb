"""The robot's side: act with the newest weights, and do not begin another episode before the last one is safe.

An episode that could not be handed over stays here, on a cluster on this machine's disk too (unsent.py), and is tried
again first, and so does the reason why a robot that failed in it cannot be driven any further. After a fault that may
pass, like a silent camera, the episode is handed over as it is, and `load_policy` has robot and policy back before the
next one.

Weights are asked for between episodes, and by a thread during one where a robot's episodes are long
(`policy.update_within_episode`): the inference engine then uses them from the next chunk on.
"""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from plaudit.errors import RolloutError, RolloutFault, WorkerLost
from plaudit.policies.loader import PolicySpec
from plaudit.protocols import InferenceEngine
from plaudit.rollout.operator import Operator, OperatorCommand, OperatorStatus, listen_at_robot
from plaudit.rollout.run import attend, attended_episode, is_discarded
from plaudit.training.config import TrainingConfig
from plaudit.training.handles import Handle
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.state_manager import StateManager
from plaudit.training.unsent import UnsentEpisodes
from plaudit.types import EnvSpec, Episode

LOOK = 0.2  # s between two looks for new weights during an episode


@dataclass(frozen=True)
class EpisodeInfo:
    """An episode that is safe."""

    id: int
    steps: int
    version: int  # of the weights that it began with
    success: bool | None  # as only a simulation knows
    began: float  # s since 1970
    seconds: float  # that it took
    ended: str  # by what
    held_ticks: int  # control steps without a command
    starved_chunks: int  # that ran out before the next was there
    guided_fraction: float | None  # of the chunks that were to continue the one before
    discarded: bool = False  # by the operator; the id is that of the store of these
    fault: bool = False  # whether that was a fault which may pass; `load_policy` comes next then


@dataclass(frozen=True, eq=False)
class _UnsentEpisode:
    """An episode that is not safe yet."""

    episode: Episode
    key: str
    began: float
    seconds: float


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
        reader: str = "robot",
        *,
        keep_unsent: bool = False,
    ):
        """
        reader: as the state manager knows it
        keep_unsent: write down what cannot be handed over; where the replay buffer may be away for longer than this is
        """
        self._config, self._replay, self._state, self._reader = config, replay, state, reader
        self._follows = config.policy.behavior == "learner"  # or a policy that acts as it is
        self._engine: InferenceEngine | None = None
        self._has_policy = False
        self._version = 0
        self._unsent: _UnsentEpisode | None = None
        self._failure: RolloutError | None = None  # of the robot, told once its last episode is safe
        self._operator = Operator(config.operator.gate) if config.operator.attended else None
        self._open = ExitStack()  # what listens to the operator
        self._keep_unsent = keep_unsent
        self._kept: UnsentEpisodes | None = None

    def describe(self) -> EnvSpec:
        """What the robot sees and does. It is connected here, once; its policy comes with `load_policy`."""
        engine = self._engine or self._connect(None)
        return engine.env_spec

    def _connect(self, policy: PolicySpec | None) -> InferenceEngine:
        """Start the engine and listen to the operator; send what a process before this one could not."""
        self._engine = engine = self._config.engine.start(policy)
        if self._operator is not None:
            attend(engine, self._operator)
            listening = listen_at_robot(self._config.operator, self._operator.send, self._config.robot)
            self._open.enter_context(listening)
        if self._keep_unsent:
            self._kept = UnsentEpisodes(self._replay.call(ReplayBuffer.location).store_id)
            self._kept.resend(lambda episode, key: self._replay.call(ReplayBuffer.add, episode, key))
        return engine

    def load_policy(self, policy: PolicySpec) -> str:
        """Let this policy drive the robot; returns how long it takes to infer, for people.

        Asked again, what a fault has ended since is started again.
        """
        if self._has_policy:
            assert self._engine is not None
            self._engine.recover()
            return self._engine.inference_summary
        if self._follows:
            start = self._state.call(StateManager.count_start, self._reader)
            policy = _explores_anew(policy, self._reader, start)
        if self._engine is None:
            engine = self._connect(policy)
        else:
            engine = self._engine
            engine.load_policy(policy)
        self._has_policy = True
        return engine.inference_summary

    def close(self) -> None:
        """The robot holds."""
        self._open.close()
        if self._engine is not None:
            self._engine.close()

    def stop(self) -> None:
        """End the episode at hand, from another thread."""
        if self._engine is not None:
            self._engine.stop()
        if self._operator is not None:
            self._operator.stop()

    def operate(self, command: OperatorCommand) -> None:
        """What an operator elsewhere says, from another thread."""
        if self._operator is not None:
            self._operator.send(command)

    def operator_status(self) -> OperatorStatus | None:
        """How it stands with the operator, from another thread; None where nobody attends."""
        return None if self._operator is None else self._operator.status

    def rollout(self, seed: int | None = None) -> EpisodeInfo | None:
        """Play one episode and hand it over; one that could not be handed over before comes first.

        Where an operator attends, it begins when they say so. None for an episode that was stopped before anything was
        sent to the robot. When the robot fails, what there is
        of the episode is handed over before that is told; a fault that may pass is told with the episode.
        """
        engine = self._engine
        if engine is None or not self._has_policy:
            raise WorkerLost("env", "its process was started again and has no policy yet")
        if self._unsent is None:
            if self._operator is not None and not self._operator.wait_until_ready():
                return None
            if self._follows:
                self._sync_weights(engine)
            began, clock = time.time(), time.monotonic()
            episode, self._failure = self._run_episode(engine, seed)
            if episode is None:
                return None
            self._unsent = _UnsentEpisode(episode, uuid.uuid4().hex, began, time.monotonic() - clock)
        recorded = self._unsent
        episode = recorded.episode
        with nullcontext() if self._kept is None else self._kept.keep(episode, recorded.key):
            episode_id = self._replay.call(ReplayBuffer.add, episode, recorded.key)
        self._unsent = None
        fault = isinstance(self._failure, RolloutFault)
        if self._failure is not None and not fault:
            raise self._failure
        return EpisodeInfo(
            id=episode_id,
            steps=episode.steps,
            version=int(episode.meta["weights"]),
            success=None if episode.success is None else bool(episode.success.any()),
            began=recorded.began,
            seconds=recorded.seconds,
            ended=str(episode.meta["ended"]),
            held_ticks=episode.meta.get("held_ticks", 0),  # an inference engine of the user's own may not count them
            starved_chunks=episode.meta.get("starved_chunks", 0),
            guided_fraction=episode.meta.get("guided_fraction"),
            fault=fault,
            discarded=is_discarded(episode),
        )

    def _run_episode(self, engine: InferenceEngine, seed: int | None) -> tuple[Episode | None, RolloutError | None]:
        """What was recorded, and what the robot failed of in the end."""
        done = threading.Event()
        follower = threading.Thread(target=self._sync_weights_until, args=(engine, done), daemon=True)
        if self._follows and self._config.policy.update_within_episode:
            follower.start()
        try:
            episodes = self._episodes(engine, seed)
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

    def _episodes(self, engine: InferenceEngine, seed: int | None) -> Iterator[Episode]:
        task = self._config.task
        if self._operator is None:
            return engine.episodes(1, task=task, seed=seed)
        return attended_episode(engine, self._operator, task=task, seed=seed)

    def _sync_weights_until(self, engine: InferenceEngine, done: threading.Event) -> None:
        while not done.wait(LOOK):
            with suppress(WorkerLost):  # it is looked for again
                self._sync_weights(engine, now=True)

    def _sync_weights(self, engine: InferenceEngine, now: bool = False) -> None:
        weights = self._state.call(StateManager.get_weights, self._version, self._reader)
        if weights is not None:
            engine.push(weights, now)
            self._version = weights.version


def _explores_anew(policy: PolicySpec, reader: str, start: int) -> PolicySpec:
    """With noise of its own for every start of a robot's process, by the run's seed: the same again would explore the
    same again. A policy without a seed draws nothing that we know of."""
    if "seed" not in policy.policy:
        return policy
    mixed = np.random.SeedSequence([policy.policy["seed"], crc32(reader.encode()), start])
    return policy.model_copy(update={"policy": {**policy.policy, "seed": int(mixed.generate_state(1)[0])}})

"""The parts of an online run as actors of a cluster.

Ray brings back the robot's, the judge's, the replay and the state actor by itself, in their places. Trainers are
brought back here: when one worker of a group dies, the others wait for it in the middle of an update, so all of them
are made anew and go on from the newest checkpoint. Nobody waits while they get ready: what they are asked next does.
"""

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayTaskError

from plaudit.cluster.actors import AutoRewardLabelerActor, EnvActor, Job, ManualRewardLabelerActor
from plaudit.cluster.calls import Stub, answer
from plaudit.cluster.connect import Cluster
from plaudit.cluster.keepers import ReplayBufferActor, StateManagerActor
from plaudit.cluster.trainers import START, TrainerGroup
from plaudit.errors import PartFailed, PartLost, PlauditError
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import Spaces
from plaudit.rollout.memory import Body
from plaudit.training.handles import WEIGHTS, Done, Part
from plaudit.training.online_config import OnlineConfig
from plaudit.training.replay_buffer import Counts, Who
from plaudit.training.state_manager import StateReport
from plaudit.training.workers.judge import Appointed

ALWAYS = {"max_restarts": -1, "max_task_retries": 0}  # callers repeat what they want repeated
SOON = 2.0  # s that the loop waits for counters, before it does something else


@dataclass(frozen=True)
class _Running:
    part: Part
    method: str
    calls: tuple[Any, ...]  # one a worker
    joining: tuple[Any, ...] = ()  # of workers that were brought back and get ready; the calls wait for these
    until: float = math.inf  # when these should have ended, by time.monotonic

    def ended(self) -> list[Any]:
        """The calls that have."""
        calls = [*self.joining, *self.calls]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0, fetch_local=False)
        return [call for call in calls if call in ready]

    def over(self) -> bool:
        """All have ended, or one has failed and the others wait for it, or it takes too long to get ready."""
        ended = self.ended()
        late = time.monotonic() > self.until and not all(call in ended for call in self.joining)
        return late or len(ended) == len(self.joining) + len(self.calls) or any(_failed(call) for call in ended)


class RayCrew:
    """A `Crew`. All actors are made at once, so that they get ready side by side."""

    in_turn = False

    def __init__(self, config: OnlineConfig, folder: Path, cluster: Cluster):
        self._config, self._folder, self._cluster = config, folder.absolute(), cluster
        self._run = uuid.uuid4().hex[:8]  # in the names of the actors, which others of the cluster can see
        self.restarts: dict[str, int] = Counter()
        self._running: list[_Running] = []
        self._appointed: tuple[Appointed | None, Any] = (None, None)
        options: dict[str, Any] = {"demos": _absolute(config.demos), "judged_demos": config.judges_demos}
        options |= {"name": self._name("replay"), "capacity_gb": config.capacity_gb, "since": time.time()}
        self._replay = self._make("replay", ReplayBufferActor, self._folder, **options)
        self._state = self._make("state", StateManagerActor, self._folder / WEIGHTS, name=self._name("state"))
        self._handles: dict[str, Any] = {
            "env": self._make("env", EnvActor, config, self._stub("replay"), self._stub("state")),
            "judge": self._make_person() if config.by_hand else self._make_judge(),
        }
        self._trainers = TrainerGroup(self._make, cluster.placement.trainer_workers)

    def _make(
        self, part: Any, cls: type, *arguments: Any, rank: int = 0, name: str | None = None, **options: Any
    ) -> Any:
        where = self._cluster.placement.options(part, rank)
        life = {"max_restarts": 0} if part == "trainer" else ALWAYS
        threads = {"max_concurrency": 2} if cls is EnvActor else {}  # to be stopped in the middle of an episode
        known = {"name": name} if name is not None else {}
        return ray.remote(cls).options(**where, **life, **threads, **known).remote(*arguments, **options)

    def _make_judge(self) -> Any:
        return self._make("labeler", AutoRewardLabelerActor, self._stub("replay"))

    def _make_person(self) -> Any:
        return self._make("labeler", ManualRewardLabelerActor, self._stub("replay"), self._config.window)

    def _name(self, part: Any) -> str:
        return f"plaudit-{self._run}-{part}"

    def _stub(self, part: Literal["replay", "state"], patience: float | None = None) -> Stub:
        words = {"replay": "replay service", "state": "state manager"}
        return Stub(self._name(part), words[part], self._config.patience if patience is None else patience)

    def clock(self) -> float:
        return time.monotonic()

    def look_at_robot(self) -> Body:
        return answer(self._handles["env"].body.remote(), "robot", START)

    def hire_judge(self, appointed: Appointed | None) -> Who:
        return answer(self._handles["judge"].who.remote(appointed), "judge", START)

    def hire_auditor(self) -> None:
        self._handles["person"] = self._make_person()

    def hire_trainer(self, spaces: Spaces, source: str) -> int:
        stubs = self._stub("replay"), self._stub("state")
        return self._trainers.start(Job(self._config, spaces, self._folder, source, *stubs))

    def hire_robot(self, policy: PolicySpec) -> None:
        self._policy = policy

    def counts(self, who: Who) -> Counts:
        with _foreseen("replay service"):
            return self._stub("replay", SOON).counts(who)

    def state(self) -> StateReport:
        with _foreseen("state manager"):
            return self._stub("state", SOON).report()

    def begin(self, part: Part, method: str, *arguments: Any) -> None:
        if part == "trainer":
            joining, calls = self._trainers.joining, self._trainers.begin(method, *arguments)
            until = time.monotonic() + START if joining else math.inf
            self._running.append(_Running(part, method, calls, joining, until))
            return
        more = (self._policy,) if part == "env" else ()
        call = getattr(self._handles[part], method)
        self._running.append(_Running(part, method, (call.remote(*more, *map(self._sent, arguments)),)))

    def _sent(self, argument: Any) -> Any:
        """What goes with a call. A judge's files are sent once and fetched from there."""
        if not isinstance(argument, Appointed):
            return argument
        if argument is not self._appointed[0]:
            self._appointed = argument, ray.put(argument)
        return self._appointed[1]

    def finished(self, seconds: float) -> list[Done]:
        calls = [call for running in self._running for call in running.calls]
        if not calls:
            time.sleep(seconds)
            return []
        ray.wait(calls, num_returns=1, timeout=seconds, fetch_local=False)
        over = [running for running in self._running if running.over()]
        self._running = [running for running in self._running if running not in over]
        return [Done(running.part, running.method, lambda running=running: self._result(running)) for running in over]

    def _result(self, running: _Running) -> Any:
        try:
            with _foreseen(running.part):
                for call in running.ended():
                    answer(call, running.part)
                return answer(running.calls[0], running.part, SOON)
        except PlauditError as error:
            others_wait = isinstance(error, PartFailed) and len(running.calls) > 1  # in the middle of an update
            if isinstance(error, PartLost) or others_wait or running.joining:
                self._bring_back(running.part)
            raise

    def _bring_back(self, part: Part) -> None:
        """Ray does, all but the trainers."""
        self.restarts[part] += 1
        if part == "trainer":
            self._trainers.revive()

    def pids(self) -> dict[str, list[int]]:
        """The processes of the parts; for whoever wants to know what happens without one."""
        everyone = {"replay": self._replay, "state": self._state, **self._handles}
        found: dict[str, Any] = {part: ray.get([handle.pid.remote()]) for part, handle in everyone.items()}
        return {**found, "trainer": self._trainers.pids()}

    def stop_robot(self) -> None:
        self._handles["env"].stop.remote()

    def close(self) -> None:
        """The robot holds, judges put away their files; then everything goes."""
        calls = [handle.close.remote() for handle in self._handles.values()]
        ray.wait(calls, num_returns=len(calls), timeout=10)
        self._trainers.close()
        for handle in (*self._handles.values(), self._replay, self._state):
            ray.kill(handle)


@contextmanager
def _foreseen(part: str) -> Iterator[None]:
    """What a part raises and nobody foresaw, in a sentence; the traceback is that of its own process."""
    try:
        yield
    except RayTaskError as error:
        raise PartFailed(part, error.cause, str(error)) from error


def _failed(call: Any) -> bool:
    """Whether a call that is over has raised."""
    try:
        ray.get(call, timeout=0)
    except Exception:  # noqa: BLE001 - whatever it raised, it is looked at where it is taken
        return True
    return False


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()

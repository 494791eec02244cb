"""Whoever runs the parts of an online run: this process here, actors of a cluster in cluster/crew.py.

    crew.begin("env", "step", seed)               # a part does one thing at a time
    for done in crew.finished(0.2):               # whatever has come to its end meanwhile
        done.part, done.result()                  # or raises what went wrong

In one process nothing happens at once: `finished` does what was begun, one after the other. It is the same loop, for a
laptop, for a debugger, and to see what a cluster costs. And what it does is then a matter of counts alone: its clock
goes on with the turns of the loop and not with the time that they take, so that the same run on a busy machine makes
the same episodes, labels and updates.
"""

import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from plaudit.errors import PartFailed, PlauditError
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import Spaces
from plaudit.rollout.memory import Body
from plaudit.training.online_config import OnlineConfig
from plaudit.training.replay_buffer import Counts, ReplayService, Who
from plaudit.training.state_manager import StateManager, StateReport
from plaudit.training.workers.env import EnvSide, look_at
from plaudit.training.workers.human import PersonSide
from plaudit.training.workers.judge import Appointed, LabelSide
from plaudit.training.workers.learner import Trainer

Part = Literal["env", "judge", "trainer", "person"]
WEIGHTS = "weights"  # folder of a run
TURN = 1.0  # s that a turn counts in which something was done, where all is done in one process


@dataclass(frozen=True)
class Done:
    """A part has come to the end of what it was to do."""

    part: Part
    method: str
    result: Callable[[], Any]  # what came of it, or raises


class Crew(Protocol):
    """See above. `hire_*` makes a part; one that is lost later is made again by the crew itself."""

    restarts: dict[str, int]  # part -> how often it was brought back
    in_turn: bool  # whether parts work one after the other, so that nothing happens while the loop waits

    def clock(self) -> float:
        """Seconds, by which the loop and its parts pace themselves; where parts work in turn, turns are counted."""
        ...

    def look_at_robot(self) -> Body: ...

    def hire_judge(self, appointed: Appointed | None) -> Who:
        """None: a person."""
        ...

    def hire_auditor(self) -> None:
        """A person who looks at episodes beside the judge."""
        ...

    def hire_trainer(self, spaces: Spaces, source: str) -> int:
        """Returns how many updates it has made in earlier sittings."""
        ...

    def hire_robot(self, policy: PolicySpec) -> None: ...

    def counts(self, who: Who) -> Counts: ...

    def state(self) -> StateReport: ...

    def begin(self, part: Part, method: str, *arguments: Any) -> None: ...

    def finished(self, seconds: float) -> list[Done]:
        """What has ended; waits for that, but not longer than so many seconds."""
        ...

    def stop_robot(self) -> None:
        """End the episode at hand."""
        ...

    def close(self) -> None: ...


class LocalCrew:
    """Everything in this process."""

    in_turn = True

    def __init__(self, config: OnlineConfig, folder: Path):
        self._config, self._folder = config, folder
        self._clock = 0.0
        self.restarts: dict[str, int] = {}
        self._open = ExitStack()
        self.replay = ReplayService(
            folder,
            demos=config.demos,
            judged_demos=config.judges_demos,
            capacity_gb=config.capacity_gb,
            since=time.time(),
        )
        self._open.callback(self.replay.close)
        self.weights = StateManager(folder / WEIGHTS)
        self._parts: dict[Part, Any] = {}
        self._begun: list[Done] = []

    def clock(self) -> float:
        return self._clock

    def look_at_robot(self) -> Body:
        return look_at(self._config.robot, self._config.executor.name)

    def hire_judge(self, appointed: Appointed | None) -> Who:
        if appointed is None:
            return self._hire_person("judge").who()
        judge = self._parts["judge"] = LabelSide(self.replay, clock=self.clock)
        self._open.callback(judge.close)
        return judge.who(appointed)

    def hire_auditor(self) -> None:
        self._hire_person("person")

    def _hire_person(self, part: Part) -> PersonSide:
        person = self._parts[part] = PersonSide(self.replay, self._config.window)
        self._open.callback(person.close)
        return person

    def hire_trainer(self, spaces: Spaces, source: str) -> int:
        trainer = Trainer(self._config, spaces, self._folder, source, self.replay, self.weights)
        self._parts["trainer"] = trainer
        self._open.callback(trainer.close)
        return trainer.updates

    def hire_robot(self, policy: PolicySpec) -> None:
        self._parts["env"] = self._open.enter_context(env_side(self._config, policy, self.replay, self.weights))

    def counts(self, who: Who) -> Counts:
        return self.replay.counts(who)

    def state(self) -> StateReport:
        return self.weights.report()

    def begin(self, part: Part, method: str, *arguments: Any) -> None:
        self._begun.append(Done(part, method, lambda: self._do(part, method, *arguments)))

    def _do(self, part: Part, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._parts[part], method)(*arguments)
        except PlauditError:
            raise
        except Exception as error:  # of a plugin that the part runs, which may raise anything
            raise PartFailed(part, error, traceback.format_exc()) from error

    def finished(self, seconds: float) -> list[Done]:
        """Whatever was begun is done when its result is asked for; where nothing was, time passes."""
        begun, self._begun = self._begun, []
        if not begun:
            time.sleep(seconds)
        self._clock += TURN if begun else seconds
        return begun

    def stop_robot(self) -> None:
        """Between two steps of this process no episode is at hand."""

    def close(self) -> None:
        self._open.close()


def env_side(config: OnlineConfig, policy: PolicySpec, replay: Any, weights: Any) -> EnvSide:
    return EnvSide(
        config.run,
        policy,
        replay,
        weights,
        task=config.task,
        follows=config.act_with == "learner",
        weights_during=config.weights_during,
    )

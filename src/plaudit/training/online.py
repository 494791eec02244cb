"""The online loop: who does what next, and what is told of it.

    while going:
        robot    plays an episode             unless too much waits for the judge, or for the trainer
        judge    labels what is waiting
        trainer  makes the updates that the labelled steps have earned, and now and then is examined
        look     audit, log, tell whoever watches

Parts run by themselves (online/crew.py) and know nothing of each other but the replay service and the state manager.
The counters that decide are asked for, not kept: a run that was stopped anywhere goes on with the same ones.

A part that is lost is brought back by the crew and asked again; a disk that is full is tried again, and so is a part
that raised what nobody foresaw. What lasts longer than `patience` ends the run with a sentence, and so does a robot
that cannot be driven. However a run ends, what was learned is saved.

Where parts work in turn, in one process, nothing here depends on how long anything takes: the clock is the crew's,
which counts turns, updates come in fixed numbers, and a judge that is trained again is waited for.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from plaudit.errors import OnlineError, PartFailed, PartLost, PlauditError, StoreFull
from plaudit.learners.steps import earned_updates
from plaudit.policies.loader import PolicySpec, load_policy
from plaudit.policies.networks import Spaces
from plaudit.rollout.memory import Body
from plaudit.training.handles import WEIGHTS, Crew, Done, Part
from plaudit.training.monitor import Honesty, judge_in_charge
from plaudit.training.online_config import OnlineConfig
from plaudit.training.online_folder import OnlineFolder
from plaudit.training.progress import Now, numbers_of
from plaudit.training.replay_buffer import Counts, Who
from plaudit.training.state_manager import StateReport, writes_here
from plaudit.training.trainer import training_seed
from plaudit.training.workers.env import Played
from plaudit.training.workers.judge import Appointed, Judged
from plaudit.training.workers.learner import Shift, build_learner, check_policy_fits

TICK = 0.1  # s that the loop waits for something to happen
SHIFT = 0.5  # s that the trainer is given work for at a time; it publishes weights in between
UPDATES = 50  # that it is given at a time where parts work in turn
IDLE = 0.5  # s before a judge that found nothing to do, or a part in trouble, is asked again
LOG = 2.0  # s between two lines of metrics
AUDIT = 1.0  # s between two looks at the labels

PASSING = (PartLost, PartFailed, StoreFull)  # what may be over in a minute

Watch = Callable[[Now], bool]  # told of how things stand; whether to go on


class Conductor:
    """conductor = Conductor(config, folder, crew); end = conductor.run(watch)"""

    def __init__(self, config: OnlineConfig, folder: OnlineFolder, crew: Crew):
        self._config, self._folder, self._crew = config, folder, crew
        self._busy: set[Part] = set()
        self._rest: dict[str, float] = {}  # a part is left alone until then
        self._trouble: dict[str, tuple[float, str]] = {}  # part -> since when, what
        self._recount = False  # whether the trainer may have made other updates than it has told of
        self._kept: set[str] = set()  # failures whose traceback is in the folder
        self._begun = time.monotonic()
        self._logged = self._audited = crew.clock()
        self._evaluated_at = -1  # episodes at the last evaluation
        self.started = False  # whether there is something to tell of

    def run(self, watch: Watch) -> Now:
        """To the end, or until whoever watches wants no more."""
        self._prepare()
        try:
            going = self._loop(watch)
        except PlauditError:
            self._wind_down()
            raise
        except Exception as error:  # a judge that was trained again is built here, and its plugin may raise anything
            failure = PartFailed("loop", error, traceback.format_exc())
            self._wind_down()
            raise OnlineError(self._with_traceback(failure)) from error
        self._wind_down()
        self._look_last(watch, evaluate=going)
        return self.now

    def _loop(self, watch: Watch) -> bool:
        """Until it is over; whether whoever watches would have gone on."""
        going = True
        while going and not self._over():
            if self._waits_for_successor:
                time.sleep(TICK)
            else:
                self._assign()
                for done in self._crew.finished(TICK):
                    self._take(done)
            self._look()
            self._check_judge()
            going = watch(self.now)
        return going

    @property
    def _waits_for_successor(self) -> bool:
        """Where parts work in turn, when another judge takes over must not depend on how long its training takes."""
        return self._crew.in_turn and self._honesty.retraining

    # Before the first episode

    def _prepare(self) -> None:
        body = self._crew.look_at_robot()
        spaces = spaces_of(self._config, body)
        learner = build_learner(self._config, spaces, "cpu")  # only to be looked at: trainers build their own
        check_policy_fits(self._config, learner)
        self.spaces, self.policy_config = spaces, learner.policy_config()
        self._offline = learner.clone_updates if self._config.demos is not None else 0
        self._appointed = None
        if not self._config.by_hand:
            self._appointed = Appointed.of(judge_in_charge(self._config, self._folder.path))
        self._who: Who = self._crew.hire_judge(self._appointed)
        if self._config.audited_by_hand:
            self._crew.hire_auditor()
        updates = self._crew.hire_trainer(spaces, self._who.source)
        self.now = Now(self._crew.counts(self._who), self._crew.state(), updates=updates, **self._folder.last())
        self._check_places()
        self._honesty = Honesty(self._config, self._folder.path, self._who.source)
        self._seconds_before = self.now.seconds
        self._crew.hire_robot(robot_policy(self._config, learner))
        self.started = True

    def _check_places(self) -> None:
        """The policy is saved from the weights that were published, which must be found here then."""
        folder = self._folder.path / WEIGHTS
        if not writes_here(self.now.state, folder):
            raise OnlineError(
                f"the state manager does not write to {folder} on this machine, so the policy could not be saved at "
                "the end; give state and replay the role of the machine where this command runs (cluster.parts)"
            )

    # What to do next

    def _assign(self) -> None:
        if self._free("judge") and self._something_to_judge:
            self._begin("judge", "step", self._appointed)
        if self._config.audited_by_hand and self._free("person"):
            self._begin("person", "step", self._honesty.waiting)
        if self._free("trainer") and self._recount:
            self._begin("trainer", "step", 0)
        elif self._free("trainer") and self.now.state.version == 0:
            self._begin("trainer", "publish")
        elif self._free("trainer") and self._ready_to_learn and not self._honesty.stops:
            if self._examination_due:
                self._evaluated_at = self.now.counts.episodes
                self._begin("trainer", "evaluate", self._config.evaluation.episodes)
            elif self.now.owed:
                self._begin("trainer", "step", min(self.now.owed, self._at_a_time))
        if self._free("env") and not self._why_robot_waits():
            self._begin("env", "step", self._seed)

    def _begin(self, part: Part, method: str, *arguments: Any) -> None:
        self._busy.add(part)
        self._crew.begin(part, method, *arguments)

    def _free(self, part: Part) -> bool:
        return part not in self._busy and self._crew.clock() >= self._rest.get(part, 0.0)

    @property
    def _something_to_judge(self) -> bool:
        counts = self.now.counts
        return counts.unjudged + counts.outdated + counts.demos_unjudged > 0 or self._config.by_hand

    @property
    def _ready_to_learn(self) -> bool:
        """Demonstrations are judged, and there is something to sample."""
        counts = self.now.counts
        return not counts.demos_unjudged and (self._config.demos is not None or counts.judged_steps > 0)

    @property
    def _examination_due(self) -> bool:
        if not self._config.simulated or self.now.updates < self._offline:
            return False
        return self._evaluated_at < 0 or (
            self.now.counts.episodes >= self._evaluated_at + self._config.evaluation.every
        )

    @property
    def _at_a_time(self) -> int:
        """Updates that take about a shift; a fixed number where the time that they take must not matter."""
        if self._crew.in_turn:
            return UPDATES
        return max(1, round(SHIFT * self.now.updates_per_second)) if self.now.updates_per_second else 20

    @property
    def _seed(self) -> int | None:
        return training_seed(self._config.seed, self.now.counts.episodes) if self._config.simulated else None

    def _why_robot_waits(self) -> str:
        counts, config = self.now.counts, self._config
        if counts.episodes >= config.episodes:
            return "all episodes are played"
        if config.act_with == "learner" and self.now.state.version == 0:
            return "there are no weights yet"
        if counts.demos_unjudged:
            return f"the judge looks at the demonstrations first, {counts.demos_unjudged} to go"
        if self.now.updates < self._offline:
            return f"the learner studies the demonstrations first, {self._offline - self.now.updates:,} updates to go"
        if self._honesty.stops:
            return "its judge is not believed any more"
        if self._waits_for_successor:
            return "a successor of the judge is being trained"
        if counts.unjudged >= config.backlog:
            return f"{counts.unjudged} episodes wait for the judge, {config.backlog} may"
        if config.ahead is not None and counts.episodes:
            mean = counts.steps / counts.episodes
            if self.now.owed > config.ahead * mean * config.learner.updates_per_step:
                return f"{self.now.owed:,} updates wait for the trainer"
        return ""

    # What came of it

    def _take(self, done: Done) -> None:
        self._busy.discard(done.part)
        try:
            result = done.result()
        except PASSING as error:
            if done.part == "env" and isinstance(error, PartFailed):  # whatever state it left the robot in
                raise OnlineError(self._with_traceback(error)) from error
            self._recount |= done.part == "trainer"
            self._in_trouble(done.part, error)
            return
        if not (isinstance(result, Shift) and not result.made):  # whether it can learn is not known by counting
            self._trouble.pop(done.part, None)
        self.noted(result)
        if isinstance(result, Played):
            self.now.take_played(result)
        elif isinstance(result, Judged):
            self.now.take_judged(result)
            if not result.done:
                self._rest[done.part] = self._crew.clock() + IDLE
        elif isinstance(result, Shift):
            self.now.take_shift(result)
            self._recount = False
        elif done.method == "evaluate":
            self.now.evaluated = float(result)
            self._log({"eval/success": float(result)})
        elif done.part == "env":  # stopped before it began
            self._rest["env"] = self._crew.clock() + IDLE

    def noted(self, result: Any) -> None:
        """For a witness to override: told of everything that came of something."""

    def _in_trouble(self, part: str, error: PlauditError) -> None:
        now, sentence = self._crew.clock(), str(error)
        if isinstance(error, PartFailed):
            sentence = self._with_traceback(error)
        since, _ = self._trouble.get(part, (now, ""))
        self._trouble[part] = since, sentence
        self._rest[part] = now + IDLE
        if now - since > self._config.patience:
            raise OnlineError(f"{sentence}; waited {self._config.patience:g} s for it, go on with the same command")

    def _with_traceback(self, failure: PartFailed) -> str:
        """Its sentence and where more is told; what is repeated is kept once."""
        if str(failure) not in self._kept:
            self._kept.add(str(failure))
            self._folder.keep_traceback(str(failure), failure.details)
        return f"{failure} (its traceback is in {self._folder.tracebacks})"

    def _check_judge(self) -> None:
        """A judge that fails on everything is no reason to wear a robot out."""
        counts = self.now.counts
        if counts.demos and counts.demos_unlabelable == counts.demos:
            what = f"any of the {counts.demos} demonstrations"
        elif counts.unlabelable_in_a_row >= self._config.backlog:
            what = f"any of the last {counts.unlabelable_in_a_row} episodes"
        else:
            return
        raise OnlineError(
            f"the judge could not label {what}: {counts.reason}; they are kept, and the same command tries them again"
        )

    # How things stand

    def _look(self, audit: bool = False) -> None:
        """audit: now, even if it is not due"""
        now = self.now
        try:
            counts, state = self._crew.counts(self._who), self._crew.state()
            self._note_rebirth(counts, state)
            now.counts, now.state = counts, state
            if audit or self._waits_for_successor or self._crew.clock() - self._audited >= AUDIT:
                self._audit()
            self._trouble.pop("replay", None)
        except PASSING as error:
            self._in_trouble("replay", error)
        earned = self._offline + earned_updates(self._config.learner, now.counts.judged_steps)
        now.owed = max(0, int(earned) - now.updates) if self._ready_to_learn else 0
        now.holding = self._why_robot_waits()
        now.note_age()
        now.troubles = {part: sentence for part, (_, sentence) in self._trouble.items()}
        now.seconds = self._seconds_before + time.monotonic() - self._begun
        if self._crew.clock() - self._logged >= LOG:
            self._log({})

    def _note_rebirth(self, counts: Counts, state: StateReport) -> None:
        """Whoever calls them hardly notices that these two were away."""
        for part, before, born in (
            ("replay", self.now.counts.born, counts.born),
            ("state", self.now.state.born, state.born),
        ):
            if born != before:
                self._crew.restarts[part] = self._crew.restarts.get(part, 0) + 1

    def _audit(self) -> None:
        """Whether the judge is right; a better one takes its place."""
        self._audited = self._crew.clock()
        successor = self._honesty.look()
        if successor is not None:
            self._appointed = Appointed.of(successor)
            self._who = replace(self._who, facts=dict(successor.build().facts))
        if self._honesty.news is not None:
            self.now.news = self._honesty.news.sentence
        self.now.judged_success, self.now.alarm = self._honesty.judged_success, self._honesty.alarm
        self.now.honesty = self._honesty.metrics()

    def _log(self, more: Mapping[str, float]) -> None:
        self._logged = self._crew.clock()
        try:
            self._folder.log(self.now.counts.steps, {**numbers_of(self.now), **more})
            self._trouble.pop("log", None)
        except StoreFull as error:
            self._in_trouble("log", error)

    def _over(self) -> bool:
        now, wanted = self.now, self._config.evaluation.stop_at
        if self._honesty.hopeless:
            return True
        if wanted is not None and now.evaluated is not None and now.evaluated >= wanted and now.counts.episodes:
            return True
        finished = now.counts.episodes >= self._config.episodes and not now.counts.unjudged and not now.owed
        return finished and not self._busy

    def _wind_down(self) -> None:
        """Let everyone come to the end of what they do, and save the learner; not longer than `patience`."""
        self._honesty.close()
        self._crew.stop_robot()
        if self._crew.in_turn:
            self._busy.clear()  # nothing is under way between two turns
        until = self._crew.clock() + self._config.patience

        def patient() -> bool:
            return self._crew.clock() < until

        while self._busy and patient():
            self._take_last()
        if "trainer" not in self._busy:
            self._ask("checkpoint", going=patient)
        if "trainer" in self._busy:
            lost = "what it has learned since its last checkpoint is not saved"
            sentence = f"the trainer came to no end within {self._config.patience:g} s: {lost}"
            self._trouble["trainer"] = self._crew.clock(), sentence
        self.now.troubles = {part: sentence for part, (_, sentence) in self._trouble.items()}
        with suppress(PlauditError):  # whatever ends the run is worth more than a line of metrics
            self._log({})

    def _look_last(self, watch: Watch, evaluate: bool) -> None:
        """How good it is in the end, and what came of the last episodes."""
        if evaluate and self._config.simulated and self._evaluated_at != self.now.counts.episodes:
            self._ask("evaluate", self._config.evaluation.episodes, going=lambda: watch(self.now))
        self._look(audit=True)
        self._log({})

    def _ask(self, method: str, *arguments: Any, going: Callable[[], bool]) -> None:
        self._begin("trainer", method, *arguments)
        while "trainer" in self._busy and going():
            self._take_last()

    def _take_last(self) -> None:
        """The run ends anyway: what goes wrong now is told and ends nothing else."""
        for done in self._crew.finished(TICK):
            try:
                self._take(done)
            except PlauditError as error:
                self._trouble[done.part] = self._crew.clock(), str(error)


def spaces_of(config: OnlineConfig, body: Body) -> Spaces:
    """What the learner sees of a robot and does to it."""
    chosen = body.cameras if config.policy_cameras is None else config.policy_cameras
    for camera in chosen:
        if camera not in body.cameras:
            has = ", ".join(body.cameras) or "none"
            raise OnlineError(f"policy_cameras has '{camera}', which {body.name} does not have; it has: {has}")
    return Spaces(body.state_dim, body.action_dim, {camera: body.cameras[camera] for camera in chosen})


def robot_policy(config: OnlineConfig, learner: Any) -> PolicySpec:
    """What the robot builds to act with."""
    if config.act_with == "policy":
        assert config.policy_yaml is not None
        return load_policy(config.policy_yaml)
    return PolicySpec.of(learner.policy_config(explore=True))

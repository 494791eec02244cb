"""The simulator as a judge: its own success flag, live or as stored with the episode; and the same with errors added.

    plaudit train env=lift learner=sac demos.scripted=20 judge=noisy judge.false_positives=0.2 judge.misses=0.1

The simulator's flag is the reference for other judges, and the judge of runs that need no other. A noisy judge shows
what errors cost (`plaudit judge plan` predicts it). It has four kinds of errors, alone or together:

    false_positives    an episode is called a success at a random moment, whatever happens there
    misses             the success of an episode is never seen
    tricks             a near success passes for a success: the error that a policy finds, since it leads there
    late_by            the labels of an episode come when this many others are over (`plaudit train`)

Which episodes are affected is drawn from the first frame of each and the judge's seed. So the same episode gets the
same labels live, afterwards and in a resumed run. An error is drawn once per episode, not per frame: a real judge is
wrong about an episode as a whole.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from plaudit.config import NonNegativeInt, PositiveInt, Seed
from plaudit.errors import DataError, JudgeError, PlauditError
from plaudit.judges.config import JudgeConfig
from plaudit.rule import DecisionRule, PartialRule
from plaudit.types import AnyArray, BoolArray, Episode, JudgeId, Observation, Scores

SOURCE = "simulator"
AS_IT_SAYS = DecisionRule(decode="per_frame")


class SimulatorJudge:
    """A `LiveJudge`; it and the noisy one made of it are the only ones that read `info` and `privileged`."""

    def __init__(self, rule: DecisionRule = AS_IT_SAYS):
        """rule: another than the flag as it is, for annotating data"""
        self.rule = rule
        self.id = JudgeId(SOURCE, rule=None if rule == AS_IT_SAYS else rule.key())

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """The flag of each episode; an error for one that no simulator recorded."""
        missing = DataError(
            "no simulator knows of this episode (it has no 'success' among what is privileged); label it with another "
            "judge"
        )
        return [
            missing if one.success is None else Scores(np.concatenate([[0], one.success]).astype(np.float32))
            for one in episodes
        ]

    def stream(self, num_envs: int) -> "SimulatorStream":
        return SimulatorStream(num_envs)


class SimulatorStream:
    """A `ScoreStream` of the flag."""

    def __init__(self, num_envs: int):
        self._num_envs = num_envs

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        """Before any action nothing has succeeded."""
        prob = np.zeros(self._num_envs, np.float32)
        return Scores(prob if mask is None else np.where(mask, prob, np.float32(np.nan)))

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        return Scores(info["success"].astype(np.float32))


class SimulatorJudgeConfig(JudgeConfig):
    """Settings of the judge that uses the simulator's success flag."""

    needs_certificate: ClassVar[bool] = False
    reads_simulator: ClassVar[bool] = True

    type: Literal["simulator"] = "simulator"
    rule: PartialRule = Field(default=AS_IT_SAYS)

    def build(self) -> SimulatorJudge:
        return SimulatorJudge(self.rule)


NOISY = "noisy"
KINDS = ("false_positives", "misses", "tricks", "late_by")  # of errors


class NoisyJudgeConfig(JudgeConfig):
    """Settings of the judge that adds errors to the simulator's success flag."""

    needs_certificate: ClassVar[bool] = False
    reads_simulator: ClassVar[bool] = True

    type: Literal["noisy"] = "noisy"
    rule: PartialRule = Field(default=AS_IT_SAYS)
    false_positives: float = Field(default=0.0, ge=0, le=1)  # share of failing episodes that are called a success
    misses: float = Field(default=0.0, ge=0, le=1)  # share of succeeding episodes whose success is never seen
    tricks: float = Field(default=0.0, ge=0, le=1)  # share of episodes in which a near success passes for a success
    near: float = Field(default=0.55, ge=0, le=1)  # a near success: the simulator's dense reward reaches this
    late_by: NonNegativeInt = 0  # train: episodes that are over before the labels of one come
    horizon: PositiveInt = 50  # steps over which the moment of a false success is drawn
    seed: Seed = 0  # of the errors

    def build(self) -> "NoisyJudge":
        return NoisyJudge(self)


class NoisyJudge:
    """A `LiveJudge`."""

    def __init__(self, config: NoisyJudgeConfig):
        self.config, self.rule = config, config.rule
        noise = {name: getattr(config, name) for name in (*KINDS, "near", "horizon", "seed")}
        settings = " ".join(f"{name}={value:g}" for name, value in noise.items())
        self.id = JudgeId(NOISY, settings, config.rule.key())
        self._truth = SimulatorJudge()

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """The answer about each episode; an error for one that no simulator recorded."""
        answers: list[Scores | PlauditError] = []
        for episode, true in zip(episodes, self._truth.score(episodes), strict=True):
            answers.append(true)
            if isinstance(true, Scores):
                frames, lots = np.arange(1, episode.steps + 1), self.draw(episode.observation(0))[None]
                try:
                    success = self.decide(lots, frames, true.success_prob[1:] == 1, episode.privileged)
                    answers[-1] = Scores(np.concatenate([[0], success]).astype(np.float32))
                except JudgeError as error:
                    answers[-1] = DataError(str(error))
        return answers

    def stream(self, num_envs: int) -> "NoisyStream":
        return NoisyStream(self, num_envs)

    def draw(self, first: Observation) -> AnyArray:
        """[4] uniform numbers that decide which errors an episode meets, from its first frame."""
        digest = hashlib.sha256(str(self.config.seed).encode() + first.state.tobytes())
        for _, image in sorted(first.images.items()):
            digest.update(image.tobytes())
        return np.random.default_rng(int.from_bytes(digest.digest()[:8], "big")).random(4)

    def decide(self, lots: AnyArray, frame: AnyArray, success: BoolArray, info: Mapping[str, AnyArray]) -> BoolArray:
        """[N] success by this judge. lots: [N, 4] or [1, 4]; frame: [N] their numbers; success: [N] in truth"""
        config = self.config
        false, moment, missed, tricked = lots.T
        seen = success & (missed >= config.misses)
        dreamt = (false < config.false_positives) & (frame > np.floor(moment * config.horizon))
        if not config.tricks:
            return seen | dreamt
        if "shaping" not in info:
            raise JudgeError(
                "judge.tricks goes by the dense reward of a simulator, and this one reports none ('shaping'); set it "
                "to 0, or take a built-in task"
            )
        return seen | dreamt | ((info["shaping"] >= config.near) & (tricked < config.tricks))


class NoisyStream:
    """A `ScoreStream` of it."""

    def __init__(self, judge: NoisyJudge, num_envs: int):
        self._judge = judge
        self._lots, self._frame = np.zeros((num_envs, 4)), np.zeros(num_envs, int)

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        """Before any action nothing has succeeded, nor is anything taken for it."""
        begun = np.ones(len(self._frame), bool) if mask is None else mask
        for n in np.flatnonzero(begun):
            self._lots[n] = self._judge.draw(observation[n])
        self._frame[begun] = 0
        return Scores(np.where(begun, np.float32(0), np.float32(np.nan)))

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        self._frame += 1
        success = self._judge.decide(self._lots, self._frame, info["success"].astype(bool), info)
        return Scores(success.astype(np.float32))

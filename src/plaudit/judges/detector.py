"""The judge in charge: what a reward model says of frames, made into rewards and into the end of an episode.

    probability --threshold--> called --k of the last n frames--> confirmed: the episode has succeeded

    replace    the model's reward: 1 where confirmed, or the probability
    terminal   the same, but only at the step that ends the episode
    add        the same as replace, on top of the simulation's own shaping

A single frame that is called is no success yet: one false frame in a hundred, here and there, would end half of all
failing episodes of 70 steps. With `shaping`, w * (gamma * phi(next) - phi(now)) is added, where phi is the model's
progress and 0 once success is confirmed: that speeds learning up and leaves the best policy the best (Ng, 1999).

What the simulation knows of success is never looked at here, only that it ended an episode by itself. `LiveLabeler`
gives stored episodes the labels that the same judge would have given while they happened: it plays the model's verdicts
to a `ModelJudge`, frame by frame.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

import numpy as np
from pydantic import Field

from plaudit.config import Config
from plaudit.errors import RewardError
from plaudit.judges.classifier.judge import Judgement
from plaudit.judges.cutoffs import ConfirmKey
from plaudit.judges.scored import called_success
from plaudit.types import AnyArray, BoolArray, Episode, FloatArray, Labels, Observation, RewardSignal

Mode = Literal["replace", "add", "terminal"]
RewardType = Literal["binary", "continuous"]


class JudgeConfig(Config):
    mode: Mode = "replace"
    reward_type: RewardType = "binary"  # 1 where success is confirmed and 0 elsewhere, or the probability
    threshold: float | None = Field(default=None, gt=0)  # from which a frame is called; None: the model's own
    confirm: ConfirmKey = (2, 3)  # (k, n): k of the last n frames must be called
    shaping: float = Field(default=0.0, ge=0)  # weight of the model's progress; 0: none
    gamma: float = Field(default=0.99, ge=0, le=1)  # of the shaping; that of the learner

    @property
    def exact(self) -> str:
        """All of it but the threshold, as JSON: labels of equal rules are comparable."""
        unused = {"threshold"} | (set() if self.shaping else {"gamma"})
        return json.dumps(self.model_dump(mode="json", exclude=unused), sort_keys=True)

    @property
    def rule(self) -> str:
        """The same for a person to read."""
        k, n = self.confirm
        shaped = f", shaping {self.shaping} at gamma {self.gamma}" if self.shaping else ""
        return f"{self.mode}, {self.reward_type}, {k} of {n} frames{shaped}"


class Judging(Protocol):
    """What has to be known of a model that judges."""

    @property
    def threshold(self) -> float: ...

    @property
    def has_progress(self) -> bool: ...

    @property
    def fingerprint(self) -> str: ...


class Scorer(Judging, Protocol):
    """A model that follows N scenes: what `RewardModel.watch` returns, or a `RewardWorker`.

    scorer.start(observation).probability      # [N], after the reset
    scorer.see(observation).probability        # [N], after each step
    """

    def start(self, observation: Observation) -> Judgement: ...

    def see(self, observation: Observation) -> Judgement: ...


class EpisodeScorer(Judging, Protocol):
    """A model that judges all frames of an episode at once: `RewardModel` or `RewardWorker`."""

    def judge(self, episode: Episode) -> Judgement: ...


class ModelJudge:
    """A `Judge` of rounds that asks a reward model."""

    source = "classifier"

    def __init__(self, scorer: Scorer, config: JudgeConfig, num_envs: int, max_steps: int):
        """max_steps: of an episode, after which its time is up"""
        if config.shaping and not scorer.has_progress:
            raise RewardError(
                f"shaping is {config.shaping:g}, but this reward model has not learned progress; "
                "set shaping to 0, or train one that has (plaudit train-reward --progress)"
            )
        self._scorer, self._config, self._max_steps = scorer, config, max_steps
        self.facts = facts_of(scorer, config)
        self._threshold: float = self.facts["threshold"]
        self._called = np.zeros((config.confirm[1], num_envs), bool)  # of the last n frames, in turn
        self._step = 0
        self._phi = np.zeros(num_envs, np.float32)  # of the newest frames

    def start(self, observation: Observation) -> FloatArray:
        said = self._scorer.start(observation)
        self._step = 0
        self._called[:] = False
        self._phi = self._potential(said, self._confirmed(said))
        return said.probability

    def __call__(self, observation: Observation, known: Mapping[str, AnyArray]) -> RewardSignal:
        said = self._scorer.see(observation)
        self._step += 1
        success = self._confirmed(said)
        parts = {"model": self._pay(said, success, known)}
        if self._config.mode == "add":
            parts["env"] = _own_shaping(known)
        if self._config.shaping:
            before, self._phi = self._phi, self._potential(said, success)
            parts["shaping"] = np.float32(self._config.shaping) * (np.float32(self._config.gamma) * self._phi - before)
        reward = np.stack(list(parts.values())).sum(axis=0)
        return RewardSignal(said.probability, reward, success, parts)

    def _confirmed(self, said: Judgement) -> BoolArray:
        k, n = self._config.confirm
        self._called[self._step % n] = called_success(said.probability, self._threshold)
        return self._called.sum(axis=0) >= k

    def _pay(self, said: Judgement, success: BoolArray, known: Mapping[str, AnyArray]) -> FloatArray:
        reward = said.probability if self._config.reward_type == "continuous" else success.astype(np.float32)
        if self._config.mode != "terminal" or self._step == self._max_steps:
            return reward
        ends = success | known.get("failure", np.zeros_like(success)).astype(bool)
        return np.where(ends, reward, np.float32(0))

    def _potential(self, said: Judgement, success: BoolArray) -> FloatArray:
        progress = np.zeros_like(said.probability) if said.progress is None else said.progress
        return np.where(success, np.float32(0), progress)


def facts_of(model: Judging, config: JudgeConfig) -> dict[str, Any]:
    """Who judged and by which rule: the fields of `Labels` that say so."""
    threshold = model.threshold if config.threshold is None else config.threshold
    return {"model": model.fingerprint, "threshold": threshold, "note": config.rule, "rule": config.exact}


def start_verdict(probability: float, threshold: float, config: JudgeConfig) -> float:
    """`Labels.start`: P(success) of frame 0, or 0 where that is called but the rule asks for more frames than one."""
    return 0.0 if config.confirm[0] > 1 and called_success(probability, threshold) else float(probability)


def _own_shaping(known: Mapping[str, AnyArray]) -> FloatArray:
    if "shaping" not in known:
        raise RewardError(
            "mode 'add' needs a reward of the simulation that does not pay for success, and this one gives none "
            "('shaping'): its own reward would tell the learner what only the judge may; use mode 'replace'"
        )
    return known["shaping"].astype(np.float32)


def judge_episode(model: EpisodeScorer, episode: Episode, config: JudgeConfig) -> Labels:
    """What a `ModelJudge` would have said while this happened. Its last step is taken as the one that ended it."""
    judge = ModelJudge(_Played(model, episode), config, 1, episode.steps)
    unseen = Observation({}, np.zeros((1, 0), np.float32))
    start = judge.start(unseen)
    signals = [judge(unseen, {n: v[t : t + 1] for n, v in episode.privileged.items()}) for t in range(episode.steps)]
    probability = np.concatenate([signal.probability for signal in signals])
    judged = ~np.isnan(probability)
    return Labels(
        reward=np.where(judged, np.concatenate([signal.reward for signal in signals]), np.float32(np.nan)),
        success=np.concatenate([signal.success for signal in signals]) & judged,
        probability=probability,
        start=start_verdict(start[0], judge.facts["threshold"], config),
        source=ModelJudge.source,
        **judge.facts,
    )


class _Played:
    """A `Scorer` of one scene that plays back what a model said of an episode; NaN where it saw no frame."""

    def __init__(self, model: EpisodeScorer, episode: Episode):
        said = model.judge(episode)
        self.threshold, self.has_progress, self.fingerprint = model.threshold, model.has_progress, model.fingerprint
        self._probability = _recorded(said.probability, episode)
        self._progress = None if said.progress is None else _recorded(said.progress, episode)
        self._frame = 0

    def start(self, observation: Observation) -> Judgement:
        self._frame = -1
        return self.see(observation)

    def see(self, observation: Observation) -> Judgement:
        self._frame += 1
        here = slice(self._frame, self._frame + 1)
        return Judgement(self._probability[here], None if self._progress is None else self._progress[here])


def _recorded(values: FloatArray, episode: Episode) -> FloatArray:
    """[T+1] without what was said of a repeated frame."""
    found = np.full(len(values), np.nan, np.float32)
    found[episode.recorded] = values[episode.recorded]
    return found


class LiveLabeler:
    """A `Labeler` of stored episodes: what a `ModelJudge` would have said while they happened."""

    source = ModelJudge.source

    def __init__(self, model: EpisodeScorer, config: JudgeConfig):
        self._model, self._config = model, config
        self.facts = facts_of(model, config)

    def label(self, episodes: Sequence[Episode]) -> Sequence[Labels | Exception]:
        return [self._verdict(episode) for episode in episodes]

    def _verdict(self, episode: Episode) -> Labels | RewardError:
        try:
            return judge_episode(self._model, episode, self._config)
        except RewardError as error:
            return error


class Alarm:
    """Rings when the judge is wrong about too many audited episodes, in either way: it calls a success what is none,
    and the policy has found out how to please it; or it misses successes, and the policy is not paid for them.

    alarm.note(judged=labels.succeeded, true=episode.success.any())    # of each episode that somebody audits
    if alarm.ringing: print(alarm.sentence)

    The two kinds of mistake are counted apart. Their difference, `gap`, says nothing of a judge that makes both.
    """

    def __init__(self, bound: float = 0.2, window: int = 50, least: int = 20):
        """
        bound: of either error rate, a share of the audited episodes, beyond which it rings
        window: audited episodes that count, the newest
        least: audited episodes before it rings at all
        """
        if not 1 <= least <= window:
            raise RewardError(f"an alarm that waits for {least} episodes and remembers {window} can never ring")
        self.bound, self.window, self.least = bound, window, least
        self._noted: deque[tuple[bool, bool]] = deque(maxlen=window)

    def note(self, judged: bool, true: bool) -> None:
        """Count one audited episode."""
        self._noted.append((bool(judged), bool(true)))

    @property
    def shares(self) -> tuple[float, float]:
        """Of the audited episodes: those judged a success and those that are one; NaN before there are any."""
        return self._share(lambda judged, true: judged), self._share(lambda judged, true: true)

    @property
    def false_successes(self) -> float:
        """Share of the audited episodes that were called a success and are none; NaN before there are any."""
        return self._share(lambda judged, true: judged and not true)

    @property
    def missed_successes(self) -> float:
        """Share of the audited episodes that are a success and were not called; NaN before there are any."""
        return self._share(lambda judged, true: true and not judged)

    @property
    def gap(self) -> float:
        """Judged minus true success."""
        judged, true = self.shares
        return judged - true

    @property
    def ringing(self) -> bool:
        return len(self._noted) >= self.least and max(self.false_successes, self.missed_successes) > self.bound

    @property
    def sentence(self) -> str:
        """What is wrong, by how much, and what to do about it."""
        judged, true = self.shares
        rates = {"false": self.false_successes, "missed": self.missed_successes}
        follows = {
            "false": "the policy has learned to please the judge",
            "missed": "the judge does not see what the policy does right, and it is not paid for it",
        }
        kinds = [kind for kind in rates if rates[kind] > self.bound] or [max(rates, key=lambda kind: rates[kind])]
        wrong = "; ".join(
            f"{rates[kind]:.0%} are {kind} successes, at most {self.bound:.0%} may be: {follows[kind]}"
            for kind in kinds
        )
        return (
            f"the judge called {judged:.0%} of the last {len(self._noted)} audited episodes a success and {true:.0%} "
            f"were; {wrong}; look at these episodes (plaudit data sheet), label the "
            f"{' and '.join(kinds)} successes (plaudit data label) and train the judge again (plaudit train-reward)"
        )

    def metrics(self) -> dict[str, float]:
        """Both error rates, by the names in docs/metrics.md; nothing before there are any."""
        if not self._noted:
            return {}
        return {"audit/false_successes": self.false_successes, "audit/missed_successes": self.missed_successes}

    def to_json(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("bound", "window", "least")}
        return {**facts, "noted": list(map(list, self._noted))}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Checkpoints of earlier versions have `two_sided` too, which means nothing any more."""
        alarm = cls(tree["bound"], tree["window"], tree["least"])
        for judged, true in tree["noted"]:
            alarm.note(judged, true)
        return alarm

    def _share(self, counts: Callable[[bool, bool], bool]) -> float:
        if not self._noted:
            return math.nan
        return sum(counts(judged, true) for judged, true in self._noted) / len(self._noted)

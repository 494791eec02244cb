"""How good must a judge be? True success under a judge's errors, predicted from runs with noisy judges.

    table = PlanTable.built_in()
    plan = table.plan("pick_place")
    plan.predict({"false_positives": 0.1, "misses": 0.2}).success
    plan.allowed(0.9)                    # how often it may be wrong of both kinds for 90% true success
    noise_of(precision=0.9, recall=0.8)  # the noise of a judge that is described so

For each kind of error, a prediction interpolates the mean success of the runs that were made (judges/simulator.py,
training/noise_runs.py); it never rises with more errors. Errors of several kinds cost what each costs alone, as shares
of what is left. Beyond the levels that were run it keeps the last value, which is the best that can be true, and says
so. All of it holds for one task, one recipe and one length of run. Errors that were run with another learner (late
labels need replay) enter as the share of its own success that they leave.

Precision depends on how often the policy succeeds, and a false-positive rate does not. So a precision here is that
among episodes of which half succeed, unless stated otherwise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import Config, NonNegativeFloat, Seed
from plaudit.data.disk import decode_checked, encode_checked, write_atomic
from plaudit.errors import BadFile, DataError, did_you_mean
from plaudit.files import read_own
from plaudit.judges.certificate import Certificate
from plaudit.judges.simulator import KINDS
from plaudit.judges.stats import halve
from plaudit.types import AnyArray

TABLE_FILE = "plan_table.json"
MAX_BYTES = 1 << 22
Noise = Mapping[str, float]  # kind -> level, of KINDS; what is not named is 0


class NoiseRun(Config):
    """A training run with a noisy judge, and what came of it."""

    env: str
    learner: str
    noise: dict[str, NonNegativeFloat]
    seed: Seed
    success: float = Field(ge=0, le=1)  # in truth, mean of the evaluations in the last quarter of the run


class PlanTable(Config):
    """Runs that predictions are made from."""

    recipes: dict[str, dict[str, str]]  # env -> learner -> the keys of `plaudit train` that its runs share
    runs: tuple[NoiseRun, ...] = ()  # of a task, those of its main learner first

    @model_validator(mode="after")
    def _check_recipes(self) -> Self:
        if unknown := {run.env for run in self.runs} - set(self.recipes):
            raise ValueError(f"no recipe for {min(unknown)!r}")
        return self

    @classmethod
    def built_in(cls) -> Self:
        """The table of the built-in tasks, made by benchmarks/plan.py."""
        return cls.load(Path(__file__).with_name(TABLE_FILE))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a file that `save` wrote."""
        try:
            return cls.model_validate(decode_checked(read_own(path, MAX_BYTES)))
        except FileNotFoundError:
            raise BadFile(path, "there is no such table; plaudit judge plan --measure makes one") from None
        except BadFile:
            raise
        except ValueError as error:
            raise BadFile(
                path, "this file was not written by 'plaudit judge plan --measure'; name another file"
            ) from error

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, encode_checked(self.model_dump(mode="json")))

    def plan(self, env: str) -> "Plan":
        """Plan for one task."""
        runs = [run for run in self.runs if run.env == env]
        if not runs:
            envs = sorted({run.env for run in self.runs})
            raise DataError(
                f"no runs with noisy judges are known for '{env}'; {did_you_mean(env, envs)} (or measure it first: "
                f"plaudit judge plan --env {env} --measure)"
            )
        if not any(not run.noise and run.learner == runs[0].learner for run in runs):
            raise DataError(f"the runs of '{env}' lack those without noise; plaudit judge plan --measure makes them")
        return Plan(env, self.recipes[env], runs)


@dataclass(frozen=True)
class Prediction:
    """True success to expect."""

    success: float  # mean over runs
    spread: float  # standard deviation from run to run
    beyond: tuple[str, ...] = ()  # kinds of error that are worse than in any run: success is at most this


@dataclass(frozen=True, eq=False)
class Curve:
    """Success under one kind of error, from none on."""

    levels: AnyArray  # [L] ascending, the first 0
    means: AnyArray  # [L] of the runs at each level, never rising
    spreads: AnyArray  # [L] standard deviations


@dataclass(frozen=True, eq=False)
class Plan:
    """Predictions for one task."""

    env: str
    recipes: Mapping[str, str]  # learner -> keys
    runs: Sequence[NoiseRun]

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Curves of each kind of error that was measured alone."""
        from sklearn.isotonic import isotonic_regression

        curves: dict[str, Curve] = {}
        for kind in KINDS:
            # level -> success of the runs with this kind of error alone, or with none, of the same learner
            levels: dict[float, list[float]] = {}
            learner = next((run.learner for run in self.runs if set(run.noise) == {kind}), None)
            for run in self.runs:
                if run.learner == learner and set(run.noise) <= {kind}:
                    levels.setdefault(run.noise.get(kind, 0.0), []).append(run.success)
            if len(levels) > 1:
                ordered, runs = sorted(levels), [levels[level] for level in sorted(levels)]
                means = [np.mean(one) for one in runs]
                weights = [len(one) for one in runs]
                falling = isotonic_regression(means, sample_weight=weights, increasing=False)
                curves[kind] = Curve(np.array(ordered), falling, _spreads(runs))
        return curves

    @cached_property
    def _by_noise(self) -> dict[str, list[float]]:
        """noise -> success of the main learner's runs with it, those without any first."""
        groups: dict[str, list[float]] = {"{}": []}
        for run in self.runs:
            if run.learner == self.runs[0].learner:
                groups.setdefault(str(run.noise), []).append(run.success)
        return groups

    @property
    def best(self) -> float:
        """Mean success of the main learner where the judge is never wrong."""
        return float(np.mean(self._by_noise["{}"]))

    def predict(self, noise: Noise) -> Prediction:
        """Success under errors of one kind or several."""
        kept, spreads, beyond = 1.0, [float(_spreads(list(self._by_noise.values()))[0])], []
        for kind, level in noise.items():
            if not level:
                continue
            if kind not in self.curves:
                raise DataError(f"no run of '{self.env}' has a judge with {kind.replace('_', ' ')}; measure them first")
            curve = self.curves[kind]
            kept *= float(np.interp(level, curve.levels, curve.means)) / max(curve.means[0], 1e-9)
            spreads.append(float(np.interp(level, curve.levels, curve.spreads)))
            if level > curve.levels[-1]:
                beyond.append(kind)
        return Prediction(self.best * kept, max(spreads), tuple(beyond))

    def highest(self, success: float, *kinds: str, given: Noise | None = None) -> float | None:
        """The highest level of errors, the same for all these kinds, at which success is still expected.

        At most the highest that was run; None where even without these errors it is not.
        given: errors of other kinds that there are anyway
        """

        def enough(level: float) -> bool:
            return self.predict({**(given or {}), **dict.fromkeys(kinds, level)}).success >= success - 1e-9

        most = float(min(self.curves[kind].levels[-1] for kind in kinds))
        if not enough(0.0):
            return None
        return most if enough(most) else halve(enough, most, 0.0, halvings=30)


def _spreads(groups: Sequence[Sequence[float]]) -> AnyArray:
    """[G] standard deviations of each group; of one or two runs, which say little of how far others will be, not less
    than that of all runs around the means of their groups."""
    squares = [float(np.sum((np.asarray(group) - np.mean(group)) ** 2)) for group in groups]
    own = [math.sqrt(square / max(1, len(group) - 1)) for square, group in zip(squares, groups, strict=True)]
    pooled = math.sqrt(sum(squares) / max(1, sum(len(group) - 1 for group in groups)))
    return np.array([one if len(group) > 2 else max(one, pooled) for one, group in zip(own, groups, strict=True)])


# Judges in the words of their reports


def noise_of(precision: float, recall: float, success_share: float = 0.5) -> dict[str, float]:
    """False positives and misses of a judge with this precision and recall of episodes.

    success_share: share of the episodes they were measured on that succeed
    """
    if not 0 < precision <= 1 or not 0 <= recall <= 1:
        raise DataError(f"precision {precision:g} and recall {recall:g}: both are shares, and a precision is above 0")
    false = recall * success_share * (1 - precision) / (precision * (1 - success_share))
    if false > 1:
        raise DataError(
            f"no judge has a precision of {precision:.0%} with a recall of {recall:.0%} where {success_share:.0%} of "
            "the episodes succeed. It would call more failures a success than there are; check the two"
        )
    return {"false_positives": false, "misses": 1 - recall}


def precision_of(false_positives: float, misses: float) -> float:
    """Precision where half of the episodes succeed."""
    called = 1 - misses + false_positives
    return (1 - misses) / called if called else math.nan


def noise_of_certificate(certificate: Certificate) -> tuple[dict[str, float], dict[str, float]]:
    """The errors of an examined judge: as it was measured, and at the bad ends of its intervals."""
    share = certificate.data.successes / certificate.data.episodes
    precision, recall = (certificate.figures[name] for name in ("precision", "recall"))
    if not 0 < share < 1 or not precision.value > 0 or math.isnan(recall.value):
        raise DataError(
            "this certificate has no precision or recall: the episodes of its exam all end the same way, or the "
            "judge called none a success; examine it on both kinds"
        )
    worst = {"false_positives": 1.0, "misses": 1 - recall.low}
    if precision.low:
        false = recall.value * share * (1 - precision.low) / (precision.low * (1 - share))
        worst["false_positives"] = min(1.0, false)
    return noise_of(precision.value, recall.value, share), worst

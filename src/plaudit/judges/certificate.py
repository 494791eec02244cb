"""The certificate of a judge: what its exam (judges/exam.py) found, bound to the judge and to the data.

    certificate = load_certificate(path, judge.id)       # refused where it is of another judge
    certificate.line, certificate.passed, certificate.problems

It is a JSON file with a checksum, next to the judge: `certificate.json` in a reward model's or an adapter's folder,
`judge.certificate.json` next to `judge.yaml`. A model that was trained again, another calibration or another rule is
another judge, and needs another exam. A human and a simulator need none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from plaudit.config import Config, Fraction, NonNegativeInt, PositiveInt
from plaudit.data.disk import decode_checked, encode_checked, write_atomic
from plaudit.errors import BadFile, JudgeError, without_prefix
from plaudit.files import Root
from plaudit.judges.config import JUDGE_FILE, own_kind
from plaudit.judges.stats import Interval
from plaudit.rule import DecisionRule, without_ood
from plaudit.types import JudgeId

CERTIFICATE_FILE = "certificate.json"
MAX_BYTES = 1 << 20
AGAIN = "run plaudit judge exam again"
MAX_FPR = 0.05  # of the frames of one control
MIN_RECALL = 0.5  # of the episodes that succeed; the interval must reach it
MIN_FAILURES = 3  # episodes that fail; failing frames of successful ones do not show how often it is fooled

FIGURES: Mapping[str, str] = {
    "same_time_roc_auc": "ROC AUC, frames of the same number",  # 0.5 for a clock
    "frame_roc_auc": "ROC AUC, all frames",
    "episode_roc_auc": "ROC AUC, episodes",  # by the highest threshold at which the rule calls an episode
    "precision": "precision, episodes",  # by the rule in use, and so the next three
    "recall": "recall, episodes",
    "frame_precision": "precision, frames",
    "frame_recall": "recall, frames",
    "fpr": "false-positive rate, frames",  # at the threshold
    "fpr_at_95_recall": "false-positive rate at 95% recall",  # of frames, at the threshold with that recall
    "first_frame_fpr": "false positives at the first frame",  # of episodes that do not begin with success
    "onset_median": "first success frame, median error",
    "onset_p90": "first success frame, 90th percentile",
    "value_order": "value order on successes",  # Spearman's correlation with time
    "value_order_still": "value order, standing still",
    "value_order_reversed": "value order, backwards",
    "ece": "calibration error (ECE)",
}
IN_FRAMES, CORRELATIONS = ("onset_median", "onset_p90"), ("value_order", "value_order_still", "value_order_reversed")


class ControlResult(Config):
    """A judge on all negative controls of one name (controls.py)."""

    name: str
    episodes: NonNegativeInt
    frames: NonNegativeInt  # that must not be predicted a success; 0 where no episode could be made into this control
    fpr: Interval  # share of them that was
    max_fpr: Annotated[float, Field(ge=0, le=2)]  # that it may be
    recall: Fraction | None = None  # of success frames in the same episodes, if they have any

    @model_validator(mode="after")
    def _check(self) -> Self:
        if math.isnan(self.fpr.value) != (self.frames == 0):
            raise ValueError(f"control '{self.name}' has {self.frames} frames and a rate of {self.fpr.value}")
        return self

    @property
    def passed(self) -> bool:
        """Whether no more frames were predicted a success than may be; also where none could be tried."""
        return math.isnan(self.fpr.value) or self.fpr.value <= self.max_fpr


def failed_controls(results: Sequence[ControlResult]) -> list[str]:
    """A message for each control with too many false positives."""
    return [
        f"{r.name}: {r.fpr.value:.0%} of {r.frames:,} frames predicted a success, at most {r.max_fpr:.0%} may be"
        for r in results
        if not r.passed
    ]


# What a judge may use instead of what it sees, and what that means.
CLOCK, CONSTANT = "clock-like", "constant"
SHORTCUTS = {
    CLOCK: "its values rise with time, whatever happens",
    CONSTANT: "every frame gets nearly the same probability",
}


def find_problems(
    data: "ExamData", figures: Mapping[str, Interval], controls: Sequence[ControlResult], shortcut: str
) -> list[str]:
    """Why a judge with these results does not pass; the first explains the others."""
    problems = [f"it is {shortcut} ({SHORTCUTS[shortcut]})"] if shortcut else []
    chance = [name for name in ("same_time_roc_auc", "frame_roc_auc") if figures[name].low <= 0.5]
    if chance and not shortcut:
        what, figure = FIGURES[chance[0]], figures[chance[0]]
        problems.append(f"it is no better than chance ({what}: {figure.low:.2f} to {figure.high:.2f})")
    if (recall := figures["recall"]).high < MIN_RECALL:
        problems.append(f"it misses most successes ({FIGURES['recall']}: {recall.low:.2f} to {recall.high:.2f})")
    problems += failed_controls(controls)
    if (failures := data.episodes - data.successes) < MIN_FAILURES:
        problems.append(f"only {failures} of {data.episodes} episodes fail; {MIN_FAILURES} show how often it is fooled")
    return problems


class ExamData(Config):
    """The data of an exam."""

    store: str
    fingerprint: str  # of the episodes and their reference labels
    reference: tuple[str, ...]  # whose labels
    episodes: PositiveInt
    successes: NonNegativeInt  # of these, episodes that succeed
    frames: NonNegativeInt
    num_left_out: NonNegativeInt  # episodes with reference labels that the judge had seen, or could not score


class Certificate(Config):
    """The results of an exam."""

    format: Literal["plaudit certificate"] = "plaudit certificate"
    version: Literal[1] = 1
    date: str  # UTC
    name: str  # of the judge, for people
    source: str  # of its labels, and what follows: its JudgeId
    fingerprint: str
    rule: str
    rule_text: str  # for people
    data: ExamData
    figures: Mapping[str, Interval]  # see FIGURES
    controls: tuple[ControlResult, ...]
    shortcut: Literal["", "clock-like", "constant"] = ""  # what it uses instead of the images
    problems: tuple[str, ...]  # why it did not pass
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if missing := [name for name in FIGURES if name not in self.figures]:
            raise ValueError(f"it lacks the figure '{missing[0]}'")
        for name, figure in self.figures.items():
            low, high = (-1, 1) if name in CORRELATIONS else (0, math.inf) if name in IN_FRAMES else (0, 1)
            ends = [end for end in (figure.value, figure.low, figure.high) if math.isfinite(end)]
            if any(not low <= end <= high for end in ends):
                raise ValueError(f"its figure '{name}' is not between {low} and {high}")
        if self.data.successes > self.data.episodes:
            raise ValueError(f"{self.data.successes} of its {self.data.episodes} episodes succeed")
        # A certificate that names no problem must have none.
        own_fpr = np.nan_to_num(self.figures["fpr"].value)
        for control in self.controls:
            if control.max_fpr > MAX_FPR + (0 if control.recall is None else own_fpr) + 1e-9:
                raise ValueError(f"its control '{control.name}' has a limit of {control.max_fpr:.0%}")
        if not self.problems and (problems := find_problems(self.data, self.figures, self.controls, self.shortcut)):
            raise ValueError(f"it says that the judge passed, although {problems[0]}")
        return self

    @property
    def judge(self) -> JudgeId:
        """Whose certificate it is."""
        return JudgeId(self.source, self.fingerprint, DecisionRule.parse(self.rule))

    @property
    def passed(self) -> bool:
        """Whether the judge passed the exam."""
        return not self.problems

    @property
    def line(self) -> str:
        """One-line summary for commands that use the judge."""
        figures = self.figures
        area, false = figures["frame_roc_auc"], figures["fpr"]
        tried = [control for control in self.controls if control.frames]
        result = "passed" if self.passed else "FAILED"
        named = f" ({self.shortcut})" if self.shortcut else ""
        return (
            f"exam {result}{named} on {self.data.episodes} unseen episodes, {self.date[:10]}: ROC AUC {area.value:.3f} "
            f"({area.low:.3f} to {area.high:.3f}), false-positive rate {false.value:.1%} ({false.low:.1%} to "
            f"{false.high:.1%}), {sum(control.passed for control in tried)} of {len(tried)} controls passed"
        )

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomic(path, encode_checked(self.model_dump(mode="json")))


def certificate_beside(judge: Path) -> Path:
    """Where the certificate of a judge belongs that is a folder or a file."""
    if judge.is_dir():
        return judge / CERTIFICATE_FILE
    if judge.name == JUDGE_FILE and own_kind(judge.parent) is not None:
        return judge.parent / CERTIFICATE_FILE
    return judge.with_name(f"{judge.stem}.{CERTIFICATE_FILE}")


def load_certificate(path: Path, judge: JudgeId | None = None) -> Certificate:
    """A certificate, which must be of this judge; None: of any."""
    try:
        certificate = Certificate.model_validate(decode_checked(Root(path.parent).read(path, MAX_BYTES)))
    except FileNotFoundError:
        raise BadFile(path, "there is no such certificate; plaudit judge exam makes one") from None
    except BadFile:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        key, message = ".".join(map(str, first["loc"]))[:100], without_prefix(first["msg"])
        why = f"key '{key}': {message}" if key else message
        raise BadFile(path, f"this certificate cannot be read ({why}); {AGAIN}") from error
    except ValueError as error:
        raise BadFile(path, f"this certificate cannot be read ({error}); {AGAIN}") from error
    made_for = certificate.judge
    if judge is not None and without_ood(judge) != without_ood(made_for):
        other = f"the rule '{certificate.rule_text}', and the rule is another one now"
        if (made_for.source, made_for.fingerprint) != (judge.source, judge.fingerprint):
            other = f"{made_for.source} {made_for.fingerprint}, this is {judge.source} {judge.fingerprint}"
        raise JudgeError(f"{path} is the certificate of another judge: it was made for {other}; {AGAIN}")
    return certificate


def certificate_status(path: Path | None, judge: JudgeId | None) -> tuple[str, str]:
    """What a command says about its judge's certificate, and why a robot may not be left to that judge; "" if it may.

    judge: None where it is not built yet
    """
    if path is None or not path.exists():
        how = "plaudit judge exam JUDGE STORE makes one, on episodes that the judge has not seen"
        return f"none; {how}", f"its judge has no certificate; {how}"
    try:
        certificate = load_certificate(path, judge and replace(judge, progress=""))
    except (BadFile, JudgeError) as error:
        return str(error), str(error)
    return certificate.line, "" if certificate.passed else f"its judge failed its exam: {certificate.problems[0]}"

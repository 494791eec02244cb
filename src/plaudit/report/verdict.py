"""The verdict that every page and the output of every long command begin with, in three lines; and numbers as text.

    result: Usable with an audit.
    why: It predicts success for 12 of 12 successes and 0 of 24 failures.
    next: Examine it before using it on a robot: plaudit judge exam judge data

The first says whether the thing is usable or how good it is, the second why, and the third what to do next. Its command
can be run as it stands, and its target is one that can be reached. Numbers read the same on pages and in tables.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from plaudit.errors import format_count

if TYPE_CHECKING:
    from plaudit.data.formats.base import Dataset
    from plaudit.data.store import Store
    from plaudit.judges.calibration import CalibrationRecord
    from plaudit.judges.certificate import Certificate, ControlResult
    from plaudit.judges.guarantee import Guarantee, GuaranteeStep
    from plaudit.judges.metrics import EpisodeMetrics
    from plaudit.judges.stats import Interval
    from plaudit.report.run_data import RunData  # with matplotlib, which takes a second to import
    from plaudit.types import Episode, Labels


def format_percent(fraction: float) -> str:
    """With more digits near 0 and 1, where good judges are: 99.97%, 0.04%, 85.0%; "-" for NaN."""
    if math.isnan(fraction):
        return "-"
    distance = min(fraction, 1 - fraction)
    return f"{fraction:.0%}" if distance <= 0 else f"{fraction:.1%}" if distance >= 0.001 else f"{fraction:.2%}"


def format_target(rate: float) -> str:
    """A round rate that somebody chose: 20%, 0.5%."""
    return f"{100 * rate:.3g}%"


def format_interval(rate: "Interval") -> str:
    """A rate with its confidence interval: 1.2% (0.8% to 2.0%)."""
    if math.isnan(rate.value):
        return "-"
    return f"{format_percent(rate.value)} ({format_percent(rate.low)} to {format_percent(rate.high)})"


def format_short_interval(rate: "Interval") -> str:
    """93% (70 to 99), 0.4% (0 to 1.4): several of them side by side."""
    low, high = (format_share(end).removesuffix("%") for end in (rate.low, rate.high))
    return f"{format_share(rate.value)} ({low} to {high})"


def format_share(rate: float) -> str:
    """85%; with more digits near 0 and 1."""
    return f"{rate:.0%}" if 0.1 <= rate <= 0.9 else format_percent(rate)


def format_number(value: float) -> str:
    """Four decimals; "-" for NaN."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def format_frames(frames: float) -> str:
    """1 frame, 2.5 frames; "-" for NaN."""
    if math.isnan(frames):
        return "-"
    return f"{frames:g} frame" if frames == 1 else f"{_three_digits(frames)} frames"


def _three_digits(value: float) -> str:
    """0.333, 12.5, 1,200: at least three digits, and never a power of ten."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def format_frames_interval(interval: "Interval") -> str:
    """3 frames (1 to 8); "or more" where there are too few episodes for an upper end."""
    if math.isnan(interval.value):
        return "-"
    high = f" to {_three_digits(interval.high)}" if math.isfinite(interval.high) else " or more"
    return f"{format_frames(interval.value)} ({_three_digits(interval.low)}{high})"


def format_exam_figure(name: str, rate: "Interval") -> str:
    """A figure of an exam with its interval; "-" where it could not be measured."""
    from plaudit.judges.certificate import CORRELATIONS, IN_FRAMES

    if math.isnan(rate.value):
        return "-"
    if name in IN_FRAMES:
        return format_frames_interval(rate)
    if name in CORRELATIONS or name.endswith("roc_auc"):
        return f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"
    return format_short_interval(rate)


def format_duration(seconds: float) -> str:
    """48 s, 2 min 05 s, 3 h 10 min."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_ids(ids: Sequence[int], most: int = 12) -> str:
    """The last few of many: 3, 4, 9 and 20 more."""
    shown = ", ".join(map(str, ids[-most:]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


def sentence_case(words: str) -> str:
    """A message as a sentence of a page."""
    return f"{words[0].upper()}{words[1:]}."


MAX_FALSE, MAX_MISSED = 0.1, 0.2  # the defaults of audit.max_false and audit.max_missed
REACHABLE_RATE = 0.2  # false-positive rate that is aimed for first; a looser one is of little use
MIN_VALUE_ORDER = 0.8  # of a judge of progress, to be used for shaping
GOOD_SUCCESS = 0.9  # success rate of a policy that is good enough, unless the run has another goal
CORRECTED_RATE = "audit/corrected_success_rate"
ERROR_LIMITS = {"audit/false_successes": "max_false", "audit/missed_successes": "max_missed"}  # metric -> key of audit

Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Verdict:
    """Three sentences; open: neither usable nor refused, for example while a run works."""

    result: str
    why: str
    advice: str  # without a period
    command: str = ""  # of plaudit
    tone: Tone = "bad"

    @property
    def lines(self) -> dict[str, str]:
        """The three lines by their labels."""
        following = f"{self.advice}: {self.command}" if self.command else f"{self.advice}."
        return {"result": self.result, "why": self.why, "next": following}

    def __rich__(self) -> Text:
        """The verdict as text for a terminal."""
        style = {"good": "bold green", "bad": "bold red", "open": "bold"}[self.tone]
        lines = [
            Text.assemble((f"{word}: ", "dim"), (line, style if word == "result" else ""))
            for word, line in self.lines.items()
        ]
        return Text("\n").join(lines)


def quoted(path: Path | str) -> str:
    """A path, quoted for a shell."""
    return shlex.quote(str(path))


def label_command(store: Path | str) -> str:
    """Command that labels a store by hand."""
    return f"plaudit label {quoted(store)} --judge human"


# Episodes


def store_verdict(store: "Store") -> Verdict:
    """What the episodes of a store can be used for."""
    labels = [store.ledger.labels(i) for i in store.ids]
    unlabeled, succeeded = labels.count(None), sum(one.success_once for one in labels if one is not None)
    folder = quoted(store.folder)
    if not labels:
        command = f"plaudit data import DATASET {folder}"
        return Verdict("Not usable yet: it has no episodes.", "Nothing was added to it.", "Import some", command)
    why = f"{format_count(len(labels), 'episode')}: {succeeded} successful, {len(labels) - unlabeled - succeeded} not"
    if unlabeled:
        result = "Partly usable: some episodes have no label."
        return Verdict(result, f"{why}, {unlabeled} unlabeled.", "Label them", label_command(store.folder), "open")
    following = "Train a judge on the labels", f"plaudit train-reward {folder}"
    if succeeded == len(labels):
        following = "Train a policy on them", f"plaudit train-policy {folder}"
    return Verdict("Usable: every episode has a label.", f"{why}.", *following, tone="good")


def dataset_verdict(dataset: "Dataset") -> Verdict:
    """Whether a data set of another format can be imported."""
    if dataset.problems:
        following = "Read the reasons and the flags of the import", "plaudit data import --help"
        return Verdict("Not usable as it is.", sentence_case(dataset.problems[0]), *following)
    following = "Import it", f"plaudit data import {quoted(dataset.path)} {quoted(f'{dataset.path}.store')}"
    return Verdict("Usable: it can be imported.", f"Its format is {dataset.format}.", *following, tone="good")


def episode_verdict(store: "Store", episode_id: int) -> Verdict:
    """The label of an episode that counts."""
    episode, current = store.episode(episode_id), store.ledger.current(episode_id)
    if current is None:
        why = f"It has {format_count(episode.steps, 'step')}."
        return Verdict("No label yet.", why, "Label it", label_command(store.folder), "open")
    versions = format_count(len(store.ledger.history(episode_id)), "version")
    why = f"The label is by {current.source}; the ledger has {versions}."
    sheet = f"plaudit data sheet {quoted(store.folder)} {episode_id}"
    result = sentence_case(describe_outcome(episode, current.labels()))
    return Verdict(result, why, "Draw its frames with the label", sheet, "good")


def describe_outcome(episode: "Episode", labels: "Labels | None") -> str:
    """`success from frame 3`, `no success` or `none`."""
    if labels is None:
        return "none"
    frames = (labels.targets[episode.observed] == 1).nonzero()[0]
    return f"success from frame {frames[0]}" if len(frames) else "no success"


# Judges


def judge_verdict(
    decode: "EpisodeMetrics",
    controls: "Sequence[ControlResult]",
    guarantee: "Guarantee | None" = None,
    *,
    judge: str = "",
    store: str = "STORE",
) -> Verdict:
    """Verdict on a judge from held-out episodes, with the rule in use.

    judge: as `plaudit judge exam` takes it; empty: it cannot be examined
    """
    label = label_command(store)
    train = f"{label} && plaudit train-reward {quoted(store)}"
    if judge and guarantee is not None:  # a trained model, which is not overwritten
        train += f" --output-dir {quoted(f'{judge}_2')}"
    if failed := [control for control in controls if not control.passed]:
        many = format_count(len(failed), "negative control")
        shares = ", ".join(
            f"{control.name} ({control.fpr.value:.0%} of {control.frames:,} frames)" for control in failed
        )
        limit = max(control.max_fpr for control in failed)
        reason = f"It predicts success in controls that have none: {shares}. The limit is {limit:.0%}."
        return Verdict(f"Not usable: it fails {many}.", reason, "Label more failures, then train again", train)
    successes, failures = decode.tp + decode.fn, decode.fp + decode.tn
    if missing := " and no ".join(kind for kind, n in (("successes", successes), ("failures", failures)) if not n):
        reason = f"The held-out episodes contain no {missing}."
        return Verdict("Not usable yet: it could not be measured.", reason, f"Record and label {missing}", label)
    counts = f"It predicts success for {decode.tp} of {format_count(successes, 'success')} and {decode.fp} of "
    counts += f"{format_count(failures, 'failure')}."
    if problem := _too_wrong(decode):
        return Verdict(f"Not usable yet: {problem}.", counts, "Label more episodes, then train again", train)
    certify = "Label what it gets wrong", label
    if judge:
        certify = "Examine it before using it on a robot", f"plaudit judge exam {quoted(judge)} {quoted(store)}"
    if guarantee is None:
        return Verdict("Usable with an audit.", counts, *certify, "good")
    rate = format_target(guarantee.rate)
    if guarantee.kept:
        return Verdict(f"Usable: a false-positive rate of {rate} or less is guaranteed.", counts, *certify, tone="good")
    if guarantee.bound is not None and guarantee.bound < 1:
        bound, confidence = format_percent(guarantee.bound), f"{guarantee.confidence:.0%}"
        counts += f" On similar episodes, at most {bound} of failure frames pass ({confidence} confidence)."
    result = f"Usable with an audit; a false-positive rate of {rate} is not guaranteed."
    target = describe_target(guarantee)
    following = (target, train) if _next_target(guarantee) else (f"{target}. {certify[0]}", certify[1])
    return Verdict(result, counts, *following, tone="good")


def _too_wrong(d: "EpisodeMetrics") -> str:
    """What would raise the alarm of a run's audit; empty where nothing would."""
    if not d.tp:
        return "it detects no success"
    false, missed = d.fp / (d.tp + d.fp), d.fn / (d.tp + d.fn + d.fp + d.tn)
    if false > MAX_FALSE:
        return f"{false:.0%} of the predicted successes are false (an audit allows {MAX_FALSE:.0%})"
    if missed > MAX_MISSED:
        return f"{missed:.0%} of the episodes are missed successes (an audit allows {MAX_MISSED:.0%})"
    return ""


def _next_target(guarantee: "Guarantee") -> "tuple[GuaranteeStep, int] | None":
    """The first rate to aim for, and how many more episodes it takes at least; None where more episodes do not help."""
    top = max(REACHABLE_RATE, guarantee.rate)
    open_steps = [step for step in guarantee.steps if step.threshold is None and guarantee.rate <= step.rate <= top]
    if not open_steps:
        return None
    step = max(open_steps, key=lambda step: step.rate)
    more = guarantee.more_for(step.needed)
    return (step, more) if more else None


def describe_target(guarantee: "Guarantee") -> str:
    """`Label at least 60 more episodes for a guarantee of 20% (1,512 for the 1% that you requested)`"""
    target = _next_target(guarantee)
    if target is None:
        return "Look at the largest errors: more episodes alone do not lead to a guarantee"
    step, more = target
    asked = ""
    if step.rate != guarantee.rate and guarantee.more:
        asked = f" ({guarantee.more:,} for the {format_target(guarantee.rate)} that you requested)"
    return f"Label at least {format_count(more, 'more episode')} for a guarantee of {format_target(step.rate)}{asked}"


def progress_verdict(
    order: float, episodes: int, controls: "Sequence[ControlResult]", model: str, store: str
) -> Verdict:
    """Verdict on a progress judge. order: mean correlation of values with time in held-out episodes"""
    why = f"Its values correlate with time by {order:.2f} in {episodes} held-out episodes (1 is best)."
    failed = [control.name for control in controls if not control.passed]
    if failed or not order >= MIN_VALUE_ORDER:
        problem = (
            f"its values rise in the control {failed[0]}"
            if failed
            else f"the minimum for shaping is {MIN_VALUE_ORDER:g}"
        )
        record = "Record more successful episodes, then train again"
        train = f"plaudit train-progress {quoted(store)} --output-dir {quoted(f'{model}_2')}"
        return Verdict(f"Not usable yet: {problem}.", why, record, train)
    label = f"plaudit label {quoted(store)} --config {quoted(model)}"
    advice = f"Use it in a run (judge.progress={model} reward.shaping=0.3), or look at its values"
    return Verdict("Usable to shape rewards.", why, advice, label, "good")


def calibration_verdict(record: "CalibrationRecord", judge: Path | str, store: Path | str) -> Verdict:
    """Verdict on a decision rule from held-out episodes. judge: the file with the rule"""
    fpr, target = format_percent(record.fpr), format_target(record.target_fpr)
    why = (
        f"On held-out episodes, {fpr} of failure frames and {format_percent(record.recall)} of success frames are "
        f"predicted as success. The target was {target} of failure frames."
    )
    label = label_command(store)
    problem = "it detects no success" if not record.recall else ""
    if problem := f"the false-positive rate is {fpr}" if record.fpr > record.target_fpr else problem:
        advice = "Label more episodes and calibrate again, or raise --target-fpr"
        return Verdict(f"Not usable yet: {problem}.", why, advice, label)
    exam = f"plaudit judge exam {quoted(judge)} OTHER_STORE"
    advice = "Examine it on episodes not used for calibration"
    if record.promise is not None and record.promise.kept:
        return Verdict(f"Usable: a false-positive rate of {target} or less is guaranteed.", why, advice, exam, "good")
    result = f"Usable with an audit; a false-positive rate of {target} is not guaranteed."
    return Verdict(result, why, advice, exam, "good")


def exam_verdict(
    certificates: "Sequence[Certificate]", judges: Mapping[str, Sequence[str]], store: str = "STORE"
) -> Verdict:
    """Verdict on one or more judges, the best first. judges: name -> the judge and its keys, as given to the command"""
    passed, best = [one for one in certificates if one.passed], certificates[0]
    if not passed:
        result = "it failed its exam" if len(certificates) == 1 else "no judge passed the exam"
        following = "Label what it gets wrong and train it again", label_command(store)
        return Verdict(f"Not usable: {result}.", f"{best.name}: {best.problems[0]}.", *following)
    false, data = best.figures["fpr"], best.data
    why = (
        f"{best.name} passed all controls. It predicts success in {format_percent(false.value)} of failure frames, on "
        f"{format_count(data.episodes, 'episode')} not used for training."
    )
    result = "Usable: it passed its exam."
    if len(certificates) > 1:
        result = f"Usable: {best.name} is the best of {len(certificates)} judges; {len(passed)} passed."
    word, *keys = judges.get(best.name, [best.name])
    option = "--config" if Path(word).exists() else "--judge"
    command = shlex.join(["plaudit", "label", store, option, word, *keys])
    return Verdict(result, why, "Label episodes with it, or use it in a run (judge=...)", command, "good")


def arena_verdict(verdict: Verdict, ran: int, failed: Mapping[str, str]) -> Verdict:
    """The verdict on the judges of an arena that ran, which begins with those that did not. failed: name -> reason"""
    if not failed:
        return verdict
    (name, reason), more = next(iter(failed.items())), len(failed) - 1
    result = f"{'Not' if ran == 1 else 'Partly'} compared: {ran} of {format_count(ran + len(failed), 'judge')} ran."
    others = f", nor did {format_count(more, 'other judge')}" if more else ""
    best = "" if ran == 1 else f" {verdict.result}"
    why = f"{name} did not run{others}: {reason.rstrip('.')}.{best} {verdict.why}"
    return replace(verdict, result=result, why=why, tone="bad")


# Policies and runs


def policy_verdict(rate: "Interval", by: str, path: Path | str, better: str = "", task: str = "") -> Verdict:
    """Verdict on a policy that was evaluated in simulation.

    by: how the rate was measured, a sentence
    better: a command that trains it further
    task: of the evaluation, if it is not the run's own
    """
    shown = f"{rate.value:.0%} success (95% CI {rate.low:.0%} to {rate.high:.0%})"
    watch = f"plaudit eval {quoted(path)}{task and f' --env {quoted(task)}'} --video"
    if rate.value >= GOOD_SUCCESS:
        return Verdict(f"Usable: {shown}.", by, "Watch it on test seeds", watch, "good")
    result = f"Not good enough yet: {shown}; {GOOD_SUCCESS:.0%} is the goal."
    return Verdict(result, by, *(("Train it further", better) if better else ("Watch where it fails", watch)))


def run_verdict(run: "RunData", *, live: bool = False) -> Verdict:
    """Verdict on a run: complete, in progress (live) or killed."""
    folder, command = quoted(run.folder), "online" if run.is_online else "train"
    resume = f"plaudit {command} --resume {folder}"
    following = ("Wait: the run is still learning", "") if live else ("Resume it", resume)
    if not run.metrics:
        return Verdict("No result yet.", "Nothing has been logged yet.", *following, tone="open")
    if run.latest("audit/alarm"):
        return _alarm(run, resume)
    sources = {
        "eval/success_once": "on evaluation seeds, measured by the simulator",
        CORRECTED_RATE: "by the judge, corrected by the audit",
        "judge/success_once": "by the judge alone",
        "env/success_once": "in training, by the simulator",
    }
    name = next((name for name in sources if run.rates(name)), None)
    after = f"after {run.last['step']:,} steps"
    if name is None:
        return Verdict("No result yet.", f"No episode has been labeled {after}.", *following, tone="open")
    rate, band = run.rates(name)[-1][1], run.band(name)
    interval = f" (95% CI {band[-1][1]:.0%} to {band[-1][2]:.0%})" if band else ""
    why = f"{rate:.0%}{interval} success {sources[name]}, {after}."
    goal = run.option("evaluation", "stop_success_rate") or GOOD_SUCCESS
    if rate >= goal:
        advice, test = "Measure it on test seeds", f"plaudit eval {folder}"
        if run.is_online and run.option("robot", "type") not in (None, "sim"):
            advice, robot = "Run it without learning", quoted(run.option("robot", "type"))
            test = (
                f"plaudit run --robot {robot} --policy_yaml {quoted(run.folder / 'policy/policy.yaml')} --episodes 20"
            )
        return Verdict(f"Good: {rate:.0%} success.", why, *(following if live else (advice, test)), tone="good")
    if live:
        return Verdict(f"In progress: {rate:.0%} success.", why, *following, tone="open")
    result = f"Not good enough yet: {rate:.0%} success; {goal:.0%} is the goal."
    return Verdict(result, why, "Train it further", train_further(run))


def train_further(run: "RunData") -> str:
    """The command that resumes a run, to twice its length if it has reached its end."""
    folder, limits = quoted(run.folder), {"max_steps": "step", "max_episodes": "rollout/episodes"}
    longer = [
        f"run.{key}={2 * int(most)}"
        for key, metric in limits.items()
        if (most := run.option("run", key)) and run.last.get(metric, 0) >= most
    ]
    if run.is_online and longer:
        config = quoted(run.folder / "config.yaml")
        return " ".join(["plaudit online --config", config, f"run.resume_dir={folder}", *longer])
    return " ".join([f"plaudit {'online' if run.is_online else 'train'} --resume", folder, *longer])


def _alarm(run: "RunData", resume: str) -> Verdict:
    errors = {
        "of the judge's successes are false": "audit/false_successes",
        "of the episodes are missed successes": "audit/missed_successes",
    }
    parts = []
    for meaning, name in errors.items():
        most, rate = run.option("audit", ERROR_LIMITS[name]), run.latest(name)
        parts += [] if rate is None else [f"{rate:.0%} {meaning}{'' if most is None else f' (max {most:.0%})'}"]
    why = sentence_case(" and ".join(parts) or "its audit raised an alarm")
    result = "Not usable: the judge is wrong too often."
    if run.is_online:
        store = run.folder / "episodes"
        return Verdict(result, why, "Label the audited episodes and train a better judge", label_command(store))
    return Verdict(result, why, "Train a better judge and resume with its folder as NEW", f"{resume} judge.model=NEW")

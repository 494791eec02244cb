"""The output of `plaudit judge plan`: tables of expected success, and what a judge needs for it."""

from collections.abc import Mapping

import numpy as np
from rich.table import Table

from plaudit.errors import DataError
from plaudit.judges.plan import Noise, Plan, Prediction, precision_of
from plaudit.judges.stats import episodes_needed, upper_bound
from plaudit.report.verdict import format_count

RECALLS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # that precision is asked for
WORDS = {
    "false_positives": "of failures called a success at a random moment",
    "misses": "of successes never seen",
    "tricks": "of near successes passing for a success",
    "late_by": "episodes late",
}
BOTH = ("false_positives", "misses")


def describe_noise(noise: Noise) -> str:
    """10% of successes never seen, 64 episodes late."""
    parts = [
        f"{level:g} {WORDS[kind]}" if kind == "late_by" else f"{level:.0%} {WORDS[kind]}"
        for kind, level in noise.items()
        if level
    ]
    return ", ".join(parts) or "never wrong"


def describe_prediction(prediction: Prediction) -> str:
    """93% +- 2, or at most that where nothing so noisy was run."""
    most = "at most " if prediction.beyond else ""
    return f"{most}{prediction.success:.0%} +- {100 * prediction.spread:.0f}"


def success_table(plan: Plan) -> Table:
    """Success under each level of errors that was run, and under false positives and misses together."""
    runs = {learner: sum(run.learner == learner for run in plan.runs) for learner in plan.recipes}
    made = ", ".join(f"{count} of {learner}" for learner, count in runs.items() if count)
    table = Table("the judge is wrong", "true success", box=None, pad_edge=False, title=f"{plan.env}: {made} runs")
    for noise in _rows(plan):
        table.add_row(describe_noise(noise), describe_prediction(plan.predict(noise)))
    return table


def _rows(plan: Plan) -> list[dict[str, float]]:
    alone = [{kind: float(level)} for kind, curve in plan.curves.items() for level in curve.levels[1:]]
    levels = plan.curves["false_positives"].levels[1:] if set(BOTH) <= set(plan.curves) else ()
    return [{}, *alone, *(dict.fromkeys(BOTH, float(level)) for level in levels)]


def needs_table(plan: Plan, success: float) -> Table:
    """The precision that a judge of each recall needs."""
    table = Table("recall", "precision", "false positives", box=None, pad_edge=False)
    most, most_missed = (float(plan.curves[kind].levels[-1]) for kind in BOTH)  # that were run
    for recall in RECALLS:
        if 1 - recall > most_missed + 1e-9:
            continue
        false = plan.highest(success, "false_positives", given={"misses": 1 - recall})
        if false is not None:
            precision = f"{precision_of(false, 1 - recall):.0%}"
            table.add_row(f"{recall:.0%}", precision, f"{false:.0%}{' or more' if false >= most else ''}")
    return table


def needs_sentences(plan: Plan, success: float, confidence: float) -> list[str]:
    """What a judge must be for this success, and what it takes to prove that of one."""
    if not set(BOTH) <= set(plan.curves):
        raise DataError(
            f"the runs of '{plan.env}' lack false positives or misses; plaudit judge plan --measure adds them"
        )
    if success > plan.best:
        return [
            f"no judge brings {plan.env} to {success:.0%} with this recipe, which reaches {plan.best:.0%} with a "
            "perfect judge; ask for less, or train longer (--measure run.max_steps=200000)"
        ]
    rate = plan.highest(success, *BOTH)
    assert rate is not None
    lines = []
    if "tricks" in plan.curves:
        share, top = plan.highest(success, "tricks"), float(plan.curves["tricks"].levels[-1])
        most = "all" if share == top == 1 else f"up to {share or 0:.0%}"
        lines.append(f"of near successes {most} may pass for a success, where it makes no other error")
    if rate <= 0:
        return [*lines, f"for {success:.0%} the judge has to be right about every episode, which nothing proves"]
    # Episodes of one kind. Both rates are to hold at once, so each has half of the doubt.
    each = [episodes_needed(rate, (1 + confidence) / 2, actual) for actual in (0.0, rate / 2)]
    worst = min(plan.curves[kind].levels[-1] for kind in BOTH)
    capped = ", and no run was worse than that" if rate >= worst else ""
    return [
        *lines,
        f"for {success:.0%} it may be wrong about {rate:.0%} of failures and {rate:.0%} of successes, which is a "
        f"precision of {precision_of(rate, rate):.0%} where half of the episodes succeed{capped}",
        f"to prove that with {confidence:.0%} confidence, label {format_count(2 * each[0], 'episode')} that it has not "
        "seen, half of them successes, if it is wrong about none",
        f"if it is wrong half as often as it may be, this takes about {2 * each[1]:,} episodes",
        "the number of training episodes that it needs is not predicted: train it, examine it (plaudit judge exam), "
        "label more of what it gets wrong, and repeat",
    ]


def labels_sentence(plan: Plan, labels: int, confidence: float) -> str:
    """What this many labeled episodes can prove at best, and the success to expect then."""
    if labels < 2:
        raise DataError(
            f"--labels {labels}: nothing is proven without a success and a failure; give at least 2, or leave it out"
        )
    rate = upper_bound(np.zeros(labels // 2), (1 + confidence) / 2)
    prediction = plan.predict(dict.fromkeys(BOTH, rate))
    return (
        f"{labels:,} labeled episodes, half of them successes, prove at best an error rate of {rate:.0%} on each kind "
        f"with {confidence:.0%} confidence; the true success is then at least {describe_prediction(prediction)}"
    )


def judge_sentences(plan: Plan, cases: Mapping[str, Noise]) -> list[str]:
    """What to expect of judges by name."""
    lines = []
    for name, noise in cases.items():
        prediction = plan.predict(noise)
        lines.append(f"{name}: {describe_noise(noise)}: true success of {describe_prediction(prediction)} to expect")
        if prediction.beyond:
            kinds = " and ".join(kind.replace("_", " ") for kind in prediction.beyond)
            lines.append(f"no run had so many {kinds}: it may be far less; measure it (--measure)")
    return lines

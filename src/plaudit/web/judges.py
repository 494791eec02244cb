"""Judges as pages show them: verdict, exam, certificate, and what another threshold would change."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.disk import Folder
from plaudit.data.store import Store
from plaudit.errors import DataError, JudgeError, PlauditError, format_count
from plaudit.files import Root, parse_json, read_json_object, understood
from plaudit.judges.certificate import CERTIFICATE_FILE, FIGURES, Certificate, load_certificate
from plaudit.judges.config import load_judge_config
from plaudit.judges.evaluation import load_reference_labels, resolve_reference
from plaudit.judges.metrics import EpisodePrediction, largest_errors
from plaudit.report.verdict import Verdict, exam_verdict, format_exam_figure, quoted
from plaudit.rule import DecisionRule
from plaudit.web.episodes import as_json
from plaudit.web.runs import training_curve

HELD_OUT = "held_out.jsonl"
WORST = 12  # frames
MAIN_FIGURES = ("fpr", "frame_recall", "precision", "recall", "onset_median", "same_time_roc_auc")
MAX_EPISODES = 5000  # whose scores are compared, the newest


def describe_judge(path: Path) -> dict[str, Any]:
    """Scores of a reward model, and whether it may be used. It may be somebody else's."""
    with understood(path):
        return _describe_judge(path)


def _describe_judge(path: Path) -> dict[str, Any]:
    model = read_json_object(path / "model.json", Root(path))
    described = model.get("scores")
    scores: dict[str, Any] = described if isinstance(described, dict) else {}
    rule, certificate, problem = _rule(path), None, ""
    try:
        certificate = load_certificate(path / CERTIFICATE_FILE) if (path / CERTIFICATE_FILE).exists() else None
    except PlauditError as error:
        problem = str(error)
    simple = {name: value for name, value in scores.items() if isinstance(value, int | float | str)}
    return {
        "verdict": as_json(_verdict(path, scores, certificate, problem)),
        "scores": simple,
        "rule": None if rule is None else rule.describe(),
        "certificate": None if certificate is None else _certificate(certificate),
        "curve": training_curve(path),
        "what_if": None if rule is None else _held_out(path, rule),
        "report": (path / "report.html").is_file(),
    }


def _rule(path: Path) -> DecisionRule | None:
    try:
        return load_judge_config(path, None).rule
    except PlauditError:  # a file of another version, say; the rest is shown
        return None


def _verdict(path: Path, scores: Any, certificate: Certificate | None, problem: str) -> Verdict:
    if certificate is not None:
        return exam_verdict([certificate], {certificate.name: [str(path)]}, certificate.data.store)
    precision, recall = (scores.get(name) for name in ("precision", "recall"))
    good = isinstance(precision, float | int) and isinstance(recall, float | int) and min(precision, recall) >= 0.9
    why = problem or f"Precision {_percent(precision)}, recall {_percent(recall)} on held-out frames."
    if good:
        advice, exam = "Examine it before using it on a robot", f"plaudit judge exam {quoted(path)} STORE"
        return Verdict("Good on held-out frames, but not examined yet.", why, advice, exam, "open")
    return Verdict("Not usable yet: too many errors.", why, "Look at its report, then label more episodes")


def _percent(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) and 0 <= value <= 1 else "unknown"


def _certificate(certificate: Certificate) -> dict[str, Any]:
    """An exam, for a table. The figures that matter most come first."""
    figures = {**{name: FIGURES[name] for name in MAIN_FIGURES}, **FIGURES}
    return {
        "passed": certificate.passed,
        "date": certificate.date[:10],
        "data": f"{format_count(certificate.data.episodes, 'episode')} of {certificate.data.store}, "
        f"{certificate.data.successes} of them successes, by {', '.join(certificate.data.reference)}",
        "problems": list(certificate.problems),
        "figures": [[title, format_exam_figure(name, certificate.figures[name])] for name, title in figures.items()],
        "main": len(MAIN_FIGURES),
        "controls": [
            [one.name, one.frames, None if one.frames == 0 else one.fpr.value, one.max_fpr, one.passed]
            for one in certificate.controls
        ],
    }


def _held_out(path: Path, rule: DecisionRule) -> dict[str, Any] | None:
    """What a threshold decides on the episodes that the model was tested on."""
    try:
        lines = Folder(path).read(HELD_OUT).splitlines()
        predictions = [EpisodePrediction.from_json(parse_json(line)) for line in lines]
    except (OSError, KeyError, TypeError, ValueError, PlauditError):
        return None
    rows = [_decided(rule, one, one.first_success is not None) for one in predictions]
    return {"threshold": rule.threshold, "exact": rule.causal, "reference": "held-out labels", "episodes": rows}


def _decided(rule: DecisionRule, prediction: EpisodePrediction, target: bool | None) -> dict[str, Any]:
    """The highest threshold at which the rule sees success, and whether there is one."""
    score = rule.episode_score(prediction.success_prob)
    return {"id": prediction.episode, "score": round(score, 5), "target": target}


class WhatIf:
    """Effect of another threshold in a store that a judge has labeled. Computed once for each state of it."""

    def __init__(self) -> None:
        self._computed: dict[tuple[Path, str], tuple[int, dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def describe(self, store: Store, source: str) -> dict[str, Any]:
        """Highest threshold of each episode, reference labels, and the frames that the judge is most wrong about."""
        key, length = (store.folder, source), len(store.ledger)
        with self._guard:
            if key not in self._computed or self._computed[key][0] != length:
                self._computed[key] = (length, _what_if(store, source))
            return self._computed[key][1]


def _what_if(store: Store, source: str) -> dict[str, Any]:
    newest = {i: version for i in store.ids[-MAX_EPISODES:] if (version := store.ledger.newest(i, (source,)))}
    labels = {i: version.labels() for i, version in newest.items()}
    scored = {i: one for i, one in labels.items() if one.scores is not None and one.judge.rule is not None}
    if not scored:
        raise DataError(f"no episode in this store has scores by '{source}'")
    rule = scored[max(scored)].judge.rule
    assert rule is not None
    sources = resolve_reference(None, source)
    try:
        targets = load_reference_labels(store, sources, list(scored))
    except JudgeError:  # no reference labels
        targets = {}
    episodes: list[dict[str, Any]] = []
    predictions: list[tuple[int, EpisodePrediction]] = []  # with the number of their first scored frame
    for i, one in scored.items():
        assert one.scores is not None
        valid = ~np.isnan(prob := one.scores.success_prob)
        target = targets.get(i)
        reference = np.full(len(prob), np.nan, np.float32) if target is None else target
        prediction = EpisodePrediction(prob[valid], reference[valid], i)
        success = None if target is None else prediction.first_success is not None
        episodes.append({**_decided(rule, prediction, success), "steps": one.steps})
        predictions.append((int(np.argmax(valid)), prediction))
    first = {prediction.episode: start for start, prediction in predictions}
    errors = largest_errors([prediction for _, prediction in predictions], WORST)
    worst = [
        {
            "id": one.episode,
            "frame": first[one.episode] + t,
            "prob": round(float(one.success_prob[t]), 4),
            "target": int(one.target[t]),
        }
        for one, t in errors
    ]
    return {
        "threshold": rule.threshold,
        "exact": rule.causal,
        "reference": f"labels of {', '.join(sources)}",
        "episodes": episodes,
        "worst": worst,
        "store": store.settings.id,
    }

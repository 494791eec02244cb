"""The card (README.md) of a data set, a judge or a policy on the Hugging Face Hub: what, how good, how to use it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plaudit.data.formats import lerobot
from plaudit.data.hub import OWN_CARD, Kind
from plaudit.data.store import Store, is_store
from plaudit.errors import DataError, PlauditError
from plaudit.judges.certificate import FIGURES, certificate_beside, load_certificate
from plaudit.judges.config import is_lerobot_classifier, judge_warnings, load_named_judge, own_kind
from plaudit.policies.loader import POLICY_FILE, load_policy
from plaudit.report.judge import format_figure
from plaudit.report.verdict import exam_verdict
from plaudit.trust import plain


def kind_of(path: Path) -> Kind:
    """What a folder holds, by its files."""
    if is_store(path) or (path.is_dir() and lerobot.detect(path)):
        return "data set"
    if own_kind(path) is not None or is_lerobot_classifier(path):
        return "judge"
    if (path / POLICY_FILE).is_file():
        return "policy"
    raise DataError(
        f"{path} is not the folder of a store, a LeRobot data set, a judge or a policy; of a run, name RUN/policy"
    )


def make_card(path: Path, kind: Kind, repo: str) -> str:
    """The text of README.md. The folder is opened as its users will open it, so a damaged one is refused."""
    name, address = repo.rpartition("/")[2], f"datasets/{repo}" if kind == "data set" else repo
    task = "task_categories:\n- robotics" if kind == "data set" else "pipeline_tag: robotics"
    return "\n\n".join(
        [
            f"---\n{OWN_CARD}\ntags:\n- plaudit\n- robotics\n{task}\n---",
            f"# {name}",
            f"A {kind} for Plaudit.",
            f"```bash\npip install 'plaudit[hub]'\nplaudit hub pull {address} {name}\n```",
            *{"data set": _data_set, "judge": _judge, "policy": _policy}[kind](path, name),
            "",
        ]
    )


def _data_set(path: Path, name: str) -> Iterator[str]:
    if not is_store(path):
        yield f"It is in LeRobot's format: `plaudit data import {name} STORE` reads it."
        return
    store = Store.open(path)
    entries = [store.entry(episode_id) for episode_id in store.ids]
    cameras = {f"{camera} {h}x{w}" for entry in entries for camera, h, w in store.segment(entry.segment).schema.cameras}
    labels = Counter(version.source for i in store.ids if (version := store.ledger.current(i)) is not None)
    yield _table(
        {
            "episodes": f"{len(entries):,}",
            "steps": f"{sum(entry.steps for entry in entries):,}",
            "cameras": ", ".join(sorted(cameras)),
            "labeled episodes": ", ".join(f"{count:,} by {source}" for source, count in labels.items()),
            "tasks": "; ".join(sorted({entry.line["task"] for entry in entries})[:20]),
        }
    )


def _judge(path: Path, name: str) -> Iterator[str]:
    config, file = load_named_judge(str(path)), certificate_beside(path)
    judge = config.build()
    yield "## Exam"
    try:
        certificate = load_certificate(file, judge.id) if file.exists() else None
    except PlauditError as error:
        yield f"**Not valid.** {plain(str(error))}"
    else:
        if certificate is None:
            yield f"**None.** Examine it before you rely on it: `plaudit judge exam {name} STORE`."
        else:
            verdict = exam_verdict([certificate], {})
            yield f"**{plain(verdict.result)}** {plain(verdict.why)} {plain(certificate.line)}."
            yield _table({FIGURES[key]: format_figure(key, figure) for key, figure in certificate.figures.items()})
    if warnings := judge_warnings(config, judge):
        yield "\n".join(["## Warnings", "", *(f"- {plain(one)}" for one in warnings)])


def _policy(path: Path, name: str) -> Iterator[str]:
    spec = load_policy(path)
    spec.build()
    inputs = {} if spec.inputs is None else spec.inputs.policy_fields()
    yield _table({"type": spec.policy["type"], **inputs})
    yield f"```bash\nplaudit eval {name} --env TASK\nplaudit run --robot ROBOT --policy_yaml {name}\n```"


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {plain(key)} | {plain(str(value)).replace('|', '/')} |" for key, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])

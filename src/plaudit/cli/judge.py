"""`plaudit judge`: how good is one, and the rule that makes it as careful as it should be."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plaudit.cli.common import AllowCode, AllowHost, finite, out, progress, stop, tell
from plaudit.cli.data import EpisodesOption, chosen_ids
from plaudit.cli.label import (
    ConfigOption,
    DecodeOption,
    ModelOption,
    WordsArgument,
    judge_of,
    named_store,
    tell_failed,
)
from plaudit.errors import DataError, TargetNotEmpty, nearest

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.judges.calibrate import HeldBack
    from plaudit.judges.config import Calibrated, LabelerConfig
    from plaudit.judges.evaluation import Evaluation
    from plaudit.judges.frames import EpisodeJudge, Rule

judge = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

JudgeOption = Annotated[
    str | None, typer.Option("--judge", help="vlm, classifier, simulator, or my_package.my_module:MyConfig.")
]
ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Whose labels are taken as true, like 'human,cutoff'.", show_default="human,simulator,dataset,cutoff"
    ),
]


@judge.command("eval")
def eval_(
    words: WordsArgument = None,
    name: Annotated[
        str | None,
        typer.Option("--judge", help="As for 'plaudit label'; or ledger: what --source has said already."),
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    decode: DecodeOption = None,
    source: Annotated[str | None, typer.Option(help="With --judge ledger: whose labels to measure.")] = None,
    reference: ReferenceOption = None,
    episodes: EpisodesOption = None,
    wrong_task: Annotated[
        str | None, typer.Option(help="An instruction that no episode followed, for judges that read it.")
    ] = None,
    controls: Annotated[bool, typer.Option(help="Also ask about episodes that are made up.")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to make; runs/judge_eval/JUDGE_N when not given.")
    ] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Compare a judge with labels that are believed.

    Writes a page with the worst frames, and the numbers as JSON. A judge that calls a control a success is named in
    red. Measure a learned one on episodes that it was not trained on.
    """
    from plaudit.data.store import Store
    from plaudit.report.evaluation import save_evaluation

    folder, overrides = named_store(words)
    store = Store.open(folder)
    if (name == "ledger") != (source is not None):
        raise DataError("--judge ledger and --source belong together: --judge ledger --source human")
    _check_free(output)
    asked = None if reference is None else [who.strip() for who in reference.split(",")]
    ids = chosen_ids(store, episodes)
    try:
        if source is not None:
            if any((config, model, decode, overrides)):
                raise DataError("--judge ledger asks nobody: leave out --config, --model, --decode and keys")
            title, found, facts = source, *_of_ledger(store, source, asked, ids)
        else:
            given, built = judge_of(config, name, model, decode, overrides)
            title = built.source
            found, facts = _of_judge(store, given, built, asked, ids, wrong_task, controls)
            facts = {"judge": _typed(name, config, model, overrides), **facts}
    except KeyboardInterrupt:
        stop("interrupted; nothing was written")
    target = output or _free(Path("runs/judge_eval"), title)
    save_evaluation(target, title, found, facts)
    _tell_evaluation(title, found, target)


def _of_ledger(
    store: "Store", source: str, asked: Sequence[str] | None, ids: Sequence[int]
) -> tuple["Evaluation", dict[str, str]]:
    from plaudit.judges.evaluation import compare
    from plaudit.judges.frames import Rule
    from plaudit.judges.reference import read_truth, reference_sources

    sources = reference_sources(asked, source)
    truths = read_truth(store, sources, ids)
    verdicts = {i: labels for i in truths if (labels := store.ledger.labels(i, {source})) is not None}
    if not verdicts:
        judges = {version.source for i in truths for version in store.ledger.history(i)} - {source}
        raise DataError(
            f"'{source}' has labelled none of the {len(truths)} episodes to compare; {nearest(source, judges)}"
        )
    found = compare(
        store, verdicts, truths, Rule(), notes=["Controls were not run: labels that are there answer no questions."]
    )
    return found, {"judge": f"labels of {source} in the ledger", **_measured(store, sources, found)}


def _of_judge(
    store: "Store",
    config: "LabelerConfig",
    built: "EpisodeJudge",
    asked: Sequence[str] | None,
    ids: Sequence[int],
    wrong_task: str | None,
    controls: bool,
) -> tuple["Evaluation", dict[str, str]]:
    from plaudit.judges.evaluation import evaluate, wrong_task_for
    from plaudit.judges.reference import read_truth, reference_sources

    sources = reference_sources(asked, built.source)
    truths = read_truth(store, sources, ids)
    wrong = wrong_task_for(config.reads_task, wrong_task)
    found = evaluate(store, built, truths, wrong_task=wrong, with_controls=controls, track=progress("judging"))
    facts = {
        "model": built.facts["model"] or "-",
        "rule": built.facts["note"] or "its own verdict",
        **_measured(store, sources, found),
    }
    return found, facts | ({"wrong instruction": wrong} if wrong else {})


def _typed(name: str | None, config: Path | None, model: str | None, overrides: Sequence[str]) -> str:
    """The judge as it was asked for: what its file takes from the environment is nobody else's business."""
    return " ".join(str(word) for word in (name, config, model, *overrides) if word is not None)


def _measured(store: "Store", sources: Sequence[str], found: "Evaluation") -> dict[str, str]:
    return {
        "store": str(store.folder),
        "reference": ", ".join(sources),
        "episodes compared": f"{found.scores.episodes:,}",
        "scored by": "probability" if found.graded else "yes and no",
    }


def _tell_evaluation(title: str, found: "Evaluation", target: Path) -> None:
    from plaudit.report.evaluation import named, ways_of
    from plaudit.report.judge import started
    from plaudit.report.tables import judge_table, ways_table

    scores = found.scores
    held = f"{title}: measured on {scores.episodes:,} episodes, {scores.frames:,} frames"
    out.print(judge_table(held, scores, found.controls), "", ways_table(ways_of(found)), sep="\n")
    if scores.start_false:
        tell("warning", started(scores))
    for sentence in found.notes:
        tell("note", sentence)
    for sentence in [*named(title, found), *found.problems]:
        tell("problem", sentence)
    tell_failed(found.failed)
    out.print(f"look at {target / 'report.html'}; the numbers are in {target / 'scores.json'}")
    if found.failed:
        raise typer.Exit(1)


@judge.command("calibrate")
def calibrate_(
    words: WordsArgument = None,
    name: JudgeOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    target_fpr: Annotated[
        float, typer.Option(min=0, max=1, help="Share of failure frames that may be called success.", callback=finite)
    ] = 0.01,
    reference: ReferenceOption = None,
    episodes: EpisodesOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The judge as a YAML file; may be the one of --config.")
    ] = Path("judge.yaml"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Fit a judge's rule on labelled episodes.

    Temperature, bias, threshold and the shift of its cutoffs, for a false-positive rate of your choice; the rate that
    is told is one of episodes that were held back. The judge is written as a file, for --config.
    """
    from plaudit.data.store import Store
    from plaudit.judges.calibrate import calibrate, record, score_store
    from plaudit.judges.config import save_calibrated
    from plaudit.judges.frames import FrameLabeler
    from plaudit.judges.reference import read_truth, reference_sources

    folder, overrides = named_store(words)
    if output.exists() and output != config:
        raise TargetNotEmpty(f"{output} is there already; nothing was done, name another with --output")
    store = Store.open(folder)
    _, built = judge_of(config, name, model, None, overrides)
    if not isinstance(built, FrameLabeler):
        raise DataError(f"'{built.source}' says yes and no; only a judge that gives numbers has something to calibrate")
    asked = None if reference is None else [who.strip() for who in reference.split(",")]
    sources = reference_sources(asked, built.source)
    try:
        truths = read_truth(store, sources, chosen_ids(store, episodes))
        said, failed = score_store(store, built, truths, progress("judging"))
    except KeyboardInterrupt:
        stop("interrupted; nothing was written")
    tell_failed(failed)
    rule, held_back = calibrate(said, built.rule, target_fpr)
    calibrated = record(built, said, sources, target_fpr, held_back)
    save_calibrated(output, config, name, {} if model is None else {"model": model}, overrides, rule, calibrated)
    _tell_calibrated(output, rule, calibrated, held_back)


def _tell_calibrated(output: Path, rule: "Rule", calibrated: "Calibrated", held_back: "HeldBack") -> None:
    from plaudit.report.tables import calibration_table

    title = f"{output}: fitted on {calibrated.episodes} episodes, {calibrated.successes} of which succeed"
    out.print(calibration_table(title, rule, calibrated, held_back.cutoffs))
    if calibrated.fpr > calibrated.target_fpr:
        tell(
            "warning",
            f"on episodes held back it lets {calibrated.fpr:.1%} through where {calibrated.target_fpr:.1%} was asked "
            "for; more labelled episodes, or a lower --target-fpr, bring it down",
        )


@judge.command("reason")
def reason(
    words: WordsArgument = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    episodes: EpisodesOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A JSON-lines file to add what was said to.")
    ] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Have a vision-language model explain itself.

    It describes an episode in words and says whether its last frame shows success. For a person to read: nothing of it
    becomes a label, and an answer that cannot be read is kept on the record as such.
    """
    from plaudit.data.store import Store
    from plaudit.judges.config import read_judge
    from plaudit.judges.vlm.config import VlmConfig
    from plaudit.judges.vlm.explain import Audit, audit

    folder, overrides = named_store(words)
    store = Store.open(folder)
    asked = read_judge(config, "vlm", {} if model is None else {"model": model}, overrides)
    assert isinstance(asked, VlmConfig)

    def tell_one(found: Audit) -> None:
        out.print(f"episode {found.episode}: {found.words}", *found.text.strip().splitlines(), sep="\n    ")

    try:
        unread = audit(store, asked.scorer(), chosen_ids(store, episodes), tell_one, output)
    except KeyboardInterrupt:
        stop("interrupted; what was said so far stands above")
    if unread:
        tell("problem", f"{unread} answers could not be read; 'plaudit data info {folder}' keeps why")
        raise typer.Exit(1)


def _check_free(output: Path | None) -> None:
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise TargetNotEmpty(f"{output} is there already; nothing was measured, name another with --output")


def _free(folder: Path, name: str) -> Path:
    """runs/judge_eval/vlm_0, vlm_1, ..."""
    number = 0
    while (folder / f"{name}_{number}").exists():
        number += 1
    return folder / f"{name}_{number}"

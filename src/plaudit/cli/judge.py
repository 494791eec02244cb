"""`plaudit judge`: how good is one, and the rule that makes it as careful as it should be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plaudit.cli.common import AllowCode, AllowHost, finite, open_episodes, out, progress, stop, tell
from plaudit.cli.data import EpisodesOption, chosen_ids
from plaudit.cli.exam import ReferenceOption, exam_
from plaudit.cli.label import (
    ConfigOption,
    DecodeOption,
    ModelOption,
    WordsArgument,
    check_output_path,
    free_folder,
    load_judge,
    named_store,
    report_failures,
)
from plaudit.cli.plan import plan_
from plaudit.cli.tune import tune_
from plaudit.errors import DataError, TargetNotEmpty, did_you_mean

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.judges.calibration import CalibrationRecord, CrossValResult, Fit
    from plaudit.judges.config import JudgeConfig
    from plaudit.judges.evaluation import JudgeEvaluation
    from plaudit.protocols import Judge
    from plaudit.rule import DecisionRule
    from plaudit.types import Labels

judge = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
judge.command("exam")(exam_)
judge.command("tune")(tune_)
judge.command("plan")(plan_)

JudgeOption = Annotated[
    str | None, typer.Option("--judge", help="vlm, classifier, simulator, or my_package.my_module:MyConfig.")
]
IncludeOption = Annotated[
    bool,
    typer.Option(
        "--include-training",
        help="Use episodes that the judge learned from, or chose its threshold by, too; they are left out otherwise.",
    ),
]
LEDGER_NOTE = (
    "Labels in the ledger do not say which episodes their judge learned from: the metrics hold only if it had seen "
    "none of these."
)


@judge.command("eval")
def eval_(
    words: WordsArgument = None,
    name: Annotated[
        str | None,
        typer.Option("--judge", help="As for 'plaudit label'; or ledger: the labels of --source."),
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    decode: DecodeOption = None,
    source: Annotated[
        str | None, typer.Option(help="With --judge ledger: the source of the labels to evaluate.")
    ] = None,
    reference: ReferenceOption = None,
    episodes: EpisodesOption = None,
    wrong_task: Annotated[
        str | None, typer.Option(help="A task that no episode shows, as a control for judges that use the task text.")
    ] = None,
    controls: Annotated[bool, typer.Option(help="Also run the negative controls.")] = True,
    include_training: IncludeOption = False,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="The folder to write; runs/judge_eval/JUDGE_N when not given."),
    ] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Compare a judge with reference labels.

    Writes report.html with the largest errors, and the metrics as JSON. A judge that predicts success on a negative
    control has failed its checks. Episodes that a trained judge learned from, or chose its threshold by, are left out.
    """
    from plaudit.report.judge import save_evaluation

    folder, overrides = named_store(words)
    if (name == "ledger") != (source is not None):
        raise DataError("--judge ledger and --source go together: --judge ledger --source human")
    check_output_path(output_dir)
    asked = None if reference is None else [who.strip() for who in reference.split(",")]
    if source is not None and any((config, model, decode, overrides, include_training)):
        raise DataError(
            "--judge ledger only reads labels: leave out --config, --model, --decode, --include-training, keys"
        )
    loaded = None if source is not None else load_judge(config, name, model, decode, overrides)
    store = open_episodes(folder)
    ids = chosen_ids(store, episodes)
    try:
        if loaded is None:
            assert source is not None
            title, exam_name = source, ""
            found, facts = _of_ledger(store, source, asked, ids)
        else:
            given, built = loaded
            title, exam_name = built.id.source, str(config or model or name)
            found, facts = _of_judge(store, given, built, asked, ids, wrong_task, controls, include_training)
            facts = {"judge": _typed(name, config, model, overrides), **facts}
    except KeyboardInterrupt:
        stop("interrupted; nothing was written")
    target = output_dir or free_folder(Path("runs/judge_eval"), title)
    save_evaluation(target, title, found, facts, exam_name)
    _tell_evaluation(title, found, target)


def _of_ledger(
    store: "Store", source: str, asked: Sequence[str] | None, ids: Sequence[int]
) -> tuple["JudgeEvaluation", dict[str, str]]:
    from plaudit.judges.config import REFERENCE_SOURCES
    from plaudit.judges.evaluation import compare_labels, describe_coverage, load_reference_labels, resolve_reference

    sources = resolve_reference(asked, source)
    targets = load_reference_labels(store, sources, ids)
    labels = {i: found for i in targets if (found := store.ledger.labels(i, {source})) is not None}
    if not labels:
        judges = {version.source for i in targets for version in store.ledger.history(i)} - {source}
        raise DataError(
            f"'{source}' has labeled none of the {len(targets)} episodes to compare; {did_you_mean(source, judges)}"
        )
    found = compare_labels(
        store,
        labels,
        targets,
        _rule_of(labels),
        notes=[
            describe_coverage(store, sources, ids, len(labels)),
            "Negative controls were not run: they need a judge, not its stored labels.",
            *([] if source in REFERENCE_SOURCES else [LEDGER_NOTE]),
        ],
    )
    return found, {"judge": f"labels of {source} in the ledger", **_measured(store, sources, found)}


def _rule_of(labels: "Mapping[int, Labels]") -> "DecisionRule":
    """The rule by which labels of the ledger were decided, as far as it is known."""
    from plaudit.rule import DecisionRule, threshold_of

    known = (threshold_of(one.judge) for one in labels.values())
    found = {threshold for threshold in known if threshold is not None}
    return DecisionRule(threshold=found.pop()) if len(found) == 1 else DecisionRule()


def _of_judge(
    store: "Store",
    config: "JudgeConfig",
    built: "Judge",
    asked: Sequence[str] | None,
    ids: Sequence[int],
    wrong_task: str | None,
    controls: bool,
    include_training: bool,
) -> tuple["JudgeEvaluation", dict[str, str]]:
    from plaudit.judges.evaluation import (
        SeenEpisodes,
        control_task,
        describe_coverage,
        evaluate,
        load_reference_labels,
        resolve_reference,
    )

    sources = resolve_reference(asked, built.id.source)
    targets = load_reference_labels(store, sources, ids)
    chosen = SeenEpisodes.of(config, built).choose(store, list(targets), include=include_training)
    left_out = len(targets) - len(chosen.ids)
    targets = {i: targets[i] for i in chosen.ids}
    wrong = control_task(config.uses_task, wrong_task)
    found = evaluate(store, built, targets, wrong_task=wrong, with_controls=controls, progress=progress("labeling"))
    coverage = describe_coverage(store, sources, ids, found.metrics.episodes, left_out)
    found = replace(found, notes=[*chosen.notes, *found.notes, coverage])
    facts = {
        "model": built.id.fingerprint or "-",
        "rule": built.rule.describe(),
        **_measured(store, sources, found),
    }
    return found, facts | ({"wrong task": wrong} if wrong else {})


def _typed(name: str | None, config: Path | None, model: str | None, overrides: Sequence[str]) -> str:
    """The judge as it was asked for: what its file takes from the environment is nobody else's business."""
    return " ".join(str(word) for word in (name, config, model, *overrides) if word is not None)


def _measured(store: "Store", sources: Sequence[str], found: "JudgeEvaluation") -> dict[str, str]:
    return {
        "store": str(store.folder),
        "reference": ", ".join(sources),
        "episodes compared": f"{found.metrics.episodes:,}",
        "scored by": "probability" if found.has_probabilities else "binary labels",
    }


def _tell_evaluation(title: str, found: "JudgeEvaluation", target: Path) -> None:
    from plaudit.report.judge import decode_results, failed_control_warning, first_frame_warning
    from plaudit.report.judge_tables import decode_table, judge_table

    metrics = found.metrics
    held = f"{title}: measured on {metrics.episodes:,} episodes, {metrics.frames:,} frames"
    out.print(judge_table(held, metrics, found.controls), "", decode_table(decode_results(found)), sep="\n")
    if metrics.first_frame_fp:
        tell("warning", first_frame_warning(metrics))
    for sentence in found.notes:
        tell("note", sentence)
    for sentence in [*failed_control_warning(title, found), *found.failed_controls]:
        tell("problem", sentence)
    report_failures(found.failed)
    out.print(f"see {target / 'report.html'}; the metrics are in {target / 'scores.json'}")
    if found.failed:
        raise typer.Exit(1)


TargetFprOption = Annotated[
    float, typer.Option(min=0, max=1, help="False-positive rate (frames) to aim for.", callback=finite)
]
ConfidenceOption = Annotated[
    float, typer.Option(min=0.5, max=0.999, help="How sure that rate must be on episodes to come.", callback=finite)
]
MaxErrorOption = Annotated[
    float,
    typer.Option(
        min=0.001, max=0.5, help="Failures, or successes, that it may get wrong in a cascade.", callback=finite
    ),
]


@judge.command("calibrate")
def calibrate_(
    words: WordsArgument = None,
    name: JudgeOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    target_fpr: TargetFprOption = 0.01,
    promise_confidence: ConfidenceOption = 0.9,
    max_error: MaxErrorOption = 0.05,
    reference: ReferenceOption = None,
    episodes: EpisodesOption = None,
    include_training: IncludeOption = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The YAML file to write; may be the one of --config.")
    ] = Path("judge.yaml"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Fit a judge's decision rule on labeled episodes.

    Fits temperature, bias, threshold and cutoff offset for a false-positive rate of your choice, reports the rate on
    held-out episodes, and says whether it can be promised of episodes to come, and which episodes the judge may decide
    alone in a cascade. Writes the judge as a file for --config.
    """
    from plaudit.judges.calibration import calibrate, check_has_probabilities, fit_rights
    from plaudit.judges.config import load_judge_config, save_judge_config
    from plaudit.judges.evaluation import (
        SeenEpisodes,
        load_reference_labels,
        record_calibration,
        resolve_reference,
        score_episodes,
    )

    folder, overrides = named_store(words)
    if output.exists() and output != config:
        raise TargetNotEmpty(f"{output} is there already; nothing was done, name another with --output")
    flags = {} if model is None else {"model": model}
    given = load_judge_config(config, name, flags, overrides)
    built = given.model_copy(update={"calibration": None}).build()
    store = open_episodes(folder)
    asked = None if reference is None else [who.strip() for who in reference.split(",")]
    sources = resolve_reference(asked, built.id.source)
    try:
        targets = load_reference_labels(store, sources, chosen_ids(store, episodes))
        seen = SeenEpisodes.of(given, built, calibrated=False)
        chosen = seen.choose(store, list(targets), include=include_training)
        for sentence in chosen.notes:
            tell("note", sentence)
        targets = {i: targets[i] for i in chosen.ids}
        predictions, failed = score_episodes(store, built, targets, progress("labeling"))
    except KeyboardInterrupt:
        stop("interrupted; nothing was written")
    report_failures(failed)
    check_has_probabilities(built.id.source, predictions)
    fit, cross_val = calibrate(predictions, built.rule, target_fpr, promise_confidence)
    calibrated = record_calibration(store, chosen, built.id, predictions, sources, target_fpr, fit, cross_val)
    fitted = given.model_copy(
        update={"rule": fit.rule, "calibration": fit.calibration, "calibration_record": calibrated}
        | {"rights": fit_rights(fit, predictions, built.id.fingerprint, max_error, promise_confidence)}
    )
    save_judge_config(output, config, name, flags, overrides, fitted)
    _tell_calibrated(output, fit, calibrated, cross_val)
    assert fitted.rights is not None
    tell("note", fitted.rights.describe())


def _tell_calibrated(output: Path, fit: "Fit", calibrated: "CalibrationRecord", cross_val: "CrossValResult") -> None:
    from plaudit.report.judge_tables import calibration_table

    title = f"{output}: fitted on {calibrated.episodes} episodes, {calibrated.successes} of which succeed"
    out.print(calibration_table(title, fit, calibrated, cross_val.cutoffs))
    if calibrated.fpr > calibrated.target_fpr:
        tell(
            "warning",
            f"the false-positive rate on held-out episodes is {calibrated.fpr:.1%}, above the target of "
            f"{calibrated.target_fpr:.1%}; label more episodes, or lower --target-fpr",
        )
    if fit.promise is not None:
        tell("note" if fit.promise.kept else "warning", fit.promise.describe())


@judge.command("explain")
def explain_(
    words: WordsArgument = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    episodes: EpisodesOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A JSON-lines file to append the explanations to.")
    ] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Let a vision-language model explain its label in words.

    The model describes an episode and answers whether its last frame shows success. The explanations are for people and
    never become labels; an answer that cannot be parsed is recorded as a failure.
    """
    from plaudit.judges.config import load_judge_config
    from plaudit.judges.vlm.explain import EpisodeExplanation, explain_episodes
    from plaudit.judges.vlm.judge import VlmJudgeConfig

    folder, overrides = named_store(words)
    asked = load_judge_config(config, "vlm", {} if model is None else {"model": model}, overrides)
    assert isinstance(asked, VlmJudgeConfig)
    store = open_episodes(folder)

    def print_one(found: EpisodeExplanation) -> None:
        out.print(f"episode {found.episode}: {found.summary}", *found.text.strip().splitlines(), sep="\n    ")

    try:
        unread = explain_episodes(store, asked.load_backend(), chosen_ids(store, episodes), print_one, output)
    except KeyboardInterrupt:
        stop("interrupted; the explanations so far are above")
    if unread:
        tell("problem", f"{unread} answers could not be parsed; the reasons are in 'plaudit data info {folder}'")
        raise typer.Exit(1)


@judge.command("export")
def export_(
    model: Annotated[Path, typer.Argument(help="A reward model: its folder, lerobot's, or a file of RLinf's.")],
    target: Annotated[Path, typer.Argument(help="What to write: a folder; for rlinf a .pt or .safetensors file.")],
    to: Annotated[
        Literal["lerobot", "rlinf", "plaudit"], typer.Option("--to", help="Whose own code is to load it.")
    ] = "lerobot",
    image_size: Annotated[
        tuple[int, int, int] | None,
        typer.Option(metavar="C H W", help="Of a file of RLinf's that does not say: the size of its images."),
    ] = None,
    image_key: Annotated[
        str | None, typer.Option(help="Of a file of RLinf's that does not say: the camera that it looks at.")
    ] = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Write a reward model as another stack loads it, with the same logits.

    A network that the other stack does not have is refused; nothing is written then.
    """
    from plaudit.data.transfer import new_folder
    from plaudit.judges.classifier.judge import load_reward_model
    from plaudit.judges.classifier.lerobot import save_lerobot_classifier
    from plaudit.judges.classifier.rlinf import export_rlinf

    said = {"image_size": image_size, "image_keys": None if image_key is None else (image_key,)}
    loaded = load_reward_model(model, "cpu", force=True, network={k: v for k, v in said.items() if v is not None})
    for sentence in (*loaded.warnings, *loaded.config.problems):
        tell("warning", sentence)
    notes: list[str] = []
    if to == "rlinf":
        notes = export_rlinf(loaded, target)
    else:
        with new_folder(target) as folder:
            notes = save_lerobot_classifier(loaded, folder, target) if to == "lerobot" else []
            if to == "plaudit":
                loaded.save_pretrained(folder)
    for sentence in notes:
        tell("note", sentence)
    out.print(f"{target} is the model as {to} loads it")

"""`plaudit judge`: how good is one, and the rule that makes it as careful as it should be."""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plaudit.cli.common import check_episodes, epochs_bar, free_path, open_episodes, out, progress, starting, stop, tell
from plaudit.cli.data import Episodes, chosen_ids
from plaudit.cli.label import (
    DecodeRule,
    JudgeFile,
    Model,
    Words,
    load_judge,
    named_store,
    report_failures,
)
from plaudit.cli.options import Flag, Option, Share, command, config_command, group, split_names
from plaudit.cli.plan import plan_
from plaudit.errors import DataError, JudgeError, TargetNotEmpty, did_you_mean, format_count

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.judges.certificate import Certificate
    from plaudit.judges.evaluation import JudgeEvaluation

judge = group("judge", "Evaluate and calibrate judges; explanations of a vision-language model.")
command(judge, "plan")(plan_)

Reference = Annotated[
    str | None,
    Option(show_default="human,simulator,dataset,cutoff", help="Sources of the reference labels, like 'human,cutoff'."),
]
WrongTask = Annotated[
    str | None, Option(help="A task that no episode shows, as a control for judges that use the task text.")
]
IncludeTraining = Annotated[
    bool,
    Option(
        help="Use episodes that the judge learned from, or chose its threshold by, too; they are left out otherwise."
    ),
]
LEDGER_NOTE = (
    "Labels in the ledger do not say which episodes their judge learned from: the metrics hold only if it had seen "
    "none of these."
)


@command(judge, "eval", reads_config=True)
def eval_(
    words: Words = None,
    *,
    # As for 'plaudit label'; or ledger: the labels of --source.
    name: Annotated[str | None, Option("--judge")] = None,
    config: JudgeFile = None,
    model: Model = None,
    decode: DecodeRule = None,
    source: str | None = None,  # With --judge ledger: the source of the labels to evaluate.
    reference: Reference = None,
    episodes: Episodes = None,
    wrong_task: WrongTask = None,
    controls: bool = True,  # Also run the negative controls.
    include_training: IncludeTraining = False,
    output_dir: Path | None = None,  # The folder to write; runs/judge_eval/JUDGE_N when not given.
) -> None:
    """Compare a judge with reference labels.

    Writes report.html with the largest errors, and the metrics as JSON. A judge that predicts success on a negative
    control fails its checks. Episodes that were used to train the judge or to choose its threshold are left out.
    """
    from plaudit.data.transfer import check_new
    from plaudit.judges import evaluation
    from plaudit.report import judge as report

    folder, overrides = named_store(words)
    if (name == "ledger") != (source is not None):
        raise DataError("--judge ledger and --source go together: --judge ledger --source human")
    if output_dir is not None:
        check_new(output_dir, option="--output-dir")
    if source is not None and any((config, model, decode, overrides, include_training)):
        raise DataError(
            "--judge ledger only reads labels: leave out --config, --model, --decode, --include-training, keys"
        )
    loaded = None if source is not None else load_judge(config, name, model, decode, overrides)
    store = open_episodes(folder)
    ids, wrong = chosen_ids(store, episodes), None
    title = source if loaded is None else loaded[1].id.source
    assert title is not None
    sources = evaluation.resolve_reference(split_names(reference), title)
    try:
        if loaded is None:
            result = _evaluate_ledger(store, title, sources, ids)
            metadata = {"judge": f"labels of {source} in the ledger"}
        else:
            given, built = loaded
            unseen = evaluation.unseen_reference(store, given, built, sources, ids, include=include_training)
            wrong = evaluation.control_task(given.uses_task, wrong_task)
            suite: dict[str, Any] = {} if controls else {"controls": None}
            suite |= {"wrong_task": wrong, "progress": progress}
            result = evaluation.evaluate_unseen(store, built, unseen, sources, ids, **suite)
            # As it was typed: values that its file takes from the environment may be secrets.
            typed = " ".join(str(word) for word in (name, config, model, *overrides) if word is not None)
            metadata = {"judge": typed, "model": built.id.fingerprint or "-", "rule": built.rule.describe()}
    except KeyboardInterrupt:
        stop("interrupted; nothing was written")
    metrics = result.metrics
    metadata |= {
        "store": str(store.folder),
        "reference": ", ".join(sources),
        "episodes compared": f"{metrics.episodes:,}",
        "scored by": "probability" if result.has_probabilities else "binary labels",
    }
    metadata |= {"wrong task": wrong} if wrong else {}
    target = output_dir or free_path(Path("runs/judge_eval"), title)
    out.print(report.save_evaluation(target, title, result, metadata, "" if source else str(config or model or name)))
    held = f"{title}: measured on {metrics.episodes:,} episodes, {metrics.frames:,} frames"
    decoded = report.decode_table(report.decode_results(result))
    out.print(report.judge_table(held, metrics, result.controls), "", decoded, sep="\n")
    if metrics.first_frame_fp:
        tell("warning", report.first_frame_warning(metrics))
    tell("note", *result.notes)
    tell("problem", *report.failed_control_warning(title, result), *result.failed_controls)
    report_failures(result.failed)
    out.print(f"see {target / 'report.html'}; the metrics are in {target / 'scores.json'}")
    if result.failed:
        raise typer.Exit(1)


def _evaluate_ledger(store: "Store", source: str, sources: Sequence[str], ids: Sequence[int]) -> "JudgeEvaluation":
    """Compare the labels of a source with those of others."""
    from plaudit.judges.config import REFERENCE_SOURCES
    from plaudit.judges.evaluation import compare_labels, describe_coverage, load_reference_labels
    from plaudit.rule import DecisionRule, threshold_of

    targets = load_reference_labels(store, sources, ids)
    labels = {i: own for i in targets if (own := store.ledger.labels(i, {source})) is not None}
    if not labels:
        judges = {version.source for i in targets for version in store.ledger.history(i)} - {source}
        raise DataError(
            f"'{source}' has labeled none of the {len(targets)} episodes to compare; {did_you_mean(source, judges)}"
        )
    thresholds = {value for one in labels.values() if (value := threshold_of(one.judge)) is not None}
    rule = DecisionRule(threshold=thresholds.pop()) if len(thresholds) == 1 else DecisionRule()
    notes = [
        describe_coverage(store, sources, ids, len(labels)),
        "Negative controls were not run: they need a judge, not its stored labels.",
        *([] if source in REFERENCE_SOURCES else [LEDGER_NOTE]),
    ]
    return compare_labels(store, labels, targets, rule, notes=notes)


@command(judge, "calibrate", reads_config=True)
def calibrate_(
    words: Words = None,
    *,
    # vlm, classifier, simulator, or my_package.my_module:MyConfig.
    name: Annotated[str | None, Option("--judge")] = None,
    config: JudgeFile = None,
    model: Model = None,
    target_fpr: Share = 0.01,  # False-positive rate (frames) to aim for.
    # How sure that rate must be on episodes to come.
    promise_confidence: Annotated[float, Option(min=0.5, max=0.999)] = 0.9,
    # Failures, or successes, that it may get wrong in a cascade.
    max_error: Annotated[float, Option(min=0.001, max=0.5)] = 0.05,
    reference: Reference = None,
    episodes: Episodes = None,
    include_training: IncludeTraining = False,
    output: Path = Path("judge.yaml"),  # The YAML file to write; may be the one of --config.
) -> None:
    """Fit a judge's decision rule on labeled episodes.

    Fits temperature, bias, threshold and cutoff offset for a false-positive rate of your choice. Reports the rate on
    held-out episodes and whether it is guaranteed on new ones. Also reports which episodes the judge may decide alone
    in a cascade. Writes the judge as a file for --config.
    """
    from plaudit.data.episode_keys import episode_keys, pack_keys
    from plaudit.judges.calibration import (
        SINGLE_FRAMES,
        calibrate,
        check_has_probabilities,
        fit_rights,
        make_record,
    )
    from plaudit.judges.config import load_judge_config, save_judge_config
    from plaudit.judges.evaluation import resolve_reference, score_episodes, unseen_reference
    from plaudit.report.judge import calibration_table
    from plaudit.report.verdict import calibration_verdict

    folder, overrides = named_store(words)
    if output.exists() and output != config:
        raise TargetNotEmpty(f"{output} is there already; nothing was done, name another with --output")
    flags = {} if model is None else {"model": model}
    given = load_judge_config(config, name, flags, overrides)
    built = given.model_copy(update={"calibration": None}).build()
    store = open_episodes(folder)
    sources = resolve_reference(split_names(reference), built.id.source)
    try:
        ids = chosen_ids(store, episodes)
        used = unseen_reference(store, given, built, sources, ids, include=include_training, calibrated=False)
        tell("note", *used.notes)
        predictions, failed = score_episodes(store, built, used.targets, progress("labeling"))
    except KeyboardInterrupt:
        stop("interrupted; nothing was written")
    report_failures(failed)
    check_has_probabilities(built.id.source, predictions)
    fit, cross_val = calibrate(predictions, built.rule, target_fpr, promise_confidence)
    keys = chain.from_iterable(episode_keys(store, [one.episode for one in predictions]).values())
    more = {"num_seen": used.num_seen, "fitted_on": pack_keys(keys), "promise": fit.promise}
    calibrated = make_record(built.id, predictions, sources, target_fpr, cross_val, **more)
    fitted = given.model_copy(
        update={"rule": fit.rule, "calibration": fit.calibration, "calibration_record": calibrated}
        | {"rights": fit_rights(fit, predictions, built.id.fingerprint, max_error, promise_confidence)}
    )
    save_judge_config(output, config, name, flags, overrides, fitted)
    out.print(calibration_verdict(calibrated, output, folder))
    title = f"{output}: fitted on {calibrated.episodes} episodes, {calibrated.successes} of which succeed"
    out.print(calibration_table(title, fit, calibrated, cross_val.cutoffs))
    if fit.rule.window != built.rule.window:
        tell("note", SINGLE_FRAMES)
    if fit.promise is not None:
        tell("note" if fit.promise.kept else "warning", fit.promise.describe())
    assert fitted.rights is not None
    tell("note", fitted.rights.describe())


@command(judge, "explain", reads_config=True)
def explain_(
    words: Words = None,
    *,
    config: JudgeFile = None,
    model: Model = None,
    episodes: Episodes = None,
    output: Path | None = None,  # A JSON-lines file to append the explanations to.
) -> None:
    """Let a vision-language model explain its label in words.

    The model describes an episode and answers whether its last frame shows success. The explanations never become
    labels. An answer that cannot be parsed is recorded as a failure.
    """
    from plaudit.judges.config import load_judge_config
    from plaudit.judges.vlm.config import VlmJudgeConfig
    from plaudit.judges.vlm.explain import EpisodeExplanation, explain_episodes
    from plaudit.report.verdict import Verdict, label_command, quoted

    folder, overrides = named_store(words)
    asked = load_judge_config(config, "vlm", {} if model is None else {"model": model}, overrides)
    assert isinstance(asked, VlmJudgeConfig)
    store = open_episodes(folder)

    def print_one(one: EpisodeExplanation) -> None:
        out.print(f"episode {one.episode}: {one.summary}", *one.text.strip().splitlines(), sep="\n    ")

    ids = chosen_ids(store, episodes)
    try:
        unread = explain_episodes(store, asked.load_backend(), ids, print_one, output)
    except KeyboardInterrupt:
        stop("interrupted; the explanations so far are above")
    why = f"{format_count(len(ids), 'episode')} of {folder}, {format_count(unread, 'answer')} without a result."
    if unread:
        tell("problem", f"{unread} answers could not be parsed; the reasons are in 'plaudit data info {folder}'")
        following = "Read the reasons", f"plaudit data info {quoted(folder)}"
        out.print(Verdict("Partly usable: some answers could not be parsed.", why, *following))
        raise typer.Exit(1)
    following = "Label the episodes by hand", label_command(folder)
    out.print(Verdict("Usable: every episode is explained.", why, *following, tone="good"))


@command(judge, "export", reads_config=True)
def export_(
    model: Path,  # A reward model: its folder, lerobot's, or a file of RLinf's.
    target: Path,  # What to write: a folder; for rlinf a .pt or .safetensors file.
    *,
    to: Literal["lerobot", "rlinf", "plaudit"] = "lerobot",  # Whose own code is to load it.
    # Of a file of RLinf's that does not say: the size of its images.
    image_size: Annotated[tuple[int, int, int] | None, Option(metavar="C H W")] = None,
    image_key: str | None = None,  # Of a file of RLinf's that does not say: the camera that it looks at.
) -> None:
    """Export a reward model for another stack, with the same logits.

    A network that the other stack does not support is refused.
    """
    from plaudit.data.transfer import new_folder
    from plaudit.judges.classifier.judge import load_reward_model
    from plaudit.judges.classifier.lerobot import save_lerobot_classifier
    from plaudit.judges.classifier.rlinf import export_rlinf
    from plaudit.report.verdict import Verdict, quoted

    said = {"image_size": image_size, "image_keys": None if image_key is None else (image_key,)}
    loaded = load_reward_model(model, "cpu", force=True, network={k: v for k, v in said.items() if v is not None})
    tell("warning", *loaded.warnings, *loaded.config.problems)
    notes: list[str] = []
    if to == "rlinf":
        notes = export_rlinf(loaded, target)
    else:
        with new_folder(target) as folder:
            notes = save_lerobot_classifier(loaded, folder, target) if to == "lerobot" else []
            if to == "plaudit":
                loaded.save_pretrained(folder)
    tell("note", *notes)
    following = "Examine the copy on labeled episodes", f"plaudit judge exam {quoted(target)} STORE"
    out.print(Verdict(f"Usable: {to} can load {target}.", f"It has the logits of {model}.", *following, tone="good"))


@command(judge, "serve", reads_config=True)
def serve_(
    # A judge: a folder, a file or a type, and keys of its config.
    words: Annotated[list[str], Option(metavar="JUDGE [KEY=VALUE]...")],
    *,
    host: str = "127.0.0.1",  # Address to listen on; any other than this machine's requires a token.
    port: Annotated[int, Option(min=0, max=65535)] = 8430,  # The port; 0: any free one.
    # Access token, sent as a bearer token. Random by default if other machines can reach the address.
    token: Annotated[str | None, Option(envvar="PLAUDIT_TOKEN")] = None,
    cameras: str = "front",  # Names of the cameras whose clips a request holds, one after the other.
    task: str = "",  # The task, in place of the one that a request names.
    fps: Annotated[float, Option(min=0, max=1000)] = 0.0,  # Frames per second of the clips, for judges that need it.
    # By how much a value must change within a clip to be a trend, in answers of the chat endpoint.
    trend: Annotated[float, Option(min=0, max=1)] = 0.05,
    max_request_mb: Annotated[int, Option(min=1, max=4096)] = 256,  # The largest request.
) -> None:
    """Serve a judge to other stacks.

    Answers Robometer's protocol (/evaluate_batch, /evaluate_batch_npy) and OpenAI's chat completions
    (/v1/chat/completions), which RLinf's API reward worker uses. Every judge can be served.
    """
    from dataclasses import replace

    from plaudit.cli.serve import open_port, warn_if_reachable
    from plaudit.judges.config import judge_warnings, load_named_judge
    from plaudit.web.guard import make_server
    from plaudit.web.judge_server import make_judge_app

    overrides = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if len(names) != 1:
        raise DataError("name one judge: plaudit judge serve runs/reward_model")
    config = load_named_judge(names[0], overrides)
    with starting():
        built = config.build_with_progress()
    tell("warning", *judge_warnings(config, built))
    listening, access, address = open_port(host, port, token)
    access = replace(access, programs=True, max_body=max_request_mb << 20)
    name = Path(names[0]).name or names[0]
    options: dict[str, Any] = {"cameras": split_names(cameras), "task": task, "fps": fps, "trend": trend}
    app = make_judge_app(built, config, access, name, **options)
    out.print(f"serving {name} ({built.id.source} {built.id.fingerprint}, {built.rule.describe()})", highlight=False)
    typer.echo(f"open {address}   (Ctrl-C stops the server)")
    typer.echo(f"Robometer's protocol: {address}evaluate_batch_npy; chat completions: {address}v1/chat/completions")
    if access.token:
        typer.echo(f"token: {access.token}")
    warn_if_reachable(host)
    make_server(app).run(sockets=[listening])


ARENAS, EXAMS = Path("runs/judge_arena"), Path("runs/judge_exam")


def _score_files(names: Sequence[str], target: Path) -> list[Path]:
    """Where the scores of each judge are kept until the folder `target` is written, to resume from."""
    return [target.parent / f".{re.sub(r'[^.a-zA-Z0-9_-]', '_', name)}.scores" for name in names]


def _named_progress(name: str) -> Callable[[str], Any]:
    """Progress bars of one judge of several."""
    return lambda what: progress(f"{name}: {what}")


@command(judge, "arena", reads_config=True)
def arena_(
    folder: Path,  # A store or a data set with reference labels.
    *,
    # A judge: a folder, a file or a type, with keys after commas: robometer,model=FOLDER,camera=front. Repeat it.
    judges: Annotated[list[str], Option("--judge", metavar="JUDGE[,KEY=VALUE]...")],
    reference: Reference = None,
    episodes: Episodes = None,
    wrong_task: WrongTask = None,
    output_dir: Path | None = None,  # The folder to write; runs/judge_arena/NAME_N when not given.
) -> None:
    """Compare several judges on the same episodes.

    Every judge takes the exam on episodes that it has not seen: accuracy, calibration, onset, time and all negative
    controls. A clock and a constant take it too, and must fail. Writes a page (report.html) and a file (arena.json).
    Ctrl-C keeps the scores so far, and the same command resumes.
    """
    from plaudit.data.transfer import check_new
    from plaudit.judges import arena
    from plaudit.judges.config import load_named_judge
    from plaudit.judges.evaluation import load_reference_labels, resolve_reference
    from plaudit.report.exam import exam_table, save_arena
    from plaudit.report.verdict import arena_verdict, exam_verdict

    check_episodes(folder)
    if output_dir is not None:
        check_new(output_dir, option="--output-dir")
    split = [word.split(",") for word in judges]
    configs = [load_named_judge(word, keys).model_copy(update={"force": True}) for word, *keys in split]
    store = open_episodes(folder)
    asked, ids = split_names(reference), chosen_ids(store, episodes)
    looks_at_nothing = arena.baselines(load_reference_labels(store, resolve_reference(asked, ""), ids))
    names = arena.named_apart([*judges, *(one.kind for one in looks_at_nothing)])
    kept = _score_files(names, output_dir or ARENAS / folder.name)
    entries: list[arena.Entry] = []
    failed: dict[str, str] = {}
    for name, config, file in zip(names, [*configs, *looks_at_nothing], kept, strict=True):
        options: dict[str, Any] = {"wrong_task": wrong_task, "progress": _named_progress(name)}
        try:
            sources = resolve_reference(asked, str(getattr(config, "type", name)))
            entries.append(arena.enter(store, name, config, sources, ids, file, **options))
        except KeyboardInterrupt:
            stop("interrupted; the scores so far are kept, run the same command to resume")
        except (JudgeError, DataError) as error:
            failed[name] = str(error)
    for name, reason in failed.items():
        tell("problem", f"{name} did not run: {reason}")
    ranked = arena.rank_entries(entries)
    own = [entry for entry in ranked if not entry.baseline]
    if not own:
        raise DataError("no judge could be measured; the reasons are above")
    arena.check_baselines(ranked)
    verdict = exam_verdict([one.certificate for one in own], dict(zip(names, split)), str(folder))
    verdict = arena_verdict(verdict, len(own), failed)
    target = output_dir or free_path(ARENAS, folder.name)
    pairs, frames = arena.pairwise_wins(ranked), arena.disagreements(store, ranked)
    save_arena(target, ranked, pairs, frames, failed, verdict)
    for path in kept:
        path.unlink(missing_ok=True)
    out.print(verdict)
    out.print(exam_table([entry.certificate for entry in ranked]))
    for entry in own:
        first, more = entry.certificate.problems[:2], len(entry.certificate.problems) - 2
        tell("problem", *(f"{entry.name}: {sentence}" for sentence in first))
        tell("problem", *([f"{entry.name}: {more} more, see the page"] if more > 0 else []))
    out.print(f"see {target / 'report.html'}; the figures are in {target / 'arena.json'}")
    if failed:
        raise typer.Exit(1)


@command(judge, "exam", reads_config=True)
def exam_(
    # Judges: folders or files, or names as for --judge of 'plaudit label'; a store or a data set with reference labels;
    # then keys of the judges' configs.
    words: Annotated[list[str] | None, Option(metavar="JUDGE... STORE [KEY=VALUE]...")] = None,
    *,
    reference: Reference = None,
    episodes: Episodes = None,
    other_task: Path | None = None,  # A store of another task's episodes: none of their frames shows success.
    wrong_task: WrongTask = None,
    check: bool = False,  # Only say whether the certificate that is there is of this judge and data.
    output_dir: Path | None = None,  # The folder to write; runs/judge_exam/NAME_N when not given.
) -> None:
    """Examine judges on episodes that they have not seen, and write a certificate for each.

    The suite is fixed: metrics of frames and episodes with confidence intervals, and all negative controls. Writes
    report.html, and a certificate next to each judge, where 'train', 'online' and 'label' look for it. Ctrl-C keeps the
    scores so far, and the same command resumes. Returns 1 when a judge does not pass.
    """
    from plaudit.data.transfer import check_new
    from plaudit.judges.arena import named_apart
    from plaudit.judges.certificate import certificate_beside, load_certificate
    from plaudit.judges.config import judge_warnings, load_named_judge
    from plaudit.judges.evaluation import resolve_reference, unseen_reference
    from plaudit.judges.exam import KeepingJudge, check_data, examine, rank
    from plaudit.report.exam import exam_table, save_exam
    from plaudit.report.verdict import exam_verdict

    overrides = [word for word in words or [] if "=" in word]
    *judges, folder = [word for word in words or [] if "=" not in word] or [""]
    if not judges:
        raise DataError("name a judge, or several, and then a store: plaudit judge exam runs/reward_model episodes")
    check_episodes(Path(folder))
    if output_dir is not None:
        check_new(output_dir, option="--output-dir")
    configs = [load_named_judge(word, overrides).model_copy(update={"force": True}) for word in judges]
    store = open_episodes(Path(folder))
    asked, ids = split_names(reference), chosen_ids(store, episodes)
    other = None if other_task is None else open_episodes(other_task)
    names = named_apart(judges)
    kept = _score_files(names, output_dir or EXAMS / "exam")
    results: list[tuple[Certificate, JudgeEvaluation]] = []
    for word, name, config, file in zip(judges, names, configs, kept, strict=True):
        built = config.build()
        sources = resolve_reference(asked, built.id.source)
        if check:
            path = certificate_beside(Path(word))
            certificate = load_certificate(path, built.id)
            unseen = unseen_reference(store, config, built, sources, ids, include=None)
            check_data(path, certificate, store, unseen.targets)
            out.print(f"{path} is of this judge and this data; {certificate.line}")
            continue
        tell("warning", *(f"{name}: {sentence}" for sentence in judge_warnings(config, built)))
        options: dict[str, Any] = {"name": name, "other_task": other, "wrong_task": wrong_task}
        options["progress"] = _named_progress(name)
        try:
            results.append(examine(store, config, KeepingJudge(built, file), sources, ids, **options))
        except KeyboardInterrupt:
            stop("interrupted; the scores so far are kept, run the same command to resume")
        except JudgeError as error:
            raise error if len(judges) == 1 else JudgeError(f"{name}: {error}") from error
    if check:
        return
    results.sort(key=lambda result: rank(result[0]))
    title = results[0][0].name if len(results) == 1 else f"{len(results)}_judges"
    target = output_dir or free_path(EXAMS, title)
    given = {name: [word, *overrides] for name, word in zip(names, judges, strict=True)}
    verdict = exam_verdict([one for one, _ in results], given, folder)
    save_exam(target, results, verdict)
    for path in kept:
        path.unlink(missing_ok=True)
    out.print(verdict)
    out.print(exam_table([certificate for certificate, _ in results]))
    placed = {name: Path(word) for name, word in zip(names, judges) if Path(word).exists() and not overrides}
    for certificate, _ in results:
        tell("note", *(f"{certificate.name}: {sentence}" for sentence in certificate.notes))
        tell("problem", *(f"{certificate.name}: {sentence}" for sentence in certificate.problems))
        if certificate.name in placed:
            path = certificate_beside(placed[certificate.name])
            certificate.save(path)
            out.print(f"{certificate.name}: the certificate is {path}")
    out.print(f"see {target / 'report.html'}")
    if not all(certificate.passed for certificate, _ in results):
        raise typer.Exit(1)


TuneCommand = config_command(
    "plaudit.judges.vlm.tune:TuneConfig",
    Flag("rank", "Rank of the adapter."),
    Flag("alpha", "The adapter's output is scaled by alpha / rank."),
    Flag("vision", "Adapt the vision encoder too."),
    Flag("epochs", "Maximum number of epochs. Training stops early when the validation loss stops falling."),
    Flag("batch_size", "Episodes of a gradient step."),
    Flag("lr", "Learning rate; follows a cosine schedule to zero."),
    Flag("seed", "Random seed."),
)


@command(judge, "tune", reads_config=True, cls=TuneCommand)
def tune_(
    context: typer.Context,
    model: str,  # A Qwen3-VL model: its folder, or its id if it was fetched before.
    words: Words = None,
    *,
    output_dir: Path = Path("runs/tuned_judge"),  # The folder to write: the adapter, which loads as a judge.
    config: JudgeFile = None,
    reference: Reference = None,
    episodes: Episodes = None,
) -> None:
    """Fine-tune a vision-language judge on labeled episodes (LoRA).

    Some episodes are held out to choose the best epoch. The adapter's folder records its model, its prompt and its
    training episodes. Use it as --model or --config, then calibrate and examine it on other episodes. Ctrl-C stops at
    once; the same command resumes.
    """
    with starting():
        from plaudit.config import parse
        from plaudit.data.transfer import check_new
        from plaudit.judges.config import load_judge_config
        from plaudit.judges.epochs import TrainingInterrupted
        from plaudit.judges.vlm.config import VlmJudgeConfig
        from plaudit.judges.vlm.tune import TuneConfig
        from plaudit.training.reward_model import tune_and_save, tune_verdict, work_folder

    check_new(output_dir, option="--output-dir")
    folder, overrides = named_store(words)
    judge = load_judge_config(config, "vlm", {"model": model}, overrides)
    assert isinstance(judge, VlmJudgeConfig)
    store = open_episodes(folder)
    sources = {} if reference is None else {"label_sources": split_names(reference)}
    job = parse(TuneConfig, {**context.obj, **sources})
    ids = chosen_ids(store, episodes)
    try:
        with epochs_bar(job.epochs) as (watch, _):
            tuned = tune_and_save(store, output_dir, judge, job, watch, ids)
    except (TrainingInterrupted, KeyboardInterrupt):
        stop(f"stopped; run the same command to resume from {work_folder(output_dir)}")
    out.print(tune_verdict(tuned, output_dir))
    after, before = tuned.metrics.roc_auc, tuned.before.roc_auc
    chosen_by = f"on the {tuned.metrics.episodes} episodes that chose the epoch"
    out.print(f"{output_dir}: ROC AUC {after:.3f} after epoch {tuned.best_epoch}, {before:.3f} before, {chosen_by}")
    out.print(f"report: {output_dir / 'report.html'}")
    tell("note", f"then examine it on other episodes: plaudit judge exam {output_dir} STORE")

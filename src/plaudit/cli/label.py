"""`plaudit label`, and what the commands about judges share."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlencode

import typer

from plaudit.cli.common import check_episodes, open_episodes, out, progress, stop, store_and_keys, tell
from plaudit.cli.data import ActionColumns, Cameras, Episodes, StateColumns, camera_names, chosen_ids
from plaudit.cli.options import Option, Positive, app, command
from plaudit.errors import DataError, DisplayError, MissingExtra, format_count

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.judges.config import JudgeConfig
    from plaudit.judges.labeling import LabelStats
    from plaudit.protocols import Judge

Decode = Literal["k_of_n", "per_frame", "cutoff"]

Words = Annotated[
    list[str] | None,
    Option(
        metavar="STORE [KEY=VALUE]...",
        help="A store, or a data set, whose labels go to a store next to it; then keys of the judge's config, like "
        "rule.threshold=0.9.",
    ),
]
JudgeFile = Annotated[Path | None, Option(help="A judge as a YAML or JSON file, or the folder of a reward model.")]
Model = Annotated[str | None, Option(help="The judge's model: the folder of a reward model, or a VLM.")]
DecodeRule = Annotated[
    Decode | None,
    Option(
        show_default="the judge's own", help="Decision rule: k of n frames, each frame alone, or one cutoff an episode."
    ),
]


@command(app, "label", reads_config=True)
def label_(
    words: Words = None,
    *,
    judge: str | None = None,  # vlm, human, classifier, simulator, cascade, or package.module:Config.
    config: JudgeFile = None,
    model: Model = None,
    decode: DecodeRule = None,
    episodes: Episodes = None,
    skip_labeled: bool = False,  # Skip episodes that already have labels of any source.
    dry_run: bool = False,  # Show what would be done; write nothing.
    batch: Positive = 8,  # Episodes that are labeled at once.
    # With --judge human: which episodes come first; repeat: those that you labeled once.
    order: Literal["unlabeled", "disagreement", "uncertain", "random", "repeat"] = "unlabeled",
    name: str = "",  # With --judge human: the labeler's name, kept with the labels.
    # With --judge human: where to label; auto: in a window if possible (extra gui), else in the browser.
    window: Literal["auto", "web", "qt"] = "auto",
    # With --judge human and a window: a file that records every action.
    action_log: Annotated[Path | None, Option("--action-log", "--keys-log")] = None,
    # Write scores and labels of all episodes as LeRobot's frame signals.
    to_lerobot_signals: Annotated[Path | None, Option(metavar="OUT.parquet")] = None,
    source: Path | None = None,  # With --to-lerobot-signals: the data set, if it was moved since it was imported.
    state: StateColumns = None,
    action: ActionColumns = None,
    camera: Cameras = None,
) -> None:
    """Label the episodes of a store or a data set with a judge.

    Labels are written to the ledger as they come. Ctrl-C keeps them, and the same command resumes. The labels of a data
    set go to a store next to it (FOLDER.store); its own files are not changed. If the judge cannot label an episode,
    the command returns 1, and the next run retries it. See docs/judges.md.
    """
    from plaudit.data.formats import ReadOptions
    from plaudit.data.lerobot_labels import check_signals_path, source_of_store
    from plaudit.data.store import Store, is_store
    from plaudit.data.transfer import store_beside
    from plaudit.judges.certificate import certificate_beside, certificate_status
    from plaudit.judges.labeling import LabelRunner, StoreQueue

    folder, overrides = named_store(words)
    cameras, rename = camera_names(camera)
    options = ReadOptions(state=state or (), action=action or (), cameras=cameras, rename=rename)
    if judge == "human":
        if any([config, model, decode, episodes, skip_labeled, dry_run, overrides, to_lerobot_signals]):
            raise DataError(
                "--judge human lets you choose what to label; it takes --order, --name, --window and --action-log"
            )
        if not _opens_window(window, action_log):
            _label_in_browser(open_episodes(folder, options), order, name)
            return
        from plaudit.judges.human.app import run_labeling_app

        how: dict[str, Any] = {"progress": progress("importing"), "say": out.print, "options": options}
        done = run_labeling_app(folder, order=order, name=name, action_log=action_log, **how)
        _print_labeled(Store.open(done.store), done.count, done.drafts)
        return
    if to_lerobot_signals is not None:
        check_signals_path(to_lerobot_signals)  # before the judge works for hours
        if skip_labeled:
            raise DataError("--to-lerobot-signals writes the scores of all episodes; leave out --skip-labeled")
    elif source is not None:
        raise DataError("--source is the data set of --to-lerobot-signals; name that file too, or leave it out")
    settings, asked = load_judge(config, judge, model, decode, overrides)
    if dry_run and not is_store(folder):
        data_set, folder = folder, store_beside(folder)
        if not is_store(folder):
            out.print(f"{data_set} would be imported into {folder} and labeled there; nothing was written")
            return
    store = open_episodes(folder, options)
    if to_lerobot_signals is not None:
        source = source or source_of_store(store)
    if settings.needs_certificate:
        beside = None if config is None else certificate_beside(config)
        own = settings.certificate_path if beside is None or not beside.exists() else beside
        tell("certificate", certificate_status(own, asked.id)[0])
    ids = chosen_ids(store, episodes)
    queue = StoreQueue(store, ids, skip_labeled=skip_labeled)
    waiting = queue.stale(asked.id)
    if dry_run:
        left = f", {len(ids) - len(waiting)} are done" if len(waiting) < len(ids) else ""
        which = f"{len(waiting)} of {format_count(len(ids), 'episode')}{left}"
        out.print(f"{asked.id.source} would judge {which}; nothing was written")
        return
    before = len(store.ledger)
    try:
        done = LabelRunner(asked, queue, batch_size=batch).run(progress("labeling"))
    except KeyboardInterrupt:
        labeled = format_count(len(store.ledger) - before, "new label")
        stop(f"interrupted; {store.folder} has {labeled}; run the same command to resume")
    if to_lerobot_signals is not None and done.failed:
        tell("note", f"{to_lerobot_signals} was not written; it needs the scores of all these episodes")
    _print_result(store, settings, asked, done, len(ids) - len(waiting))
    if to_lerobot_signals is not None and source is not None:
        _write_signals(store, source, settings, asked, ids, to_lerobot_signals)


def _write_signals(
    store: "Store", source: Path, config: "JudgeConfig", judge: "Judge", ids: Sequence[int], path: Path
) -> None:
    """Write the scores and labels of these episodes as LeRobot's frame signals."""
    from plaudit.data.formats.lerobot.signals import Meaning
    from plaudit.data.lerobot_labels import write_frame_signals

    meanings = {name: Meaning(**vars(signal)) for name, signal in config.signals.items()}
    scoring: dict[str, Any] = {"judge": judge.id.source, "fingerprint": judge.id.model, "rule": judge.rule.describe()}
    scoring["config"] = config.model_dump(mode="json", exclude_defaults=True, exclude={"force"})
    rows = write_frame_signals(store, source, judge.id, ids, path, meanings, {"scoring": scoring})
    out.print(f"{path} has the scores and labels of {rows} rows of {source}")


def _opens_window(window: Literal["auto", "web", "qt"], action_log: Path | None) -> bool:
    """Whether to label in a window, and not in the browser."""
    from plaudit.judges.human.app import check_display

    if window == "web" and action_log is not None:
        raise DataError("--action-log needs the labeling window; leave it out, or use --window qt")
    if window != "auto" or action_log is not None:
        return window != "web"
    try:
        check_display()
    except (DisplayError, MissingExtra) as error:
        tell("note", f"labeling in the browser, because no window can be opened: {error}")
        return False
    return True


def _label_in_browser(store: "Store", order: str, name: str) -> None:
    """Serve the store until Ctrl-C."""
    from plaudit.cli.serve import serve
    from plaudit.judges.human.app import has_display

    def count() -> int:
        store.ledger.refresh()
        return sum(version.source == "human" for version in store.ledger.since(0))

    folder, before = store.folder.resolve(), count()
    page = f"#/label/{quote(folder.name, safe='')}?{urlencode({'order': order} | ({'name': name} if name else {}))}"
    with suppress(KeyboardInterrupt):
        serve([folder], port=0, page=page, browse=has_display())
    _print_labeled(store, count() - before, 0)


def _print_labeled(store: "Store", count: int, drafts: int) -> None:
    """What a person has done."""
    from plaudit.report.verdict import Verdict, label_command, quoted

    store.refresh()
    store.ledger.refresh()
    left = sum(store.ledger.newest(i, ("human",)) is None for i in store.ids)
    begun = f", {drafts} unfinished and kept" if drafts else ""
    why = f"{format_count(count, 'episode')} of {store.folder} labeled by a person{begun}; {left} left."
    if left:
        following = "Label the others", label_command(store.folder)
        out.print(Verdict("Partly usable: some episodes have no label from a person.", why, *following, tone="open"))
        return
    following = "Train a judge on the labels", f"plaudit train-reward {quoted(store.folder)}"
    out.print(Verdict("Usable: every episode has a label from a person.", why, *following, tone="good"))


def named_store(words: Sequence[str] | None) -> tuple[Path, list[str]]:
    """The store or data set among the arguments, which must exist, and the KEY=VALUE overrides."""
    store, overrides = store_and_keys(words or [])
    if store is None:
        raise DataError("name a store or a data set")
    check_episodes(Path(store))
    return Path(store), overrides


def load_judge(
    config: Path | None, name: str | None, model: str | None, decode: Decode | None, overrides: Sequence[str]
) -> tuple["JudgeConfig", "Judge"]:
    """A judge's config and the judge, with warnings, for example about a rule that was fitted on another judge."""
    from plaudit.judges.config import judge_warnings, load_judge_config

    asked = load_judge_config(config, name, {} if model is None else {"model": model}, overrides)
    asked = asked if decode is None else asked.with_decode(decode)
    judge = asked.build_with_progress()
    tell("warning", *judge_warnings(asked, judge))
    return asked, judge


def report_failures(failed: Mapping[int, str]) -> None:
    """Print a line for each reason, with its episodes."""
    from plaudit.judges.labeling import group_by_message
    from plaudit.report.verdict import format_ids

    for sentence, ids in group_by_message(failed).items():
        which = f"episode {ids[0]}" if len(ids) == 1 else f"{len(ids)} episodes ({format_ids(ids)})"
        tell("problem", f"{which}: {sentence}")


def _print_result(
    store: "Store", config: "JudgeConfig", judge: "Judge", done: "LabelStats[int]", passed_over: int
) -> None:
    from plaudit.judges.cascade import CascadeConfig
    from plaudit.judges.human.queue import write_requests
    from plaudit.report.verdict import Verdict, format_ids, label_command, quoted
    from plaudit.training.audit import CascadeLedger

    def are(ids: Collection[int]) -> str:
        return f"{format_count(len(ids), 'episode')} {'is' if len(ids) == 1 else 'are'}"

    report_failures(done.failed)
    if done.at_start:
        tell(
            "warning",
            f"{are(done.at_start)} called a success from the first frame on ({format_ids(done.at_start)}): the object "
            "may have started at its goal",
            f"look at them (plaudit data sheet) and label them by hand: {label_command(store.folder)}",
        )
    if done.ood:
        first, became = next(iter(done.ood)), "they have no labels"
        if not judge.rule.withholds:
            became = "they are labeled as others are; ood=abstain leaves them out"
        tell(
            "warning",
            f"{are(done.ood)} out of distribution ({format_ids(list(done.ood))}); of episode {first}: "
            f"{done.ood[first]}; {became}, and why stands in the note of each",
        )
    called = f" ({done.num_success} called a success)" if done.done else ""
    over = f", {passed_over} were done already" if passed_over else ""
    outranked = Counter(v.source for i in done.done if (v := store.ledger.current(i)) and v.source != judge.id.source)
    for source, count in outranked.items():
        tell(
            "note",
            f"{count} of these episodes have labels of '{source}', which still count; 'plaudit data order "
            f"{store.folder}' shows and changes the order",
        )
    lost = f", {len(done.failed)} could not be labeled and are retried by the next run" if done.failed else ""
    open_ = f", {len(done.undecided)} left undecided" if done.undecided else ""
    open_ += f", {len(done.withheld)} left without labels, see the warnings" if done.withheld else ""
    labeled = len(done.done) - len(done.undecided) - len(done.withheld)
    count = f"{format_count(labeled, 'episode')} of {store.folder} labeled by {judge.id.source}"
    count += f"{called}{open_}{over}{lost}"
    usable = not (done.failed or done.undecided or done.withheld)
    following = "Train a judge on the labels", f"plaudit train-reward {quoted(store.folder)}"
    if not usable:
        following = "Label the others by hand", label_command(store.folder)
    result = "Usable: all episodes have labels." if usable else "Partly usable: some episodes have no label."
    out.print(Verdict(result, f"{count}.", *following, tone="good" if usable else "bad"))
    if isinstance(config, CascadeConfig):
        tally = CascadeLedger(config)
        wanted = tally.requested(store)
        tell("note", tally.describe())
        if config.human is not None:
            write_requests(store.folder, wanted)  # the labeling window shows these episodes first
        if wanted:
            minutes = len(wanted) * config.human.cost_s / 60 if config.human is not None else 0.0
            tell(
                "note",
                f"{len(wanted)} of the undecided wait for a human, about {minutes:.2g} minutes: plaudit label "
                f"{store.folder} --judge human",
            )
    if done.failed:
        raise typer.Exit(1)

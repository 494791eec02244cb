"""`plaudit data label`: labels from a file, old versions of them, and labels written into a copy of a LeRobot set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from plaudit.cli.common import is_count, out, progress, stop, tell
from plaudit.cli.data import FollowLinksOption
from plaudit.errors import DataError

if TYPE_CHECKING:
    from plaudit.data.formats.lerobot.relabel import EpisodeLabels
    from plaudit.data.store import Store

By = Literal["id", "source"]  # as plaudit.data has them, which is imported when it is needed
After = Literal["failure", "unknown"]
RewardFrame = Literal["next", "same"]

LabeledArgument = Annotated[
    Path,
    typer.Argument(
        help="An episode store; with --to-lerobot also a LeRobot data set.", metavar="STORE", show_default=False
    ),
]
CutoffsArgument = Annotated[
    Path | None,
    typer.Argument(
        help='A file {episode: first success frame, [[first, last], [first, null, "unknown"], ...] or null}.'
    ),
]
ByOption = Annotated[
    By | None, typer.Option(help="Whether the file uses the store's ids or the episode numbers of its source.")
]
AfterOption = Annotated[
    After, typer.Option(help="Label of the frames after the last range of an episode; unknown frames are not used.")
]
RestoreOption = Annotated[
    str | None, typer.Option(metavar="EPISODE:VERSION", help="Restore an old version of an episode's labels.")
]
ToLerobotOption = Annotated[
    Path | None,
    typer.Option(
        metavar="OUT",
        help="Write a copy of the LeRobot data set with the labels into this new folder.",
        show_default=False,
    ),
]
SourceOption = Annotated[
    Path | None, typer.Option(help="With --to-lerobot: the data set, when it is not where it was imported from.")
]
CopiedRewardFrameOption = Annotated[
    RewardFrame, typer.Option(help="With --to-lerobot: whether next.reward is about the next frame or the row's own.")
]
HardLinksOption = Annotated[
    bool, typer.Option("--hard-links", help="With --to-lerobot: link videos instead of copying them.")
]


def label(
    store: LabeledArgument,
    cutoffs: CutoffsArgument = None,
    by: ByOption = None,
    after: AfterOption = "failure",
    restore: RestoreOption = None,
    note: Annotated[str, typer.Option(help="A note, kept with the labels.")] = "",
    to_lerobot: ToLerobotOption = None,
    source: SourceOption = None,
    reward_frame: CopiedRewardFrameOption = "next",
    hard_links: HardLinksOption = False,
    follow_links: FollowLinksOption = False,
) -> None:
    """Label episodes from a file with the first success frame of each. Labels are versioned; none is lost.

    With --to-lerobot, write next.reward, next.done and next.success into a copy of a LeRobot data set; its videos and
    other columns stay the same.
    """
    from plaudit.data.labeled_copy import check_copy, labels_of_store, source_of_store
    from plaudit.data.store import Store, is_store

    if to_lerobot is None and (source is not None or hard_links):
        raise DataError("--source and --hard-links belong to --to-lerobot OUT, the folder of the copy")
    if to_lerobot is not None and not is_store(store):
        if by or note or restore or source:
            raise DataError(f"{store} is no store; --by, --note, --restore and --source are about one, leave them out")
        labels = _labels_of_file(store, cutoffs, after, follow_links)
        _write_copy(store, to_lerobot, labels, reward_frame, hard_links, follow_links)
        return
    opened = Store.open(store)
    if to_lerobot is not None:
        source = source or source_of_store(opened)
        check_copy(source, to_lerobot, store)  # before anything is labeled
    if restore is not None:
        _restore(opened, restore)
    elif cutoffs is not None:
        _label(opened, cutoffs, by, after, note)
    elif to_lerobot is None:
        raise DataError("name a label file like {0: 53, 1: null}, or --restore an old version")
    if to_lerobot is not None and source is not None:
        labels = labels_of_store(opened, source)
        _write_copy(source, to_lerobot, labels, reward_frame, hard_links, follow_links)


def _restore(store: "Store", asked: str) -> None:
    episode_id, _, version = asked.partition(":")
    if not (is_count(episode_id) and is_count(version)):
        raise DataError(f"--restore takes EPISODE:VERSION, like 3:1, not '{asked}'")
    new = store.ledger.restore(int(episode_id), int(version))
    out.print(f"episode {episode_id}: version {version} counts again, as version {new}")


def _label(
    store: "Store",
    cutoffs: Path,
    by: By | None,
    after: After,
    note: str,
) -> None:
    from plaudit.data.cutoffs import label_store, read_cutoffs

    ids = label_store(store, read_cutoffs(cutoffs), by=by, note=note, after=after)
    yes, no, unknown = 0, 0, 0
    for episode_id in ids:
        newest = store.ledger.newest(episode_id)
        assert newest is not None
        frames = newest.labels().targets[store.episode(episode_id).observed]
        yes, no = yes + int((frames == 1).sum()), no + int((frames == 0).sum())
        unknown += int((frames != frames).sum())
    left_out = f", {unknown} unknown and left out" if unknown else ""
    out.print(f"{len(ids)} episodes labeled: {yes} success frames, {no} failure frames ({yes + no} total){left_out}")


def _labels_of_file(folder: Path, cutoffs: Path | None, after: After, follow_links: bool) -> dict[int, "EpisodeLabels"]:
    from plaudit.data.cutoffs import read_cutoffs
    from plaudit.data.labeled_copy import labels_of_file

    if cutoffs is None:
        raise DataError(f"{folder} is no store, so name a label file too, like {{0: 53, 1: null}}; or import it first")
    return labels_of_file(folder, read_cutoffs(cutoffs), after=after, follow_links=follow_links)


def _write_copy(
    source: Path,
    target: Path,
    labels: dict[int, "EpisodeLabels"],
    reward_frame: RewardFrame,
    hard_links: bool,
    follow_links: bool,
) -> None:
    from plaudit.data.labeled_copy import write_labeled_copy

    try:
        report = write_labeled_copy(
            source,
            target,
            labels,
            reward_frame=reward_frame,
            hard_links=hard_links,
            follow_links=follow_links,
            progress=progress("copying"),
        )
    except KeyboardInterrupt:
        stop(f"interrupted; {target} was not made")
    for note in report.notes:
        tell("note", note)
    if report.unlabeled:
        tell(
            "warning",
            f"{report.unlabeled} rows have no label, and NaN for next.reward; Plaudit leaves them out, other programs "
            "may not",
        )
    about = "the row's own frame" if reward_frame == "same" else "the frame after it"
    out.print(
        f"{target} is {source} with labels of {report.episodes} episodes: {report.success} rows of success, "
        f"{report.failure} of failure; next.reward of a row is about {about} (--reward-frame)"
    )
    out.print(f'next: load it by its folder, LeRobotDataset("local/{target.name}", root="{target}")')

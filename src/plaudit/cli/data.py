"""`plaudit data`: import, export, inspect, label and check episodes."""

import os
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plaudit.cli.common import MAX_COUNT, MAX_FPS, err, finite, frame_rate, out, progress, stop, tell
from plaudit.errors import DataError

if TYPE_CHECKING:
    from plaudit.data.transfer import ImportReport

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

StoreArgument = Annotated[Path, typer.Argument(help="An episode store.", metavar="STORE", show_default=False)]
EpisodesOption = Annotated[
    str | None, typer.Option("--episodes", help="Episode ids, like '0,3,7-9'; all when not given.")
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="KEY",
        help="LeRobot: the column of the state, when it is not observation.state; several are concatenated; 'none' for "
        "no state.",
        show_default=False,
    ),
]
ActionOption = Annotated[
    list[str] | None,
    typer.Option("--action", metavar="KEY", help="LeRobot: the column of the action, likewise.", show_default=False),
]
CameraOption = Annotated[
    list[str] | None,
    typer.Option(
        "--camera",
        metavar="NAME[=NEW]",
        help="Use only this camera, under a new name if one is given; may be given several times.",
        show_default=False,
    ),
]
RewardFrameOption = Annotated[
    Literal["next", "same"] | None,
    typer.Option(
        "--reward-frame",
        help="LeRobot: whether next.reward is about the next frame or the row's own.",
        show_default="as the data set says, or next",
    ),
]
ResizeOption = Annotated[
    str | None,
    typer.Option("--resize", metavar="HxW", help="Resize frames to this height and width.", show_default=False),
]


FollowLinksOption = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Follow symbolic links in the data set, such as those of the Hugging Face cache; only to regular files.",
    ),
]


@data.command("import")
def import_(
    source: Annotated[
        Path, typer.Argument(help="A data set of another format; it is not changed.", show_default=False)
    ],
    store: Annotated[
        Path, typer.Argument(help="The store to add to; created if it does not exist.", show_default=False)
    ],
    reward_frame: RewardFrameOption = None,
    task: Annotated[str, typer.Option(help="The task text, for formats without one.")] = "",
    fps: Annotated[
        float, typer.Option(min=0, max=MAX_FPS, help="Frames per second, for formats without it.", callback=frame_rate)
    ] = 0.0,
    state: StateOption = None,
    action: ActionOption = None,
    camera: CameraOption = None,
    resize: ResizeOption = None,
    follow_links: FollowLinksOption = False,
    max_episode_gb: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1e6,
            help="Maximum memory for the frames of one episode; larger episodes are skipped.",
            callback=finite,
        ),
    ] = 8.0,
) -> None:
    """Import a data set into a store.

    Reads LeRobot v2 and v3 and folders of .npy or .pkl files; the format is detected.

    Run the same command to resume an interrupted import. A broken episode is reported and skipped.
    """
    from plaudit.data.formats import ReadOptions
    from plaudit.data.transfer import import_dataset

    cameras, rename = camera_names(camera)
    if Path(os.path.realpath(store)).is_relative_to(os.path.realpath(source)):
        raise DataError(f"{store} lies within {source}, which an import only reads; name a store elsewhere")
    options = ReadOptions(
        reward_frame=reward_frame,
        task=task,
        fps=fps,
        state=state or (),
        action=action or (),
        cameras=cameras,
        rename=rename,
        resize=image_size(resize),
        follow_links=follow_links,
        max_episode_gb=max_episode_gb,
    )
    try:
        report = import_dataset(source, store, options, progress("importing"), out.print)
    except KeyboardInterrupt:
        stop("interrupted; what is in the store stays, run the same command to go on")
    _print_import(report, store, changed=bool(camera or resize))


def _print_import(report: "ImportReport", store: Path, changed: bool) -> None:
    """changed: whether cameras or sizes other than the source's were asked for"""
    if changed and report.already_imported:
        sentence = (
            "--camera and --resize change nothing about episodes that are here already; for those, name a new store"
        )
        tell("note", sentence)
    for sentence in report.failed:
        tell("warning", sentence)
    for sentence in report.notes:
        tell("note", sentence)
    if report.ignored:
        tell("note", f"features with no place in an episode, not taken: {', '.join(report.ignored)}")
    here = f", {report.already_imported} were here already" if report.already_imported else ""
    lost = f", {len(report.failed)} left out (see above)" if report.failed else ""
    out.print(f"{len(report.ids)} episodes imported into {store}, {report.labeled} with labels{here}{lost}")
    if report.labeled:
        out.print(f"next: plaudit train-reward {store}")
    elif report.ids:
        out.print(f"next: plaudit label {store} --judge human, or plaudit data label {store} cutoffs.json")
    if report.failed:
        err.print("put those right at their source and run the same command again to add them")
        raise typer.Exit(1)


def camera_names(given: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Cameras to take, and new names of some, from NAME and OLD=NEW; NAME may be a LeRobot feature."""
    from plaudit.data.formats.lerobot.features import IMAGES

    rename: dict[str, str] = {}
    cameras: list[str] = []
    for word in given or ():
        old, equals, new = word.removeprefix(IMAGES).partition("=")
        if not old or (equals and not new) or old in cameras:
            raise DataError(f"--camera takes NAME or OLD=NEW, each camera once, not '{word}'")
        if equals and not re.fullmatch(r"\w[\w.-]{0,99}", new):
            raise DataError(f"'{new}' is no name for a camera; take letters, digits, '_', '-' and '.'")
        cameras.append(old)
        if equals:
            rename[old] = new
    return cameras, rename


def image_size(text: str | None) -> tuple[int, int] | None:
    """(height, width) of HxW."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", text)
    if not match:
        raise DataError(f"--resize takes height and width, like 240x320, not '{text}'")
    return int(match[1]), int(match[2])


@data.command("export")
def export(
    store: StoreArgument,
    target: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
    to: Annotated[Literal["lerobot", "npy", "pkl"], typer.Option("--to", help="The format to write.")] = "lerobot",
    episodes: EpisodesOption = None,
    camera: Annotated[
        list[str] | None, typer.Option(help="Export only this camera; may be given several times.")
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="LeRobot: lossless PNG images instead of video.")] = False,
    codec: Annotated[
        Literal["av1", "h264", "hevc"] | None, typer.Option(help="LeRobot: video codec.", show_default="av1")
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(min=1, max=63, help="Constant rate factor (CRF) of the codec; lower is better quality."),
    ] = None,
    reward_frame: Annotated[
        Literal["next", "same"], typer.Option(help="LeRobot: which frame next.reward of a row is about.")
    ] = "next",
    fps: Annotated[
        float, typer.Option(min=0, max=MAX_FPS, help="Frames per second of episodes without it.", callback=frame_rate)
    ] = 0.0,
) -> None:
    """Export episodes with the labels that count to another format.

    Writes LeRobot v3.0, .npy or .pkl into a new folder.
    """
    from plaudit.data.formats import WriteOptions
    from plaudit.data.store import Store
    from plaudit.data.transfer import export_dataset

    _check_video_options(to, images, codec, quality)
    opened = Store.open(store)
    options = WriteOptions(camera or (), not images, codec or "av1", quality, reward_frame, fps)
    try:
        left_out = export_dataset(opened, target, to, options, chosen_ids(opened, episodes), progress("exporting"))
    except KeyboardInterrupt:
        stop(f"interrupted; {target} was not made")
    for sentence in left_out:
        tell("warning", sentence)
    out.print(f"{len(chosen_ids(opened, episodes)) - len(left_out)} episodes exported to {target} as {to}")


def _check_video_options(to: str, images: bool, codec: str | None, quality: int | None) -> None:
    given = {"--images": images, "--codec": codec is not None, "--quality": quality is not None}
    names = " and ".join(name for name, was_given in given.items() if was_given)
    if to != "lerobot" and names:
        raise DataError(f"only --to lerobot takes {names}; leave this out of an export to .{to} files")
    if images and (codec is not None or quality is not None):
        raise DataError(
            "--images writes PNG images, which have no --codec and no --quality; leave out one or the other"
        )
    if quality is not None and quality > 51 and codec not in (None, "av1"):
        raise DataError(f"--quality of {codec} is 1 to 51, not {quality}; av1 has up to 63")


@data.command("info")
def info(
    path: Annotated[Path, typer.Argument(help="A store, or a data set of another format.", show_default=False)],
    episode: Annotated[
        int | None, typer.Option(min=0, max=MAX_COUNT, help="Show one episode of a store, with its label history.")
    ] = None,
    follow_links: FollowLinksOption = False,
) -> None:
    """Show what a store or a data set contains."""
    from plaudit.data.store import Store, is_store
    from plaudit.report.tables import dataset_table, episode_table, store_table

    if not is_store(path):
        from plaudit.data.formats import ReadOptions
        from plaudit.data.formats.decoder import open_in_worker

        with open_in_worker(path, ReadOptions(follow_links=follow_links)) as dataset:
            out.print(dataset_table(dataset))
            for sentence in dataset.problems:
                tell("note", f"it cannot be imported as it is: {sentence}")
    elif episode is not None:
        out.print(*episode_table(Store.open(path), episode), sep="\n")
    else:
        out.print(*store_table(Store.open(path)), sep="\n")


@data.command("check")
def check(
    store: StoreArgument,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired, and report it.")] = False,
    empty: Annotated[
        bool, typer.Option("--empty-quarantine", help="Delete quarantined bytes, and report them.")
    ] = False,
) -> None:
    """Verify every checksum; repair with --repair.

    Without it nothing is changed, and the store may be in use.
    """
    from plaudit.data.check import check as run_check
    from plaudit.data.check import empty_quarantine

    if empty:
        for sentence in empty_quarantine(store):
            tell("deleted", sentence)
    try:
        report = run_check(store, repair=repair, progress=progress("checking"))
    except KeyboardInterrupt:
        stop("interrupted")
    for sentence in report.aside:
        tell("set aside", sentence)
    for sentence in report.unexplained:
        tell("note", sentence)
    for sentence in report.repaired:
        tell("repaired", sentence)
    for sentence in report.problems:
        tell("problem", sentence)
    if not report.ok:
        hint = "" if repair else f"; 'plaudit data check {store} --repair' puts right what can be"
        err.print(f"{len(report.problems)} problems{hint}")
        raise typer.Exit(1)
    out.print(
        f"{store} is sound: {report.episodes} episodes, {report.nbytes:,} bytes, {report.labels} label versions, "
        f"{report.lines:,} lines"
    )


@data.command("sheet")
def sheet(
    store: StoreArgument,
    episode: Annotated[int, typer.Argument(min=0, max=MAX_COUNT, help="The episode's id.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The PNG file to write; episode_N.png when not given.")
    ] = None,
    frames: Annotated[int, typer.Option(min=2, max=2**31 - 1, help="Number of frames to show.")] = 24,
    columns: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Frames in a row.")] = 8,
    version: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_COUNT, help="Version of the labels; the one that counts when not given."),
    ] = None,
) -> None:
    """Draw a contact sheet of an episode, with its labels."""
    from plaudit.data.store import Store
    from plaudit.report.sheet import contact_sheet, save_image

    opened = Store.open(store)
    ledger = opened.ledger
    found = opened.episode(episode)
    labels = ledger.labels(episode) if version is None else ledger.version(episode, version).labels()
    title = f"Episode {episode}" + (f": {found.task}" if found.task else "")
    path = output or Path(f"episode_{episode}.png")
    save_image(contact_sheet(found, labels, title=title, frames=frames, columns=columns), path)
    out.print(f"{path} shows episode {episode}")


@data.command("stats")
def stats(
    store: StoreArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path("stats.json"),
    by_range: Annotated[
        bool, typer.Option("--range", help="Scale actions to [-1, 1] by their range, as SAC and Q-chunking need.")
    ] = False,
) -> None:
    """Compute normalization statistics of states and actions."""
    from plaudit.data.normalize import Normalizer
    from plaudit.data.store import Store

    normalizer = Normalizer.from_store(Store.open(store), by_range=by_range)
    normalizer.save(output)
    out.print(
        f"{output} has the statistics of {', '.join(f'{k} [{len(s.mean)}]' for k, s in normalizer.stats.items())}"
    )


@data.command("order")
def order_(
    store: StoreArgument,
    order: Annotated[
        str | None,
        typer.Argument(
            metavar="[ORDER]",
            help="Sources, those that count most first, + between equals, like human+cutoff,simulator; or newest, or "
            "default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show or set whose labels count where several judges have labeled an episode.

    Sources that are not named come last; among equals the newest label counts. No label is changed or lost.
    """
    from plaudit.data.label_order import LabelOrder, parse_order, unknown_sources
    from plaudit.data.store import Store

    tiers = None if order is None else parse_order(order)
    if tiers is not None:
        with Store.open(store, write=True) as opened:
            opened.set_label_order(tiers)
    ledger = Store.open(store).ledger
    labeled = sorted({version.source for version in ledger.since(0)})
    for name in [] if tiers is None else unknown_sources(LabelOrder(tiers), labeled):
        tell("note", f"no label of {store} is by '{name}'; there are labels by {', '.join(labeled) or 'nobody'}")
    out.print(f"{store}: {ledger.order.describe()} ({ledger.order})")


def chosen_ids(store: Any, text: str | None) -> list[int]:
    """Episode ids from '0,3,7-9'."""
    if text is None:
        return store.ids
    known = sorted(store.ids)
    chosen: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        if not match:
            raise DataError(f"--episodes takes ids like '0,3,7-9', not '{text[:60]}'")
        wanted = range(int(match[1]), int(match[2] or match[1]) + 1)
        # A range may be far longer than the store: its ends are looked up, not its numbers written out.
        found = known[bisect_left(known, wanted.start) : bisect_left(known, wanted.stop)]
        if len(found) < len(wanted):
            store.entry(next(i for i, there in zip_longest(wanted, found) if i != there))  # raises for the first gap
        chosen += found
    return chosen

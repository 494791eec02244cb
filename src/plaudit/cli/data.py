"""`plaudit data`: import, export, inspect, label and check episodes."""

import os
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plaudit.cli.common import episodes_folder, open_episodes, out, progress, stop, tell
from plaudit.cli.options import IMAGES_HELP, Count, Fps, Option, Positive, StoreImages, command, group, is_count
from plaudit.errors import DataError, format_count

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.report.verdict import Verdict

data = group("data", "Import, export, inspect, label and check episodes.")

StoreArgument = Annotated[
    Path,
    Option(metavar="STORE", help="A store; or a data set, which is imported into FOLDER.store next to it first."),
]
Episodes = Annotated[str | None, Option(help="Episode ids, like '0,3,7-9'; all when not given.")]
StateColumns = Annotated[
    list[str] | None,
    Option(metavar="KEY", help="Column of the state, if it has an unusual name; repeatable; 'none' for no state."),
]
ActionColumns = Annotated[
    list[str] | None,
    Option(metavar="KEY", help="Column of the action, likewise; 'next' for the state that follows (not LeRobot)."),
]
SuccessColumn = Annotated[
    str, Option(metavar="KEY", help="Column of success or reward, if it has an unusual name; 'none' for none.")
]
Cameras = Annotated[
    list[str] | None, Option(metavar="NAME[=NEW]", help="Use only this camera, renamed to NEW; repeatable.")
]
FollowLinks = Annotated[
    bool, Option(help="Follow symbolic links to regular files, such as those of the Hugging Face cache.")
]


@command(data, "import")
def import_(
    source: Path,  # A data set of another format; it is not changed.
    store: Path,  # The store to add to; created if it does not exist.
    *,
    # Whether the reward of a row (LeRobot: next.reward) is about the next frame or the row's own.
    reward_frame: Annotated[Literal["next", "same"] | None, Option(show_default="as stored")] = None,
    task: str = "",  # The task text, for formats without one.
    fps: Fps = 0.0,  # Frames per second, for formats without it; of a bag, the rate to resample to.
    state: StateColumns = None,
    action: ActionColumns = None,
    success: SuccessColumn = "",
    camera: Cameras = None,
    resize: Annotated[str | None, Option(metavar="HxW")] = None,  # Resize frames to this height and width.
    store_images: StoreImages = None,
    follow_links: FollowLinks = False,
    # Maximum memory for the frames of one episode; larger episodes are skipped.
    max_episode_gb: Annotated[float, Option(min=0.001, max=1e6)] = 8.0,
) -> None:
    """Import a data set into a store.

    Reads LeRobot v2 and v3, HDF5 (robomimic, ALOHA), Zarr (diffusion policy, UMI), RLDS, ROS 2 bags, and folders of
    .npy or .pkl files; the format is detected.

    Run the same command to resume an interrupted import. A broken episode is reported and skipped.
    """
    from plaudit.data.formats import ReadOptions
    from plaudit.data.transfer import import_dataset
    from plaudit.report.tables import stored_size
    from plaudit.report.verdict import Verdict, label_command, quoted

    cameras, rename = camera_names(camera)
    if Path(os.path.realpath(store)).is_relative_to(os.path.realpath(source)):
        raise DataError(f"{store} is inside {source}, which an import must not change; name a store elsewhere")
    size = image_size(resize)
    columns: dict[str, Any] = {"state": state or (), "action": action or (), "success": success}
    columns |= {"cameras": cameras, "rename": rename}
    limits: dict[str, Any] = {"resize": size, "follow_links": follow_links, "max_episode_gb": max_episode_gb}
    options = ReadOptions(reward_frame=reward_frame, task=task, fps=fps, **columns, **limits)
    try:
        report = import_dataset(source, store, options, progress("importing"), out.print, images=store_images)
    except KeyboardInterrupt:
        stop("interrupted; the episodes so far are kept, run the same command to resume")
    if (camera or resize) and report.already_imported:
        tell("note", "--camera and --resize do not change episodes that were already imported; name a new store")
    tell("warning", *report.failed)
    tell("note", *report.notes)
    if report.ignored:
        tell("note", f"features that an episode cannot hold were skipped: {', '.join(report.ignored)}")
    already = f", {report.already_imported} were here already" if report.already_imported else ""
    lost = f", {len(report.failed)} left out (see above)" if report.failed else ""
    count = f"{format_count(len(report.ids), 'episode')} imported into {store}, {report.labeled} with labels"
    count += f"{already}{lost}; the store has {stored_size(report.nbytes, report.raw_nbytes)}"
    available = len(report.ids) + report.already_imported
    following = "Label them, or import labels from a file (plaudit data label)", label_command(store)
    if report.failed:
        following = (
            "Fix them in the data set, then import again",
            f"plaudit data import {quoted(source)} {quoted(store)}",
        )
    elif report.labeled or not report.ids:
        following = "Train a judge", f"plaudit train-reward {quoted(store)}"
    result = "Usable." if available and not report.failed else "Partly usable." if available else "Not usable."
    out.print(Verdict(result, f"{count}.", *following, tone="bad" if report.failed else "good"))
    if report.failed:
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
            raise DataError(f"'{new}' is not a camera name; use letters, digits, '_', '-' and '.'")
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


@command(data, "export")
def export(
    store: StoreArgument,
    target: Path,  # A new folder.
    *,
    to: Literal["lerobot", "hdf5", "npy", "pkl"] = "lerobot",  # The format to write.
    episodes: Episodes = None,
    camera: list[str] | None = None,  # Export only this camera; may be given several times.
    images: bool = False,  # LeRobot: lossless PNG images instead of video.
    codec: Annotated[Literal["av1", "h264", "hevc"] | None, Option(show_default="av1")] = None,  # LeRobot: video codec.
    # Constant rate factor (CRF) of the codec; lower is better quality.
    quality: Annotated[int | None, Option(min=1, max=63)] = None,
    reward_frame: Literal["next", "same"] = "next",  # LeRobot: which frame next.reward of a row is about.
    fps: Fps = 0.0,  # Frames per second of episodes without it.
) -> None:
    """Export episodes with the labels that count to another format.

    Writes LeRobot v3.0, HDF5 (robomimic's layout), .npy or .pkl into a new folder.
    """
    from plaudit.data.formats import WriteOptions
    from plaudit.data.transfer import export_dataset
    from plaudit.report.verdict import Verdict, quoted

    given = {"--images": images, "--codec": codec is not None, "--quality": quality is not None}
    names = " and ".join(name for name, was_given in given.items() if was_given)
    if to != "lerobot" and names:
        raise DataError(f"only --to lerobot takes {names}; leave this out of an export to {to}")
    if images and (codec is not None or quality is not None):
        raise DataError(
            "--images writes PNG images, which have no --codec and no --quality; leave out one or the other"
        )
    if quality is not None and quality > 51 and codec not in (None, "av1"):
        raise DataError(f"--quality of {codec} is 1 to 51, not {quality}; av1 has up to 63")
    opened = open_episodes(store)
    ids = chosen_ids(opened, episodes)
    options = WriteOptions(camera or (), not images, codec or "av1", quality, reward_frame, fps)
    try:
        left_out = export_dataset(opened, target, to, options, ids, progress("exporting"))
    except KeyboardInterrupt:
        stop(f"interrupted; {target} was not written")
    tell("warning", *left_out)
    count = f"{format_count(len(ids) - len(left_out), 'episode')} exported to {target} as {to}"
    advice = ("Show its contents", f"plaudit data info {quoted(target)}") if to == "lerobot" else ("Load its files",)
    result = "Partly usable: some episodes were left out." if left_out else "Usable: all episodes were exported."
    out.print(Verdict(result, f"{count}.", *advice, tone="bad" if left_out else "good"))


@command(data, "info")
def info(
    path: Path,  # A store, or a data set of another format.
    *,
    episode: Count | None = None,  # Show one episode of a store, with its label history.
    follow_links: FollowLinks = False,
) -> None:
    """Show what a store or a data set contains."""
    from plaudit.data.store import Store, is_store
    from plaudit.report.tables import dataset_table, episode_table, store_table
    from plaudit.report.verdict import dataset_verdict, episode_verdict, store_verdict

    if episode is not None:
        opened = open_episodes(path)
        out.print(episode_verdict(opened, episode), *episode_table(opened, episode), sep="\n")
    elif not is_store(path):
        from plaudit.data.formats import ReadOptions
        from plaudit.data.formats.decoder import open_in_worker

        with open_in_worker(path, ReadOptions(follow_links=follow_links)) as dataset:
            out.print(dataset_verdict(dataset), dataset_table(dataset), sep="\n")
            for sentence in dataset.problems:
                tell("note", f"it cannot be imported as it is: {sentence}")
    else:
        opened = Store.open(path)
        out.print(store_verdict(opened), *store_table(opened), sep="\n")


@command(data, "repack")
def repack_(
    store: StoreArgument,
    target: Annotated[Path, Option(metavar="NEW", help="A new folder.")],
    *,
    images: Annotated[str, Option(metavar="CODEC", help=IMAGES_HELP)],
) -> None:
    """Copy a store and store its frames in another way.

    Episodes keep their ids and labels. The same command resumes an interrupted copy. The old store is not changed.
    """
    from plaudit.data.transfer import repack
    from plaudit.report.tables import stored_size
    from plaudit.report.verdict import Verdict, quoted

    try:
        copy = repack(episodes_folder(store), target, images, progress("copying"))
    except KeyboardInterrupt:
        stop(f"interrupted; {target} was not written, run the same command to resume")
    why = f"{format_count(len(copy), 'episode')} copied to {target}: {stored_size(copy.nbytes, copy.raw_nbytes)}."
    following = "Check it before you delete the old store", f"plaudit data check {quoted(target)}"
    out.print(Verdict("Usable: all episodes were copied.", why, *following, tone="good"))


@command(data, "check")
def check(
    store: StoreArgument,
    *,
    repair: bool = False,  # Repair what can be repaired, and report it.
    empty_quarantine: bool = False,  # Delete quarantined bytes, and report them.
) -> None:
    """Verify every checksum; repair with --repair.

    Without it nothing is changed, and the store may be in use.
    """
    from plaudit.data import check as checks
    from plaudit.report.verdict import Verdict, quoted

    if not (store / "journal").is_file():  # a damaged store is a store too
        store = episodes_folder(store)
    if empty_quarantine:
        tell("deleted", *checks.empty_quarantine(store))
    try:
        report = checks.check(store, repair=repair, progress=progress("checking"))
    except KeyboardInterrupt:
        stop("interrupted")
    tell("set aside", *report.aside)
    tell("note", *report.unexplained)
    tell("repaired", *report.repaired)
    tell("problem", *report.problems)
    if not report.ok:
        why = f"{format_count(len(report.problems), 'problem')}, the first: {report.problems[0]}"
        following = "Repair what can be repaired", f"plaudit data check {quoted(store)} --repair"
        if repair:
            following = "Show what remains", f"plaudit data info {quoted(store)}"
        out.print(Verdict(f"{store} is damaged.", why, *following))
        raise typer.Exit(1)
    size = f"{format_count(report.episodes, 'episode')}, {report.nbytes:,} bytes, "
    size += f"{format_count(report.labels, 'label version')}, {format_count(report.lines, 'line')}"
    info = f"plaudit data info {quoted(store)}"
    out.print(Verdict(f"{store} is intact.", f"All checksums match: {size}.", "Show its contents", info, "good"))


@command(data, "sheet")
def sheet(
    store: StoreArgument,
    episode: Count,  # The episode's id.
    *,
    output: Path | None = None,  # The PNG file to write; episode_N.png when not given.
    frames: Annotated[int, Option(min=2)] = 24,  # Number of frames to show.
    columns: Positive = 8,  # Frames in a row.
    version: Count | None = None,  # Version of the labels; the one that counts when not given.
) -> None:
    """Draw a contact sheet of an episode, with its labels."""
    from plaudit.report.verdict import Verdict, describe_outcome, quoted
    from plaudit.report.video import contact_sheet, save_image

    opened = open_episodes(store)
    content = opened.episode(episode)
    labels = opened.ledger.labels(episode) if version is None else opened.ledger.version(episode, version).labels()
    title = f"Episode {episode}" + (f": {content.task}" if content.task else "")
    path = output or Path(f"episode_{episode}.png")
    save_image(contact_sheet(content, labels, title=title, frames=frames, columns=columns), path)
    why = f"Its label: {describe_outcome(content, labels)}."
    following = "Look at it in the browser, with the scores of all judges", f"plaudit serve {quoted(opened.folder)}"
    out.print(Verdict(f"{path} shows episode {episode}.", why, *following, tone="good"))


@command(data, "view")
def view(
    store: StoreArgument,
    episode: Count,  # The episode's id.
    *,
    rerun: bool = False,  # Open the viewer of Rerun.
    save: Annotated[Path | None, Option(metavar="FILE.rrd")] = None,  # Write a file of Rerun.
) -> None:
    """Show an episode with Rerun: cameras, states, actions, rewards, and the scores and labels of each judge."""
    from plaudit.report.verdict import Verdict, quoted
    from plaudit.rollout.rerun import save_episode, show_episode

    if rerun == (save is not None):
        raise DataError("add --rerun to open the viewer, or --save FILE.rrd to write a file; plaudit serve shows pages")
    if save is None:
        show_episode(open_episodes(store), episode, progress=progress("sending"))
    else:
        save_episode(open_episodes(store), episode, save, progress("writing"))
        why = f"The file has {save.stat().st_size:,} bytes."
        following = "Open it", f"rerun {quoted(save)}"
        out.print(Verdict(f"{save} shows episode {episode}.", why, *following, tone="good"))


@command(data, "stats")
def stats(
    store: StoreArgument,
    *,
    output: Path = Path("stats.json"),  # The JSON file to write.
    # Scale actions to [-1, 1] by their range, as SAC and Q-chunking need.
    by_range: Annotated[bool, Option("--range")] = False,
) -> None:
    """Compute normalization statistics of states and actions."""
    from plaudit.data.normalize import Normalizer
    from plaudit.report.verdict import Verdict, quoted

    opened = open_episodes(store)
    normalizer = Normalizer.from_store(opened, by_range=by_range)
    normalizer.save(output)
    sizes = ", ".join(f"{name} [{len(one.mean)}]" for name, one in normalizer.stats.items())
    why = f"They are of {format_count(len(opened), 'episode')} in {opened.folder}."
    following = "Use them in a run", f"plaudit online --config CONFIG policy.normalizer={quoted(output)}"
    out.print(Verdict(f"Usable: {output} has the statistics of {sizes}.", why, *following, tone="good"))


@command(data, "order")
def order_(
    store: StoreArgument,
    # Sources, those that count most first, + between equals, like human+cutoff,simulator; or newest, or default.
    order: Annotated[str | None, Option(metavar="[ORDER]")] = None,
) -> None:
    """Show or set whose labels count if several judges have labeled an episode.

    Sources that are not named come last. Among equals the newest label counts. No label is changed or lost.
    """
    from plaudit.data.settings import LabelOrder, parse_order, unknown_sources
    from plaudit.data.store import Store
    from plaudit.report.verdict import Verdict, quoted, sentence_case

    tiers = None if order is None else parse_order(order)
    store = episodes_folder(store)
    if tiers is not None:
        with Store.open(store, write=True) as opened:
            opened.set_label_order(tiers)
    ledger = Store.open(store).ledger
    labeled = sorted({version.source for version in ledger.since(0)})
    for name in [] if tiers is None else unknown_sources(LabelOrder(tiers), labeled):
        tell("note", f"no label of {store} is by '{name}'; it has labels by {', '.join(labeled) or 'no one'}")
    result = sentence_case(f"{ledger.order.describe()} ({ledger.order})")
    why = f"{store} has labels by {', '.join(labeled) or 'no one'}; no label is changed by the order."
    following = "Show the labels that count", f"plaudit data info {quoted(store)}"
    out.print(Verdict(result, why, *following, tone="good"))


def chosen_ids(store: Any, text: str | None) -> list[int]:
    """Episode ids from '0,3,7-9'."""
    from plaudit.data.cutoffs import parse_range

    if text is None:
        return store.ids
    ids = sorted(store.ids)
    chosen: list[int] = []
    for part in text.split(","):
        wanted = parse_range(part)
        if wanted is None:
            raise DataError(f"--episodes takes ids like '0,3,7-9', not '{text[:60]}'")
        # A range may be far longer than the store, so only its ends are looked up.
        present = ids[bisect_left(ids, wanted.start) : bisect_left(ids, wanted.stop)]
        if len(present) < len(wanted):
            store.entry(next(i for i, id in zip_longest(wanted, present) if i != id))  # raises for the first gap
        chosen += present
    return chosen


@command(data, "label")
def label(
    store: StoreArgument,
    # A file {episode: first success frame, [[first, last], [first, null, "unknown"], ...] or null}, or .parquet.
    cutoffs: Path | None = None,
    *,
    signal: str | None = None,  # With a .parquet file: the signal that shows success; next.success if not given.
    # With --signal: the value from which on it shows success.
    threshold: Annotated[float | None, Option(min=-1e9, max=1e9)] = None,
    # Whether the file uses the store's ids or the episode numbers of its source.
    by: Literal["id", "source"] | None = None,
    # Label of the frames after the last range of an episode; unknown frames are not used.
    after: Literal["failure", "unknown"] = "failure",
    # Restore an old version of an episode's labels.
    restore: Annotated[str | None, Option(metavar="EPISODE:VERSION")] = None,
    note: str = "",  # A note, kept with the labels.
    # Write a copy of the LeRobot data set with the labels into this new folder.
    to_lerobot: Annotated[Path | None, Option(metavar="OUT")] = None,
    source: Path | None = None,  # With --to-lerobot: the data set, when it is not where it was imported from.
    # With --to-lerobot or a .parquet file: whether next.reward is about the next frame or the row's own.
    reward_frame: Literal["next", "same"] = "next",
    hard_links: bool = False,  # With --to-lerobot: link videos instead of copying them.
    follow_links: FollowLinks = False,
) -> None:
    """Label episodes from a file with the first success frame of each. Labels are versioned; none is lost.

    A .parquet file has LeRobot's frame signals: next.success, or a signal and its threshold, gives the labels.

    With --to-lerobot, write next.reward, next.done and next.success into a copy of a LeRobot data set. Its videos and
    other columns stay the same.
    """
    from plaudit.data import lerobot_labels
    from plaudit.data.cutoffs import label_store, read_cutoffs
    from plaudit.data.lerobot_labels import label_by_signals, read_frame_signals
    from plaudit.data.store import is_store
    from plaudit.report.verdict import Verdict

    if to_lerobot is None and (source is not None or hard_links):
        raise DataError("--source and --hard-links need --to-lerobot OUT, the folder of the copy")
    signals = cutoffs is not None and cutoffs.suffix == ".parquet"
    if (signal is not None or threshold is not None) and not signals:
        raise DataError("--signal and --threshold are about a .parquet file of frame signals; name one")
    if threshold is not None and signal is None:
        raise DataError("--threshold needs --signal, the name of the signal")
    if signals and (after != "failure" or (to_lerobot is not None and not is_store(store))):
        raise DataError("a .parquet file labels a store: import the data set first, and leave out --after")
    if to_lerobot is not None and not is_store(store):
        if by or note or restore or source:
            raise DataError(f"{store} is not a store; leave out --by, --note, --restore and --source")
        if cutoffs is None:
            raise DataError(f"{store} is not a store; name a label file too, like {{0: 53, 1: null}}, or import it")
        labels = lerobot_labels.labels_of_file(store, read_cutoffs(cutoffs), after=after, follow_links=follow_links)
        source = store
    else:
        opened = open_episodes(store)
        if to_lerobot is not None:
            source = source or lerobot_labels.source_of_store(opened)
            lerobot_labels.check_copy(source, to_lerobot, store)  # before anything is labeled
        if restore is not None:
            _report(_restore(opened, restore), final=to_lerobot is None)
        elif cutoffs is not None and signals:
            file = read_frame_signals(cutoffs)
            how: dict[str, Any] = {"by": by, "reward_frame": reward_frame, "note": note}
            ids = label_by_signals(opened, file, signal, threshold, **how)
            _report(_labeled(opened, ids), final=to_lerobot is None)
        elif cutoffs is not None:
            ids = label_store(opened, read_cutoffs(cutoffs), by=by, note=note, after=after)
            _report(_labeled(opened, ids), final=to_lerobot is None)
        elif to_lerobot is None:
            raise DataError("name a label file like {0: 53, 1: null}, or --restore an old version")
        labels = {} if source is None else lerobot_labels.labels_of_store(opened, source)
    if to_lerobot is None or source is None:
        return
    options: dict[str, Any] = {"hard_links": hard_links, "follow_links": follow_links, "progress": progress("copying")}
    try:
        report = lerobot_labels.write_labeled_copy(source, to_lerobot, labels, reward_frame=reward_frame, **options)
    except KeyboardInterrupt:
        stop(f"interrupted; {to_lerobot} was not written")
    tell("note", *report.notes)
    if report.unlabeled:
        tell("warning", f"{report.unlabeled} rows have no label: their next.reward is NaN, which Plaudit skips")
    about = "the row's own frame" if reward_frame == "same" else "the frame after it"
    why = (
        f"{to_lerobot} is {source} with labels of {format_count(report.episodes, 'episode')}: "
        f"{format_count(report.success, 'row')} of success, {report.failure} of failure; "
        f"next.reward of a row is about {about} (--reward-frame)."
    )
    result = "Partly usable: some rows have no label." if report.unlabeled else "Usable: every row has a label."
    following = "Load it by its folder", f'LeRobotDataset("local/{to_lerobot.name}", root="{to_lerobot}")'
    out.print(Verdict(result, why, *following, tone="open" if report.unlabeled else "good"))


def _report(verdict: "Verdict", *, final: bool) -> None:
    """Print what was labeled: in three lines, or in one before something else is done."""
    out.print(verdict if final else verdict.why)


def _restore(store: "Store", version_name: str) -> "Verdict":
    from plaudit.report.verdict import Verdict, quoted

    episode_id, _, version = version_name.partition(":")
    if not (is_count(episode_id) and is_count(version)):
        raise DataError(f"--restore takes EPISODE:VERSION, like 3:1, not '{version_name}'")
    new = store.ledger.restore(int(episode_id), int(version))
    why = f"Episode {episode_id}: version {version} counts again, as version {new}."
    following = "Show all versions", f"plaudit data info {quoted(store.folder)} --episode {episode_id}"
    return Verdict("Usable: the old label is restored.", why, *following, tone="good")


def _labeled(store: "Store", ids: Sequence[int]) -> "Verdict":
    import numpy as np

    from plaudit.report.verdict import Verdict, quoted

    targets = [store.ledger.history(i)[-1].labels().targets[store.episode(i).observed] for i in ids]
    frames = np.concatenate([np.zeros(0), *targets])
    yes, no = int((frames == 1).sum()), int((frames == 0).sum())
    unknown = len(frames) - yes - no
    left_out = f", {unknown} unknown and left out" if unknown else ""
    total = f"{yes} success frames, {no} failure frames ({yes + no} total){left_out}"
    why = f"{format_count(len(ids), 'episode')} labeled: {total}."
    following = "Train a judge on the labels", f"plaudit train-reward {quoted(store.folder)}"
    return Verdict(f"Usable: {format_count(len(ids), 'episode')} labeled.", why, *following, tone="good")

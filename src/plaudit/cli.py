"""The command line: one command a verb. Each parses, builds, runs and says in a few lines what happened."""

import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from plaudit import __version__
from plaudit.errors import DataError, PlauditError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data", help="Bring episodes in and out, look at them, label them, check them.")
env = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(env, name="env", help="Look at simulated tasks, time them, record scripted episodes.")

# No markup: paths and messages of files are shown as they are, brackets and all.
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(highlight=False, markup=False, soft_wrap=True, stderr=True)

StoreArgument = Annotated[Path, typer.Argument(help="An episode store.", metavar="STORE", show_default=False)]
EnvArgument = Annotated[str, typer.Argument(help="A name that 'plaudit env list' shows.", show_default=False)]
CameraOption = Annotated[list[str] | None, typer.Option(help="Which camera; may be given several times.")]
SizeOption = Annotated[str, typer.Option(help="Of the images: an edge, like 128, or height x width, like 96x128.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A further setting of the environment, like id=Pusher-v5."),
]
EpisodesOption = Annotated[
    str | None, typer.Option("--episodes", help="Which, by id: '0,3,7-9'. All of them when not given.")
]


def main() -> None:
    """What the `plaudit` command runs."""
    try:
        app()
    except PlauditError as error:
        for sentence in str(error).splitlines():
            _tell("error", sentence)
        sys.exit(1)
    except OSError as error:  # a folder we may not write to, a disk that went away
        _tell("error", f"{error.filename}: {error.strerror}")
        sys.exit(1)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Train robot policies from what the camera sees."""
    if version:
        out.print(f"plaudit {__version__}")
        raise typer.Exit


@data.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A data set of another layout; it is only read.", show_default=False)],
    store: Annotated[Path, typer.Argument(help="The store to add to; made if it does not exist.", show_default=False)],
    reward_frame: Annotated[
        Literal["next", "same"] | None,
        typer.Option(help="LeRobot: whether next.reward judges the next frame (the default) or its own row's."),
    ] = None,
    task: Annotated[str, typer.Option(help="The instruction, for layouts that keep none.")] = "",
    fps: Annotated[float, typer.Option(help="Frames per second, for layouts that keep none.")] = 0.0,
) -> None:
    """Copy a data set into a store.

    LeRobot v2 and v3, folders of .npy and of .pkl are told apart by looking at them.

    An interrupted import goes on where it stopped when run again. A broken episode is named and left out.
    """
    from plaudit.data.formats import ReadOptions
    from plaudit.data.transfer import import_dataset

    try:
        report = import_dataset(source, store, ReadOptions(reward_frame, task, fps), _progress("importing"))
    except KeyboardInterrupt:
        _stop("interrupted; what is in the store stays, run the same command to go on")
    for sentence in report.failed:
        _tell("warning", sentence)
    if report.ignored:
        _tell("note", f"features with no place in an episode, not taken: {', '.join(report.ignored)}")
    here = f", {report.already_here} were here already" if report.already_here else ""
    lost = f", {len(report.failed)} left out (see above)" if report.failed else ""
    out.print(f"{len(report.ids)} episodes imported into {store}, {report.labelled} with labels{here}{lost}")
    if report.failed:
        err.print("put those right at their source and run the same command again to add them")
        raise typer.Exit(1)


@data.command("export")
def export(
    store: StoreArgument,
    target: Annotated[Path, typer.Argument(help="A folder that does not exist yet.", show_default=False)],
    to: Annotated[Literal["lerobot", "npy", "pkl"], typer.Option("--to", help="The layout to write.")] = "lerobot",
    episodes: EpisodesOption = None,
    camera: Annotated[list[str] | None, typer.Option(help="Only this camera; may be given several times.")] = None,
    images: Annotated[bool, typer.Option("--images", help="LeRobot: exact PNG images instead of video.")] = False,
    codec: Annotated[Literal["av1", "h264", "hevc"], typer.Option(help="LeRobot: how videos are encoded.")] = "av1",
    quality: Annotated[int | None, typer.Option(help="Constant rate factor of the codec; lower is better.")] = None,
    reward_frame: Annotated[
        Literal["next", "same"], typer.Option(help="LeRobot: which frame a row's next.reward judges.")
    ] = "next",
    fps: Annotated[float, typer.Option(help="For episodes that do not know theirs.")] = 0.0,
) -> None:
    """Write episodes as another layout.

    With their newest labels, as LeRobot v3.0, .npy or .pkl, into a new folder and nowhere else.
    """
    from plaudit.data.formats import WriteOptions
    from plaudit.data.store import Store
    from plaudit.data.transfer import export_dataset

    opened = Store.open(store)
    options = WriteOptions(camera or (), not images, codec, quality, reward_frame, fps)
    try:
        left_out = export_dataset(opened, target, to, options, _choose(opened, episodes), _progress("exporting"))
    except KeyboardInterrupt:
        _stop(f"interrupted; {target} was not made")
    for sentence in left_out:
        _tell("warning", sentence)
    out.print(f"{len(_choose(opened, episodes)) - len(left_out)} episodes exported to {target} as {to}")


@data.command("info")
def info(
    path: Annotated[Path, typer.Argument(help="A store, or a data set of another layout.", show_default=False)],
    episode: Annotated[int | None, typer.Option(help="One episode of a store, with its label history.")] = None,
) -> None:
    """Say what a folder holds."""
    from plaudit.data.formats import open_dataset
    from plaudit.data.store import Store, is_store
    from plaudit.report.tables import dataset_table, episode_table, store_table

    if not is_store(path):
        out.print(dataset_table(open_dataset(path)))
    elif episode is not None:
        out.print(*episode_table(Store.open(path), episode), sep="\n")
    else:
        out.print(*store_table(Store.open(path)), sep="\n")


@data.command("check")
def check(
    store: StoreArgument,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be, and say what was.")] = False,
) -> None:
    """Verify every checksum; repair with --repair.

    Changes nothing without it.
    """
    from plaudit.data.check import check as run_check

    try:
        report = run_check(store, repair=repair, track=_progress("checking"))
    except KeyboardInterrupt:
        _stop("interrupted")
    for sentence in report.repaired:
        _tell("repaired", sentence)
    for sentence in report.problems:
        _tell("problem", sentence)
    if not report.ok:
        hint = "" if repair else f"; 'plaudit data check {store} --repair' puts right what can be"
        err.print(f"{len(report.problems)} problems{hint}")
        raise typer.Exit(1)
    out.print(f"{store} is sound: {report.episodes} episodes, {report.nbytes:,} bytes, {report.labels} label versions")


@data.command("label")
def label(
    store: StoreArgument,
    cutoffs: Annotated[
        Path | None, typer.Argument(help="A file {episode: first success frame, [[first, last], ...] or null}.")
    ] = None,
    by: Annotated[
        Literal["id", "source"] | None,
        typer.Option(help="Whether the file counts by the store's ids or by its source's episode numbers."),
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option(metavar="EPISODE:VERSION", help="Make an old version of an episode's labels count again."),
    ] = None,
    note: Annotated[str, typer.Option(help="Why, in words; kept with the labels.")] = "",
) -> None:
    """Label episodes by the frame from which they show success. Every labelling is a new version; none is lost."""
    from plaudit.data.cutoffs import label_store, read_cutoffs
    from plaudit.data.store import Store

    opened = Store.open(store)
    if restore is not None:
        episode_id, _, version = restore.partition(":")
        if not (episode_id.isdigit() and version.isdigit()):
            raise DataError(f"--restore takes EPISODE:VERSION, like 3:1, not '{restore}'")
        new = opened.ledger.restore(int(episode_id), int(version))
        out.print(f"episode {episode_id}: version {version} counts again, as version {new}")
        return
    if cutoffs is None:
        raise DataError("name a label file like {0: 53, 1: null}, or --restore an old version")
    ids = label_store(opened, read_cutoffs(cutoffs), by=by, note=note)
    yes, no = 0, 0
    for episode_id in ids:
        labels = opened.ledger.labels(episode_id)
        assert labels is not None
        frames = labels.frames[opened.episode(episode_id).recorded]
        yes, no = yes + int((frames == 1).sum()), no + int((frames == 0).sum())
    out.print(f"{len(ids)} episodes labelled: {yes} success frames, {no} failure frames ({yes + no} total)")


@data.command("sheet")
def sheet(
    store: StoreArgument,
    episode: Annotated[int, typer.Argument(help="The episode's id.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The PNG; episode_N.png when not given.")
    ] = None,
    frames: Annotated[int, typer.Option(min=2, help="How many moments to show.")] = 24,
    columns: Annotated[int, typer.Option(min=1, help="How many in a row.")] = 8,
    version: Annotated[int | None, typer.Option(help="Of the labels; the newest when not given.")] = None,
) -> None:
    """Draw an episode on one picture, with the verdicts."""
    from plaudit.data.store import Store
    from plaudit.report.sheet import draw_sheet, save_sheet

    opened = Store.open(store)
    ledger = opened.ledger
    found = opened.episode(episode)
    labels = ledger.labels(episode) if version is None else ledger.version(episode, version).labels()
    title = f"Episode {episode}" + (f": {found.task}" if found.task else "")
    path = output or Path(f"episode_{episode}.png")
    save_sheet(draw_sheet(found, labels, title=title, frames=frames, columns=columns), path)
    out.print(f"{path} shows episode {episode}")


@data.command("stats")
def stats(
    store: StoreArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path("stats.json"),
) -> None:
    """Compute what a policy normalises with.

    Mean and standard deviation of the states and actions.
    """
    from plaudit.data.normalize import Normalizer
    from plaudit.data.store import Store

    normalizer = Normalizer.from_store(Store.open(store))
    normalizer.save(output)
    out.print(
        f"{output} has the statistics of {', '.join(f'{k} [{len(s.mean)}]' for k, s in normalizer.stats.items())}"
    )


@env.command("list")
def env_list() -> None:
    """Say what environments there are.

    States are counted with everything the simulation knows / with what the arm itself measures.
    """
    from plaudit.envs.catalog import cards
    from plaudit.report.tables import env_table

    out.print(*env_table(cards()), sep="\n")


@env.command("view")
def env_view(
    name: EnvArgument,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .png or an .mp4; NAME.png when not given.")
    ] = None,
    outcome: Annotated[str, typer.Option(help="How the scripted expert is to end: success, miss, ...")] = "success",
    noise: Annotated[float, typer.Option(help="On the expert's actions, of which 1 is the most.")] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Which episode.")] = 0,
    camera: CameraOption = None,
    size: SizeOption = "128",
    randomize: Annotated[bool, typer.Option("--randomize", help="Colours, light and cameras by the seed.")] = False,
    settings: SetOption = None,
) -> None:
    """Show one episode, as a contact sheet or a video.

    A scripted expert acts in the built-in tasks, chance in the others.
    """
    from plaudit.report.clip import save_clip
    from plaudit.report.sheet import draw_sheet, save_sheet
    from plaudit.rollout.demos import play

    path = output or Path(f"{name}.png")
    if path.suffix not in (".png", ".mp4"):
        raise DataError(f"{path} is neither a .png nor an .mp4; name one of these")
    config = _env_config(name, "both", camera, size, [*(["randomize=true"] if randomize else []), *(settings or [])])
    episode, labels = play(config, seed=seed, outcome=outcome, noise=noise)
    if path.suffix == ".mp4":
        save_clip(episode, path)
    else:
        save_sheet(draw_sheet(episode, labels, title=f"{name}, seed {seed}: {episode.task}"), path)
    how = "succeeds" if labels.succeeded else "does not succeed"
    out.print(f"{path} shows {episode.steps} steps of {name}; the episode {how}")


@env.command("bench")
def env_bench(
    name: EnvArgument,
    num_envs: Annotated[int, typer.Option(min=1, help="Copies side by side.")] = 16,
    threads: Annotated[int | None, typer.Option(min=0, help="Of a built-in task; 0 for one a core.")] = None,
    camera: CameraOption = None,
    size: SizeOption = "64",
    seconds: Annotated[float, typer.Option(min=0.1, help="To measure for, each time.")] = 3.0,
    settings: SetOption = None,
) -> None:
    """Time it on this machine, without images and with them."""
    from plaudit.envs.bench import measure
    from plaudit.report.tables import speed_table

    more = [*([f"threads={threads}"] if threads is not None else []), *(settings or [])]
    kinds = {"state": "state", f"state and images of {size}": "both"}
    speeds = {
        observed: measure(_env_config(name, obs, camera, size, more), num_envs, seconds)
        for observed, obs in _progress("measuring")(list(kinds.items()))
    }
    out.print(speed_table(f"{name}, {num_envs} side by side", speeds))


@env.command("record")
def env_record(
    store: Annotated[Path, typer.Argument(help="The store to add to; made if it does not exist.", show_default=False)],
    name: Annotated[str, typer.Option("--env", help="A built-in task.")] = "lift",
    episodes: Annotated[int, typer.Option(min=1, help="How many to keep.")] = 20,
    outcomes: Annotated[str, typer.Option(help="How they are to end, in turn: success,miss,...")] = "success",
    noise: Annotated[float, typer.Option(help="On the actions, of which 1 is the most.")] = 0.2,
    obs: Annotated[Literal["state", "pixels", "both"], typer.Option(help="What to record.")] = "both",
    camera: CameraOption = None,
    size: SizeOption = "64",
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode; the others count up.")] = 0,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Also those that ended otherwise than told.")] = False,
    settings: SetOption = None,
) -> None:
    """Record scripted episodes with the simulator's labels.

    Each is in the store as soon as it is over; Ctrl-C keeps those that are.
    """
    from plaudit.data.store import Store, is_store
    from plaudit.rollout.demos import record_demos

    config = _env_config(name, obs, camera, size, settings)
    with Store.open(store, write=True) if is_store(store) else Store.create(store) as opened:
        before = len(opened)
        try:
            report = record_demos(
                config,
                opened,
                episodes=episodes,
                outcomes=[outcome.strip() for outcome in outcomes.split(",")],
                noise=noise,
                seed=seed,
                keep_all=keep_all,
                track=_progress("recording"),
            )
        except KeyboardInterrupt:
            _stop(f"interrupted; {len(opened) - before} episodes are in {store} and stay")
    out.print(f"{len(report.ids)} episodes recorded into {store}: {_count(report.kept)}")
    if report.left_out:
        _tell("note", f"left out because they ended otherwise than told: {_count(report.left_out)}")
    if report.missing:
        _tell("warning", f"{report.missing} episodes are missing after many tries; try less noise than {noise:g}")
        raise typer.Exit(1)


@app.command("train")
def train_(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="learner=sac env=lift scripted_demos=20 learner.lr=1e-3 ..."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file to start from; see examples/configs.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to go on with.", metavar="RUN")] = None,
    folder: Annotated[Path, typer.Option(help="Where runs are put.")] = Path("runs"),
) -> None:
    """Train a policy in a simulation.

    Writes a run folder with metrics, checkpoints, the policy's weights and a report. Ctrl-C stops after the round at
    hand, and --resume goes on as if it had not.
    """
    from plaudit.report.run import write_report
    from plaudit.train.config import load_train_config
    from plaudit.train.folder import RunFolder
    from plaudit.train.loop import Progress as Told
    from plaudit.train.loop import train

    if resume is not None and (overrides or config):
        raise DataError("--resume goes on with a run as it was configured; leave out the other arguments")
    if resume is not None:
        run = RunFolder.reopen(resume)
    else:
        asked = load_train_config(config, overrides or [])
        name = asked.name or f"{asked.env.type}_{asked.learner.type}_{asked.seed}"
        run = RunFolder.create(folder / name, asked)
    asked_to_stop: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked_to_stop.append(number))
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
            task = bar.add_task("first round", total=run.config.steps)

            def watch(now: Told) -> bool:
                held = "" if now.evaluated is None else f", {now.evaluated:.0%} on seeds held back"
                bar.update(task, completed=now.step, description=f"success {now.success:.0%} in training{held}")
                return not asked_to_stop

            end = train(run, watch, lambda what: lambda items: items)
    finally:
        signal.signal(signal.SIGINT, before)
    write_report(run.path)
    held = "not evaluated yet" if end.evaluated is None else f"{end.evaluated:.0%} success on seeds held back"
    out.print(f"{run.path}: {end.step:,} steps, {end.episodes:,} episodes, {held}; see {run.path / 'report.html'}")
    if asked_to_stop:
        _stop(f"stopped; go on with: plaudit train --resume {run.path}")


@app.command("demo")
def demo(
    folder: Annotated[Path, typer.Option(help="Where to put everything; it must not exist.")] = Path("runs/demo"),
    episodes: Annotated[int, typer.Option(min=3, help="How many to record.")] = 12,
) -> None:
    """Run the main job in small.

    Records scripted episodes, carries them through LeRobot's format, checks them and draws them.
    """
    from plaudit.demo import run_demo

    run_demo(folder, episodes, out, _progress)


def _progress(what: str) -> Any:
    """Goes through a sequence with a bar and an estimate, on a terminal; silent elsewhere. Ctrl-C ends it.

    The C code that decodes video and tables swallows a KeyboardInterrupt now and then, so the request is also kept and
    looked at before each item.
    """

    def track(items: Sequence[Any]) -> Iterable[Any]:
        asked: list[int] = []

        def interrupt(number: int, _: Any) -> None:
            asked.append(number)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        try:
            with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
                for item in progress.track(items, description=what):
                    if asked:
                        raise KeyboardInterrupt
                    yield item
        finally:
            signal.signal(signal.SIGINT, before)

    return track


def _env_config(name: str, obs: str, cameras: list[str] | None, size: str, settings: list[str] | None) -> Any:
    """An environment's config from what the `env` commands are given."""
    from plaudit.envs.catalog import env_config

    edges = size.lower().split("x")
    if not 1 <= len(edges) <= 2 or not all(edge.isdigit() for edge in edges):
        raise DataError(f"--size takes an edge like 128, or height x width like 96x128, not '{size}'")
    given = [f"obs={obs}", f"image_size=[{edges[0]},{edges[-1]}]"]
    given += [f"cameras=[{','.join(cameras)}]"] if cameras else []
    return env_config(name, [*given, *(settings or [])])


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _choose(store: Any, text: str | None) -> list[int]:
    """Episode ids from '0,3,7-9'."""
    if text is None:
        return store.ids
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or (last and not last.strip().isdigit()):
            raise DataError(f"--episodes takes ids like '0,3,7-9', not '{text}'")
        chosen += range(int(first), int(last or first) + 1)
    for episode_id in chosen:
        store.place(episode_id)
    return chosen


def _stop(sentence: str) -> NoReturn:
    err.print(sentence)
    raise typer.Exit(130)


def _tell(kind: str, sentence: str) -> None:
    styles = {"error": "bold red", "problem": "bold red", "repaired": "green"}
    err.print(Text.assemble((f"{kind}:", styles.get(kind, "yellow")), f" {sentence}"))


if __name__ == "__main__":
    main()

"""`plaudit env` and `plaudit collect`: simulated tasks, and episodes recorded in them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from plaudit.cli.common import open_or_create, out, progress, stop, tell
from plaudit.cli.options import Count, Option, Positive, Share, StoreImages, app, command, group, is_count
from plaudit.cli.train import train_
from plaudit.errors import ConfigError, DataError, format_count

if TYPE_CHECKING:
    from plaudit.rollout.collector import Outcome

env = group("env", "List, view and benchmark simulated tasks; record scripted episodes.")

LARGEST = 4096  # pixels of an edge
Env = Annotated[str, Option(help="An environment of 'plaudit env list'.")]
Task = Annotated[str, Option("--env", help="A built-in task: lift, pick_place or push.")]
Cameras = Annotated[list[str] | None, Option(help="Camera; repeatable.")]
SIZE = "Image size: an edge, like 128, or height x width, like 96x128."
Size = Annotated[str, Option(help=SIZE)]
Randomize = Annotated[bool, Option(help="Randomize colors, light and cameras by the seed.")]
EnvSettings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="A key of the environment's config, like id=Pusher-v5."),
]


@command(env, "list")
def env_list() -> None:
    """List the environments.

    The state has two sizes: the full simulator state / the arm's own measurements.
    """
    from plaudit.envs.commands import list_envs
    from plaudit.report.tables import env_table

    out.print(*env_table(list_envs()), sep="\n")


@command(env, "view")
def env_view(
    name: Env,
    *,
    output: Path | None = None,  # The .png or .mp4 to write; NAME.png when not given.
    outcome: str = "success",  # Outcome of the scripted expert: success, miss, ...
    noise: Share = 0.05,  # Noise on the expert's actions.
    seed: Count = 0,  # Seed of the episode.
    camera: Cameras = None,
    size: Size = "128",
    randomize: Randomize = False,
    settings: EnvSettings = None,
) -> None:
    """Show one episode, as a contact sheet or a video.

    A scripted expert acts in the built-in tasks, a random policy in the others.
    """
    from plaudit.report.verdict import Verdict, quoted
    from plaudit.report.video import contact_sheet, save_episode_video, save_image
    from plaudit.rollout.scripted import play_episode

    path = output or Path(f"{name}.png")
    if path.suffix not in (".png", ".mp4"):
        raise DataError(f"{path} is neither a .png nor an .mp4; name one of these")
    config = env_config_of(name, "both", camera, size, settings, randomize=randomize)
    episode, labels = play_episode(config, seed=seed, outcome=outcome, noise=noise)
    if path.suffix == ".mp4":
        save_episode_video(episode, path)
    else:
        save_image(contact_sheet(episode, labels, title=f"{name}, seed {seed}: {episode.task}"), path)
    how = "succeeds" if labels.success_once else "does not succeed"
    following = "Measure its speed", f"plaudit env bench {quoted(name)}"
    result = f"{path} shows {format_count(episode.steps, 'step')} of {name}."
    out.print(Verdict(result, f"The episode {how}.", *following, tone="good"))


@command(env, "bench")
def env_bench(
    name: Env,
    *,
    num_envs: Annotated[int, Option(min=1, max=16_384)] = 16,  # Number of environments.
    # Threads of a built-in task; 0 for one per core.
    threads: Annotated[int | None, Option(min=0, max=1000)] = None,
    camera: Cameras = None,
    size: Size = "64",
    seconds: Annotated[float, Option(min=0.1, max=86_400)] = 3.0,  # Duration of each measurement.
    settings: EnvSettings = None,
) -> None:
    """Measure the speed of an environment, with and without images."""
    from plaudit.envs.commands import measure_throughput
    from plaudit.report.tables import speed_table
    from plaudit.report.verdict import Verdict

    more = [*([f"num_threads={threads}"] if threads is not None else []), *(settings or [])]
    kinds = {"state": "state", f"state and images of {size}": "both"}
    speeds = {
        observed: measure_throughput(env_config_of(name, obs, camera, size, more), num_envs, seconds)
        for observed, obs in progress("measuring")(list(kinds.items()))
    }
    state, images = (speed.steps_per_s for speed in speeds.values())
    result = f"{images:,.0f} steps per second with images of {size}."
    why = f"{num_envs} environments of {name} run in parallel. Without images they make {state:,.0f} steps per second."
    train = f"plaudit train env={name} run.num_envs={num_envs}"
    out.print(Verdict(result, why, "Train a policy in it", train, tone="good"))
    out.print(speed_table(f"{name}, {num_envs} in parallel", speeds))


@command(env, "record")
def env_record(
    store: Path,  # The store to add to; created if it does not exist.
    *,
    name: Task = "lift",
    episodes: Positive = 20,  # Number of episodes to keep.
    outcomes: str = "success",  # Outcomes of the script, in turn, like success,miss.
    noise: Share = 0.2,  # Noise on the actions.
    obs: Literal["state", "pixels", "both"] = "both",  # Observations to record.
    camera: Cameras = None,
    size: Size = "64",
    seed: Count = 0,  # Seed of the first episode; the others count up.
    steps_after_success: Count = 0,  # Steps that an episode continues after its success.
    keep_all: bool = False,  # Keep episodes with another outcome too.
    store_images: StoreImages = None,
    settings: EnvSettings = None,
) -> None:
    """Record scripted episodes with the simulator's labels.

    Each episode is stored as soon as it ends; Ctrl-C keeps those recorded so far.
    """
    from plaudit.policies.scripted import check_script
    from plaudit.report.verdict import Verdict, quoted
    from plaudit.rollout.scripted import record_demos

    config = env_config_of(name, obs, camera, size, settings)
    kinds = [one.strip() for one in outcomes.split(",")]
    check_script(kinds, noise)  # a mistake is reported before a store is created
    options: dict[str, Any] = {"steps_after_success": steps_after_success, "progress": progress("recording")}
    with open_or_create(store, store_images) as opened:
        before = len(opened)
        try:
            report = record_demos(
                config, opened, episodes=episodes, outcomes=kinds, noise=noise, seed=seed, keep_all=keep_all, **options
            )
        except KeyboardInterrupt:
            stop(f"interrupted; {store} has {format_count(len(opened) - before, 'new episode')}")
    why = f"{format_count(len(report.ids), 'episode')} recorded into {store}: {_count(report.kept)}."
    following = "Train a judge on the simulator's labels", f"plaudit train-reward {quoted(store)}"
    if set(report.kept) <= {"success"}:
        following = "Train a policy on them", f"plaudit train-policy {quoted(store)}"
    result = "Partly usable: episodes are missing." if report.missing else "Usable: all episodes were recorded."
    out.print(Verdict(result, why, *following, tone="bad" if report.missing else "good"))
    if report.left_out:
        tell("note", f"skipped because they had another outcome: {_count(report.left_out)}")
    if report.missing:
        tell("warning", f"{report.missing} episodes are missing after many tries; try less noise than {noise:g}")
        raise typer.Exit(1)


def env_config_of(
    name: str, obs: str, cameras: list[str] | None, size: str, settings: list[str] | None, *, randomize: bool = False
) -> Any:
    """An environment's config from the arguments of a command."""
    from plaudit.envs.commands import env_config

    edges = size.lower().split("x")
    if not 1 <= len(edges) <= 2 or not all(is_count(edge) and 1 <= int(edge) <= LARGEST for edge in edges):
        raise DataError(
            f"a size is an edge like 128, or height x width like 96x128, of at most {LARGEST} pixels, not '{size}'"
        )
    given = [f"obs={obs}", f"image_size=[{edges[0]},{edges[-1]}]"]
    given += [f"cameras=[{','.join(cameras)}]"] if cameras else []
    given += ["randomize=true"] if randomize else []
    with keys_by_set():
        return env_config(name, [*given, *(settings or [])])


@contextmanager
def keys_by_set() -> Iterator[None]:
    """Errors about missing keys suggest --set."""
    try:
        yield
    except ConfigError as error:
        problems = [
            (key, f"{text}: add --set {'.'.join(map(str, key))}=..." if text.endswith("it has no default") else text)
            for key, text in error.problems
        ]
        raise ConfigError(problems) from None


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


@command(app, "collect", reads_config=True)
def collect_(
    context: typer.Context,
    store: Path | None = None,  # The store to add to; created if it does not exist.
    *,
    config: Path | None = None,  # A YAML file of a training run with a 'collect' block: train and collect.
    name: Task = "lift",
    # Number of successful episodes.
    target_success: Annotated[int, Option("--target-success", "--max-positive-trajectories", min=0)] = 60,
    # Number of failed episodes.
    target_failure: Annotated[int, Option("--target-failure", "--max-negative-trajectories", min=0)] = 120,
    outcomes: str = "success,off_center,miss,drop,near_goal,wrong_place",  # Outcomes of the script; they take turns.
    random_fraction: Share = 0.2,  # Fraction of the failures that are random walks.
    noise: Share = 0.2,  # Noise on the script's actions.
    steps_after_success: Count = 8,  # Steps that an episode continues after its success.
    camera: Cameras = None,
    size: Annotated[str, Option("--image-size", "--size", help=SIZE)] = "64",
    randomize: Randomize = False,
    seed: Count = 0,  # Seed of the first episode; a store with episodes continues its seeds.
    store_images: StoreImages = None,
    settings: EnvSettings = None,
) -> None:
    """Collect episodes with success labels.

    A script runs a built-in task until the store has enough successes and failures, counting those it already has.
    With --config, a policy trains as in 'plaudit train' and its episodes are kept. The same command resumes either.
    """
    if config is not None:
        from plaudit.training.config_file import load_training_config
        from plaudit.training.run_folder import RunFolder

        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        if given - {"allow_code", "allow_host"} != {"config"}:
            raise DataError("--config takes no other flags; to change a key: plaudit train --config FILE KEY=VALUE")
        wanted = load_training_config("train", config, [])
        if wanted.collect is None:
            raise DataError(f"{config} does not say where to collect; add a block: collect: {{store: data}}")
        run = Path("runs", wanted.run_name)
        again = (run / "config.yaml").is_file() and RunFolder.reopen(run).config.model_dump() == wanted.model_dump()
        train_([f"run.resume_dir={run}"] if again else [], config=config)
        return
    if store is None:
        raise DataError("name a store to add to, or a training run with --config")
    from plaudit.report.verdict import Verdict, quoted
    from plaudit.rollout.collector import EpisodeTargets
    from plaudit.rollout.scripted import check_targets, collect_scripted

    env = env_config_of(name, "both", camera, size, settings, randomize=randomize)
    kinds, targets = [one.strip() for one in outcomes.split(",")], EpisodeTargets(target_success, target_failure)
    check_targets(env, targets, kinds, noise, random_fraction)  # a mistake is reported before a store is created
    options: dict[str, Any] = {"random_fraction": random_fraction, "steps_after_success": steps_after_success}
    options |= {"outcomes": kinds, "noise": noise, "seed": seed, "progress": progress("collecting")}
    with open_or_create(store, store_images) as opened:
        before = len(opened)
        _check_cameras(opened, env)
        try:
            quota = collect_scripted(env, opened, targets, **options)
        except KeyboardInterrupt:
            added = format_count(len(opened) - before, "new episode")
            stop(f"interrupted; {store} has {added}; run the same command to resume")
        new = len(opened) - before
    kept = f"{format_count(quota.kept['success'], 'success')} and {format_count(quota.kept['failure'], 'failure')}"
    usable = quota.done and quota.kept["success"] > 0 and quota.kept["failure"] > 0  # a judge learns from both kinds
    result = "Enough to train a judge." if usable else "Not enough to train a judge."
    following = "Train a judge", f"plaudit train-reward {quoted(store)}"
    if not usable:
        following = "Look at the episodes, then collect with other settings", f"plaudit data info {quoted(store)}"
    out.print(Verdict(result, f"{store} has {kept}.", *following, tone="good" if usable else "bad"))
    out.print(f"{store} has {kept}, {new} of them new")
    if not quota.done:
        kind: Outcome = "success" if quota.missing("success") else "failure"
        tell(
            "warning",
            f"gave up after {new + quota.surplus.total()} attempts, of which {new} were kept; "
            f"{quota.missing(kind)} {kind} episodes are missing",
            f"almost no episode is a {kind} at --noise {noise:g}; try {'less' if kind == 'success' else 'more'} noise, "
            f"other --outcomes or a lower --target-{kind}",
        )
        raise typer.Exit(1)


def _check_cameras(store: Any, env: Any) -> None:
    """Refuse to add episodes with other cameras or sizes: no judge could learn from both."""
    if not store.ids:
        return
    sizes = {name: frames.shape[1:3] for name, frames in store.episode(store.ids[-1]).frames.items()}
    if sizes != dict.fromkeys(env.cameras, tuple(env.image_size)):
        cameras = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sorted(sizes.items()))
        raise DataError(
            f"the episodes in {store.folder} have the cameras {cameras or 'none'}; give the same with --camera and "
            "--image-size, or collect into another store"
        )

"""`plaudit env`: simulated tasks, looked at, timed, recorded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from plaudit.cli.common import finite, is_count, out, progress, stop, tell
from plaudit.errors import ConfigError, DataError

env = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

LARGEST = 4096  # pixels of an edge
EnvArgument = Annotated[str, typer.Argument(help="An environment of 'plaudit env list'.", show_default=False)]
CameraOption = Annotated[list[str] | None, typer.Option(help="Camera; may be given several times.")]
SizeOption = Annotated[str, typer.Option(help="Image size: an edge, like 128, or height x width, like 96x128.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of the environment's config, like id=Pusher-v5."),
]


@env.command("list")
def env_list() -> None:
    """List the environments.

    The state has two sizes: with everything the simulator knows / with what the arm measures.
    """
    from plaudit.envs.commands import list_envs
    from plaudit.report.tables import env_table

    out.print(*env_table(list_envs()), sep="\n")


@env.command("view")
def env_view(
    name: EnvArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The .png or .mp4 to write; NAME.png when not given.")
    ] = None,
    outcome: Annotated[str, typer.Option(help="Outcome of the scripted expert: success, miss, ...")] = "success",
    noise: Annotated[float, typer.Option(min=0, max=1, help="Noise on the expert's actions.", callback=finite)] = 0.05,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the episode.")] = 0,
    camera: CameraOption = None,
    size: SizeOption = "128",
    randomize: Annotated[
        bool, typer.Option("--randomize", help="Randomize colors, light and cameras by the seed.")
    ] = False,
    settings: SetOption = None,
) -> None:
    """Show one episode, as a contact sheet or a video.

    A scripted expert acts in the built-in tasks, a random policy in the others.
    """
    from plaudit.report.sheet import contact_sheet, save_image
    from plaudit.report.video import save_episode_video
    from plaudit.rollout.scripted import play_episode

    path = output or Path(f"{name}.png")
    if path.suffix not in (".png", ".mp4"):
        raise DataError(f"{path} is neither a .png nor an .mp4; name one of these")
    config = env_config_of(name, "both", camera, size, [*(["randomize=true"] if randomize else []), *(settings or [])])
    episode, labels = play_episode(config, seed=seed, outcome=outcome, noise=noise)
    if path.suffix == ".mp4":
        save_episode_video(episode, path)
    else:
        save_image(contact_sheet(episode, labels, title=f"{name}, seed {seed}: {episode.task}"), path)
    how = "succeeds" if labels.success_once else "does not succeed"
    out.print(f"{path} shows {episode.steps} steps of {name}; the episode {how}")


@env.command("bench")
def env_bench(
    name: EnvArgument,
    num_envs: Annotated[int, typer.Option(min=1, max=16_384, help="Number of environments.")] = 16,
    threads: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Threads of a built-in task; 0 for one per core.")
    ] = None,
    camera: CameraOption = None,
    size: SizeOption = "64",
    seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Duration of each measurement.", callback=finite)
    ] = 3.0,
    settings: SetOption = None,
) -> None:
    """Measure the speed of an environment, with and without images."""
    from plaudit.envs.commands import measure_throughput
    from plaudit.report.tables import speed_table

    more = [*([f"num_threads={threads}"] if threads is not None else []), *(settings or [])]
    kinds = {"state": "state", f"state and images of {size}": "both"}
    speeds = {
        observed: measure_throughput(env_config_of(name, obs, camera, size, more), num_envs, seconds)
        for observed, obs in progress("measuring")(list(kinds.items()))
    }
    out.print(speed_table(f"{name}, {num_envs} side by side", speeds))


@env.command("record")
def env_record(
    store: Annotated[
        Path, typer.Argument(help="The store to add to; created if it does not exist.", show_default=False)
    ],
    name: Annotated[str, typer.Option("--env", help="A built-in task: lift, pick_place or push.")] = "lift",
    episodes: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Number of episodes to keep.")] = 20,
    outcomes: Annotated[str, typer.Option(help="Outcomes of the script, in turn, like success,miss.")] = "success",
    noise: Annotated[float, typer.Option(min=0, max=1, help="Noise on the actions.", callback=finite)] = 0.2,
    obs: Annotated[Literal["state", "pixels", "both"], typer.Option(help="Observations to record.")] = "both",
    camera: CameraOption = None,
    size: SizeOption = "64",
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Seed of the first episode; the others count up.")
    ] = 0,
    steps_after_success: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Steps that an episode continues after its success.")
    ] = 0,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Keep episodes with another outcome too.")] = False,
    settings: SetOption = None,
) -> None:
    """Record scripted episodes with the simulator's labels.

    Each episode is stored as soon as it ends; Ctrl-C keeps those recorded so far.
    """
    from plaudit.data.store import Store, is_store
    from plaudit.policies.expert import check_script
    from plaudit.rollout.scripted import record_demos

    config = env_config_of(name, obs, camera, size, settings)
    told = [outcome.strip() for outcome in outcomes.split(",")]
    check_script(told, noise)  # a mistake is told before a store is made
    with Store.open(store, write=True) if is_store(store) else Store.create(store) as opened:
        before = len(opened)
        try:
            report = record_demos(
                config,
                opened,
                episodes=episodes,
                outcomes=told,
                noise=noise,
                seed=seed,
                keep_all=keep_all,
                steps_after_success=steps_after_success,
                progress=progress("recording"),
            )
        except KeyboardInterrupt:
            stop(f"interrupted; {len(opened) - before} episodes are in {store} and stay")
    out.print(f"{len(report.ids)} episodes recorded into {store}: {_count(report.kept)}")
    if report.left_out:
        tell("note", f"skipped because they had another outcome: {_count(report.left_out)}")
    if report.missing:
        tell("warning", f"{report.missing} episodes are missing after many tries; try less noise than {noise:g}")
        raise typer.Exit(1)


def env_config_of(name: str, obs: str, cameras: list[str] | None, size: str, settings: list[str] | None) -> Any:
    """An environment's config from what the `env` commands are given."""
    from plaudit.envs.commands import env_config

    edges = size.lower().split("x")
    if not 1 <= len(edges) <= 2 or not all(is_count(edge) and 1 <= int(edge) <= LARGEST for edge in edges):
        raise DataError(
            f"a size is an edge like 128, or height x width like 96x128, of at most {LARGEST} pixels, not '{size}'"
        )
    given = [f"obs={obs}", f"image_size=[{edges[0]},{edges[-1]}]"]
    given += [f"cameras=[{','.join(cameras)}]"] if cameras else []
    with keys_by_set():
        return env_config(name, [*given, *(settings or [])])


@contextmanager
def keys_by_set() -> Iterator[None]:
    """A key that is missing is given by --set."""
    try:
        yield
    except ConfigError as error:
        missing = "it has no default"
        raise ConfigError(
            (where, f"{said}: add --set {'.'.join(map(str, where))}=..." if said.endswith(missing) else said)
            for where, said in error.problems
        ) from None


def _count(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())

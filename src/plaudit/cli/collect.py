"""`plaudit collect`: episodes with success labels, from a script or while a policy trains."""

from pathlib import Path
from typing import Annotated

import typer

from plaudit.cli.common import AllowCode, AllowHost, finite, out, progress, stop, tell
from plaudit.cli.env import CameraOption, SetOption, env_config_of
from plaudit.cli.train import train_
from plaudit.errors import DataError


def collect_(
    context: typer.Context,
    store: Annotated[
        Path | None, typer.Argument(help="The store to add to; made if it does not exist.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of a training run with a 'collect' block, to collect meanwhile.")
    ] = None,
    name: Annotated[str, typer.Option("--env", help="A built-in task.")] = "lift",
    target_success: Annotated[
        int,
        typer.Option(
            "--target-success", "--max-positive-trajectories", min=0, max=2**31 - 1, help="Episodes that succeed."
        ),
    ] = 60,
    target_failure: Annotated[
        int,
        typer.Option(
            "--target-failure", "--max-negative-trajectories", min=0, max=2**31 - 1, help="Episodes that do not."
        ),
    ] = 120,
    outcomes: Annotated[
        str, typer.Option(help="What the script does; the failures take turns.")
    ] = "success,miss,drop,near_goal,wrong_place",
    random_share: Annotated[
        float, typer.Option(min=0, max=1, help="Of the failures: random walks.", callback=finite)
    ] = 0.2,
    noise: Annotated[
        float, typer.Option(help="On the script's actions, of which 1 is the most.", callback=finite)
    ] = 0.2,
    linger: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Steps that an episode goes on for after its success.")
    ] = 8,
    camera: CameraOption = None,
    size: Annotated[
        str, typer.Option("--image-size", "--size", help="An edge, like 128, or height x width, like 96x128.")
    ] = "64",
    randomize: Annotated[bool, typer.Option("--randomize", help="Colours, light and cameras by the seed.")] = False,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Of the first episode; a store that has some goes on.")
    ] = 0,
    settings: SetOption = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Collect episodes with success labels.

    A script plays a built-in task until the store has enough successes and failures; what is there already counts.
    With --config, the same as 'plaudit train': a policy trains, and what it plays is kept.
    """
    if config is not None:
        _train_and_collect(context, config)
        return
    if store is None:
        raise DataError("name a store to add to, or a training run with --config")
    from plaudit.data.store import Store, is_store
    from plaudit.rollout.collect import Targets
    from plaudit.rollout.scripted import check_collect, collect

    more = [*(["randomize=true"] if randomize else []), *(settings or [])]
    env = env_config_of(name, "both", camera, size, more)
    told = [outcome.strip() for outcome in outcomes.split(",")]
    targets = Targets(target_success, target_failure)
    check_collect(env, targets, told, noise, random_share)  # a mistake is told before a store is made
    with Store.open(store, write=True) if is_store(store) else Store.create(store) as opened:
        before = len(opened)
        try:
            intake = collect(
                env,
                opened,
                targets,
                outcomes=told,
                noise=noise,
                random_share=random_share,
                linger=linger,
                seed=seed,
                track=progress("collecting"),
            )
        except KeyboardInterrupt:
            stop(f"interrupted; {len(opened) - before} episodes were added to {store}; the same command goes on")
    counts = f"{intake.kept['success']} successes and {intake.kept['failure']} failures"
    out.print(f"{store} has {counts}, {len(opened) - before} of them new")
    if not intake.done:
        tell("warning", "the script brought nothing that is missing any more; try another noise or other outcomes")
        raise typer.Exit(1)


def _train_and_collect(context: typer.Context, config: Path) -> None:
    from plaudit.training.config import load_train_config

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if set(given) - {"allow_code", "allow_host"} != {"config"}:
        raise DataError("--config stands alone; to change a key of it, run: plaudit train --config FILE KEY=VALUE")
    if load_train_config(config, []).collect is None:
        raise DataError(f"{config} does not say where to collect; add a block: collect: {{store: data}}")
    train_(config=config)

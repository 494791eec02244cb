"""`plaudit collect`: episodes with success labels, from a script or while a policy trains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plaudit.cli.common import AllowCode, AllowHost, finite, out, progress, stop, tell
from plaudit.cli.env import CameraOption, SetOption, env_config_of
from plaudit.cli.train import train_
from plaudit.errors import DataError

if TYPE_CHECKING:
    from plaudit.rollout.collector import EpisodeQuota, Outcome

StoreArgument = Annotated[
    Path | None, typer.Argument(help="The store to add to; created if it does not exist.", show_default=False)
]
ConfigOption = Annotated[
    Path | None, typer.Option(help="A YAML file of a training run with a 'collect' block: train and collect.")
]
TargetSuccess = Annotated[
    int,
    typer.Option(
        "--target-success", "--max-positive-trajectories", min=0, max=2**31 - 1, help="Number of successful episodes."
    ),
]
TargetFailure = Annotated[
    int,
    typer.Option(
        "--target-failure", "--max-negative-trajectories", min=0, max=2**31 - 1, help="Number of failed episodes."
    ),
]
StepsAfterSuccess = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Steps that an episode continues after its success.")
]
SizeOption = Annotated[
    str,
    typer.Option("--image-size", "--size", help="Image size: an edge, like 128, or height x width, like 96x128."),
]
FirstSeed = Annotated[
    int,
    typer.Option(min=0, max=2**31 - 1, help="Seed of the first episode; a store with episodes continues its seeds."),
]


def collect_(
    context: typer.Context,
    store: StoreArgument = None,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option("--env", help="A built-in task: lift, pick_place or push.")] = "lift",
    target_success: TargetSuccess = 60,
    target_failure: TargetFailure = 120,
    outcomes: Annotated[
        str, typer.Option(help="Outcomes of the script; they take turns.")
    ] = "success,off_center,miss,drop,near_goal,wrong_place",
    random_fraction: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of the failures that are random walks.", callback=finite)
    ] = 0.2,
    noise: Annotated[float, typer.Option(min=0, max=1, help="Noise on the script's actions.", callback=finite)] = 0.2,
    steps_after_success: StepsAfterSuccess = 8,
    camera: CameraOption = None,
    size: SizeOption = "64",
    randomize: Annotated[
        bool, typer.Option("--randomize", help="Randomize colors, light and cameras by the seed.")
    ] = False,
    seed: FirstSeed = 0,
    settings: SetOption = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Collect episodes with success labels.

    A script runs a built-in task until the store has enough successes and failures, counting those it already has.
    With --config, a policy trains as in 'plaudit train' and its episodes are kept.
    """
    if config is not None:
        _train_and_collect(context, config)
        return
    if store is None:
        raise DataError("name a store to add to, or a training run with --config")
    more = [*(["randomize=true"] if randomize else []), *(settings or [])]
    env = env_config_of(name, "both", camera, size, more)
    _run_script(
        env,
        store,
        (target_success, target_failure),
        outcomes=[outcome.strip() for outcome in outcomes.split(",")],
        noise=noise,
        random_fraction=random_fraction,
        steps_after_success=steps_after_success,
        seed=seed,
    )


def _run_script(
    env: Any,
    store: Path,
    wanted: tuple[int, int],
    *,
    outcomes: list[str],
    noise: float,
    random_fraction: float,
    **options: Any,
) -> None:
    """wanted: successes and failures; options: of `plaudit.rollout.scripted.collect_scripted`"""
    from plaudit.data.store import Store, is_store
    from plaudit.rollout.collector import EpisodeTargets
    from plaudit.rollout.scripted import check_targets, collect_scripted

    targets = EpisodeTargets(*wanted)
    check_targets(env, targets, outcomes, noise, random_fraction)  # a mistake is reported before a store is made
    options |= {"outcomes": outcomes, "noise": noise, "random_fraction": random_fraction}
    with Store.open(store, write=True) if is_store(store) else Store.create(store) as opened:
        before = len(opened)
        _check_cameras(opened, env)
        try:
            quota = collect_scripted(env, opened, targets, progress=progress("collecting"), **options)
        except KeyboardInterrupt:
            stop(f"interrupted; {len(opened) - before} episodes were added to {store}; run the same command to resume")
    counts = f"{quota.kept['success']} successes and {quota.kept['failure']} failures"
    out.print(f"{store} has {counts}, {len(opened) - before} of them new")
    if not quota.done:
        tell("warning", _why_given_up(quota, len(opened) - before, noise))
        raise typer.Exit(1)


def _why_given_up(quota: "EpisodeQuota", new: int, noise: float) -> str:
    """In words. new: episodes that were added"""
    kind: Outcome = "success" if quota.missing("success") else "failure"
    attempts, change = new + quota.surplus.total(), "less" if kind == "success" else "more"
    return (
        f"given up after {attempts} attempts, of which {new} were kept: at --noise {noise:g} next to none is a {kind}, "
        f"and {quota.missing(kind)} of these are missing; try {change} noise, other --outcomes or a lower "
        f"--target-{kind}"
    )


def _check_cameras(store: Any, env: Any) -> None:
    """Refuse to add episodes that no judge could learn from together with those that are there."""
    if not store.ids:
        return
    there = {name: frames.shape[1:3] for name, frames in store.episode(store.ids[-1]).frames.items()}
    if there != dict.fromkeys(env.cameras, tuple(env.image_size)):
        known = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sorted(there.items()))
        raise DataError(
            f"the episodes in {store.folder} have the cameras {known or 'none'}; give the same with --camera and "
            "--image-size, or collect into another store"
        )


def _train_and_collect(context: typer.Context, config: Path) -> None:
    from plaudit.training.config_file import load_training_config

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if set(given) - {"allow_code", "allow_host"} != {"config"}:
        raise DataError("--config stands alone; to change a key of it, run: plaudit train --config FILE KEY=VALUE")
    if load_training_config("train", config, []).collect is None:
        raise DataError(f"{config} does not say where to collect; add a block: collect: {{store: data}}")
    train_(config=config)

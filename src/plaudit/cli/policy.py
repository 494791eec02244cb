"""`plaudit train-policy`: a policy out of recorded episodes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import AllowCode, AllowHost, check_episodes, fitting_bar, open_episodes, out
from plaudit.errors import DataError, PolicyError, TargetNotEmpty, did_you_mean


def train_policy(
    store: Annotated[Path, typer.Argument(help="The folder of a store of demonstrations.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="policy.horizon=16 fit.steps=5000 ..."),
    ] = None,
    policy: Annotated[str, typer.Option(help="Which kind: flow.")] = "flow",
    camera: Annotated[list[str] | None, typer.Option(help="That it looks at, once each; all unless given.")] = None,
    no_cameras: Annotated[bool, typer.Option("--no-cameras", help="It acts on the state alone.")] = False,
    config: Annotated[Path | None, typer.Option(help="A YAML file with the same keys.")] = None,
    output: Annotated[Path, typer.Option("--output-dir", "-o", help="The folder to write.")] = Path("policy"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a policy on recorded episodes (behavior cloning).

    Clones successes and episodes without a label; labeled failures only with fit.include_failures=true. Writes a
    folder with policy.yaml, weights and statistics, for 'plaudit run --policy_yaml'. Ctrl-C ends it early and keeps
    what was learned so far.
    """
    from plaudit.config import load
    from plaudit.data.normalize import Normalizer
    from plaudit.learners.config import TrainPolicyConfig
    from plaudit.learners.demonstrations import Demonstrations
    from plaudit.policies.loader import save_policy

    if policy != "flow":
        raise PolicyError(
            f"a '{policy}' policy does not learn from a store; 'flow' does, and 'plaudit train' has others"
        )
    if (output / "policy.yaml").exists():
        raise TargetNotEmpty(f"{output} holds a policy already; name another folder with --output-dir")
    check_episodes(store)
    asked = load(TrainPolicyConfig, config, overrides or [])
    opened = open_episodes(store)
    flow = asked.flow(**_spaces(opened, [] if no_cameras else camera))
    out.print(Demonstrations.of(opened, include_failures=asked.fit.include_failures).summary)

    from plaudit.learners.bc import train_flow_from_store  # torch, which takes seconds: mistakes come first

    built, normalizer = flow.build(), Normalizer.from_store(opened)
    losses: list[float] = []
    with fitting_bar(asked.fit.steps) as (watch, stopped):

        def note(step: int, loss: float) -> bool:
            losses.append(loss)
            return watch((step, sum(losses[-100:]) / len(losses[-100:])))

        trainer = train_flow_from_store(built, opened, normalizer, callback=note, **asked.fit.model_dump())
    path = save_policy(output, flow, trainer.weights(), normalizer)
    size = sum(p.numel() for part in built.components.values() for p in part.parameters())
    ended = "stopped after" if stopped() else "learned for"
    last = sum(losses[-100:]) / len(losses[-100:])
    out.print(f"{path}: {size:,} parameters, {ended} {trainer.version:,} steps, loss {losses[0]:.3f} -> {last:.3f}")


def _spaces(store: Any, cameras: list[str] | None) -> dict[str, Any]:
    """What the episodes of a store show, as the config of a policy has it."""
    if not store.ids:
        raise DataError(f"{store.folder} has no episodes")
    episode = store.episode(store.ids[0])
    for camera in cameras or ():
        if camera not in episode.frames:
            raise DataError(f"camera '{camera}' is not in {store.folder}; {did_you_mean(camera, episode.frames)}")
    chosen = episode.frames if cameras is None else cameras
    return {
        "state_dim": episode.state.shape[1],
        "action_dim": episode.actions.shape[1],
        "cameras": {camera: episode.frames[camera].shape[1:3] for camera in chosen},
    }

"""`plaudit train` and `plaudit train-policy`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import (
    check_episodes,
    corrected_success,
    fitting_bar,
    open_episodes,
    out,
    progress,
    stop,
    tell,
    training_bar,
    with_stores,
    writing_report,
)
from plaudit.cli.options import Option, Overrides, app, command
from plaudit.errors import DataError, PlauditError, PolicyError, TargetNotEmpty, did_you_mean

# The choices are repeated here because --help must not import the registries; a test compares the two.
_CHOICES = """\b
Choices:
  learner=  sac, ppo, qchunk, dagger; weighted_bc, expo, dsrl, steer (with learner.base=POLICY)
  env=      lift, pick_place, push; gymnasium, maniskill, gym_hil, fetch, metaworld
{more}

Or your own class: learner=my_package.my_module:MyConfig with --allow-code my_package.

All keys with their defaults: 'plaudit config show' and docs/train.md. Example files: 'plaudit config list'.
"""
TRAIN_HELP = _CHOICES.format(more="  judge=    simulator, noisy; or the folder of a model of 'plaudit train-reward'")
ONLINE_HELP = _CHOICES.format(
    more="""  robot=    igris_b, igris_c, lerobot, sim (instead of env=)
  judge=    classifier, progress, vlm, simulator, human, cascade, noisy; or the folder of a reward model;
            grm, rewind, robometer, robometer_server, roboreward, rynnvalue, sarm, sole, topreward
            (docs/published_judges.md)
  policy.inference=  rtc, sequential (--inference_algorithm)"""
)


@command(app, "train", reads_config=True, epilog=TRAIN_HELP)
def train_(
    overrides: Overrides = None,  # env=lift learner=sac demos.scripted=20 learner.lr=1e-3 ...
    *,
    config: Path | None = None,  # A YAML file to start from, like those in examples/configs.
    # The folder of a run to resume; judge.model=MODEL continues with another.
    resume: Annotated[Path | None, Option(metavar="RUN")] = None,
    folder: Path = Path("runs"),  # The folder that run folders are written to.
) -> None:
    """Train a policy in simulation.

    Writes a run folder with metrics, checkpoints, the policy and report.html. Ctrl-C stops after the current rollout or
    update, and --resume continues exactly there. Returns 1 when an audit alarm stopped the run.
    """
    from plaudit.report.run import write_run_report
    from plaudit.report.run_data import RunData
    from plaudit.report.verdict import run_verdict
    from plaudit.training.config_file import load_training_config
    from plaudit.training.display import describe_trainer
    from plaudit.training.evaluation import record_videos
    from plaudit.training.live import LiveSocket
    from plaudit.training.run_folder import RunFolder
    from plaudit.training.trainer import Trainer, check_run

    if resume is not None:
        run = _resumed(resume, config, overrides or [])
    else:
        wanted = with_stores(load_training_config("train", config, overrides or []))
        for line in check_run(wanted):
            out.print(line)
        path = wanted.run.resume_dir
        run = RunFolder.resume_named(path, wanted) if path else RunFolder.create(folder / wanted.run_name, wanted)
    out.print(f"{run.path}: {run.config.learner_name} on {run.config.target_name}")
    run.on_warning = partial(tell, "warning")
    try:
        with Trainer(run, progress) as trainer:
            if trainer.judge.warning:
                tell("warning", trainer.judge.warning)
            collected = None if trainer.collection is None else trainer.collection.quota.describe
            live = LiveSocket(run.path, describe=lambda: describe_trainer(trainer))
            with live, training_bar(run.config, collected) as (callback, stopped):
                end = trainer.run(callback, stopped)
    except KeyboardInterrupt:
        stop(f"interrupted; resume from the last checkpoint with: plaudit train --resume {run.path}")
    except PlauditError:
        run.discard_if_empty()
        raise
    with writing_report("writing the report" if stopped() else "recording videos and writing the report"):
        if not stopped():
            record_videos(run)
        write_run_report(run.path)
    out.print(run_verdict(RunData.load(run.path)))
    success = "not evaluated yet" if end.eval_success is None else f"{end.eval_success:.0%} success on eval seeds"
    success += corrected_success(trainer.audit.metrics())
    out.print(f"{run.path}: {end.step:,} steps, {end.episodes:,} episodes, {success}; see {run.path / 'report.html'}")
    if run.config.collect is not None:
        _print_collected(run.config.collect, run.config.env)
    if end.alarm is not None and run.config.audit.on_alarm == "warn":
        tell("warning", end.alarm)
    elif end.alarm is not None:
        tell("alarm", end.alarm)
        raise typer.Exit(1)
    if stopped():
        stop(f"stopped; resume with: plaudit train --resume {run.path}")


def _resumed(path: Path, config: Path | None, overrides: list[str]) -> Any:
    """The run in a folder, with another judge or another end if the overrides set one."""
    from plaudit.training.config_file import load_training_config
    from plaudit.training.rollout_judge import with_judge
    from plaudit.training.run_folder import RunFolder

    judge = [one for one in overrides if one.startswith(("judge=", "judge."))]
    end = [one for one in overrides if one.startswith(("run.max_steps=", "run.max_episodes="))]
    if config is not None or len(judge) + len(end) < len(overrides):
        raise DataError(
            "--resume continues a run as it was configured; only judge=, judge.*, run.max_steps and run.max_episodes "
            "may be given with it"
        )
    run = RunFolder.reopen(path, "train")
    if end:
        run = run.with_config(load_training_config("train", run.path / "config.yaml", end))
    return with_judge(run, judge) if judge else run


def _print_collected(config: Any, env: Any) -> None:
    from plaudit.data.store import Store
    from plaudit.envs.panda import PandaConfig
    from plaudit.rollout.collector import EpisodeQuota, Outcome

    quota = EpisodeQuota(Store.open(config.store), config.targets)
    out.print(f"{config.store} has {quota.describe()}")
    advice: dict[Outcome, str] = {
        "success": "train longer (run.max_steps), with a dense reward (reward.env_reward=dense) or from demonstrations "
        "(demos.scripted)",
        "failure": "collect earlier in training",
    }
    for outcome, what in advice.items():
        if not quota.kept[outcome] and quota.missing(outcome) != 0:
            tell("warning", f"no {outcome} was collected, and a judge learns from both kinds; {what}")
            if isinstance(env, PandaConfig):
                tell("note", f"a script can collect both: plaudit collect {config.store} --env {env.type}")
    for folders in config.folders:
        out.print(f"they are also files in {folders.success} and {folders.failure}")
    if not config.folders:
        out.print(f"'plaudit data export {config.store} FOLDER --to npy' (or pkl) writes them as two folders")


@command(app, "train-policy", reads_config=True)
def train_policy(
    store: Path,  # The folder of a store of demonstrations.
    overrides: Overrides = None,  # policy.horizon=16 fit.steps=5000 ...
    *,
    policy: str = "flow",  # Type of policy: flow.
    camera: list[str] | None = None,  # Camera to use; repeatable. All cameras when not given.
    no_cameras: bool = False,  # Use the state alone.
    start: Path | None = None,  # A flow policy to continue from, with its statistics.
    config: Path | None = None,  # A YAML file with the same keys.
    output_dir: Path = Path("policy"),  # The folder to write.
) -> None:
    """Train a policy on recorded episodes (behavior cloning).

    Uses successes and unlabeled episodes; labeled failures only with fit.include_failures=true. Writes a folder with
    policy.yaml, weights and statistics, for 'plaudit run --policy_yaml'. Ctrl-C ends training and saves the policy.
    """
    from plaudit.config import load
    from plaudit.data.demonstrations import Demonstrations
    from plaudit.data.normalize import Normalizer
    from plaudit.learners.config import TrainPolicyConfig
    from plaudit.policies.loader import save_policy
    from plaudit.report.verdict import Verdict, quoted
    from plaudit.types import EnvSpec

    if policy != "flow":
        raise PolicyError(
            f"a '{policy}' policy does not learn from a store; 'flow' does, and 'plaudit train' has others"
        )
    if (output_dir / "policy.yaml").exists():
        raise TargetNotEmpty(f"{output_dir} holds a policy already; name another folder with --output-dir")
    check_episodes(store)
    asked = load(TrainPolicyConfig, config, overrides or [])
    opened = open_episodes(store)
    if not opened.ids:
        raise DataError(f"{opened.folder} has no episodes")
    first = opened.episode(opened.ids[0])
    for name in camera or ():
        if name not in first.frames:
            raise DataError(f"camera '{name}' is not in {opened.folder}; {did_you_mean(name, first.frames)}")
    chosen = [] if no_cameras else first.frames if camera is None else camera
    sizes = {name: first.frames[name].shape[1:3] for name in chosen}
    inputs = EnvSpec(first.state.shape[1], first.actions.shape[1], sizes, name=str(opened.folder))
    begun = None if start is None else _policy_to_continue(start, asked.policy, inputs)
    flow = asked.flow(**inputs.policy_fields()) if begun is None else begun.config
    numbers = flow.horizon * flow.action_dim
    if flow.velocity_net.width < numbers:
        narrow = f"policy.velocity_net.width is {flow.velocity_net.width}, less than the {numbers} numbers of a chunk"
        tell("warning", f"{narrow} ({flow.horizon} actions of {flow.action_dim}), so actions stay noisy; raise it")
    cloned = Demonstrations.of(opened, include_failures=asked.fit.include_failures)
    out.print(cloned.summary)
    tasks = sorted({opened.entry(episode).line["task"] for episode in cloned.labels})
    if len(tasks) > 1 and not flow.tasks and begun is None:
        flow = flow.model_copy(update={"tasks": tuple(tasks)})
    if flow.tasks:
        out.print(f"the policy takes the task as input, one of {len(flow.tasks)}: {', '.join(flow.tasks)}")

    from plaudit.learners.bc import train_flow_from_store  # imports torch, which takes seconds, after the checks above

    built = flow.build() if begun is None else begun.build()
    if begun is not None and begun.normalizer is not None:
        normalizer = Normalizer.load(begun.normalizer)
    else:
        normalizer = Normalizer.from_store(opened, ids=cloned.labels)
    losses: list[float] = []
    with fitting_bar(asked.fit.steps) as (watch, stopped):

        def on_step(step: int, loss: float) -> bool:
            losses.append(loss)
            return watch((step, sum(losses[-100:]) / len(losses[-100:])))

        trainer = train_flow_from_store(built, opened, normalizer, callback=on_step, **asked.fit.model_dump())
    path = save_policy(output_dir, flow, trainer.weights(), normalizer)
    size = sum(p.numel() for part in built.components.values() for p in part.parameters())
    ended = "stopped after" if stopped() else "learned for"
    last = sum(losses[-100:]) / len(losses[-100:])
    why = f"{path}: {size:,} parameters, {ended} {trainer.version:,} steps, loss {losses[0]:.3f} -> {last:.3f}."
    advice = "Measure its success in simulation", f"plaudit eval {quoted(path)} --env ENV"
    out.print(Verdict("Not measured yet: a loss does not show success.", why, *advice, tone="open"))


def _policy_to_continue(path: Path, settings: Any, inputs: Any) -> Any:
    """The flow policy to start from, if the store has what it observes and returns."""
    from plaudit.policies.config import FlowConfig
    from plaudit.policies.loader import load_policy

    spec = load_policy(path)
    if not isinstance(spec.config, FlowConfig) or spec.weights is None or spec.frozen is not None:
        raise PolicyError(f"{path} is not a trained flow policy without a frozen encoder, which alone can be continued")
    spec = spec.model_copy(update={"policy": {**spec.policy, **settings}})
    spec.check_fits(inputs)
    return spec

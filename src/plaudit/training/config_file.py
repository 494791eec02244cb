"""Reading a training config: a YAML file, `a.b=c` overrides and a command's flags, of which the later win.

`env=lift` is short for `env.type=lift`, and so are `robot=`, `learner=`, `judge=`, `teleop=` and `policy.inference=`. A
judge may also be named by its folder or its file: `judge=runs/reward_model`, `judge=calibrated.yaml`. When an override
changes a block's `type`, the file's other keys of that block are dropped: they belong to what was replaced.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plaudit.config import expand_type_override, load
from plaudit.errors import ConfigError, did_you_mean
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import JUDGE_FILES, is_judge_path, judge_tree
from plaudit.policies.loader import load_policy
from plaudit.registry import LEARNER_REGISTRY, ROBOT_REGISTRY
from plaudit.rollout.chunks import backup_problem, check_chunks
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.run import with_robot_defaults
from plaudit.training.compat import Tree, place_on_gpus, translate
from plaudit.training.config import BUILT_IN_TASKS, Schedule, TrainingConfig
from plaudit.training.settings import PolicySettings

TYPED = ("env", "robot", "learner", "judge", "teleop", "policy.inference")  # blocks whose `type` names a class


def load_training_config(
    schedule: Schedule,
    path: Path | None,
    overrides: Sequence[str],
    *,
    robot_files: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> TrainingConfig:
    """
    robot_files: key of the robot -> path
    flags: key of the tree -> value, like those of an override; None: not given
    """
    given = [f"{key}={value}" for key, value in (flags or {}).items() if value is not None]
    full = [
        expand_type_override(one, TYPED, f"learner=sac; {did_you_mean(one, TYPED)}") for one in (*overrides, *given)
    ]

    def complete(tree: Tree) -> Tree:
        tree = _with_types(translate(tree))
        _check_named(tree, schedule)
        tree["judge"] = _judge(tree.get("judge", {}))
        if schedule == "train":
            tree = place_on_gpus(tree)
        return {**_with_robot(tree, robot_files or {}), "schedule": _schedule(tree, schedule)}

    return _complete(load(TrainingConfig, path, full, complete, typed=TYPED))


def _check_named(tree: Tree, schedule: Schedule) -> None:
    """Refuse a run without a learner or a task, in one message."""
    needed = {"learner": f"name one: learner=ppo (known: {', '.join(LEARNER_REGISTRY.names())})"}
    if schedule == "train" and "robot" not in tree:
        needed["env"] = f"name a simulated task: env={BUILT_IN_TASKS[0]} (known: {', '.join(BUILT_IN_TASKS)})"
    if missing := [((key,), f"key '{key}' is missing; {how}") for key, how in needed.items() if key not in tree]:
        raise ConfigError(missing)


def _schedule(tree: Tree, schedule: Schedule) -> Any:
    found = tree.get("schedule", schedule)
    return schedule if found == schedule else f"{found}: run it with plaudit {found}"


def _with_types(tree: Tree) -> Tree:
    """`learner: sac` in a file is `learner: {type: sac}`."""
    tree = {key: {"type": value} if key in TYPED and isinstance(value, str) else value for key, value in tree.items()}
    policy = tree.get("policy")
    if isinstance(policy, dict) and isinstance(policy.get("inference"), str):
        tree["policy"] = {**policy, "inference": {"type": policy["inference"]}}
    return tree


def _judge(tree: Any) -> Any:
    """A judge that is named by a file, as its own keys."""
    named = tree.get("type") if isinstance(tree, dict) else None
    if not isinstance(named, str) or not is_judge_path(named):
        return tree
    path, rest = Path(named), {key: value for key, value in tree.items() if key != "type"}
    beside = certificate_beside(path)
    # A reward model's folder is in its config, so that its certificate is found when the model is another one later.
    certificate = {"certificate": str(beside)} if path.suffix in JUDGE_FILES and beside.is_file() else {}
    return {**judge_tree(path), **certificate, **rest}


def _with_robot(tree: Tree, files: Mapping[str, str]) -> Tree:
    """What follows from the robot, or from the simulated task, for how it is driven."""
    robot, teleop = tree.get("robot"), tree.get("teleop")
    if robot == {"type": "sim"} and "env" in tree:  # the entry scripts always name a robot
        return {key: value for key, value in tree.items() if key != "robot"}
    if not isinstance(robot, dict) or not isinstance(robot.get("type"), str):
        return tree
    paced = "realtime" in ROBOT_REGISTRY.get(robot["type"]).model_fields  # then the inference engine keeps the rate
    robot = {**({"realtime": False} if paced else {}), **robot, **files}
    if isinstance(teleop, dict) and teleop.get("type") == "topic":  # its commands come over the robot's own transport
        tree = {**tree, "teleop": {"robot": robot, **teleop}}
    return {**tree, "robot": robot}


def _complete(config: TrainingConfig) -> TrainingConfig:
    """Fill in what the simulated task, the policy's file and the robot's own files say and nobody else did."""
    if config.schedule == "train":
        return config
    horizon = _horizon(config)
    policy = _with_task(config) if config.env is not None else _with_robot_files(config, horizon)
    algorithm, backup = config.inference_type, config.backup_horizon
    if config.policy.inference.execution_horizon is None and horizon is not None and backup is not None:
        policy = _executing_at_least(policy, algorithm, horizon, backup)
    check_chunks(algorithm, policy.inference.execution_horizon, horizon, backup)
    return config.model_copy(update={"policy": policy})


def _executing_at_least(policy: PolicySettings, algorithm: str, horizon: int, backup: int) -> PolicySettings:
    """With a default execution horizon, the robot's or half of a chunk, that is as long as the learner's backup."""
    if backup == horizon and algorithm == "rtc":  # which never executes a whole chunk: `check_chunks` refuses it
        return policy
    if not backup_problem(algorithm, horizon, policy.inference.execution_horizon, backup):
        return policy
    return policy.model_copy(update={"inference": policy.inference.model_copy(update={"execution_horizon": backup})})


def _horizon(config: TrainingConfig) -> int | None:
    """Actions of a chunk of the policy that acts, where that is known."""
    policy = config.policy
    if policy.behavior == "learner" or policy.path is None:
        return config.learner.action_horizon
    return load_policy(policy.path).horizon


def _with_task(config: TrainingConfig) -> PolicySettings:
    """A simulated task is driven as fast as it goes, for as long as its episodes are."""
    inference: InferenceConfig = config.policy.inference
    own = {"name": config.target_name, "realtime": False, "max_episode_steps": getattr(config.env, "max_steps", None)}
    missing = {key: own[key] for key in own.keys() - inference.model_fields_set if own[key] is not None}
    return config.policy.model_copy(update={"inference": inference.model_copy(update=missing)})


def _with_robot_files(config: TrainingConfig, horizon: int | None) -> PolicySettings:
    policy, inference = config.policy, config.policy.inference
    named = None if policy.path is None else load_policy(policy.path).normalizer
    acting = _absolute(inference.normalizer or named)
    learning = _absolute(policy.normalizer) or (acting if policy.behavior == "learner" else None)
    own = {"normalizer": acting, "name": inference.name or config.target_name}
    inference = with_robot_defaults(inference.model_copy(update=own), config.robot, horizon)
    return policy.model_copy(update={"inference": inference, "normalizer": learning})


def _absolute(named: Path | dict[str, Any] | None) -> Path | dict[str, Any] | None:
    """Other processes have other working folders."""
    return named.absolute() if isinstance(named, Path) else named

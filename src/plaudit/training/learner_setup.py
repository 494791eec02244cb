"""Building the learner of a run, wherever it learns."""

from contextlib import AbstractContextManager
from typing import Any

from plaudit.contracts import missing_members
from plaudit.devices import resolve_device
from plaudit.errors import ContractError, TrainingError
from plaudit.learners.base import torch_threads
from plaudit.protocols import Learner, VecEnv
from plaudit.robots.config import RobotConfig
from plaudit.training.config import TrainingConfig
from plaudit.types import EnvSpec


def learner_env_spec(config: TrainingConfig, env: VecEnv | EnvSpec) -> EnvSpec:
    """What the learner sees of an env or a robot, and does to it."""
    chosen = env.cameras if config.policy.cameras is None else config.policy.cameras
    for camera in chosen:
        if camera not in env.cameras:
            cameras = ", ".join(env.cameras) or "none"
            raise TrainingError(
                f"policy.cameras has '{camera}', which {config.target_name} does not have; it has: {cameras}"
            )
    if isinstance(env, EnvSpec):
        _check_stale_chunks(config, env)
    return EnvSpec(env.state_dim, env.action_dim, {camera: env.cameras[camera] for camera in chosen})


def _check_stale_chunks(config: TrainingConfig, robot: EnvSpec) -> None:
    """Refuse a backup over actions that the robot's safety limits keep back as too old."""
    backup, robot_config = config.backup_horizon or 1, config.engine.robot
    stale = robot_config.limits(robot.action_dim).stale_chunk_s if isinstance(robot_config, RobotConfig) else None
    if stale is not None and robot.fps and backup > stale * robot.fps:
        raise TrainingError(
            f"the learner's backup spans {backup} actions, {backup / robot.fps:.1f} s of this robot, and commands are "
            f"not sent {stale:g} s after their observation (robot.safety.stale_chunk_s); lower learner.horizon, or "
            "raise the limit"
        )


def build_learner(config: TrainingConfig, env_spec: EnvSpec) -> Any:
    """The run's learner as its seed makes it."""
    learner = config.learner.build(env_spec, config.run.seed, str(resolve_device(config.run.device)))
    missing = missing_members(learner, Learner)
    if missing:
        raise ContractError(
            f"learner '{config.learner_name}' builds a {type(learner).__name__}, which lacks {', '.join(missing)}; see "
            "plaudit.protocols.Learner for what a run needs of it"
        )
    return learner


def learner_threads(config: TrainingConfig, env_spec: EnvSpec) -> AbstractContextManager[None]:
    """Threads of torch, for as long as the learner computes."""
    return torch_threads(config.run.num_threads, images=bool(env_spec.cameras))

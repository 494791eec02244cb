"""How good the newest policy of an online run truly is, on seeds that decided nothing. Only a simulation can say."""

from pathlib import Path

import numpy as np

from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.networks import load_components
from plaudit.policies.weights import read_weights
from plaudit.training.evaluation import UNTOUCHED
from plaudit.training.online_config import OnlineConfig
from plaudit.training.trainer import play_held_back
from plaudit.training.workers.learner import audience, build_learner
from plaudit.types import EnvSpec


def examine(config: OnlineConfig, folder: Path, episodes: int) -> float:
    """Share of so many episodes that truly succeed, with the weights that were published last."""
    probe = config.robot.env.build(1)
    cameras = probe.cameras if config.policy_cameras is None else config.policy_cameras
    env_spec = EnvSpec(probe.state_dim, probe.action_dim, {camera: probe.cameras[camera] for camera in cameras})
    probe.close()
    learner = build_learner(config, env_spec)
    load_components(learner.components, read_weights(folder / "weights" / "current.safetensors"))
    simulation = audience(config, learner, episodes)
    detector = SuccessDetector(SimulatorJudge(), simulation.num_envs)
    try:
        rounds = list(play_held_back(simulation, learner, episodes, detector, offset=UNTOUCHED))
    finally:
        simulation.close()
    return float(np.mean(np.concatenate([played.success_once for played in rounds])[:episodes]))

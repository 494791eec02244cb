"""What others call the keys of an online run.

Flags of the entry scripts may stand in the file too, and are taken as they are. Keys of other trainers, of the recipes
and of `plaudit train` are refused with the name that the same thing has here: their values mean something else.
"""

from collections.abc import Mapping
from typing import Any

from plaudit.config import refuse_other_names

ROBOT_FILES = ("inference_runtime_params_config", "inference_runtime_topics_config")

OTHER_NAMES: Mapping[str, str] = {
    "env": "write 'robot: {type: sim, env: {type: lift}}'",
    "num_envs": "leave it out: a robot is one",
    "steps": "write 'episodes' for the length of the run, 'executor.max_episode_steps' for that of an episode",
    "max_steps": "write 'episodes' for the length of the run, 'executor.max_episode_steps' for that of an episode",
    "scripted_demos": "record some with 'plaudit env record demos' and write 'demos: demos'",
    "reward.model": "write 'judge: {type: classifier, model: ...}'",
    "reward.audit_share": "write 'audit.share'",
    "reward.on_alarm": "write 'audit.on_alarm'",
    "reward": "write 'judge': its keys are type, and those of that judge",
    "reward_model": "write 'judge: {type: classifier, model: ...}'",
    "labeler": "write 'judge': type is classifier, vlm, simulator or human",
    "reward_labeler": "write 'judge': type is classifier, vlm, simulator or human",
    "trainer": "write 'learner': its keys are type (sac or qchunk), gamma, lr, batch_size, utd_ratio, ...",
    "train": "write 'learner': its keys are type (sac or qchunk), gamma, lr, batch_size, utd_ratio, ...",
    "training": "write 'learner': its keys are type (sac or qchunk), gamma, lr, batch_size, utd_ratio, ...",
    "algorithm.": "write 'learner'; 'algorithm' here is how the robot is driven, rtc or sequential",
    "actor": "write 'learner'",
    "model": "write 'policy_yaml' for a policy to begin with, 'learner' for the networks",
    "loss": "leave it out: it is the learner's",
    "optimizer.lr": "write 'learner.lr'",
    "optimizer": "write 'learner.lr'",
    "lr": "write 'learner.lr'",
    "learning_rate": "write 'learner.lr'",
    "batch_size": "write 'learner.batch_size'",
    "utd_ratio": "write 'learner.utd_ratio'",
    "data": "write 'demos' for a store of demonstrations",
    "dataset": "write 'demos' for a store of demonstrations",
    "replay_buffer": "write 'capacity_gb'",
    "buffer_size": "write 'capacity_gb'",
    "checkpoint": "write 'checkpoint_every'",
    "checkpointing": "write 'checkpoint_every'",
    "num_workers": "write 'cluster.trainer_workers'",
    "cluster.num_nodes": "leave it out: nodes are those that 'plaudit cluster start' started",
    "runner": "write its keys at the top: episodes, checkpoint_every, evaluation",
    "rollout": "write 'executor' for how the robot is driven",
}


def translated(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flags as keys; what goes by another name here is an error that says by which."""
    tree = dict(tree)
    refuse_other_names(tree, OTHER_NAMES)
    if "inference_algorithm" in tree:
        tree["algorithm"] = tree.pop("inference_algorithm")
    if tree.pop("human_reward_labeler", False):
        tree["judge"] = {"type": "human"}
    files = {key: tree.pop(key) for key in ROBOT_FILES if key in tree}
    if files:
        robot = tree.get("robot", {})
        tree["robot"] = {**({"type": robot} if isinstance(robot, str) else robot), **files}
    return tree

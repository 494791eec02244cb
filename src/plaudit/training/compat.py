"""Keys of other stacks: what can be read as ours is, everything else is refused with the name that it has here.

Read as ours: the flags of the entry scripts (spec names), the ManiSkill recipes' blocks for a reward model
(`reward.use_reward_model`, `reward.reward_model`, `reward.resnet`) and for collecting data
(`reward_data_collection`, `reward.collect_data`), their `env.train` and their placement on GPUs. A value is never taken
half: what a block says of a network is kept and compared with the network itself.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plaudit.config import reject_foreign_keys
from plaudit.errors import ConfigError

Tree = dict[str, Any]

ROBOT_FILES = ("inference_runtime_params_config", "inference_runtime_topics_config")
REWARD_MODEL_BLOCKS = ("reward_model", "resnet")  # the names that the recipes have for it
_IN_NO_FILE = (
    "image_size",
    "image_keys",
    "arch",
    "normalize",
)  # of a reward model of RLinf's, which its loader is told
_COLLECT_SYNONYMS = {"max_positive_trajectories": "target_success", "max_negative_trajectories": "target_failure"}

_LEARNER = "write 'learner': its keys are type (sac, qchunk, ppo), gamma, lr, batch_size, utd_ratio, ..."
_JUDGE = "write 'judge': type is classifier, vlm, simulator, human or cascade"
# Keys of RLinf, LeRobot and SERL, and what to write instead. A longer key wins.
OTHER_NAMES: Mapping[str, str] = {
    "steps": "write 'run.max_steps'",
    "max_steps": "write 'run.max_steps' for the run, 'policy.inference.max_episode_steps' for an episode on a robot",
    "episodes": "write 'run.max_episodes'",
    "seed": "write 'run.seed'",
    "name": "write 'run.name'",
    "device": "write 'run.device'",
    "num_envs": "write 'run.num_envs'",
    "num_workers": "write 'cluster.num_learners'",
    "capacity_gb": "write 'run.capacity_gb'",
    "checkpoint": "write 'run.checkpoint_freq', in env steps",
    "checkpointing": "write 'run.checkpoint_freq', in env steps",
    "rollout": "write 'policy.inference' for how a robot is driven, 'run.num_envs' for a simulation",
    "retrain": "write 'judge.retrain'",
    "window": "write 'judge.window'",
    "reward_labeler": _JUDGE,
    "reward_model": "write 'judge: {type: classifier, model: ...}'",
    "reward_training": "a reward model is trained by 'plaudit train-reward --config FILE'",
    "reward.model": "write 'judge: {type: classifier, model: ...}', or 'judge: FOLDER'",
    "reward.threshold": "write 'judge.rule.threshold'",
    "reward.device": "write 'judge.device'",
    "trainer": _LEARNER,
    "train": _LEARNER,
    "training": _LEARNER,
    "loss": "leave it out: it is the learner's",
    "optimizer": "write 'learner.lr'",
    "lr": "write 'learner.lr'",
    "learning_rate": "write 'learner.lr'",
    "batch_size": "write 'learner.batch_size'",
    "utd_ratio": "write 'learner.utd_ratio'",
    "algorithm.gamma": "write 'learner.gamma'",
    "algorithm.gae_lambda": "write 'learner.gae_lambda'",
    "algorithm.clip_ratio_high": "write 'learner.clip_coef'",
    "algorithm.clip_ratio_low": "write 'learner.clip_coef'",
    "algorithm.entropy_bonus": "write 'learner.ent_coef'",
    "algorithm.tau": "write 'learner.tau'",
    "algorithm.update_epoch": "write 'learner.update_epochs'",
    "algorithm.replay_buffer": "write 'run.capacity_gb'",
    "algorithm.demo_buffer": "write 'demos.store' and 'learner.demo_ratio'",
    "algorithm": "write 'learner' for the algorithm that learns, 'policy.inference' for rtc or sequential",
    "actor.optim.lr": "write 'learner.lr'",
    "actor.global_batch_size": "write 'learner.batch_size' (sac, qchunk) or 'learner.num_minibatches' (ppo)",
    "actor.micro_batch_size": "leave it out: a batch is one piece",
    "actor.model.image_keys": "write 'env.cameras'",
    "actor.model.image_size": "write 'env.image_size' as [height, width]",
    "actor": "write 'learner'",
    "model": "write 'policy.path' for a policy to start from, 'learner' for the networks",
    "data": "write 'demos.store' for a store of demonstrations",
    "dataset": "write 'demos.store' for a store of demonstrations",
    "replay_buffer": "write 'run.capacity_gb'",
    "buffer_size": "write 'run.capacity_gb'",
    "env.train": "write the environment's keys under 'env' itself",
    "env.eval": "write 'evaluation'; it runs the same environment on eval seeds",
    "runner.max_steps": "write 'run.max_steps'",
    "runner.max_epochs": "write 'run.max_steps'",
    "runner.val_check_interval": "write 'evaluation.freq'",
    "runner.save_interval": "write 'run.checkpoint_freq'",
    "runner": "write 'run': max_steps, max_episodes, checkpoint_freq, ...",
    "cluster.num_nodes": "leave it out: nodes are those that 'plaudit cluster start' started",
}


def translate(tree: Mapping[str, Any]) -> Tree:
    """A config's tree with keys of other stacks as ours; a key without a translation is an error that says what to
    write."""
    tree = _translate_rlinf_env(_translate_resume_dir(_without_no_meaning(_translate_flags(dict(tree)))))
    tree = _translate_collect(_translate_reward_model(_with_images(tree)))
    reject_foreign_keys(tree, OTHER_NAMES)
    return tree


def _translate_flags(tree: Tree) -> Tree:
    """The entry scripts' flags, which may stand in the file too."""
    if "inference_algorithm" in tree:
        policy = _block(tree, "policy")
        inference = {"type": tree.pop("inference_algorithm"), **_block(policy, "inference")}
        tree["policy"] = {**policy, "inference": inference}
    if "policy_yaml" in tree:
        tree["policy"] = {"path": tree.pop("policy_yaml"), **_block(tree, "policy")}
    if tree.pop("human_reward_labeler", False):
        tree["judge"] = {"type": "human"}
    files = {key: tree.pop(key) for key in ROBOT_FILES if key in tree}
    if files:
        robot = tree.get("robot", {})
        tree["robot"] = {**({"type": robot} if isinstance(robot, str) else robot), **files}
    return tree


def _without_no_meaning(tree: Tree) -> Tree:
    """Without the recipes' keys that say what is so here anyway: no worker groups, one node, nothing to resume."""
    silent = {"reward": ("group_name",), "cluster": ("num_nodes",), "runner": ("resume_dir",)}
    for block, keys in silent.items():
        inner = _block(tree, block)
        meant = {
            "num_nodes": inner.get("num_nodes") not in (None, 1),
            "resume_dir": inner.get("resume_dir") is not None,
        }
        rest = {key: value for key, value in inner.items() if key not in keys or meant.get(key, False)}
        if inner and not rest:
            tree = {key: value for key, value in tree.items() if key != block}
        elif inner:
            tree = {**tree, block: rest}
    return tree


def _translate_resume_dir(tree: Tree) -> Tree:
    """`runner.resume_dir` of the recipes is `run.resume_dir`."""
    runner, run = _block(tree, "runner"), _block(tree, "run")
    if "resume_dir" not in runner:
        return tree
    if run.get("resume_dir") is not None:
        raise _problem(("runner", "resume_dir"), "this is the same as 'run.resume_dir'; write one of them")
    rest = {key: value for key, value in tree.items() if key != "runner"}
    run["resume_dir"] = runner.pop("resume_dir")
    return {**rest, "run": run, **({"runner": runner} if runner else {})}


def _translate_rlinf_env(tree: Tree) -> Tree:
    """`env.train` of the recipes: what a policy sees and what is rendered, how many environments, how long."""
    env = _block(tree, "env")
    train = _block(env, "train")
    if not train:
        return tree
    params = _block(train, "init_params")
    seen, rendered = params.pop("obs_mode", None), params.pop("render_mode", None)
    rendered = train.pop("reward_render_mode", None) or rendered
    run = _block(tree, "run")
    for theirs, ours, block in (("total_num_envs", "num_envs", run), ("max_episode_steps", "max_steps", env)):
        if theirs in train:
            block.setdefault(ours, train.pop(theirs))
    policy = _block(tree, "policy")
    if seen in ("state", "state_dict"):
        env.setdefault("obs", "both" if rendered else "state")
        if rendered:
            policy.setdefault("cameras", [])
    elif seen is not None or rendered:
        env.setdefault("obs", "both")
    rest = {**train, "init_params": params} if params else {k: v for k, v in train.items() if k != "init_params"}
    env = {**{key: value for key, value in env.items() if key != "train"}, **({"train": rest} if rest else {})}
    blocks = {"env": env, "run": run, "policy": policy}
    return {**tree, **{key: block for key, block in blocks.items() if block or key in tree}}


def _with_images(tree: Tree) -> Tree:
    """The recipes render images wherever they collect data or use a reward model; here `env.obs` says so."""
    reward, env = _block(tree, "reward"), tree.get("env")
    folders = "data_collection" in reward and reward.get("collect_data") is not False
    files = _block(tree, "reward_data_collection").get("enabled", "reward_data_collection" in tree)
    if env is None or not (folders or files or reward.get("use_reward_model")):
        return tree
    env = {"type": env} if isinstance(env, str) else env
    return {**tree, "env": {"obs": "both", **env}} if isinstance(env, dict) else tree


def place_on_gpus(tree: Tree) -> Tree:
    """`cluster.component_placement` in a run of one process: the GPU of the reward model and that of the learner.

    A GPU that this machine does not have is no error: the recipes are written for two.
    """
    placed = _block(_block(tree, "cluster"), "component_placement")
    if not placed:
        return tree
    import torch

    there = torch.cuda.device_count()
    for component, block, key in (("reward", "judge", "device"), ("actor", "run", "device")):
        number = str(placed.get(component, "")).rpartition("-")[2]
        named = tree.get("judge") if block == "judge" else {}
        classifier = block == "run" or (isinstance(named, dict) and named.get("type") == "classifier")
        if classifier and number.isdecimal() and int(number) < there:
            tree = {**tree, block: {key: f"cuda:{number}", **_block(tree, block)}}
    cluster = {k: v for k, v in _block(tree, "cluster").items() if k != "component_placement"}
    rest = {k: v for k, v in tree.items() if k != "cluster"}
    return {**rest, **({"cluster": cluster} if cluster else {})}


def _block(tree: Mapping[str, Any], key: str) -> Tree:
    return dict(tree[key]) if isinstance(tree.get(key), dict) else {}


def _translate_reward_model(tree: Tree) -> Tree:
    """The recipes' reward model as our judge; what they say of its network stays in `reward.reward_model`."""
    reward = _block(tree, "reward")
    wanted = reward.pop("use_reward_model", None)
    blocks = {name: reward.pop(name) for name in REWARD_MODEL_BLOCKS if reward.get(name) is not None}
    if len(blocks) > 1:
        raise _problem(("reward", "resnet"), "a reward model is described twice; keep one of the blocks")
    name, block = next(iter(blocks.items()), ("reward_model", {}))
    description = dict(_mapping(block, ("reward", name)))
    if reward.get("reward_model_type") is not None:
        description["reward_model_type"] = reward.pop("reward_model_type")
    path = description.pop("checkpoint_path", None)
    kind = description.pop("reward_type", None)
    if kind is not None and reward.setdefault("reward_type", kind) != kind:
        raise _problem(("reward", name, "reward_type"), f"it is {kind} here and {reward['reward_type']} in 'reward'")
    judge = _block(tree, "judge")
    named = "type" in judge or isinstance(tree.get("judge"), str)
    if path is not None and named:
        raise _problem(("reward", name, "checkpoint_path"), "'judge' names who decides already; write one of them")
    if wanted and path is None and not named:
        raise _problem(("reward", "use_reward_model"), "it needs a model: write 'judge: FOLDER' of a reward model")
    if path is not None and wanted is not False:
        given = {key: description[key] for key in _IN_NO_FILE if description.get(key) is not None}
        network = {"network": given} if given else {}
        tree = {**tree, "judge": {**network, **judge, "type": "classifier", "model": path}}
    if description and wanted is not False:
        reward["reward_model"] = description
    return {**{key: value for key, value in tree.items() if key != "reward"}, **({"reward": reward} if reward else {})}


def _translate_collect(tree: Tree) -> Tree:
    """The recipes' two blocks for collecting data as our `collect`; their switches may say no.

    reward_data_collection: {enabled, save_dir, target_success, target_failure}
    reward: {collect_data, data_collection: {positive_dir, negative_dir, image_keys, max_positive_trajectories, ...}}
    """
    tree = _collect_block(tree)
    collect = tree.get("collect")
    if not isinstance(collect, dict):
        return tree
    for other, ours in _COLLECT_SYNONYMS.items():
        if other in collect and ours in collect:
            raise _problem(("collect", other), f"this is the same as '{ours}'; write one of them")
    return {**tree, "collect": {_COLLECT_SYNONYMS.get(key, key): value for key, value in collect.items()}}


def _collect_block(tree: Tree) -> Tree:
    reward = _block(tree, "reward")
    wanted, folders = reward.pop("collect_data", None), reward.pop("data_collection", None)
    block = tree.get("reward_data_collection")
    if wanted is None and folders is None and block is None:
        return tree
    rest = {key: value for key, value in tree.items() if key not in ("reward", "reward_data_collection")}
    rest |= {"reward": reward} if reward else {}
    found: list[Tree] = []
    if folders is not None and wanted is not False:
        found.append(_from_folders(_mapping(folders, ("reward", "data_collection"))))
    elif wanted:
        raise _problem(("reward", "collect_data"), "say where to: write a block 'collect' with a 'store'")
    if block is not None and _mapping(block, ("reward_data_collection",)).get("enabled") is not False:
        found.append(_from_save_dir(block))
    if len(found) + ("collect" in tree) > 1:
        raise _problem(("collect",), "what to collect is said twice; keep one of the blocks")
    return {**rest, "collect": found[0]} if found else rest


def _from_save_dir(block: Mapping[str, Any]) -> Tree:
    """The store lies in the folder of success/ and failure/."""
    store = {"store": str(Path(block["save_dir"]) / "store")} if isinstance(block.get("save_dir"), str) else {}
    return {**store, **{key: value for key, value in block.items() if key != "enabled"}}


def _from_folders(block: Mapping[str, Any]) -> Tree:
    """One store for both folders, beside them."""
    ours = {"image_keys": "cameras"}
    kept = {ours.get(key, key): value for key, value in block.items()}
    if "store" in kept:
        return kept
    where = [str(block[key]) for key in ("positive_dir", "negative_dir") if block.get(key)]
    if not where or len({Path(folder).is_absolute() for folder in where}) > 1:
        raise _problem(
            ("reward", "data_collection"), "its folders have no place in common; add a key 'store', for the episodes"
        )
    above = Path(os.path.commonpath([Path(folder).parent for folder in where]))
    return {"store": str(above / "store"), **kept}


def _mapping(value: Any, where: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _problem(where, "this is a block of keys, not a value")
    return value


def _problem(where: tuple[str, ...], message: str) -> ConfigError:
    return ConfigError([(where, f"key '{'.'.join(where)}': {message}")])

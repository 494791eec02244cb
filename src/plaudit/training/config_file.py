"""Reading a training config: a YAML file, `a.b=c` overrides and a command's flags, of which the later win.

`env=lift` is short for `env.type=lift`, and so are `robot=`, `learner=`, `judge=`, `teleop=` and `policy.inference=`. A
judge may also be named by its folder or its file: `judge=runs/reward_model`, `judge=calibrated.yaml`. When an override
changes a block's `type`, the file's other keys of that block are dropped: they belong to what was replaced.

Some keys of other stacks are translated: the flags of the entry scripts, the ManiSkill recipes' blocks for a reward
model (`reward.use_reward_model`, `reward.reward_model`, `reward.resnet`) and for collecting data
(`reward_data_collection`, `reward.collect_data`), their `env.train` and their placement on GPUs. Every other foreign
key is an error that names ours. What a recipe says about a network is compared with the network itself.
"""

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from plaudit.config import expand_type_override, load, reject_foreign_keys
from plaudit.errors import ConfigError, did_you_mean
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import JUDGE_FILES, is_judge_path, judge_tree
from plaudit.policies.loader import load_policy
from plaudit.registry import JUDGE_REGISTRY, LEARNER_REGISTRY, ROBOT_REGISTRY
from plaudit.rollout.run import backup_problem, check_chunks, with_robot_defaults
from plaudit.rollout.teleop import teleop_defaults
from plaudit.training.config import BUILT_IN_TASKS, PolicySettings, Schedule, TrainingConfig

Tree = dict[str, Any]

# Blocks whose `type` names a class.
TYPED = ("env", "robot", "learner", "judge", "teleop", "policy.inference", "policy.encoder")
IMPROVES_A_BASE = ("weighted_bc", "expo", "dsrl", "steer")  # learners that need learner.base
ROBOT_FILES = ("inference_runtime_params_config", "inference_runtime_topics_config")
REWARD_MODEL_BLOCKS = ("reward_model", "resnet")  # the recipes' names for it
NETWORK_KEYS = ("image_size", "image_keys", "arch", "normalize")  # that a checkpoint of RLinf does not contain
COLLECT_SYNONYMS = {"max_positive_trajectories": "target_success", "max_negative_trajectories": "target_failure"}

_LEARNER = "write 'learner': its keys are type (sac, qchunk, ppo), gamma, lr, batch_size, utd_ratio, ..."
_JUDGE = "write 'judge': type is classifier, vlm, simulator, human or cascade"
_CLASSIFIER = "write 'judge: {type: classifier, model: ...}'"
_STORE = "write 'demos.store' for a store of demonstrations"
_RENAMED = {  # our key -> the keys of RLinf, LeRobot and SERL that mean the same
    "run.max_steps": "steps runner.max_steps runner.max_epochs",
    "run.max_episodes": "episodes",
    "run.seed": "seed",
    "run.name": "name",
    "run.device": "device",
    "run.num_envs": "num_envs",
    "run.capacity_gb": "capacity_gb replay_buffer buffer_size algorithm.replay_buffer",
    "run.checkpoint_freq": "runner.save_interval",
    "cluster.num_learners": "num_workers",
    "evaluation.freq": "runner.val_check_interval",
    "judge.ood": "judge.unlike",
    "judge.retrain": "retrain",
    "judge.window": "window",
    "judge.rule.threshold": "reward.threshold",
    "judge.device": "reward.device",
    "learner.lr": "optimizer lr learning_rate actor.optim.lr",
    "learner.batch_size": "batch_size",
    "learner.utd_ratio": "utd_ratio",
    "learner.gamma": "algorithm.gamma",
    "learner.gae_lambda": "algorithm.gae_lambda",
    "learner.clip_coef": "algorithm.clip_ratio_high algorithm.clip_ratio_low",
    "learner.ent_coef": "algorithm.entropy_bonus",
    "learner.tau": "algorithm.tau",
    "learner.update_epochs": "algorithm.update_epoch",
    "learner": "actor",
    "env.cameras": "actor.model.image_keys",
}
# Keys of other stacks, and what to write instead. A longer key wins.
OTHER_NAMES: Mapping[str, str] = {
    **{theirs: f"write '{ours}'" for ours, names in _RENAMED.items() for theirs in names.split()},
    **dict.fromkeys(("trainer", "train", "training"), _LEARNER),
    **dict.fromkeys(("checkpoint", "checkpointing"), "write 'run.checkpoint_freq', in env steps"),
    **dict.fromkeys(("data", "dataset"), _STORE),
    "max_steps": "write 'run.max_steps' for the run, 'policy.inference.max_episode_steps' for an episode on a robot",
    "rollout": "write 'policy.inference' for how a robot is driven, 'run.num_envs' for a simulation",
    "reward_labeler": _JUDGE,
    "reward_model": _CLASSIFIER,
    "reward.model": f"{_CLASSIFIER}, or 'judge: FOLDER'",
    "reward_training": "a reward model is trained by 'plaudit train-reward --config FILE'",
    "loss": "leave it out: it is the learner's",
    "algorithm.demo_buffer": "write 'demos.store' and 'learner.demo_ratio'",
    "algorithm": "write 'learner' for the algorithm that learns, 'policy.inference' for rtc or sequential",
    "actor.global_batch_size": "write 'learner.batch_size' (sac, qchunk) or 'learner.num_minibatches' (ppo)",
    "actor.micro_batch_size": "leave it out: a batch is one piece",
    "actor.model.image_size": "write 'env.image_size' as [height, width]",
    "model": "write 'policy.path' for a policy to start from, 'learner' for the networks",
    "env.train": "write the environment's keys under 'env' itself",
    "env.eval": "write 'evaluation'; it runs the same environment on eval seeds",
    "runner": "write 'run': max_steps, max_episodes, checkpoint_freq, ...",
    "cluster.num_nodes": "leave it out: nodes are those that 'plaudit cluster start' started",
}


# Keys that RLinf's recipes have, and the task and the learner of maniskill_ppo_cnn, the recipe of its guide.
RECIPE_KEYS = {"group_name", "collect_data", "use_reward_model", "reward_data_collection"}
RECIPE_DEFAULTS = {"env": "pick_place", "learner": "ppo"}


def load_training_config(
    schedule: Schedule,
    path: Path | None,
    overrides: Sequence[str],
    *,
    robot_files: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> TrainingConfig:
    """Read a config and fill in what follows from its task, robot and policy.

    robot_files: key of the robot -> path
    flags: key of the tree -> value, like those of an override; None: not given
    """
    given = [f"{key}={value}" for key, value in (flags or {}).items() if value is not None]
    full = [
        expand_type_override(one, TYPED, "learner=sac" if one in TYPED else f"learner=sac; {did_you_mean(one, TYPED)}")
        for one in (*overrides, *given)
    ]

    def complete(tree: Tree) -> Tree:
        if schedule == "train" and "robot" not in tree and RECIPE_KEYS & {*tree, *_read_block(tree, "reward")}:
            tree = _complete_recipe(_with_types(tree))
        tree = _with_types(translate(tree))
        needed = {"learner": f"name one: learner=ppo (known: {', '.join(LEARNER_REGISTRY.names())})"}
        if schedule == "train" and "robot" not in tree:
            needed["env"] = f"name a simulated task: env={BUILT_IN_TASKS[0]} (known: {', '.join(BUILT_IN_TASKS)})"
        missing: list[tuple[tuple[str, ...], str]] = [
            ((key,), f"key '{key}' is missing; {how}") for key, how in needed.items() if key not in tree
        ]
        learner = _read_block(tree, "learner")
        if learner.get("type") in IMPROVES_A_BASE and "base" not in learner:
            how = "'plaudit train-policy' makes one, and learner.base=POLICY names its folder, its file or a run"
            missing.append(
                (("learner", "base"), f"key 'learner.base' is missing: the trained policy to improve; {how}")
            )
        if missing:
            raise ConfigError(missing)
        tree["judge"] = _judge(tree.get("judge", {}))
        if schedule == "train":
            _place_on_gpus(tree)
        named = tree.get("schedule", schedule)
        named = schedule if named == schedule else f"{named}: run it with plaudit {named}"
        return {**_with_robot(tree, robot_files or {}), "schedule": named}

    config = load(TrainingConfig, path, full, complete, typed=TYPED)
    return config if schedule == "train" else config.model_copy(update={"policy": _complete_policy(config)})


def _complete_recipe(tree: Tree) -> Tree:
    """The task and the learner of RLinf's recipe where it names none; its task pays a dense reward without a model."""
    named = {key: {"type": kind, **_read_block(tree, key)} for key, kind in RECIPE_DEFAULTS.items()}
    reward = _read_block(tree, "reward")
    if "type" not in _read_block(tree, "env") and not reward.get("use_reward_model") and "judge" not in tree:
        named["reward"] = {"env_reward": "dense", **reward}
    return {**tree, **named}


def _with_types(tree: Tree) -> Tree:
    """`learner: sac` in a file is `learner: {type: sac}`."""
    tree = {key: {"type": value} if key in TYPED and isinstance(value, str) else value for key, value in tree.items()}
    if isinstance(policy := tree.get("policy"), dict):
        named = {key: {"type": policy[key]} for key in ("inference", "encoder") if isinstance(policy.get(key), str)}
        tree["policy"] = {**policy, **named}
    return tree


def _judge(tree: Any) -> Any:
    """A judge that is named by a file: the keys of that file."""
    named = tree.get("type") if isinstance(tree, dict) else None
    if not isinstance(named, str):
        return tree
    if not is_judge_path(named):
        if ":" not in named and named not in (names := JUDGE_REGISTRY.names()):
            raise _problem(
                ("judge",),
                f"there is no judge '{named[:60]}', nor such a file or folder; {did_you_mean(named, names)}",
            )
        return tree
    path, rest = Path(named), {key: value for key, value in tree.items() if key != "type"}
    beside = certificate_beside(path)
    # A reward model's folder is in its config, so its certificate is found there even after the model is replaced.
    certificate = {"certificate": str(beside)} if path.suffix in JUDGE_FILES and beside.is_file() else {}
    return {**judge_tree(path), **certificate, **rest}


def _with_robot(tree: Tree, files: Mapping[str, str]) -> Tree:
    """Add the robot's files and the settings that follow from the robot."""
    robot, env = tree.get("robot"), tree.get("env")
    if robot == {"type": "sim"} and "env" in tree:  # the entry scripts always name a robot
        tree = {key: value for key, value in tree.items() if key != "robot"}
    if isinstance(env, dict):
        return _with_teleop(tree, {"type": "sim", "env": env})
    if not isinstance(robot, dict) or not isinstance(robot.get("type"), str):
        return tree
    paced = "realtime" in ROBOT_REGISTRY.get(robot["type"]).model_fields  # then the inference engine keeps the rate
    robot = {**({"realtime": False} if paced else {}), **robot, **files}
    return _with_teleop({**tree, "robot": robot}, robot)


def _with_teleop(tree: Tree, robot: Tree) -> Tree:
    teleop = tree.get("teleop")
    if not isinstance(teleop, dict) or not isinstance(teleop.get("type"), str):
        return tree
    return {**tree, "teleop": {**teleop_defaults(teleop["type"], robot), **teleop}}


def _complete_policy(config: TrainingConfig) -> PolicySettings:
    """Fill in unset keys from the simulated task, the policy's file and the robot's files."""
    policy, inference, backup = config.policy, config.policy.inference, config.backup_horizon
    is_learner = policy.behavior == "learner" or policy.path is None
    spec = None if policy.path is None or (is_learner and config.env is not None) else load_policy(policy.path)
    horizon = config.learner.action_horizon if is_learner or spec is None else spec.horizon
    learning = policy.normalizer
    if config.env is not None:  # a simulated task is driven as fast as it goes, for as long as its episodes are
        steps = getattr(config.env, "max_steps", None)
        own = {"name": config.target_name, "realtime": False, "max_episode_steps": steps}
        missing = {key: own[key] for key in own.keys() - inference.model_fields_set if own[key] is not None}
        inference = inference.model_copy(update=missing)
    else:
        acting = _absolute(inference.normalizer or (spec and spec.normalizer))
        learning = _absolute(learning) or (acting if policy.behavior == "learner" else None)
        own = {"normalizer": acting, "name": inference.name or config.target_name}
        inference = with_robot_defaults(inference.model_copy(update=own), config.robot, horizon)
    algorithm, executed = config.inference_type, policy.inference.execution_horizon
    # The default, the robot's or half of a chunk, is raised to the length of the learner's backup. Real-time chunking
    # never executes a whole chunk, so `check_chunks` refuses that.
    defaults = executed is None and (backup, algorithm) != (horizon, "rtc")
    if defaults and horizon is not None and backup is not None:
        is_short = backup_problem(algorithm, horizon, inference.execution_horizon, backup)
        inference = inference.model_copy(update={"execution_horizon": backup}) if is_short else inference
    check_chunks(algorithm, inference.execution_horizon, horizon, backup)
    return policy.model_copy(update={"inference": inference, "normalizer": learning})


def _absolute(named: Path | dict[str, Any] | None) -> Path | dict[str, Any] | None:
    """Other processes have other working folders."""
    return named.absolute() if isinstance(named, Path) else named


def translate(tree: Mapping[str, Any]) -> Tree:
    """Translate keys of other stacks; a key without a translation is an error that says what to write."""
    tree = deepcopy(dict(tree))
    _translate_flags(tree)
    _translate_runner(tree)
    _translate_env(tree)
    _translate_reward_model(tree)
    _translate_collect(tree)
    reject_foreign_keys(tree, OTHER_NAMES)
    return tree


def _block(tree: Tree, key: str) -> Tree:
    """The block `key`, which is created if it is missing."""
    if not isinstance(tree.get(key), dict):
        tree[key] = {}
    return tree[key]


def _read_block(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The block `key`; empty if it is missing."""
    return tree[key] if isinstance(tree.get(key), dict) else {}


def _pop(tree: Tree, block: str, key: str) -> Any:
    """Remove a key, and its block if nothing else is in it; returns its value, None if it is missing."""
    value = _read_block(tree, block).pop(key, None)
    if tree.get(block) == {}:
        del tree[block]
    return value


def _problem(where: tuple[str, ...], message: str) -> ConfigError:
    return ConfigError([(where, f"key '{'.'.join(where)}': {message}")])


def _mapping(value: Any, where: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _problem(where, "this is a block of keys, not a value")
    return value


def _translate_flags(tree: Tree) -> None:
    """The entry scripts' flags, which may also be in the file."""
    if "inference_algorithm" in tree:
        _block(_block(tree, "policy"), "inference").setdefault("type", tree.pop("inference_algorithm"))
    if "policy_yaml" in tree:
        _block(tree, "policy").setdefault("path", tree.pop("policy_yaml"))
    if tree.pop("human_reward_labeler", False):
        tree["judge"] = {"type": "human"}
    if files := {key: tree.pop(key) for key in ROBOT_FILES if key in tree}:
        robot = tree.get("robot", {})
        tree["robot"] = {**({"type": robot} if isinstance(robot, str) else robot), **files}


def _translate_runner(tree: Tree) -> None:
    """Drop the recipes' keys that are true here anyway; `runner.resume_dir` is our `run.resume_dir`."""
    _pop(tree, "reward", "group_name")
    if _read_block(tree, "cluster").get("num_nodes", 0) in (None, 1):
        _pop(tree, "cluster", "num_nodes")
    folder = _pop(tree, "runner", "resume_dir")
    if folder is not None and _read_block(tree, "run").get("resume_dir") is not None:
        raise _problem(("runner", "resume_dir"), "this is the same as 'run.resume_dir'; write one of them")
    if folder is not None:
        _block(tree, "run")["resume_dir"] = folder


def _translate_env(tree: Tree) -> None:
    """`env.train` of the recipes: what a policy sees, what is rendered, how many environments, how long.

    The recipes render images whenever they collect data or use a reward model; here `env.obs` says so.
    """
    env = _read_block(tree, "env")
    if train := _read_block(env, "train"):
        params = _read_block(train, "init_params")
        obs, rendered = params.pop("obs_mode", None), params.pop("render_mode", None)
        rendered = train.pop("reward_render_mode", None) or rendered
        if not params:
            train.pop("init_params", None)
        if "total_num_envs" in train:
            _block(tree, "run").setdefault("num_envs", train.pop("total_num_envs"))
        if "max_episode_steps" in train:
            env.setdefault("max_steps", train.pop("max_episode_steps"))
        if obs in ("state", "state_dict"):
            env.setdefault("obs", "both" if rendered else "state")
            if rendered:
                _block(tree, "policy").setdefault("cameras", [])
        elif obs is not None or rendered:
            env.setdefault("obs", "both")
        if not train:
            del env["train"]
    reward, named = _read_block(tree, "reward"), tree.get("env")
    folders = "data_collection" in reward and reward.get("collect_data") is not False
    files = _read_block(tree, "reward_data_collection").get("enabled", "reward_data_collection" in tree)
    if isinstance(named, str | dict) and (folders or files or reward.get("use_reward_model")):
        tree["env"] = {"obs": "both", **({"type": named} if isinstance(named, str) else named)}


def _place_on_gpus(tree: Tree) -> None:
    """`cluster.component_placement` in a run of one process: the GPU of the reward model and that of the learner.

    A GPU that this machine does not have is no error: the recipes are written for two.
    """
    if not _read_block(_read_block(tree, "cluster"), "component_placement"):
        return
    import torch

    placed = _pop(tree, "cluster", "component_placement")
    for component, block in (("reward", "judge"), ("actor", "run")):
        number = str(placed.get(component, "")).rpartition("-")[2]
        has_device = block == "run" or _read_block(tree, "judge").get("type") == "classifier"
        if has_device and number.isdecimal() and int(number) < torch.cuda.device_count():
            _block(tree, block).setdefault("device", f"cuda:{number}")


def _translate_reward_model(tree: Tree) -> None:
    """The recipes' reward model as our judge; what they say about its network stays in `reward.reward_model`."""
    reward = tree.get("reward")
    if not isinstance(reward, dict):
        return
    wanted = reward.pop("use_reward_model", None)
    blocks = {name: reward.pop(name) for name in REWARD_MODEL_BLOCKS if reward.get(name) is not None}
    if len(blocks) > 1:
        raise _problem(("reward", "resnet"), "a reward model is described twice; keep one of the blocks")
    name, block = next(iter(blocks.items()), ("reward_model", {}))
    description = dict(_mapping(block, ("reward", name)))
    if reward.get("reward_model_type") is not None:
        description["reward_model_type"] = reward.pop("reward_model_type")
    path, kind = description.pop("checkpoint_path", None), description.pop("reward_type", None)
    if kind is not None and reward.setdefault("reward_type", kind) != kind:
        raise _problem(("reward", name, "reward_type"), f"it is {kind} here and {reward['reward_type']} in 'reward'")
    named = "type" in _read_block(tree, "judge") or isinstance(tree.get("judge"), str)
    if path is not None and named:
        raise _problem(("reward", name, "checkpoint_path"), "'judge' names who decides already; write one of them")
    if wanted and path is None and not named:
        raise _problem(("reward", "use_reward_model"), "it needs a model: write 'judge: FOLDER' of a reward model")
    if path is not None and wanted is not False:
        judge = _block(tree, "judge")
        judge |= {"type": "classifier", "model": path}
        if network := {key: description[key] for key in NETWORK_KEYS if description.get(key) is not None}:
            judge.setdefault("network", network)
    if description and wanted is not False:
        reward["reward_model"] = description
    if not reward:
        del tree["reward"]


def _translate_collect(tree: Tree) -> None:
    """The recipes' two blocks for collecting data as our `collect`; each has a switch that may be off.

    reward_data_collection: {enabled, save_dir, target_success, target_failure}
    reward: {collect_data, data_collection: {positive_dir, negative_dir, image_keys, max_positive_trajectories, ...}}
    """
    blocks = [tree["collect"]] if "collect" in tree else []
    wanted, folders = _pop(tree, "reward", "collect_data"), _pop(tree, "reward", "data_collection")
    if folders is not None and wanted is not False:
        blocks.append(_from_folders(_mapping(folders, ("reward", "data_collection"))))
    elif wanted:
        raise _problem(("reward", "collect_data"), "say where to: write a block 'collect' with a 'store'")
    files = tree.pop("reward_data_collection", None)
    if files is not None and _mapping(files, ("reward_data_collection",)).get("enabled") is not False:
        store = {"store": str(Path(files["save_dir"]) / "store")} if isinstance(files.get("save_dir"), str) else {}
        blocks.append({**store, **{key: value for key, value in files.items() if key != "enabled"}})
    if len(blocks) > 1:
        raise _problem(("collect",), "the data collection is configured twice; keep one of the blocks")
    if blocks:
        tree["collect"] = collect = blocks[0]
        for other, ours in COLLECT_SYNONYMS.items() if isinstance(collect, dict) else ():
            if other in collect and ours in collect:
                raise _problem(("collect", other), f"this is the same as '{ours}'; write one of them")
            if other in collect:
                collect[ours] = collect.pop(other)


def _from_folders(block: Mapping[str, Any]) -> Tree:
    """One store for both folders, next to them."""
    collect = {"cameras" if key == "image_keys" else key: value for key, value in block.items()}
    if "store" in collect:
        return collect
    folders = [Path(str(block[key])) for key in ("positive_dir", "negative_dir") if block.get(key)]
    if not folders or len({folder.is_absolute() for folder in folders}) > 1:
        raise _problem(
            ("reward", "data_collection"), "its folders have no place in common; add a key 'store', for the episodes"
        )
    parent = Path(os.path.commonpath([folder.parent for folder in folders]))
    return {"store": str(parent / "store"), **collect}

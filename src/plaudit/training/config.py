"""What a training run is made of, as a YAML file or the command line says it.

    plaudit train learner=sac env=pick_place scripted_demos=20 learner.lr=3e-4

Other stacks write the same things under other names. Those names are known here: the blocks that collect data are taken
as they are (training/collect.py), and each other key is answered with ours. A config is never half understood.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from plaudit.config import Config, Seed, load, refuse_other_names, spelled_out
from plaudit.data.rewards import RewardConfig
from plaudit.errors import did_you_mean
from plaudit.learners.config import OffPolicyConfig
from plaudit.registry import ENV_REGISTRY, LEARNER_REGISTRY
from plaudit.rule import DecisionRule, PartialRule
from plaudit.training.collect import CollectConfig, translate_collect

BUILT_IN = ("lift", "pick_place", "push")


class CheckpointBlock(Config):
    """A reward model as the recipes name it. What describes the network is held against what the model says itself."""

    checkpoint_path: Path | None = None  # a folder, or a .pt; None in a recipe that only collects
    image_keys: tuple[str, ...] | None = None
    image_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None  # channels, height, width
    hidden_dim: PositiveInt | None = None
    num_spatial_blocks: PositiveInt | None = None
    pretrained_encoder_path: Path | None = None  # not read: the weights of the encoder are in the checkpoint
    use_pretrain: bool | None = None
    freeze_encoder: bool | None = None
    reward_type: Literal["binary", "continuous"] | None = None


BLOCKS = ("reward_model", "resnet")  # the names that a CheckpointBlock has in the recipes


class JudgeBlock(Config):
    """How the reward model of a run decides; what is not said is the model's own."""

    rule: PartialRule = Field(default_factory=DecisionRule)

    @model_validator(mode="after")
    def _decides_while_it_runs(self) -> Self:
        if not self.rule.causal:
            raise ValueError(
                "rule.decode 'cutoff' needs whole episodes, and here success ends them; take k_of_n or per_frame"
            )
        return self


class TrainRewardConfig(Config):
    """Who gives the rewards, and how they are paid."""

    # Without a reward model: the simulator's verdict, or its shaped reward.
    kind: Literal["sparse", "dense"] = "sparse"
    # None: success ends the episode, unless a dense reward of the simulator is paid (ending early would cost reward)
    end_on_success: bool | None = None
    # With one: it pays and it ends the episode, and what the simulator knows is only logged.
    use_reward_model: bool | None = None  # None: if one is named
    model: Path | None = None  # its folder, or a .pt
    reward_model: CheckpointBlock | None = None  # the same, as the ManiSkill recipes write it
    resnet: CheckpointBlock | None = None  # likewise
    reward_model_type: Literal["resnet"] | None = None  # as they write it; a model says itself what it is
    mode: Literal["replace", "add", "terminal"] = "replace"  # of the simulator's own reward; see data/rewards.py
    reward_type: Literal["binary", "continuous"] = "binary"
    shaping: float = Field(default=0.0, ge=0)  # weight of potential-based shaping by the model's progress
    force: bool = False  # take a model that failed a control
    device: str | None = None  # that it runs on; None: the learner's
    execution: Literal["eager", "compile", "graph", "compile+graph"] = "eager"  # on a GPU, see classifier/swift.py
    audit_share: float = Field(default=0.25, ge=0, le=1)  # of the episodes, whose truth is looked up
    alarm_gap: float = Field(default=0.2, gt=0, le=1)  # share of false or of missed successes among these that rings
    alarm_window: PositiveInt = 60  # audited episodes that count
    alarm_least: PositiveInt = 30  # audited episodes before it may ring
    on_alarm: Literal["stop", "warn"] = "stop"

    @property
    def block(self) -> CheckpointBlock | None:
        return self.resnet if self.reward_model is None else self.reward_model

    @property
    def named(self) -> Path | None:
        """The model, whether it is used or not."""
        return self.model if self.model is not None or self.block is None else self.block.checkpoint_path

    @property
    def model_path(self) -> Path | None:
        """None where the simulator is in charge."""
        return None if self.use_reward_model is False else self.named

    @property
    def rewards(self) -> RewardConfig:
        """How rewards follow from labels."""
        if self.model_path is None:
            return RewardConfig(env_reward=self.kind)
        return RewardConfig(mode=self.mode, reward_type=self.reward_type, shaping=self.shaping)

    @property
    def ends(self) -> bool:
        """Whether success ends the episode."""
        pays_on = self.model_path is None and self.kind == "dense"
        return not pays_on if self.end_on_success is None else self.end_on_success

    @model_validator(mode="after")
    def _one_model_is_named(self) -> Self:
        blocks = [block for block in (self.reward_model, self.resnet) if block is not None]
        twice = self.model is not None and any(block.checkpoint_path is not None for block in blocks)
        if len(blocks) > 1 or twice:
            raise ValueError("a reward model is named more than once; keep 'model' and leave out the others")
        if self.use_reward_model and self.named is None:
            raise ValueError("use_reward_model needs a model: write 'reward.model' with its folder")
        return self

    @model_validator(mode="after")
    def _it_pays_in_one_way(self) -> Self:
        inside = None if self.block is None else self.block.reward_type
        if inside not in (None, self.reward_type):
            raise ValueError(f"reward_type is {self.reward_type}, and {inside} in its block; write one of them")
        return self

    @model_validator(mode="after")
    def _the_alarm_can_ring(self) -> Self:
        if self.alarm_least > self.alarm_window:
            raise ValueError(
                f"alarm_least is {self.alarm_least} and alarm_window {self.alarm_window}; an alarm that waits for more "
                "episodes than it remembers can never ring"
            )
        return self


class EvalConfig(Config):
    episodes: PositiveInt = 50  # on seeds that no training episode ever has
    every: PositiveInt = 2000  # steps of training between evaluations
    stop_at: float | None = Field(default=None, gt=0, le=1)  # end the run at this success rate


class TrainConfig(Config):
    env: Annotated[Any, ENV_REGISTRY.field]
    learner: Annotated[Any, LEARNER_REGISTRY.field]
    name: str | None = Field(
        default=None, pattern=r"^[\w.-]+$"
    )  # of the folder under runs/; None: env, learner and seed
    # Which cameras the learner looks at. None: all that the environment has; []: none, it learns from the state while
    # cameras record.
    policy_cameras: tuple[str, ...] | None = None
    judge: JudgeBlock = Field(default_factory=JudgeBlock)
    reward: TrainRewardConfig = Field(default_factory=TrainRewardConfig)
    evaluation: EvalConfig = Field(default_factory=EvalConfig)
    steps: PositiveInt = 40_000  # of all environments together
    num_envs: PositiveInt = 16  # episodes of a round, side by side
    demos: Path | None = None  # a store of demonstrations with labels
    scripted_demos: NonNegativeInt = 0  # made by the scripted expert at the start; built-in tasks only
    demo_noise: float = Field(default=0.2, ge=0)  # on the expert's actions, of which 1 is the most
    keep_episodes: bool = False  # in the run's store; sac and qchunk keep them in any case, they learn from there
    collect: CollectConfig | None = None  # episodes with the simulator's labels, for a judge to learn from
    capacity_gb: float = Field(default=50.0, gt=0)  # of that store; beyond it the oldest go
    checkpoint_every: PositiveInt = 5000  # steps
    seed: Seed = 0
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto: cuda where there is one
    # Of torch on the processor. None: one for a learner of states, whose small products gain little from more and wait
    # long on a busy machine; as torch likes for one of images.
    threads: PositiveInt | None = None

    @property
    def env_name(self) -> str:
        """As `env=` names it."""
        return ENV_REGISTRY.name_of(self.env)

    @property
    def learner_name(self) -> str:
        """As `learner=` names it."""
        return LEARNER_REGISTRY.name_of(self.learner)

    @property
    def off_policy(self) -> bool:
        """Whether the learner takes batches of replay, and not rounds."""
        return isinstance(self.learner, OffPolicyConfig)

    @property
    def horizon(self) -> int:
        """Actions that the learner's policy returns at a time."""
        return self.learner.action_horizon

    @model_validator(mode="after")
    def _cameras_are_there(self) -> Self:
        there = self.env.cameras if self.env.obs != "state" else ()
        for camera in self.policy_cameras or ():
            if camera not in there:
                raise ValueError(
                    f"policy_cameras has '{camera}', which the environment does not show; {did_you_mean(camera, there)}"
                )
        return self

    @model_validator(mode="after")
    def _a_chunk_fits_into_an_episode(self) -> Self:
        """Of other simulators, it is known once they are built."""
        if self.env_name in BUILT_IN and self.horizon > self.env.max_steps:
            raise ValueError(
                f"learner.horizon is {self.horizon}, and an episode is over after {self.env.max_steps} steps"
            )
        return self

    @model_validator(mode="after")
    def _a_reward_model_has_something_to_see(self) -> Self:
        if self.reward.model_path is not None and self.env.obs == "state":
            raise ValueError(
                "a reward model looks at camera images; write env.obs=both (a policy of states: policy_cameras=[])"
            )
        return self

    @model_validator(mode="after")
    def _there_is_something_to_collect(self) -> Self:
        if self.collect is None:
            return self
        if self.env.obs == "state":
            raise ValueError("collect keeps what cameras see; write 'env.obs: both' (and 'policy_cameras: []')")
        for camera in self.collect.cameras or ():
            if camera not in self.env.cameras:
                known = did_you_mean(camera, self.env.cameras)
                raise ValueError(f"collect.cameras has '{camera}', which the environment does not show; {known}")
        return self

    @model_validator(mode="after")
    def _demonstrations_can_be_had(self) -> Self:
        if self.demos is not None and self.scripted_demos:
            raise ValueError("name a store of demos or ask for scripted_demos, not both")
        if self.scripted_demos and self.env_name not in BUILT_IN:
            raise ValueError(f"only the built-in tasks ({', '.join(BUILT_IN)}) have an expert for scripted_demos")
        return self


_GROUPS = "there are no worker groups in one process; leave it out"
# Keys of the ManiSkill recipes of RLinf and of earlier versions, and what to write instead.
OTHER_NAMES: Mapping[str, str] = {
    "reward.threshold": "write 'judge.rule.threshold'",
    "reward.confirm": "write 'judge.rule.k' and 'judge.rule.n'",
    "reward.place": "leave it out: a model on another GPU needs only 'reward.device: cuda:1'",
    "reward.group_name": _GROUPS,
    "reward_training": "a reward model is trained by 'plaudit train-reward --config FILE'",
    "algorithm.gamma": "write 'learner.gamma'",
    "algorithm.gae_lambda": "write 'learner.gae_lambda'",
    "algorithm.clip_ratio_high": "write 'learner.clip_coef'",
    "algorithm.clip_ratio_low": "write 'learner.clip_coef'",
    "algorithm.entropy_bonus": "write 'learner.ent_coef'",
    "algorithm.tau": "write 'learner.tau'",
    "algorithm.update_epoch": "write 'learner.update_epochs'",
    "algorithm.replay_buffer": "write 'capacity_gb'",
    "algorithm.demo_buffer": "write 'demos' (a store) and 'learner.demo_ratio'",
    "algorithm": "write 'learner': its keys are gamma, lr, and those of PpoConfig, SacConfig or QChunkConfig",
    "actor.optim.lr": "write 'learner.lr'",
    "actor.global_batch_size": "write 'learner.batch_size' (sac, qchunk) or 'learner.num_minibatches' (ppo)",
    "actor.micro_batch_size": "leave it out: a batch is one piece",
    "actor.model.image_keys": "write 'env.cameras'",
    "actor.model.image_size": "write 'env.image_size' as [height, width]",
    "actor": "write 'learner'",
    "env.train.reward_render_mode": "write 'env.obs: both'; cameras then see every frame",
    "env.train.init_params.obs_mode": "write 'env.obs: state', 'pixels' or 'both'",
    "env.train.init_params.render_mode": "write 'env.obs: both'",
    "env.train.total_num_envs": "write 'num_envs'",
    "env.train.max_episode_steps": "write 'env.max_steps'",
    "env.train": "write the environment's keys under 'env' itself",
    "env.eval": "write 'evaluation'; it runs the same environment on seeds held back",
    "runner.resume_dir": "run 'plaudit train --resume FOLDER'",
    "runner.max_steps": "write 'steps'",
    "runner.max_epochs": "write 'steps'",
    "runner.val_check_interval": "write 'evaluation.every'",
    "runner.save_interval": "write 'checkpoint_every'",
    "runner": "write its keys at the top: steps, checkpoint_every, evaluation",
    "cluster": "one process needs no placement; leave it out",
    "rollout": _GROUPS,
}


def load_train_config(path: Path | None, overrides: Sequence[str]) -> TrainConfig:
    """From a file and `a.b=c` overrides; `env=lift` is short for `env.type=lift`, and so is `learner=sac`."""
    full = [spelled_out(override, ("env", "learner"), "learner=sac or learner.lr=1e-3") for override in overrides]
    return load(TrainConfig, path, full, _translated)


def _translated(tree: dict[str, Any]) -> dict[str, Any]:
    """The blocks of other stacks as ours; what has no translation is an error that says what to write."""
    tree = _with_reward_type(translate_collect(tree))
    refuse_other_names(tree, OTHER_NAMES)
    return tree


def _with_reward_type(tree: dict[str, Any]) -> dict[str, Any]:
    """The recipes say in the block of the checkpoint what it pays."""
    reward = tree.get("reward")
    blocks = [reward[name] for name in BLOCKS if isinstance(reward.get(name), dict)] if isinstance(reward, dict) else []
    inside = [block["reward_type"] for block in blocks if block.get("reward_type") is not None]
    return {**tree, "reward": {"reward_type": inside[0], **tree["reward"]}} if inside else tree

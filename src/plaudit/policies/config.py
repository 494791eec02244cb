"""The configs of policies. Without torch, so that a config is read quickly, and where the policy will not run.

A config names its policy's class by a path, which `build()` imports: networks.py, flow.py and qchunk.py need torch,
openpi.py needs the packages of the extra `openpi`.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from plaudit.config import (
    BatchSize,
    Config,
    Edge,
    KeyVariable,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    ServerUrl,
    SmallInt,
    Width,
)
from plaudit.errors import UnknownName
from plaudit.registry import ENCODER_REGISTRY
from plaudit.types import EnvSpec

Guidance = Literal["vjp", "identity", "blend", "prefix"]


def check_device(name: str) -> str:
    """Refuse what is not the name of a device; whether this machine has it is seen where the policy is built."""
    if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu)(:\d{1,3})?", name):
        raise ValueError(f"'{name[:40]}' is not a device; write cpu, cuda, cuda:1 or auto")
    return name


PolicyDevice = Annotated[str, AfterValidator(check_device)]


class PolicyConfig(Config):
    """Base of the configs of policies; one of your own needs only a `build()`."""

    policy_class: ClassVar[str]  # "module:Class", constructed with the config

    def build(self) -> Any:
        """The `Policy`, with the weights that its seed gives."""
        module, _, name = self.policy_class.partition(":")
        return getattr(import_module(module), name)(self)

    @property
    def env_spec(self) -> EnvSpec | None:
        """What the policy observes and returns, where its config says so."""
        return None


History = Annotated[int, Field(ge=0, le=32)]
Gripper = Literal["continuous", "discrete"]

CNN, CLONED = "cnn", "cloned"


class ImageEncoderConfig(Config):
    """What turns images into features for the actor and the critics.

    `cnn` is a small network per camera that is trained with the policy. `cloned` is trained by behavior cloning on the
    demonstrations before the run and then frozen. All others are the encoders that judges have, with their weights.
    """

    type: str = CNN  # cnn, cloned, resnet10, efficientnet_lite0, or another of the encoders of judges
    options: dict[str, Any] = Field(default_factory=dict)  # of an encoder of judges: {weights: resnet10.safetensors}
    frozen: bool = True  # whether an encoder of judges keeps its weights; False: it is fine-tuned
    pooling: Literal["spatial_embeddings", "spatial_softmax"] = "spatial_embeddings"  # of an encoder of judges
    features: Width = 64  # numbers per camera that are passed on; `cloned` passes on all of its own
    shared: bool = False  # actor and critics share one encoder, trained by the critic loss; False: one each
    clone_updates: PositiveInt = 180  # of `cloned`
    clone_batch_size: BatchSize = 64  # of `cloned`

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if self.type in (CNN, CLONED):
            if self.options:
                raise ValueError(f"encoder '{self.type}' takes no options")
            return self
        try:
            config = self.pretrained_config()
        except UnknownName as error:
            raise ValueError(f"{error}; or {CNN}, or {CLONED}") from None
        if self.frozen and not config.pretrained:
            raise ValueError(
                f"encoder '{self.type}' has no pretrained weights, so it must not stay frozen; name weights in "
                f"options, set frozen: false, or use {CLONED}"
            )
        return self

    def pretrained_config(self) -> Any:
        """The config of an encoder of judges."""
        return ENCODER_REGISTRY.parse({"type": self.type, **self.options})

    @property
    def is_frozen(self) -> bool:
        """Whether no update changes the part that sees pixels."""
        return self.type == CLONED or (self.type != CNN and self.frozen)


class NetworkPolicyConfig(PolicyConfig):
    """Inputs, outputs and device of a policy with networks."""

    state_dim: Annotated[int, Field(ge=0, le=65_536)]  # numbers of the state; 0: images only
    action_dim: Width  # numbers of an action
    cameras: dict[str, tuple[Edge, Edge]] = Field(default_factory=dict)  # name -> (H, W); {} for none
    encoder: ImageEncoderConfig = Field(default_factory=ImageEncoderConfig)  # of camera images
    history: History = 0  # earlier observations of the episode that it sees too
    seed: Seed = 0  # of the weights before any are loaded, and of what is sampled
    # Where its networks run; auto: cuda where there is one. Found out where the policy is built, not where it is read.
    device: PolicyDevice = "auto"

    @property
    def env_spec(self) -> EnvSpec:
        """What the policy observes and returns."""
        return EnvSpec(self.state_dim, self.action_dim, self.cameras)

    @model_validator(mode="after")
    def _check_inputs(self) -> Self:
        if not self.state_dim and not self.cameras:
            raise ValueError("a policy needs something to see: a state_dim, or cameras")
        return self


class ActorConfig(Config):
    """The network of a gaussian policy."""

    kind: Literal["squashed", "plain"] = "squashed"  # by tanh, as SAC trains them; or not, as PPO does
    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)  # units of the hidden layers


class GaussianConfig(NetworkPolicyConfig):
    """The actor of PPO or SAC."""

    policy_class: ClassVar[str] = "plaudit.policies.networks:GaussianPolicy"

    type: Literal["gaussian"] = "gaussian"
    horizon: SmallInt = 1  # actions of a chunk
    actor: ActorConfig = Field(default_factory=ActorConfig)  # the network of the actor
    gripper: Gripper = "continuous"  # the last number of an action; discrete: -1, 0 or 1, chosen by a grasp critic
    # Sample actions instead of taking the mode. Only a squashed actor can: the standard deviation of a plain one is not
    # among the weights that a robot gets.
    stochastic: bool = False

    @model_validator(mode="after")
    def _check_actor(self) -> Self:
        if self.gripper == "discrete" and (self.horizon > 1 or self.action_dim < 2):
            raise ValueError("a discrete gripper needs chunks of one action (horizon), of two numbers or more")
        if self.stochastic and self.actor.kind == "plain":
            raise ValueError("a plain actor cannot be stochastic: its weights have no standard deviation")
        return self


class VelocityNetConfig(Config):
    """The network of a flow policy."""

    width: Width = 384  # of the residual stream; 384 x 3 is 2.8 million parameters
    depth: SmallInt = 3  # residual blocks


class FlowSettings(NetworkPolicyConfig):
    """What a flow policy and Q-chunking share."""

    horizon: SmallInt = 16  # actions of a chunk
    velocity_net: VelocityNetConfig = Field(default_factory=VelocityNetConfig)  # the network of the flow
    num_inference_steps: SmallInt = 5  # of Euler, from noise to actions
    # How guided_inference holds on to the previous chunk: by the vector-Jacobian product through the network, as the
    # paper does; by the plain difference ("identity"), which needs no gradient; or by an average at the end ("blend").
    # "prefix" gives the network the actions that will have run. It needs no gradient, but training with max_prefix.
    guidance: Guidance = "vjp"
    max_prefix: Annotated[int, Field(ge=0, le=1000)] = 0  # actions at the start of a chunk that training may give it
    max_guidance_weight: PositiveFloat = 5.0  # the paper's beta
    # Guidance by advantage conditioning: 1 asks for chunks that improve, more exaggerates it. None: no such input.
    improvement: NonNegativeFloat | None = None
    own_units: bool = False  # statistics among its weights convert states and actions, after those of the normalizer

    # The instructions that it was trained with, one of which it takes as input; (): the instruction is no input.
    tasks: Annotated[tuple[str, ...], Field(max_length=10_000)] = ()

    @model_validator(mode="after")
    def _check_prefix(self) -> Self:
        if self.max_prefix >= self.horizon:
            raise ValueError(f"max_prefix is {self.max_prefix}, and must be below the horizon, {self.horizon}")
        if self.guidance == "prefix" and not self.max_prefix:
            raise ValueError("guidance=prefix needs a policy that was trained with max_prefix, the longest delay")
        return self


class FlowConfig(FlowSettings):
    """Chunks of actions by flow matching."""

    policy_class: ClassVar[str] = "plaudit.policies.flow:FlowPolicy"

    type: Literal["flow"] = "flow"


class CriticConfig(Config):
    """The critics that choose among chunks."""

    num_critics: SmallInt = 2  # in the ensemble
    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)  # units of the hidden layers


class QChunkPolicyConfig(FlowSettings):
    """The best of N chunks of a flow, by critics: what Q-chunking trains."""

    policy_class: ClassVar[str] = "plaudit.policies.flow:QChunkPolicy"

    type: Literal["qchunk"] = "qchunk"
    horizon: SmallInt = 5  # actions of a chunk
    critic_horizon: SmallInt | None = None  # of these, the first that the critics value; None: all
    critic_encoder: ImageEncoderConfig = Field(default_factory=ImageEncoderConfig)  # `encoder` is the flow's
    critic: CriticConfig = Field(default_factory=CriticConfig)  # the critics that choose a chunk
    num_samples: SmallInt = 8  # chunks to choose from

    @model_validator(mode="after")
    def _check_no_prefix(self) -> Self:
        if self.max_prefix:
            raise ValueError("Q-chunking does not train with max_prefix; use guidance=vjp, identity or blend")
        if self.tasks:
            raise ValueError("Q-chunking does not take an instruction (tasks); train a flow policy for several tasks")
        return self


class OnFlowConfig(NetworkPolicyConfig):
    """Base of the configs of policies with a flow in them, the base. `encoder` is that of critics and actor."""

    base: FlowConfig  # the trained flow

    @property
    def horizon(self) -> int:
        """Actions of a chunk."""
        return self.base.horizon


class ExpoPolicyConfig(OnFlowConfig):
    """The best of a flow's chunks and of their edits, by critics: what EXPO trains."""

    policy_class: ClassVar[str] = "plaudit.policies.steering:SteeredPolicy"

    type: Literal["expo"] = "expo"
    critic: CriticConfig = Field(default_factory=CriticConfig)  # the critics that choose a chunk
    critic_horizon: SmallInt | None = None  # of a chunk, the first actions that are valued and edited; None: all
    num_samples: SmallInt = 8  # chunks of the base
    select: bool = True  # choose among base chunks and edited ones; False: the edited chunk is executed


class DsrlPolicyConfig(OnFlowConfig):
    """A flow that starts from the noise that an actor chooses: what DSRL trains."""

    policy_class: ClassVar[str] = "plaudit.policies.steering:SteeredPolicy"

    type: Literal["dsrl"] = "dsrl"
    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)  # units of the hidden layers of the actor
    noise_bound: PositiveFloat = 1.5  # largest number of the noise
    repeat_noise: bool = False  # the same noise for all actions of a chunk
    stochastic: bool = False  # sample the noise instead of taking the mode


class SteerPolicyConfig(NetworkPolicyConfig):
    """The best of N chunks of another policy, by critics. `encoder` is the critics'."""

    policy_class: ClassVar[str] = "plaudit.policies.steering:SteerPolicy"

    type: Literal["steer"] = "steer"
    base: Path  # the policy.yaml of the policy that is sampled
    horizon: SmallInt  # actions of a chunk
    critic_horizon: SmallInt  # of these, the first that critics value
    critic: CriticConfig = Field(default_factory=CriticConfig)  # the critics that choose a chunk
    num_samples: SmallInt = 8  # chunks to choose from


class ServerConfig(Config):
    """Where an openpi server listens."""

    # A name, an address, or a whole `wss://...`; where a file names another machine, --allow-host MACHINE.
    host: ServerUrl = "localhost"
    port: int | None = Field(default=8000, ge=1, le=65_535)  # None: the one of the URL
    api_key_env: KeyVariable = "OPENPI_API_KEY"  # the variable that holds the key; most servers need none
    connect_s: PositiveFloat = 30.0  # to keep trying to reach the server: it loads a large model before it listens
    answer_s: PositiveFloat = 10.0  # to wait for actions; the first ones take a compilation on the server

    @property
    def url(self) -> str:
        """With scheme and port."""
        whole = self.host if self.host.startswith(("ws://", "wss://")) else f"ws://{self.host}"
        return whole if self.port is None else f"{whole}:{self.port}"


class OpenpiConfig(PolicyConfig):
    """A policy behind openpi's server."""

    policy_class: ClassVar[str] = "plaudit.policies.openpi:OpenpiPolicy"

    type: Literal["openpi", "openpi_policy"] = "openpi"
    openpi_model: ServerConfig  # where the server is
    action_dim: Width  # of the robot; what the server's actions have beyond it is padding, and is dropped
    horizon: SmallInt | None = None  # actions of a chunk; those beyond it are dropped. None: all
    # The server's keys, which depend on the checkpoint; the defaults are those of DROID and LIBERO.
    image_keys: dict[str, str] = Field(default_factory=dict)  # camera -> key, like {front: observation/image}
    state_key: str | None = "observation/state"  # None: the state is not sent
    prompt_key: str | None = "prompt"  # None: the prompt is not sent
    prompt: str = ""  # the instruction; "": the task of the run
    action_key: str = "actions"  # of the server's answer
    # (H, W) that images are shrunk to before they are sent, with black bars where the shape differs; None: as they are.
    image_size: tuple[Edge, Edge] | None = (224, 224)

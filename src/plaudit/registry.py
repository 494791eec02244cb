"""The one registry: a name in a config file -> the config class that knows how to build the thing.

    @POLICY_REGISTRY.register("flow")
    class FlowConfig(Config):
        type: Literal["flow"] = "flow"
        def build(self) -> Policy: ...

Only config classes are registered, never the things: a config crosses a process or a cluster as plain data, and
`build()` runs where the thing will live, so a laptop can launch a policy that needs a GPU it has not got. Names
come from this package, from installed packages through entry points (group `plaudit.policy`, ...), or are a dotted
path `my_package.my_module:MyConfig`; nobody has to edit a file of ours. (Rejected: a factory of `elif`s, and
importing every plugin at start-up to fill a dictionary.)
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator

from plaudit.errors import UnknownName, nearest

ConfigT = TypeVar("ConfigT", bound=type[BaseModel])


class Registry:
    """Names of one kind of thing."""

    def __init__(self, kind: str, builtin: dict[str, str] | None = None):
        """`builtin` maps a name to the `module:Class` that is imported when the name is first asked for."""
        self.kind = kind
        self._classes: dict[str, type[BaseModel]] = {}
        self._lazy: dict[str, str] = dict(builtin or {})

    def register(self, name: str) -> Callable[[ConfigT], ConfigT]:
        def add(cls: ConfigT) -> ConfigT:
            known = self._classes.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise UnknownName(f"{self.kind} '{name}' is registered twice: {known.__module__} and {cls.__module__}")
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        plugins = [point.name for point in entry_points(group=f"plaudit.{self.kind}")]
        return sorted({*self._classes, *self._lazy, *plugins})

    def get(self, name: str) -> type[BaseModel]:
        if name not in self._classes:
            self._import(name)
        return self._classes[name]

    def _import(self, name: str) -> None:
        targets = {p.name: p.value for p in entry_points(group=f"plaudit.{self.kind}")} | self._lazy
        target = name if ":" in name else targets.get(name)
        if target is None:
            raise UnknownName(f"there is no {self.kind} '{name}'; {nearest(name, self.names())}")
        module, _, attribute = target.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UnknownName(f"{self.kind} '{name}' could not be loaded from {target}: {error}") from error
        self._classes[name] = found

    def parse(self, value: Any) -> BaseModel:
        """A config object from the mapping in a file, chosen by its `type`."""
        if isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise UnknownName(f"a {self.kind} needs a 'type'; known: {', '.join(self.names())}")
        from plaudit.config import parse  # config.py builds on this module's error sentences

        rest = value if ":" not in value["type"] else {k: v for k, v in value.items() if k != "type"}
        return parse(self.get(value["type"]), rest)

    @property
    def field(self) -> BeforeValidator:
        """For a config field that holds any thing of this kind: `policy: Annotated[Any, POLICY_REGISTRY.field]`."""
        return BeforeValidator(self.parse)

    @property
    def optional_field(self) -> BeforeValidator:
        """For one that may hold none."""
        return BeforeValidator(lambda value: None if value is None else self.parse(value))


ENV_REGISTRY = Registry(
    "env",
    builtin={
        "lift": "plaudit.envs.panda.config:PandaConfig",
        "pick_place": "plaudit.envs.panda.config:PandaConfig",
        "push": "plaudit.envs.panda.config:PandaConfig",
        "gymnasium": "plaudit.envs.adapters.any_gymnasium:GymnasiumConfig",
        "gym_hil": "plaudit.envs.adapters.gym_hil:GymHilConfig",
        "fetch": "plaudit.envs.adapters.fetch:FetchConfig",
        "metaworld": "plaudit.envs.adapters.metaworld:MetaWorldConfig",
        "maniskill": "plaudit.envs.adapters.maniskill:ManiSkillConfig",
    },
)
ROBOT_REGISTRY = Registry(
    "robot",
    builtin={
        "sim": "plaudit.robots.sim:SimRobotConfig",
        "igris_b": "plaudit.robots.igris_b:IgrisBConfig",
        "igris_c": "plaudit.robots.igris_c:IgrisCConfig",
        "lerobot": "plaudit.robots.lerobot:LeRobotConfig",
    },
)
TAKEOVER_REGISTRY = Registry(
    "takeover",
    builtin={
        "keyboard": "plaudit.rollout.takeover:KeyboardConfig",
        "gamepad": "plaudit.rollout.takeover:GamepadConfig",
        "topic": "plaudit.rollout.takeover:TopicConfig",
    },
)
POLICY_REGISTRY = Registry(
    "policy",
    builtin={
        "gaussian": "plaudit.policies.gaussian:GaussianConfig",
        "flow": "plaudit.policies.flow:FlowConfig",
        "qchunk": "plaudit.policies.qchunk:QChunkPolicyConfig",
        "openpi": "plaudit.policies.openpi:OpenpiConfig",
        "openpi_policy": "plaudit.policies.openpi:OpenpiConfig",
        "scripted": "plaudit.policies.scripted:ScriptedConfig",
        "replay": "plaudit.policies.replay:ReplayConfig",
    },
)
LABELER_REGISTRY = Registry(
    "labeler",
    builtin={
        "simulator": "plaudit.labelers.simulator:SimulatorConfig",
        "classifier": "plaudit.labelers.classifier:ClassifierLabelerConfig",
        "vlm": "plaudit.labelers.vlm.config:VlmConfig",
    },
)
LEARNER_REGISTRY = Registry(
    "learner",
    builtin={
        "ppo": "plaudit.learners.ppo:PpoConfig",
        "sac": "plaudit.learners.sac:SacConfig",
        "qchunk": "plaudit.learners.qchunk:QChunkConfig",
    },
)
ENCODER_REGISTRY = Registry(
    "encoder",
    builtin={
        "small": "plaudit.rewards.encoders.small:SmallConfig",
        "resnet10": "plaudit.rewards.encoders.resnet10:Resnet10Config",
        "resnet": "plaudit.rewards.encoders.resnet:ResnetConfig",
        "efficientnet_lite0": "plaudit.rewards.encoders.efficientnet:EfficientNetConfig",
        "torchvision": "plaudit.rewards.encoders.others:TorchvisionConfig",
        "transformers": "plaudit.rewards.encoders.others:TransformersConfig",
    },
)

"""The registries: a name in a config file -> the config class that builds the object.

    @POLICY_REGISTRY.register("my_policy")           # on the class itself: its config is what __init__ takes
    class MyPolicy:
        def __init__(self, state_dim: int, action_dim: int, network: NetworkConfig, horizon: int = 8): ...

    @POLICY_REGISTRY.register("flow")                # or on a config class
    class FlowConfig(Config):
        type: Literal["flow"] = "flow"
        def build(self) -> Policy: ...

A registry stores config classes: a config is sent to another process or machine as plain data, and `build()` runs where
the object is used, so a laptop can launch a policy that needs a GPU. Names come from this package, from installed
packages through entry points (group `plaudit.policy`, ...), or are a dotted path like `my_package.my_module:MyPolicy`;
no file of Plaudit needs to change. A dotted path in a file is imported only if the user allows it (`plaudit.trust`). A
class that cannot work is refused when it registers. (Rejected: a factory of `elif`s, and importing every plugin at
start-up to fill a dictionary.)
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from inspect import isclass, isfunction, signature
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, SerializerFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

from plaudit.config import LONGEST, config_from_init, parse
from plaudit.errors import ContractError, UnknownName, did_you_mean
from plaudit.protocols import InferenceEngine, Learner, Policy, Robot, Teleoperator, VecEnv
from plaudit.trust import check_code

ClassT = TypeVar("ClassT", bound=type)
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # module:Class


class Registry:
    """The names of one kind of object: policies, robots, ..."""

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str] | None = None,
        *,
        protocol: type | None = None,
        context: tuple[str, ...] | None = None,
    ):
        """
        builtin: name -> the `module:Class` that is imported when the name is first used
        protocol: a registered class must have its methods
        context: the arguments that `build()` is called with, in order; None: not checked
        """
        self.kind = kind
        self._builtin: dict[str, str] = dict(builtin or {})
        self._protocol, self._context = protocol, context
        self._registered: dict[str, type[BaseModel]] = {}  # by `register`
        self._loaded: dict[str, type[BaseModel]] = {}  # by `get`, under the name or the dotted path

    def register(self, *names: str) -> Callable[[ClassT], ClassT]:
        """Register a class or a config class under one or more names; a module that is reloaded may do so again."""

        def add(cls: ClassT) -> ClassT:
            config = self._config_class(cls)
            path = dotted_path(config)
            field = config.model_fields.get("type")
            choices = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else names
            for name in names:
                claims = [self._builtin.get(name), *(dotted_path(c) for n, c in self._registered.items() if n == name)]
                for other in claims:
                    if other not in (None, path):
                        raise self._twice(name, str(other), path)
                if name not in choices:
                    raise ContractError(
                        f"{path} is registered as '{name}', and its field 'type' allows only "
                        f"{', '.join(map(repr, choices))}; make the two agree"
                    )
            _set_type(config, names[0])
            for name in names:
                self._registered[name] = config
                self._loaded.pop(name, None)  # an entry point may have the name too, which the next `get` reports
            return cls

        return add

    def _config_class(self, cls: type) -> type[BaseModel]:
        """The config class of a class; ContractError if it cannot work."""
        path, context = dotted_path(cls), self._context or ()
        if not issubclass(cls, BaseModel):
            # Attributes are not checked: most are set by `__init__`.
            methods = [name for name, value in vars(self._protocol or object).items() if isfunction(value)]
            missing = [one for one in methods if not one.startswith("_") and not callable(getattr(cls, one, None))]
            if missing and self._protocol is not None:
                raise ContractError(
                    f"{path} cannot be a {self.kind}: it lacks {', '.join(f'{name}()' for name in missing)} "
                    f"of plaudit.protocols.{self._protocol.__name__}"
                )
            return config_from_init(cls, context)
        build, wanted = getattr(cls, "build", None), f"build({', '.join(('self', *context))})"
        if not callable(build):
            raise ContractError(
                f"{path} cannot be the config of a {self.kind}: it has no build(); add 'def {wanted}', which returns "
                f"the {self.kind}"
            )
        if self._context is not None:
            try:
                signature(build).bind(cls, *context)
            except TypeError as error:
                raise ContractError(
                    f"{path} cannot be the config of a {self.kind}: its build() is called as {wanted} ({error})"
                ) from None
        return cls

    def names(self) -> list[str]:
        """All names that `get` accepts in addition to dotted paths."""
        return sorted({*self._registered, *self._builtin, *(point.name for point in self._points())})

    def get(self, name: str) -> type[BaseModel]:
        """The config class of a name or a dotted path; a name that two classes have is refused."""
        if ":" in name:  # a path that is built in, installed or registered needs no permission
            registered = map(dotted_path, self._registered.values())
            check_code(name, {*self._builtin.values(), *(point.value for point in self._points()), *registered})
        if name not in self._loaded:
            self._loaded[name] = self._load(name, name) if ":" in name else self._resolve(name)
        return self._loaded[name]

    def name_of(self, config: BaseModel) -> str:
        """The `type` that means this config's class in every process: an installed name, or its dotted path."""
        path, named = dotted_path(type(config)), getattr(config, "type", None)  # a field, or set by `register`
        try:
            if not isinstance(named, str) or self.get(named) is not type(config):
                return path
        except UnknownName:  # no class has the name, or two have it, or its class cannot be loaded
            return path
        anywhere = named in self._builtin or bool(self._targets(named))
        return named if anywhere or path not in self._loaded else path

    def dump(self, config: BaseModel) -> dict[str, Any]:
        """Plain values that `parse` turns into the same config, here or in another process."""
        return {**config.model_dump(mode="json"), "type": self.name_of(config)}

    def parse(self, value: Any) -> BaseModel:
        """A config object from the mapping in a file, chosen by its `type`."""
        if isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise UnknownName(f"{article} {self.kind} needs a 'type'; known: {', '.join(self.names())}")
        cls = self.get(value["type"])
        named = ":" not in value["type"] and "type" in cls.model_fields
        return parse(cls, value if named else {k: v for k, v in value.items() if k != "type"})

    @property
    def field(self) -> "RegistryField":
        """For a config field of this kind: `policy: Annotated[Any, POLICY_REGISTRY.field]`."""
        return RegistryField(self)

    @property
    def optional_field(self) -> "RegistryField":
        """The same for a field that may be None."""
        return RegistryField(self, optional=True)

    def _points(self) -> EntryPoints:
        return _entry_points(f"plaudit.{self.kind.split()[0]}", tuple(sys.path))

    def _targets(self, name: str) -> list[str]:
        """Each `module:Class` that has the name in every process: built in, or of installed packages."""
        builtin = [self._builtin[name]] if name in self._builtin else []
        return builtin + [point.value for point in self._points() if point.name == name]

    def _resolve(self, name: str) -> type[BaseModel]:
        loaded = [self._load(name, target) for target in self._targets(name)]
        if name in self._registered:  # perhaps by a module that was just imported
            loaded.append(self._registered[name])
        classes = {dotted_path(cls): cls for cls in loaded}
        if not classes:
            short = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
            raise UnknownName(f"there is no {self.kind} '{short}'; {did_you_mean(short, self.names())}")
        if len(classes) > 1:
            raise self._twice(name, *sorted(classes))
        return loaded[-1]  # the newest, if a module was reloaded

    def _load(self, name: str, target: str) -> type[BaseModel]:
        module, _, attribute = target.partition(":")
        if not _PATH.fullmatch(target):
            raise UnknownName(f"{self.kind} '{name}' is not a dotted path; write it like my_package.my_module:MyConfig")
        try:
            cls = attrgetter(attribute)(import_module(module))
        except (ImportError, AttributeError, SyntaxError) as error:
            raise UnknownName(f"{self.kind} '{name}' could not be loaded from {target}: {error}") from error
        if not isclass(cls):
            raise UnknownName(
                f"{self.kind} '{name}' names {target}, which is not a class; name the class of the {self.kind}, or its "
                "config class, which derives from plaudit.config.Config and has build()"
            )
        try:
            config = self._config_class(cls)
        except ContractError as error:
            raise UnknownName(f"{self.kind} '{name}' cannot be used: {error}") from error
        _set_type(config, name)
        return config

    def _twice(self, name: str, *paths: str) -> UnknownName:
        return UnknownName(
            f"{self.kind} '{name}' is registered twice: {' and '.join(paths)}; rename one of them, or write the dotted "
            f"path as 'type'"
        )


@dataclass(frozen=True)
class RegistryField:
    """How a config field of a registry is read and written."""

    registry: Registry
    optional: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            self._parse,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(self._dump),
        )

    def _parse(self, value: Any) -> Any:
        return None if value is None and self.optional else self.registry.parse(value)

    def _dump(self, config: Any, plain: SerializerFunctionWrapHandler) -> Any:
        if config is None:
            return None
        values = {key: value for key, value in plain(config).items() if key != "type"}
        return {"type": self.registry.name_of(config), **values}


@cache
def _entry_points(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """The entry points of installed packages; cached, because reading them takes milliseconds."""
    return entry_points(group=group)


def dotted_path(cls: type) -> str:
    """`module:Class`, as a config file may name it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _set_type(cls: type[BaseModel], name: str) -> None:
    """Give a config class a `type`, if it has no such field: the name that it was first loaded by."""
    if "type" not in cls.model_fields and "type" not in vars(cls):
        setattr(cls, "type", name)  # noqa: B010 - a class attribute, which a model does not declare


ENV_REGISTRY = Registry(
    "env",
    builtin={
        "lift": "plaudit.envs.panda:PandaConfig",
        "pick_place": "plaudit.envs.panda:PandaConfig",
        "push": "plaudit.envs.panda:PandaConfig",
        "gymnasium": "plaudit.envs.adapters.gymnasium:GymnasiumConfig",
        "gym_hil": "plaudit.envs.adapters.mujoco:GymHilConfig",
        "fetch": "plaudit.envs.adapters.mujoco:FetchConfig",
        "metaworld": "plaudit.envs.adapters.mujoco:MetaWorldConfig",
        "maniskill": "plaudit.envs.adapters.maniskill:ManiSkillConfig",
    },
    protocol=VecEnv,
    context=("num_envs",),
)
ROBOT_REGISTRY = Registry(
    "robot",
    builtin={
        "sim": "plaudit.robots.sim:SimRobotConfig",
        "igris_b": "plaudit.robots.igris_b:IgrisBConfig",
        "igris_c": "plaudit.robots.igris_c:IgrisCConfig",
        "lerobot": "plaudit.robots.lerobot:LeRobotConfig",
    },
    protocol=Robot,
    context=(),
)
TELEOP_REGISTRY = Registry(
    "teleop",
    builtin={
        "keyboard": "plaudit.rollout.teleop:KeyboardConfig",
        "scripted": "plaudit.rollout.scripted_teleop:ScriptedTeleopConfig",
        "gamepad": "plaudit.rollout.teleop:GamepadConfig",
        "topic": "plaudit.rollout.teleop:TopicConfig",
        "spacemouse": "plaudit.rollout.teleop:SpaceMouseConfig",
        "lerobot": "plaudit.rollout.lerobot_teleop:LeRobotTeleopConfig",
    },
    protocol=Teleoperator,
    context=("action_dim",),
)
INFERENCE_REGISTRY = Registry(
    "inference algorithm",
    builtin={
        "rtc": "plaudit.rollout.rtc:Rtc",
        "sequential": "plaudit.rollout.engine:Sequential",
    },
    protocol=InferenceEngine,
    context=("robot", "policy", "teleop"),
)
POLICY_REGISTRY = Registry(
    "policy",
    builtin={
        "gaussian": "plaudit.policies.config:GaussianConfig",
        "flow": "plaudit.policies.config:FlowConfig",
        "qchunk": "plaudit.policies.config:QChunkPolicyConfig",
        "expo": "plaudit.policies.config:ExpoPolicyConfig",
        "dsrl": "plaudit.policies.config:DsrlPolicyConfig",
        "steer": "plaudit.policies.config:SteerPolicyConfig",
        "lerobot": "plaudit.policies.lerobot_folder:LeRobotPolicyConfig",
        "openpi": "plaudit.policies.config:OpenpiConfig",
        "openpi_policy": "plaudit.policies.config:OpenpiConfig",
        "scripted": "plaudit.policies.scripted:ScriptedConfig",
        "replay": "plaudit.policies.scripted:ReplayConfig",
    },
    protocol=Policy,
    context=(),
)
JUDGE_REGISTRY = Registry(
    "judge",
    builtin={
        "simulator": "plaudit.judges.simulator:SimulatorJudgeConfig",
        "noisy": "plaudit.judges.simulator:NoisyJudgeConfig",
        "classifier": "plaudit.judges.classifier.config:ClassifierJudgeConfig",
        "progress": "plaudit.judges.classifier.config:ProgressJudgeConfig",
        "vlm": "plaudit.judges.vlm.config:VlmJudgeConfig",
        "robometer": "plaudit.judges.published.config:RobometerConfig",
        "rynnvalue": "plaudit.judges.published.config:RynnValueConfig",
        "roboreward": "plaudit.judges.published.config:RoboRewardConfig",
        "sarm": "plaudit.judges.published.config:SarmConfig",
        "rewind": "plaudit.judges.published.config:RewindConfig",
        "sole": "plaudit.judges.published.config:SoleConfig",
        "grm": "plaudit.judges.published.config:GrmConfig",
        "robometer_server": "plaudit.judges.published.config:RobometerServerConfig",
        "topreward": "plaudit.judges.published.config:TopRewardConfig",
        "human": "plaudit.judges.human.judge:HumanJudgeConfig",
        "cascade": "plaudit.judges.cascade:CascadeConfig",
    },
)
LEARNER_REGISTRY = Registry(
    "learner",
    builtin={
        "ppo": "plaudit.learners.config:PpoConfig",
        "sac": "plaudit.learners.config:SacConfig",
        "qchunk": "plaudit.learners.config:QChunkConfig",
        "dagger": "plaudit.learners.config:DaggerConfig",
        "weighted_bc": "plaudit.learners.config:WeightedBcConfig",
        "expo": "plaudit.learners.config:ExpoConfig",
        "dsrl": "plaudit.learners.config:DsrlConfig",
        "steer": "plaudit.learners.config:SteerConfig",
    },
    protocol=Learner,
    context=("env_spec", "seed", "device"),
)
ENCODER_REGISTRY = Registry(
    "encoder",
    builtin={
        "small": "plaudit.encoders:SmallConfig",
        "keypoints": "plaudit.encoders:KeypointsConfig",
        "resnet10": "plaudit.encoders.resnet:Resnet10Config",
        "resnet": "plaudit.encoders.resnet:ResnetConfig",
        "efficientnet_lite0": "plaudit.encoders.efficientnet:EfficientNetConfig",
        "torchvision": "plaudit.encoders.others:TorchvisionConfig",
        "transformers": "plaudit.encoders.others:TransformersConfig",
    },
)

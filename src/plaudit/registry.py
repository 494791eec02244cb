"""The one registry: a name in a config file -> the config class that knows how to build the thing.

    @POLICY_REGISTRY.register("flow")
    class FlowConfig(Config):
        type: Literal["flow"] = "flow"
        def build(self) -> Policy: ...

Only config classes are registered, never the things: a config crosses a process or a cluster as plain data, and
`build()` runs where the thing will live, so a laptop can launch a policy that needs a GPU it has not got. Names
come from this package, from installed packages through entry points (group `plaudit.policy`, ...), or are a dotted
path `my_package.my_module:MyConfig`; nobody has to edit a file of ours. A dotted path that stands in a file is imported
by its user's word alone (`plaudit.trust`). (Rejected: a factory of `elif`s, and importing every plugin at start-up to
fill a dictionary.)
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, SerializerFunctionWrapHandler
from pydantic_core import CoreSchema, core_schema

from plaudit.errors import UnknownName, nearest
from plaudit.trust import check_code

ConfigT = TypeVar("ConfigT", bound=type[BaseModel])
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # module:Class


class Registry:
    """Names of one kind of thing."""

    def __init__(self, kind: str, builtin: dict[str, str] | None = None):
        """`builtin` maps a name to the `module:Class` that is imported when the name is first asked for."""
        self.kind = kind
        self._builtin: dict[str, str] = dict(builtin or {})
        self._registered: dict[str, type[BaseModel]] = {}  # by `register`
        self._found: dict[str, type[BaseModel]] = {}  # by `get`, under the name or the dotted path it was asked for

    def register(self, name: str) -> Callable[[ConfigT], ConfigT]:
        """Give a config class a name; a module that is imported once more may do so again."""

        def add(cls: ConfigT) -> ConfigT:
            known = self._registered.get(name)
            if known is not None and dotted_path(known) != dotted_path(cls):
                raise self._twice(name, dotted_path(known), dotted_path(cls))
            self._registered[name] = cls
            self._found.pop(name, None)  # which may be another, and is to be told of at the next `get`
            return cls

        return add

    def names(self) -> list[str]:
        """All that `get` knows without a dotted path."""
        return sorted({*self._registered, *self._builtin, *(point.name for point in self._points())})

    def get(self, name: str) -> type[BaseModel]:
        """The config class of a name or of a dotted path; a name that two classes claim is refused."""
        if ":" in name:
            check_code(name, self._known_paths())
        if name not in self._found:
            self._found[name] = self._load(name, name) if ":" in name else self._claimed(name)
        return self._found[name]

    def name_of(self, config: BaseModel) -> str:
        """What to write as `type` for this config's class in any process: a name if it is installed under one, else its
        dotted path."""
        path, named = dotted_path(type(config)), dict(config).get("type")
        if not isinstance(named, str) or not self._is(named, type(config)):
            return path
        anywhere = named in self._builtin or bool(self._targets(named))
        return named if anywhere or path not in self._found else path

    def _is(self, name: str, cls: type[BaseModel]) -> bool:
        try:
            return self.get(name) is cls
        except UnknownName:  # nobody has the name, or two have it, or who has it is broken
            return False

    def dump(self, config: BaseModel) -> dict[str, Any]:
        """Plain values that `parse` makes the same config of, here or in another process."""
        return {**config.model_dump(mode="json"), "type": self.name_of(config)}

    def parse(self, value: Any) -> BaseModel:
        """A config object from the mapping in a file, chosen by its `type`."""
        if isinstance(value, BaseModel):
            return value
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise UnknownName(f"a {self.kind} needs a 'type'; known: {', '.join(self.names())}")
        from plaudit.config import parse  # config.py builds on this module's error sentences

        cls = self.get(value["type"])
        named = ":" not in value["type"] and "type" in cls.model_fields  # the field is for those who want to read it
        return parse(cls, value if named else {k: v for k, v in value.items() if k != "type"})

    @property
    def field(self) -> "RegistryField":
        """For a config field that holds any thing of this kind: `policy: Annotated[Any, POLICY_REGISTRY.field]`."""
        return RegistryField(self)

    @property
    def optional_field(self) -> "RegistryField":
        """For one that may hold none."""
        return RegistryField(self, optional=True)

    def _known_paths(self) -> set[str]:
        """What is here by itself: ours, that of installed packages, and what this process has registered."""
        registered = map(dotted_path, self._registered.values())
        return {*self._builtin.values(), *(point.value for point in self._points()), *registered}

    def _points(self) -> list[Any]:
        return list(entry_points(group=f"plaudit.{self.kind}"))

    def _targets(self, name: str) -> list[str]:
        """Each `module:Class` that has the name in any process: ours, and those of installed packages."""
        ours = [self._builtin[name]] if name in self._builtin else []
        return ours + [point.value for point in self._points() if point.name == name]

    def _claimed(self, name: str) -> type[BaseModel]:
        found = [self._load(name, target) for target in self._targets(name)]
        if name in self._registered:  # also by a module that was imported just now
            found.append(self._registered[name])
        classes = {dotted_path(cls): cls for cls in found}
        if not classes:
            raise UnknownName(f"there is no {self.kind} '{name}'; {nearest(name, self.names())}")
        if len(classes) > 1:
            raise self._twice(name, *classes)
        return found[-1]  # the newest, where a module was imported again

    def _load(self, name: str, target: str) -> type[BaseModel]:
        module, _, attribute = target.partition(":")
        if not _PATH.fullmatch(target):
            raise UnknownName(f"{self.kind} '{name}' is no dotted path; write it like my_package.my_module:MyConfig")
        try:
            found = attrgetter(attribute)(import_module(module))
        except (ImportError, AttributeError, SyntaxError) as error:
            raise UnknownName(f"{self.kind} '{name}' could not be loaded from {target}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise UnknownName(
                f"{self.kind} '{name}' names {target}, which is not a config class; name the class that derives from "
                f"plaudit.config.Config and whose build() makes the {self.kind}"
            )
        return found

    def _twice(self, name: str, *paths: str) -> UnknownName:
        return UnknownName(
            f"{self.kind} '{name}' is registered twice: {' and '.join(paths)}; rename one of them, or write the dotted "
            f"path as 'type'"
        )


@dataclass(frozen=True)
class RegistryField:
    """How a config field with a thing of a registry is read, and written so that it can be read again."""

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
        """A class need not have a `type` of its own: the one that it was found by is written."""
        return {"type": self.registry.name_of(config), **_less_type(plain(config))} if config is not None else None


def dotted_path(cls: type) -> str:
    """`module:Class`, as a config file may name it."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _less_type(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != "type"}


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
        "simulator": "plaudit.judges.simulator:SimulatorConfig",
        "classifier": "plaudit.judges.classifier.labeler:ClassifierLabelerConfig",
        "vlm": "plaudit.judges.vlm.config:VlmConfig",
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
        "small": "plaudit.judges.classifier.encoders.small:SmallConfig",
        "resnet10": "plaudit.judges.classifier.encoders.resnet10:Resnet10Config",
        "resnet": "plaudit.judges.classifier.encoders.resnet:ResnetConfig",
        "efficientnet_lite0": "plaudit.judges.classifier.encoders.efficientnet:EfficientNetConfig",
        "torchvision": "plaudit.judges.classifier.encoders.others:TorchvisionConfig",
        "transformers": "plaudit.judges.classifier.encoders.others:TransformersConfig",
    },
)

"""Loads a policy from a YAML file, that of `--policy_yaml`:

    model:
      component_config_paths:          # a file each, in this folder, for the section of that name in the config
        velocity: components/velocity.yaml
    policy:
      type: flow                       # in POLICY_REGISTRY, an entry point's name, or my_package.my_module:MyConfig,
                                       # with --allow-code my_package
      state_dim: 24
      action_dim: 24
    weights: model.safetensors         # in this folder; leave it out for an untrained policy
    frozen: frozen.safetensors         # in this folder, of a frozen image encoder
    normalizer: normalizer.json        # leave it out for a policy in the robot's own units

The result, a `PolicySpec`, is plain data, so that another process can build the policy.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from plaudit.config import Config, dump_yaml, load, read_values
from plaudit.data.disk import write_atomic
from plaudit.data.normalize import Normalizer
from plaudit.errors import BadFile, ConfigError, NotAllowed, PolicyError, UnknownName, did_you_mean
from plaudit.files import Root, brief, open_safetensors, safetensors_shapes
from plaudit.policies.config import NetworkPolicyConfig, PolicyConfig
from plaudit.protocols import Policy
from plaudit.registry import POLICY_REGISTRY
from plaudit.trust import from_file
from plaudit.types import EnvSpec, PolicyWeights


def write_weights(path: str | Path, weights: PolicyWeights) -> None:
    """Write weights as a safetensors file with the version in its header; synced when this returns."""
    write_atomic(Path(path), save(dict(weights.tensors), metadata={"version": str(weights.version)}))


def read_weights(path: str | Path) -> PolicyWeights:
    """Read the file that `write_weights` wrote."""
    try:
        with open_safetensors(Path(path)) as name, safe_open(name, framework="numpy") as file:
            version = int((file.metadata() or {}).get("version", 0))
            return PolicyWeights(version, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
    except BadFile:
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file of weights") from None
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, MemoryError, OSError) as error:
        raise BadFile(path, f"this is not a file of weights: {str(error)[:200]}") from error


POLICY_FILE, WEIGHTS_FILE, FROZEN_FILE = "policy.yaml", "model.safetensors", "frozen.safetensors"  # in its folder

ALLOW_UNTRAINED = "--allow-untrained (policy.inference.allow_untrained=true)"

Problem = tuple[tuple[str | int, ...], str]  # of a ConfigError: key and message


class ModelBlock(Config):
    """The block `model` of a policy's file."""

    component_config_paths: dict[str, Path] = Field(default_factory=dict)  # component -> file, relative to the YAML's


class PolicyFile(Config):
    """The file as it is written."""

    model: ModelBlock = Field(default_factory=ModelBlock)
    policy: dict[str, Any]  # `type`, and the keys of that config class
    weights: Path | None = None
    frozen: Path | None = None  # weights of a frozen image encoder
    normalizer: Path | None = None


class PolicySpec(PolicyConfig):
    """Builds a policy in any process of this machine; it is sent there as JSON."""

    policy: dict[str, Any]  # with its components
    weights: Path | None = None  # absolute
    frozen: Path | None = None  # absolute
    normalizer: Path | None = None  # absolute

    @classmethod
    def of(cls, config: BaseModel) -> "PolicySpec":
        """Of an untrained policy."""
        return cls(policy=POLICY_REGISTRY.dump(config))

    @property
    def config(self) -> Any:
        """The policy's own config."""
        return POLICY_REGISTRY.parse(self.policy)

    @property
    def horizon(self) -> int | None:
        """Actions that it returns at a time, as far as its config says."""
        return getattr(self.config, "horizon", None)

    @property
    def inputs(self) -> EnvSpec | None:
        """What it observes and returns; None for a policy whose config does not say so."""
        config = self.config
        return config.env_spec if isinstance(config, PolicyConfig) else None

    def on(self, device: str | None) -> "PolicySpec":
        """The same policy on another device, if it has networks; None: where its file says"""
        if device is None or self.inputs is None:
            return self
        return self.model_copy(update={"policy": {**self.policy, "device": device}})

    def check_fits(self, spec: EnvSpec) -> None:
        """Refuse a robot or a task of other sizes than the policy was made for, before anything moves."""
        own_spec, where = self.inputs, spec.name or "the environment"
        if own_spec is None:
            return
        sizes = {"a state": (own_spec.state_dim, spec.state_dim), "an action": (own_spec.action_dim, spec.action_dim)}
        for what, (own, given) in sizes.items():
            if own != given:
                made_for = f"this policy was made for {what} of {own} numbers, and that of {where} has {given}"
                raise PolicyError(f"{made_for}; name the robot or task it was trained for")
        for camera, size in own_spec.cameras.items():
            if camera not in spec.cameras:
                names = did_you_mean(camera, spec.cameras) if spec.cameras else "it has none"
                raise PolicyError(f"this policy looks at camera '{camera}', which {where} does not have; {names}")
            height, width = spec.cameras[camera]
            if (height, width) != tuple(size):
                made_for = f"this policy was made for {size[0]}x{size[1]}; set that size"
                raise PolicyError(f"camera '{camera}' of {where} gives {height}x{width} images, {made_for}")

    def check_trained(self, robot: str, *, scaled: bool) -> None:
        """Refuse to drive a robot with a network of random weights, or of unknown units.

        scaled: whether there are statistics of the robot's state and action
        """
        if not isinstance(self.config, NetworkPolicyConfig):
            return
        if self.weights is None:
            untrained = f"this policy is untrained: its file names no weights, and {robot} would move at random"
            raise PolicyError(f"{untrained}; train it first, or say that you want this: {ALLOW_UNTRAINED}")
        if not scaled:
            raise PolicyError(
                f"nothing says what this policy's actions are on {robot}, and they would be sent as they are. Name "
                "statistics (normalizer: in its file, or policy.inference.normalizer=, from plaudit data stats), or "
                f"say that you want this: {ALLOW_UNTRAINED}"
            )

    def build(self) -> Policy:
        """The policy, with its weights."""
        config = self.config
        if not isinstance(config, NetworkPolicyConfig):
            policy = config.build()
        else:
            from plaudit.data.weights import UNTAUGHT, fitting, numbers_at_most  # it needs torch, as such a policy does

            # A network that is larger than its weights is refused before it is allocated.
            files = [path for path in (self.weights, self.frozen) if path is not None]
            shapes = [shape for path in files for shape in safetensors_shapes(path).values()]
            most = fitting(shapes) if files else UNTAUGHT
            with numbers_at_most(most, self.weights or Path("policy")):
                policy = config.build()
        if self.frozen is not None:
            policy.load_frozen(read_weights(self.frozen))
        if self.weights is not None:
            policy.load_weights(read_weights(self.weights))
        return policy


def load_policy(path: str | Path, overrides: Sequence[str] = ()) -> PolicySpec:
    """Read and check a policy's file and those it names; `overrides` like `policy.guidance=blend` win.

    path: the file, its folder, or a policy folder of LeRobot
    """
    path = Path(path).absolute()
    if (path / POLICY_FILE).is_file():
        path /= POLICY_FILE
    elif path.is_dir():
        if not (path / "config.json").is_file():  # of LeRobot
            raise BadFile(
                path,
                f"this is no policy: it has no {POLICY_FILE}, and no config.json of LeRobot. 'plaudit train-policy' "
                "makes a policy; of LeRobot's checkpoints name the folder pretrained_model",
            )
        typed = read_values(None, overrides)[0].get("policy", {})
        spec = PolicySpec(policy={"type": "lerobot", **typed, "path": str(path)})
        _ = spec.config.folder
        return spec
    file = load(PolicyFile, path, overrides)
    with from_file(path, read_values(None, overrides)[0]):
        try:
            if not isinstance(file.policy.get("type"), str):
                raise UnknownName(f"a policy needs a 'type'; known: {', '.join(POLICY_REGISTRY.names())}")
            cls = POLICY_REGISTRY.get(file.policy["type"])
        except (UnknownName, NotAllowed) as error:
            raise ConfigError([(("policy", "type"), f"{path}: key 'policy.type': {error}")]) from None
        _check_components(path, cls, file)
        files = {name: _resolve(path, where) for name, where in file.model.component_config_paths.items()}
        components = {name: read_values(where, (), root=Root(where.parent))[0] for name, where in files.items()}
        own = {"weights": file.weights, "frozen": file.frozen, "normalizer": file.normalizer}
        others = {name: None if where is None else _resolve(path, where) for name, where in own.items()}
        own_path = {"path": str(path.parent / file.policy["path"])} if file.policy["type"] == "lerobot" else {}
        spec = PolicySpec(policy={**file.policy, **components, **own_path}, **others)
        try:
            _ = spec.config
        except ConfigError as error:
            raise ConfigError(_with_file(problem, path, files) for problem in error.problems) from None
        return spec


def save_policy(
    folder: str | Path, config: BaseModel, weights: PolicyWeights, normalizer: Normalizer | None = None
) -> Path:
    """Write a folder that `load_policy` reads; returns the path of its policy.yaml."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / WEIGHTS_FILE, weights)
    return save_policy_file(folder, config, normalizer)


def save_policy_file(folder: Path, config: BaseModel, normalizer: Normalizer | None = None) -> Path:
    """The same without the weights; the caller writes them to the same folder as `WEIGHTS_FILE`."""
    tree: dict[str, Any] = {"policy": POLICY_REGISTRY.dump(config), "weights": WEIGHTS_FILE}
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / FROZEN_FILE).exists():
        tree["frozen"] = FROZEN_FILE
    if normalizer is not None:
        normalizer.save(folder / "normalizer.json")
        tree["normalizer"] = "normalizer.json"
    write_atomic(folder / POLICY_FILE, dump_yaml(tree).encode())
    return folder / POLICY_FILE


def _check_components(path: Path, cls: type[BaseModel], file: PolicyFile) -> None:
    """Refuse files of components that the policy does not have, and a policy without one that it needs."""
    kind, sections = file.policy["type"], dict[str, bool]()  # parts that are configs -> whether each has to be given
    for name, field in cls.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        if any(isinstance(one, type) and issubclass(one, BaseModel) for one in types):
            sections[name] = field.is_required()
    files = {name: path.parent / where for name, where in file.model.component_config_paths.items()}
    for name, component in files.items():
        problem = ""
        if name not in cls.model_fields:
            problem = f"policy '{kind}' has no component '{name}'; {did_you_mean(name, sections)}"
        elif name in file.policy:
            problem = f"component '{name}' has a file and stands under 'policy'; keep one"
        elif not component.is_file():
            problem = f"the file of component '{name}' is not there: {component}"
        if problem:
            raise ConfigError([(("model", "component_config_paths", name), f"{path}: {problem}")])
    for name, required in sections.items():
        if required and name not in files and name not in file.policy:
            hint = f"name its file under model.component_config_paths, like {name}: components/{name}.yaml"
            raise ConfigError([(("policy", name), f"{path}: policy '{kind}' needs component '{name}'; {hint}")])


def _with_file(problem: Problem, path: Path, files: dict[str, Path]) -> Problem:
    """The problem, with the file of its key in the message."""
    key, message = problem
    if key and key[0] in files:
        name = str(key[0])
        return key, f"{files[name]}: " + message.replace(f"'{name}.", "'", 1)
    return key, f"{path}: " + message.replace("key '", "key 'policy.", 1)


def _resolve(path: Path, name: Path) -> Path:
    """The file of this name beside `path`, reached through no link. A path to elsewhere is opened as it is written."""
    resolved = path.parent / name
    try:
        if name.is_absolute() or ".." in name.parts:
            resolved = resolved.resolve(strict=True)
        root = Root(path.parent if resolved.is_relative_to(path.parent) else resolved.parent)
        root.open(resolved).close()
    except (OSError, ValueError) as error:
        if isinstance(error, BadFile) and os.path.lexists(resolved):
            raise
        raise BadFile(path, f"it names {brief(str(name))}, but there is no such file next to it") from None
    return resolved

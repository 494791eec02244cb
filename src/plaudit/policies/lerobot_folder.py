"""Policy folders of LeRobot: their config, and what they observe and return. No torch, and nothing of lerobot.

    outputs/train/act/checkpoints/last/pretrained_model/
      config.json, model.safetensors               what `PreTrainedPolicy.from_pretrained` loads
      policy_preprocessor.json, policy_postprocessor.json, *.safetensors    its processors and their statistics

The sizes are read here, before a robot is connected. The policy itself is built by lerobot (policies/lerobot.py).
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from plaudit.config import Number, Seed
from plaudit.errors import BadFile, NotAllowed, did_you_mean
from plaudit.files import Root, brief, read_json_object
from plaudit.policies.config import PolicyConfig, PolicyDevice
from plaudit.trust import check_code, from_file
from plaudit.types import EnvSpec

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
STATE, ACTION = "observation.state", "action"
KINDS = ("act", "diffusion", "smolvla", "pi0", "pi05")
MAX_SIZE = 65_536

_Option = bool | Annotated[int, Field(ge=-(10**9), le=10**9)] | Number | str


class LeRobotPolicyConfig(PolicyConfig):
    """A policy that LeRobot trained, with its own processors."""

    policy_class: ClassVar[str] = "plaudit.policies.lerobot:LeRobotPolicy"

    type: Literal["lerobot"] = "lerobot"
    path: Path  # the folder pretrained_model of a checkpoint; relative to the policy's file
    cameras: dict[str, str] = Field(default_factory=dict)  # camera -> the policy's name for it, where they differ
    task: str = ""  # the instruction; "": that of the run
    options: dict[str, _Option] = Field(default_factory=dict)  # keys of its config.json to override
    seed: Seed = 0  # of what is sampled
    device: PolicyDevice = "auto"  # cpu, cuda, or auto: a GPU if there is one

    @cached_property
    def folder(self) -> "LeRobotFolder":
        """What the folder says about itself."""
        return LeRobotFolder.read(self.path, self.cameras, self.options)

    @property
    def horizon(self) -> int:
        """Actions of a chunk."""
        return self.folder.horizon

    @property
    def history(self) -> int:
        """Earlier observations that the policy takes too."""
        return self.folder.history

    @property
    def env_spec(self) -> EnvSpec:
        """What the policy observes and returns."""
        return self.folder.env_spec


class LeRobotFolder:
    """A policy folder of LeRobot."""

    def __init__(self, path: Path, tree: Mapping[str, Any], cameras: Mapping[str, str]):
        """tree: its config.json; cameras: camera -> the policy's name for it"""
        self.path, self._file, self.kind = path, path / CONFIG_FILE, str(tree["type"])
        self._tree = tree
        is_diffusion = self.kind == "diffusion"
        self.horizon = self._size("n_action_steps" if is_diffusion else "chunk_size", most=1000)
        self.history = self._size("n_obs_steps", most=33) - 1  # earlier observations that it takes too
        inputs, names = self._features("input_features"), {name: camera for camera, name in cameras.items()}
        self.image_keys: dict[str, str] = {}  # camera -> feature
        sizes: dict[str, tuple[int, int]] = {}
        state_dim = 0
        for key, shape in inputs.items():
            if key == STATE and len(shape) == 1:
                state_dim = shape[0]
            elif key.startswith("observation.image") and len(shape) == 3:
                name = key.removeprefix("observation.images.").removeprefix("observation.")
                if name.startswith("empty_camera_"):
                    continue
                self.image_keys[names.get(name, name)] = key
                sizes[names.get(name, name)] = (shape[1], shape[2])
            else:
                raise BadFile(self._file, f"the policy needs {brief(key)}, which robots do not observe here")
        unused = sorted(set(cameras) - set(sizes))
        if unused:
            names_there = [key.removeprefix("observation.images.").removeprefix("observation.") for key in inputs]
            raise BadFile(
                self._file, f"it has no camera '{cameras[unused[0]]}'; {did_you_mean(unused[0], names_there)}"
            )
        action = self._features("output_features").get(ACTION, ())
        if len(action) != 1:
            raise BadFile(self._file, f"output_features has no '{ACTION}' of one dimension")
        self.env_spec = EnvSpec(state_dim, action[0], sizes)

    @classmethod
    def read(cls, path: Path, cameras: Mapping[str, str], options: Mapping[str, Any]) -> "LeRobotFolder":
        """Read and check the folder's JSON files."""
        root = Root(path, follow_links=True)  # the hub's cache has links
        if not (path / CONFIG_FILE).is_file():
            raise BadFile(path, f"this is no policy folder of LeRobot: it has no {CONFIG_FILE}; name pretrained_model")
        tree = {**read_json_object(path / CONFIG_FILE, root), **options}
        if tree.get("type") not in KINDS:
            kinds = ", ".join(KINDS)
            raise BadFile(path / CONFIG_FILE, f"a policy of type {brief(tree.get('type'))} cannot be run; {kinds} can")
        if tree.get("use_peft"):
            raise BadFile(path / CONFIG_FILE, "this is an adapter (use_peft); merge it into its base policy first")
        if not (path / WEIGHTS_FILE).is_file():
            raise BadFile(path, f"it has no weights ({WEIGHTS_FILE}); copy the folder again from its source")
        for name in PROCESSORS:
            if not (path / name).is_file():
                raise BadFile(
                    path,
                    f"it has no {name}: a LeRobot before 0.4 wrote it; convert it with: "
                    f"python -m lerobot.processor.migrate_policy_normalization --pretrained-path {path}",
                )
            _check_steps(path / name, read_json_object(path / name, root))
        return cls(path, tree, cameras)

    def has(self, key: str, value: Any) -> bool:
        """Whether its config has this value."""
        return self._tree.get(key) == value

    def _size(self, key: str, most: int = MAX_SIZE) -> int:
        value = self._tree.get(key)
        if type(value) is not int or not 0 < value <= most:
            raise BadFile(self._file, f"'{key}' is {brief(value)}, and a policy '{self.kind}' has 1 to {most} there")
        return value

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """[H, D] of the noise that decides the chunk; None where there is none, or where it does not decide alone."""
        if self.kind == "act" or (self.kind == "diffusion" and not self.has("noise_scheduler_type", "DDIM")):
            return None
        if self.kind == "diffusion":
            return self._size("horizon"), self.env_spec.action_dim
        return self.horizon, self._size("max_action_dim")

    def _features(self, which: str) -> dict[str, tuple[int, ...]]:
        features = self._tree.get(which)
        shapes: dict[str, tuple[int, ...]] = {}
        for key, feature in features.items() if isinstance(features, dict) else ():
            shape = feature.get("shape") if isinstance(feature, dict) else None
            if not isinstance(shape, list) or not all(type(n) is int and 0 < n <= MAX_SIZE for n in shape):
                raise BadFile(self._file, f"{which}: {brief(key)} has no shape")
            shapes[key] = tuple(shape)
        return shapes


def _check_steps(path: Path, tree: Mapping[str, Any]) -> None:
    """Refuse a processor that would import code which is not lerobot's, unless the user allows it."""
    steps = tree.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise BadFile(path, "it has no list of steps; another version of LeRobot wrote it")
    for step in steps:
        name, state = step.get("class"), step.get("state_file")
        if state is not None and (not isinstance(state, str) or Path(state).name != state):
            raise NotAllowed(f"{path.name} names the file {brief(state)}, which is not in its folder; nothing was read")
        if name is not None and not (isinstance(name, str) and name.startswith("lerobot.")):
            with from_file(path):
                check_code(str(name))

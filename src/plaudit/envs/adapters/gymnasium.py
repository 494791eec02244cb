"""Any Gymnasium environment with continuous actions, by its id.

Numbers of a (nested) observation are concatenated into "state"; its images (uint8 [H, W, 3]) become cameras named by
their key, or "front" where the observation is nothing but an image. For an environment without images, `render()` gives
one camera, under the one name in `cameras`. Which of the two applies is set in the config (`images_from`).
"""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from PIL import Image
from pydantic import AfterValidator, Field

from plaudit.config import Hertz
from plaudit.envs import gl
from plaudit.envs.adapters import AdaptedEnv, AdapterConfig, Size
from plaudit.envs.gl import FREE_CAMERA, MujocoCameras
from plaudit.errors import EnvError, UnknownName, did_you_mean
from plaudit.trust import check_code
from plaudit.types import AnyArray

KeyPath = tuple[str, ...]  # the keys that lead to an array in a nested observation
SUCCESS_KEYS = ("success", "is_success", "succeed")  # names of the success flag in `info`


def _check_id(id: str) -> str:
    """gym.make imports the module before a colon, so its name has to be allowed."""
    return check_code(id) if ":" in id else id


TaskId = Annotated[str, AfterValidator(_check_id)]


class GymnasiumConfig(AdapterConfig):
    """Any Gymnasium environment with continuous actions, by its id. Images are resized to `image_size`.

    With `obs: pixels`, numbers that the environment returns beside its own images are kept as proprioception; where
    images are rendered, "state" is empty.
    """

    type: Literal["gymnasium"] = "gymnasium"
    id: TaskId  # "Pusher-v5", or "my_package:MyTask-v0" to import the package that registers it
    # What the cameras show: `env.render()`, or images in the observation.
    images_from: Literal["render", "observation"] = "render"
    options: Mapping[str, Any] = Field(default_factory=dict)  # further arguments for gym.make
    success_key: str | None = None  # of the flag in `info`; None: the first of SUCCESS_KEYS, or never a success
    fps: Hertz | None = None  # control steps per second; None: the environment's render_fps, 0 if it has none
    render_backend: gl.Backend | None = None  # for environments that use MuJoCo; None: MUJOCO_GL, or what there is

    def make(self) -> AdaptedEnv:
        """Make one environment with `gym.make`."""
        # Whether MuJoCo renders at all is only known once the environment is made.
        gl.choose_backend(self.render_backend, needs_images=False)
        rendered = bool(self.images) and self.images_from == "render"
        simulator = self._make_simulator(rendered)
        numbers, own_images = split_space(simulator.observation_space, self.id)
        if rendered and len(self.cameras) > 1:
            raise EnvError(f"{self.id} renders one view; name one camera, not {', '.join(self.cameras)}")
        for camera in self.images:
            if not rendered and camera not in own_images:
                raise UnknownName(f"{self.id} has no image '{camera}' to observe; {did_you_mean(camera, own_images)}")
        if rendered and self.obs == "pixels":
            numbers = {}

        def read(observation: Any) -> tuple[AnyArray, dict[str, AnyArray]]:
            state = [np.ravel(get_at(observation, path)) for path in numbers]
            if isinstance(simulator, MujocoCameras):
                images = simulator.render_cameras()
            elif rendered:
                images = {self.cameras[0]: self._render(simulator)}
            else:
                images = {camera: get_at(observation, own_images[camera]) for camera in self.images}
            resized = {camera: resize_image(image, self.image_size) for camera, image in images.items()}
            return np.concatenate([*state, []]), resized

        max_steps = simulator.spec.max_episode_steps if simulator.spec is not None else None
        if max_steps is None:
            raise EnvError(f"{self.id} has no time limit of its own; set max_steps")
        return AdaptedEnv(
            simulator,
            name=self.id,
            read=read,
            success=self._is_success,
            state_dim=sum(numbers.values()),
            images=self.images,
            task=self.task,
            fps=self.fps or float(simulator.metadata.get("render_fps") or 0.0),
            max_steps=max_steps,
        )

    def _make_simulator(self, rendered: bool) -> gym.Env[Any, Any]:
        render_mode = {"render_mode": "rgb_array"} if rendered else {}
        try:
            env = gym.make(
                self.id, max_episode_steps=self.max_steps, disable_env_checker=True, **render_mode, **self.options
            )
        except gym.error.UnregisteredEnv as error:
            suggestion = did_you_mean(self.id, gym.registry)
            hint = suggestion if suggestion.startswith("did") else "gymnasium.pprint_registry() prints those there are"
            raise UnknownName(f"there is no environment '{self.id}'; {hint}") from error
        except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise EnvError(f"{self.id} needs a package that is not installed: {error}") from error
        return MujocoCameras(env, {self.cameras[0]: FREE_CAMERA}) if rendered and uses_mujoco(env) else env

    def _render(self, simulator: gym.Env[Any, Any]) -> AnyArray:
        try:
            return np.asarray(simulator.render())
        except gym.error.DependencyNotInstalled as error:  # rendering may need more packages than making
            raise EnvError(f"{self.id} cannot be rendered: {error}") from error

    def _is_success(self, info: Mapping[str, Any]) -> bool:
        if self.success_key is not None:
            if self.success_key not in info:
                hint = did_you_mean(self.success_key, info)
                raise EnvError(f"the info of {self.id} has no '{self.success_key}'; {hint}")
            return bool(info[self.success_key])
        return next((bool(info[key]) for key in SUCCESS_KEYS if key in info), False)


def split_space(space: gym.Space[Any], name: str, path: KeyPath = ()) -> tuple[dict[KeyPath, int], dict[str, KeyPath]]:
    """Where an observation has its numbers (path -> how many) and its images (camera -> path)."""
    if isinstance(space, spaces.Dict):
        numbers: dict[KeyPath, int] = {}
        images: dict[str, KeyPath] = {}
        for key, inner in space.spaces.items():
            inner_numbers, inner_images = split_space(inner, name, (*path, key))
            numbers |= inner_numbers
            images |= inner_images
        return numbers, images
    if not isinstance(space, spaces.Box):
        raise EnvError(f"{name} observes {space} at '{'.'.join(path)}'; only numbers and images can be used")
    if space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3:
        return {}, {path[-1] if path else "front": path}
    return {path: int(np.prod(space.shape))}, {}


def uses_mujoco(simulator: gym.Env[Any, Any]) -> bool:
    """Whether it renders with Gymnasium's MuJoCo renderer; one that does has imported that module already."""
    module = sys.modules.get("gymnasium.envs.mujoco")
    return module is not None and isinstance(simulator.unwrapped, module.MujocoEnv)


def get_at(observation: Any, path: KeyPath) -> AnyArray:
    """The array at a path of keys in a nested observation."""
    for key in path:
        observation = observation[key]
    return np.asarray(observation)


def resize_image(image: AnyArray, size: Size) -> AnyArray:
    """The image in this height and width, each pixel an average of those it replaces."""
    if image.shape[:2] == size:
        return image
    height, width = size
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))

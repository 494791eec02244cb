"""Any Gymnasium environment with continuous actions, by its id.

Observations may be one array or a dictionary, nested or not: numbers are laid end to end into "state", images in it
(uint8 [H, W, 3]) become cameras named by their key, or "front" where the observation is nothing but an image. An
environment without images in its observations is drawn with `render()`: it has one view, under the one name in
`cameras`. Which of the two is for the config to say, since an environment may offer both.
"""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from PIL import Image
from pydantic import AfterValidator, Field, PositiveFloat

from plaudit.envs import gl
from plaudit.envs.adapters.common import Adapted, AdapterConfig, Size
from plaudit.envs.adapters.mujoco_views import FREE, MujocoViews
from plaudit.errors import EnvError, UnknownName, nearest
from plaudit.trust import check_code
from plaudit.types import AnyArray

Path = tuple[str, ...]  # the keys that lead to an array in a nested observation
SUCCESS_KEYS = ("success", "is_success", "succeed")  # what simulators call it in `info`


def _check_id(id: str) -> str:
    """gym.make imports what stands before a colon."""
    return check_code(id) if ":" in id else id


TaskId = Annotated[str, AfterValidator(_check_id)]


class GymnasiumConfig(AdapterConfig):
    """Images are resized to `image_size`. With `obs: pixels`, numbers that the environment hands out beside its own
    images are kept as what the robot measures; where images are rendered, "state" is empty."""

    type: Literal["gymnasium"] = "gymnasium"
    id: TaskId  # "Pusher-v5", or "my_package:MyTask-v0" to import what registers it
    images_from: Literal["render", "observation"] = "render"
    options: Mapping[str, Any] = Field(default_factory=dict)  # further arguments for gym.make
    success_key: str | None = None  # where `info` has the verdict; None: the first of SUCCESS_KEYS, else never success
    fps: PositiveFloat | None = None  # control steps per second; None: the environment's render_fps, 0 if it has none
    render_backend: gl.Backend | None = None  # of environments that use MuJoCo; None: MUJOCO_GL, or what there is

    def make(self) -> Adapted:
        gl.choose(self.render_backend, images=False)  # what draws, if MuJoCo at all, is not known before it is made
        rendered = bool(self.images) and self.images_from == "render"
        simulator = self._make_simulator(rendered)
        numbers, own_images = split(simulator.observation_space, self.id)
        self._check_cameras(rendered, own_images)
        if rendered and self.obs == "pixels":
            numbers = {}

        def read(observation: Any) -> tuple[AnyArray, dict[str, AnyArray]]:
            state = [np.ravel(at(observation, path)) for path in numbers]
            if isinstance(simulator, MujocoViews):
                images = simulator.draw()
            elif rendered:
                images = {self.cameras[0]: self._drawn(simulator)}
            else:
                images = {camera: at(observation, own_images[camera]) for camera in self.images}
            fitted = {camera: resized(image, self.image_size) for camera, image in images.items()}
            return np.concatenate(state) if state else np.zeros(0), fitted

        max_steps = simulator.spec.max_episode_steps if simulator.spec is not None else None
        if max_steps is None:
            raise EnvError(f"{self.id} has no time limit of its own; set max_steps")
        return Adapted(
            simulator,
            name=self.id,
            read=read,
            success=self._succeeded,
            state_size=sum(numbers.values()),
            images=self.images,
            task=self.task,
            fps=self.fps or float(simulator.metadata.get("render_fps") or 0.0),
            max_steps=max_steps,
        )

    def _make_simulator(self, rendered: bool) -> gym.Env[Any, Any]:
        drawing = {"render_mode": "rgb_array"} if rendered else {}
        try:
            made = gym.make(
                self.id, max_episode_steps=self.max_steps, disable_env_checker=True, **drawing, **self.options
            )
        except gym.error.UnregisteredEnv as error:
            near = nearest(self.id, gym.registry)
            hint = near if near.startswith("did") else "gymnasium.pprint_registry() prints those there are"
            raise UnknownName(f"there is no environment '{self.id}'; {hint}") from error
        except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise EnvError(f"{self.id} needs a package that is not installed: {error}") from error
        return MujocoViews(made, {self.cameras[0]: FREE}) if rendered and uses_mujoco(made) else made

    def _drawn(self, simulator: gym.Env[Any, Any]) -> AnyArray:
        try:
            return np.asarray(simulator.render())
        except gym.error.DependencyNotInstalled as error:  # drawing may take more than making did
            raise EnvError(f"{self.id} cannot be drawn: {error}") from error

    def _check_cameras(self, rendered: bool, own_images: Mapping[str, Path]) -> None:
        if rendered and len(self.cameras) > 1:
            raise EnvError(f"{self.id} is drawn from one side; name one camera, not {', '.join(self.cameras)}")
        for camera in self.images if not rendered else ():
            if camera not in own_images:
                raise UnknownName(f"{self.id} has no image '{camera}' to observe; {nearest(camera, own_images)}")

    def _succeeded(self, info: Mapping[str, Any]) -> bool:
        if self.success_key is not None:
            if self.success_key not in info:
                raise EnvError(f"{self.id} says nothing of '{self.success_key}'; {nearest(self.success_key, info)}")
            return bool(info[self.success_key])
        return next((bool(info[key]) for key in SUCCESS_KEYS if key in info), False)


def split(space: gym.Space[Any], name: str, path: Path = ()) -> tuple[dict[Path, int], dict[str, Path]]:
    """Where an observation has its numbers (path -> how many) and its images (camera -> path)."""
    if isinstance(space, spaces.Dict):
        numbers: dict[Path, int] = {}
        images: dict[str, Path] = {}
        for key, inner in space.spaces.items():
            inner_numbers, inner_images = split(inner, name, (*path, key))
            numbers |= inner_numbers
            images |= inner_images
        return numbers, images
    if not isinstance(space, spaces.Box):
        raise EnvError(f"{name} observes {space} at '{'.'.join(path)}'; only numbers and images can be used")
    if space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3:
        return {}, {path[-1] if path else "front": path}
    return {path: int(np.prod(space.shape))}, {}


def uses_mujoco(simulator: gym.Env[Any, Any]) -> bool:
    """Whether it draws with Gymnasium's MuJoCo renderer. One that does has imported that module; for the others it is
    not imported here, since it takes packages that they may do without."""
    drawing = sys.modules.get("gymnasium.envs.mujoco")
    return drawing is not None and isinstance(simulator.unwrapped, drawing.MujocoEnv)


def at(observation: Any, path: Path) -> AnyArray:
    for key in path:
        observation = observation[key]
    return np.asarray(observation)


def resized(image: AnyArray, size: Size) -> AnyArray:
    if image.shape[:2] == size:
        return image
    height, width = size
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))

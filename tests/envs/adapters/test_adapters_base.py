import logging
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from plaudit.config import parse
from plaudit.envs import adapters as base
from plaudit.envs import gl
from plaudit.envs.adapters import AdaptedEnv, AdapterConfig, check_mujoco, load_simulator
from plaudit.envs.adapters.mujoco import FetchConfig, GymHilConfig
from plaudit.errors import ConfigError, EnvError, MissingExtra, UnknownName
from plaudit.registry import ENV_REGISTRY


class Counter(gym.Env):
    """Observes the action it was given, and hands out the same array each time."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))

    def __init__(self, action_space):
        self.action_space, self.array = action_space, np.zeros(2)

    def reset(self, *, seed=None, options=None):
        self.array[:] = 0
        return self.array, {}

    def step(self, action):
        self.array[:] = action
        return self.array, 1, False, False, {"done_well": self.array[0] > 5}


def adapted(action_space):
    return AdaptedEnv(
        Counter(action_space),
        name="Counter",
        read=lambda observation: (observation, {}),
        success=lambda info: bool(info["done_well"]),
        state_dim=2,
        images={},
        task="count",
        fps=10.0,
        max_steps=3,
    )


ODD = spaces.Box(np.array([0.0, -4.0], np.float32), np.array([10.0, 4.0], np.float32))


@pytest.mark.parametrize(
    ("ours", "theirs"), [([-1, 0], [0, 0]), ([1, 1], [10, 4]), ([0, 0.5], [5, 2]), ([9, -9], [10, -4])]
)
def test_actions_are_scaled_to_the_simulators_bounds_and_cut_off_there(ours, theirs):
    observation = adapted(ODD).step(np.array(ours, np.float32))[0]
    assert observation["state"].tolist() == theirs


def test_an_observation_is_a_copy():
    env = adapted(ODD)
    first, _ = env.reset()
    env.step(np.ones(2, np.float32))
    assert first["state"].tolist() == [0, 0]


def test_the_simulators_label_is_in_info():
    env = adapted(ODD)
    assert [env.step(np.array(a, np.float32))[4]["success"] for a in ([-1, 0], [1, 0])] == [False, True]


def test_a_state_that_is_not_finite_is_an_error_that_says_where():
    env = adapted(ODD)
    with pytest.raises(EnvError, match="Counter returned nan as number 1 of its state"):
        env.step(np.array([0, np.nan], np.float32))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Discrete(3), r"Counter takes actions from Discrete\(3\)"),
        (spaces.Box(-np.inf, 1, (2,)), "without bounds"),
    ],
)
def test_actions_that_cannot_be_scaled_are_refused(space, words):
    with pytest.raises(EnvError, match=words):
        adapted(space)


def test_every_adapter_is_registered_and_read_without_its_simulator():
    for name in ("gym_hil", "fetch", "metaworld", "maniskill"):
        config = ENV_REGISTRY.parse({"type": name, "obs": "both", "image_size": [64, 96]})
        assert isinstance(config, AdapterConfig) and config.images["front"] == (64, 96)


def test_an_unknown_camera_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="key 'cameras': there is no camera 'wirst'; did you mean 'wrist'"):
        parse(GymHilConfig, {"cameras": ["wirst"]})


def test_an_image_without_size_is_refused():
    with pytest.raises(ConfigError, match=r"key 'image_size\.0' is 0: input should be greater than 0"):
        parse(FetchConfig, {"image_size": [0, 64]})


def test_images_without_a_camera_are_refused():
    with pytest.raises(ConfigError, match="name at least one camera"):
        parse(FetchConfig, {"obs": "pixels", "cameras": []})


def test_an_unknown_id_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'gym_hil/PandaPickCube-v0'"):
        parse(GymHilConfig, {"id": "gym_hil/PandaPickCubes-v0"})
    with pytest.raises(UnknownName, match="there is no environment 'reach'; did you mean 'reach-v3'"):
        base.check_id("reach", ["reach-v3", "door-open-v3"])


def test_a_simulator_that_is_not_installed_says_what_to_install():
    with pytest.raises(MissingExtra, match=r"no_such_simulator is not installed; run: pip install 'plaudit\[fetch\]'"):
        load_simulator("no_such_simulator", extra="fetch")


@pytest.mark.parametrize(
    ("installed", "mujoco", "works"), [("1.4.2", "3.11.0", True), ("1.4.2", "4.0.0", False), ("1.5", "4.0.0", True)]
)
def test_a_mujoco_that_a_simulator_breaks_with_is_refused(monkeypatch, installed, mujoco, works):
    monkeypatch.setattr(base, "version", {"gymnasium-robotics": installed, "mujoco": mujoco}.get)
    if works:
        check_mujoco("gymnasium-robotics", extra="fetch", upto="1.4.2", below="3.12")
    else:
        with pytest.raises(EnvError, match=r"1\.4\.2 does not run with MuJoCo 4\.0\.0, only below 3\.12"):
            check_mujoco("gymnasium-robotics", extra="fetch", upto="1.4.2", below="3.12")


@pytest.fixture
def fresh(monkeypatch):
    """A process on Linux without a display that has not imported MuJoCo, and what it has for OpenGL."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")  # so that what a test sets is undone too
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    libraries: set[str] = set()
    monkeypatch.setattr(gl, "_is_installed", libraries.__contains__)
    return libraries


@pytest.mark.parametrize(("there", "chosen"), [({"egl", "osmesa"}, "egl"), ({"osmesa"}, "osmesa")])
def test_without_a_display_the_first_headless_renderer_is_taken_and_logged(fresh, caplog, there, chosen):
    fresh |= there
    with caplog.at_level(logging.INFO):
        gl.choose_backend()
    assert gl.os.environ["MUJOCO_GL"] == chosen
    assert f"it is now '{chosen}'" in caplog.text


def test_the_users_own_choice_stands(fresh, monkeypatch):
    fresh |= {"egl", "osmesa"}
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    gl.choose_backend()
    assert gl.os.environ["MUJOCO_GL"] == "osmesa"
    with pytest.raises(EnvError, match="render_backend is 'egl', but this process already renders with 'osmesa'"):
        gl.choose_backend("egl")


def test_a_display_is_left_to_mujoco(fresh, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    gl.choose_backend()
    assert gl.os.environ["MUJOCO_GL"] == ""


def test_a_machine_without_opengl_says_what_to_install_when_images_are_asked_for(fresh):
    gl.choose_backend(needs_images=False)
    with pytest.raises(EnvError, match="is not installed on this machine; run: apt-get install libegl1 libgl1"):
        gl.choose_backend()
    with pytest.raises(EnvError, match="apt-get install libosmesa6"):
        gl.choose_backend("osmesa")


def test_a_renderer_that_the_user_chose_and_has_not_is_explained(fresh, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(
        EnvError, match="MUJOCO_GL is 'osmesa', which is not installed on this machine; run: apt-get install"
    ):
        gl.choose_backend(needs_images=False)


def test_an_error_of_opengl_is_explained_and_others_are_left_alone(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with (
        pytest.raises(EnvError, match="the renderer 'egl' did not start"),
        gl.explain_errors(),
    ):
        exec("raise ImportError('no device')", {"__name__": "mujoco.egl"})
    with pytest.raises(KeyError), gl.explain_errors():
        {}["camera"]


def test_a_mujoco_that_was_imported_too_early_is_explained(fresh, monkeypatch):
    fresh |= {"egl"}
    monkeypatch.setitem(sys.modules, "mujoco", base)
    gl.choose_backend(needs_images=False)
    with pytest.raises(EnvError, match="imported before a renderer was chosen and there is no display"):
        gl.choose_backend()

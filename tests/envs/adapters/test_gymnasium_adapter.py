import gc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.adapters.contract import INFINITE_STATE, check_adapted, needs, rollout, state_size
from plaudit.envs.adapters.gymnasium import GymnasiumConfig
from plaudit.errors import EnvError, UnknownName

pytestmark = pytest.mark.filterwarnings(INFINITE_STATE)


class Nested(gym.Env):
    """Numbers 1, 2, 3 in two places and an image whose left half is white."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    action_space = spaces.Box(-2, 2, (1,))
    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"angles": spaces.Box(-9, 9, (2,)), "force": spaces.Box(-9, 9, (1, 1))}),
            "pixels": spaces.Dict({"wrist": spaces.Box(0, 255, (4, 8, 3), np.uint8)}),
        }
    )

    def __init__(self, render_mode=None, says="is_success"):
        self.render_mode, self.says = render_mode, says

    def _observe(self):
        image = np.zeros((4, 8, 3), np.uint8)
        image[:, :4] = 255
        arm = {"angles": np.array([1, 2], np.float32), "force": np.array([[3]], np.float32)}
        return {"arm": arm, "pixels": {"wrist": image}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        return self._observe(), 0.0, False, False, {self.says: np.float32(1)}

    def render(self):
        return np.full((10, 10, 3), np.arange(10, dtype=np.uint8)[:, None, None] * 20)


@pytest.fixture(autouse=True, scope="module")
def registered():
    gym.register("Nested-v0", Nested, max_episode_steps=7)
    gym.register("Endless-v0", Nested)
    yield
    for id in ("Nested-v0", "Endless-v0"):
        del gym.registry[id]


def test_numbers_are_laid_end_to_end():
    env = GymnasiumConfig(id="Nested-v0", task="count").make()
    check_adapted(env)
    assert env.reset()[0]["state"].tolist() == [1, 2, 3]
    assert (env.fps, env.max_steps) == (5, 7)


def test_images_in_the_observation_become_cameras_of_the_asked_size():
    config = GymnasiumConfig(
        id="Nested-v0", obs="pixels", images_from="observation", cameras=("wrist",), image_size=(2, 4), task="look"
    )
    env = config.make()
    check_adapted(env, cameras=["wrist"])
    assert env.reset()[0]["wrist"][:, :, 0].tolist() == [[255, 255, 0, 0]] * 2


def test_an_environment_without_images_is_drawn():
    env = GymnasiumConfig(id="Nested-v0", obs="pixels", image_size=(5, 5), task="look").make()
    check_adapted(env, cameras=["front"])
    assert state_size(env) == 0
    assert env.reset()[0]["front"][:, 0, 0].tolist() == [10, 50, 90, 130, 170]  # means of two rows


def succeeds(config):
    env = config.make()
    env.reset(seed=0)
    return env.step(np.zeros(1, np.float32))[4]["success"]


def test_success_is_found_under_its_usual_names_or_the_given_one():
    assert succeeds(GymnasiumConfig(id="Nested-v0")) is True
    assert succeeds(GymnasiumConfig(id="Nested-v0", options={"says": "won"})) is False
    assert succeeds(GymnasiumConfig(id="Nested-v0", options={"says": "won"}, success_key="won")) is True
    with pytest.raises(EnvError, match="the info of Nested-v0 has no 'wan'; did you mean 'won'"):
        succeeds(GymnasiumConfig(id="Nested-v0", options={"says": "won"}, success_key="wan"))


def test_an_id_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="there is no environment 'Nestd-v0'; did you mean 'Nested-v0'"):
        GymnasiumConfig(id="Nestd-v0").make()


def test_an_image_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(UnknownName, match="Nested-v0 has no image 'front' to observe; known: wrist"):
        GymnasiumConfig(id="Nested-v0", obs="both", images_from="observation").make()


def test_a_time_limit_has_to_come_from_somewhere():
    with pytest.raises(EnvError, match="Endless-v0 has no time limit of its own; set max_steps"):
        GymnasiumConfig(id="Endless-v0").make()
    env = GymnasiumConfig(id="Endless-v0", max_steps=2).make()
    env.reset()
    assert [env.step(np.zeros(1))[3] for _ in range(2)] == [False, True]


def test_gymnasiums_own_pendulum_works_and_its_seeds_reproduce():
    env = GymnasiumConfig(id="Pendulum-v1", task="swing it up and keep it there").make()
    check_adapted(env)
    assert np.array_equal(rollout(env, 1), rollout(env, 1)) and not np.array_equal(rollout(env, 1), rollout(env, 2))


@needs("mujoco", "simulators")
@needs("imageio", "simulators")  # Gymnasium draws MuJoCo only beside it
class TestTwoMujocoEnvironmentsInAProcess:
    def make(self, id):
        size = {"width": 48, "height": 48}
        return GymnasiumConfig(id=id, obs="both", image_size=(48, 48), options=size, task="move").make()

    def image(self, env):
        return env.reset(seed=0)[0]["front"]

    def test_each_keeps_its_pictures(self):
        first = self.make("Reacher-v5")
        before = self.image(first)
        assert before.std() > 1
        second = self.make("Swimmer-v5")
        other = self.image(second)
        assert np.array_equal(self.image(first), before)
        first.close()
        assert np.array_equal(self.image(second), other)
        second.close()

    @pytest.mark.parametrize("closed", [True, False])
    def test_one_that_is_gone_leaves_the_pictures_of_the_other(self, closed):
        first, second = self.make("Reacher-v5"), self.make("Swimmer-v5")
        before = self.image(second)
        if closed:
            first.close()
            self.image(second)
        del first
        gc.collect()
        assert np.array_equal(self.image(second), before)
        second.close()

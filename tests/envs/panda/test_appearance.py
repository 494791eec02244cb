import colorsys

import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.scene import CAMERAS
from plaudit.envs.panda.vec_env import PandaVecEnv


def make_env(randomize, num_envs=3):
    images = {"obs": "both", "cameras": CAMERAS, "image_size": (32, 32)}
    return PandaVecEnv("pick_place", num_envs, randomize=randomize, **images)


def test_random_looks_change_pixels_and_leave_the_physics_alone():
    plain, random = make_env(False), make_env(True)
    one, other = plain.reset([1, 2, 3]), random.reset([1, 2, 3])
    rng = np.random.default_rng(0)
    for _ in range(10):
        actions = rng.uniform(-1, 1, (3, 4))
        (one, _), (other, _) = plain.step(actions), random.step(actions)
        assert np.array_equal(one.state, other.state)
        for camera in CAMERAS:
            assert (one.images[camera] != other.images[camera]).mean(axis=(1, 2, 3)).min() > 0.5


def test_a_seed_looks_the_same_wherever_and_whenever_it_is_started():
    alone, many = make_env(True, 1).reset([3]), make_env(True, 4)
    first = many.reset([1, 2, 3, 4])
    again = many.reset([3], ids=np.array([0]))
    for camera in CAMERAS:
        assert np.array_equal(first.images[camera][2], alone.images[camera][0])
        assert np.array_equal(again.images[camera][0], alone.images[camera][0])
        assert np.array_equal(again.images[camera][1:], first.images[camera][1:])


def test_the_cube_stays_red_the_marker_green_and_nothing_is_overexposed():
    env = make_env(True, 100)
    env.reset(range(100))
    appearance, model = env._appearance, env._model
    for i in range(100):
        red, _, _ = colorsys.rgb_to_hsv(*appearance.color[i, model.geom("cube").id])
        green, _, _ = colorsys.rgb_to_hsv(*appearance.color[i, model.geom("goal").id])
        assert min(red, 1 - red) < 0.04 and 0.28 < green < 0.44
    others = np.delete(appearance.color, [model.geom("cube").id, model.geom("goal").id], axis=1)
    assert ((others.max(-1) - others.min(-1)) / others.max(-1)).max() < 0.25
    assert (
        appearance.color.min() >= 0
        and appearance.color.max() <= 1
        and (appearance.ambient + appearance.diffuse).max() <= 1
    )

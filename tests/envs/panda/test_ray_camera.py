import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.cameras import mujoco
from plaudit.envs.panda.scene import CAMERAS, SKY
from plaudit.envs.panda.vec_env import PandaVecEnv


def random_walk(camera, size=(64, 64), count=6, steps=25, **settings):
    """Environments whose arms moved at random, lower and lower, and the camera's last images of them."""
    env = PandaVecEnv("pick_place", count, obs="both", cameras=(camera,), image_size=size, **settings)
    env.reset(range(count))
    rng = np.random.default_rng(0)
    drift = rng.uniform(-0.5, 0.5, (count, 4)) - (0, 0, 0.2, 0)
    seen = [env.step(drift + rng.uniform(-0.5, 0.5, (count, 4)))[0] for _ in range(steps)]
    return env, seen[-1].images[camera]


def cast_all(env, i, camera, size):
    """The image by MuJoCo's mj_ray alone: every pixel against every geom, without caching or culling."""
    model, appearance, number = env._model, env._appearance, env._model.camera(camera).id
    data = mujoco.MjData(model)
    env._batch.get_data(i, data)
    mujoco.mj_kinematics(model, data)
    parent = data.xmat[model.cam_bodyid[number]].reshape(3, 3)
    origin = data.xpos[model.cam_bodyid[number]] + parent @ appearance.camera_pos[i, number]
    rotation = parent @ appearance.camera_rot[i, number]
    height, width = size
    focal = height / 2 / np.tan(np.radians(model.cam_fovy[number]) / 2)
    image = np.empty((height, width, 3), np.uint8)
    for row, column in np.ndindex(height, width):
        ray = np.array([column + 0.5 - width / 2, height / 2 - 0.5 - row, -focal])
        ray = rotation @ (ray / np.linalg.norm(ray))
        geom, normal = np.full(1, -1, np.int32), np.zeros(3)
        mujoco.mj_ray(model, data, origin, ray, None, True, -1, geom, normal)
        facing = max(float(normal @ appearance.light[i]), 0.0)
        light = appearance.ambient[i] + appearance.diffuse[i] * facing
        color = appearance.color[i, geom[0]] * light if geom[0] >= 0 else SKY
        image[row, column] = color * 255 + 0.5
    return image


@pytest.mark.parametrize(
    ("size", "randomize"),
    [
        ((20, 45), True),
        pytest.param((64, 64), False, marks=pytest.mark.slow),
        pytest.param((96, 32), True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("camera", CAMERAS)
def test_an_image_equals_casting_every_ray_at_every_geom(camera, size, randomize):
    env, images = random_walk(camera, size, randomize=randomize)
    for i, image in enumerate(images):
        assert np.array_equal(image, cast_all(env, i, camera, size))


def test_images_of_all_sizes_can_be_rendered():
    for size in ((1, 1), (3, 7), (64, 1), (130, 90)):
        env = PandaVecEnv("lift", 1, obs="pixels", cameras=CAMERAS, image_size=size)
        assert all(image.shape == (1, *size, 3) for image in env.reset([0]).images.values())


@pytest.mark.parametrize("camera", CAMERAS)
def test_the_cube_is_visible_wherever_it_starts(camera):
    env = PandaVecEnv("lift", 40, obs="pixels", cameras=(camera,))
    image = env.reset(range(40)).images[camera].astype(int)
    red = (image[..., 0] > 2.5 * image[..., 1]) & (image[..., 0] > 2.5 * image[..., 2])
    assert red.sum(axis=(1, 2)).min() >= 9


def test_render_shows_the_current_state_from_any_camera_in_any_size():
    env, images = random_walk("side")
    assert np.array_equal(env.render("side", (64, 64)), images)
    assert env.render("front", (100, 200)).shape == (6, 100, 200, 3)

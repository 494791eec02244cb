import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.mujoco_batch", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.mujoco_batch import mujoco
from plaudit.envs.panda.scene import CAMERAS, SKY
from plaudit.envs.panda.vec_env import PandaVecEnv


def wandered(camera, size=(64, 64), count=6, steps=25, **settings):
    """Scenes in which arms have gone about at random, lower and lower; and what the camera shows of them."""
    env = PandaVecEnv("pick_place", count, obs="both", cameras=(camera,), image_size=size, **settings)
    env.reset(range(count))
    rng = np.random.default_rng(0)
    drift = rng.uniform(-0.5, 0.5, (count, 4)) - (0, 0, 0.2, 0)
    seen = [env.step(drift + rng.uniform(-0.5, 0.5, (count, 4)))[0] for _ in range(steps)]
    return env, seen[-1].images[camera]


def cast_all(env, scene, camera, size):
    """The picture by MuJoCo's mj_ray alone: every pixel against every geom, nothing kept or left out."""
    model, appearance, number = env._model, env._appearance, env._model.camera(camera).id
    data = mujoco.MjData(model)
    env._batch.get_data(scene, data)
    mujoco.mj_kinematics(model, data)
    parent = data.xmat[model.cam_bodyid[number]].reshape(3, 3)
    origin = data.xpos[model.cam_bodyid[number]] + parent @ appearance.camera_pos[scene, number]
    rotation = parent @ appearance.camera_rot[scene, number]
    height, width = size
    focal = height / 2 / np.tan(np.radians(model.cam_fovy[number]) / 2)
    picture = np.empty((height, width, 3), np.uint8)
    for row, column in np.ndindex(height, width):
        ray = np.array([column + 0.5 - width / 2, height / 2 - 0.5 - row, -focal])
        ray = rotation @ (ray / np.linalg.norm(ray))
        geom, normal = np.full(1, -1, np.int32), np.zeros(3)
        mujoco.mj_ray(model, data, origin, ray, None, True, -1, geom, normal)
        facing = max(float(normal @ appearance.light[scene]), 0.0)
        light = appearance.ambient[scene] + appearance.diffuse[scene] * facing
        color = appearance.color[scene, geom[0]] * light if geom[0] >= 0 else SKY
        picture[row, column] = color * 255 + 0.5
    return picture


@pytest.mark.parametrize(("size", "randomize"), [((64, 64), False), ((20, 45), True), ((96, 32), True)])
@pytest.mark.parametrize("camera", CAMERAS)
def test_a_picture_is_what_casting_every_ray_at_everything_gives(camera, size, randomize):
    env, pictures = wandered(camera, size, randomize=randomize)
    for scene, picture in enumerate(pictures):
        assert np.array_equal(picture, cast_all(env, scene, camera, size))


def test_pictures_of_all_sizes_can_be_drawn():
    for size in ((1, 1), (3, 7), (64, 1), (130, 90)):
        env = PandaVecEnv("lift", 1, obs="pixels", cameras=CAMERAS, image_size=size)
        assert all(image.shape == (1, *size, 3) for image in env.reset([0]).images.values())


@pytest.mark.parametrize("camera", CAMERAS)
def test_the_cube_is_seen_wherever_it_starts(camera):
    env = PandaVecEnv("lift", 40, obs="pixels", cameras=(camera,))
    picture = env.reset(range(40)).images[camera].astype(int)
    red = (picture[..., 0] > 2.5 * picture[..., 1]) & (picture[..., 0] > 2.5 * picture[..., 2])
    assert red.sum(axis=(1, 2)).min() >= 9


def test_a_view_for_people_shows_the_scene_as_it_is():
    env, pictures = wandered("side")
    assert np.array_equal(env.render("side", (64, 64)), pictures)
    assert env.render("front", (100, 200)).shape == (6, 100, 200, 3)

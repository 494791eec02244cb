import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs import gl
from plaudit.envs.panda.cameras import GlCamera, mujoco
from plaudit.envs.panda.scene import CAMERAS
from plaudit.envs.panda.vec_env import PandaVecEnv
from plaudit.errors import EnvError

SIZE = (96, 96)


def no_opengl():
    """Whether this machine has no OpenGL at all."""
    return not any(gl._is_installed(name) for name in gl.HEADLESS) and not gl._has_display()


needs_gl = pytest.mark.skipif(no_opengl(), reason="no OpenGL library can be loaded here")


def pair(camera, count=3):
    """Environments after some steps, their images by ray casting, and a camera that renders them with OpenGL."""
    env = PandaVecEnv("pick_place", count, obs="pixels", cameras=(camera,), image_size=SIZE, randomize=True)
    env.reset(range(count))
    rng = np.random.default_rng(0)
    seen = [env.step(rng.uniform(-1, 1, (count, 4)))[0] for _ in range(8)]
    return env, seen[-1].images[camera], GlCamera(env._model, camera, SIZE, env._batch, env._appearance)


def inside(geoms):
    """Which pixels see the same geom as all their neighbours, so that edges play no part."""
    same = np.ones(geoms.shape, bool)
    for shift in (-1, 1):
        for axis in (1, 2):
            same &= geoms == np.roll(geoms, shift, axis)
    return same


def ray_geoms(env, camera):
    ray_camera = env._cameras[camera]
    count = env.num_envs
    origin, rotation = ray_camera._pose(np.arange(count))
    rays = ray_camera._rays @ rotation.transpose(0, 2, 1)
    return env._batch.ray(origin[:, None], rays)[1].reshape(count, *SIZE)


def gl_geoms(camera_gl, count):
    camera_gl._renderer.enable_segmentation_rendering()
    geoms = []
    for env in range(count):
        camera_gl._load_env(env)
        geoms.append(camera_gl._renderer.render()[..., 0].copy())
    camera_gl._renderer.disable_segmentation_rendering()
    return np.stack(geoms).astype(int)


@needs_gl
@pytest.mark.parametrize("camera", CAMERAS)
def test_ray_casting_and_opengl_give_the_same_geoms_and_colors(camera):
    env, image, camera_gl = pair(camera)
    geoms, geoms_gl = ray_geoms(env, camera), gl_geoms(camera_gl, 3)
    clear = inside(geoms) & inside(geoms_gl)
    assert clear.mean() > 0.8
    assert (geoms == geoms_gl).mean() > 0.97
    assert (geoms == geoms_gl)[clear].mean() >= 0.99
    rendered = camera_gl.render(np.arange(3))
    difference = np.abs(image.astype(int) - rendered.astype(int)).max(axis=-1)
    # OpenGL approximates round geoms with flat faces, which shade a little differently.
    assert (difference[clear] <= 8).mean() > 0.97
    camera_gl.close()


@needs_gl
def test_an_environment_renders_with_opengl_when_configured():
    env = PandaVecEnv("lift", 2, obs="both", image_size=SIZE, randomize=True, render_backend="gl")
    rays = PandaVecEnv("lift", 2, obs="both", image_size=SIZE, randomize=True)
    one, other = env.reset([1, 2]).images["front"], rays.reset([1, 2]).images["front"]
    assert np.abs(one.astype(int) - other.astype(int)).mean() < 3
    assert not np.array_equal(one[0], one[1])
    env.close()


def test_an_opengl_that_does_not_start_is_reported_with_what_to_install(monkeypatch):
    def fail(*_):
        raise RuntimeError("no context")

    fail.__globals__["__name__"] = "mujoco.renderer"  # as if MuJoCo's own lines had failed
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(gl, "_is_installed", lambda _: True)
    monkeypatch.setattr(mujoco, "Renderer", fail)
    try:
        with pytest.raises(EnvError, match=r"the renderer 'egl' did not start \(RuntimeError: no context\); run: apt"):
            PandaVecEnv("lift", obs="pixels", render_backend="gl")
    finally:
        fail.__globals__["__name__"] = __name__


def test_a_missing_opengl_is_reported_and_ray_casting_still_works(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(gl, "_is_installed", lambda _: False)
    with pytest.raises(
        EnvError, match="MUJOCO_GL is 'osmesa', which is not installed on this machine; run: apt-get install"
    ):
        PandaVecEnv("lift", obs="pixels", render_backend="gl")
    assert PandaVecEnv("lift", obs="pixels").reset([0]).images["front"].any()


@needs_gl
def test_no_variable_has_to_be_set_where_there_is_no_display():
    program = """
import os
for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
    os.environ.pop(name, None)
import gymnasium as gym
import plaudit.envs
env = gym.make("plaudit/Lift-v0", obs="pixels", render_backend="gl")
print(env.reset(seed=0)[0]["front"].shape)
env.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "(64, 64, 3)", done.stderr

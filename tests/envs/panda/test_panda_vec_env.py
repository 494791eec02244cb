import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda import PandaConfig, scene
from plaudit.envs.panda.scene import ARM_STATE, CUBE_HALF_SIZE, SCENE_STATE
from plaudit.envs.panda.vec_env import PandaVecEnv
from plaudit.errors import ConfigError, EnvError, InvalidAction, UnknownName
from plaudit.protocols import VecEnv
from plaudit.registry import ENV_REGISTRY

TASKS = ("lift", "pick_place", "push")


def shaken(env, steps=10, active=None):
    """The last observation, after environment i got the random actions of generator i."""
    rngs = [np.random.default_rng(i) for i in range(env.num_envs)]
    return [env.step(np.stack([rng.uniform(-1, 1, 4) for rng in rngs]), active)[0] for _ in range(steps)][-1]


def same(one, other, count):
    return np.array_equal(one.state[:count], other.state[:count]) and all(
        np.array_equal(one.images[camera][:count], other.images[camera][:count]) for camera in one.images
    )


def test_the_scene_has_the_sizes_that_the_code_counts_on():
    model = PandaVecEnv("lift")._model
    assert model.opt.timestep == scene.TIMESTEP and model.vis.global_.offwidth == scene.MAX_IMAGE_SIZE
    assert np.array_equal(model.geom("cube").size, np.full(3, scene.CUBE_HALF_SIZE))
    assert model.actuator("grip").ctrlrange[1] == scene.FINGER_OPEN and model.site("tip").pos[2] == scene.TIP_OFFSET
    assert {model.camera(i).name for i in range(model.ncam)} == set(scene.CAMERAS)
    assert (model.geom("table").group, model.geom("cube").group) == (scene.FIXED_GROUP, scene.MOVING_GROUP)


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_is_the_same_bit_for_bit_among_any_number_and_with_any_threads(task):
    def run(num_envs, num_threads):
        env = PandaVecEnv(
            task, num_envs, obs="both", cameras=("front", "wrist"), image_size=(32, 32), num_threads=num_threads
        )
        env.reset(range(7, 7 + num_envs))
        return shaken(env)

    alone = run(1, 1)
    assert same(alone, run(5, 1), 1)
    assert same(run(5, 1), run(5, 3), 5)


def test_looking_changes_nothing():
    blind, seeing = (
        PandaVecEnv("pick_place", 3),
        PandaVecEnv("pick_place", 3, obs="both", cameras=("front", "side", "wrist")),
    )
    for env in (blind, seeing):
        env.reset([1, 2, 3])
    assert np.array_equal(shaken(blind).state, shaken(seeing).state)


def test_a_reset_of_some_scenes_leaves_the_others_alone():
    env = PandaVecEnv("push", 3, obs="both")
    env.reset([1, 2, 3])
    before = shaken(env)
    after = env.reset([2], ids=np.array([1]))
    fresh = PandaVecEnv("push", 1, obs="both").reset([2])
    assert np.array_equal(after.images["front"][[0, 2]], before.images["front"][[0, 2]])
    assert np.array_equal(after.state[[0, 2]], before.state[[0, 2]])
    assert np.array_equal(after.images["front"][1], fresh.images["front"][0])
    assert np.array_equal(after.state[1], fresh.state[0])


def test_scenes_that_are_not_active_stand_still():
    env = PandaVecEnv("lift", 2, obs="both")
    start = env.reset([1, 2])
    seen = shaken(env, active=np.array([True, False]))
    assert np.array_equal(seen.state[1], start.state[1])
    assert np.array_equal(seen.images["front"][1], start.images["front"][1])
    assert not np.array_equal(seen.images["front"][0], start.images["front"][0])


def test_observations_are_copies():
    env = PandaVecEnv("lift", 2, obs="both")
    start = env.reset([1, 2])
    image, state = start.images["front"].copy(), start.state.copy()
    shaken(env)
    assert np.array_equal(start.images["front"], image) and np.array_equal(start.state, state)
    start.images["front"][:] = 0
    assert env.step(np.zeros((2, 4)), np.array([False, False]))[0].images["front"].any()


def test_the_state_has_a_name_for_each_number():
    env = PandaVecEnv("pick_place", 2)
    seen = env.reset([1, 2])
    state = env.task_state()
    assert env.state_names == ARM_STATE + SCENE_STATE and seen.state.shape == (2, len(env.state_names)) == (2, 32)
    place = env.state_names.index
    assert np.allclose(seen.state[:, place("tip_x") : place("tip_z") + 1], state.tip_pos)
    assert np.allclose(seen.state[:, place("cube_x") : place("cube_z") + 1], state.cube_pos)
    assert np.allclose(seen.state[:, place("goal_x") : place("goal_z") + 1], state.goal_pos)
    assert PandaVecEnv("lift", obs="pixels").state_names == ARM_STATE and len(ARM_STATE) == 15


@pytest.mark.parametrize("task", TASKS)
def test_a_cube_at_rest_stays_at_rest(task):
    env = PandaVecEnv(task, 4)
    env.reset(range(4))
    before = env.task_state().cube_pos
    for _ in range(40):
        env.step(np.tile([0, 0, 0, 1.0], (4, 1)))
    assert np.abs(env.task_state().cube_pos - before).max() < 1e-3
    assert env.task_state().cube_speed.max() < 1e-3


def test_the_hand_goes_where_it_is_sent_and_no_further_than_the_table():
    env = PandaVecEnv("lift", 1)
    env.reset([0])
    before = env.task_state().tip_pos[0]
    env.step([[0, 1, 0, 1]])
    after = env.task_state().tip_pos[0]
    assert after[1] - before[1] > 0.02 and np.abs(after - before)[[0, 2]].max() < 0.01
    for _ in range(20):
        env.step([[0, 0, -1, -1]])
    assert env.task_state().tip_pos[0, 2] > 0.0


def test_grasp_tells_whether_both_fingers_hold_the_cube():
    env = PandaVecEnv("lift", 1)
    env.reset([0])
    held = []
    for gripper, lift in [(1.0, 0.0)] * 12 + [(-1.0, 0.0)] * 6 + [(-1.0, 1.0)] * 5 + [(1.0, 0.0)] * 3:
        state = env.task_state()
        way = (state.cube_pos - state.tip_pos)[0] / 0.04
        _, info = env.step(np.clip([[*way[:2], lift or way[2], gripper]], -1, 1))
        held.append(bool(info["grasp"][0]))
    assert not any(held[:12]) and all(held[17:23]) and not held[-1]


def test_a_cube_that_leaves_the_table_keeps_the_state_within_its_limits():
    env = PandaVecEnv("lift", 1)
    env.reset([0])
    env._qpos[0, 9:12] = (2.0, 0.0, -1.0)
    seen = shaken(env, 60)
    assert env.task_state().cube_pos[0, 2] < CUBE_HALF_SIZE - 5 and np.abs(seen.state).max() == 50


def test_a_built_in_task_is_a_vec_env():
    assert isinstance(PandaConfig(type="lift").build(2), VecEnv)


def test_no_environments_at_all_are_refused():
    with pytest.raises(EnvError, match="num_envs is 0; it must be at least 1"):
        PandaConfig(type="lift").build(0)


def test_an_image_beyond_the_largest_is_not_rendered():
    env = PandaConfig(type="lift").build()
    env.reset([0])
    with pytest.raises(EnvError, match=r"image_size is \[64, 4000\]; height and width must be from 1 to 1280"):
        env.render("front", (64, 4000))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"type": "lift", "cameras": ["wirst"]}, "key 'cameras': there is no camera 'wirst'; did you mean 'wrist'?"),
        ({"type": "lift", "camera": ["wrist"]}, "unknown key 'camera'; did you mean 'cameras'?"),
        (
            {"type": "lift", "image_size": [0, 64]},
            "key 'image_size.0' is 0: input should be greater than or equal to 1",
        ),
        ({"type": "lift", "obs": "pixls"}, "key 'obs' is \"pixls\": input should be 'state', 'pixels' or 'both'"),
        ({"type": "lift", "render_backend": "egl"}, "key 'render_backend' is \"egl\": input should be 'rays' or 'gl'"),
        ({"type": "lift", "cameras": ["front", "front"]}, "key 'cameras': camera 'front' is named twice"),
        (
            {"type": "lift", "cameras": []},
            "key 'cameras': name at least one camera of front, side, wrist; to have no images, set obs to 'state'",
        ),
        (
            {"type": "lift", "image_size": [64, 4000]},
            "key 'image_size.1' is 4000: input should be less than or equal to 1280",
        ),
        ({"type": "lift", "max_steps": 0}, "key 'max_steps' is 0: input should be greater than 0"),
        ({"type": "lift", "num_threads": -1}, "key 'num_threads' is -1: input should be greater than or equal to 0"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_its_key(values, sentence):
    with pytest.raises(ConfigError) as refused:
        ENV_REGISTRY.parse(values)
    assert str(refused.value) == sentence


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UnknownName, match="there is no env 'pickplace'; did you mean 'pick_place'"):
        ENV_REGISTRY.parse({"type": "pickplace"})


def test_actions_that_are_none_are_refused_and_nothing_moves():
    env = PandaVecEnv("lift", 2)
    with pytest.raises(EnvError, match="nothing has started yet; call reset"):
        env.step(np.zeros((2, 4)))
    start = env.reset([0, 1])
    with pytest.raises(InvalidAction, match=r"actions must be \[2, 4\] \(dx, dy, dz, gripper\), got \[4\]"):
        env.step(np.zeros(4))
    with pytest.raises(
        InvalidAction, match=r"the action of environment 1 contains NaN or infinity: \[0.0, nan, 0.0, 0.0\]"
    ):
        env.step([[0, 0, 0, 0], [0, np.nan, 0, 0]])
    unmoved, _ = env.step(np.zeros((2, 4)), np.array([False, False]))
    assert np.array_equal(unmoved.state, start.state)


def test_seeds_that_are_none_are_refused():
    env = PandaVecEnv("lift", 2)
    with pytest.raises(EnvError, match="the first reset starts all environments"):
        env.reset([1], ids=np.array([0]))
    with pytest.raises(EnvError, match="3 seeds for 2 environments; give one each"):
        env.reset([1, 2, 3])
    with pytest.raises(EnvError, match="a seed is -1; it must be 0 or more"):
        env.reset([0, -1])
    env.reset([0, 1])
    for ids in ([1, 0], [1, 2]):
        with pytest.raises(EnvError, match="they must be ascending numbers from 0 to 1"):
            env.reset([0, 1], ids=np.array(ids))


HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {names}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)
sys.meta_path.insert(0, Hidden())
from plaudit.envs.panda import PandaConfig
config = PandaConfig(type="lift")
try:
    config.build()
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        ("mujoco", "MissingExtra mujoco is not installed; run: pip install 'plaudit[sim]'"),
        ("mujoco.batch", "is not installed; run: pip install 'plaudit[sim]'"),
    ],
)
def test_without_mujoco_configs_are_read_and_building_says_what_to_install(hidden, sentence):
    done = subprocess.run([sys.executable, "-c", HIDE.format(names=[hidden])], capture_output=True, text=True)
    assert sentence in done.stdout and not done.stderr
    assert hidden == "mujoco" or "MissingExtra mujoco 4 or newer (there is " in done.stdout

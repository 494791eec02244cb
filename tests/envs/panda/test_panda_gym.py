from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

import plaudit.envs  # noqa: F401  (registers them)
from plaudit.envs.panda.vec_env import PandaVecEnv
from plaudit.errors import EnvError, InvalidAction, PlauditError

IDS = ("plaudit/Lift-v0", "plaudit/PickCube-v0", "plaudit/PushCube-v0")


def single(name="plaudit/Lift-v0", **settings) -> Any:
    return gym.make(name, **settings).unwrapped


def vector(name="plaudit/Lift-v0", num_envs=3, **settings) -> Any:
    return gym.make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point", **settings)


@pytest.mark.parametrize(("name", "obs"), [*((name, "both") for name in IDS), (IDS[0], "state"), (IDS[0], "pixels")])
def test_gymnasiums_own_check_has_nothing_to_say(name, obs):
    check_env(single(name, obs=obs, cameras=("front", "wrist"), render_mode="rgb_array"))


def test_what_is_seen_said_and_drawn():
    env = single("plaudit/PickCube-v0", obs="both", cameras=("side",), image_size=(32, 48), render_mode="rgb_array")
    seen, info = env.reset(seed=0)
    assert {name: (part.shape, part.dtype) for name, part in seen.items()} == {
        "state": ((32,), np.float32),
        "side": ((32, 48, 3), np.uint8),
    }
    assert info == {}
    _, reward, terminated, truncated, info = env.step(np.zeros(4, np.float32))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["success"] is False and info["grasp"] is False and 0 < info["dense_reward"] < 1
    assert env.render().shape == (256, 256, 3)
    assert (env.task, env.fps, env.max_steps) == ("put the red cube on the green marker", 20.0, 50)


def test_a_seed_starts_what_it_starts_in_a_env():
    seen, _ = single("plaudit/PushCube-v0", obs="both").reset(seed=7)
    start = PandaVecEnv("push", 1, obs="both").reset([7])
    assert np.array_equal(seen["state"], start.state[0]) and np.array_equal(seen["front"], start.images["front"][0])


def test_an_episode_ends_at_success_and_is_cut_off_after_max_steps():
    env = single(max_steps=3, reward="dense")
    env.reset(seed=0)
    ends = [env.step(np.zeros(4, np.float32))[1:4] for _ in range(3)]
    assert [truncated for _, _, truncated in ends] == [False, False, True]
    assert all(0 < reward < 1 and not terminated for reward, terminated, _ in ends)
    env = single("plaudit/PickCube-v0")
    env.reset(seed=0)
    env._env._mocap[0, 1] = env._env.task_state().cube_pos[0]  # the marker comes to the cube
    _, reward, terminated, truncated, info = env.step(np.array([0, 0, 0, 1], np.float32))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("name", IDS)
def test_one_batch_goes_through_the_very_episodes_of_single_environments(name, mode):
    settings = {"obs": "both", "image_size": (24, 24), "max_steps": 6, "randomize": True}
    kwargs = {"autoreset_mode": mode}
    singles: Any = gym.make_vec(name, num_envs=3, vectorization_mode="sync", vector_kwargs=kwargs, **settings)
    batch = vector(name, **kwargs, **settings)
    assert batch.metadata["autoreset_mode"] is mode
    assert data_equivalence(singles.reset(seed=5), batch.reset(seed=5), exact=True)
    rng = np.random.default_rng(0)
    for step in range(20):
        if step in (3, 11):  # the marker comes to the cube of environment 1, whose episode then ends before the others
            for env, i in ((singles.envs[1].unwrapped._env, 0), (batch._env, 1)):
                env._mocap[i, 1] = env._qpos[i, 9:12]
        actions = rng.uniform(-1, 1, (3, 4)).astype(np.float32)
        one, other = singles.step(actions), batch.step(actions)
        assert data_equivalence(one[:4], other[:4], exact=True)
        assert one[4].keys() == other[4].keys()
        finals = [info.pop("final_obs", np.zeros(0)) for info in (one[4], other[4])]
        assert all(data_equivalence(a, b, exact=True) for a, b in zip(*finals, strict=True))
        assert data_equivalence(one[4], other[4], exact=True)


def test_the_step_after_the_end_starts_the_next_episode_and_ignores_its_action():
    envs = vector(num_envs=2, max_steps=2)
    envs.reset(seed=[1, 2])
    ends = [envs.step(np.ones((2, 4), np.float32))[3].tolist() for _ in range(2)]
    assert ends == [[False, False], [True, True]]
    seen, reward, terminated, truncated, info = envs.step(np.ones((2, 4), np.float32))
    assert not (reward.any() or terminated.any() or truncated.any() or info)
    assert np.allclose(seen["state"][:, 8:11], [0.5, 0.0, 0.2], atol=0.01)  # the tips are where they start


def test_without_autoreset_a_scene_that_is_over_waits_for_its_mask():
    envs = vector(num_envs=2, max_steps=1, autoreset_mode="Disabled")
    before, _ = envs.reset(seed=[1, 2])
    seen, *_ = envs.step(np.ones((2, 4), np.float32))
    with pytest.raises(EnvError, match=r"the episodes of environments \[0, 1\] are over; reset them"):
        envs.step(np.ones((2, 4), np.float32))
    again, _ = envs.reset(seed=[1, None], options={"reset_mask": np.array([True, False])})
    assert np.array_equal(again["state"][0], before["state"][0])
    assert np.array_equal(again["state"][1], seen["state"][1])


def test_many_are_drawn_together():
    envs = vector(num_envs=2, render_mode="rgb_array", render_camera="wrist", render_size=(40, 50))
    envs.reset(seed=0)
    assert [frame.shape for frame in envs.render()] == [(40, 50, 3)] * 2
    envs.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cameras": ("wirst",)}, "there is no camera 'wirst'; did you mean 'wrist'?"),
        ({"obs": "pixls"}, "key 'obs' is \"pixls\": input should be 'state', 'pixels' or 'both'"),
        ({"image_sizes": (64, 64)}, "unknown key 'image_sizes'; did you mean 'image_size'?"),
        ({"reward": "spares"}, "there is no reward 'spares'; did you mean 'sparse'?"),
        ({"autoreset_mode": "NextSteps"}, "there is no autoreset_mode 'NextSteps'; did you mean 'NextStep'?"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(PlauditError, match=sentence):
        vector(**settings)


def test_what_cannot_be_done_is_refused_in_a_sentence():
    env, envs = single(), vector()
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=r"an action is \[4\] \(dx, dy, dz, gripper\), got \[3\]"):
        env.step(np.zeros(3, np.float32))
    with pytest.raises(InvalidAction, match="the action of environment 0 contains NaN"):
        env.step(np.full(4, np.nan, np.float32))
    with pytest.raises(EnvError, match="2 seeds for 3 environments; give one each"):
        envs.reset(seed=[1, 2])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"reset_mask must be bool \[3\] with at least one True"):
        envs.reset(options={"reset_mask": np.zeros(3, bool)})

"""Adapters to other simulators, one file each: their environments with our observations, actions and info.

    env = FetchConfig(id="FetchPickAndPlace-v4", obs="both", image_size=(64, 64)).make()
    observation, info = env.reset(seed=0)        # {"state": f32 [28], "front": u8 [64, 64, 3]}
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    info["success"], env.task, env.fps, env.max_steps

A config class imports its simulator only in `make()`, so that reading a config file needs none of them. `base.py` holds
what the adapters share.
"""

"""Other people's simulators, made to look like ours: one file a simulator.

    env = FetchConfig(id="FetchPickAndPlace-v4", obs="both", image_size=(64, 64)).make()
    observation, info = env.reset(seed=0)        # {"state": f32 [28], "front": u8 [64, 64, 3]}
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    info["success"], env.task, env.fps, env.max_steps

A config class says what to make and imports its simulator only in `make()`, so that reading a config file needs none of
them. `common.py` holds what they share.
"""

"""Simulated tasks. Importing this package registers the built-in ones with Gymnasium, without importing MuJoCo.

Gymnasium 1 does not load plugins by itself: `import plaudit.envs` first, or make "plaudit.envs:plaudit/Lift-v0".
"""

import gymnasium as gym

for _name, _task in (("Lift", "lift"), ("PickCube", "pick_place"), ("PushCube", "push")):
    gym.register(
        f"plaudit/{_name}-v0",
        entry_point="plaudit.envs.panda.gym:PandaGymEnv",
        vector_entry_point="plaudit.envs.panda.gym:PandaGymVectorEnv",
        kwargs={"task": _task},
    )

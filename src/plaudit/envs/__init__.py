"""Simulated tasks. Importing this makes the built-in ones known to Gymnasium; MuJoCo is imported when one is made.

Gymnasium 1 does not look for plugins by itself: `import plaudit.envs` first, or make "plaudit.envs:plaudit/Lift-v0".
"""

import gymnasium as gym

for _name, _task in (("Lift", "lift"), ("PickCube", "pick_place"), ("PushCube", "push")):
    gym.register(
        f"plaudit/{_name}-v0",
        entry_point="plaudit.envs.panda.gym:PandaEnv",
        vector_entry_point="plaudit.envs.panda.gym:PandaVectorEnv",
        kwargs={"task": _task},
    )

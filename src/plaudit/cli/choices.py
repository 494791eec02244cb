"""The choices that `--help` of `plaudit train` and `plaudit online` lists; a test compares them with the registries.

They are written down here because the help must not import every plugin.
"""

_LEARNERS = "learner=  sac, ppo, qchunk"
_ENVS = "lift, pick_place, push; gymnasium, maniskill, gym_hil, fetch, metaworld"
_OWN = (
    """Your own class in place of any of these: learner=my_package.my_module:MyConfig, with --allow-code my_package."""
)

TRAIN_HELP = f"""\b
Choices:
  {_LEARNERS}
  env=      {_ENVS}
  judge     the simulator; or reward.model=FOLDER, a classifier of 'plaudit train-reward'

{_OWN}

All keys with their defaults: docs/train.md. Files to start from: examples/configs.
"""

ONLINE_HELP = f"""\b
Choices:
  {_LEARNERS}
  robot=    sim, igris_b, igris_c, lerobot
  robot.env.type=  {_ENVS}
  judge=    classifier, vlm, simulator, human
  algorithm=  rtc, sequential (--inference_algorithm)

{_OWN}

All keys with their defaults: docs/online.md. Files to start from: examples/configs.
"""

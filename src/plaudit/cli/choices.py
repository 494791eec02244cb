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
  judge=    simulator, noisy; or the folder of a classifier that 'plaudit train-reward' made

{_OWN}

All keys with their defaults: 'plaudit config show' and docs/train.md. Files to start from: 'plaudit config list'.
"""

ONLINE_HELP = f"""\b
Choices:
  {_LEARNERS}
  env=      {_ENVS}
  robot=    igris_b, igris_c, lerobot, sim (in place of env=)
  judge=    classifier, progress, vlm, simulator, human, cascade, noisy; or the folder of a classifier
  policy.inference=  rtc, sequential (--inference_algorithm)

{_OWN}

All keys with their defaults: 'plaudit config show' and docs/train.md. Files to start from: 'plaudit config list'.
"""

"""Which rewards a published model may give: after a calibration, by the decision rule, and for changes of progress."""

import pytest

from plaudit.errors import PlauditError
from plaudit.training.config_file import load_training_config


def config(*words):
    return load_training_config("online", None, ["env=lift", "env.obs=both", "learner=sac", *words])


def test_an_uncalibrated_model_rewards_nothing():
    with pytest.raises(PlauditError, match="this judge is not calibrated"):
        config("judge=robometer", "judge.model=robometer-4b")
    config("judge=robometer", "judge.model=robometer-4b", "judge.force=true")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("judge=roboreward judge.model=m reward.reward_type=continuous", "almost finished for as long as it can"),
        ("judge=topreward judge.scale=minmax reward.shaping=0.5", "would pay failures like successes"),
        ("judge=roboreward judge.model=m reward.shaping=0.5", "does not measure progress"),
        ("judge=rynnvalue judge.model=m reward.shaping=0.5", "does not measure progress"),
    ],
)
def test_progress_is_no_reward_by_itself(words, message):
    with pytest.raises(PlauditError, match=message):
        config(*words.split(), "judge.force=true")


def test_progress_may_shape_a_reward():
    shaped = ("reward.shaping=0.5", "judge.model=m", "judge.force=true")
    config("judge=robometer", *shaped)
    config("judge=rynnvalue", "judge.horizon_s=60", *shaped)

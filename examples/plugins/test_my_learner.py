from my_learner import AwbcConfig

from plaudit.contracts import check_learner
from plaudit.types import EnvSpec


def test_it_keeps_the_contract():
    check_learner(AwbcConfig(), EnvSpec(state_dim=4, action_dim=2, cameras={"front": (16, 16)}))

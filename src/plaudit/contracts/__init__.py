"""Checks for authors of plugins: whether a robot, an environment, a policy, a learner or a judge follows its protocol.

    def test_my_robot():
        check_robot(MyRobot())

Each raises `ContractError` with a message that names the method and what it should have done.
"""

from plaudit.contracts.common import missing_members
from plaudit.contracts.judge import check_judge
from plaudit.contracts.learner import check_learner
from plaudit.contracts.policy import check_policy
from plaudit.contracts.robot import check_robot
from plaudit.contracts.vec_env import check_vec_env

__all__ = ["check_judge", "check_learner", "check_policy", "check_robot", "check_vec_env", "missing_members"]

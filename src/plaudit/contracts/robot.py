"""Whether a robot follows `plaudit.protocols.Robot`."""

from typing import Any

import numpy as np

from plaudit.contracts.common import check_members, check_observation, copy_observation, same_observation
from plaudit.errors import ContractError
from plaudit.protocols import Robot


def check_robot(robot: Any) -> None:
    """Reset, act and observe twice; a simulation with the same seed must start the same."""
    check_members(robot, Robot)
    first = robot.reset(seed=0)
    check_observation(first, robot.cameras, robot.state_dim, "reset()")
    before = copy_observation(first)
    for _ in range(2):
        robot.act(np.zeros(robot.action_dim, np.float32))
        sent = robot.last_command
        if np.shape(sent) != (robot.action_dim,) or not np.isfinite(sent).all():
            raise ContractError(
                f"last_command must be what act() sent, {robot.action_dim} finite numbers, it is {sent}"
            )
        check_observation(robot.observe(), robot.cameras, robot.state_dim, "observe()")
    if not same_observation(first, before):
        raise ContractError("an observation changed after it was returned; hand out copies")
    again = robot.reset(seed=0)
    is_simulated = bool(robot.privileged())
    if is_simulated and not same_observation(again, before):
        raise ContractError("reset(seed=0) started differently the second time; a simulation must start the same")
    robot.hold()

"""Does a robot keep `plaudit.protocols.Robot`?"""

from typing import Any

import numpy as np

from plaudit.contracts.common import check_observation, missing_members
from plaudit.errors import ContractError
from plaudit.protocols import Robot


def check_robot(robot: Any) -> None:
    """Reset, act and observe twice; a simulation with the same seed must start the same."""
    lacking = missing_members(robot, Robot)
    if lacking:
        raise ContractError(f"{type(robot).__name__} is not a Robot: it lacks {', '.join(lacking)}")
    first = robot.reset(seed=0)
    check_observation(first, robot.cameras, robot.state_dim, "reset()")
    images = {camera: image.copy() for camera, image in first.images.items()}
    for _ in range(2):
        robot.act(np.zeros(robot.action_dim, np.float32))
        _check_last_command(robot.last_command, robot.action_dim)
        check_observation(robot.observe(), robot.cameras, robot.state_dim, "observe()")
    if any(not np.array_equal(images[camera], first.images[camera]) for camera in images):
        raise ContractError("an observation changed after it was returned; hand out copies")
    again = robot.reset(seed=0)
    simulated = bool(robot.privileged())
    if simulated and any(not np.array_equal(images[camera], again.images[camera]) for camera in images):
        raise ContractError("reset(seed=0) showed another scene the second time; a simulation must start the same")
    robot.hold()


def _check_last_command(command: Any, action_dim: int) -> None:
    if np.shape(command) != (action_dim,) or not np.isfinite(command).all():
        raise ContractError(f"last_command must be what act() sent, {action_dim} finite numbers, it is {command}")

"""What happens before an episode begins: `policy.inference.reset`.

    start_pose                                    the robot's own reset(), which may move to a start pose
    person                                        the same, and an operator must attend, who puts the scene in order
    {store: resets, episode: 0, backward: false}  the recorded commands of an episode, between two robot resets

The commands of a recorded motion are sent at the control rate, through the robot's limits, and are not part of the
episode. It comes after the operator's gate.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plaudit.config import Config, NonNegativeInt
from plaudit.errors import DataError, RolloutError
from plaudit.types import FloatArray

if TYPE_CHECKING:
    from plaudit.rollout.operator_input import OperatorConfig


class RecordedReset(Config):
    """A motion that puts the scene in order, as it was recorded."""

    store: Path  # on the robot's machine
    episode: NonNegativeInt = 0  # its id in the store
    backward: bool = False  # from its last command to its first; for position targets only

    def actions(self, action_dim: int, *, targets: bool) -> FloatArray:
        """[T, A] the commands in the order in which they are sent. targets: whether commands are positions"""
        from plaudit.data.store import Store

        actions = Store.open(self.store).episode(self.episode).actions
        if actions.shape[1] != action_dim:
            raise RolloutError(
                f"reset: episode {self.episode} of {self.store} has commands of {actions.shape[1]} numbers, and the "
                f"robot takes {action_dim}; record the motion with this robot"
            )
        if self.backward and not targets:
            raise RolloutError("reset: velocities (idle_action=zero) cannot be replayed backward; record the way back")
        return actions[::-1] if self.backward else actions


Reset = Literal["start_pose", "person"] | RecordedReset


def check_reset(reset: Reset, operator: "OperatorConfig") -> None:
    """Refuse a reset by a person where nobody is waited for."""
    if reset == "person" and not (operator.attended and operator.gate):
        raise DataError(
            "policy.inference.reset=person waits for an operator at every episode, and here nobody is waited for; "
            "leave out --auto (or add --no-auto) and operator.gate=false"
        )

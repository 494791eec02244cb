"""What the rows of a LeRobot table say of success, of the end and of who acted."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from plaudit.data.formats.lerobot.columns import column
from plaudit.data.formats.lerobot.features import DONE, INTERVENTION, REWARD, SUCCESS
from plaudit.types import AnyArray


def success_of(table: pa.Table, where: Path, reward: AnyArray) -> AnyArray:
    """`next.success`, or a sparse reward of 0 and 1; a dense reward is not used."""
    declared = column(table, SUCCESS, where, np.bool_)
    if declared is not None:
        return declared
    sparse = np.isin(reward[~np.isnan(reward)], (0, 1)).all()
    return (reward == 1) & sparse


def terminated(table: pa.Table, where: Path) -> bool:
    """`next.done` also marks a time limit; only an end in success is taken as the task's own."""
    done, reward = column(table, DONE, where, np.bool_), column(table, REWARD, where, np.float32)
    return bool(done is not None and reward is not None and done[-1] and success_of(table, where, reward)[-1])


def control_mode(table: pa.Table, where: Path) -> AnyArray | None:
    """Who acted; numbers that do not fit are left to the episode to refuse."""
    mode = column(table, INTERVENTION, where, np.int64)
    return None if mode is None else np.clip(mode, 0, 255).astype(np.uint8)

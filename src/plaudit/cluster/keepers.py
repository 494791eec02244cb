"""The actors that keep things: weights and episodes. They need no torch, and are there in a second."""

import os
import time
from pathlib import Path
from typing import Any

from plaudit.errors import StoreLocked
from plaudit.training.replay_buffer import ReplayService
from plaudit.training.state_manager import StateManager

LOCKED = 30.0  # s to wait for a predecessor that has not quite gone


class Shell:
    """What all actors can be asked."""

    def pid(self) -> int:
        return os.getpid()


class StateManagerActor(Shell, StateManager):
    """Versioned weights."""


class ReplayBufferActor(Shell, ReplayService):
    """The store."""

    def __init__(self, folder: Path, **options: Any):
        until = time.monotonic() + LOCKED
        while True:
            try:
                super().__init__(folder, **options)
                return
            except StoreLocked:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

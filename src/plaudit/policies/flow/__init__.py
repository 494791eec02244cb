"""Chunks of actions by flow matching. The config needs no torch; `build()` does."""

from plaudit.policies.flow.config import FlowConfig

__all__ = ["FlowConfig"]

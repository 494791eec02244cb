"""A policy behind openpi's server, which runs in a process of its own, with a GPU of its own. No torch here."""

from plaudit.policies.openpi.config import OpenpiConfig

__all__ = ["OpenpiConfig"]

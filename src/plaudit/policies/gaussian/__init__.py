"""The actors that PPO and SAC train. The config needs no torch; `build()` does."""

from plaudit.policies.gaussian.config import GaussianConfig

__all__ = ["GaussianConfig"]

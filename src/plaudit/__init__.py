"""Plaudit trains robot policies from what the camera sees.

The names below are imported when they are first used, so `import plaudit` is fast. docs/api.md explains them.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "training.api": ("evaluate", "evaluate_judge", "label", "load_judge", "train", "train_reward"),
    "contracts": ("check_judge", "check_learner", "check_policy", "check_robot", "check_vec_env"),
    "data.replay": ("ReplaySampler",),
    "data.store": ("Store",),
    "errors": ("PlauditError",),
    "types": ("Episode", "JudgeId", "Labels", "Observation", "Scores"),
}
_OWNERS = {name: module for module, names in _MODULES.items() for name in names}
# Type checkers and editors read the names from __init__.pyi.


def __getattr__(name: str) -> Any:
    if name not in _OWNERS:
        raise AttributeError(f"module 'plaudit' has no attribute '{name}'")
    return getattr(import_module(f"plaudit.{_OWNERS[name]}"), name)


def __dir__() -> list[str]:
    return [*sorted(_OWNERS), "__version__"]

"""The shared secret of a cluster: anyone who has it may run code on every machine, and Ray refuses all others.

It is Ray's own token (`RAY_AUTH_MODE=token`), in the file where Ray expects it, so that `ray` commands work too. The
file must be the same on all machines. `RAY_AUTH_MODE`, when it is set, is left as it is.
"""

import os
import secrets
from pathlib import Path

from plaudit.errors import ClusterError

DEFAULT = Path("~/.ray/auth_token")


def token_file(path: Path | None = None) -> Path:
    """The token of this machine. path: the user's choice; None: Ray's own"""
    return (path or Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or DEFAULT)).expanduser().absolute()


def make_token(path: Path) -> bool:
    """Create a secret that only this user can read; returns False if there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return True


def token_environment(path: Path | None) -> dict[str, str]:
    """Variables for Ray's processes; none without a file, or where the environment sets its own."""
    if "RAY_AUTH_MODE" in os.environ or "RAY_AUTH_TOKEN" in os.environ or path is None or not path.is_file():
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def check_private(path: Path) -> None:
    """Raise `ClusterError` for a token that is empty or that others can read."""
    if path.stat().st_size == 0:
        raise ClusterError(f"{path}: the token is empty; delete the file, and starting the head makes a new one")
    if path.stat().st_mode & 0o077:
        raise ClusterError(f"{path}: other users of this machine can read the token; run: chmod 600 {path}")

"""The command line. Its packages are imported by `main`, which takes a moment in which Ctrl-C may be pressed."""

import os
import sys

try:
    import signal  # takes milliseconds, and nothing can handle Ctrl-C before
except KeyboardInterrupt:
    os.write(2, b"interrupted\n")
    sys.exit(130)


def main() -> None:
    """The entry point of the `plaudit` command."""
    with quiet_imports():
        from plaudit.cli.commands import app
        from plaudit.cli.common import run_app

    run_app(app)


class quiet_imports:
    """While packages are imported and nothing else is done: Ctrl-C ends the process at once, without a traceback.

    Not by a KeyboardInterrupt, which some packages turn into an ImportError of their own. This module imports next to
    nothing itself (no contextlib, no typing). Ctrl-C while Python itself starts still prints a traceback.
    """

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, _exit)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def _exit(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)

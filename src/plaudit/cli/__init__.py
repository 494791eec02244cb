"""The command line. Its packages are imported by `main`, which takes a moment in which Ctrl-C may be pressed."""

import os
import sys

try:
    import signal  # takes milliseconds, and nothing can handle Ctrl-C before
except KeyboardInterrupt:
    os.write(2, b"interrupted\n")
    sys.exit(130)


# In the order of `plaudit --help`.
COMMANDS = (
    *("serve", "record", "collect", "label", "train-reward", "train-progress", "train", "run", "train-policy"),
    "serve-policy",
    *("online", "report", "eval", "demo", "data", "hub", "env", "robot", "judge", "cluster", "config"),
    "doctor",
)
# The modules of this package that define commands with other names.
MODULES = {"collect": "env", "train-reward": "reward", "train-progress": "reward", "train-policy": "train"}
MODULES |= {"eval": "report", "demo": "report", "serve-policy": "serve"}


def main() -> None:
    """The entry point of the `plaudit` command. Only the module of its command is imported."""
    with quiet_imports():
        app = load_app(*(name for name in sys.argv[1:2] if name in COMMANDS))
        from plaudit.cli.common import run_app

    run_app(app)


def load_app(*names: str):  # type: ignore[no-untyped-def] # of typer, which takes a while to import
    """The application with the commands of these names, or with all."""
    from importlib import import_module

    for name in names or COMMANDS:
        import_module(f"plaudit.cli.{MODULES.get(name, name)}")
    from plaudit.cli.options import app

    app.registered_commands.sort(key=lambda command: COMMANDS.index(str(command.name)))
    app.registered_groups.sort(key=lambda group: COMMANDS.index(str(group.name)))
    return app


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

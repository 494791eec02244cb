"""All commands. Each parses its arguments, builds objects, runs them and prints the result."""

from importlib import import_module

from plaudit.cli import COMMANDS, MODULES
from plaudit.cli.options import app

for name in COMMANDS:
    import_module(f"plaudit.cli.{MODULES.get(name, name)}")
app.registered_commands.sort(key=lambda command: COMMANDS.index(str(command.name)))
app.registered_groups.sort(key=lambda group: COMMANDS.index(str(group.name)))

"""All commands. Each parses its arguments, builds objects, runs them and prints the result."""

from importlib import import_module

from plaudit.cli import MODULES
from plaudit.cli.options import app

for module in MODULES.values():
    import_module(f"plaudit.cli.{module}")
app.registered_commands.sort(key=lambda command: [*MODULES].index(str(command.name)))
app.registered_groups.sort(key=lambda group: [*MODULES].index(str(group.name)))

"""`python -m plaudit` is the command `plaudit`."""

from plaudit.cli import main

main()

"""RLinf's training of a reward model: the same flags, run by `plaudit train-reward`."""

import sys

from plaudit.cli import main

if __name__ == "__main__":
    sys.argv = ["plaudit", "train-reward", *sys.argv[1:]]
    main()

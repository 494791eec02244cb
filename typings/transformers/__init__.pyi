"""What only tests and benchmarks use: of no type here. Read in full, its 2,600 files cost pyright a third of its time."""

from typing import Any

def __getattr__(name: str) -> Any: ...

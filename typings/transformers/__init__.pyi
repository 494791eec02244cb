"""Only tests and benchmarks use it, without types: its 2,600 files would cost pyright a quarter of its time."""

from typing import Any

def __getattr__(name: str) -> Any: ...

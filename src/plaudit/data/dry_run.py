"""A pickle that another unpickler will read, gone through first with nothing in it called.

torch reads its files with an unpickler of its own that admits tensors and counts nothing. This one makes no objects at
all: what the program would call stands there as None, and the bounds of `plaudit.data.unpickle` hold for the rest.
"""

from pathlib import Path
from typing import IO, Any, ClassVar

from plaudit.data.unpickle import BoundedUnpickler, Measured, opcode


class _DryRun(BoundedUnpickler):
    dispatch: ClassVar = dict(BoundedUnpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        return None

    def persistent_load(self, pid: Any) -> Any:
        return None

    def load_call(self) -> None:
        """A function and its arguments, or an object and its state: one None, or the object, stays."""
        self.stack.pop()
        if self.stack[-1] is None:
            self.stack[-1] = {}  # which may be filled, as the OrderedDict of a state_dict is

    def load_build(self) -> None:
        self.stack.pop()


for name in ("REDUCE", "NEWOBJ"):
    _DryRun.dispatch[opcode(name)] = _DryRun.load_call
_DryRun.dispatch[opcode("BUILD")] = _DryRun.load_build


def check_pickle(file: IO[bytes], size: int) -> None:
    """ValueError where its program has no end, or nests deeper than anything that is saved."""
    _DryRun(Measured(file, size), Path()).load()

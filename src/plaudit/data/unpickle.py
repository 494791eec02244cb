"""Reading pickles without running them.

A pickle is a program: loading one from a stranger may run anything. The layouts of specs that predate us are
pickles all the same (`.pkl` episodes, statistics files, `.npy` of dictionaries), so they are read through an
unpickler that admits numpy arrays and plain containers and refuses every other name with a sentence. Nothing of the
file is called beyond the five numpy constructors below, and arrays of objects are refused even inside an admitted
file.
"""

import pickle
import warnings
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from plaudit.errors import BadFile, UnsafeFile

_MULTIARRAY, _NUMERIC = import_module("numpy._core.multiarray"), import_module("numpy._core.numeric")

# What numpy writes for an array, a scalar, a dtype; old and new module names.
_ADMITTED: dict[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _MULTIARRAY._reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _MULTIARRAY.scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _NUMERIC._frombuffer for core in ("core", "_core")},
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),  # how protocol 2 writes bytes
    ("__builtin__", "bytes"): bytes,
}
_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_ADMITTED |= {("numpy.dtypes", f"{name.capitalize()}DType"): type(np.dtype(name)) for name in _DTYPES}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], path: Path):
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        if found is None:
            raise UnsafeFile(
                self._path,
                f"this pickle asks for {module}.{name}, which could run code; nothing was run. "
                "Only numpy arrays and plain containers are read: convert the file where you trust it",
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeFile(self._path, "this pickle refers to objects outside the file; nothing was run")


def _load(file: IO[bytes], path: Path) -> Any:
    """Arrays that an old numpy pickled make a new one warn; nobody can act on that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Unpickler(file, path).load()


def load_pickle(path: str | Path) -> Any:
    """What a pickle of arrays, numbers, strings and containers holds."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _checked(_load(file, path), path)
    except UnsafeFile:
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except Exception as error:
        raise BadFile(path, f"this pickle is cut short or damaged ({error}); copy it again from its source") from error


def load_npy(path: str | Path) -> Any:
    """What a `.npy` file holds: an array, or the dictionary that `np.save` pickled into it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            old = npy_format.read_magic(file) == (1, 0)
            read_header = npy_format.read_array_header_1_0 if old else npy_format.read_array_header_2_0
            shape, fortran, dtype = read_header(file)
            if dtype.hasobject:
                value = _load(file, path)
                if isinstance(value, np.ndarray) and value.dtype == object:  # np.save wraps a dict in a 0-d array
                    value = value.item() if value.shape == () else value
                return _checked(value, path)
            data = file.read()
    except UnsafeFile:
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except Exception as error:
        raise BadFile(
            path, f"this .npy file is cut short or damaged ({error}); copy it again from its source"
        ) from error
    wanted = int(np.prod(shape)) * dtype.itemsize
    if len(data) != wanted:
        raise BadFile(path, f"this .npy file has {len(data):,} of {wanted:,} bytes; copy it again from its source")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _checked(value: Any, path: Path) -> Any:
    """Refuse arrays of objects anywhere inside: what they hold is not an array, whatever it says it is."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        raise UnsafeFile(path, "this file holds an array of objects; save plain arrays (numbers) instead")
    if isinstance(value, dict):
        for item in value.values():
            _checked(item, path)
    elif isinstance(value, list | tuple):
        for item in value:
            _checked(item, path)
    return value

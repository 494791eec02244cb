"""openpi's messages: msgpack, in which an array is a map of its bytes, dtype and shape.

An array is `{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [2, 3]}`, a number of numpy's
`{b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}`; the keys are bytes. What is read is numbers and text: a
message cannot run anything, and bytes that do not add up to an array are refused.
"""

from typing import Any

import numpy as np

from plaudit.errors import MissingExtra, PolicyError

try:
    import msgpack
except ImportError as error:
    raise MissingExtra("msgpack", "openpi") from error

_KINDS = "biufUS"  # booleans, numbers, text


def pack(message: Any) -> bytes:
    packed = msgpack.packb(message, default=_encoded)
    assert packed is not None
    return packed


def unpack(data: bytes) -> Any:
    """Arrays come out read-only, over the bytes of the message."""
    try:
        return msgpack.unpackb(data, object_hook=_decoded)
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise PolicyError(f"the server sent {len(data)} bytes that are not an openpi message: {error}") from error


def _encoded(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"a {type(value).__name__} has no place in an openpi message")
    if value.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {value.dtype} has no place in an openpi message")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decoded(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in value and b"__npgeneric__" not in value:
        return value
    dtype = np.dtype(str(value[b"dtype"]))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    if b"__npgeneric__" in value:
        return dtype.type(value[b"data"])
    return np.frombuffer(value[b"data"], dtype).reshape(value[b"shape"])

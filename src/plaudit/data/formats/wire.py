"""What goes between us and the process that reads foreign data sets: JSON, with the bytes of arrays behind it."""

import json
import math
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plaudit.types import AnyArray

CONTROL = struct.Struct("!cq")  # what to do, and with which process
FORK, KILL, WAIT = b"F", b"K", b"W"
LENGTH = struct.Struct("!q")
MAX_MESSAGE = 256 << 20  # bytes without the arrays
_PLAIN = re.compile(r"[<>|]([iu][1248]|f[248]|b1)")


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Sequence[AnyArray] = ()) -> None:
    """A message, and arrays of plain numbers after it."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps({**message, "arrays": shapes}).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)
    for array in arrays:
        if array.nbytes:
            connection.sendall(array.reshape(-1).view(np.uint8).data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message; its arrays follow. EOFError where the other side is gone, ValueError for what is none."""
    header = bytearray(LENGTH.size)
    receive_exactly(connection, memoryview(header))
    size = LENGTH.unpack(header)[0]
    if not 0 < size <= MAX_MESSAGE:
        raise ValueError(f"a message of {size:,} bytes")
    text = bytearray(size)
    receive_exactly(connection, memoryview(text))
    return json.loads(text)


def receive_arrays(connection: socket.socket, shapes: Sequence[tuple[str, list[int]]], most: int) -> list[AnyArray]:
    """The arrays after a message; ValueError for what is none, or too much.

    most: bytes of all of them
    """
    arrays: list[AnyArray] = []
    for dtype, shape in shapes:
        sound = isinstance(dtype, str) and _PLAIN.fullmatch(dtype) and all(type(n) is int and n >= 0 for n in shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize if sound else most + 1
        if nbytes > most:
            raise ValueError("an array that nobody has")
        array = np.empty(shape, dtype)
        if nbytes:
            receive_exactly(connection, array.reshape(-1).view(np.uint8).data)
        arrays.append(array)
        most -= nbytes
    return arrays


def receive_exactly(connection: socket.socket, buffer: memoryview) -> None:
    """Fill the buffer; EOFError where the other side is gone before it is full."""
    while len(buffer):
        count = connection.recv_into(buffer)
        if count == 0:
            raise EOFError
        buffer = buffer[count:]

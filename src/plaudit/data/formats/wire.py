"""What goes between us and the process that reads foreign data sets: JSON, with the bytes of arrays behind it."""

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plaudit.types import AnyArray

CONTROL = struct.Struct("!cq")  # what to do, and with which process
FORK, KILL, WAIT = b"F", b"K", b"W"
LENGTH = struct.Struct("!q")


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Sequence[AnyArray] = ()) -> None:
    """A message, and arrays of plain numbers after it."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps({**message, "arrays": shapes}).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)
    for array in arrays:
        if array.nbytes:
            connection.sendall(array.reshape(-1).view(np.uint8).data)


def receive_exactly(connection: socket.socket, buffer: memoryview) -> None:
    """Fill the buffer; EOFError where the other side is gone before it is full."""
    while len(buffer):
        count = connection.recv_into(buffer)
        if count == 0:
            raise EOFError
        buffer = buffer[count:]

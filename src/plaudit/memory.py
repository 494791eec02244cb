"""How this process's allocator treats large blocks, which decides half of the time that torch takes on a processor.

glibc maps a block of more than 32 MB anew each time and gives it back when it is freed, so every activation of a
network is paid for in page faults: on x86_64 as much time as the computing itself. Told to keep such blocks, it hands
out the same memory again. (Builds of torch with an allocator of their own, as on Arm, do so anyway.)
"""

import ctypes
import os
import platform

_KEPT = 1 << 30  # bytes: blocks up to this size are kept when they are freed
_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_MOST_OF_OLD = 32 << 20  # the largest threshold that older versions of glibc take
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed_memory() -> None:
    """Have malloc keep large blocks, in this process and in those that it starts.

    Does nothing where there is no glibc, and where the user has set the thresholds in the environment.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    set_by_user = any(name in os.environ for name in _VARIABLES) or "glibc.malloc." in tunables
    if platform.libc_ver()[0] != "glibc" or set_by_user:
        return
    mallopt = ctypes.CDLL(None).mallopt
    if not mallopt(_MAP, _KEPT):
        mallopt(_MAP, _MOST_OF_OLD)
    mallopt(_TRIM, _KEPT)
    for name in _VARIABLES:
        os.environ[name] = str(_KEPT)

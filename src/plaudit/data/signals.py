"""Signals that arrive while memory and disk are changed together are handled afterwards."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

_RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Ctrl-C and its like wait until the block is done, so that memory and disk agree when their handler raises.

    The handlers are put aside for that long. (Masking the signals is not enough: another thread takes them, a BLAS one
    say, and Python still runs the handler here.)
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main one
        yield
        return
    waiting: list[Callable[[], object]] = []
    with ExitStack() as after:
        after.callback(lambda: [deliver() for deliver in waiting])  # last: when all handlers are back
        for number in _RAISING:
            handler = signal.getsignal(number)
            if callable(handler):
                after.callback(signal.signal, number, handler)
                signal.signal(number, lambda n, frame, handler=handler: waiting.append(partial(handler, n, frame)))
        yield

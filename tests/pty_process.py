"""A command at a terminal, and the person who types there and reads."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from processes import start_plaudit
from waiting import wait_until

STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PtyProcess:
    """
    with PtyProcess("run", ...) as run:
        run.expect("scene ready?")
        run.press(" ")

    env: variables of a process that begins with nothing imported, because they matter to what is imported
    """

    def __init__(self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None):
        self._person, terminal = os.openpty()
        termios.tcsetwinsize(terminal, (30, 200))
        if env is None:
            self._process = start_plaudit(*words, cwd=cwd, terminal=terminal)
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plaudit", *words],
                cwd=cwd,
                env=env,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        os.close(terminal)
        self._readable = select.poll()  # `select.select` takes descriptors up to 1023 only
        self._readable.register(self._person, select.POLLIN)
        self.text = ""  # all that was shown, without colors
        self._read = 0  # of it, up to the last text that was expected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._person)

    def press(self, keys: str) -> None:
        os.write(self._person, keys.encode())

    def expect(self, *texts: str) -> None:
        """Wait until these were shown, one after the other, after what was expected before."""
        for text in texts:
            try:
                wait_until(lambda text=text: self._shows(text), what=f"for {text!r}")
            except AssertionError as error:
                raise AssertionError(f"{error} in:\n{self.text}") from None
            self._read = self.text.index(text, self._read) + len(text)

    def wait(self) -> int:
        """Until it has ended; returns its exit code."""
        wait_until(lambda: self._shows("\0") or self._process.poll() is not None, what="for its end")
        return self._process.wait()

    def _shows(self, text: str) -> bool:
        with suppress(OSError):  # it has ended
            while self._readable.poll(0):
                data = os.read(self._person, 65536).decode(errors="replace")
                self.text = STYLE.sub("", self.text + data.replace("\r", ""))
        return text in self.text[self._read :]

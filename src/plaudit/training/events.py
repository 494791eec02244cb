"""What happened in an online run, in sentences with their moments: chronicle.jsonl, for whoever comes later.

    chronicle = Chronicle(folder)
    chronicle.tell(now, "begun", "...")
    chronicle.note(now, workers.restarts)     # every now and then: writes down what is new in it

Metrics are numbers a few seconds apart. That a part was lost and came back, that another judge took over, that an alarm
rang or somebody pressed Ctrl-C is a sentence, and it is what one looks for the morning after. It watches as a screen
does, from outside: the loop knows nothing of it.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from plaudit.training.progress import Now

FILE = "chronicle.jsonl"
What = Literal["begun", "trouble", "over", "restart", "news", "alarm", "ended"]


class Chronicle:
    """Of a run's folder, over all of its sittings."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self._troubles: dict[str, str] = {}
        self._restarts: dict[str, int] = {}
        self._news, self._alarm = "", None

    def tell(self, now: Now, what: What, sentence: str) -> None:
        line = {
            "time": round(time.time(), 1),  # s since 1970
            "seconds": round(now.seconds, 1),  # of the run
            "episodes": now.counts.episodes,
            "step": now.counts.steps,
            "what": what,
            "sentence": sentence,
        }
        # A disk that is full is one of the troubles, and it is on the screen: not a reason to end the loop.
        with suppress(OSError), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def note(self, now: Now, restarts: Mapping[str, int]) -> None:
        """Whatever is not as it was when it was last looked at."""
        for part, sentence in now.troubles.items():
            if self._troubles.get(part) != sentence:
                self.tell(now, "trouble", f"{part}: {sentence}")
        for part in self._troubles.keys() - now.troubles.keys():
            self.tell(now, "over", f"{part}: it answers again")
        for part, times in restarts.items():
            if times > self._restarts.get(part, 0):
                self.tell(now, "restart", f"{part} was brought back")
        if now.news and now.news != self._news:
            self.tell(now, "news", now.news)
        if now.alarm is not None and now.alarm != self._alarm:
            self.tell(now, "alarm", now.alarm)
        self._troubles, self._restarts = dict(now.troubles), dict(restarts)
        self._news, self._alarm = now.news, now.alarm

"""The trackers of a run: they receive the lines of metrics.jsonl, and videos of the evaluations.

TensorBoard's event files are written in place. W&B and trackio may wait for a network, so each works in a thread with a
bounded queue. A tracker never stops or delays a run: one that fails or cannot keep up is reported once. The packages
read their own settings, such as WANDB_MODE=offline, WANDB_PROJECT, TRACKIO_PROJECT and TRACKIO_SPACE_ID.
"""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from secrets import token_hex
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from plaudit.data.disk import Folder, write_atomic
from plaudit.errors import ConfigError, NotAllowed, import_extra
from plaudit.training.config import TRACKER_HOSTS, TrackerName
from plaudit.trust import is_allowed_host

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PROJECT = "plaudit"  # unless the tracker's own variable names another
TRACKER_ID = "tracker_id"  # file of a run folder: the name by which trackers recognize a resumed run
EVAL_VIDEO = "eval/video"
MIN_FREE_BYTES = 1 << 20  # of the disk, below which nothing is written
MAX_PENDING = 1000  # entries that a tracker may be behind
CLOSE_TIMEOUT_S = 30.0  # for the rest of them at the end of a run

Warn = Callable[[str], None]


class Tracker(ABC):
    """What receives metrics and videos."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step."""

    @abstractmethod
    def log_video(self, step: int, video: Path) -> None:
        """An MP4 file with episodes of an evaluation."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


class TensorBoard(Tracker):
    """The event files of one folder. Its writer breaks for good on a full disk; another is made when there is room."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer: SummaryWriter | None = None  # made with the first metrics: it takes a second to import

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step; of a run that was resumed, what was logged from this step on is dropped."""
        if shutil.disk_usage(self.folder.parent).free < MIN_FREE_BYTES:
            self._writer = None
            return
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self.folder), purge_step=step)
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
        except OSError:
            self._writer = None

    def log_video(self, step: int, video: Path) -> None:
        """Nothing: TensorBoard shows no MP4 files."""

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Wandb(Tracker):
    """A run of W&B. Its steps may repeat after a resumption, so `step` is a metric of its own and the x axis."""

    def __init__(self, folder: Path, run_id: str, config: dict[str, Any]):
        self._wandb = import_extra("wandb", "wandb")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=run_id,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", folder.parent),  # it makes links, which a run folder must not have
            config=config,
            settings=self._wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def log_video(self, step: int, video: Path) -> None:
        self._run.log({"step": step, EVAL_VIDEO: self._wandb.Video(str(video), format="mp4")})

    def close(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    """A run of trackio. It resumes by name, and another folder may have a run of the same name, so the id is added."""

    def __init__(self, folder: Path, run_id: str, config: dict[str, Any]):
        self._trackio = import_extra("trackio", "trackio")
        project, name = os.environ.get("TRACKIO_PROJECT", PROJECT), f"{folder.name}-{run_id}"
        self._run = self._trackio.init(project=project, name=name, config=config, resume="allow")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_video(self, step: int, video: Path) -> None:
        self._run.log({EVAL_VIDEO: self._trackio.Video(str(video))}, step=step)

    def close(self) -> None:
        self._run.finish()


class BackgroundTracker(Tracker):
    """A tracker in a thread of its own, which also makes it. The first problem is reported, later ones are not."""

    def __init__(self, name: str, make: Callable[[], Tracker], warn: Warn):
        """warn: called at most once, in any thread"""
        self._name, self._make, self._warn = name, make, warn
        self._pending: Queue[Callable[[Tracker], None] | None] = Queue(MAX_PENDING)
        self._failed = self._warned = False
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put(lambda tracker: tracker.log(step, metrics))

    def log_video(self, step: int, video: Path) -> None:
        self._put(lambda tracker: tracker.log_video(step, video))

    def close(self) -> None:
        """Wait for what is pending, but not for long."""
        with suppress(Full):
            if not self._failed:
                self._pending.put(None, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._report(f"it was still busy {CLOSE_TIMEOUT_S:g} s after the end; its last entries may be missing")

    def _put(self, call: Callable[[Tracker], None]) -> None:
        if not self._failed:
            try:
                self._pending.put_nowait(call)
            except Full:
                self._report(f"it is {MAX_PENDING} entries behind, and new ones are left out until it catches up")

    def _serve(self) -> None:
        try:
            tracker = self._make()
            while (call := self._pending.get()) is not None:
                call(tracker)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - of other people's package, which must not end a run
            self._failed = True
            lines = str(error).strip().splitlines()
            self._report(f"{type(error).__name__}{f': {lines[0]}' if lines else ''}; it receives nothing more")

    def _report(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"tracker {self._name}: {what}. The run continues, and metrics.jsonl is complete")


REMOTE: dict[str, Callable[[Path, str, dict[str, Any]], Tracker]] = {"wandb": Wandb, "trackio": Trackio}


def check_trackers(names: tuple[TrackerName, ...]) -> None:
    """Refuse a run whose trackers cannot work or were not allowed, before it starts. Imports their packages."""
    packages = {name: import_extra(name, name) for name in names if name in REMOTE}
    online = {"trackio": any(os.environ.get(name) for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"))}
    if (wandb := packages.get("wandb")) is not None:
        online["wandb"] = wandb.setup().settings.mode == "online"
    for name in packages:
        host = TRACKER_HOSTS[name]
        if online[name] and not is_allowed_host(host):
            asks = f"run.trackers: a file asks to send this run to {name}; nothing was sent"
            raise NotAllowed(f"{asks}. If you want that, add --allow-host {host}")
    if wandb is not None and online["wandb"] and not wandb.login(prompt=False):
        message = "run.trackers: W&B has no API key; run 'wandb login', or set WANDB_MODE=offline"
        raise ConfigError([(("run", "trackers"), message)])


class Trackers:
    """All trackers of a run, started with the first metrics."""

    def __init__(self, path: Path, names: tuple[TrackerName, ...], config: Callable[[], dict[str, Any]]):
        """path: the run folder"""
        self._path, self._names, self._config = path, names, config
        self._trackers: list[Tracker] = []
        self._lock = Lock()  # of the file with the id, which each tracker's thread reads

    def log(self, step: int, metrics: Mapping[str, float], warn: Warn) -> None:
        """Metrics of a step. warn: receives the first problem of each tracker"""
        for tracker in self._started(warn):
            tracker.log(step, metrics)

    def log_video(self, step: int, video: Path, warn: Warn) -> None:
        """A video of the evaluation at a step."""
        for tracker in self._started(warn):
            tracker.log_video(step, video)

    def close(self) -> None:
        """Write what is left; can be called again."""
        for tracker in self._trackers:
            tracker.close()
        self._trackers = []

    def _started(self, warn: Warn) -> list[Tracker]:
        if not self._trackers:
            self._trackers = [self._start(name, warn) for name in dict.fromkeys(self._names)]
        return self._trackers

    def _start(self, name: TrackerName, warn: Warn) -> Tracker:
        if name == "tensorboard":
            return TensorBoard(self._path / "tensorboard")
        return BackgroundTracker(name, lambda: REMOTE[name](self._path, self._run_id(), self._config()), warn)

    def _run_id(self) -> str:
        with self._lock:
            if not (self._path / TRACKER_ID).exists():
                write_atomic(self._path / TRACKER_ID, token_hex(4).encode())
            return Folder(self._path).read(TRACKER_ID).decode()

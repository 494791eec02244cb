"""The reward worker: a model that is asked for rewards, in this process or in one of its own.

    with RewardWorker(RewardWorkerConfig(checkpoint_path="lift_reward", place="process", device="cuda:1")) as worker:
        worker.compute_batch_rewards(observations)                       # [B], in mini-batches of 256
        judge = ModelJudge(worker, JudgeConfig(), num_envs, max_steps)   # rewards while scenes move

In a process of its own a model has its own GPU and its own threads, and is in nobody's way.
"""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt

from plaudit.config import Config
from plaudit.data.formats.images import to_frames
from plaudit.data.transfer import new_folder
from plaudit.errors import RewardError
from plaudit.judges.classifier.judge import Judgement, RewardModel, Watcher
from plaudit.judges.classifier.model import Size
from plaudit.judges.classifier.process import About, Home, Question, Remote
from plaudit.judges.classifier.swift import Execution
from plaudit.judges.detector import RewardType
from plaudit.judges.scored import called_success
from plaudit.types import AnyArray, ByteArray, Episode, FloatArray, Observation

# With a leading B, which may be 0; a mapping is camera -> images. Images are uint8 or floats in [0, 1], channels last
# or first. Arrays are numpy's, or torch tensors of any device and float type, with or without a gradient.
Observations = Observation | Mapping[str, Any]


class RewardManager:
    """Rewards of frames that have nothing to do with each other."""

    def __init__(self, model: RewardModel, reward_type: RewardType = "binary", threshold: float | None = None):
        """threshold: from which probability on a frame is paid 1; None: the model's own"""
        self.model = model
        self.reward_type: RewardType = reward_type
        self.threshold = model.threshold if threshold is None else threshold

    def compute_rewards(self, observations: Observations) -> FloatArray:
        """[B] a reward for each observation; a numpy array of float32, wherever the observations were."""
        seen = _seen(observations, self.model.cameras, slice(None))
        return _paid(self.model.score(seen.images, seen.state), self.reward_type, self.threshold)

    def to_device(self, device: str) -> None:
        self.model.to_device(device)


def _seen(observations: Observations, cameras: Mapping[str, Size], rows: slice) -> Observation:
    """Some rows of what a model looks at, in the layout that it takes; a mapping of images has no state."""
    if isinstance(observations, Observation):
        return Observation(_frames(observations.images, cameras, rows), _array(observations.state[rows]))
    images = _frames(observations, cameras, rows)
    return Observation(images, np.zeros((len(next(iter(images.values()), ())), 0), np.float32))


def _frames(images: Mapping[str, Any], cameras: Mapping[str, Size], rows: slice) -> dict[str, ByteArray]:
    return {c: to_frames(_array(images[c][rows]), "observations", c) for c in cameras if c in images}


def _array(values: Any) -> AnyArray:
    """On this side of the bus: numpy takes no tensor of a GPU, with a gradient, or in bfloat16."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()


def _paid(said: Judgement, reward_type: RewardType, threshold: float) -> FloatArray:
    if reward_type == "continuous":
        return said.probability
    return called_success(said.probability, threshold).astype(np.float32)


class RewardWorkerConfig(Config):
    checkpoint_path: Path  # a reward model's folder
    device: str = "auto"  # "cpu", "cuda:1", ...; "auto": a GPU where there is one
    place: Literal["inline", "process"] = "inline"
    threads: NonNegativeInt = 0  # of torch in a process of its own; 0: as torch does
    micro_batch_size: PositiveInt = 256  # images of a camera that are scored at a time
    execution: Execution = "eager"  # on a GPU; "compile" takes half a minute and a compiler, and is 3 times as fast
    reward_type: RewardType = "binary"
    force: bool = False  # take a model although it failed a control


class RewardWorker:
    """Also a `Scorer` and an `EpisodeScorer`. Used as a context manager it begins and ends by itself."""

    def __init__(self, config: RewardWorkerConfig):
        self.config = config
        self._home: Home | None = None

    def init_worker(self) -> None:
        """Load the model, where it is to live."""
        if self._home is None:
            config = self.config.model_copy(update={"checkpoint_path": self.config.checkpoint_path.resolve()})
            self._home = Inline(config) if config.place == "inline" else Remote(partial(_moved_in, config))

    def compute_batch_rewards(self, observations: Observations) -> FloatArray:
        """[B] a reward for each observation, mini-batch by mini-batch, so that any B will do, 0 included.

        A numpy array of float32, wherever the observations were.
        """
        home, size = self._there, self.config.micro_batch_size
        images = observations.images if isinstance(observations, Observation) else observations
        longest = max(map(len, images.values()), default=0)
        starts = range(0, max(longest, 1), size)  # of nothing, too: the model still says which cameras it misses
        said = [home.ask("score", _seen(observations, self.cameras, slice(start, start + size))) for start in starts]
        return np.concatenate([_paid(judgement, self.config.reward_type, self.threshold) for judgement in said])

    def save_checkpoint(self, path: str | Path, step: int) -> Path:
        """The model's folder, as `step_<step>` in `path`; one that is there already is not touched."""
        folder = Path(path) / f"step_{step}"
        self._there.save(folder)
        return folder

    def start(self, observation: Observation) -> Judgement:
        """The first frames of N scenes."""
        return self._there.ask("start", self._of_its_cameras(observation))

    def see(self, observation: Observation) -> Judgement:
        """The next frames of the same."""
        return self._there.ask("see", self._of_its_cameras(observation))

    def judge(self, episode: Episode) -> Judgement:
        """Every frame of an episode."""
        return self._there.ask("judge", self._of_its_cameras(Observation(episode.frames, episode.state)))

    def close(self) -> None:
        if self._home is not None:
            self._home.close()

    def __enter__(self) -> Self:
        self.init_worker()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def threshold(self) -> float:
        return self._there.about.threshold

    @property
    def has_progress(self) -> bool:
        return self._there.about.has_progress

    @property
    def fingerprint(self) -> str:
        return self._there.about.fingerprint

    @property
    def cameras(self) -> Mapping[str, Size]:
        return self._there.about.cameras

    @property
    def _there(self) -> Home:
        if self._home is None:
            raise RewardError("this reward worker has not begun; call init_worker(), or use it in a with statement")
        return self._home

    def _of_its_cameras(self, observation: Observation) -> Observation:
        images = {camera: observation.images[camera] for camera in self.cameras if camera in observation.images}
        return Observation(images, observation.state)


class Inline:
    """A `Home` right here."""

    def __init__(self, config: RewardWorkerConfig):
        model = RewardModel.load(config.checkpoint_path, config.device, force=config.force)
        model.to_device(config.device, config.execution)
        model.mini_batch = config.micro_batch_size
        self.about = About(model.threshold, model.has_progress, model.fingerprint, model.cameras)
        self._model, self._folder = model, config.checkpoint_path
        self._watcher: Watcher | None = None

    def ask(self, question: Question, seen: Observation) -> Judgement:
        if question == "score":
            return self._model.score(seen.images, seen.state)
        if question == "judge":
            nothing_done = np.zeros((len(seen.state) - 1, 0))
            return self._model.judge(Episode.of(frames=seen.images, state=seen.state, actions=nothing_done))
        if question == "start":
            self._watcher = self._model.watch(len(seen.state))
            return self._watcher.start(seen)
        if self._watcher is None:
            raise RewardError("nothing is being watched yet; call start(observation) with the first frames")
        return self._watcher.see(seen)

    def save(self, folder: Path) -> None:
        report = self._folder / "report.html"
        with new_folder(folder) as partial_folder:
            self._model.save(partial_folder)
            if report.exists():
                shutil.copy(report, partial_folder)

    def close(self) -> None:
        """Nothing is held open."""


def _moved_in(config: RewardWorkerConfig) -> Inline:
    """In a process of its own."""
    if config.threads:
        torch.set_num_threads(config.threads)
    return Inline(config)

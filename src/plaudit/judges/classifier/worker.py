"""The reward worker: a reward model behind the names that RLinf's training calls.

with RewardWorker(RewardWorkerConfig(checkpoint_path="lift_reward", device="cuda:1")) as worker:
    worker.compute_batch_rewards(observations)                       # [B], in mini-batches of 256
    detector = SuccessDetector(worker.judge, num_envs)               # success while environments run
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from plaudit.config import BatchSize, Config
from plaudit.data.formats.images import to_frames
from plaudit.data.rewards import RewardType
from plaudit.data.transfer import new_folder
from plaudit.errors import JudgeError
from plaudit.files import MAX_LINES_BYTES, Root
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.judge import ClassifierJudge, load_reward_model
from plaudit.judges.classifier.judge_config import ClassifierJudgeConfig
from plaudit.judges.config import JUDGE_FILE
from plaudit.rule import above_threshold
from plaudit.types import AnyArray, FloatArray, Observation, name_of_camera

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
        cameras = self.model.cameras
        images = observations.images if isinstance(observations, Observation) else observations
        names = [name_of_camera(camera, images, cameras) for camera in cameras]
        frames = {name: to_frames(_array(images[name]), "observations", name) for name in names if name in images}
        state = _array(observations.state) if isinstance(observations, Observation) else None
        prob = self.model.score_frames(frames, state).success_prob
        return prob if self.reward_type == "continuous" else above_threshold(prob, self.threshold).astype(np.float32)

    def to_device(self, device: str) -> None:
        """Move the model."""
        self.model.to_device(device)


def _array(values: Any) -> AnyArray:
    """As numpy, which takes no tensor of a GPU, with a gradient, or in bfloat16."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()


class RewardWorkerConfig(Config):
    """Settings of a reward worker."""

    checkpoint_path: Path  # a reward model: its folder, or a .pt
    device: str = "auto"  # "cpu", "cuda:1", ...; "auto": a GPU where there is one
    micro_batch_size: BatchSize = 256  # images of a camera that are scored at a time
    compile: bool = False  # on a GPU; takes half a minute and a compiler, and is 3 times as fast
    reward_type: RewardType = "binary"
    force: bool = False  # take a model although it failed a control


class RewardWorker:
    """A reward model behind the calls that RLinf's workers have. As a context manager it begins and ends by itself."""

    def __init__(self, config: RewardWorkerConfig):
        self.config = config
        self._judge: ClassifierJudge | None = None

    def init_worker(self) -> None:
        """Load the model."""
        if self._judge is not None:
            return
        config = self.config
        model = load_reward_model(config.checkpoint_path, config.device, force=config.force)
        model.to_device(config.device, compile=config.compile)
        model.mini_batch = config.micro_batch_size
        self._judge = ClassifierJudge(model, ClassifierJudgeConfig(model=config.checkpoint_path).resolved().rule)

    @property
    def judge(self) -> ClassifierJudge:
        """The model as a judge, with its rule."""
        if self._judge is None:
            raise JudgeError("this reward worker has not begun; call init_worker(), or use it in a with statement")
        return self._judge

    def compute_batch_rewards(self, observations: Observations) -> FloatArray:
        """[B] a reward for each observation, scored in mini-batches; B may be 0.

        Each frame is compared with the threshold by itself: frames without an order cannot confirm each other.
        """
        judge = self.judge
        return RewardManager(judge.model, self.config.reward_type, judge.rule.threshold).compute_rewards(observations)

    def save_checkpoint(self, path: str | Path, step: int) -> Path:
        """The model's folder, as `step_<step>` in `path`; one that is there already is not touched."""
        folder = Path(path) / f"step_{step}"
        with new_folder(folder) as part:
            self.judge.model.save_pretrained(part)
            for name in ("report.html", JUDGE_FILE):
                source = self.config.checkpoint_path / name
                if source.is_file():
                    (part / name).write_bytes(Root(source.parent).read(source, MAX_LINES_BYTES))
        return folder

    def to_device(self, device: str) -> None:
        """Move the model."""
        self.judge.model.to_device(device, compile=self.config.compile)

    def __enter__(self) -> Self:
        self.init_worker()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

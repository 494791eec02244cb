"""A reward model as a judge, of stored episodes and while they run; and behind the names that RLinf's training calls.

    with RewardWorker(RewardWorkerConfig(checkpoint_path="lift_reward", device="cuda:1")) as worker:
        worker.compute_batch_rewards(observations)                       # [B], in mini-batches of 256
        detector = SuccessDetector(worker.judge, num_envs)               # success while environments run

What its rule does not say is the model's own: the threshold that its training chose, and the frames that its cutoffs
were found to be late by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from plaudit.config import BatchSize, Config
from plaudit.data.formats.images import to_frames
from plaudit.data.rewards import RewardType
from plaudit.data.transfer import new_folder
from plaudit.errors import JudgeError, PlauditError
from plaudit.files import MAX_LINES_BYTES, Root
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.classifier.checkpoint import RewardModel, check_controls_passed
from plaudit.judges.classifier.config import PROGRESS, SUCCESS, ClassifierJudgeConfig
from plaudit.judges.classifier.lerobot import load_lerobot_classifier
from plaudit.judges.classifier.rlinf import SUFFIXES, load_rlinf_checkpoint
from plaudit.judges.config import JUDGE_FILE, is_lerobot_classifier
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import AnyArray, BoolArray, Episode, FloatArray, JudgeId, Observation, Scores, name_of_camera

CANNOT_TELL = (
    "this reward model cannot tell which episodes are out of distribution, so none is withheld; train it "
    "again with plaudit train-reward"
)


class ClassifierJudge:
    """A `LiveJudge`, of success or of progress alone: P(success) then follows from how far a frame is."""

    def __init__(self, model: RewardModel, rule: DecisionRule | None = None, calibration: PlattScaling | None = None):
        """
        rule: what of it was not set is the model's own; None: all of it
        calibration: on top of the model's own
        """
        self.model, self.calibration = model, calibration
        own = {"threshold": model.threshold, "cutoff_offset": model.config.cutoff_offset}
        self.rule = DecisionRule(**own | ({} if rule is None else rule.model_dump(exclude_unset=True)))
        if model.ood is None:
            self.rule = self.rule.model_copy(update={"ood": None})
        self.warnings = model.warnings
        if model.ood is None and rule is not None and rule.withholds:
            self.warnings = (*self.warnings, CANNOT_TELL)
        self.uncalibrated = model.fingerprint
        self.trained_on = model.config.data.seen
        detector = model.ood.fingerprint if model.ood is not None and self.rule.withholds else ""
        fingerprint = fingerprint_of(model.fingerprint, calibration)
        self.id = JudgeId(_source_of(model), fingerprint, self.rule.key(), ood_detector=detector)

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Every frame of each episode; an error for one whose cameras or sizes are not the model's."""
        answers: list[Scores | PlauditError] = []
        for episode in episodes:
            try:
                answers.append(self.calibrated(self.model.score_episode(episode)))
            except PlauditError as error:
                answers.append(error)
        return answers

    def stream(self, num_envs: int) -> "ClassifierStream":
        return ClassifierStream(self, num_envs)

    def calibrated(self, scores: Scores) -> Scores:
        """The model's scores, with this judge's calibration on top."""
        if self.calibration is None:
            return scores
        return replace(scores, success_prob=self.calibration.recalibrate(scores.success_prob))


def _source_of(model: RewardModel) -> str:
    return SUCCESS if model.classifier.predict_success else PROGRESS


class ClassifierStream:
    """A `ScoreStream`: keeps what the network needs of the frames before, of environments at different steps."""

    def __init__(self, judge: ClassifierJudge, num_envs: int):
        self._judge, self._model, self._num_envs = judge, judge.model, num_envs
        self._embeddings: list[list[Tensor]] = []  # of each member [N, D], the newest first
        self._inputs: list[AnyArray] = []  # the newest frames [N, ...] of its cameras, and states if it sees them
        self._newest: list[Tensor] = []  # of each member, the embeddings [N, D] of these
        self._age = np.zeros(num_envs, int)  # frames before the newest, of each environment's episode

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        self._model.check(observation.images, observation.state)
        if mask is None:
            self._embeddings, self._age = [], np.zeros(self._num_envs, int)
            self._inputs = []
            return self._score(observation)
        scores = self._score(observation, mask)
        return Scores(
            np.where(mask, scores.success_prob, np.float32(np.nan)),
            None if scores.progress is None else np.where(mask, scores.progress, np.float32(np.nan)),
        )

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        self._age += 1
        return self._score(observation)

    def _embed(self, observation: Observation) -> list[Tensor]:
        """Of each member [N, D]. An environment whose episode is over shows the same frame again, which is skipped."""
        model, images, state = self._model, observation.images, observation.state
        model.check(images, state)
        # Copies, because an environment may write its next frame into the same array.
        inputs = [np.array(images[model.camera_in(camera, images)]) for camera in model.cameras]
        inputs += [np.array(state)] if model.classifier.state_dim else []
        before, self._inputs = self._inputs, inputs
        if not before or model.device.type != "cpu":
            self._newest = model.embed(images, state)
            return self._newest
        is_new = [(new != old).reshape(len(new), -1).any(axis=1) for new, old in zip(inputs, before, strict=True)]
        rows = np.flatnonzero(np.any(is_new, axis=0))
        if len(rows):
            shown = {camera: frames[rows] for camera, frames in zip(model.cameras, inputs, strict=False)}
            some = model.embed(shown, state[rows])
            where = torch.from_numpy(rows)
            self._newest = [old.index_copy(0, where, new) for old, new in zip(self._newest, some, strict=True)]
        return self._newest

    def _score(self, observation: Observation, fresh: BoolArray | None = None) -> Scores:
        """fresh: rows whose newest frame is replaced by the first of a new episode; the others stay"""
        if len(observation.state) != self._num_envs:
            raise JudgeError(f"{len(observation.state)} environments where {self._num_envs} are being scored")
        model, config = self._model, self._model.classifier
        newest = self._embed(observation)
        if not config.num_history_frames:
            return self._judge.calibrated(model.score_embeddings([one[:, None] for one in newest]))
        if fresh is None:
            self._embeddings = [newest, *self._embeddings[: config.num_history_frames * config.history_stride]]
        else:
            rows = torch.from_numpy(fresh).to(newest[0].device)[:, None]
            self._embeddings[0] = [
                torch.where(rows, new, old) for new, old in zip(newest, self._embeddings[0], strict=True)
            ]
            self._age[fresh] = 0
        history = np.arange(config.num_frames) * config.history_stride
        ago = torch.from_numpy(np.minimum(history, self._age[:, None]))  # [N, num_frames]
        env = torch.arange(self._num_envs)[:, None]
        windows = [torch.stack(frames)[ago, env] for frames in zip(*self._embeddings, strict=True)]
        return self._judge.calibrated(model.score_embeddings(windows))


def build_judge(config: ClassifierJudgeConfig) -> ClassifierJudge:
    """The judge of a config, with its model."""
    network = None if config.network is None else config.network.model_dump(exclude_none=True)
    model = load_reward_model(config.model, config.device, force=config.force, network=network)
    if config.compile:
        model.to_device(config.device, compile=True)
    if _source_of(model) != config.type:
        other = "train-progress" if config.type == PROGRESS else "train-reward"
        raise JudgeError(
            f"{config.model} is a judge of type '{_source_of(model)}', not '{config.type}'; train one (plaudit {other})"
        )
    resolved = config.resolved()
    return ClassifierJudge(model, resolved.rule, resolved.calibration)


def load_reward_model(
    path: str | Path, device: str = "auto", *, force: bool = False, network: Mapping[str, Any] | None = None
) -> RewardModel:
    """The model of a folder, or of a .pt or .safetensors file.

    force: take a model although it failed a control
    network: of RLinf's files, what they do not say themselves; see `RLinfRewardConfig`
    """
    path = Path(path)
    if path.suffix in SUFFIXES and not path.is_dir():
        model = load_rlinf_checkpoint(path, network, device)
        check_controls_passed(path, model.config, force)
        return model
    if not (path / "model.json").is_file() and is_lerobot_classifier(path):
        return load_lerobot_classifier(path, device)
    return RewardModel.from_pretrained(path, device, force=force)


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

"""A reward model as a judge, of stored episodes and while they run.

What its rule does not say is the model's own: the threshold that its training chose, and the frames that its cutoffs
were found to be late by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.classifier.checkpoint import RewardModel, check_controls_passed
from plaudit.judges.classifier.judge_config import PROGRESS, SUCCESS, ClassifierJudgeConfig
from plaudit.judges.classifier.lerobot import load_lerobot_classifier
from plaudit.judges.classifier.rlinf import SUFFIXES, load_rlinf_checkpoint
from plaudit.judges.config import is_lerobot_classifier
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, BoolArray, Episode, JudgeId, Observation, Scores

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
        inputs = [np.asarray(images[model.camera_in(camera, images)]) for camera in model.cameras]
        inputs += [state] if model.classifier.state_dim else []
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

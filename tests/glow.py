"""A lamp to turn up, and a judge that can be told where to draw the line: the brighter, the nearer to success.

Scene n starts at a brightness that its seed decides; the action turns it up or down by a fifth; the picture is as
bright. It succeeds at `goal`, and a lamp that lies says the opposite. `bright_model` calls success from `cut` on; a
judge "glow:DazzledConfig" is such a model that cannot label lamps that begin too bright, and "glow:AwaitingConfig" one
that waits for a file; a learner "glow:ForgetfulConfig" is SAC whose first update fails.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from plaudit.config import Config
from plaudit.data.store import Store
from plaudit.data.transfer import new_folder
from plaudit.encoders import SmallConfig
from plaudit.errors import JudgeError
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.judges.classifier.ood import START_CELLS, OodDetector
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.learners.config import SacConfig
from plaudit.learners.sac import Sac
from plaudit.registry import ENV_REGISTRY
from plaudit.rollout.vector import collect_rollout
from plaudit.types import Batch, EnvSpec, Episode, Observation
from waiting import wait_until

SIZE = (8, 8)
# A goal that is met by chance often enough to be learned from, whatever the seed. With 0.8, two of 20 seeds see no
# success in their first episodes and learn nothing in 60.
WITHIN_REACH = 0.6


@ENV_REGISTRY.register("glow")
class GlowConfig(Config):
    type: Literal["glow"] = "glow"
    obs: Literal["state", "pixels", "both"] = "both"
    cameras: tuple[str, ...] = ("front",)
    image_size: tuple[int, int] = SIZE
    goal: float = 0.8
    lies: bool = False
    moved: Path | None = None  # a file that appears with the first step, also from another process

    def build(self, num_envs: int = 1) -> "Glow":
        return Glow(self, num_envs)


class Glow:
    """A `VecEnv`."""

    state_dim, action_dim, fps, max_steps, task = 2, 1, 10.0, 12, "turn it up"

    def __init__(self, config: GlowConfig, num_envs: int):
        self.num_envs, self._config = num_envs, config
        self.cameras: Mapping[str, tuple[int, int]] = (
            {} if config.obs == "state" else dict.fromkeys(config.cameras, config.image_size)
        )

    def reset(self, seeds: Sequence[int]) -> Observation:
        self._light = np.array([np.random.default_rng(seed).uniform(0.2, 0.4) for seed in seeds])
        return self._observation()

    def step(self, actions: Any, active: Any) -> tuple[Observation, dict[str, Any]]:
        if self._config.moved is not None:
            self._config.moved.touch()
        moved = np.clip(self._light + 0.2 * np.clip(actions[:, 0], -1, 1), 0, 1)
        self._light = np.where(active, moved, self._light)
        success = (self._light >= self._config.goal) != self._config.lies
        shaping = self._light.astype(np.float32)
        return self._observation(), {"success": success, "reward": np.maximum(shaping, success), "shaping": shaping}

    def close(self) -> None: ...

    def _observation(self) -> Observation:
        grey = np.rint(255 * self._light).astype(np.uint8)[:, None, None, None]
        images = {
            camera: np.broadcast_to(grey, (self.num_envs, *size, 3)).copy() for camera, size in self.cameras.items()
        }
        return Observation(images, np.stack([self._light, 1 - self._light], axis=1).astype(np.float32))


def bright_model(cut: float, *, camera: str = "front", problems: tuple[str, ...] = ()) -> RewardModel:
    """A network whose weights were set by hand: signs of (brightness - cut) all the way through."""
    config = ClassifierConfig(
        encoder=SmallConfig(widths=(1,)), cameras={camera: SIZE}, hidden_dim=4, latent_dim=4, num_spatial_blocks=1
    )
    net: Any = BinaryRewardClassifier(config)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    with torch.no_grad():
        conv, first, last = net.encoder.layers[0], net.head[0], net.head[4]
        squeeze = net.squeezes[camera]
        conv.weight.zero_()
        conv.weight[:, :, 1, 1] = 1 / 3
        conv.bias.fill_(1)  # 0 for black, 2 for white
        squeeze[0].kernel.fill_(1 / 16)  # the mean of 4x4 cells
        squeeze[2].weight.copy_(signs[:, None])
        squeeze[2].bias.copy_(-2 * cut * signs)
        first.weight.copy_(torch.outer(signs, signs) / 4)
        first.bias.zero_()
        last.weight.copy_(3 * signs[None])
        last.bias.zero_()
    facts = RewardModelConfig(
        classifier=config,
        frozen_encoder=False,
        calibration=((1.0, 0.0),),
        threshold={"value": 0.5},
        scores={},
        controls=(),
        problems=problems,
        data=TrainingDataInfo(fingerprint="none", episodes={}, frames={}, sources=()),
        training={},
    )
    return RewardModel([net], facts, "cpu")


def bewildered(model: RewardModel) -> RewardModel:
    """The same, to which every episode is out of distribution."""
    width = model.features({camera: np.zeros((1, *SIZE, 3), np.uint8) for camera in model.cameras}).shape[1]
    mean, far, limits = np.zeros(width, "f4"), np.full((1, width), 99, "f4"), np.array([1, 99, 1, 2], "f4")
    cells = len(model.cameras) * START_CELLS**2
    starts, units = np.zeros((1, cells, 3), "f4"), np.full(cells, 255, "f4")
    return model.with_ood(OodDetector(mean, mean + 1, far, starts, units, limits))


class DazzledConfig(ClassifierJudgeConfig):
    most: float = 0.3  # brightness of the first frame up to which it can label an episode
    raises: bool = False  # a plain error, as a plugin would that has a mistake in it

    def build(self) -> ClassifierJudge:
        return Dazzled(super().build().model, self)


class Dazzled(ClassifierJudge):
    def __init__(self, model: RewardModel, config: DazzledConfig):
        super().__init__(model, config.rule)
        self._config = config

    def score(self, episodes: Sequence[Episode]) -> list[Any]:
        return [self._label(episode) for episode in episodes]

    def _label(self, episode: Episode) -> Any:
        if episode.frames["front"][0].mean() <= 255 * self._config.most:
            return super().score([episode])[0]
        if self._config.raises:
            raise ValueError("it is too bright\nto see anything")
        return JudgeError("it is too bright to see anything")


class AwaitingConfig(ClassifierJudgeConfig):
    go: Path  # a file: it labels nothing before this exists

    def build(self) -> ClassifierJudge:
        return Awaiting(super().build().model, self)


class Awaiting(ClassifierJudge):
    def __init__(self, model: RewardModel, config: AwaitingConfig):
        super().__init__(model, config.rule)
        self._go = config.go

    def score(self, episodes: Sequence[Episode]) -> Any:
        wait_until(self._go.exists)
        return super().score(episodes)


class ForgetfulConfig(SacConfig):
    forgot: Path  # a file: its first update leaves it and fails in a way nobody foresaw

    def build(self, env_spec: EnvSpec, seed: int, device: str) -> Sac:
        return Forgetful(self, env_spec, seed, device)


class Forgetful(Sac):
    config: ForgetfulConfig

    def update(self, batch: Batch[torch.Tensor]) -> Any:
        if not self.config.forgot.exists():
            self.config.forgot.touch()
            raise RuntimeError("CUDA out of memory")
        return super().update(batch)


def saved(model: RewardModel, folder: Path) -> Path:
    with new_folder(folder) as part:
        model.save_pretrained(part)
    return folder


def online(judge: Path) -> list[str]:
    """An online run of it, as quick as it goes."""
    return [
        "env=glow",
        "learner=sac",
        "learner.hidden_dims=[32]",
        "learner.batch_size=32",
        "learner.random_steps=0",
        "judge=classifier",
        f"judge.model={judge}",
        "judge.rule.decode=per_frame",
        "policy.inference=sequential",
        "policy.inference.realtime=false",
        "policy.inference.max_episode_steps=12",
        "policy.cameras=[]",
        "evaluation.episodes=20",
        "evaluation.freq=240",
        "judge.retrain=null",
    ]


def demos(folder: Path, episodes: int) -> Path:
    """A store of lamps that are turned up at once."""
    simulation = GlowConfig().build(episodes)
    judge = SimulatorJudge()
    turn_up = np.ones((episodes, 1), np.float32)
    played = collect_rollout(simulation, lambda seen: turn_up, range(episodes), SuccessDetector(judge, episodes))
    with Store.create(folder) as store:
        for episode, labels in played.episodes(simulation, judge):
            store.ledger.append(store.append(episode), labels)
    return folder

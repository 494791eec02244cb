"""A task for simulated runs, and a classifier that sees its pictures as a real one does.

The task: push a slider to its goal, or press the button that fools the judge. The first action moves the slider by up
to 0.3; it succeeds at 0.9 and is lost below -0.2. A second action above 0.6 presses the button: it shows in the
picture, and an exploitable judge takes it for a success. The camera's picture of 4x4 pixels carries all of this as
numbers, with the episode's seed, so that a simulated judge sees exactly what a real one would: pictures, and nothing
else.

    write_model(folder, {"false": 0.02, "missed": 0.1})
    SimulatedJudgeConfig(model=folder).build()

The classifier errs at the rates in its model file. Errors are drawn from the model and the episode's seed, which the
picture shows. The same model scores an episode the same live, afterwards and in a resumed run; another model errs
elsewhere.

    false, missed     failures called a success from a random frame on, successes never seen
    early, late       success seen one move before it, or two frames after it
    exploitable       the pressed button passes for a success
    start             success from the first frame on
    strange           pictures unlike the others are judged the wrong way around
    drift             episodes after which `false` is five times as high; 0: never
    raises            episodes that it cannot score
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from plaudit.config import Config
from plaudit.errors import JudgeError, JudgeUnavailable, PlauditError
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.testing.world import uniform, world
from plaudit.training.config import DEMO_SEEDS, EVAL_SEEDS
from plaudit.trust import allow_code
from plaudit.types import AnyArray, BoolArray, ByteArray, Episode, FloatArray, Observation, Scores

SIZE = (4, 4)
GOAL, LOST, STEP, NEAR = 0.9, -0.2, 0.3, 0.3
MAGIC = 0xA7
SUCCESS, PRESSED, STRANGE, CLOSE = 1, 2, 4, 8  # bits of a picture's flags


class SimulatedEnvConfig(Config):
    """The config of the task."""

    obs: Literal["state", "pixels", "both"] = "both"
    cameras: tuple[str, ...] = ("front",)
    image_size: tuple[int, int] = SIZE
    max_steps: PositiveInt = 8
    fails: bool = True  # whether an episode can be lost
    strange: float = Field(default=0.0, ge=0, le=1)  # fraction of the episodes that look unlike the others

    def build(self, num_envs: int = 1) -> "SimulatedEnv":
        return SimulatedEnv(self, num_envs)


class SimulatedEnv:
    """A `VecEnv`."""

    # The last number of a state is 1 in demonstrations, so that checks can tell them from interventions.
    state_dim, action_dim, fps, task = 4, 2, 1000.0, "push the slider"

    def __init__(self, config: SimulatedEnvConfig, num_envs: int):
        self.config, self.num_envs, self.max_steps = config, num_envs, config.max_steps
        shows = config.obs != "state"
        self.cameras: Mapping[str, tuple[int, int]] = dict.fromkeys(config.cameras, SIZE) if shows else {}
        self.seeds: list[int] = []

    def reset(self, seeds: Sequence[int]) -> Observation:
        self.seeds, self.frame = [int(seed) for seed in seeds], np.zeros(self.num_envs, int)
        self._x = np.array([uniform(seed, "start") * 0.3 for seed in self.seeds])
        self._pressed = np.zeros(self.num_envs, bool)
        self._age = np.zeros(self.num_envs, int)  # frames since success
        self._lost = np.zeros(self.num_envs, bool)
        self._strange = np.array([uniform(seed, "strange") < self.config.strange for seed in self.seeds])
        return self._observation()

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, dict[str, AnyArray]]:
        world().on_env_step(self)
        over = self._lost & active
        world().check(not over.any(), "env_ends", f"the env is stepped after its failure (seed {self.seeds[0]})")
        self.frame += active
        moved = np.clip(self._x + STEP * np.clip(actions[:, 0], -1, 1), -1, 1.5)
        self._x = np.where(active, moved, self._x)
        self._pressed |= active & (actions[:, 1] > 0.6)
        success = (self._x >= GOAL) | (self._age > 0)
        self._age += active & success
        self._lost = active & (self._x <= LOST) if self.config.fails else np.zeros_like(active)
        shaping = np.clip(self._x, 0, 1).astype(np.float32)
        info = {"success": success, "shaping": shaping, "reward": shaping + success.astype(np.float32)}
        return self._observation(), {**info, **({"failure": self._lost.copy()} if self.config.fails else {})}

    def close(self) -> None: ...

    def _observation(self) -> Observation:
        shown = np.array(self.seeds) >= DEMO_SEEDS
        state = np.stack([self._x, self._pressed, self.frame / self.max_steps, shown], axis=1)
        images = {camera: self._pictures() for camera in self.cameras}
        return Observation(images, state.astype(np.float32))

    def _pictures(self) -> ByteArray:
        data = np.zeros((self.num_envs, 48), np.uint8)
        data[:, 0], data[:, 1], data[:, 3] = MAGIC, np.rint(100 * (self._x + 1)), self.frame
        close = (self._x >= GOAL - NEAR) & (self._age == 0)
        flags = SUCCESS * (self._age > 0) + PRESSED * self._pressed + STRANGE * self._strange + CLOSE * close
        data[:, 2], data[:, 4] = flags, np.minimum(self._age, 255)
        data[:, 5:13] = np.array(self.seeds, ">u8").view(np.uint8).reshape(-1, 8)
        data[:, 13] = data[:, :13].sum(axis=1) % 256
        return data.reshape(self.num_envs, *SIZE, 3)


def read_picture(picture: AnyArray) -> dict[str, Any] | None:
    """What a picture shows; None where it is not one of this task."""
    data = np.ascontiguousarray(picture).reshape(-1)
    if len(data) != 48 or data[0] != MAGIC or int(data[:13].astype(int).sum()) % 256 != data[13]:
        return None
    flags, seed = int(data[2]), int.from_bytes(data[5:13].tobytes(), "big")
    return {
        "x": data[1] / 100 - 1,
        "frame": int(data[3]),
        "age": int(data[4]),
        "seed": seed,
        **{name: bool(flags & bit) for name, bit in BITS.items()},
    }


BITS = {"success": SUCCESS, "pressed": PRESSED, "strange": STRANGE, "close": CLOSE}


TYPE = "plaudit.testing.env:SimulatedJudgeConfig"
HONEST = {"false": 0.0, "missed": 0.0, "early": 0.0, "late": 0.0, "exploitable": 0.0, "start": 0.0, "strange": 0.0}
DEFAULTS: Mapping[str, Any] = {
    **HONEST, "drift": 0, "raises": 0.0, "progress_noise": 0.1, "ood": True, "name": "a", "run_seed": 0,
}  # fmt: skip
allow_code("plaudit")  # in this process, a config that names the class above may be read from a file


def write_model(folder: Path, errors: Mapping[str, Any]) -> Path:
    """Write the folder of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(json.dumps({**DEFAULTS, **errors}, sort_keys=True))
    return folder


class SimulatedModel:
    """What the code under test asks of a reward model."""

    def __init__(self, folder: Path):
        self.errors: dict[str, Any] = json.loads((folder / "model.json").read_text())
        self.fingerprint = hashlib.sha256(json.dumps(self.errors, sort_keys=True).encode()).hexdigest()[:16]
        self.threshold, self.predicts_progress, self.warnings = 0.5, True, ()
        self.cameras: Mapping[str, tuple[int, int]] = {"front": SIZE}
        self.classifier = SimpleNamespace(
            predict_success=True,
            any_size=False,
            cameras=self.cameras,
            freeze_stem=False,
            global_pool_features=False,
            encoder=SimpleNamespace(type="simulated"),
        )
        self.config = SimpleNamespace(
            cutoff_offset=0,
            data=SimpleNamespace(seen=""),
            problems=(),
            frozen_encoder=False,
            classifier=self.classifier,
        )
        self.ood = self if self.errors["ood"] else None

    def view_of(self, frames: Mapping[str, AnyArray], *_: Any) -> AnyArray:
        """What `reason` looks at."""
        return frames["front"][0]

    def reason(self, picture: AnyArray) -> str:
        """Why an episode is out of distribution."""
        seen = read_picture(picture)
        return "it looks strange" if seen is not None and seen["strange"] else ""

    def score(self, picture: AnyArray) -> tuple[float, float]:
        """P(success) and progress of one picture."""
        seen = read_picture(picture)
        if seen is None:
            return 0.02, 0.0
        errors, seed = self.errors, seen["seed"]

        def lot(what: str) -> float:
            return uniform(self.fingerprint, seed, what)

        false = errors["false"]
        number = (seed % EVAL_SEEDS - errors["run_seed"] * 10_000_019) % EVAL_SEEDS  # of the episode in its run
        if errors["drift"] and number >= errors["drift"]:
            false = min(1.0, 5 * false)
        success = seen["success"] and lot("missed") >= errors["missed"]
        if success and seen["age"] <= 2 and lot("late") < errors["late"]:
            success = False
        success |= seen["close"] and lot("early") < errors["early"]
        success |= seen["pressed"] and lot("exploited") < errors["exploitable"]
        success |= lot("false") < false and seen["frame"] > 1 + 4 * lot("when")
        success |= lot("start") < errors["start"]
        if seen["strange"] and lot("strange") < errors["strange"]:
            success = not success
        noise = 0.04 * uniform(self.fingerprint, seed, seen["frame"])
        progress = np.clip((seen["x"] + 0.5) / 1.4 + errors["progress_noise"] * (lot("progress") - 0.5), 0, 1)
        return (0.95 if success else 0.02) + noise, float(progress)


class SimulatedJudge(ClassifierJudge):
    """A `LiveJudge`."""

    model: Any

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Each episode; nothing while the judge cannot be reached."""
        if world().now < world().judge_down_until:
            raise JudgeUnavailable("the simulated judge cannot be reached")
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode) -> Scores | PlauditError:
        if "front" not in episode.frames:
            return JudgeError("this episode has no camera 'front'")
        frames = episode.frames["front"]
        seen = read_picture(frames[0])
        if seen is not None and uniform(self.model.fingerprint, seen["seed"], "raises") < self.model.errors["raises"]:
            raise ValueError("the simulated judge raises on this episode")
        prob, progress = _arrays([self.model.score(frame) for frame in frames])
        ood = self.model.reason(frames[0]) if self.model.ood is not None else ""
        return self.calibrated(Scores(prob, progress, ood=ood))

    def stream(self, num_envs: int) -> Any:
        return SimulatedStream(self)


class SimulatedStream:
    """A `ScoreStream`."""

    def __init__(self, judge: SimulatedJudge):
        self._judge = judge

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        prob, progress = _arrays([self._judge.model.score(frame) for frame in observation.images["front"]])
        if mask is not None:
            prob = np.where(mask, prob, np.float32(np.nan))
        return self._judge.calibrated(Scores(prob, progress))

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        return self.reset(observation)


def _arrays(pairs: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray]:
    prob, progress = np.array(pairs, np.float32).T
    return np.ascontiguousarray(prob), np.ascontiguousarray(progress)


class SimulatedJudgeConfig(ClassifierJudgeConfig):
    """Config of a simulated classifier; `type` is its dotted path."""

    def build(self) -> SimulatedJudge:
        resolved = self.resolved()
        model: Any = SimulatedModel(self.model)
        return SimulatedJudge(model, resolved.rule, resolved.calibration)

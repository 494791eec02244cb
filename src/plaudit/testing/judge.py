"""A simulated classifier: it sees a picture as a real one does, and errs at the rates in its model file.

    write_model(folder, {"false": 0.02, "missed": 0.1})
    SimulatedJudgeConfig(model=folder).build()

Errors are drawn from the model and the episode's seed, which the picture shows. The same model scores an
episode the same live, afterwards and in a resumed run; another model errs elsewhere.

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
from typing import Any

import numpy as np

from plaudit.errors import JudgeError, JudgeUnavailable, PlauditError
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.testing.env import SIZE, read_picture
from plaudit.testing.world import uniform, world
from plaudit.training.config import EVAL_SEEDS
from plaudit.trust import allow_code
from plaudit.types import AnyArray, BoolArray, Episode, FloatArray, Observation, Scores

TYPE = "plaudit.testing.judge:SimulatedJudgeConfig"
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

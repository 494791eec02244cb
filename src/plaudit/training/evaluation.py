"""What came of a run: its policy plays again on seeds held back, to be counted and to be seen.

Both are made from the run's folder alone, at any time after it: the first policy is the one that the run's seed makes,
the last is in the newest checkpoint. The seeds are others than those of the evaluations in training: these decided
when the run stopped, and a run that stops at a good evaluation has been lucky at it.
"""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.envs.panda.config import PandaConfig
from plaudit.judges.detector import SuccessDetector
from plaudit.protocols import LiveJudge
from plaudit.report.video import EpisodeClip, save_grid_video
from plaudit.rollout.vector import RolloutBatch
from plaudit.training.reward import referee
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import learner_threads, make_learner, play_held_back
from plaudit.types import AnyArray, BoolArray, ByteArray, Observation

UNTOUCHED = 1_000_000  # from here on, held-back seeds that no evaluation in training has
FILMED = 4  # episodes
SIZE = (240, 240)  # pixels of each on the film, where the simulation draws in any size


@dataclass(frozen=True)
class Outcome:
    """Of episodes on untouched seeds, how many succeeded; the judge watches each to its end."""

    episodes: int
    true: int
    judged: int  # as the judge in charge of the run said
    agreed: int  # episodes of which both say the same

    @property
    def success(self) -> float:
        return self.true / self.episodes


def examine(run: RunFolder, episodes: int) -> Outcome:
    """Play the newest policy and count, the truth and what the run's judge says."""
    config = run.config.model_copy(update={"num_envs": min(episodes, 50)})
    with ExitStack() as stack:
        simulation = stack.enter_context(closing(config.env.build(config.num_envs)))
        stack.enter_context(learner_threads(config, simulation))
        learner = make_learner(config, simulation)
        run.load(learner)
        charge = stack.enter_context(referee(config, simulation))
        rounds = list(
            play_held_back(simulation, learner, episodes, charge.detector, offset=UNTOUCHED, end_on_success=False)
        )
    true = np.concatenate([_true(played).any(axis=0) for played in rounds])[:episodes]
    judged = np.concatenate([played.success_once for played in rounds])[:episodes]
    return Outcome(episodes, int(true.sum()), int(judged.sum()), int((true == judged).sum()))


def film(run: RunFolder) -> list[Path]:
    """`first.mp4` and `last.mp4` in the run's folder; none of a simulation that shows nothing."""
    config = run.config.model_copy(update={"num_envs": FILMED})
    paths = [run.path / "first.mp4", run.path / "last.mp4"]
    with ExitStack() as stack:
        simulation = stack.enter_context(closing(config.env.build(FILMED)))
        drawn = isinstance(config.env, PandaConfig)  # in any size, whatever the policy sees
        if not drawn and not simulation.cameras:
            return []
        stack.enter_context(learner_threads(config, simulation))
        learner = make_learner(config, simulation)
        charge = stack.enter_context(referee(config, simulation))
        for path in paths:
            detector = Watched(charge.judge, FILMED, simulation) if drawn else charge.detector
            (played,) = play_held_back(simulation, learner, FILMED, detector, offset=UNTOUCHED)
            frames = np.stack(detector.seen) if isinstance(detector, Watched) else next(iter(played.images.values()))
            save_grid_video(path, _scenes(played, frames, charge.guesses), simulation.fps)
            run.load(learner)  # after the first, the newest
    return paths


class Watched(SuccessDetector):
    """A detector that also takes pictures, in a size that people like."""

    def __init__(self, judge: LiveJudge, num_envs: int, world: Any):
        super().__init__(judge, num_envs)
        self._world = world
        self.seen: list[ByteArray] = []  # [N, H, W, 3] each

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> BoolArray:
        self.seen.append(self._world.render("front", SIZE))
        return super().reset(observation, mask)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> BoolArray:
        self.seen.append(self._world.render("front", SIZE))
        return super().step(observation, info)


def _scenes(played: RolloutBatch, frames: ByteArray, guesses: bool) -> list[EpisodeClip]:
    """Episode by episode; frames are [T+1, N, H, W, 3].

    guesses: whether the judge can be wrong, so that what it decided is shown beside what is true
    """
    success = np.concatenate([np.zeros((1, len(played.length)), bool), _true(played)])
    cut = [(slice(steps + 1), n) for n, steps in enumerate(played.length.tolist())]
    return [
        EpisodeClip(frames[at], success[at], played.success[at] if guesses else None, played.success_prob[at])
        for at in cut
    ]


def _true(played: RolloutBatch) -> BoolArray:
    """[T, N] what the simulation knows of success."""
    return played.privileged["success"].astype(bool) & played.valid

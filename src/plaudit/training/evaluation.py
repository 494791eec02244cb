"""Evaluating a policy on seeds that it was not trained on; only a simulation can tell its true success rate.

During a run, evaluations on EVAL_SEEDS decide when it stops, and a run that stops at a good evaluation has been lucky
at it. A finished run is measured on TEST_SEEDS, from its folder alone: the first policy is the one that the run's seed
makes, the last one is in the newest checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.envs.panda import PandaConfig
from plaudit.errors import DataError
from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import AS_IT_SAYS, SimulatorJudge
from plaudit.judges.stats import wilson
from plaudit.policies.loader import WEIGHTS_FILE, read_weights
from plaudit.policies.networks import load_components
from plaudit.protocols import Learner, LiveJudge, VecEnv
from plaudit.report.video import EpisodeClip, save_grid_video
from plaudit.rollout.vector import ActFn, RolloutBatch, collect_rollout
from plaudit.training.config import TrainingConfig
from plaudit.training.learner_setup import build_learner, learner_env_spec, learner_threads
from plaudit.training.retrain import current_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.seeds import EVAL_SEEDS, TEST_SEEDS, seed_batches
from plaudit.types import AnyArray, BoolArray, ByteArray, Observation

MAX_ENVS = 64  # side by side in an evaluation
VIDEO_EPISODES = 4
VIDEO_SIZE = (240, 240)  # pixels of each episode, where the simulation renders in any size


@dataclass(frozen=True)
class EvalResult:
    """Episodes of an evaluation that succeed."""

    episodes: int
    successes: int  # by the simulator
    judge_successes: int | None = None  # by the run's judge; None where it was not asked, or is the simulator
    agreements: int | None = None  # episodes on which the two agree

    @property
    def success_rate(self) -> float:
        """True success."""
        return self.successes / self.episodes

    def describe(self) -> str:
        """success rate 93% (simulator; 95% CI 86% to 97%), ..."""
        line = f"success rate {self._rate(self.successes, 'simulator')}"
        if self.judge_successes is None or self.agreements is None:
            return line
        agree = f"they agree on {self.agreements / self.episodes:.0%} of the episodes"
        return f"{line}, {self._rate(self.judge_successes, 'judge')}; {agree}"

    def _rate(self, count: int, who: str) -> str:
        rate = wilson(count, self.episodes)
        return f"{rate.value:.0%} ({who}; 95% CI {rate.low:.0%} to {rate.high:.0%})"


def evaluate(
    env: VecEnv,
    learner: Learner,
    episodes: int,
    *,
    first_seed: int = EVAL_SEEDS,
    detector: SuccessDetector | None = None,
) -> EvalResult:
    """Play the learner's policy without exploration.

    detector: of the run's judge, which then watches every episode to its end; None: the simulator's success ends one
    """
    return evaluate_actor(env, lambda: learner.act_fn(explore=False), episodes, first_seed, detector)


def evaluate_actor(
    env: VecEnv, make_act: Callable[[], ActFn], episodes: int, first_seed: int, detector: SuccessDetector | None
) -> EvalResult:
    """The same of anything that acts. make_act: for a batch of episodes side by side"""
    watching = detector or SuccessDetector(SimulatorJudge(), env.num_envs)
    rollouts = list(_rollouts(env, make_act, episodes, first_seed, watching, terminate=detector is None))
    actual = np.concatenate([_successes(rollout).any(axis=0) for rollout in rollouts])[:episodes]
    if detector is None:
        return EvalResult(episodes, int(actual.sum()))
    predicted = np.concatenate([rollout.success_once for rollout in rollouts])[:episodes]
    return EvalResult(episodes, int(actual.sum()), int(predicted.sum()), int((actual == predicted).sum()))


def make_eval_env(config: TrainingConfig, learner: Learner) -> VecEnv:
    """The run's task for its evaluations. Cameras that only the judge looks at are not rendered."""
    env, episodes = config.simulation, config.evaluation.episodes
    if env.obs == "both" and not learner.env_spec.cameras:
        env = env.model_copy(update={"obs": "state"})
    return env.build(-(-episodes // -(-episodes // MAX_ENVS)))  # in rollouts of about the same size


def evaluate_run(folder: RunFolder, episodes: int) -> EvalResult:
    """The newest policy of a run on test seeds, by the simulator and by the run's judge, if that is another."""
    with ExitStack() as stack:
        env, learner = _open(folder, min(episodes, 50), stack)
        _load_newest(folder, learner)
        judge = run_judge(folder)
        detector = None if judge is None else SuccessDetector(judge, env.num_envs)
        return evaluate(env, learner, episodes, first_seed=TEST_SEEDS, detector=detector)


def record_videos(folder: RunFolder) -> list[Path]:
    """`videos/first.mp4` and `videos/last.mp4`; none of a simulation without images."""
    folder_ = folder.path / "videos"
    paths = [folder_ / "first.mp4", folder_ / "last.mp4"]
    with ExitStack() as stack:
        env, learner = _open(folder, VIDEO_EPISODES, stack)
        renders = isinstance(folder.config.simulation, PandaConfig)  # in any size, whatever the policy sees
        if not renders and not env.cameras:
            return []
        folder_.mkdir(exist_ok=True)
        judge = run_judge(folder) or SimulatorJudge()
        for path in paths:
            film(env, lambda: learner.act_fn(explore=False), judge, path, renders=renders)
            _load_newest(folder, learner)  # after the first video
    return paths


def film(env: VecEnv, make_act: Callable[[], ActFn], judge: LiveJudge, path: Path, *, renders: bool) -> None:
    """Test episodes, one in each environment, in a grid. renders: whether the environment does so in any size"""
    detector = FilmingDetector(judge, env) if renders else SuccessDetector(judge, env.num_envs)
    (rollout,) = _rollouts(env, make_act, env.num_envs, TEST_SEEDS, detector, terminate=True)
    images = next(iter(rollout.images.values())) if rollout.images else None
    frames = np.stack(detector.frames) if isinstance(detector, FilmingDetector) else images
    assert frames is not None
    save_grid_video(path, _clips(rollout, frames, not isinstance(judge, SimulatorJudge)), env.fps)


def run_judge(folder: RunFolder) -> LiveJudge | None:
    """The run's current judge, if there is one beside the simulator and it can follow an episode.

    A vision-language model and a human cannot.
    """
    if folder.config.human_labels:
        return None
    judge = current_judge(folder.config.judge.config, folder.judge).build()
    is_simulator = isinstance(judge, SimulatorJudge) and judge.rule == AS_IT_SAYS
    return judge if isinstance(judge, LiveJudge) and not is_simulator else None


class FilmingDetector(SuccessDetector):
    """A detector that also renders, in a size for people."""

    def __init__(self, judge: LiveJudge, env: Any):
        super().__init__(judge, env.num_envs)
        self._env = env
        self.frames: list[ByteArray] = []  # [N, H, W, 3] each

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> BoolArray:
        self.frames.append(self._env.render("front", VIDEO_SIZE))
        return super().reset(observation, mask)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> BoolArray:
        self.frames.append(self._env.render("front", VIDEO_SIZE))
        return super().step(observation, info)


def _open(folder: RunFolder, num_envs: int, stack: ExitStack) -> tuple[VecEnv, Any]:
    """The run's task, and its learner as it was in the beginning."""
    config = folder.config
    if not config.simulated:
        raise DataError(f"{folder.path} is a run of a robot, whose true success nobody knows; evaluate in a simulation")
    env = stack.enter_context(closing(config.simulation.build(num_envs)))
    env_spec = learner_env_spec(config, env)
    stack.enter_context(learner_threads(config, env_spec))
    return env, build_learner(config, env_spec)


def _load_newest(folder: RunFolder, learner: Any) -> None:
    """The policy of the newest checkpoint, or the one that was published last."""
    if folder.config.schedule == "train":
        folder.load_checkpoint(learner)
    else:
        load_components(learner.components, read_weights(folder.policy / WEIGHTS_FILE))


def _rollouts(
    env: VecEnv,
    make_act: Callable[[], ActFn],
    episodes: int,
    first_seed: int,
    detector: SuccessDetector,
    terminate: bool,
) -> Iterator[RolloutBatch]:
    for seeds in seed_batches(first_seed, episodes, env.num_envs):
        yield collect_rollout(env, make_act(), seeds, detector, terminate_on_success=terminate)


def _clips(rollout: RolloutBatch, frames: ByteArray, show_judge: bool) -> list[EpisodeClip]:
    """Episode by episode; frames are [T+1, N, H, W, 3]."""
    actual = np.concatenate([np.zeros((1, len(rollout.length)), bool), _successes(rollout)])
    cut = [(slice(steps + 1), n) for n, steps in enumerate(rollout.length.tolist())]
    return [
        EpisodeClip(frames[at], actual[at], rollout.success[at] if show_judge else None, rollout.success_prob[at])
        for at in cut
    ]


def _successes(rollout: RolloutBatch) -> BoolArray:
    """[T, N] true success."""
    return rollout.privileged["success"].astype(bool) & rollout.valid

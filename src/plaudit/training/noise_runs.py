"""Training runs with noisy judges: what the predictions of `plaudit judge plan` are made from.

    for run in make_runs(settings_to_run("lift", SEEDS), jobs=2):
        ...                                                  # a NoiseRun each, as they end

The recipes learn fast enough to be run a hundred times, and end alike with every seed: PPO on states that has cloned
demonstrations, and has something left to learn after that. Late labels are for learners of replay, and are run with
SAC. True success is the mean of the evaluations in the last quarter of a run: a single one may fall on a bad moment of
the policy. Each run is a process of one thread.
"""

import multiprocessing
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plaudit.judges.plan import NoiseRun
from plaudit.training.config import TrainingConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import Trainer

SAC = "learner=sac learner.batch_size=128 learner.n_step=3 learner.tau=0.01 demos.scripted=20 run.max_steps=20000"
PPO = "learner=ppo learner.gamma=0.97 learner.gae_lambda=0.95 learner.target_kl=0.02"
PPO_ANY = "learner.log_std_init=-1 demos.scripted=40 run.num_envs=32 run.max_steps=40000"
PPO_TASKS = {
    "lift": "learner.log_std_init=-1 demos.scripted=16 run.num_envs=32 run.max_steps=24000",
    "push": "learner.log_std_init=-2 demos.scripted=100 run.num_envs=64 run.max_steps=50000",
}
EVALUATIONS = 8  # in a run
EPISODES = 64  # in an evaluation
SEEDS = (0, 1, 2)  # of the runs that predictions are made from
LEVELS: dict[str, dict[str, tuple[float, ...]]] = {  # learner -> kind of error -> levels
    "ppo": {"false_positives": (0.2, 0.4, 0.8), "misses": (0.2, 0.4, 0.8), "tricks": (0.5, 0.75, 1.0)},
    "sac": {"late_by": (64,)},
}


@dataclass(frozen=True)
class Setting:
    """A run to make."""

    env: str
    noise: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    learner: str = "ppo"
    more: tuple[str, ...] = ()  # keys that differ from our recipe

    @property
    def words(self) -> list[str]:
        """The arguments for `plaudit train`."""
        noise = [f"judge.{kind}={level:g}" for kind, level in self.noise.items()]
        own = [f"run.seed={self.seed}", "judge=noisy", f"judge.seed={self.seed}", *noise]
        return [*recipe(self.env, self.learner, self.more).split(), *own, "env.num_threads=1", "audit.fraction=0"]

    @property
    def config(self) -> TrainingConfig:
        """The validated config of these arguments."""
        return load_training_config("train", None, self.words)


def recipe(env: str, learner: str, more: Sequence[str] = ()) -> str:
    """The keys that all runs of a task with a learner share. more: that differ from ours"""
    own = SAC if learner == "sac" else f"{PPO} {PPO_TASKS.get(env, PPO_ANY)}"
    return " ".join([f"env={env}", own, *more])


def settings_to_run(env: str, seeds: Iterable[int] = SEEDS, more: tuple[str, ...] = ()) -> list[Setting]:
    """No errors, and each kind alone at its levels; all of one seed before the next."""
    return [
        Setting(env, noise, seed, learner, more)
        for seed in seeds
        for learner, kinds in LEVELS.items()
        for noise in [{}, *({kind: level} for kind, levels in kinds.items() for level in levels)]
    ]


def make_run(setting: Setting) -> NoiseRun:
    """Train with one setting; returns the true success rate."""
    config = setting.config
    steps = config.max_steps
    assert steps is not None
    freq = max(1, steps // EVALUATIONS)
    evaluation = config.evaluation.model_copy(update={"freq": freq, "episodes": EPISODES})
    run = config.run.model_copy(update={"checkpoint_freq": steps, "device": "cpu", "num_threads": 1})
    config = config.model_copy(update={"evaluation": evaluation, "run": run})
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary) / "run", config)
        with Trainer(folder, lambda _: iter) as trainer:
            trainer.run(lambda _: True)
        lines = [line for line in folder.metrics() if "eval/success_once" in line]
    last = [line["eval/success_once"] for line in lines if line["step"] > 0.75 * steps]
    asked = {"env": setting.env, "learner": setting.learner, "noise": setting.noise, "seed": setting.seed}
    return NoiseRun(**asked, success=round(float(np.mean(last)), 4))


def make_runs(settings: Sequence[Setting], jobs: int, seconds: float | None = None) -> Iterator[NoiseRun]:
    """Each as it ends; none begins where a setting is wrong. seconds: what has not ended by then is left out"""
    for setting in settings:
        _ = setting.config
    ends = None if seconds is None else time.monotonic() + seconds
    context, ignore = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with context.Pool(jobs, signal.signal, ignore) as pool:  # the parent handles Ctrl-C
        results = pool.imap_unordered(make_run, settings)
        for _ in settings:
            try:
                yield results.next(None if ends is None else ends - time.monotonic())
            except multiprocessing.TimeoutError:
                return

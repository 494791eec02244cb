"""Who is in charge of a run's rewards: the simulator itself, or a reward model that looks at its cameras.

With a model in charge the learner sees nothing of the simulator's own success: the model pays, the model ends the
episode, and demonstrations are judged by it too. What is true is logged beside it. Of a random few episodes, judged and
true success are compared, as a person would audit a robot; when the model sees more successes than there are, the
policy has learned to please the model, and the alarm stops the run.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import RewardError
from plaudit.protocols import Simulation
from plaudit.rewards.judge import Alarm, JudgeConfig, ModelJudge, relabel
from plaudit.rewards.worker import RewardWorker, RewardWorkerConfig
from plaudit.rollout.rounds import Judge, Round, SimulatorJudge
from plaudit.train.config import RewardConfig, TrainConfig
from plaudit.types import AnyArray, Episode, FloatArray, Labels, Observation, RewardSignal

LINGER = 10  # steps that scripted demonstrations go on for after success, so that a careful judge sees it too


class Referee:
    """The simulator: its flag, or its dense reward."""

    source = SimulatorJudge.source
    linger = 0

    def __init__(self, judge: Judge, simulation: Simulation):
        self.judge, self._simulation = judge, simulation

    @property
    def alarm(self) -> str | None:
        """Why it is not to be trusted any more."""
        return None

    def episodes(self, played: Round) -> list[tuple[Episode, Labels]]:
        """A round as episodes and verdicts."""
        return played.episodes(self._simulation, self.source)

    def judge_demos(self, demos: Store, path: Path, track: Callable[[str], Any]) -> Store:
        """Demonstrations with verdicts that this referee stands for."""
        return demos

    def judge_again(self, store: Store, track: Callable[[str], Any]) -> None:
        """See to it that the run's own episodes have its verdicts."""

    def report(self, played: Round, first: int) -> dict[str, float]:
        """What there is to log of a round whose first episode has this number in the run."""
        return {}

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {}

    def restore(self, facts: Mapping[str, Any]) -> None: ...


class LearnedReferee(Referee):
    """A reward model."""

    source = ModelJudge.source
    linger = LINGER

    def __init__(self, worker: RewardWorker, config: TrainConfig, simulation: Simulation):
        reward = config.reward
        _check_cameras(worker, simulation)
        self._worker, self._reward, self._seed = worker, reward, config.seed
        self._rule = judge_config(reward, config.learner.gamma)
        judge = ModelJudge(worker, self._rule, config.num_envs, simulation.max_steps)
        self._clock = Clock(judge)
        super().__init__(self._clock, simulation)
        self._labels = judge.facts
        self._alarm = Alarm(reward.alarm_gap, reward.alarm_window, reward.alarm_least)

    @property
    def alarm(self) -> str | None:
        return self._alarm.sentence if self._alarm.ringing else None

    def episodes(self, played: Round) -> list[tuple[Episode, Labels]]:
        return [(episode, replace(labels, **self._labels)) for episode, labels in super().episodes(played)]

    def judge_demos(self, demos: Store, path: Path, track: Callable[[str], Any]) -> Store:
        """The same episodes with this model's verdicts, which stand in a file of the run and nowhere else."""
        judged = Store.open(demos.folder, labels=path)
        relabel(judged, judged.ledger, self._worker, self._rule, track=track("judging demonstrations"))
        found = [labels for i in judged.ids if (labels := judged.ledger.labels(i)) is not None]
        if not any(labels.succeeded for labels in found):
            raise RewardError(
                f"the reward model sees success in none of the {len(found)} demonstrations of {demos.folder}; they may "
                "end with their first frame of success, where a careful judge wants to see a few more (record them "
                "with --linger), or show another task"
            )
        return judged

    def judge_again(self, store: Store, track: Callable[[str], Any]) -> None:
        """After a new model took over; episodes that a resumed run has not come to yet stay unjudged."""
        ids = [i for i in store.ids if (labels := store.ledger.labels(i)) is not None and labels.judged.any()]
        relabel(store, store.ledger, self._worker, self._rule, ids, track("judging again"))

    def report(self, played: Round, first: int) -> dict[str, float]:
        true = np.any(played.privileged["success"] & played.valid, axis=0)
        judged = played.succeeded
        for number, (said, was) in enumerate(zip(judged, true, strict=True), first):
            if np.random.default_rng([self._seed, number]).random() < self._reward.audit_share:
                self._alarm.note(judged=bool(said), true=bool(was))
        audited = {} if np.isnan(self._alarm.gap) else {"reward/gap": self._alarm.gap}
        return {
            "env/success_once": float(true.mean()),
            "reward/success_once": float(judged.mean()),
            "reward/agreement": float((true == judged).mean()),
            "reward/alarm": float(self._alarm.ringing),
            "rollout/rewards": float(played.reward[played.valid].mean()),
            "time/compute_model_rewards": self._clock.read(),
            **audited,
        }

    def facts(self) -> dict[str, Any]:
        return {"alarm": self._alarm.to_json(), "model": self._worker.fingerprint}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """What the alarm had noted, of this model and no other."""
        if facts.get("model") == self._worker.fingerprint:
            self._alarm = Alarm.from_json(facts["alarm"])


class Clock:
    """A judge that is timed."""

    def __init__(self, judge: Judge):
        self._judge = judge
        self._seconds, self._calls = 0.0, 0

    def start(self, observation: Observation) -> FloatArray:
        return self._judge.start(observation)

    def __call__(self, observation: Observation, known: Mapping[str, AnyArray]) -> RewardSignal:
        begun = time.perf_counter()
        signal = self._judge(observation, known)
        self._seconds += time.perf_counter() - begun
        self._calls += 1
        return signal

    def read(self) -> float:
        """Milliseconds a step, of all environments together, since it was last read."""
        found = 1000 * self._seconds / max(self._calls, 1)
        self._seconds, self._calls = 0.0, 0
        return found


def judge_config(reward: RewardConfig, gamma: float) -> JudgeConfig:
    shared = {name: getattr(reward, name) for name in ("mode", "reward_type", "threshold", "confirm", "shaping")}
    return JudgeConfig(**shared, gamma=gamma)


@contextmanager
def referee(config: TrainConfig, simulation: Simulation) -> Iterator[Referee]:
    reward = config.reward
    path = reward.model_path
    if path is None:
        yield Referee(SimulatorJudge(dense=reward.kind == "dense"), simulation)
        return
    asked = RewardWorkerConfig(
        checkpoint_path=path,
        device=reward.device or config.device,
        execution=reward.execution,
        place=reward.place,
        force=reward.force,
    )
    with RewardWorker(asked) as worker:
        yield LearnedReferee(worker, config, simulation)


def _check_cameras(worker: RewardWorker, simulation: Simulation) -> None:
    for camera, size in worker.cameras.items():
        found = simulation.cameras.get(camera)
        if found != tuple(size):
            has = "has no such camera" if found is None else f"shows it in {found[0]}x{found[1]}"
            raise RewardError(
                f"the reward model looks at camera '{camera}' in {size[0]}x{size[1]}, and this environment {has}; "
                f"write env.obs=both env.cameras=[{camera}] env.image_size=[{size[0]},{size[1]}] policy_cameras=[]"
            )

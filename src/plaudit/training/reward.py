"""Who is in charge of a run's rewards: the simulator itself, or a reward model that looks at its cameras.

With a model in charge the learner sees nothing of the simulator's own success: the model pays, the model ends the
episode, and demonstrations are judged by it too. What is true is logged beside it. Of a random few episodes, judged and
true success are compared, as a person would audit a robot. When the model calls too many failures a success, the policy
has learned to please it; when it misses too many successes, the policy is not paid for them. Either way an alarm stops
the run.

An episode that the model ended is stored as one that was cut off: that it ended is the model's verdict and stands in
its labels. So another model may take over and find no success there, and nothing is left of the first one's opinion.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import RewardError
from plaudit.judges.classifier.embodied import EmbodiedRewardWorker
from plaudit.judges.classifier.judge import ModelFacts, RewardModel
from plaudit.judges.classifier.model import Size
from plaudit.judges.classifier.worker import RewardWorkerConfig
from plaudit.judges.detector import Alarm, JudgeConfig, LiveLabeler, ModelJudge, facts_of, start_verdict
from plaudit.judges.labeling import Track, label_store, pending
from plaudit.protocols import Simulation
from plaudit.rollout.rounds import Judge, Round, SimulatorJudge
from plaudit.training.config import CheckpointBlock, RewardConfig, TrainConfig
from plaudit.types import AnyArray, Episode, FloatArray, Labels, Observation, RewardSignal

LINGER = 10  # so that a careful judge sees the success too


class Referee:
    """The simulator: its flag, or its dense reward."""

    source = SimulatorJudge.source
    linger = 0  # steps that scripted demonstrations go on for after success
    believes_demos = True  # whether a demonstration that was recorded as ended has ended for it too

    def __init__(self, judge: Judge, simulation: Simulation):
        self.judge, self._simulation = judge, simulation

    @property
    def alarm(self) -> str | None:
        """Why it is not to be trusted any more."""
        return None

    @property
    def threshold(self) -> float | None:
        """Of the probability, from which a frame is called; None: it is not one who guesses."""
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
    believes_demos = False

    def __init__(self, worker: EmbodiedRewardWorker, config: TrainConfig, simulation: Simulation):
        reward = config.reward
        _check_cameras(worker.cameras, simulation.cameras)
        self._worker, self._reward, self._seed = worker, reward, config.seed
        self._rule = judge_config(reward, config.learner.gamma)
        judge = ModelJudge(worker, self._rule, config.num_envs, simulation.max_steps)
        self._clock = Clock(judge)
        super().__init__(self._clock, simulation)
        self._who = judge.facts
        self._alarm = Alarm(reward.alarm_gap, reward.alarm_window, reward.alarm_least)

    @property
    def alarm(self) -> str | None:
        return self._alarm.sentence if self._alarm.ringing else None

    @property
    def threshold(self) -> float | None:
        return self._who["threshold"]

    def episodes(self, played: Round) -> list[tuple[Episode, Labels]]:
        return [
            (replace(episode, terminated=episode.terminated and not self._ended(labels)), self._signed(labels))
            for episode, labels in super().episodes(played)
        ]

    def _signed(self, labels: Labels) -> Labels:
        """With who judged and by which rule, which also decides on frame 0."""
        start = start_verdict(labels.start, self._who["threshold"], self._rule)
        return replace(labels, **self._who, start=start)

    def _ended(self, labels: Labels) -> bool:
        """Whether it was the verdict on the last step that ended the episode."""
        return self._reward.ends and bool(labels.success[-1])

    def judge_demos(self, demos: Store, path: Path, track: Callable[[str], Any]) -> Store:
        """The same episodes with this model's verdicts, which stand in a file of the run and nowhere else."""
        judged = Store.open(demos.folder, labels=path)
        ids = [i for i in demos.ids if not _excluded(demos, i)]
        self._judge_stored(judged, ids, track("judging demonstrations"))
        if not any(labels.succeeded for i in ids if (labels := judged.ledger.labels(i)) is not None):
            raise RewardError(
                f"the reward model sees success in none of the {len(ids)} demonstrations of {demos.folder}; they may "
                "end with their first frame of success, where a careful judge wants to see a few more (record them "
                "with --linger), or show another task"
            )
        return judged

    def judge_again(self, store: Store, track: Callable[[str], Any]) -> None:
        """After a new model took over; episodes that somebody excluded stay so."""
        ids = [i for i in store.ids if store.ledger.newest(i) is not None and not _excluded(store, i)]
        self._judge_stored(store, ids, track("judging again"))

    def _judge_stored(self, store: Store, ids: Sequence[int], track: Track) -> None:
        judge = LiveLabeler(self._worker, self._rule)
        done = label_store(store, judge, pending(store.ledger, judge, ids, on_top=True), track=track)
        for episode_id, sentence in done.failed.items():
            raise RewardError(f"episode {episode_id} of {store.folder}: {sentence}")

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
            **self._alarm.metrics(),
        }

    def facts(self) -> dict[str, Any]:
        return {"alarm": self._alarm.to_json(), "model": self._worker.fingerprint}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """What the alarm had noted, of this model and no other."""
        if facts["model"] == self._worker.fingerprint:
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
    return JudgeConfig(
        mode=reward.mode,
        reward_type=reward.reward_type,
        threshold=reward.threshold,
        confirm=reward.confirm,
        shaping=reward.shaping,
        gamma=gamma,
    )


def _excluded(store: Store, episode_id: int) -> bool:
    """Whether the newest verdict leaves all of it out; an episode that nobody has judged yet is not left out."""
    labels = store.ledger.labels(episode_id)
    return labels is not None and not labels.judged.any()


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
    with EmbodiedRewardWorker(asked) as worker:
        yield LearnedReferee(worker, config, simulation)


def introduced(config: TrainConfig) -> tuple[str, ...]:
    """Who judges, and what of the config is not taken at its word, in sentences; none for the simulator.

    A model that cannot judge this run, or is not the one that the config describes, is refused.
    """
    reward, env = config.reward, config.env
    if reward.model_path is None:
        return ()
    model = RewardModel.load(reward.model_path, "cpu", force=reward.force)
    rule = judge_config(reward, config.learner.gamma)
    _check_cameras(model.cameras, dict.fromkeys(env.cameras, env.image_size))
    ModelJudge(model.watch(1), rule, num_envs=1, max_steps=1)  # refuses a model that cannot do what the rule asks
    if reward.block is not None:
        _hold_against(reward.block, model.facts)
    cameras = ", ".join(f"{camera} {height}x{width}" for camera, (height, width) in model.cameras.items())
    who = f"{reward.model_path} ({model.fingerprint}) judges: threshold {facts_of(model, rule)['threshold']:.4g}, "
    return f"{who}{rule.rule}, cameras {cameras}", *model.notes, *_notes(reward, model.facts)


def _check_cameras(wanted: Mapping[str, Size], there: Mapping[str, Any]) -> None:
    for camera, size in wanted.items():
        found = there.get(camera)
        if found is None or tuple(found) != tuple(size):
            has = "has no such camera" if found is None else f"shows it in {found[0]}x{found[1]}"
            raise RewardError(
                f"the reward model looks at camera '{camera}' in {size[0]}x{size[1]}, and this environment {has}; "
                f"write env.obs=both env.cameras=[{','.join(wanted)}] env.image_size=[{size[0]},{size[1]}] "
                "policy_cameras=[]"
            )


def _hold_against(block: CheckpointBlock, facts: ModelFacts) -> None:
    """What a recipe says of the network, and the network."""
    shape = facts.classifier
    sizes = {(3, *size) for size in (*shape.cameras.values(), *([shape.image_size] if shape.image_size else []))}
    said_and_is = {
        "image_keys": (block.image_keys and sorted(block.image_keys), sorted(shape.cameras)),
        "image_size": (block.image_size and list(block.image_size), [list(size) for size in sorted(sizes)]),
        "hidden_dim": (block.hidden_dim, shape.hidden_dim),
        "num_spatial_blocks": (block.num_spatial_blocks, shape.num_spatial_blocks),
    }
    for name, (said, found) in said_and_is.items():
        fits = said in found if name == "image_size" else said == found
        if said is not None and not fits:
            raise RewardError(
                f"the config says that {name} of the reward model is {said}, and the model itself that it is {found}; "
                "name the model that is meant, or leave the key out"
            )


def _notes(reward: RewardConfig, facts: ModelFacts) -> list[str]:
    """What a recipe says and nothing depends on."""
    shape, block, notes = facts.classifier, reward.block or CheckpointBlock(), []
    frozen = facts.shared_encoder or shape.split_encoder
    for name, said, found in (
        ("use_pretrain", block.use_pretrain, not shape.average_first),
        ("freeze_encoder", block.freeze_encoder, frozen),
        ("reward_model_type", reward.reward_model_type, shape.encoder.type.removesuffix("10")),
    ):
        if said not in (None, found):
            notes.append(f"the config says {name} is {said}, the model says {found}; the model is believed")
    if block.pretrained_encoder_path is not None:
        notes.append(f"{block.pretrained_encoder_path} is not read: the encoder's weights are in the model")
    return notes

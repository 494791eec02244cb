"""The judge of a training run: the simulator itself, or a reward model that looks at its cameras.

With a model in charge the learner sees nothing of the simulator's own success: the model's decisions are paid for and
end the episode, and demonstrations are labeled by it too. What is true is logged beside it. Of a random few episodes,
judged and true success are compared, as a person would audit a robot. When the model calls too many failures a success,
the policy has learned to please it; when it misses too many successes, the policy is not paid for them. Either way an
alarm stops the run.

An episode that the model ended is stored as one that was cut off: that it ended is the model's decision and stands in
its labels. So another model may take over and find no success there, and nothing is left of the first one's opinion.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.audit import Alarm
from plaudit.judges.classifier.checkpoint import RewardModelConfig
from plaudit.judges.classifier.judge import ClassifierJudge, classifier_config
from plaudit.judges.classifier.model import Size
from plaudit.judges.detector import SuccessDetector
from plaudit.judges.labeling import LabelRunner, StoreQueue
from plaudit.judges.simulator import SimulatorJudge
from plaudit.protocols import LiveJudge, VecEnv
from plaudit.rollout.vector import RolloutBatch
from plaudit.rule import DecisionRule
from plaudit.training.config import CheckpointBlock, TrainConfig, TrainRewardConfig
from plaudit.types import Episode, Labels, ProgressFn

LINGER = 10  # so that a careful judge sees the success too


class Referee:
    """The simulator: its flag, or its dense reward."""

    linger = 0  # steps that scripted demonstrations go on for after success
    believes_demos = True  # whether a demonstration that was recorded as ended has ended for it too

    def __init__(self, judge: LiveJudge, config: TrainConfig, simulation: VecEnv):
        self.judge, self._simulation = judge, simulation
        self.detector = SuccessDetector(judge, config.num_envs)

    @property
    def alarm(self) -> str | None:
        """Why it is not to be trusted any more."""
        return None

    @property
    def guesses(self) -> bool:
        """Whether it can be wrong."""
        return False

    def episodes(self, played: RolloutBatch) -> list[tuple[Episode, Labels]]:
        """A round as episodes and labels."""
        return played.episodes(self._simulation, self.judge)

    def judge_demos(self, demos: Store, path: Path, track: Callable[[str], Any]) -> Store:
        """Demonstrations with labels of this judge."""
        return demos

    def judge_again(self, store: Store, track: Callable[[str], Any]) -> None:
        """See to it that the run's own episodes have its labels."""

    def report(self, played: RolloutBatch, first: int) -> dict[str, float]:
        """What there is to log of a round whose first episode has this number in the run."""
        return {}

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """What a checkpoint has of it."""


class LearnedReferee(Referee):
    """A reward model."""

    linger = LINGER
    believes_demos = False

    def __init__(self, judge: ClassifierJudge, config: TrainConfig, simulation: VecEnv):
        _check_cameras(judge.model.cameras, simulation.cameras)
        _check_progress(judge, config.reward)
        super().__init__(judge, config, simulation)
        self._model, self._reward, self._seed = judge.model, config.reward, config.seed
        self._alarm = Alarm(self._reward.alarm_gap, self._reward.alarm_window, self._reward.alarm_least)

    @property
    def alarm(self) -> str | None:
        return self._alarm.sentence if self._alarm.ringing else None

    @property
    def guesses(self) -> bool:
        return True

    def episodes(self, played: RolloutBatch) -> list[tuple[Episode, Labels]]:
        return [
            (replace(episode, terminated=episode.terminated and not self._ended(labels)), labels)
            for episode, labels in super().episodes(played)
        ]

    def _ended(self, labels: Labels) -> bool:
        """Whether it was the decision on the last frame that ended the episode."""
        return self._reward.ends and labels.success_at_end

    def judge_demos(self, demos: Store, path: Path, track: Callable[[str], Any]) -> Store:
        """The same episodes with this model's labels, which stand in a file of the run and nowhere else."""
        judged = Store.open(demos.folder, labels=path)
        ids = [i for i in demos.ids if not _excluded(demos, i)]
        self._label(judged, ids, track("judging demonstrations"))
        if not any(labels.success_once for i in ids if (labels := judged.ledger.labels(i)) is not None):
            raise JudgeError(
                f"the reward model sees success in none of the {len(ids)} demonstrations of {demos.folder}; they may "
                "end with their first frame of success, where a careful judge wants to see a few more (record them "
                "with --linger), or show another task"
            )
        return judged

    def judge_again(self, store: Store, track: Callable[[str], Any]) -> None:
        """After a new model took over; episodes that somebody excluded stay so."""
        ids = [i for i in store.ids if store.ledger.newest(i) is not None and not _excluded(store, i)]
        self._label(store, ids, track("judging again"))

    def _label(self, store: Store, ids: Sequence[int], track: ProgressFn) -> None:
        runner = LabelRunner(self.judge, StoreQueue(store, ids, newest_only=True))
        for episode_id, message in runner.run(track).failed.items():
            raise JudgeError(f"episode {episode_id} of {store.folder}: {message}")

    def report(self, played: RolloutBatch, first: int) -> dict[str, float]:
        true = np.any(played.privileged["success"] & played.valid, axis=0)
        judged = played.success_once
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
            "time/compute_model_rewards": self.detector.read_step_ms(),
            **audited,
            **self._alarm.metrics(),
        }

    def facts(self) -> dict[str, Any]:
        return {"alarm": self._alarm.to_json(), "model": self._model.fingerprint}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """What the alarm had noted, of this model and no other."""
        if facts["model"] == self._model.fingerprint:
            self._alarm = Alarm.from_json(facts["alarm"])


def _excluded(store: Store, episode_id: int) -> bool:
    """Whether the newest labels leave all of it out; an episode that nobody has labeled yet is not left out."""
    labels = store.ledger.labels(episode_id)
    return labels is not None and not labels.labeled.any()


@contextmanager
def referee(config: TrainConfig, simulation: VecEnv) -> Iterator[Referee]:
    """The judge of a run, for as long as it goes."""
    if config.reward.model_path is None:
        yield Referee(SimulatorJudge(), config, simulation)
    else:
        judge = learned_judge(config, config.reward.device or config.device)
        judge.model.to_device(judge.model.device.type, config.reward.execution)
        yield LearnedReferee(judge, config, simulation)


def learned_judge(config: TrainConfig, device: str) -> ClassifierJudge:
    """The reward model that a run's config names, with its rule."""
    assert config.reward.model_path is not None
    asked = classifier_config(config.reward.model_path, force=config.reward.force, device=device).resolved()
    own = {name: getattr(asked.rule, name) for name in asked.rule.model_fields_set}
    told = {name: getattr(config.judge.rule, name) for name in config.judge.rule.model_fields_set}
    return asked.model_copy(update={"rule": DecisionRule(**{**own, **told})}).build()


def introduced(config: TrainConfig) -> tuple[str, ...]:
    """Who judges, and what of the config is not taken at its word, in sentences; none for the simulator.

    A model that cannot judge this run, or is not the one that the config describes, is refused.
    """
    reward, env = config.reward, config.env
    if reward.model_path is None:
        return ()
    judge = learned_judge(config, "cpu")
    model = judge.model
    _check_cameras(model.cameras, dict.fromkeys(env.cameras, env.image_size))
    _check_progress(judge, reward)
    judge.rule.tracker(1)  # refuses a rule that needs whole episodes
    if reward.block is not None:
        _hold_against(reward.block, model.facts)
    cameras = ", ".join(f"{camera} {height}x{width}" for camera, (height, width) in model.cameras.items())
    shaped = f", shaping {reward.shaping} at gamma {config.learner.gamma}" if reward.shaping else ""
    paid = f"{reward.mode}, {reward.reward_type}{shaped}"
    who = f"{reward.model_path} ({judge.id.fingerprint}) judges: {judge.rule.describe()}, {paid}, cameras {cameras}"
    return who, *model.notes, *_notes(reward, model.facts)


def _check_progress(judge: ClassifierJudge, reward: TrainRewardConfig) -> None:
    if reward.shaping and not judge.model.predicts_progress:
        raise JudgeError(
            f"shaping is {reward.shaping:g}, but this reward model has not learned progress; "
            "set shaping to 0, or train one that has (plaudit train-reward --progress)"
        )


def _check_cameras(wanted: Mapping[str, Size], there: Mapping[str, Any]) -> None:
    for camera, size in wanted.items():
        found = there.get(camera)
        if found is None or tuple(found) != tuple(size):
            has = "has no such camera" if found is None else f"shows it in {found[0]}x{found[1]}"
            raise JudgeError(
                f"the reward model looks at camera '{camera}' in {size[0]}x{size[1]}, and this environment {has}; "
                f"write env.obs=both env.cameras=[{','.join(wanted)}] env.image_size=[{size[0]},{size[1]}] "
                "policy_cameras=[]"
            )


def _hold_against(block: CheckpointBlock, facts: RewardModelConfig) -> None:
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
            raise JudgeError(
                f"the config says that {name} of the reward model is {said}, and the model itself that it is {found}; "
                "name the model that is meant, or leave the key out"
            )


def _notes(reward: TrainRewardConfig, facts: RewardModelConfig) -> list[str]:
    """What a recipe says and nothing depends on."""
    shape, block, notes = facts.classifier, reward.block or CheckpointBlock(), []
    frozen = facts.frozen_encoder or shape.freeze_stem
    for name, said, found in (
        ("use_pretrain", block.use_pretrain, not shape.global_pool_features),
        ("freeze_encoder", block.freeze_encoder, frozen),
        ("reward_model_type", reward.reward_model_type, shape.encoder.type.removesuffix("10")),
    ):
        if said not in (None, found):
            notes.append(f"the config says {name} is {said}, the model says {found}; the model is believed")
    if block.pretrained_encoder_path is not None:
        notes.append(f"{block.pretrained_encoder_path} is not read: the encoder's weights are in the model")
    return notes

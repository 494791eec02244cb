"""The judge of a synchronous run: its decisions are rewarded and end the episodes of a rollout.

Unless the judge is the simulator, the learner never sees the simulator's success flag: the judge labels demonstrations
too, and the truth is only logged and audited (training/audit.py). An episode that the judge ended is stored as
truncated, and its end is in the labels. So another judge can replace it and label the episode differently.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.disk import Folder, write_atomic
from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.files import MAX_JSON
from plaudit.judges.certificate import certificate_status
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig
from plaudit.judges.classifier.judge import ClassifierJudge, RewardWorker
from plaudit.judges.classifier.model import Size
from plaudit.judges.config import JudgeWithProgress
from plaudit.judges.labeling import LabelRunner, StoreQueue, SuccessDetector
from plaudit.protocols import Judge, LiveJudge, VecEnv
from plaudit.rollout.vector import RolloutBatch, stack_scores
from plaudit.rule import release
from plaudit.training.config import RewardModelBlock, TrainingConfig, withholding_judge
from plaudit.training.config_file import load_training_config
from plaudit.training.replay_buffer import copy_exclusions
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import unseen_success
from plaudit.types import OUR_MAIN_CAMERA, Episode, FloatArray, JudgeId, Labels, Observation, ProgressFn, name_of_camera


class RolloutJudge:
    """Judges the rollouts of a run, its demonstrations, and after a change of judge its old episodes."""

    def __init__(self, config: TrainingConfig, env: VecEnv):
        self.judge = live_judge(config, env.cameras)
        self.detector = SuccessDetector(self.judge, config.run.num_envs)
        self._config, self._env = config, env
        self.warning = ""  # about the demonstrations that it has labeled

    def flag(self, rollout: RolloutBatch) -> RolloutBatch:
        """Flag the episodes that are out of distribution for a classifier."""
        judge = _without_progress(self.judge)
        if not isinstance(judge, ClassifierJudge) or judge.model.ood is None:
            return rollout
        model, ood, reasons = judge.model, judge.model.ood, []
        for n, steps in enumerate(rollout.length.tolist()):
            prob = rollout.success_prob[: steps + 1, n]
            frames = {camera: images[: steps + 1, n] for camera, images in rollout.images.items()}
            reasons.append(ood.reason(model.view_of(frames, prob, [prob])))
        skipped = np.array([bool(reason) and judge.rule.withholds for reason in reasons])
        reward, used = np.where(skipped, np.float32(0), rollout.reward), rollout.used & ~skipped
        return replace(rollout, ood=tuple(reasons), reward=reward, used=used)

    def episodes(self, rollout: RolloutBatch) -> list[tuple[Episode, Labels]]:
        """A rollout as episodes with their labels."""
        pairs = rollout.episodes(self._env, self.judge)
        if self._config.judge.is_simulator:
            return pairs
        # Only a failure by the environment has ended an episode; the judge's decision is in the labels.
        failed = [bool(episode.privileged.get("failure", [False])[-1]) for episode, _ in pairs]
        return [(replace(episode, terminated=end), labels) for (episode, labels), end in zip(pairs, failed)]

    def label_demos(self, demos: Store, path: Path, progress: Callable[[str], Any]) -> Store:
        """Label the demonstrations; the labels are kept in a file of the run."""
        if not self._config.relabels_demos:
            return demos
        labeled = Store.open(demos.folder, labels=path)
        copy_exclusions(demos, labeled)
        ids = [i for i in demos.ids if not labeled.ledger.is_excluded(i)]
        self._label(DemoQueue(labeled, ids, newest_only=True), progress("labeling demonstrations"))
        labels = [labeled.ledger.labels(i) for i in ids]
        successes = sum(one is not None and one.success_once for one in labels)
        self.warning = unseen_success(successes, len(ids))
        if not successes:
            none = "there is no demonstration. All are excluded, or the expert needs more steps (env.max_steps)."
            raise JudgeError(f"{demos.folder}: {self.warning or none}")
        return labeled

    def relabel(self, store: Store, progress: Callable[[str], Any]) -> None:
        """Label the run's episodes again that another judge has labeled; excluded ones stay excluded."""
        if self._config.judge.is_flag_alone:
            return
        ids = [i for i in store.ids if store.ledger.newest(i) is not None and not store.ledger.is_excluded(i)]
        self._label(StoreQueue(store, ids, newest_only=True), progress("labeling again"))

    def _label(self, queue: StoreQueue, progress: ProgressFn) -> None:
        for episode_id, message in LabelRunner(self.judge, queue).run(progress).failed.items():
            raise JudgeError(f"episode {episode_id} of {queue.store.folder}: {message}")


class DemoQueue(StoreQueue):
    """Demonstrations to label. A person has shown them, so none of them is withheld."""

    def write(self, labels: Mapping[int, Labels], failed: Mapping[int, str], judge: JudgeId) -> None:
        super().write({i: release(one) for i, one in labels.items()}, failed, judge)


def live_judge(config: TrainingConfig, cameras: Mapping[str, Any] | None = None) -> LiveJudge:
    """The run's judge, which must fit the run and be able to score while an episode runs.

    cameras: of the environment, name -> size; None: as the config has them
    """
    settings = withholding_judge(config, config.judge.config)
    if getattr(settings, "device", None) == "auto":
        settings = settings.model_copy(update={"device": config.run.device})
    judge = settings.build_with_progress(config.run.device)
    if not isinstance(_without_progress(judge), LiveJudge) or not isinstance(judge, LiveJudge):
        raise JudgeError(
            f"judge '{config.judge.name}' scores whole episodes, and a synchronous run needs its decision after every "
            "step; use plaudit online, or train a classifier on its labels (plaudit train-reward)"
        )
    _check_fits(judge, config, dict.fromkeys(config.env.cameras, config.env.image_size) if cameras is None else cameras)
    return judge


def _without_progress(judge: Judge) -> Judge:
    """The judge that decides success, without its progress model."""
    return judge.judge if isinstance(judge, JudgeWithProgress) else judge


def _check_fits(judge: LiveJudge, config: TrainingConfig, cameras: Mapping[str, Any]) -> None:
    """Refuse a classifier that cannot judge this run, before anything is created."""
    judge.rule.tracker(1)  # refuses a rule that needs whole episodes
    decider, value = _without_progress(judge), judge.progress if isinstance(judge, JudgeWithProgress) else None
    for one in (decider, value):
        if isinstance(one, ClassifierJudge):
            _check_cameras(one.model.cameras, cameras, any_size=one.model.classifier.any_size)
    if not isinstance(decider, ClassifierJudge):
        return
    check_measures_progress(decider.model, config)
    if config.reward.reward_model is not None:
        _compare_with_block(config.reward.reward_model, decider.model.config)


def check_measures_progress(model: RewardModel, config: TrainingConfig) -> None:
    """Refuse shaping by a judge that has not learned progress, unless `judge.progress` names a model."""
    if config.reward.shaping and config.judge.config.progress is None and not model.predicts_progress:
        raise JudgeError(
            f"reward.shaping is {config.reward.shaping:g}, but this reward model has not learned progress; set it to "
            "0, or name one that has (judge.progress=runs/progress, which plaudit train-progress makes)"
        )


def describe_judge(config: TrainingConfig) -> tuple[str, ...]:
    """Messages about the judge of a new run; none for the simulator."""
    if config.judge.is_flag_alone:
        return ()
    judge, reward = live_judge(config), config.reward
    shaped = f", shaping {reward.shaping} at gamma {config.learner.gamma}" if reward.shaping else ""
    line = f"judge: {config.judge.name} {judge.id.fingerprint}, {judge.rule.describe()}"
    line += f"; reward: {reward.mode}, {reward.reward_type}{shaped}"
    if isinstance(judge, JudgeWithProgress):
        line += f"; progress: {config.judge.config.progress} {judge.progress.id.fingerprint}"
    if not config.judge.config.needs_certificate:
        return (line,)
    decider = _without_progress(judge)
    certificate = f"certificate: {certificate_status(config.judge.certificate_path, judge.id)[0]}"
    if not isinstance(decider, ClassifierJudge):
        return line, certificate
    cameras = ", ".join(f"{camera} {height}x{width}" for camera, (height, width) in decider.model.cameras.items())
    warnings = _block_warnings(config.reward.reward_model or RewardModelBlock(), decider.model.config)
    return f"{line}; cameras: {cameras}", certificate, *decider.warnings, *warnings


def check_robot_judge(config: TrainingConfig, refusal: str) -> None:
    """Refuse a judge for a robot unless it is forced. refusal: the reason; "" for none"""
    if refusal and not config.simulated and not config.judge.config.force:
        raise JudgeError(f"{config.target_name} is a robot, and {refusal} (or judge.force=true takes it as it is)")


def _check_cameras(wanted: Mapping[str, Size], cameras: Mapping[str, Any], *, any_size: bool) -> None:
    for camera, size in wanted.items():
        shown = cameras.get(name_of_camera(camera, cameras, wanted))
        if shown is None or (tuple(shown) != tuple(size) and not any_size):
            has = "has no such camera" if shown is None else f"shows it in {shown[0]}x{shown[1]}"
            names = (name_of_camera(one, {*cameras, OUR_MAIN_CAMERA}, wanted) for one in wanted)
            raise JudgeError(
                f"the reward model looks at camera '{camera}' in {size[0]}x{size[1]}, and this environment {has}; "
                f"write env.obs=both env.cameras=[{','.join(names)}] env.image_size=[{size[0]},{size[1]}] "
                "policy.cameras=[]"
            )


def _compare_with_block(block: RewardModelBlock, info: RewardModelConfig) -> None:
    """Refuse a network that differs from the recipe's description."""
    shape = info.classifier
    sizes = {(3, *size) for size in (*shape.cameras.values(), *([shape.image_size] if shape.image_size else []))}
    keys, cameras = block.image_keys, shape.cameras
    differ = keys is not None and {name_of_camera(key, cameras, keys) for key in keys} != {*cameras}
    pairs = {
        "image_keys": (list(keys or ()) if differ else None, sorted(shape.cameras)),
        "image_size": (block.image_size and list(block.image_size), [list(size) for size in sorted(sizes)]),
        "hidden_dim": (block.hidden_dim, shape.hidden_dim),
        "num_spatial_blocks": (block.num_spatial_blocks, shape.num_spatial_blocks),
    }
    for name, (described, actual) in pairs.items():
        matches = described in actual if name == "image_size" else described == actual
        if described is not None and not matches:
            raise JudgeError(
                f"the config says that {name} of the reward model is {described}, and the model itself that it is "
                f"{actual}; name the model that is meant, or leave the key out"
            )


def _block_warnings(block: RewardModelBlock, info: RewardModelConfig) -> list[str]:
    """Warnings about keys of a recipe that differ from the model and have no effect."""
    shape, warnings = info.classifier, []
    frozen = info.frozen_encoder or shape.freeze_stem
    for name, described, actual in (
        ("use_pretrain", block.use_pretrain, not shape.global_pool_features),
        ("freeze_encoder", block.freeze_encoder, frozen),
        ("reward_model_type", block.reward_model_type, shape.encoder.type.removesuffix("10")),
    ):
        if described not in (None, actual):
            warnings.append(f"the config says {name} is {described}, the model says {actual}; the model is used")
    if block.pretrained_encoder_path is not None:
        warnings.append(f"{block.pretrained_encoder_path} is not read: the encoder's weights are in the model")
    return warnings


def with_judge(run: RunFolder, overrides: Sequence[str]) -> RunFolder:
    """Resume a run with another judge, which labels its episodes again; the audit restarts.

    Earlier judges are listed in judge/history.jsonl.

    overrides: judge=... and judge.*=...
    """
    if run.config.judge.is_simulator:
        raise JudgeError(
            f"the simulator gives the rewards of {run.path}; start a new run with {' '.join(overrides)} instead"
        )
    config = load_training_config("train", run.path / "config.yaml", overrides)
    judge, state = live_judge(config), run.newest_state()
    step, before = (state["step"], state["judge"]) if state else (0, None)
    history = run.judge / "history.jsonl"
    kept = Folder(run.judge).read(history.name, MAX_JSON) if history.exists() else b""
    lines = kept.decode().splitlines()
    last = lines[-1] if lines else ""
    # Whether the last judge took no step: it was not usable, or the command was killed.
    unused = last.startswith(f'{{"step": {step}, ') and last.endswith(f" {json.dumps(before)}}}")
    if before == judge.id.model and not unused:
        raise JudgeError(f"{run.path} has this judge already ({before}); name another")
    if before == judge.id.model:
        lines.pop()
    elif not unused:
        lines.append(json.dumps({"step": step, "judge": run.config.judge.name, "fingerprint": before}))
    run.judge.mkdir(exist_ok=True)
    write_atomic(history, "".join(f"{line}\n" for line in lines).encode())
    return run.with_config(config)


class EmbodiedRewardWorker(RewardWorker):
    """A `RewardWorker` that also computes the rewards of a rollout, for RLinf's training.

    with EmbodiedRewardWorker(RewardWorkerConfig(checkpoint_path="lift_reward")) as worker:
        rewards = worker.compute_rewards(rollout)        # [T, N]

    A rollout has an order, so several frames have to confirm a success before it is paid. `RewardWorker` scores frames
    one by one.
    """

    def compute_rewards(
        self, rollout: RolloutBatch, config: RewardConfig | None = None, gamma: float = 0.99
    ) -> FloatArray:
        """[T, N]: the rewards of this model for the rollout.

        config: how success is paid; None: as `RewardConfig` has it, with this worker's reward type
        gamma: of the shaping
        """
        steps, num_envs = len(rollout.state) - 1, rollout.state.shape[1]
        detector = SuccessDetector(self.judge, num_envs)
        decided, scores = [], []
        for t, state in enumerate(rollout.state):
            seen = Observation({camera: frames[t] for camera, frames in rollout.images.items()}, state)
            decided.append(detector.step(seen, {}) if t else detector.reset(seen))
            scores.append(detector.scores)
        decisions = Decisions(np.stack(decided), *stack_scores(scores))
        config = RewardConfig(reward_type=self.config.reward_type) if config is None else config
        last = np.arange(steps)[:, None] == rollout.length - 1
        failed = rollout.privileged.get("failure", np.zeros_like(last))
        signal = learning_signal(
            decisions, last & failed, rollout.privileged, config, gamma, terminate_on_success=False, last=last
        )
        return np.where(rollout.valid, signal.reward, np.float32(0))

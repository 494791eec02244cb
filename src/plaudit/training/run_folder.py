"""The folder of a run, the same for `plaudit train` and `plaudit online`.

runs/lift_sac_0/
  config.yaml          the complete config
  metrics.jsonl        a line per rollout or every few seconds, by the names in docs/metrics.md
  events.jsonl         online: started, errors, restarts, judges promoted, alarms, ended
  tensorboard/         the metrics as event files
  tracker_id           how W&B and trackio recognize this run
  checkpoints/         of the learner: the last two, each complete
  episodes/  demos/    stores
  features/            of frames, by the frozen image encoder of the policy; may be deleted
  demo_labels          the judge's labels of the demonstrations
  policy/              the newest policy, as `plaudit run --policy_yaml` takes it; online: versions/, those that acted
  judge/               versions of a judge that is retrained, and why each was promoted or rejected
  judge_replaced_1/    the same, of a judge that the user replaced by another
  videos/              first.mp4 and last.mp4: the policy before it learned anything, and the newest;
                       with W&B or trackio also eval_N.mp4: an evaluation after N steps
  failures.log         tracebacks of workers that failed
  collect_id           where episodes are collected: the name by which that store knows this run
  report.html
"""

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from plaudit.config import dump_yaml, load
from plaudit.data.disk import Folder, disk_errors, sync, write_atomic
from plaudit.data.normalize import Normalizer
from plaudit.data.weights import load_checkpoint, read_state, save_checkpoint
from plaudit.errors import BadFile, ConfigError, TargetNotEmpty
from plaudit.files import Root, read_metrics
from plaudit.policies.loader import WEIGHTS_FILE, save_policy, save_policy_file
from plaudit.protocols import Learner
from plaudit.training.config import Schedule, TrainingConfig
from plaudit.training.trackers import Trackers, Warn
from plaudit.types import PolicyWeights

CHECKPOINTS = "checkpoints"
NUM_CHECKPOINTS = 2  # that are kept

# Keys that may differ when a run is resumed: how long it is, how patiently it waits, where its policy acts, who attends
# and who judges. Labels carry the identity of their judge, so another one may replace it at any time.
MUTABLE_KEYS = (
    *("evaluation", "audit", "judge", "operator", "rerun", "run.max_steps", "run.max_episodes", "run.worker_timeout_s"),
    *("run.max_unlabeled_episodes", "run.max_pending_episodes", "run.trackers"),
    *("policy.device", "policy.inference.execution_horizon"),
)


class RunFolder:
    """The folder of a run and its files."""

    def __init__(self, path: Path, config: TrainingConfig, *, is_new: bool = False):
        """is_new: created by this command"""
        self.path, self.config, self.is_new = path, config, is_new
        self.episodes = path / "episodes"  # a store
        self.demo_labels = path / "demo_labels"  # the judge's labels of the demonstrations
        self.policy = path / "policy"  # the newest
        self.features = path / "features"  # of frames, by a frozen encoder
        self.judge = path / "judge"  # its versions
        self._checkpoints = path / CHECKPOINTS
        self.on_warning: Warn = warnings.warn  # receives problems of trackers, in any thread
        self._trackers = Trackers(path, config.run.trackers, lambda: self.config.model_dump(mode="json"))

    # Opening

    @classmethod
    def create(cls, path: Path, config: TrainingConfig) -> Self:
        """Create a run; a folder that is not empty is refused."""
        if not _is_unused(path):
            raise TargetNotEmpty(
                f"{path} holds a run already; resume it (plaudit {config.schedule} --resume {path}) or give this one "
                "another run.name"
            )
        folder = cls(path, config, is_new=True)
        path.mkdir(parents=True, exist_ok=True)
        folder._write_config()
        return folder

    @classmethod
    def open(cls, path: Path, config: TrainingConfig) -> Self:
        """A new run, or the existing one if its config differs in `MUTABLE_KEYS` only.

        A run that never published weights, because its judge was not found, for example, may be given any config.
        """
        if _is_unused(path):
            return cls.create(path, config)
        before = cls.reopen(path, config.schedule).config
        differing = sorted(_differences(before, config))
        folder = cls(path, config)
        if differing and folder.has_begun:
            raise TargetNotEmpty(
                f"{path} holds a run with another {', '.join(differing)}; resume it as it was (plaudit "
                f"{config.schedule} --resume {path}) or give this one another run.name"
            )
        if before.judge.config != config.judge.config and folder.judge.exists():
            count = sum(1 for _ in path.glob("judge_replaced_*"))
            folder.judge.rename(path / f"judge_replaced_{count + 1}")  # kept, but no version of it is used any more
        folder._write_config()
        return folder

    @classmethod
    def resume_named(cls, folder: Path, config: TrainingConfig) -> Self:
        """The run in `folder`, as a config names it (`run.resume_dir`), if it is the same but for `MUTABLE_KEYS`.

        A synchronous run keeps its judge too: another one has a history to write, see `with_judge` in rollout_judge.py.
        """
        path = _run_of(folder)
        before = cls.reopen(path, config.schedule).config
        differing = _differences(before, config)
        if config.schedule == "train" and before.judge.config != config.judge.config:
            differing.add("judge")
        if differing:
            raise TargetNotEmpty(
                f"run.resume_dir: the run in {path} has another {', '.join(sorted(differing))}, and a run is resumed "
                f"as it was (plaudit {config.schedule} --resume {path}); leave resume_dir out to begin a new run"
            )
        return cls.open(path, config)

    @classmethod
    def reopen(cls, path: Path, schedule: Schedule | None = None) -> Self:
        """Open an existing run. schedule: the required schedule; None: either"""
        if not (path / "config.yaml").is_file():
            command = "plaudit train or plaudit online" if schedule is None else f"plaudit {schedule}"
            raise BadFile(path, f"this is not a run: it has no config.yaml; runs are made by {command}")
        Folder(path).check_no_links()  # whoever resumes it writes into it, and removes old checkpoints
        config = load(TrainingConfig, path / "config.yaml", root=Root(path))
        if schedule not in (None, config.schedule):
            wrong = f"{path} is a run of 'plaudit {config.schedule}', not of 'plaudit {schedule}'"
            raise ConfigError([((), f"{wrong}; resume it with that command, or name a new run with run.name=NAME")])
        return cls(path, config)

    def with_config(self, config: TrainingConfig) -> Self:
        """The same run with another config, which is written."""
        folder = type(self)(self.path, config)
        folder._write_config()
        return folder

    def discard_if_empty(self) -> None:
        """Remove a run that this command created and that never got to its loop."""
        if self.is_new and not self.has_begun:
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def has_begun(self) -> bool:
        """Whether there is something to resume."""
        return (self.policy / WEIGHTS_FILE).exists() or self._checkpoints.exists()

    def _write_config(self) -> None:
        tree = self.config.model_dump(mode="json")
        write_atomic(self.path / "config.yaml", dump_yaml(tree).encode())

    @property
    def demo_store(self) -> Path | None:
        """The store of demonstrations; None where there are none."""
        demos = self.config.demos
        return self.path / "demos" if demos.scripted else demos.store

    # Writing

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics by the names in docs/metrics.md."""
        with disk_errors(self.path, "these metrics were not logged"):
            Folder(self.path).append("metrics.jsonl", (json.dumps({"step": step, **metrics}) + "\n").encode())
        self._trackers.log(step, metrics, self.on_warning)

    def log_video(self, step: int, video: bytes) -> None:
        """Episodes of the evaluation at a step, as an MP4 file that is kept and sent to the trackers."""
        path = self.path / "videos" / f"eval_{step:012d}.mp4"
        with disk_errors(self.path, "the video of this evaluation was not kept"):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, video)
        self._trackers.log_video(step, path, self.on_warning)

    def metrics(self) -> list[dict[str, float]]:
        """The lines that were logged."""
        return read_metrics(self.path / "metrics.jsonl")

    def save_policy(self, config: BaseModel, weights: PolicyWeights | None = None) -> None:
        """Save the newest policy. weights: None: published by the state manager"""
        named = self.config.policy.normalizer
        normalizer = None if named is None else Normalizer.load(named)
        if weights is None:
            save_policy_file(self.policy, config, normalizer)
        else:
            save_policy(self.policy, config, weights, normalizer)

    def close(self) -> None:
        """Close the trackers; can be called again."""
        self._trackers.close()

    # Checkpoints

    def save_checkpoint(self, step: int, learner: Learner, state: Mapping[str, Any]) -> None:
        """Save a checkpoint and remove old ones. state: what the run needs besides the learner, as JSON"""
        if (metrics := self.path / "metrics.jsonl").exists():
            sync(metrics)  # a run that resumes here does not compute earlier metrics again
        name, newest = f"{step:012d}", _newest_checkpoint(self._checkpoints)
        if newest is not None and newest.stem == name:  # the older one stays until the new one is complete
            name += f".{int(newest.suffix[1:] or 0) + 1:03d}"
        save_checkpoint(self._checkpoints / name, learner, state)
        for old in sorted(self._checkpoints.glob("[0-9]*"))[:-NUM_CHECKPOINTS]:
            shutil.rmtree(old)

    def load_checkpoint(self, learner: Learner) -> dict[str, Any] | None:
        """Put the learner into the state of the newest checkpoint; returns the run's, None where there is none yet."""
        newest = _newest_checkpoint(self._checkpoints)
        return load_checkpoint(newest, learner) if newest else None

    def resume(self, learner: Learner) -> dict[str, Any] | None:
        """The same, to continue from there: metrics of later steps are removed."""
        state = self.load_checkpoint(learner)
        step = state["step"] if state else -1
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        with disk_errors(self.path, "its metrics were left as they are"):
            write_atomic(self.path / "metrics.jsonl", "".join(kept).encode())
        return state

    def newest_state(self) -> dict[str, Any] | None:
        """The run's state in the newest checkpoint, without the learner's."""
        newest = _newest_checkpoint(self._checkpoints)
        return read_state(newest) if newest else None


def _run_of(folder: Path) -> Path:
    """The run that a config means: its folder, or its newest checkpoint."""
    if folder.parent.name == CHECKPOINTS and folder.is_dir():
        path = folder.parent.parent
        newest = _newest_checkpoint(folder.parent)
        if (path / "config.yaml").is_file() and newest is not None and newest.name != folder.name:
            raise BadFile(
                folder, f"a run is resumed from its newest checkpoint, {newest.name}; write resume_dir: {path}"
            )
    else:
        path = folder.parent if folder.name == CHECKPOINTS else folder
    if not (path / "config.yaml").is_file():
        raise BadFile(
            folder,
            "resume_dir must name the folder of a Plaudit run, and this is not one (a checkpoint of another stack is "
            "not read); leave it out to begin a new run",
        )
    return path


def _newest_checkpoint(folder: Path) -> Path | None:
    return max(folder.glob("[0-9]*"), default=None)


def _flat(config: TrainingConfig) -> dict[str, Any]:
    """`env`, `learner`, ... and `run.seed`, `run.capacity_gb`, ...: the config by the keys that may differ or not."""
    tree = config.model_dump(mode="json")
    run, policy = tree.pop("run"), tree["policy"]
    acting = {
        "policy.device": policy.pop("device"),
        "policy.inference.execution_horizon": policy["inference"].pop("execution_horizon"),
    }
    return {**tree, **acting, **{f"run.{key}": value for key, value in run.items()}}


def _is_unused(path: Path) -> bool:
    """Whether a folder holds nothing, or what is left of a command that was killed before it wrote the config."""
    return not path.exists() or all(entry.name == "config.yaml.tmp" for entry in path.iterdir())


def _differences(before: TrainingConfig, after: TrainingConfig) -> set[str]:
    one, other = _flat(before), _flat(after)
    return {key for key in {*one, *other} - set(MUTABLE_KEYS) if one.get(key) != other.get(key)}

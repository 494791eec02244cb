"""The folder of an online run.

runs/sim_sac_0/
  config.json           what was asked, complete
  episodes/             what the robot did: a store, with the judge's labels
  demos.labels          what the judge says of the demonstrations
  weights/              the newest version that was published
  checkpoints/          of the learner: the last two, each whole
  judges/               reward models that were trained meanwhile, and why each was taken or refused
  judges_before_1/      the same, of a judge that another was named in place of
  metrics.jsonl         a line every few seconds
  chronicle.jsonl       what happened, in sentences
  failures.log          tracebacks of parts that failed in a way that nobody foresaw
  tensorboard/          the same as event files
  units.json            on a robot: what the learner's actions from -1 to 1 are
  policy.yaml  policy.safetensors  normalizer.json    the newest policy, as `plaudit run` takes it
  report.html
"""

import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic

from plaudit.config import load
from plaudit.data.journal import write_atomic
from plaudit.data.normalize import Normalizer
from plaudit.errors import BadFile, ConfigError, TargetNotEmpty
from plaudit.plain import plain
from plaudit.policies.loader import save_policy
from plaudit.policies.weights import read_weights
from plaudit.training.normalization import with_units
from plaudit.training.online_config import ConfigT
from plaudit.training.record import Record
from plaudit.untrusted import understood


class OnlineFolder(Record, Generic[ConfigT]):
    def __init__(self, path: Path, config: ConfigT):
        super().__init__(path)
        self.config = config
        self._new = False  # made by this very command

    @classmethod
    def open(cls, path: Path, config: ConfigT) -> "OnlineFolder[ConfigT]":
        """A new run, or the one that is there if it was asked for in the same words; only its length may differ, and
        who judges.

        One that never got to its first weights, for a judge that was not found or the like, may be asked for anew.
        """
        if not path.exists() or not any(path.iterdir()):
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, config)
            folder._write_config()
            folder._new = True
            return folder
        before = cls.reopen(path, type(config)).config
        differing = sorted(_differing(before.model_dump(mode="json"), config.model_dump(mode="json")))
        if differing and _has_begun(path):
            raise TargetNotEmpty(
                f"{path} holds a run with another {', '.join(differing)}; go on with it as it was (plaudit online "
                f"--resume {path}) or give this one a name="
            )
        folder = cls(path, config)
        if before.judge != config.judge:
            folder._leave_judges()
        folder._write_config()
        return folder

    def settle_units(self) -> None:
        """From here on the config says what actions from -1 to 1 are on the robot."""
        self.config = with_units(self.config, self.path)

    def take_back(self) -> None:
        """Of a run that never got to its loop, for a robot that was not found or the like, nothing is left; what was
        there before this command stays."""
        if self._new and not _has_begun(self.path):
            shutil.rmtree(self.path, ignore_errors=True)

    def _leave_judges(self) -> None:
        """Successors of a judge that is not asked any more are kept, and none of them is in charge."""
        judges = self.path / "judges"
        if judges.exists():
            count = sum(1 for _ in self.path.glob("judges_before_*"))
            judges.rename(self.path / f"judges_before_{count + 1}")

    @classmethod
    def reopen(cls, path: Path, kind: type[ConfigT]) -> "OnlineFolder[ConfigT]":
        if not (path / "config.json").is_file():
            raise BadFile(
                path, "this is not an online run: it has no config.json; such runs are made by 'plaudit online'"
            )
        try:
            config = load(kind, path / "config.json")
        except ConfigError as error:
            if {("robot",), ("judge",)} <= {where for where, _ in error.problems}:
                raise BadFile(path, "this is a run, and not an online one; it may be one of 'plaudit train'") from None
            raise
        return cls(path, config)

    def _write_config(self) -> None:
        write_atomic(self.path / "config.json", self.config.model_dump_json(indent=1).encode())

    def last(self) -> dict[str, Any]:
        """What an earlier sitting told last, as `Now` has it."""
        lines = self.metrics()
        if not lines:
            return {}
        evaluated = [line["eval/success"] for line in lines if "eval/success" in line]
        with understood(self.path / "metrics.jsonl"):
            return {"seconds": lines[-1]["time/seconds"], "evaluated": evaluated[-1] if evaluated else None}

    @property
    def tracebacks(self) -> Path:
        return self.path / "failures.log"

    def keep_traceback(self, sentence: str, details: str) -> None:
        """For whoever mends what failed."""
        with suppress(OSError), self.tracebacks.open("a") as file:  # a full disk may be what failed
            file.write(plain(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {sentence}\n{details.rstrip()}\n\n"))

    def save_policy(self, policy: Any) -> Path:
        """The newest published weights and what builds them into a policy."""
        units = None if self.config.units is None else Normalizer.load(self.config.units)
        return save_policy(self.path, policy, read_weights(self.path / "weights" / "current.safetensors"), units)


def _has_begun(path: Path) -> bool:
    return (path / "weights" / "current.safetensors").exists() or (path / "checkpoints").exists()


# How long, how patiently and by whom it is judged: labels know their judge, so another may take over at any time.
MAY_DIFFER = ("episodes", "evaluation", "patience", "backlog", "ahead", "judge", "audit", "retrain", "window")


def _differing(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    keys = {*before, *after} - set(MAY_DIFFER)
    return {key for key in keys if before.get(key) != after.get(key)}

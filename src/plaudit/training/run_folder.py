"""The folder of a run: its config, metrics, checkpoints, episodes and report.

runs/lift_sac_0/
  config.json           what was asked, complete
  metrics.jsonl         one line a round and one an evaluation
  tensorboard/          the same as event files
  checkpoints/          the last two, each whole
  episodes/  demos/     stores
  policy.safetensors    the actor's weights of the newest evaluation
  policy.yaml           what a robot builds to act with them
  first.mp4  last.mp4   the policy before it learned anything, and the newest
  demos.labels          with a reward model in charge: what it says of the demonstrations
  reward_models.jsonl   those that were in charge before the one in config.json, and up to which step
  collecting            where episodes are collected: the name by which the store knows this run
  report.html
"""

import json
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel

from plaudit.config import load
from plaudit.data.journal import write_atomic
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, JudgeError, TargetNotEmpty
from plaudit.policies.loader import save_policy
from plaudit.training.config import TrainConfig
from plaudit.training.record import Record
from plaudit.training.reward import introduced, learned_judge
from plaudit.types import PolicyWeights


def open_demos(config: TrainConfig) -> Store | None:
    """The store that is named in the config. A reward model needs no labels there, it gives its own."""
    if config.demos is None:
        return None
    store = Store.open(config.demos)
    if not len(store.ledger) and config.reward.model_path is None:
        raise DataError(f"{config.demos} has no labels; label it first (plaudit data label)")
    return store


class RunFolder(Record):
    """Where a run writes."""

    def __init__(self, path: Path, config: TrainConfig):
        super().__init__(path)
        self.config = config

    @classmethod
    def create(cls, path: Path, config: TrainConfig) -> "RunFolder":
        if path.exists() and any(path.iterdir()):
            raise TargetNotEmpty(
                f"{path} holds a run already; go on with it (plaudit train --resume {path}) or give this one a name="
            )
        run = cls(path, config)
        run.check()
        path.mkdir(parents=True, exist_ok=True)
        run._write_config()
        return run

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        if not (path / "config.json").is_file():
            raise BadFile(path, "this is not a run: it has no config.json; runs are made by 'plaudit train'")
        return cls(path, load(TrainConfig, path / "config.json"))

    def check(self) -> None:
        """Tell a mistake before anything is made."""
        open_demos(self.config)
        if self.config.collect is not None:
            self.config.collect.check()
        _ = self.introduction

    @cached_property
    def introduction(self) -> tuple[str, ...]:
        """The reward model in charge and what to know of it, in sentences; () where there is none."""
        return introduced(self.config)

    def hand_over(self, model: Path) -> "RunFolder":
        """Put another reward model in charge from the newest checkpoint on; returns the run as it is to go on.

        What the last one judged, this one then judges again, and the alarm begins anew.
        """
        before = self.config.reward
        if before.model_path is None:
            raise JudgeError(
                f"the simulator gives the rewards of {self.path}; begin a new run with reward.model={model}"
            )
        named = before.model_copy(update={"model": model, "reward_model": None, "resnet": None})
        after = RunFolder(self.path, self.config.model_copy(update={"reward": named}))
        after.check()
        facts = self.newest_facts()
        fingerprint = facts["referee"]["model"] if facts else None
        if fingerprint == learned_judge(after.config, "cpu").model.fingerprint:
            raise JudgeError(f"{model} is the reward model that is in charge of {self.path} already; train another")
        past = {"step": facts["step"] if facts else 0, "model": str(before.model_path), "fingerprint": fingerprint}
        history = self.path / "reward_models.jsonl"
        lines = history.read_text().splitlines() if history.exists() else []
        if json.dumps(past) not in lines[-1:]:  # it is, where this was killed before the next line
            write_atomic(history, "".join(f"{line}\n" for line in (*lines, json.dumps(past))).encode())
        after._write_config()
        return after

    def _write_config(self) -> None:
        write_atomic(self.path / "config.json", self.config.model_dump_json(indent=1).encode())

    def save_policy(self, config: BaseModel, weights: PolicyWeights) -> None:
        save_policy(self.path, config, weights)

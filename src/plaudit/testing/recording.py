"""A recording session: `plaudit record` itself, with a person at the device and one at the keys.

recorder = Recorder(config, folder, episodes=6, seed=7)
recorder.session()           # "" when the store has all episodes; else why the command ended before
recorder.check(world)
"""

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

from plaudit.cli.common import err, out
from plaudit.cli.record import record
from plaudit.data.store import Store, is_store
from plaudit.rollout.operator import MARK, Operator, OperatorCommand
from plaudit.rollout.recording import DISCARDED, LABELED, discarded_folder
from plaudit.testing.env import SimulatedEnvConfig
from plaudit.testing.faults import attending
from plaudit.testing.people import TELEOP
from plaudit.testing.world import World
from plaudit.training.config import TrainingConfig
from plaudit.types import HUMAN, OPERATOR


class Recorder:
    """The command, which may be run again in the same folder."""

    fired = False  # no worker can fail

    def __init__(self, config: TrainingConfig, folder: Path, episodes: int, seed: int):
        self._config, self._folder, self._episodes, self._seed = config, folder, episodes, seed
        self._operator: Operator | None = None

    def operate(self, command: OperatorCommand) -> None:
        """Somebody presses a key."""
        if self._operator is not None:
            self._operator.send(command)

    def close(self) -> None: ...

    def session(self) -> str:
        """Run the command; returns why it ended early, "" if the store is complete."""
        said: list[str] = []

        def attended(*args: Any) -> Operator:
            self._operator = attending(*args)
            return self._operator

        with ExitStack() as stack:
            stack.enter_context(patch("plaudit.rollout.operator.Operator", attended))
            stack.enter_context(patch("plaudit.rollout.operator.has_terminal", lambda: True))
            stack.enter_context(patch("plaudit.rollout.operator.listen_at_terminal", lambda *_: nullcontext()))
            stack.enter_context(patch.object(out, "print", lambda *_, **__: None))
            stack.enter_context(patch.object(err, "print", lambda text: said.append(str(text))))
            try:
                record(self._folder, self._words(), **self._options())
            except typer.Exit:
                return said[-1]
            finally:
                self._operator = None
        return ""

    def _options(self) -> dict[str, Any]:
        attended = self._config.operator.auto is False
        steps = self._config.policy.inference.max_episode_steps
        options = {"teleop": TELEOP, "episodes": self._episodes, "steps": steps, "seed": self._seed}
        return {**options, "auto": not attended, "countdown": 0, "view": "none"}

    def _words(self) -> list[str]:
        """The keys as a user would write them."""
        config, kind = self._config, f"{SimulatedEnvConfig.__module__}:{SimulatedEnvConfig.__name__}"
        trees = {"robot.env": config.env.model_dump(mode="json"), "teleop": {"helps": 1.0}}
        if config.teleop is not None:
            trees["teleop"] |= config.teleop.model_dump(mode="json")
        words = [f"{key}.{name}={json.dumps(value)}" for key, tree in trees.items() for name, value in tree.items()]
        patience, gate = config.policy.inference.patience_s, json.dumps(config.operator.gate)
        inference = ["policy.inference.realtime=false", f"policy.inference.patience_s={patience}"]
        return [f"robot.env.type={kind}", *inference, f"operator.gate={gate}", *words]

    def check(self, world: World) -> None:
        """The store has as many episodes as were asked for, each by a person, with a seed and the mark of its own."""
        store, seeds = Store.open(self._folder), set[int]()
        message = f"{len(store)} episodes are recorded, {self._episodes} were asked for"
        world.check(len(store) == self._episodes, "recorded", message)
        for i, episode in store:
            mark, label = episode.meta.get(MARK), store.ledger.labels(i, {OPERATOR})
            said = None if label is None else OperatorCommand.SUCCESS if label.success_once else OperatorCommand.FAILURE
            message = f"episode {i} is marked '{mark}', and its label is '{said}'"
            world.check(said == (mark if mark in LABELED else None), "recorded", message)
            world.check(mark not in DISCARDED, "recorded", f"episode {i} was discarded, and is kept")
            world.check((episode.control_mode == HUMAN).all(), "recorded", f"episode {i} has steps of no person")
            seed = episode.meta["seed"]
            world.check(seed not in seeds, "recorded", f"episode {i} has seed {seed}, which an earlier one has too")
            seeds.add(seed)
        if is_store(folder := discarded_folder(self._folder)):
            for i, episode in Store.open(folder):
                mark = episode.meta.get(MARK)
                world.check(mark in DISCARDED, "recorded", f"episode {i} is put aside with the mark '{mark}'")

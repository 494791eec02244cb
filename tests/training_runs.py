"""Synchronous runs, as the command makes them."""

from pathlib import Path

from plaudit.training.config import TrainingConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import Callback, RunState, ShouldStop, Trainer, check_run


def train_config(words: str) -> TrainingConfig:
    """From KEY=VALUE words."""
    return load_training_config("train", None, words.split())


def create(folder: Path, words: str) -> RunFolder:
    """A new run, if it can be."""
    config = train_config(words)
    check_run(config)
    return RunFolder.create(folder, config)


def train(run: RunFolder, callback: Callback = lambda _: True, should_stop: ShouldStop = lambda: False) -> RunState:
    """To its end, or until one of the two says so."""
    with Trainer(run, lambda _: iter) as trainer:
        return trainer.run(callback, should_stop)

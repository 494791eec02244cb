"""Trackers that are missing, fail or are slow; tests/tools has those with the packages themselves."""

import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event

import pytest

from plaudit.errors import ConfigError, MissingExtra
from plaudit.training import trackers
from plaudit.training.run_folder import RunFolder
from training_runs import create, train, train_config

WORDS = (
    "learner=sac env=lift env.max_steps=8 run.num_envs=2 run.max_steps=48 learner.utd_ratio=0.1 "
    "learner.hidden_dims=[16] evaluation.freq=16 evaluation.episodes=2"
)


class Recorder:
    """A tracker that keeps what it receives, and raises at a step."""

    def __init__(self, fails_at: int | None = None):
        self.fails_at, self.steps, self.videos, self.closed = fails_at, [], [], False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("the server is gone\nwith details")
        self.steps.append(step)

    def log_video(self, step: int, video: Path) -> None:
        self.videos.append(video)

    def close(self) -> None:
        self.closed = True


def tracked(recorder: Recorder, warnings: list[str]) -> trackers.BackgroundTracker:
    return trackers.BackgroundTracker("wandb", lambda: recorder, warnings.append)


def test_a_tracker_receives_everything_in_order_before_it_is_closed():
    recorder, warnings = Recorder(), []
    tracker = tracked(recorder, warnings)
    for step in range(100):
        tracker.log(step, {"loss": 1.0})
    tracker.log_video(99, Path("video.mp4"))
    tracker.close()
    assert recorder.steps == list(range(100)) and recorder.videos == [Path("video.mp4")]
    assert recorder.closed and not warnings


def test_a_tracker_that_fails_gives_one_warning_and_receives_nothing_more():
    recorder, warnings = Recorder(fails_at=3), []
    tracker = tracked(recorder, warnings)
    for step in range(10):
        tracker.log(step, {})
    tracker.close()
    tracker.log(11, {})
    assert recorder.steps == [0, 1, 2]
    assert warnings == [
        "tracker wandb: ConnectionError: the server is gone; it receives nothing more. The run continues, and "
        "metrics.jsonl is complete"
    ]


def test_a_tracker_that_hangs_holds_up_neither_the_run_nor_its_end(monkeypatch):
    monkeypatch.setattr(trackers, "MAX_PENDING", 5)
    monkeypatch.setattr(trackers, "CLOSE_TIMEOUT_S", 0.05)
    reached, warnings = Event(), []

    def hang() -> Recorder:
        reached.wait()
        return Recorder()

    tracker = trackers.BackgroundTracker("trackio", hang, warnings.append)
    for step in range(20):
        tracker.log(step, {})
    tracker.close()
    reached.set()
    assert len(warnings) == 1 and "5 entries behind" in warnings[0]


def test_a_missing_package_is_reported_before_the_run_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    run = create(tmp_path / "run", f"{WORDS} run.trackers=[tensorboard,trackio]")
    with pytest.raises(MissingExtra, match=r"trackio is not installed; run: pip install 'plaudit\[trackio\]'"):
        train(run)
    assert not run.has_begun


def test_an_unknown_tracker_is_refused():
    with pytest.raises(ConfigError, match="tensorboard"):
        train_config("env=lift learner=sac run.trackers=[mlflow]")


def test_a_run_sends_metrics_and_videos_and_one_warning_of_a_tracker_that_fails(tmp_path, monkeypatch):
    recorder, warnings = Recorder(fails_at=-1), []
    monkeypatch.setitem(trackers.REMOTE, "trackio", lambda *run: recorder)
    monkeypatch.setitem(trackers.REMOTE, "wandb", lambda *run: 1 / 0)
    monkeypatch.setattr("plaudit.training.trainer.check_trackers", lambda names: None)  # their packages are not used
    run = create(tmp_path / "run", f"{WORDS} run.trackers=[wandb,trackio]")
    run.on_warning = warnings.append
    state = train(run)
    assert len(warnings) == 1 and "tracker wandb: ZeroDivisionError" in warnings[0]
    assert set(recorder.steps) == {int(line["step"]) for line in run.metrics()}
    assert recorder.videos[-1] == run.path / f"videos/eval_{state.step:012d}.mp4" and recorder.closed
    assert len(recorder.videos) == sum("eval/success_once" in line for line in run.metrics()) == 3
    assert all(video.read_bytes()[4:8] == b"ftyp" for video in recorder.videos)
    assert not (run.path / "tensorboard").exists()

    alone = create(tmp_path / "alone", f"{WORDS} run.trackers=[]")  # filming changes nothing that is learned
    train(alone)
    assert curve(alone) == curve(run)


def curve(run: RunFolder) -> list[dict[str, float]]:
    return [{name: value for name, value in line.items() if "time/" not in name} for line in run.metrics()]

"""Runs that W&B and trackio record on this machine: what is read back from their files."""

import json
from typing import Any

import pytest

from plaudit.errors import ConfigError
from plaudit.training.run_folder import RunFolder
from plaudit.training.trackers import TRACKER_ID, check_trackers
from training_runs import create, train

WORDS = (
    "learner=sac env=lift env.max_steps=8 run.num_envs=2 run.max_steps=32 learner.utd_ratio=0.1 "
    "learner.hidden_dims=[16] evaluation.freq=16 evaluation.episodes=2 run.trackers=[wandb,trackio]"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunFolder:
    """A short run, and then a session that makes it longer."""
    from trackio import utils

    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        for module in ("trackio.utils", "trackio.sqlite_storage", "trackio.run", "trackio.media.utils"):
            for name, path in (("TRACKIO_DIR", folder / "trackio"), ("MEDIA_DIR", folder / "trackio/media")):
                patch.setattr(f"{module}.{name}", path, raising=False)
        assert folder / "trackio" == utils.TRACKIO_DIR
        made, warnings = create(folder / "run", WORDS), []
        made.on_warning = warnings.append
        train(made)
        longer = made.config.model_copy(update={"run": made.config.run.model_copy(update={"max_steps": 64})})
        resumed = RunFolder.reopen(made.path).with_config(longer)
        resumed.on_warning = warnings.append
        train(resumed)
        assert not warnings
        yield resumed


def records_of_wandb(run: RunFolder) -> list[dict[str, Any]]:
    """The history of all sessions, as `wandb sync` would upload it."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    lines = []
    for file in sorted((run.path / "wandb").glob("offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                lines.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return lines


def test_wandb_has_every_metric_and_a_video_of_each_evaluation(run: RunFolder):
    lines = records_of_wandb(run)
    logged = {(line["step"], name): line[name] for line in lines for name in line if not name.startswith("_")}
    for line in run.metrics():
        for name, value in line.items():
            if not name.startswith("time/"):
                assert logged[line["step"], name] == pytest.approx(value), name
    videos = [line for line in lines if "eval/video" in line]
    assert len(videos) == len([line for line in run.metrics() if "eval/success_once" in line]) >= 2
    assert len(list((run.path / "wandb").glob("offline-run-*/files/media/videos/eval/*.mp4"))) == len(videos)


def test_wandb_takes_both_sessions_for_the_same_run(run: RunFolder):
    ids = {path.stem.removeprefix("run-") for path in (run.path / "wandb").glob("offline-run-*/*.wandb")}
    assert ids == {(run.path / TRACKER_ID).read_text()}


def test_trackio_has_every_metric_of_both_sessions_in_one_run(run: RunFolder):
    from trackio.sqlite_storage import SQLiteStorage

    name = f"run-{(run.path / TRACKER_ID).read_text()}"
    assert [one["name"] if isinstance(one, dict) else one for one in SQLiteStorage.get_runs("plaudit")] == [name]
    lines = SQLiteStorage.get_logs("plaudit", name)
    logged = {(line["step"], key): value for line in lines for key, value in line.items()}
    for line in run.metrics():
        for key, value in line.items():
            if key != "step" and not key.startswith("time/"):
                assert logged[line["step"], key] == pytest.approx(value), key
    assert len([line for line in lines if "eval/video" in line]) >= 2


def test_a_run_without_an_api_key_is_refused_instead_of_asking_for_one(monkeypatch, tmp_path):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()
    with pytest.raises(ConfigError, match="wandb login"):
        check_trackers(("wandb",))
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    check_trackers(("wandb",))

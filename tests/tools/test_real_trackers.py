"""What W&B and trackio record on this machine, read back from their files."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plaudit.data.disk import Folder
from plaudit.errors import ConfigError, NotAllowed
from plaudit.report.video import EpisodeClip, save_grid_video
from plaudit.training.config_file import load_training_config
from plaudit.training.trackers import TRACKER_ID, Trackers, check_trackers
from plaudit.trust import allow_host, is_allowed_host

SESSIONS = (  # the second one resumes from step 16
    {16: {"loss": 4.0}, 32: {"loss": 3.0, "eval/success_once": 0.5}},
    {32: {"loss": 2.0}, 48: {"loss": 1.0, "eval/success_once": 1.0}},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run with two sessions; each logs a video."""
    folder = tmp_path_factory.mktemp("tracked")
    video, warnings = folder / "video.mp4", []
    clip = EpisodeClip(np.zeros((3, 32, 32, 3), np.uint8), np.zeros(3, bool), None, np.zeros(3))
    save_grid_video(video, [clip], 10.0)
    (folder / "run").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.delenv("WANDB_DIR", raising=False)
        assert "trackio" not in sys.modules  # reads its folder when it is imported
        patch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        check_trackers(("wandb", "trackio"))  # imports them
        for session in SESSIONS:
            trackers = Trackers(folder / "run", ("wandb", "trackio"), lambda: {"learner": {"type": "sac"}})
            for step, metrics in session.items():
                trackers.log(step, metrics, warnings.append)
            trackers.log_video(max(session), video, warnings.append)
            trackers.close()
        assert not warnings, warnings
        yield folder / "run"


def records(file: Path) -> Iterator[Any]:
    """What W&B wrote: records in the log format of LevelDB, in blocks of 32 KB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def lines_of_wandb(run: Path) -> list[dict[str, Any]]:
    """The history of all sessions, as `wandb sync` would upload it."""
    lines = []
    for file in sorted((run.parent / "wandb").glob("offline-run-*/*.wandb")):
        for record in records(file):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                lines.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return lines


def metrics_of(lines: list[dict[str, Any]]) -> list[tuple[int, dict[str, float]]]:
    names = ("loss", "eval/success_once")
    return [(line["step"], {n: line[n] for n in names if n in line}) for line in lines if "loss" in line]


def test_wandb_has_every_metric_of_both_sessions_by_its_step(run: Path):
    lines = lines_of_wandb(run)
    assert metrics_of(lines) == [pair for session in SESSIONS for pair in session.items()]
    assert [line["step"] for line in lines if "eval/video/path" in line] == [32, 48]
    assert len(list((run.parent / "wandb").glob("offline-run-*/files/media/videos/eval/*.mp4"))) == 2


def test_wandb_takes_both_sessions_for_the_same_run(run: Path):
    ids = {path.stem.removeprefix("run-") for path in (run.parent / "wandb").glob("offline-run-*/*.wandb")}
    assert ids == {(run / TRACKER_ID).read_text()}


def test_a_run_resumes_with_the_files_of_wandb_in_its_folder(run: Path):
    Folder(run).check_no_links()


def test_trackio_has_every_metric_of_both_sessions_in_one_run(run: Path):
    from trackio.sqlite_storage import SQLiteStorage

    name = f"run-{(run / TRACKER_ID).read_text()}"
    assert [one["name"] if isinstance(one, dict) else one for one in SQLiteStorage.get_runs("plaudit")] == [name]
    lines = SQLiteStorage.get_logs("plaudit", name)
    assert metrics_of(lines) == [pair for session in SESSIONS for pair in session.items()]
    assert [line["step"] for line in lines if "eval/video" in line] == [32, 48]


def test_a_run_without_an_api_key_is_refused_instead_of_asking_for_one(monkeypatch, tmp_path):
    import wandb

    allow_host("wandb.ai")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()
    with pytest.raises(ConfigError, match="wandb login"):
        check_trackers(("wandb",))
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()
    check_trackers(("wandb",))


@pytest.mark.parametrize(("variable", "value", "host"), [
    ("WANDB_MODE", "online", "wandb.ai"), ("TRACKIO_SPACE_ID", "lab/runs", "huggingface.co"),
])  # fmt: skip
def test_a_file_of_others_alone_sends_nothing_to_a_server(monkeypatch, tmp_path, variable, value, host):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv(variable, value)
    wandb.teardown()
    name = "wandb" if host == "wandb.ai" else "trackio"
    file = tmp_path / "theirs.yaml"
    file.write_text(f"env: {{type: lift}}\nlearner: {{type: sac}}\nrun: {{trackers: [{name}]}}\n")
    config = load_training_config("train", file, [])
    with pytest.raises(NotAllowed, match=rf"--allow-host {host}"):
        check_trackers(config.run.trackers)
    load_training_config("train", file, [f"run.trackers=[{name}]"])  # typed
    assert is_allowed_host(host)

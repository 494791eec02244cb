"""Run folders and models from somebody else: links are not followed, pipes and devices are not opened."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import glow
from plaudit.errors import BadFile, ForeignFile
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.config import save_own_judge
from plaudit.judges.epochs import prepare_work
from plaudit.report.page import write_page
from plaudit.report.run import write_run_report
from plaudit.report.verdict import Verdict
from plaudit.report.video import EpisodeClip, save_grid_video
from plaudit.rule import DecisionRule
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.labelers import JudgeBundle

SECRET = "the only copy of somebody's thesis"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/thesis").write_text(SECRET)
    return tmp_path / "elsewhere/thesis"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    config = load_training_config("train", None, ["env=lift", "learner=ppo"])
    folder = RunFolder.create(tmp_path / "run", config)
    folder.log(10, {"time/elapsed_s": 1.0, "rollout/episodes": 1})
    folder.close()  # or its thread goes on writing
    (folder.path / "videos").mkdir()
    return folder


@pytest.mark.parametrize(
    "name", ["report.html", "metrics.jsonl", "events.jsonl", "videos/first.mp4", "videos/last.mp4"]
)
def test_a_link_in_a_run_folder_is_neither_read_nor_written(run: RunFolder, secret: Path, name: str):
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(secret)
    for use in (lambda: write_run_report(run.path), lambda: RunFolder.reopen(run.path)):
        with pytest.raises(ForeignFile, match=f"{name} is a link and not a file; it was not opened"):
            use()
    assert secret.read_text() == SECRET
    assert name == "report.html" or not (run.path / "report.html").exists()


@pytest.mark.parametrize("name", ["videos", "checkpoints", "policy", "judge"])
def test_a_linked_folder_in_a_run_folder_is_refused(run: RunFolder, secret: Path, name: str):
    if (run.path / name).exists():
        (run.path / name).rmdir()
    (run.path / name).symlink_to(secret.parent)
    with pytest.raises(ForeignFile, match=f"{name} is a link and not a file"):
        RunFolder.reopen(run.path)


@pytest.mark.parametrize("kind", ["pipe", "device", "huge file"])
def test_a_video_that_never_ends_does_not_stop_a_report(run: RunFolder, kind: str):
    video = run.path / "videos/first.mp4"
    if kind == "pipe":
        os.mkfifo(video)
    elif kind == "device":
        video.symlink_to("/dev/zero")
    else:
        video.touch()
        os.truncate(video, 1 << 40)
    with pytest.raises(ForeignFile, match=r"first.mp4 (is a pipe|is a link|has 1,099,511,627,776 bytes; the limit)"):
        write_run_report(run.path)


def test_metrics_are_not_appended_through_a_link_that_appeared_later(run: RunFolder, secret: Path):
    (run.path / "metrics.jsonl").unlink()
    (run.path / "metrics.jsonl").symlink_to(secret)
    with pytest.raises(ForeignFile, match="is a link and not a file"):
        run.log(20, {})
    assert secret.read_text() == SECRET


def test_pages_videos_and_judge_files_replace_a_link(tmp_path: Path, secret: Path):
    for name in ("page.html", "film.mp4", "judge.yaml"):
        (tmp_path / name).symlink_to(secret)
    write_page(tmp_path / "page.html", "title", Verdict("Usable.", "Why.", "Next"), [])
    clip = EpisodeClip(np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, bool), None, np.zeros(2, np.float32))
    save_grid_video(tmp_path / "film.mp4", [clip], fps=10.0)
    save_own_judge(tmp_path, DecisionRule())
    assert secret.read_text() == SECRET
    assert not any((tmp_path / name).is_symlink() for name in ("page.html", "film.mp4", "judge.yaml"))


def test_a_training_is_not_resumed_in_a_work_folder_with_links(tmp_path: Path, secret: Path):
    prepare_work(tmp_path / "work", {"seed": 0})
    (tmp_path / "work/features.front").symlink_to(secret)
    with pytest.raises(ForeignFile, match=r"features.front is a link"):
        prepare_work(tmp_path / "work", {"seed": 0})
    assert secret.read_text() == SECRET


def test_a_link_in_a_models_folder_is_not_sent_to_other_machines(tmp_path: Path, secret: Path):
    glow.saved(glow.bright_model(0.8), tmp_path / "model")
    (tmp_path / "model/notes.txt").symlink_to(secret)
    with pytest.raises(BadFile, match=r"notes.txt: this is a link and was not opened"):
        JudgeBundle.of(ClassifierJudgeConfig(model=tmp_path / "model"))


def test_judge_decisions_of_a_run_are_not_read_through_a_link(run: RunFolder, tmp_path: Path):
    (tmp_path / "private.json").write_text(json.dumps({"number": 1}))
    (run.path / "judge/0001").mkdir(parents=True)
    (run.path / "judge/0001/promotion.json").symlink_to(tmp_path / "private.json")
    with pytest.raises(ForeignFile, match=r"promotion.json is a link"):
        write_run_report(run.path)

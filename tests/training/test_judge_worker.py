"""A judge on its way to the machine where it labels: what it needs goes along, or is found by its whole path."""

import shutil
from pathlib import Path

import pytest
import torch

import glow
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.simulator import SimulatorJudgeConfig
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.training.workers.labelers import JudgeBundle
from tiny_reward import tiny_model


def pt(path: Path) -> Path:
    """The model that calls lamps from 0.8 on, as one file."""
    model = glow.bright_model(0.8)
    described = model.self_contained_config().model_dump(mode="json")
    torch.save({"model_state_dict": model.members[0].state_dict(), "plaudit": described}, path)
    return path


@pytest.mark.parametrize("kind", ["folder", ".pt"])
def test_a_reward_model_goes_along_whatever_it_is_kept_in(tmp_path, monkeypatch, kind):
    """Named by a path of the folder where the command was typed, and sent to a machine that has no such path."""
    driver, labeling = tmp_path / "driver", tmp_path / "labeling"
    for machine in (driver, labeling):
        machine.mkdir()
    monkeypatch.chdir(driver)
    name = Path("judge") if kind == "folder" else Path("judge.pt")
    glow.saved(glow.bright_model(0.8), name) if kind == "folder" else pt(name)
    expected = ClassifierJudgeConfig(model=name).build().id
    sent = JudgeBundle.of(ClassifierJudgeConfig(model=name))
    monkeypatch.chdir(labeling)
    shutil.rmtree(driver)
    judge = sent.unpack(labeling / "files").build_with_progress()
    assert judge.id == expected


def test_a_model_of_progress_goes_along_with_any_judge(tmp_path):
    progress = glow.saved(tiny_model(predict_success=False, predict_progress=True), tmp_path / "progress")
    config = SimulatorJudgeConfig(progress=progress)
    expected, sent = config.build_with_progress().id, JudgeBundle.of(config)
    shutil.rmtree(progress)
    assert sent.unpack(tmp_path / "files").build_with_progress().id == expected


def test_a_folder_of_a_vision_language_model_is_named_by_its_whole_path_and_an_id_of_the_hub_stays(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/qwen").mkdir(parents=True)
    assert JudgeBundle.of(VlmJudgeConfig(model="models/qwen")).config["model"] == str(tmp_path / "models/qwen")
    assert (
        JudgeBundle.of(VlmJudgeConfig(model="nvidia/Cosmos-Reason2-8B")).config["model"] == "nvidia/Cosmos-Reason2-8B"
    )


def test_another_file_under_the_same_name_is_another_judge(tmp_path):
    one = JudgeBundle.of(ClassifierJudgeConfig(model=pt(tmp_path / "judge.pt")))
    torch.save({"model_state_dict": {}}, tmp_path / "judge.pt")
    assert JudgeBundle.of(ClassifierJudgeConfig(model=tmp_path / "judge.pt")).identity != one.identity


def test_a_judge_of_a_plugin_is_built_where_nobody_has_imported_it_yet(tmp_path):
    sent = JudgeBundle.of(glow.DazzledConfig(model=glow.saved(glow.bright_model(0.8), tmp_path / "judge"), most=0.7))
    assert sent.config["type"] == "glow:DazzledConfig"
    judge = sent.unpack(tmp_path / "files").build_with_progress()
    assert isinstance(judge, glow.Dazzled)

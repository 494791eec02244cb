import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from test_sac import SPACES, bandit

from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.errors import BadFile
from plaudit.learners.config import SacConfig
from plaudit.learners.sac import Sac
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder

CONFIG = SacConfig(hidden_dims=(16, 16), num_critics=3)


def taught(updates: int) -> Sac:
    rng, learner = torch.Generator().manual_seed(0), Sac(CONFIG, SPACES, seed=2)
    for _ in range(updates):
        learner.update(bandit(rng))
    return learner


def test_a_learner_that_was_saved_goes_on_as_the_one_that_was_not(tmp_path: Path):
    one = taught(5)
    save_checkpoint(tmp_path / "c", one, {"step": 5})
    other = Sac(CONFIG, SPACES, seed=99)
    assert load_checkpoint(tmp_path / "c", other)["step"] == 5
    batches = [bandit(torch.Generator().manual_seed(n)) for n in range(5)]
    assert [one.update(b) for b in batches] == [other.update(b) for b in batches]
    assert one.version == other.version == 10


def test_another_network_is_refused_with_the_first_tensor_that_does_not_fit(tmp_path: Path):
    save_checkpoint(tmp_path / "c", taught(1), {})
    with pytest.raises(BadFile, match=r"critic.biases.0 is \[3, 1, 16\], this learner has \[2, 1, 16\]"):
        load_checkpoint(tmp_path / "c", Sac(CONFIG.model_copy(update={"num_critics": 2}), SPACES))
    with pytest.raises(BadFile, match="another network"):
        load_checkpoint(tmp_path / "c", Sac(CONFIG.model_copy(update={"hidden_dims": (16,)}), SPACES))


@pytest.mark.parametrize("torn", ["model.safetensors", "state.json"])
def test_half_a_checkpoint_is_named_as_such(tmp_path: Path, torn: str):
    save_checkpoint(tmp_path / "c", taught(1), {})
    whole = (tmp_path / "c" / torn).read_bytes()
    (tmp_path / "c" / torn).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadFile, match="not a whole checkpoint"):
        load_checkpoint(tmp_path / "c", taught(0))


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(tmp_path: Path, name: str):
    save_checkpoint(tmp_path / "c", taught(0), {})
    (tmp_path / "c" / name).unlink()
    os.mkfifo(tmp_path / "c" / name)
    with pytest.raises(BadFile, match="this is a pipe"):
        load_checkpoint(tmp_path / "c", taught(0))


@pytest.mark.parametrize("facts", [{"step": "x"}, {"version": None}, {"format": [1]}, [1]])
def test_facts_that_no_checkpoint_has_are_refused(tmp_path: Path, facts):
    save_checkpoint(tmp_path / "c", taught(0), {})
    kept = json.loads((tmp_path / "c/state.json").read_text())
    (tmp_path / "c/state.json").write_text(json.dumps({**kept, **facts} if isinstance(facts, dict) else facts))
    with pytest.raises(BadFile):
        load_checkpoint(tmp_path / "c", taught(0))


def test_an_interrupted_save_leaves_no_checkpoint_behind(tmp_path: Path):
    part = tmp_path / ".c.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"torn")
    save_checkpoint(tmp_path / "c", taught(0), {})
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_of_the_same_step_does_not_replace_the_one_before_it(tmp_path: Path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run", load_training_config("train", None, ["env=lift", "learner=sac"]))
    for n in range(12):
        folder.save_checkpoint(7, taught(0), {"step": 7, "n": n})
        state = folder.newest_state()
        assert state is not None and state["n"] == n
        assert len(list((tmp_path / "run/checkpoints").glob("[0-9]*"))) == min(n + 1, 2)
    monkeypatch.setattr(shutil, "rmtree", killed)  # while it removes an older one
    with pytest.raises(KeyboardInterrupt):
        folder.save_checkpoint(7, taught(0), {"step": 7, "n": 12})
    monkeypatch.undo()
    assert folder.load_checkpoint(taught(0)) is not None


def killed(path: Path, ignore_errors: bool = False) -> None:
    for file in sorted(path.glob("*"))[:1]:
        file.unlink()
        raise KeyboardInterrupt

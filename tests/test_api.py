"""The Python API does what docs/api.md says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import plaudit
from bright_square import square_store

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/api.md").read_text()
NAMES = sorted(plaudit._OWNERS)  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_package_imports_nothing_else():
    code = "import plaudit, sys; print([m for m in ('numpy', 'torch', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_dir_the_stub_and_the_page_list_the_same_names():
    stub = re.findall(r"import (\w+) as", (ROOT / "src/plaudit/__init__.pyi").read_text())
    assert sorted(stub) == NAMES
    assert set(NAMES) <= set(dir(plaudit))
    assert not [name for name in NAMES if f"`{name}" not in PAGE and name != "PlauditError"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_docstring(name):
    assert getattr(plaudit, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Stor'"):
        _ = plaudit.Stor  # pyright: ignore[reportAttributeAccessIssue]


def test_a_judge_is_trained_loaded_evaluated_and_labels(tmp_path):
    square_store(tmp_path / "data", 8, 8).close()
    settings = ["encoder=small", "epochs=3", "train_fps=null", "batch_size=32", "lr=0.003"]
    plaudit.train_reward(tmp_path / "data", tmp_path / "judge", *settings)
    judge = plaudit.load_judge(tmp_path / "judge", "force=true")
    square_store(tmp_path / "unseen", 4, 4).close()
    done = plaudit.label(tmp_path / "unseen", judge)
    assert sorted(done.done) == list(range(8)) and not done.failed
    store = plaudit.Store.open(tmp_path / "unseen")
    assert all(store.ledger.labels(i, [judge.id.source]) is not None for i in store.ids)
    assert plaudit.evaluate_judge(tmp_path / "unseen", judge).metrics.episodes == 8


def test_a_policy_is_trained_and_evaluated(tmp_path):
    settings = "env=lift learner=sac run.max_steps=60 evaluation.episodes=2 env.max_steps=10 run.num_envs=2"
    state = plaudit.train(*settings.split(), folder=tmp_path)
    assert state.step >= 60
    (run,) = tmp_path.iterdir()
    assert plaudit.evaluate(run, episodes=4).episodes == 4


def test_the_examples_of_the_page_that_need_no_data_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    scope: dict[str, object] = {}
    for block in blocks[1:]:
        exec(block, scope)
    batch = scope["batch"]
    assert isinstance(np.asarray(batch.reward), np.ndarray)  # pyright: ignore[reportAttributeAccessIssue]

"""The notebooks of the documentation run from the first cell to the last."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def run_cells(name: str) -> dict[str, Any]:
    """Execute the code cells of a notebook in the current folder; returns its variables."""
    cells = json.loads((ROOT / f"docs/notebooks/{name}.ipynb").read_text())["cells"]
    variables: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), variables)
    return variables


@pytest.mark.slow
def test_the_notebook_of_a_trained_judge_labels_unseen_episodes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = run_cells("label_and_train_a_judge")
    assert len(ran["done"].done) == 10 and not ran["again"].done
    assert ran["evaluation"].metrics.roc_auc > 0.7
    assert "human: 1 of" in capsys.readouterr().out


def test_the_notebook_of_plugins_judges_as_the_simulator_does_and_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run_cells("your_own_judge_and_learner")
    assert ran["metrics"].roc_auc > 0.9
    assert ran["state"].step >= 100 and ran["result"].episodes == 4

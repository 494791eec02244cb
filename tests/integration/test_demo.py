"""The demo in small: every stage, but too little of each for a policy to come of it."""

import io
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from plaudit.data.store import Store
from plaudit.demo import Recipe, Screen, run_demo
from plaudit.errors import DataError, TargetNotEmpty
from plaudit.rewards.training import Stopped
from plaudit.train.show import Outcome

SMALL = Recipe(
    successes=12,
    failures=12,
    judge=("encoder=small", "encoder.widths=[8,16]", "train_fps=null", "epochs=3", "lr=3e-3", "hidden_dim=32"),
    policy=(
        "learner=sac",
        "learner.hidden=[16]",
        "learner.updates_per_step=0.05",
        "env=lift",
        "env.obs=both",
        "policy_cameras=[]",
        "scripted_demos=4",
        "num_envs=4",
        "steps=400",
        "reward.force=true",  # a judge of so little may fail a control
        "reward.threshold=0.2",  # and be careful
        "evaluation.episodes=4",
        "evaluation.every=200",
    ),
    examined=4,
)


def screen(said: io.StringIO, epochs: int | None = None, rounds: int | None = None) -> Screen:
    """Somebody who watches, and wants no more after so many epochs or rounds."""

    def watching(most: int | None):
        @contextmanager
        def bar(*_: int):
            seen: list[object] = []
            yield lambda now: (seen.append(now), len(seen) != most)[1], lambda: len(seen) == most

        return bar

    return Screen(Console(file=said, width=400), lambda _: iter, watching(epochs), watching(rounds))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, str, Outcome]:
    """A demo that was stopped in its second stage and in its third: its folder, what it said at last, its outcome."""
    folder, said = tmp_path_factory.mktemp("demo") / "demo", io.StringIO()
    for wanted in ({"epochs": 1}, {"rounds": 1}):
        with pytest.raises(Stopped):
            run_demo(folder, screen(io.StringIO(), **wanted), recipe=SMALL)
    return folder, said.getvalue(), run_demo(folder, screen(said), recipe=SMALL)


def test_every_stage_leaves_what_its_command_leaves(made):
    folder, _, outcome = made
    store = Store.open(folder / "data")
    assert [labels.succeeded for i in store.ids if (labels := store.ledger.labels(i))].count(True) == 12
    for name in ("judge/model.json", "judge/report.html", "run/policy.safetensors", "run/report.html"):
        assert (folder / name).exists(), name
    assert outcome.episodes == 4 and 0 <= outcome.agreed <= 4

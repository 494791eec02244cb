"""Runs while they work: their state over a socket, commands of an operator, audits answered in a browser."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_serve import Serving

from browser import Browser, Page
from plaudit.data.store import Store, is_store
from plaudit.errors import BadFile
from plaudit.files import read_metrics
from plaudit.learners.config import SacConfig
from plaudit.learners.sac import Sac
from plaudit.rollout.operator import OperatorCommand
from plaudit.training.audit import CORRECTED
from plaudit.training.display import describe_trainer
from plaudit.training.live import LiveSocket, ask
from plaudit.training.trainer import Trainer
from plaudit.types import Labeler
from plaudit.web.runs import RunReader, compare_runs
from processes import PATHS
from training_runs import create
from waiting import wait_until

EPISODES = 12
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS}
RUN = [
    *("env=glow:GlowConfig", "learner=sac", "learner.hidden_dims=[8]", "learner.batch_size=8", "policy.cameras=[]"),
    *("learner.random_steps=0", "policy.inference=sequential", "policy.inference.realtime=false"),
    *("policy.inference.max_episode_steps=12", "evaluation.episodes=1", "run.name=run", "judge=simulator"),
    *("audit.by=human", "judge.window.open=false", "audit.first_episodes=3"),
    "run.worker_timeout_s=600",
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder and the server of it."""
    folder = tmp_path_factory.mktemp("served")
    with Serving(folder) as server:
        yield folder, server


def live_run(folder: Path, name: str) -> Path:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("schedule: online\n")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 10, "judge/success_once": 0.5}) + "\n")
    return run


def test_a_judge_is_compared_with_its_correction_over_the_same_episodes(tmp_path):
    run = live_run(tmp_path, "audited")
    (run / "config.yaml").write_text("schedule: online\naudit: {window: 200}\n")
    rates = {"judge/success_once": 0.7, "audit/judge_success_rate": 0.3, CORRECTED: 0.2, "env/success_once": 0.6}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 10, **rates}) + "\n")
    (found,) = compare_runs([("audited", RunReader().load(run))])
    assert {kind: points[-1][1] for kind, points in found["success"].items()} == {
        "judge": 0.3,
        "corrected by the audit": 0.2,
        "simulator": 0.6,
    }
    assert found["about"].endswith("cover the last 200 episodes. The simulator's rate covers the last 50 episodes.")


def test_a_loop_reports_its_state_until_it_ends(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert ask(tmp_path) is None
    with LiveSocket(tmp_path) as live:
        live.publish({"rows": [["success", "50%"]]})
        assert ask(tmp_path) == ask(tmp_path / "link") == {"rows": [["success", "50%"]]}
        assert [one.name for one in tmp_path.iterdir()] == ["link"]  # the folder is not changed
    assert ask(tmp_path) is None


def test_a_second_loop_on_a_folder_works_without_a_page(tmp_path):
    with LiveSocket(tmp_path) as live, LiveSocket(tmp_path) as second:
        live.publish({"number": 1})
        second.publish({"number": 2})
        assert ask(tmp_path) == {"number": 1}


class AskedSacConfig(SacConfig):
    def build(self, *args: Any, **kwargs: Any) -> "AskedSac":
        return AskedSac(self, *args, **kwargs)


class AskedSac(Sac):
    """Asks for the state of its own run in every phase."""

    folder: Path
    seen: ClassVar[list[dict[str, Any]]] = []

    def act_fn(self, **options: Any) -> Any:
        self.seen.append(ask(self.folder) or {})
        return super().act_fn(**options)

    def update(self, batch: Any) -> Any:
        self.seen.append(ask(self.folder) or {})
        return super().update(batch)


def test_a_training_in_one_process_says_what_it_does_now(tmp_path, monkeypatch):
    words = "env=lift env.max_steps=10 run.num_envs=2 run.max_steps=40 evaluation.episodes=1 evaluation.freq=20"
    learner = "learner.hidden_dims=[8] learner.batch_size=8 learner.random_steps=0 learner.utd_ratio=0.5"
    run = create(tmp_path / "run", f"{words} learner={__name__}:AskedSacConfig {learner}")
    monkeypatch.setattr(AskedSac, "folder", run.path, raising=False)
    monkeypatch.setattr(AskedSac, "seen", [])
    with Trainer(run, lambda _: iter) as trainer, LiveSocket(run.path, describe=lambda: describe_trainer(trainer)):
        trainer.run(lambda state: True)
    working = {
        state["rows"][0][1]: [name for name, _, waits in state["workers"] if not waits] for state in AskedSac.seen
    }
    assert working == {"collecting": ["simulation", "judge"], "updating": ["learner"], "evaluating": ["evaluation"]}
    updates = [{row[0]: row[1] for row in state["workers"]}["learner"] for state in AskedSac.seen]
    assert "10 updates" in updates and "1 update" in updates  # 20 steps at 0.5, down to the last
    assert AskedSac.seen[-1]["extent"] == "40 of 40 steps"


def test_an_answer_that_is_too_large_is_refused(tmp_path):
    with LiveSocket(tmp_path) as live:
        live.publish({"x": "a" * (2 << 20)})
        with pytest.raises(BadFile, match="too large"):
            ask(tmp_path)


def test_a_page_sends_commands_but_no_emergency_stop(served):
    folder, server = served
    run, sent = live_run(folder, "one"), []
    address = f"/api/operate/{folder.name}/runs/one"
    status, answer, _ = server.ask(address, {"command": "start"})
    assert status == 400 and "nothing was sent" in answer["error"]
    with LiveSocket(run, sent.append):
        assert server.ask(address, {"command": "start"})[0] == 200
        for command in ("estop", "release", "stop", "", None, "start\nstop"):
            assert server.ask(address, {"command": command})[0] == 400, command
        assert server.ask(address, {"command": "start"}, origin="http://evil.example")[0] == 403
        assert server.ask(f"/api/run/{folder.name}/runs/one")[1]["live"] == {}
    assert sent == [OperatorCommand.START]


def test_only_new_metrics_are_read_and_a_new_file_from_its_beginning(served):
    folder, server = served
    run = live_run(folder, "two")

    def steps() -> int:
        return server.ask(f"/api/run/{folder.name}/runs/two")[1]["step"]

    assert steps() == 10
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "judge/success_once": 0.5}\n{"step": 30, "jud')
    assert steps() == 20  # the last line is not complete
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ge/success_once": NaN}\n')
    assert steps() == 30
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").write_text('{"step": 5, "judge/success_once": 0.5}\n')
    assert steps() == 5


def follow(page: Page, server: Serving, name: str) -> None:
    page.goto(f"{server.address}?run#/run/{name}%2Fruns%2Frun")
    page.wait("document.querySelector('#extent')?.innerText.includes('live')")
    assert "robot" in page.text and "learner" in page.text  # what each worker waits for


def answer_audits(page: Page, server: Serving, name: str, metrics: Path) -> int:
    """Label what the run asks for, until its audit has three answers; returns the number of labels."""
    page.run("localStorage.setItem('labeler', 'ada')")
    page.goto(f"{server.address}?label#/label/{name}%2Fruns%2Frun%2Fepisodes")

    def enough() -> bool:
        return any(line.get("audit/episodes", 0) >= 3 for line in read_metrics(metrics))

    labels = 0
    while labels < 3 or not enough():  # the first episode may have been opened before the run asked for others
        page.wait(f"document.getElementById('left')?.innerText.includes(', {labels} completed')")
        page.press("f", "Enter")
        labels += 1
        page.wait(f"document.getElementById('left').innerText.includes(', {labels} completed')")
    return labels


@pytest.mark.slow
@pytest.mark.parametrize("ray", [False, pytest.param(True, marks=pytest.mark.cluster)])
def test_an_audit_is_answered_in_a_browser_and_the_run_followed_to_its_end(tmp_path, ray):
    words = [*RUN, "run.max_episodes=100000", *(["--ray", "local"] if ray else [])]
    command = [sys.executable, "-m", "plaudit", "online", *words]
    log = (tmp_path / "log").open("w")
    run, name = tmp_path / "runs" / "run", tmp_path.name
    with (
        subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": PATHS}, stdout=log, stderr=log
        ) as loop,
        log,
    ):
        try:
            ready = lambda: is_store(run / "episodes") and (run / "metrics.jsonl").exists()  # noqa: E731
            wait_until(lambda: ready() or loop.poll() is not None, 200, what="for the run")
            assert loop.poll() is None, (tmp_path / "log").read_text()
            with Serving(tmp_path) as server, Browser() as browser:
                page = browser.open(server.address)
                follow(page, server, name)
                labels = answer_audits(page, server, name, run / "metrics.jsonl")
                page.goto(f"{server.address}?end#/run/{name}%2Fruns%2Frun")
                page.wait("document.querySelector('#extent')?.innerText.includes('live')")
                loop.send_signal(signal.SIGINT)
                page.wait("document.body.innerText.includes('stopped by Ctrl-C')")
                page.wait("!document.querySelector('#extent').innerText.includes('live')")
                page.wait("document.body.innerText.includes('Report')")
        finally:
            loop.kill()
    with Store.open(run / "episodes") as store:
        answers = [version for i in store.ids for version in store.ledger.history(i) if version.source == "human"]
        assert len(answers) == labels and all(version.labels().labeler == Labeler("ada") for version in answers)


@pytest.mark.slow
def test_a_page_starts_and_marks_the_episodes_of_a_run(tmp_path):
    words = [*RUN[:-4], "run.max_episodes=2", "operator.sources=[web]", "--no-auto"]
    command = [sys.executable, "-m", "plaudit", "online", *words]
    run, name = tmp_path / "runs" / "run", tmp_path.name
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT) as loop:
        try:
            wait_until(lambda: ask(run) if run.is_dir() else None, 200, what="for the run")
            with Serving(tmp_path) as server, Browser() as browser:
                page = browser.open(f"{server.address}#/run/{name}%2Fruns%2Frun")
                for done in range(2):
                    page.wait(f"document.querySelector('#extent')?.innerText.includes('{done} of 2 episodes')")
                    page.wait("document.querySelector('[data-command=start]:enabled')")
                    assert "This page has no emergency stop" in page.text
                    page.run("document.querySelector('[data-command=start]').click()")
            wait_until(lambda: loop.poll() is not None, 200, what="for the end of the run")
        finally:
            loop.kill()
    with Store.open(run / "episodes") as store:
        assert len(store.ids) == 2

"""Runs while they work: their state over a socket, commands of an operator, audits answered in a browser."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_serve import Serving

from browser import Browser, Page
from plaudit.data.store import Store, is_store
from plaudit.errors import BadFile
from plaudit.files import read_metrics
from plaudit.rollout.operator import OperatorCommand
from plaudit.training.live import SOCKET, LiveSocket, ask
from waiting import wait_until

EPISODES = 12
RUN = [
    *("env=glow:GlowConfig", "learner=sac", "learner.hidden_dims=[8]", "learner.batch_size=8", "policy.cameras=[]"),
    *("learner.random_steps=0", "policy.inference=sequential", "policy.inference.realtime=false"),
    *("policy.inference.max_episode_steps=12", "evaluation.episodes=1", "run.name=run", "judge=simulator"),
    *("audit.by=human", "judge.window.open=false", "audit.first_episodes=3"),
]


def live_run(folder: Path) -> Path:
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("schedule: online\n")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 10, "judge/success_once": 0.5}) + "\n")
    return run


def test_a_loop_reports_its_state_until_it_ends(tmp_path):
    folder = tmp_path / ("long" * 30)  # the path of a socket has at most 107 bytes
    folder.mkdir()
    assert ask(folder) is None
    with LiveSocket(folder) as live:
        live.publish({"rows": [["success", "50%"]]})
        assert ask(folder) == {"rows": [["success", "50%"]]}
        assert (folder / SOCKET).stat().st_mode & 0o077 == 0  # no other user may send commands
    assert ask(folder) is None and not (folder / SOCKET).exists()


def test_a_loop_that_was_killed_is_not_live_and_the_next_one_is(tmp_path):
    code = "import os, sys; from pathlib import Path; from plaudit.training.live import LiveSocket; "
    code += "LiveSocket(Path(sys.argv[1])).__enter__(); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / SOCKET).exists() and ask(tmp_path) is None
    with LiveSocket(tmp_path) as live:
        live.publish({"again": 1})
        assert ask(tmp_path) == {"again": 1}


def test_what_stands_in_place_of_the_socket_is_not_read(tmp_path):
    (tmp_path / SOCKET).symlink_to("/etc/passwd")
    assert ask(tmp_path) is None
    with LiveSocket(tmp_path) as live:
        live.publish({"x": "a" * (2 << 20)})
        with pytest.raises(BadFile, match="too large"):
            ask(tmp_path)


def test_a_page_sends_commands_but_no_emergency_stop(tmp_path):
    run, sent = live_run(tmp_path), []
    with Serving(tmp_path) as server:
        address = f"/api/operate/{tmp_path.name}/runs/one"
        status, answer, _ = server.ask(address, {"command": "start"})
        assert status == 400 and "nothing was sent" in answer["error"]
        with LiveSocket(run, sent.append):
            assert server.ask(address, {"command": "start"})[0] == 200
            for command in ("estop", "release", "stop", "", None, "start\nstop"):
                assert server.ask(address, {"command": command})[0] == 400, command
            assert server.ask(address, {"command": "start"}, origin="http://evil.example")[0] == 403
            assert server.ask(f"/api/run/{tmp_path.name}/runs/one")[1]["live"] == {}
        assert sent == [OperatorCommand.START]


def test_only_new_metrics_are_read_and_a_new_file_from_its_beginning(tmp_path):
    run = live_run(tmp_path)
    with Serving(tmp_path) as server:

        def steps() -> int:
            return server.ask(f"/api/run/{tmp_path.name}/runs/one")[1]["step"]

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


def answer_audits(page: Page, server: Serving, name: str, metrics: Path) -> None:
    """Label what the run asks for, until its audit has three answers."""
    page.run("localStorage.setItem('labeler', 'ada')")
    page.goto(f"{server.address}?label#/label/{name}%2Fruns%2Frun%2Fepisodes")

    def enough() -> bool:
        return any(line.get("audit/episodes", 0) >= 3 for line in read_metrics(metrics))

    for _ in range(3):
        page.wait("document.querySelector('.queue .current')")
        page.press("f", "Enter")
        page.wait("document.getElementById('notice').innerText.includes('is labeled: no success')")
    wait_until(enough, what="for the answers to count")


@pytest.mark.slow
@pytest.mark.parametrize("ray", [False, pytest.param(True, marks=pytest.mark.cluster)])
def test_an_audit_is_answered_in_a_browser_and_the_run_followed_to_its_end(tmp_path, ray):
    words = [*RUN, "run.max_episodes=100000", *(["--ray", "local"] if ray else [])]
    command = [sys.executable, "-m", "plaudit.cli", "online", *words]
    log = (tmp_path / "log").open("w")
    run, name = tmp_path / "runs" / "run", tmp_path.name
    with subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as loop, log:
        try:
            ready = lambda: is_store(run / "episodes") and (run / "metrics.jsonl").exists()  # noqa: E731
            wait_until(lambda: ready() or loop.poll() is not None, 200, what="for the run")
            with Serving(tmp_path) as server, Browser() as browser:
                page = browser.open(server.address)
                follow(page, server, name)
                answer_audits(page, server, name, run / "metrics.jsonl")
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
        assert len(answers) == 3 and all("by ada" in version.labels().note for version in answers)


@pytest.mark.slow
def test_a_page_starts_and_marks_the_episodes_of_a_run(tmp_path):
    words = [*RUN[:-3], "run.max_episodes=2", "operator.sources=[web]", "--no-auto"]
    command = [sys.executable, "-m", "plaudit.cli", "online", *words]
    run, name = tmp_path / "runs" / "run", tmp_path.name
    with subprocess.Popen(command, cwd=tmp_path) as loop:
        try:
            wait_until(lambda: ask(run) if run.is_dir() else None, 200, what="for the run")
            with Serving(tmp_path) as server, Browser() as browser:
                page = browser.open(f"{server.address}#/run/{name}%2Fruns%2Frun")
                for _ in range(2):
                    page.wait("document.querySelector('[data-command=start]:enabled')")
                    page.run("document.querySelector('[data-command=start]').click()")
                    page.wait("!document.querySelector('[data-command=start]:enabled')")
                assert "emergency stop" in page.text
            wait_until(lambda: loop.poll() is not None, 200, what="for the end of the run")
        finally:
            loop.kill()
    with Store.open(run / "episodes") as store:
        assert len(store.ids) == 2

"""`plaudit online` as a user types it, without Ray: how it ends and what it leaves behind."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import glow
from command import plaudit
from plaudit.config import read_yaml
from plaudit.data.store import Store
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from processes import start_plaudit
from pty_process import PtyProcess
from puppet import lines
from waiting import stretch, wait_until

TESTS = Path(__file__).parents[1]
SAC = "learner=sac learner.hidden_dims=[8] learner.batch_size=8 learner.random_steps=0"
LAMP = (
    f"env=glow:GlowConfig {SAC} judge=classifier judge.model=judge judge.rule.decode=per_frame "
    "policy.inference=sequential policy.inference.realtime=false policy.inference.max_episode_steps=12 "
    "policy.cameras=[] evaluation.episodes=2 judge.retrain=null run.name=run --serial"
)


@pytest.fixture
def lab(tmp_path) -> Path:
    glow.saved(glow.bright_model(0.45), tmp_path / "judge")
    return tmp_path


def told(lab: Path) -> list[tuple[str, str]]:
    lines = map(json.loads, (lab / "runs/run/events.jsonl").read_text().splitlines())
    return [(line["event"], line["message"]) for line in lines]


def test_one_episode_leaves_a_page(lab):
    said = plaudit("online", *LAMP.split(), "run.max_episodes=1", cwd=lab)
    assert "runs/run: 1 episode, 6 updates, policy v" in said
    assert [what for what, _ in told(lab)] == ["started", "judge", "ended"]
    assert "certificate: none; plaudit judge exam" in told(lab)[1][1]
    assert "1 episode, 12 steps, 6 updates" in (lab / "runs/run/report.html").read_text()
    (lab / "runs/run/report.html").unlink()
    assert "runs/run/report.html" in plaudit("report", "runs/run", cwd=lab)
    assert (lab / "runs/run/report.html").exists()
    assert "judge is not the folder of a run" in plaudit("report", "judge", cwd=lab, ok=False)


def test_without_flags_the_workers_are_threads_of_this_process(lab):
    words = LAMP.removesuffix("--serial").split()
    said = plaudit("online", *words, "run.max_episodes=3", "env.goal=0.3", cwd=lab)
    assert "runs/run: 3 episodes, 18 updates, policy v" in said
    assert told(lab)[-1][1].startswith("finished: 3 episodes")
    assert "success rate" in plaudit("eval", "runs/run", "--episodes", 2, cwd=lab)


@pytest.mark.slow
def test_a_learner_of_the_users_own_is_found_by_its_dotted_path_and_goes_on(lab):
    words = LAMP.replace(SAC, "learner=own_learner:ImitationConfig")
    said = plaudit("online", *words.split(), "run.max_episodes=1", cwd=lab)
    assert "runs/run: 1 episode, 6 updates, policy v" in said
    assert "glow:GlowConfig with own_learner:ImitationConfig, online" in (lab / "runs/run/report.html").read_text()
    assert (lab / "runs/run/policy/policy.yaml").exists()
    plaudit("online", *words.split(), "run.max_episodes=2", cwd=lab)
    asked = read_yaml(lab / "runs/run/config.yaml")  # so that a process that knows neither finds both
    assert asked["learner"]["type"] == "own_learner:ImitationConfig" and asked["run"]["max_episodes"] == 2
    assert asked["env"]["type"] == "glow:GlowConfig"


def test_a_learner_that_cannot_learn_from_replay_is_told_why(lab):
    mistakes = {
        "ppo": "learner 'ppo' does not learn from replay, and here labels come after the policy that acted was "
        "updated. Use an off-policy learner: sac, qchunk",
        "own_learner:UnfinishedConfig": "learner 'own_learner:UnfinishedConfig' builds a Unfinished, which lacks "
        "act_fn, components, config",
    }
    for learner, sentence in mistakes.items():
        words = LAMP.replace(SAC, f"learner={learner}")
        assert sentence in plaudit("online", *words.split(), "run.max_episodes=1", cwd=lab, ok=False)
        assert not (lab / "runs/run").exists()


def test_a_judge_that_is_not_believed_any_more_ends_it_with_an_alarm(lab):
    """It calls a lamp bright at 0.3; none ever truly succeeds."""
    doubts = ("audit.fraction=1.0", "env.goal=2.0", "run.max_episodes=200")
    said = plaudit("online", *LAMP.split(), *doubts, cwd=lab, ok=False)
    assert "alarm: " in said and "learning stops until another judge" in said
    assert "alarm" in [what for what, _ in told(lab)]
    assert "Audit alarm: " in (lab / "runs/run/report.html").read_text()


def test_a_run_whose_judge_has_a_mistake_in_it_leaves_a_sentence_a_page_and_a_policy(lab, monkeypatch):
    monkeypatch.setattr("plaudit.training.workers.labelers.RETRY_S", 0.5)
    mistake = ("judge=glow:DazzledConfig", "judge.raises=true", "judge.most=0", "run.max_unlabeled_episodes=2")
    words = [word for word in LAMP.split() if word != "judge=classifier"]
    said = " ".join(plaudit("online", *words, *mistake, cwd=lab, ok=False).split())
    assert "error: the judge could not label any of the last 2 episodes: the judge raised ValueError: it is too" in said
    assert told(lab)[-1][0] == "ended"
    assert (lab / "runs/run/report.html").exists() and (lab / "runs/run/policy/policy.yaml").exists()


def test_a_run_that_cannot_begin_leaves_nothing(lab):
    for mistake, sentence in (
        ("judge.model=none", "none: this is not a reward model"),
        ("demos.store=none", "none does not exist; 'plaudit data import' makes one"),
        ("judge.retrain.data=[nowhere]", "nowhere does not exist; 'plaudit data import' makes one"),
        ("env=glw", "there is no env 'glw'"),
    ):
        assert sentence in plaudit("online", *LAMP.split(), mistake, cwd=lab, ok=False)
        assert not (lab / "runs/run").exists(), mistake
    plaudit("online", *LAMP.split(), "run.max_episodes=1", cwd=lab)
    plaudit("online", *LAMP.split(), "judge.model=none", "run.max_episodes=2", cwd=lab, ok=False)
    assert (lab / "runs/run/report.html").exists(), "what was there before stays"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("reward.shaping=1", "this reward model has not learned progress"),
        ("reward.shaping=1 judge.progress=judge", "judge is a judge of type 'classifier', not 'progress'"),
        ("judge.progress=nowhere", "nowhere: this is not a reward model"),
    ],
)
def test_shaping_by_what_measures_no_progress_is_refused_before_anything_is_made(lab, words, sentence):
    assert sentence in plaudit("online", *LAMP.split(), *words.split(), cwd=lab, ok=False)
    assert not (lab / "runs").exists()


def test_a_judge_that_failed_a_control_is_taken_by_the_key_that_its_refusal_names(lab):
    glow.saved(glow.bright_model(0.3, problems=("blank white: called",)), lab / "marked")
    words = [*LAMP.split(), "judge.model=marked", "run.max_episodes=1"]
    said = plaudit("online", *words, cwd=lab, ok=False)
    assert "marked is marked as not to be trusted: blank white: called" in said and "judge.force=true" in said
    plaudit("online", *words, "judge.force=true", cwd=lab)


def test_a_run_of_another_kind_is_told_as_one(lab):
    RunFolder.create(lab / "tr", load_training_config("train", None, ["env=lift", "learner=sac"]))
    said = plaudit("online", "--resume", "tr", cwd=lab, ok=False)
    assert "tr is a run of 'plaudit train', not of 'plaudit online'" in said and said.count("error: ") == 1


def test_without_ray_it_says_how_to_get_it_and_how_to_do_without(lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = LAMP.removesuffix("--serial").split()
    said = plaudit("online", *words, "--ray", "local", cwd=lab, ok=False)
    assert "ray is not installed; run: pip install 'plaudit[cluster]'; or run in this process: leave out --ray" in said
    assert not (lab / "runs").exists()


def test_it_wants_to_know_what_to_run_and_no_more_than_that(lab):
    assert "name what to run: --config FILE" in plaudit("online", cwd=lab, ok=False)
    plaudit("online", *LAMP.split(), "run.max_episodes=1", cwd=lab)
    for flags in (["--robot", "sim"], ["--human_reward_labeler"], ["run.max_episodes=2"]):
        said = plaudit("online", "--resume", "runs/run", "--serial", *flags, cwd=lab, ok=False)
        assert "--resume continues a run as it was configured; leave out the other arguments" in said


@pytest.mark.slow
def test_ctrl_c_before_it_begins_interrupts_at_once(lab):
    """The policy waits a minute for a server that is not there."""
    (lab / "server.yaml").write_text("{connect_s: 60, port: 9}")
    (lab / "policy.yaml").write_text(
        "model: {component_config_paths: {openpi_model: server.yaml}}\npolicy: {type: openpi, action_dim: 1}"
    )
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    words = [*LAMP.split(), "policy.path=policy.yaml", "policy.behavior=pretrained"]
    process = subprocess.Popen(
        [sys.executable, "-m", "plaudit", "online", *words],
        cwd=lab,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((lab / "runs/run/policy").exists)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=stretch(60))[0]
    assert process.returncode in (130, -signal.SIGINT), said  # a shell calls both 130
    assert "interrupted; resume with the same command" in said and "Traceback" not in said
    assert not (lab / "runs/run").exists()


def test_ctrl_c_on_a_terminal_ends_it_in_order(lab):
    """The screen is drawn, the first Ctrl-C is acknowledged on it, and the same command would go on."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    words = [*LAMP.split(), "run.max_episodes=100000", "audit.fraction=0"]
    process = start_plaudit("online", *words, cwd=lab, env=environment, terminal=slave)
    os.close(slave)
    screen, asked, until = "", False, time.monotonic() + stretch(90)
    while time.monotonic() < until:
        try:
            screen += os.read(master, 65536).decode(errors="replace")
        except OSError:  # the other side is closed
            break
        if not asked and re.search(r"[1-9]\d* of 100,000 episodes", screen):
            process.send_signal(signal.SIGINT)
            asked = True
    assert process.wait() == 130, screen[-2000:]
    os.close(master)
    assert "starting the workers" in screen and "waiting for the robot to load its policy" in screen
    assert "stopping: workers finish their current call" in screen
    assert "stopped; resume with the same command" in screen
    assert told(lab)[-1] == ("ended", "stopped by Ctrl-C")
    assert (lab / "runs/run/report.html").exists()


def test_a_stopped_run_says_what_it_waits_for_and_writes_its_report_even_if_it_is_aborted(lab):
    """q, Ctrl-C and Ctrl-C again while the judge is in the middle of a call."""
    words = [word for word in LAMP.split() if word not in ("judge=classifier", "--serial")]
    judge = ["judge=glow:AwaitingConfig", f"judge.go={lab}/go", "audit.fraction=0", "run.max_episodes=100"]
    with PtyProcess("online", *words, *judge, "--no-auto", cwd=lab) as run:
        run.expect("scene ready?")
        run.press(" ")
        run.expect("1 unlabeled episode")
        run.press("q")
        run.expect("stopping: waiting for the current call of judge; Ctrl-C again aborts")
        run.press("\x03")
        run.expect("stopping: waiting for the current call of judge; Ctrl-C again aborts")
        run.press("\x03")
        run.expect("waiting for the current call of judge, which cannot be interrupted")
        (lab / "go").touch()
        assert run.wait() == 130
    assert "interrupted; resume with the same command" in run.text and "Traceback" not in run.text
    assert told(lab)[-1] == ("ended", "aborted by Ctrl-C") and (lab / "runs/run/report.html").exists()


def test_ctrl_c_while_the_report_is_written_does_not_lose_it(lab):
    with PtyProcess("online", *LAMP.split(), "run.max_episodes=2", cwd=lab) as run:
        run.expect("writing the report")
        run.press("\x03")
        run.expect("the report is written first; Ctrl-C again leaves it out", "see runs/run/report.html")
        assert run.wait() == 0
    assert (lab / "runs/run/report.html").exists()


@pytest.mark.slow
def test_an_operator_at_the_terminal_starts_marks_and_stops(lab):
    words = [word for word in LAMP.split() if not word.startswith("env=") and word != "--serial"]
    robot = f"robot=puppet:PuppetConfig robot.log={lab}/log robot.size=[8,8] audit.fraction=0 run.max_episodes=100"
    real_time = "policy.inference.realtime=true policy.inference.max_episode_steps=9999 learner.utd_ratio=0.1"
    forced = ["judge.force=true", "--allow-untrained"]
    command = ["online", *words, *robot.split(), *real_time.split(), *forced]
    with PtyProcess(*command, cwd=lab) as run:
        run.expect("scene ready?", "space start  q stop")
        assert not (lab / "log").exists()
        run.press(" ")
        run.expect("episode running", "e end  s success  f failure")
        wait_until(lambda: len(lines(lab / "log")) > 3)
        run.press("s")
        run.expect("marked as a success", "scene ready?")
        run.press("q")
        assert run.wait() == 130
    assert Store.open(lab / "runs/run/episodes").ledger.labels(0).judge.source == "operator"
    assert told(lab)[-1] == ("ended", "stopped by the operator")

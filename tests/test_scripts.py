"""The entry scripts, by the flags that robot labs know, and what sets up the environments."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import glow
from openpi_server import toy_server
from plaudit.data.store import Store
from plaudit.errors import ConfigError
from plaudit.policies.loader import load_policy
from plaudit.robots import igris_b
from plaudit.training.config_file import load_training_config
from plaudit.trust import CODE, allow_code
from waiting import stretch

ROOT = Path(__file__).parents[1]
RUN, OPENPI = ROOT / "run_online_rl.py", ROOT / "run_online_rl_openpi.py"

LAMP = """
env: {type: "glow:GlowConfig"}
learner: {type: sac, hidden_dims: [8], batch_size: 8, random_steps: 0}
judge: {type: classifier, model: judge, rule: {decode: per_frame}, retrain: null}
policy: {cameras: [], inference: {max_episode_steps: 12}}
inference_algorithm: sequential
run: {max_episodes: 4}
evaluation: {episodes: 2}
"""


@pytest.fixture
def lamp(tmp_path, monkeypatch) -> Path:
    """A folder with a judge of lamps and a run's config."""
    glow.saved(glow.bright_model(0.8), tmp_path / "judge")
    (tmp_path / "lamp.yaml").write_text(LAMP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAUDIT_RAY", "none")
    allow_code("glow")
    return tmp_path


def script(path: Path, *words: object, capsys, monkeypatch) -> tuple[Any, str]:
    """Run in this process; how it ended and what it said."""
    monkeypatch.setattr(sys, "argv", [path.name, *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


@pytest.mark.slow
def test_a_run_in_simulation_from_beginning_to_end(lamp):
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, CODE: ""}
    command = [sys.executable, RUN, "--robot", "sim", "--train_config", "lamp.yaml", "--allow-code", "glow"]
    done = subprocess.run(command, cwd=lamp, env=environment, capture_output=True, text=True, timeout=stretch(120))
    assert done.returncode == 0, done.stderr
    assert "4 episodes, 24 updates" in done.stdout
    assert len(Store.open(lamp / "runs/glow_GlowConfig_sac_online_0/episodes")) == 4
    assert (
        "glow:GlowConfig with sac, online, labels by a classifier"
        in (lamp / "runs/glow_GlowConfig_sac_online_0/report.html").read_text()
    )


def test_a_policy_behind_openpis_server_acts_and_the_learner_watches(lamp, capsys, monkeypatch):
    with toy_server() as server:
        policy = {"type": "openpi_policy", "action_dim": 1, "openpi_model": {"host": "localhost", "port": server.port}}
        (lamp / "policy.yaml").write_text(json.dumps({"policy": policy}))
        words = (
            "--robot",
            "sim",
            "--train_config",
            "lamp.yaml",
            "--policy_yaml",
            "policy.yaml",
            "policy.inference.execution_horizon=2",
        )
        code, said = script(OPENPI, *words, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0, said
    assert "4 episodes, 24 updates" in said
    assert len(server.seen) == 4 * 6
    store = Store.open(lamp / "runs/glow_GlowConfig_sac_online_0/episodes")
    assert all(store.episode(i).success[-1] for i in store.ids)  # the toy turns every lamp up
    assert all(store.ledger.labels(i, {"classifier"}).success_once for i in store.ids)


def test_a_start_that_failed_does_not_stand_in_the_way(lamp, capsys, monkeypatch):
    words = ("--robot", "sim", "--train_config", "lamp.yaml")
    code, said = script(RUN, *words, "judge.model=jugde", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 1 and "jugde" in said
    code, said = script(RUN, *words, "run.max_episodes=1", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0, said
    code, said = script(RUN, *words, "learner.gamma=0.5", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 1 and "holds a run with another learner" in said


def test_the_defaults_of_the_scripts_are_there_and_fit_their_robot():
    for path in sorted((ROOT / "examples/configs").glob("online_*.yaml")):
        config = load_training_config("online", path, [], flags={"judge": "human"})
        assert config.human_labels
    config = load_training_config(
        "online", ROOT / "examples/configs/online_igris_b.yaml", [], flags={"robot": "igris_c"}
    )
    assert (config.robot.type, config.judge.name, config.inference_type) == ("igris_c", "vlm", "rtc")
    policy = load_policy(ROOT / "examples/policies/openpi_igris_b/openpi_policy.yaml").config
    params = load_training_config("online", ROOT / "examples/configs/online_igris_b.yaml", []).robot.params()
    assert policy.action_dim == params.action_dim
    assert set(policy.image_keys) <= set(params.camera_names)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Missing option '--robot'"),
        (["--robot", "sim", "--train_confg", "lamp.yaml"], "No such option: --train_confg"),
        (["--robot", "igris_d", "--train_config", "lamp.yaml"], "did you mean 'igris_c'?"),
        (
            ["--robot", "sim", "--train_config", "lmp.yaml"],
            "lmp.yaml: there is no such file; did you mean 'lamp.yaml'?",
        ),
        (["--robot", "sim", "--train_config", "lamp.yaml", "--inference_algorithm", "tcr"], "algorithm"),
        (["--robot", "sim", "--train_config", "lamp.yaml", "--policy_yaml", "no.yaml"], "no.yaml"),
        (["--robot", "sim", "--train_config", "lamp.yaml", "run.max_episode=3"], "did you mean 'max_episodes'?"),
        (["--robot", "sim", "--train_config", "lamp.yaml", "utd_ratio=3"], "write 'learner.utd_ratio'"),
    ],
)
def test_a_wrong_word_is_answered_and_nothing_is_made(lamp, words, sentence, capsys, monkeypatch):
    for path in (RUN, OPENPI):
        code, said = script(path, *words, capsys=capsys, monkeypatch=monkeypatch)
        assert code != 0
        assert sentence in said and "Traceback" not in said
        assert not (lamp / "runs/glow_GlowConfig_sac_online_0/episodes").exists()


def test_flags_may_stand_in_the_file(lamp):
    params = lamp / "params.json"
    own = json.loads((Path(igris_b.__file__).parent / "inference_runtime_params.json").read_text())
    params.write_text(json.dumps({**own, "policy_update_period": 7}))
    (lamp / "run.yaml").write_text(
        f"{{robot: igris_b, inference_runtime_params_config: {params}, human_reward_labeler: true, "
        "inference_algorithm: rtc, learner: {type: qchunk, horizon: 50}}"
    )
    config = load_training_config("online", lamp / "run.yaml", [])
    assert (config.inference_type, config.judge.name) == ("rtc", "human")
    assert config.robot.inference_runtime_params_config == params
    assert config.policy.inference.execution_horizon == 7  # as the robot's own file says


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("reward.model=judge", "write 'judge: {type: classifier, model: ...}'"),
        ("algorithm.gamma=0.9", "write 'learner.gamma'"),
        ("optimizer.lr=1e-4", "write 'learner.lr'"),
        ("replay_buffer.size=10", "write 'run.capacity_gb'"),
        ("cluster.num_nodes=3", "leave it out"),
    ],
)
def test_keys_of_other_stacks_are_answered_with_ours(lamp, key, hint):
    with pytest.raises(ConfigError, match="goes by another name here") as told:
        load_training_config("online", None, ["robot=igris_b", "learner=sac", "judge=human", key])
    assert hint in str(told.value)


def test_uv_looks_for_packages_where_pip_is_set_to_look():
    listing = (
        ":env:.find-links='/wheels'\n"
        "global.extra-index-url='\\nhttps://one/simple\\nhttps://two/simple'\n"
        "global.find-links='/older /places'\n"
        "global.timeout='60'\n"
        "install.find-links='/other'\n"
    )
    done = subprocess.run([ROOT / "scripts/uv_settings.py"], input=listing, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "export UV_FIND_LINKS=/wheels",
        "export UV_INDEX='https://one/simple https://two/simple'",
        "export UV_INDEX_STRATEGY=unsafe-best-match",
    ]


def test_make_interop_says_in_one_sentence_that_there_is_no_python_312(tmp_path):
    script = Path(__file__).parents[1] / "scripts/interop.sh"
    environment = {**os.environ, "PYTHON312": str(tmp_path / "python3.12")}
    done = subprocess.run(
        ["bash", script, tmp_path / "venv"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and not (tmp_path / "venv").exists()
    assert (
        done.stderr.startswith("lerobot 0.6.1 needs Python 3.12, and there is none at") and done.stderr.count("\n") == 1
    )

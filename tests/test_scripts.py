"""The entry scripts, by the flags that robot labs know, and what sets up the environments."""

import json
import os
import runpy
import shutil
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
        assert config.judge.is_human
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
        "inference_algorithm: rtc, learner: {type: qchunk, horizon: 50, critic_horizon: 7}}"
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


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


def shell(path: Path, *words: str, **environment: object) -> tuple[int, str, str]:
    """How a script ended, what it printed, and what it complained of."""
    named = {**os.environ, **{key: str(value) for key, value in environment.items()}}
    done = subprocess.run(["bash", path, *words], env=named, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


TAILSCALE = """case "$*" in
  "ip -4") echo 100.64.0.2; echo fd7a::2 ;;
  "ip -4 gpu-box") echo 100.64.0.1 ;;
  *) echo "no peer found with hostname $3" >&2; exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("table", "started"),
    [
        (
            "gpu-box training 10.0.0.1\nrobot-pc inference 10.0.0.2",
            "--address 10.0.0.2 --role inference --head 10.0.0.1",
        ),
        ("gpu-box training\nrobot-pc inference", "--address 100.64.0.2 --role inference --head 100.64.0.1"),
        ("# all\nrobot-pc training,labeling", "--address 100.64.0.2 --role training --role labeling"),
        ("gpu-box training\nrobot-pc.lab inference 10.0.0.2", "error: HOSTS has no line for this machine, robot-pc"),
        (
            "gpu-box training 10.0.0.1\nrobot-pc",
            "error: HOSTS does not say the role of robot-pc: training, inference or",
        ),
        ("robot-pc inference 10.0.0.2", "error: HOSTS has no machine for training, which is the head"),
        (
            "other training\nrobot-pc inference",
            "error: HOSTS has no address for other, and Tailscale knows none (no peer",
        ),
    ],
)
def test_start_ray_goes_by_hostname_and_asks_tailscale_for_addresses_that_are_not_written(tmp_path, table, started):
    hosts, tools = tmp_path / "hosts.txt", tmp_path / "tools"
    hosts.write_text(table + "\n")
    executable(tools / "tailscale", TAILSCALE)
    executable(tools / "hostname", "echo robot-pc")
    script = executable(tmp_path / "start_ray.sh", (ROOT / "start_ray.sh").read_text())
    executable(tmp_path / ".venv/bin/plaudit", 'echo "$@"')
    ways = {"RAY_HOSTS": hosts, "PATH": f"{tools}:{os.environ['PATH']}"}
    code, said, complaint = shell(script, **ways)
    assert (said or complaint).startswith(
        started.replace("HOSTS", str(hosts)).replace("--address", "cluster start --address")
    )
    assert (code == 0) == ("error" not in started) and complaint.count("\n") == 0


def test_start_ray_without_tailscale_says_where_the_address_belongs(tmp_path):
    executable(tmp_path / "tools/hostname", "echo robot-pc")
    for tool in ("awk", "bash", "dirname"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool))
    (tmp_path / "hosts.txt").write_text("gpu-box training 10.0.0.1\nrobot-pc inference\n")
    code, said, complaint = shell(ROOT / "start_ray.sh", RAY_HOSTS=tmp_path / "hosts.txt", PATH=tmp_path / "tools")
    assert (code, said, complaint.count("\n")) == (1, "", 0)
    assert "has no address for robot-pc and Tailscale is not installed here; write the address" in complaint


def test_uv_setup_and_env_setup_install_with_the_uv_of_the_machine(tmp_path):
    python = f'exec {sys.executable} "$@"'
    uv = f"""echo "$*" >> {tmp_path}/asked
[ "$1" != venv ] || {{ mkdir -p {tmp_path}/venv/bin && cp {tmp_path}/python {tmp_path}/venv/bin/python; }}
[ "$1" != --version ] || echo uv 9.9"""
    executable(tmp_path / "python", python)
    executable(tmp_path / "tools/uv", uv)
    root = tmp_path / "root"
    for path in ("uv_setup.sh", "env_setup.sh", "scripts/setup.sh", "scripts/uv_settings.py"):
        executable(root / path, "").write_bytes((ROOT / path).read_bytes())
    ways = {"VENV": tmp_path / "venv", "PYTHON": tmp_path / "python", "PATH": f"{tmp_path}/tools:{os.environ['PATH']}"}
    code, _, told = shell(root / "uv_setup.sh", **ways)
    assert code == 0 and told.endswith("installs with uv 9.9")
    code, _, told = shell(root / "env_setup.sh", "cluster,ros", **ways)
    assert code == 0 and told.endswith("installing plaudit, .[cluster,ros] at the versions of requirements/lock.txt"), (
        told
    )
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0].startswith("venv") and asked[-1].endswith(
        "--build-constraints requirements/lock.txt -e .[cluster,ros]"
    )

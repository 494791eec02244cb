"""Where Rerun shows running episodes; tests/tools has the tests with Rerun itself."""

import sys

import pytest

from command import plaudit
from conftest import counting_episode
from plaudit.config import dump_yaml, load, parse
from plaudit.data.store import Store
from plaudit.errors import ConfigError, MissingExtra
from plaudit.rollout.run import RunConfig
from training_runs import train_config

RUN = {"robot": {"type": "sim", "env": {"type": "lift"}}, "policy": {"inference": {"type": "sequential"}}}


@pytest.mark.parametrize("target", ["viewer", "runs/lift.rrd", "rerun+http://127.0.0.1:9876/proxy"])
def test_a_viewer_a_file_and_an_address_are_targets(target):
    assert parse(RunConfig, {**RUN, "rerun": target}).rerun == target


@pytest.mark.parametrize("target", ["view", "lift.mcap", "http://lab:9876"])
def test_anything_else_is_refused(target):
    with pytest.raises(ConfigError, match=r"write viewer, a file like run.rrd"):
        parse(RunConfig, {**RUN, "rerun": target})


def test_a_file_of_others_names_no_viewer_on_another_machine(tmp_path):
    (tmp_path / "run.yaml").write_text(dump_yaml({**RUN, "rerun": "rerun+http://lab.example:9876/proxy"}))
    with pytest.raises(ConfigError, match=r"--allow-host lab\.example"):
        load(RunConfig, tmp_path / "run.yaml")


def test_a_missing_package_is_reported_before_the_robot_is_connected(monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingExtra, match=r"pip install 'plaudit\[rerun\]'"):
        parse(RunConfig, {**RUN, "rerun": "viewer"}).start(None)


def test_a_synchronous_run_refuses_it():
    with pytest.raises(ConfigError, match="rerun"):
        train_config("env=lift learner=sac rerun=viewer")


def test_view_asks_for_one_of_viewer_and_file(tmp_path, monkeypatch):
    with Store.create(tmp_path / "store") as store:
        store.append(counting_episode())
    for words in ([], ["--rerun", "--save", "x.rrd"]):
        assert "--save FILE.rrd" in plaudit("data", "view", "store", "0", *words, cwd=tmp_path, ok=False)
    monkeypatch.setitem(sys.modules, "rerun", None)
    said = plaudit("data", "view", "store", "0", "--save", "x.rrd", cwd=tmp_path, ok=False)
    assert "pip install 'plaudit[rerun]'" in said and not (tmp_path / "x.rrd").exists()

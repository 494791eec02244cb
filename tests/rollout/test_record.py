"""`plaudit record` as a person uses it: at a terminal, by keyboard, in a simulation."""

import io
import os
import re
import time
from types import SimpleNamespace
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from command import plaudit
from conftest import counting_episode
from plaudit.cli.common import open_or_create
from plaudit.cli.record import _how_to_move, _is_auto, _next_seed
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.rollout.operator import OperatorConfig, OperatorKeys
from plaudit.rollout.teleop import BUTTON, EVENT, SHARED_KEYS, KeyboardConfig
from plaudit.types import HUMAN, EnvSpec
from pty_process import PtyProcess
from waiting import stretch

WORDS = ("--env", "lift", "--countdown", "0", "--steps", "2000", "robot.env.obs=state")


def recording(folder, *words: str) -> PtyProcess:
    return PtyProcess("record", str(folder / "demos"), *WORDS, *words)


def test_episodes_are_driven_by_keys_marked_discarded_and_continued(tmp_path):
    with recording(tmp_path, "--episodes", "2") as run:
        run.expect("key pairs, one per action dimension: ik jl um nb")
        run.expect("note: no live view of the cameras: sim has no cameras", "scene ready?")
        run.press(" ")
        run.expect("running")
        time.sleep(stretch(1))  # until the first step: keys before it move nothing
        run.press("bi")  # close the gripper, and forward
        time.sleep(stretch(1))  # the keys are released meanwhile
        run.press("s")
        run.expect("the episode was marked as a success", "episode 0", "1 to go", "scene ready?")
        run.press(" ")
        run.expect("running")
        time.sleep(stretch(1))
        run.press("d")
        run.expect("discarded, kept as episode 0 of", "scene ready?")
        run.press("q")
        run.expect("stopped by the operator")
    store = Store.open(tmp_path / "demos")
    (episode,) = [episode for _, episode in store]
    assert (episode.control_mode == HUMAN).all()
    assert episode.actions[:, 0].max() == 0.25 and episode.actions[-1, 3] == -1  # the gripper stays as it was told
    assert not episode.actions[-1, :3].any()  # and the rest stops when the key is released
    assert store.ledger.labels(0).success_once
    with recording(tmp_path, "--episodes", "2") as run:
        run.expect("demos has 1 of 2 episodes", "scene ready?")
        run.press(" ")
        run.expect("running")
        time.sleep(stretch(1))
        run.press("f")
        run.expect("demos: 2 of 2 episodes")
        assert run.wait() == 0
    assert not Store.open(tmp_path / "demos").ledger.labels(1).success_once


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--robot", "igris_b", "--env", "lift"], "--env lift is a simulated task, but --robot is igris_b"),
        (["--env", "lifft"], "there is no env 'lifft'; did you mean 'lift'?"),
        (["--env", "lift"], "teleop by keyboard needs a terminal"),
        (["--env", "lift", "--teleop", "gamepad", "teleop.device=/dev/none"], "is a gamepad plugged in?"),
        (["--env", "lift", "--teleop", "scripted", "--auto", "teleop.gripper=1"], "unknown key 'teleop.gripper'"),
    ],
)
def test_what_cannot_be_recorded_leaves_nothing_behind(words, sentence, tmp_path):
    said = plaudit("record", "demos", *words, cwd=tmp_path, ok=False)
    assert sentence in " ".join(said.split())
    assert not (tmp_path / "demos").exists()


def test_a_mark_that_a_kill_left_without_its_label_counts_when_the_store_is_opened_again(tmp_path):
    with Store.create(tmp_path / "demos") as store:
        store.append(counting_episode(4, meta={"operator": "success"}))  # killed before the label was written
    for _ in range(2):
        with open_or_create(tmp_path / "demos") as store:
            (label,) = store.ledger.history(0)
        assert (label.source, label.labels().success.tolist()) == ("operator", [False] * 4 + [True])


@pytest.mark.parametrize(("key", "flag", "attends"), [(None, None, True), (True, None, False), (True, False, True)])
def test_the_config_says_whether_a_person_attends_unless_a_flag_does(key, flag, attends, monkeypatch):
    monkeypatch.setattr("plaudit.rollout.operator.has_terminal", lambda: True)
    assert _is_auto(SimpleNamespace(operator=OperatorConfig(auto=key)), flag) is not attends


@pytest.mark.parametrize(("action_dim", "clashes"), [(4, False), (5, True)])
def test_a_key_that_marks_an_episode_must_not_move_the_robot(action_dim, clashes, monkeypatch):
    """The operator's listener would take it, and the joint would not move."""
    monkeypatch.setattr(SHARED_KEYS, "descriptor", 0)
    teleop = KeyboardConfig(keys=KeyboardConfig.hand["keys"])
    config = SimpleNamespace(teleop=teleop, operator=OperatorConfig(keys=OperatorKeys(success="g")))
    engine = SimpleNamespace(env_spec=EnvSpec(1, action_dim, {}))
    if clashes:
        with pytest.raises(DataError, match=r"key 'g' stands for success .* and moves the robot"):
            _how_to_move(engine, config)
    else:
        assert _how_to_move(engine, config) == "key pairs, one per action dimension: ik jl um nb"


def test_no_episode_begins_like_one_that_is_kept(tmp_path):
    with Store.create(tmp_path / "demos") as store:
        assert _next_seed(store, 7) == 7
        for seed in (7, 9):  # 8 was discarded
            store.append(counting_episode(4, meta={"seed": seed}))
        assert _next_seed(store, 7) == 10 and _next_seed(store, 50) == 50


def test_a_person_corrects_a_policy(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: {type: scripted, expert: lift, horizon: 1}")
    words = ["--env", "lift", "--policy", policy, "--teleop", "scripted", "--auto", "--episodes", 1, "--steps", 30]
    plaudit("record", "demos", *words, "teleop.patience=1", "teleop.delay=0", "--seed", 1, cwd=tmp_path)
    (episode,) = [episode for _, episode in Store.open(tmp_path / "demos")]
    assert 0 < np.count_nonzero(episode.control_mode == HUMAN) < episode.steps


# With chunks, the robot is controlled in a process of its own.
@pytest.mark.parametrize("horizon", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_person_corrects_a_policy_by_the_keys_of_demonstrations(horizon, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"policy: {{type: scripted, expert: lift, horizon: {horizon}}}")
    with recording(tmp_path, "--episodes", "1", "--policy", str(policy)) as run:
        run.expect("key pairs, one per action dimension: ik jl um nb", "scene ready?")
        run.press(" ")
        run.expect("running")
        time.sleep(stretch(0.5))  # the policy acts
        run.press("uu")
        time.sleep(stretch(1))  # up, until the policy acts again
        run.press("s")
        run.expect("the episode was marked as a success", "demos: 1 of 1 episode")
        assert run.wait() == 0
    (episode,) = [episode for _, episode in Store.open(tmp_path / "demos")]
    by_person = episode.control_mode == HUMAN
    assert 0 < np.count_nonzero(by_person) < episode.steps and not by_person[-1]
    assert episode.actions[by_person, 2].max() == 0.25


def test_the_keyboard_moves_where_the_operator_has_a_gamepad(tmp_path):
    os.mkfifo(pad := tmp_path / "pad")
    with pad.open("r+b", buffering=0) as buttons:  # of both ends, so it does not wait
        words = ("--episodes", "1", "operator.sources=[gamepad]", f"operator.device={pad}")
        with recording(tmp_path, *words) as run:
            run.expect("scene ready?")
            buttons.write(EVENT.pack(0, 1, BUTTON, 7))  # start
            run.expect("running")
            time.sleep(stretch(1))
            run.press("u")
            time.sleep(stretch(1))
            buttons.write(EVENT.pack(0, 1, BUTTON, 0))  # success
            run.expect("demos: 1 of 1 episode")
    (episode,) = [episode for _, episode in Store.open(tmp_path / "demos")]
    assert episode.actions[:, 2].max() == 0.25


@pytest.mark.slow
def test_the_live_view_shows_what_is_recorded_and_ends_with_the_command(tmp_path):
    words = ("--env", "lift", "--episodes", "2", "--countdown", "0", "--steps", "30", "--view", "browser")
    with PtyProcess("record", str(tmp_path / "demos"), *words) as run:
        run.expect("live view of the cameras: http://localhost:", "scene ready?")
        address = re.search(r"http://\S+/", run.text)[0]
        run.press(" ")
        run.expect("episode 0: 30 steps, ended by: steps; 1 to go", "scene ready?")
        shown = np.asarray(Image.open(io.BytesIO(urlopen(f"{address}frame/front").read())))
        (episode,) = [episode for _, episode in Store.open(tmp_path / "demos")]
        np.testing.assert_array_equal(shown, episode.frames["front"][-1])
        run.press("q")
        run.wait()
    with pytest.raises(URLError):
        urlopen(address)

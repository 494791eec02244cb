"""`plaudit robot`, in this process; twins over memory."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from plaudit.cli import app
from plaudit.data.normalize import ACTION, STATE, Normalizer, Stats
from plaudit.errors import RobotError
from plaudit.robots.ros.check import Row, check
from plaudit.robots.transport.messages import JOINT_STATE, JointState, encode_joint_state
from plaudit.robots.twin.faults import Fault
from twins import robot_config, twin_thread

SLOW = {"HZ": 5, "silent_after_ms": 5000.0, "late_after_ms": 5000.0}  # what a busy machine keeps up with


def rows_of(config, seconds: float = 1.0) -> dict[str, Row]:
    return {row.what: row for row in check(config, seconds)}


def test_a_robot_that_sends_what_it_should_passes(tmp_path):
    config = robot_config(tmp_path, **SLOW)
    with twin_thread(config):
        rows = rows_of(config)
    assert [row.problem for row in rows.values()] == [""] * 5
    assert (rows["joints"].seen, rows["head"].seen, rows["commands"].seen) == ("24 joints", "48x64", "nothing")


@pytest.mark.parametrize(
    ("fault", "what", "seen", "problem"),
    [
        ("size=left", "left", "24x32", "messages are of no use: of another size"),
        ("nan", "joints", "24 joints, some NaN", "messages are of no use: not finite"),
        ("joints", "joints", "23 joints", "messages are of no use: with other joints"),
        ("freeze=right", "right", "nothing", "nothing arrives"),
    ],
)
def test_what_is_wrong_stands_in_its_row(tmp_path, fault, what, seen, problem):
    config = robot_config(tmp_path, **SLOW, first_message_s=1.0)
    with twin_thread(config) as twin:
        twin.begin(Fault.parse(fault))
        row = rows_of(config, 0.3)[what]
    assert row.seen == seen and row.problem.endswith(problem)


def test_a_robot_that_is_slower_than_its_rate_fails(tmp_path):
    sender = robot_config(tmp_path, **SLOW)
    with twin_thread(sender):
        rows = rows_of(robot_config(tmp_path, **(SLOW | {"HZ": 50})))
    assert rows["head"].problem == "too slow for 50 Hz"


def test_somebody_else_who_commands_is_found(tmp_path):
    config = robot_config(tmp_path, **SLOW)
    topics, names = config.topics(), config.params().joint_names
    with twin_thread(config):
        other, sent = config.transport.build(), encode_joint_state(JointState(1, names, np.zeros(24)))

        def chatter(data: bytes) -> None:
            other.publish(topics.joint_commands, JOINT_STATE, sent)

        other.subscribe(topics.joint_states, JOINT_STATE, chatter)
        assert rows_of(config, 0.5)["commands"].problem == "somebody else is sending commands; stop it first"
        other.close()


def test_statistics_have_to_fit(tmp_path):
    def saved(size: int) -> str:
        stats = {key: Stats(np.zeros(size, np.float32), np.ones(size, np.float32)) for key in (STATE, ACTION)}
        Normalizer(stats).save(tmp_path / f"{size}.json")
        return str(tmp_path / f"{size}.json")

    said = {}
    for path in (saved(24), saved(7), str(tmp_path / "none.json")):
        config = robot_config(tmp_path, **SLOW, norm_stats_file_path=path, first_message_s=0.01)
        said[path] = rows_of(config, 0.0)["statistics"].problem
    assert list(said.values())[:2] == ["", "they are of something else"] and "none.json" in list(said.values())[2]


def run(*words):
    return CliRunner().invoke(app, ["robot", *map(str, words)])


def test_the_command_prints_a_table_and_returns_1_when_anything_is_wrong(tmp_path):
    config = robot_config(tmp_path, **SLOW)
    memory = ["--set", "transport.type=memory", "--set", f"transport.bus={tmp_path}", "--seconds", 1]
    with twin_thread(config):
        good = run("check", "igris_b", "--params", config.inference_runtime_params_config, *memory)
        (tmp_path / "wrong.json").write_text(json.dumps(SLOW | {"mono_image_resize": {"width": 9, "height": 9}}))
        bad = run("check", "igris_b", "--inference_runtime_params_config", tmp_path / "wrong.json", *memory)
    assert good.exit_code == 0 and good.output.count(" ok") == 5, good.output
    assert bad.exit_code == 1 and "9x9" in bad.output and "48x64" in bad.output


def test_robots_are_listed_and_those_without_topics_are_not_checked():
    listed = run("list").output
    assert all(name in listed for name in ("igris_b", "igris_c", "lerobot", "sim"))
    refused = run("check", "sim")
    assert isinstance(refused.exception, RobotError) and "robot 'sim' has no topics" in str(refused.exception)


def test_a_fault_that_nobody_knows_is_told():
    for wrong, said in (("slow", "cannot fail with 'slow'"), ("late=soon", "write KIND"), ("nan@x", "write KIND")):
        with pytest.raises(RobotError, match=said):
            Fault.parse(wrong)

"""`plaudit robot`, in this process; twins over memory."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from plaudit.cli import load_app
from plaudit.data.normalize import ACTION, STATE, Normalizer, Stats
from plaudit.errors import RobotError, RobotSilent
from plaudit.robots.check import RobotCheck, check_motion, check_observations, check_topics
from plaudit.robots.config import SafetyConfig
from plaudit.robots.transport.messages import JOINT_STATE, STRING, JointState, encode_joint_state, encode_string
from plaudit.robots.twin.twin import FAULT_TOPIC, Fault
from puppet import PuppetConfig, lines
from twins import inject, robot_config, twin_thread

SLOW = {"HZ": 2}  # a control rate that a twin at 50 Hz satisfies on a busy machine too


def check(config, seconds: float = 1.0) -> dict[str, RobotCheck]:
    return {result.name: result for result in check_topics(config, seconds)}


def test_a_robot_that_sends_what_it_should_passes(tmp_path):
    with twin_thread(robot_config(tmp_path)):
        results = check(robot_config(tmp_path, **SLOW))
    assert [result.problem for result in results.values()] == [""] * 6
    received = [results[name].received for name in ("joints", "head", "commands")]
    assert received == ["24 joints", "48x64", "nothing"]


@pytest.mark.parametrize(
    ("fault", "name", "received", "problem"),
    [
        ("size=left", "left", "24x32", "messages were dropped: wrong size"),
        ("nan", "joints", "24 joints, some NaN", "messages were dropped: not finite"),
        ("joints", "joints", "23 joints", "messages were dropped: missing joints"),
        ("freeze=right", "right", "nothing", "nothing arrives"),
    ],
)
def test_a_problem_is_in_the_row_of_its_topic(tmp_path, fault, name, received, problem):
    config = robot_config(tmp_path, first_message_s=1.0)
    with twin_thread(config) as twin:
        inject(twin, fault)
        check(config, 0.1)  # what was on its way when the fault began
        result = check(config, 0.3)[name]
    assert received in result.received
    assert result.problem.endswith(problem)


def test_a_robot_that_is_slower_than_its_rate_fails(tmp_path):
    with twin_thread(robot_config(tmp_path, **SLOW)):
        results = check(robot_config(tmp_path, HZ=50))
    assert results["head"].problem == "too slow for 50 Hz"


def test_another_process_that_sends_commands_is_reported(tmp_path):
    config = robot_config(tmp_path)
    topics, names = config.topics(), config.params().joint_names
    with twin_thread(config):
        other, sent = config.transport.build(), encode_joint_state(JointState(1, names, np.zeros(24)))

        def chatter(data: bytes) -> None:
            other.publish(topics.joint_commands, JOINT_STATE, sent)

        other.subscribe(topics.joint_states, JOINT_STATE, chatter)
        assert check(config, 0.5)["commands"].problem == "another process sends commands; stop it first"
        other.close()


def test_statistics_have_to_fit(tmp_path):
    def saved(size: int) -> str:
        stats = {key: Stats(np.zeros(size, np.float32), np.ones(size, np.float32)) for key in (STATE, ACTION)}
        Normalizer(stats).save(tmp_path / f"{size}.json")
        return str(tmp_path / f"{size}.json")

    problems = []
    for path in (saved(24), saved(7), str(tmp_path / "none.json")):
        config = robot_config(tmp_path, norm_stats_file_path=path, first_message_s=0.01)
        problems.append(check(config, 0.0)["statistics"].problem)
    assert problems[:2] == ["", "they do not fit this robot"] and "none.json" in problems[2]


def run(*args):
    return CliRunner().invoke(load_app(), ["robot", *map(str, args)])


def test_the_command_prints_a_table_and_returns_1_when_anything_is_wrong(tmp_path):
    memory = ["--set", "transport.type=memory", "--set", f"transport.bus={tmp_path}", "--seconds", 1]
    with twin_thread(robot_config(tmp_path)):
        config = robot_config(tmp_path, **SLOW)
        good = run("check", "igris_b", "--params", config.inference_runtime_params_config, *memory)
        (tmp_path / "wrong.json").write_text(json.dumps(SLOW | {"mono_image_resize": {"width": 9, "height": 9}}))
        bad = run("check", "igris_b", "--inference_runtime_params_config", tmp_path / "wrong.json", *memory)
    assert good.exit_code == 0 and good.output.count(" ok") == 6, good.output
    assert bad.exit_code == 1 and "9x9" in bad.output and "48x64" in bad.output


def test_any_robot_is_checked_and_moved_within_its_limits_on_request():
    lift = ["--set", "env.type=lift", "--set", "env.obs=both", "--set", "env.image_size=[32,32]", "--set", "hz=5"]
    said = run("check", "sim", *lift, "--seconds", 0.2, "--move")
    assert said.exit_code == 0, said.output + str(said.exception)
    rows = {line.split()[0]: line for line in said.output.splitlines()}
    assert rows.keys() >= {"state", "front", "limits", "motion"} and "32x32" in rows["front"]
    files = run("check", "sim", "--params", "params.json")
    assert "robot 'sim' has no params and no topics; write its settings with --set" in str(files.exception)


def test_a_robot_moves_a_little_way_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.robots.check.MOTION_S", 0.8)
    config = robot_config(tmp_path, joint_max_velocity=1.5, joint_max_acceleration=10.0)
    with twin_thread(config) as twin:
        before = twin.joints.position.copy()
        result = check_motion(config)
        assert not result.problem and result.expected == "0.05 and back"
        assert np.abs(twin.joints.position - before).max() < 0.01 and not twin.joints.monitor.count
        inject(twin, "deaf")
        assert check_motion(config).problem == "joint 'right_shoulder_pitch' did not follow: it moved by 0"


def test_params_with_joints_that_the_robot_does_not_have_are_told(tmp_path):
    with twin_thread(robot_config(tmp_path)) as twin:
        names = ("right_sholder_pitch", *robot_config(tmp_path).params().joint_names[1:])
        wrong = robot_config(tmp_path, joint_names=names, first_message_s=0.3)
        assert "24 joints" in check(wrong, 0.1)["joints"].received
        with (
            wrong.build() as robot,
            pytest.raises(RobotSilent, match="it lacks right_sholder_pitch; did you mean"),
        ):
            robot.reset()
        assert not twin.joints.num_commands


def test_a_joint_outside_of_its_limits_is_told(tmp_path):
    config = robot_config(tmp_path, start_pose=None, joint_upper=[2.8, 1.6, 1.6, 0.1, 1.6, 0.8] * 2 + [1.6] * 12)
    with twin_thread(config):
        narrow = config.model_copy(update={"safety": SafetyConfig(upper={"right_elbow": -2.0})})
        problem = check(narrow, 0.1)["limits"].problem
    assert problem == "joint 'right_elbow' is at -0.950, outside of -2.2 to -2"


def test_a_robot_that_is_not_measured_or_not_limited_is_not_moved(tmp_path):
    puppet = PuppetConfig(log=tmp_path / "log", fps=1000.0)
    assert [result.problem for result in check_observations(puppet, 0.01)] == [""] * 4
    assert "does not say where its joints are (joint_position()), so it was not" in check_motion(puppet).problem
    config = robot_config(tmp_path)
    with twin_thread(config):
        wide = {"joint_lower": [-1e9] * 24, "joint_upper": [1e9] * 24, "start_pose": None}
        with pytest.raises(RobotError, match=r"this robot has none; set safety\.max_velocity first"):
            check_motion(robot_config(tmp_path, **wide))
    assert not lines(tmp_path / "log", "act")


def test_robots_are_listed_and_those_without_topics_have_no_twin():
    listed = run("list").output
    assert all(name in listed for name in ("igris_b", "igris_c", "lerobot", "sim"))
    refused = run("twin", "sim", "--set", "env.type=lift")
    assert isinstance(refused.exception, RobotError) and "robot 'sim' has no topics" in str(refused.exception)


def test_a_fault_that_does_not_exist_is_refused():
    for wrong, message in (
        ("slow", "has no fault 'slow'"),
        ("late=soon", "write KIND"),
        ("nan@x", "write KIND"),
        ("back=inf", "from 0 to"),
    ):
        with pytest.raises(RobotError, match=message):
            Fault.parse(wrong)


def test_a_message_of_somebody_else_does_not_control_the_terminal(tmp_path, capsys):
    config = robot_config(tmp_path)
    with twin_thread(config):
        sender = config.transport.build()
        sender.publish(FAULT_TOPIC, STRING, encode_string("x\x1b]0;owned\x07\x9b2J\u202e" + "y" * 9999))
        sender.close()
    printed = capsys.readouterr().err
    assert printed.startswith("ignored on /twin/fault: a twin has no fault 'x\\x1b]0;owned")
    assert not set(printed) & {"\x1b", "\x07", "\x9b", "\u202e"} and len(printed) < 500

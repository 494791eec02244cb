"""A twin with a task: joints move the arm, cameras show the scene, and success is for evaluation only."""

import numpy as np
import pytest
from typer.testing import CliRunner

from leaves import leaves
from plaudit.cli import load_app
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import RobotError
from plaudit.robots.check import check_topics
from plaudit.robots.twin.log import read_log
from plaudit.robots.twin.task import TwinTask, handles
from plaudit.rollout.engine import InferenceConfig, TeleopOnly
from plaudit.rollout.operator import OperatorCommand
from plaudit.rollout.scripted_teleop import PATIENCE_S, ScriptedLeader, ScriptedTeleopConfig
from plaudit.rollout.teleop import TopicConfig
from plaudit.types import HUMAN, Labels
from slow import slow_but
from twins import inject, robot_config, twin_thread

SMALL = {"mono_image_resize": {"width": 32, "height": 24}}
ALWAYS = ScriptedTeleopConfig(patience=1, delay=0, duration=1_000_000)


@pytest.fixture
def params(tmp_path):
    return robot_config(tmp_path, **SMALL).params()


def cube(task: TwinTask) -> np.ndarray:
    return task.env.task_state().cube_pos[0]


def command(task: TwinTask, target: np.ndarray) -> None:
    task.watch(target)
    task.reset_if_due()


def red_center(image: np.ndarray) -> np.ndarray:
    """[2] the mean pixel of the red cube."""
    red, green, blue = image.astype(int).transpose(2, 0, 1)
    pixels = np.argwhere(red > 1.8 * np.maximum(green, blue))
    assert len(pixels), "no cube is in sight"
    return pixels.mean(axis=0)


@pytest.mark.parametrize("name", ["lift", "pick_place", "push"])
def test_joint_commands_of_a_person_move_the_cube_until_the_task_is_done(params, name):
    task = TwinTask(name, params, seed=3)
    leader, before, joints, said = ScriptedLeader(task, ALWAYS), cube(task), np.array(params.start_pose), ""
    while not said:
        task.step(joints)
        target, said = leader()
        joints = joints if target is None else target
        command(task, joints)
    assert said == OperatorCommand.SUCCESS and task.privileged()["success"]
    assert np.linalg.norm(cube(task) - before) > 0.04
    assert task.num_scenes == 0  # the arm passed no start pose on its way
    task.close()


def test_a_report_that_nobody_has_heard_comes_again(params):
    task = TwinTask("lift", params)
    leader = ScriptedLeader(task, ScriptedTeleopConfig(budget_s=0))
    reports = [leader()[1] for _ in range(int(2 * PATIENCE_S * params.HZ) + 1)]
    assert [report for report in reports if report] == 2 * [OperatorCommand.FAILURE]
    task.close()


def test_a_person_who_helps_waits_for_a_policy_and_then_loses_patience(params):
    task = TwinTask("lift", params)
    leader = ScriptedLeader(task, ScriptedTeleopConfig(patience=10, delay=2), waits=True)
    assert all(leader(holding=True) == (None, "") for _ in range(int(2 * PATIENCE_S * params.HZ)))
    helps = [leader(holding=False)[0] is not None for _ in range(20)]
    assert helps == 12 * [False] + 8 * [True]
    task.close()


def test_the_first_three_joints_are_forward_left_and_up_and_the_fourth_closes_the_gripper(params):
    task = TwinTask("lift", params)
    home, pose = task.env.task_state().tip_pos[0], np.array(params.start_pose)
    for axis, joint in enumerate(handles(params.joint_names)[:3]):
        pose = np.array(params.start_pose)
        pose[joint] += 0.1
        for _ in range(8):
            task.step(pose)
        moved = task.env.task_state().tip_pos[0] - home
        assert np.argmax(np.abs(moved)) == axis and moved[axis] == pytest.approx(0.05, abs=0.01)
    is_open = task.image("right")  # the wrist camera sees the fingers
    pose[handles(params.joint_names)[3]] -= 0.25
    for _ in range(8):
        task.step(pose)
    assert np.abs(task.image("right").astype(int) - is_open).max() > 50
    task.close()


def test_the_handles_are_joints_of_the_right_arm_or_the_first_ones():
    assert handles(["waist", "right_a", "right_b", "right_c", "right_d", "right_e"]) == [1, 2, 3, 4]
    assert handles(["a", "b", "c", "d", "e"]) == [0, 1, 2, 3]


def test_cameras_show_the_cube_from_the_front_the_side_and_the_wrist_in_the_robots_size(params):
    task = TwinTask("lift", params, seed=1)
    images = [task.image(camera) for camera in params.camera_names]
    assert {image.shape for image in images} == {(24, 32, 3)}
    assert all(len(np.unique(image.reshape(-1, 3), axis=0)) > 8 for image in images)
    front, side, wrist = (red_center(image) for image in images)
    assert not np.allclose(front, side, atol=1) or not np.allclose(side, wrist, atol=1)
    task.close()


def test_a_new_scene_begins_when_the_robot_is_back_at_its_start_pose(params):
    task, start = TwinTask("lift", params, seed=7), np.array(params.start_pose)
    first = cube(task)
    away, nearly = start + 0.2, start + 0.01
    for target in (start, nearly, start):  # it has not left yet
        command(task, target)
    assert np.array_equal(cube(task), first)
    for target in (away, nearly):
        command(task, target)
    assert task.num_scenes == 0
    command(task, start)
    assert (task.num_scenes, task.seed) == (1, 7)
    assert np.array_equal(cube(task), first)  # the first episode has the seed that was asked for
    for target in (away, start):
        command(task, target)
    assert task.seed == 8 and not np.allclose(cube(task), first)
    again = TwinTask("lift", params, seed=8)
    assert np.array_equal(cube(task), cube(again))
    for each in (task, again):
        each.close()


def test_an_episode_that_a_person_leads_is_recorded_with_a_privileged_flag_and_the_next_scene_is_new(tmp_path):
    config = robot_config(tmp_path, **SMALL)
    task = TwinTask("lift", config.params(), seed=3)
    settings = InferenceConfig(stop_on="success", max_episode_steps=20_000, realtime=False)
    with twin_thread(config, task=task, leader=ScriptedLeader(task, ALWAYS), log=tmp_path / "sent.jsonl"):
        with TeleopOnly(config, settings, TopicConfig(robot=config, timeout_s=60)) as engine:
            (episode,) = engine.episodes(1)
        with config.build() as robot:
            following = robot.reset().images
            assert robot.privileged() == {"success": False}
    assert episode.meta["ended"] == "success" and np.flatnonzero(episode.success).tolist() == [episode.steps - 1]
    assert (episode.control_mode == HUMAN).mean() > 0.9
    for seed, images in (3, {camera: frames[0] for camera, frames in episode.frames.items()}), (4, following):
        expected = TwinTask("lift", config.params(), seed=seed)
        for camera in ("head", "left"):
            assert np.allclose(red_center(images[camera]), red_center(expected.image(camera)), atol=1)
        expected.close()
    log = read_log(tmp_path / "sent.jsonl")
    assert {entry["seed"] for entry in log} == {3, 4} and any(entry["success"] for entry in log)
    assert not any(entry["violations"] for entry in log)
    check_that_no_learner_sees_it(tmp_path / "store", episode)


def check_that_no_learner_sees_it(folder, episode):
    with Store.create(folder) as store:
        store.append(episode)
        store.ledger.append(0, Labels.from_cutoff(steps=episode.steps, cutoff=None, source="classifier"))
        batch = ReplaySampler(store, seed=0).sample(500)
    assert (batch.reward == 0).all()  # the judge saw no success
    assert not [name for name in leaves(batch) if "success" in name or "privileged" in name]
    assert batch.state.shape[1] == 24


def test_a_robot_without_a_simulation_reports_nothing(tmp_path):
    config = robot_config(tmp_path)
    with twin_thread(config), config.build() as robot:
        robot.reset()
        assert robot.privileged() == {}


@pytest.mark.parametrize("name", slow_but("igris_b", of=("igris_b", "igris_c")))
def test_a_twin_with_a_task_passes_the_robots_check_and_can_fail(tmp_path, name):
    config = robot_config(tmp_path, name, HZ=2, **SMALL)
    with twin_thread(config, task=TwinTask("push", config.params())) as twin:
        assert [result.problem for result in check_topics(config, 1.0)] == [""] * 6
        inject(twin, "size=left")
        check_topics(config, 0.6)  # what was on its way when the fault began
        (left,) = [result for result in check_topics(config, 1.0) if result.name == "left"]
    assert left.received == "12x16" and "wrong size" in left.problem


@pytest.mark.parametrize(
    ("changes", "name", "sentence"),
    [
        ({}, "lifft", "'lifft' is not a task for a twin; did you mean 'lift'?"),
        ({"start_pose": None}, "lift", "needs a start pose; set start_pose"),
        ({"camera_names": []}, "lift", "needs cameras; set camera_names"),
        ({"mono_image_resize": {"width": 1600, "height": 1200}}, "lift", "1600x1200.*the limit is 1280"),
    ],
)
def test_a_robot_that_cannot_show_a_task_is_refused_with_the_reason(tmp_path, changes, name, sentence):
    with pytest.raises(RobotError, match=sentence.replace("?", r"\?")):
        TwinTask(name, robot_config(tmp_path, **changes).params())
    with pytest.raises(RobotError, match="needs four joints, but the robot has 2"):
        handles(["a", "b"])


def test_a_leader_needs_a_task():
    result = CliRunner().invoke(load_app(), ["robot", "twin", "igris_b", "--leader", "always"])
    assert isinstance(result.exception, RobotError) and "add --task lift" in str(result.exception)

"""Against a package that stands in for lerobot: its base classes, its registry of names, and one robot."""

import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plaudit.contracts import check_robot
from plaudit.errors import MissingPackage, RobotError, RolloutError, RolloutFault, UnknownName
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.check import check_motion, check_observations
from plaudit.rollout import lerobot_teleop

FILES = {
    "draccus.py": """
        class ParsingError(Exception): ...

        def decode(cls, values):
            values = dict(values)
            made = cls.get_known_choices()[values.pop("type")]
            try:
                return made(**values)
            except TypeError as error:
                raise ParsingError(str(error)) from error
    """,
    "lerobot/__init__.py": "",
    "lerobot/cameras/__init__.py": """
        class CameraConfig:
            choices = {}

            @classmethod
            def get_known_choices(cls):
                return cls.choices
    """,
    "lerobot/cameras/opencv/__init__.py": """
        from lerobot.cameras import CameraConfig
        CameraConfig.choices["opencv"] = object
    """,
    "lerobot/robots/__init__.py": """
        class RobotConfig:
            choices = {}

            @classmethod
            def get_known_choices(cls):
                return cls.choices

        def make_robot_from_config(config):
            from lerobot.robots.two_joints import TwoJoints
            return TwoJoints(config)
    """,
    "lerobot/robots/a_broken_one/__init__.py": "import a_package_that_nobody_has",
    "lerobot/robots/two_joints/__init__.py": """
        import numpy as np
        from lerobot.robots import RobotConfig

        class TwoJointsConfig(RobotConfig):
            def __init__(self, port, cameras):
                self.port, self.cameras = port, cameras

        RobotConfig.choices["two_joints"] = TwoJointsConfig

        class TwoJoints:
            name = "two_joints"
            calibrated, wrong = True, None

            def __init__(self, config):
                self.config, self.position, self.is_connected = config, [0.0, 10.0], False

            def __str__(self):
                return "a TwoJoints"

            @property
            def observation_features(self):
                cameras = {name: (c["height"], c["width"], 3) for name, c in self.config.cameras.items()}
                return {"elbow.pos": float, "wrist.pos": float, **cameras}

            action_features = {"elbow.pos": float, "wrist.pos": float}
            is_calibrated = property(lambda self: self.calibrated)

            def connect(self, calibrate=True):
                assert not calibrate
                self.is_connected = True

            def disconnect(self):
                self.is_connected = False

            def get_observation(self):
                if self.wrong:
                    raise self.wrong
                images = {n: np.full((c["height"], c["width"], 3), 7, np.uint8) for n, c in self.config.cameras.items()}
                return {"elbow.pos": self.position[0], "wrist.pos": self.position[1], **images}

            def send_action(self, action):
                sent = {name: max(-90.0, min(90.0, value)) for name, value in action.items()}
                self.position = [sent["elbow.pos"], sent["wrist.pos"]]
                return sent
    """,
}
FILES["lerobot/teleoperators/__init__.py"] = """
    class TeleoperatorConfig:
        choices = {}

        @classmethod
        def get_known_choices(cls):
            return cls.choices

    def make_teleoperator_from_config(config):
        from lerobot.teleoperators.leader import Leader
        return Leader(config)
"""
FILES["lerobot/teleoperators/leader/__init__.py"] = """
    from lerobot.teleoperators import TeleoperatorConfig

    class LeaderConfig(TeleoperatorConfig):
        def __init__(self, port):
            self.port = port

    TeleoperatorConfig.choices["leader"] = LeaderConfig

    class Leader:
        calibrated, wrong, held = True, None, False
        action_features = {"elbow.pos": float, "wrist.pos": float}
        is_calibrated = property(lambda self: self.calibrated)

        def __init__(self, config):
            self.is_connected = False

        def __str__(self):
            return "a Leader"

        def connect(self, calibrate=True):
            self.is_connected = True

        def disconnect(self):
            self.is_connected = False

        def get_teleop_events(self):
            return {"is_intervention": self.held}

        def get_action(self):
            if self.wrong:
                raise self.wrong
            return {"wrist.pos": 2.0, "elbow.pos": 1.0}
"""
CAMERAS = {"front": {"type": "opencv", "width": 8, "height": 6}}


@pytest.fixture
def lerobot(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("lerobot", "draccus")]:
        del sys.modules[name]


def config_of(**changes) -> Any:
    options = {"port": "/dev/ttyACM0", "cameras": CAMERAS}
    base = {"type": "lerobot", "robot_type": "two_joints", "options": options, "realtime": False}
    return ROBOT_REGISTRY.parse(base | changes)


def build(**changes) -> Any:
    return config_of(**changes).build()


def test_a_robot_of_lerobots_keeps_our_contract(lerobot):
    with build() as robot:
        assert (robot.state_dim, robot.action_dim, robot.fps, robot.cameras) == (2, 2, 30.0, {"front": (6, 8)})
        check_robot(robot)


UNLIMITED = {"max_velocity": None, "max_acceleration": None}


def test_numbers_become_the_state_and_actions_go_out_by_name(lerobot):
    with build(safety=UNLIMITED) as robot:
        assert robot.reset().state.tolist() == [0.0, 10.0]
        robot.act(np.array([5.0, 200.0], np.float32))
        assert robot.observe().state.tolist() == [5.0, 90.0]  # lerobot's own limit
        robot.hold()
        assert robot.observe().state.tolist() == [5.0, 90.0]


def test_it_starts_softly_from_where_its_joints_are_and_keeps_the_limits_of_its_block(lerobot):
    safety = {"upper": {"wrist.pos": 11.0}, "max_velocity": {"elbow.pos": 30.0}, "max_acceleration": 450.0}
    with build(safety=safety) as robot:
        robot.reset()
        sent = []
        for _ in range(40):
            robot.act(np.array([5.0, 200.0], np.float32))
            sent.append(robot.last_command)
    assert sent[0].tolist() == [0.5, 10.5] and sent[1].tolist() == [1.5, 11.0]  # 450 / 30^2 a step, then 30 / 30
    assert np.diff(np.stack(sent), axis=0).max() <= 1.0 + 1e-5 and sent[-1].tolist() == [5.0, 11.0]
    with pytest.raises(RobotError, match=r"safety\.upper names joint 'wrist', which this robot does not have; did you"):
        build(safety={"upper": {"wrist": 1.0}})


def test_it_can_be_checked_and_moved(lerobot, monkeypatch):
    monkeypatch.setattr("plaudit.robots.check.MOTION_S", 0.3)
    monkeypatch.setattr("plaudit.robots.check.SETTLE_S", 0.1)
    config = config_of(fps=100.0, safety={"upper": {"wrist.pos": 9.0}})
    state, front, limits = check_observations(config, 0.01)
    assert (state.expected, front.received, state.problem) == ("2 numbers", "6x8", "")
    assert limits.problem == "joint 'wrist.pos' is at 10.000, outside of -1e+07 to 9"
    motion = check_motion(config_of(fps=100.0))
    assert not motion.problem and motion.expected == "4 and back"


def test_it_goes_to_its_start_pose(lerobot):
    with build(start_pose={"elbow.pos": 20.0, "wrist.pos": 0.0}, start_seconds=0.1) as robot:
        assert robot.reset().state.tolist() == [20.0, 0.0]
    with pytest.raises(RobotError, match="start_pose names 'elbow', which two_joints does not take; did you mean"):
        build(start_pose={"elbow": 0.0})


def test_a_device_that_fails_is_told_in_a_sentence(lerobot):
    with build() as robot:
        robot._robot.wrong = ConnectionError("the bus does not answer")
        with pytest.raises(RobotError, match="a TwoJoints: get_observation failed: the bus does not answer"):
            robot.observe()
        robot._robot.wrong, robot._robot.position = None, [np.nan, 0.0]
        with pytest.raises(RobotError, match="reports NaN or infinity for 'elbow"):
            robot.observe()


def test_one_that_is_not_calibrated_is_not_driven(lerobot, monkeypatch):
    from lerobot.robots.two_joints import TwoJoints  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    monkeypatch.setattr(TwoJoints, "calibrated", False)
    with pytest.raises(RobotError, match="not calibrated; run: lerobot-calibrate"):
        build()


def test_unknown_names_and_options_are_told(lerobot):
    with pytest.raises(UnknownName, match="lerobot has no robot 'two_joint'; did you mean 'two_joints'"):
        build(robot_type="two_joint")
    with pytest.raises(UnknownName, match="lerobot has no camera 'opencw'; did you mean 'opencv'"):
        build(options={"port": "", "cameras": {"front": {"type": "opencw"}}})
    with pytest.raises(RobotError, match=r"cannot make a 'two_joints' with these options: .*'ports'"):
        build(options={"ports": "", "cameras": {}})


def test_without_lerobot_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "draccus", None)
    with pytest.raises(MissingPackage, match="is not installed; run: pip install lerobot"):
        build()


def teleop(action_dim: int = 2, **changes: Any) -> Any:
    config: Any = TELEOP_REGISTRY.parse(
        {"type": "lerobot", "teleop_type": "leader", "options": {"port": "/dev/ttyACM1"}} | changes
    )
    return config.build(action_dim)


def test_a_teleoperator_of_lerobots_acts_while_a_human_intervenes(lerobot):
    leader = teleop()
    assert leader.command() is None and not leader.relative
    leader._teleop.held = True
    assert leader.command().tolist() == [1.0, 2.0]  # in the order of its features
    leader.close()
    assert not leader._teleop.is_connected


def test_a_teleoperator_that_does_not_fit_or_fails_is_told_in_a_sentence(lerobot):
    with pytest.raises(RolloutError, match=r"a Leader sends 2 values \(elbow.pos, wrist.pos\), but the robot takes 7"):
        teleop(7)
    with pytest.raises(UnknownName, match="lerobot has no teleoperator 'leder'; did you mean 'leader'"):
        teleop(teleop_type="leder")
    with pytest.raises(RolloutError, match="lerobot cannot make a 'leader' with these options"):
        teleop(options={})
    leader = teleop()
    leader._teleop.held, leader._teleop.wrong = True, ConnectionError("the bus does not answer")
    with pytest.raises(RolloutFault, match="a Leader: get_action failed: the bus does not answer"):
        leader.command()


@pytest.fixture
def plain(lerobot, monkeypatch):
    """The leader without buttons, and the time."""
    from lerobot.teleoperators import leader  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    monkeypatch.delattr(leader.Leader, "get_teleop_events")
    monkeypatch.setattr(leader.Leader, "pose", (1.0, 2.0), raising=False)
    monkeypatch.setattr(
        leader.Leader, "get_action", lambda self: {"elbow.pos": self.pose[0], "wrist.pos": self.pose[1]}
    )
    now = [50.0]
    monkeypatch.setattr(lerobot_teleop.time, "monotonic", lambda: now[0])
    return leader.Leader, now


def test_a_plain_leader_takes_over_when_it_is_moved_and_hands_back_when_it_rests(plain):
    device, now = plain
    leader = teleop(takeover_motion=3.0, release_s=1.0)
    leader.begin_episode(SimpleNamespace(last_command=np.array([40.0, 50.0], np.float32)))
    device.pose = (3.0, 2.0)  # it trembles
    assert leader.command() is None
    device.pose = (7.0, 2.0)
    assert leader.command().tolist() == [40.0, 50.0]  # the robot does not jump to the leader
    now[0] += 0.5
    device.pose = (9.0, 1.0)
    assert leader.command().tolist() == [42.0, 49.0]
    now[0] += 0.9
    assert leader.command() is None


def test_without_a_policy_the_robot_follows_the_leaders_pose(plain):
    assert teleop(always=True).command().tolist() == [1.0, 2.0]


def test_a_device_of_lerobots_that_gives_displacements_moves_a_simulated_hand(plain, monkeypatch):
    device, _ = plain
    names = {"delta_x": 0, "delta_y": 1, "delta_z": 2, "gripper": 3}
    monkeypatch.setattr(device, "action_features", {"dtype": "float32", "shape": (4,), "names": names})
    monkeypatch.setattr(device, "connect", lambda self: None)  # without `calibrate`, as lerobot's gamepad
    given = {"delta_x": 0.5, "delta_y": 0.0, "delta_z": -1.0, "gripper": 2}
    monkeypatch.setattr(device, "get_action", lambda self: given)
    assert teleop(4).command().tolist() == [0.5, 0, -1, 1]
    given |= {"delta_x": 0.0, "delta_z": 0.0, "gripper": 1}
    assert teleop(4).command() is None
    with pytest.raises(RolloutError, match=r"moves an end-effector; set teleop\.end_effector"):
        teleop(6)  # not as positions of a small arm


def test_a_leader_arm_does_not_move_a_hand_by_its_joint_positions(plain, monkeypatch):
    workspace = {"lower": [0.0, 0.0, 0.0], "upper": [1.0, 1.0, 1.0]}
    hand = {"model": "arm.urdf", "frame": "hand", "workspace": workspace}
    monkeypatch.setattr(plain[0], "action_features", {f"joint_{n}.pos": float for n in range(6)})
    with pytest.raises(RolloutError, match=r"gives positions and no displacements; leave out teleop\.end_effector"):
        teleop(6, end_effector=hand)

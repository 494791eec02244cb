import json
import pickle
import shutil
from typing import Any

import pytest

from plaudit.errors import ConfigError
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.igris_b import IgrisBConfig


def config(folder, params=None, topics=None, name="igris_b") -> Any:
    files = {"params": params, "topics": topics}
    for what, keys in files.items():
        if keys is not None:
            (folder / f"{what}.json").write_text(json.dumps(keys))
    given = {f"inference_runtime_{k}_config": folder / f"{k}.json" for k, v in files.items() if v is not None}
    return ROBOT_REGISTRY.get(name)(**given)


def test_igris_b_is_the_reference_runtime(tmp_path):
    params = config(tmp_path).params()
    assert (params.HZ, params.action_chunk_size, params.policy_update_period) == (20, 50, 35)
    assert (params.proprio_state_dim, params.action_dim, params.camera_size) == (24, 24, (240, 320))
    assert params.camera_names == ("head", "left", "right")


def test_igris_c_has_other_joints_velocities_and_compressed_images(tmp_path):
    igris_c = config(tmp_path, name="igris_c")
    assert (igris_c.params().proprio_state_dim, igris_c.params().action_dim) == (34, 17)
    assert igris_c.topics().image_type("left") == "sensor_msgs/msg/CompressedImage"


def test_keys_of_a_users_file_replace_the_robots_own(tmp_path):
    own = config(tmp_path, params={"HZ": 10, "norm_stats_file_path": "stats.pkl"}, topics={"joint_states": "/js"})
    assert own.params().HZ == 10 and str(own.params().norm_stats_file_path) == "stats.pkl"
    assert own.params().action_dim == 24
    assert own.topics().joint_states == "/js" and own.topics().joint_commands == "/igris_b/joint_commands"


def test_a_users_files_travel_with_the_config_to_a_machine_without_them(tmp_path):
    own = config(tmp_path, params={"HZ": 10}, topics={"joint_states": "/js"})
    sent = [pickle.loads(pickle.dumps(own)), type(own).model_validate_json(own.model_dump_json())]
    for file in tmp_path.glob("*.json"):
        file.unlink()
    for received in sent:
        assert received.params().HZ == 10 and received.topics().joint_states == "/js"


def test_the_files_of_ones_own_robot_travel_with_its_config(tmp_path, monkeypatch):
    theirs = shutil.copytree(IgrisBConfig.folder, tmp_path / "arm")
    monkeypatch.setattr(IgrisBConfig, "folder", theirs)
    own = config(tmp_path, params={"HZ": 10})
    sent = pickle.dumps(own)
    assert own.model_dump(mode="json")["inference_runtime_params_config"] == {"HZ": 10}  # what the user wrote
    shutil.rmtree(theirs)
    received = pickle.loads(sent)
    assert received.params().HZ == 10 and received.params().action_dim == 24
    assert received.topics().joint_commands == "/igris_b/joint_commands"


def test_keys_that_travelled_without_their_file_are_named_by_what_they_are():
    with pytest.raises(ConfigError, match="the user's inference_runtime_params: key 'HZ' is 0"):
        IgrisBConfig(inference_runtime_params_config={"HZ": 0}).params()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"action_dims": 7}, "params.json: unknown key 'action_dims'; did you mean 'action_dim'"),
        ({"HZ": "fast"}, "params.json: key 'HZ' is \"fast\""),
        ({"HZ": 0}, "key 'HZ' is 0"),
        ({"mono_image_resize": {"width": 320}}, "key 'mono_image_resize.height' is missing"),
        ({"action_dim": 7}, "params.json: key 'action_dim' is 7, there are 24 joint_names"),
        ({"proprio_state_dim": 48}, "'proprio_state_dim' is 48; 24 joint_names with position make 24"),
        ({"joint_lower": [0.0]}, "key 'joint_lower' has 1 values for 24 joint_names"),
        ({"joint_lower": [9.0] * 24}, "joint 'right_shoulder_pitch' may move from 9.0 to 2.8"),
        ({"start_pose": [9.0] * 24}, "has joint 'right_shoulder_pitch' at 9.0, outside of -2.8 to 2.8"),
        ({"policy_update_period": 51}, "'policy_update_period' is 51, longer than a chunk of 50 actions"),
        ({"camera_names": ["head", "head"]}, "key 'camera_names' has a name twice"),
        (
            {"depth_ranges": {"heat": {"near": 1, "far": 2}}},
            "camera 'heat', which is not in camera_names; did you mean",
        ),
        ({"depth_ranges": {"head": {"near": 2, "far": 1}}}, "a depth range goes from near to far, not from 2 to 1 m"),
        ({"depth_ranges": {"head": {"near": 2}}}, "key 'depth_ranges.head.far' is missing"),
        ({"joint_max_velocity": {"neck": 1.0}}, "joint_max_velocity names joint 'neck', which this robot does not"),
        ({"joint_max_acceleration": [1.0, 2.0]}, "joint_max_acceleration has 2 numbers for 24 joints"),
        ({"joint_max_velocity": -1.0}, "key 'joint_max_velocity.*' is -1"),
    ],
)
def test_a_mistake_in_the_params_is_named_with_its_key_and_file(tmp_path, params, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, params=params).params()


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ({"joint_state": "/js"}, "topics.json: unknown key 'joint_state'; did you mean 'joint_states'"),
        ({"joint_states": "js"}, "key 'joint_states' is \"js\""),
        ({"cameras": {"heat": "/heat"}}, "camera 'head' of camera_names has no topic; did you mean 'heat'"),
    ],
)
def test_a_mistake_in_the_topics_is_named(tmp_path, topics, message):
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, topics=topics).topics()


@pytest.mark.parametrize("kind", ["compressed", "compressedDepth"])
def test_depth_that_is_compressed_is_refused_with_what_is_read(tmp_path, kind):
    asked = config(
        tmp_path,
        params={"camera_names": ["head"], "depth_ranges": {"head": {"near": 0.2, "far": 2}}},
        topics={"cameras": {"head": f"/head/depth/{kind}"}},
    )
    with pytest.raises(ConfigError, match=rf"not read from /head/depth/{kind}; name its topic of plain Images, 16UC1"):
        asked.topics()


def test_a_file_that_is_not_there_is_named(tmp_path):
    missing = IgrisBConfig(inference_runtime_params_config=tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"none\.json: there is no such file"):
        missing.params()

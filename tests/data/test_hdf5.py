"""HDF5 as robomimic and ALOHA write it: every value arrives, and what is hostile costs one episode and one sentence."""

import io
import json
import os
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.formats import ReadOptions, open_dataset
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import DataError, UnknownFormat

LOW_DIM = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 5}
ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"], "control_freq": 20}}


def write_robomimic(path, demos=(3, 5), next_obs=True, seed=0):
    """As robomimic's dataset_states_to_obs.py: the file, and what each episode holds."""
    rng = np.random.default_rng(seed)
    written = {}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for number, steps in zip((0, 10) if len(demos) == 2 else range(len(demos)), demos):
            arrays = {
                "actions": rng.normal(size=(steps, 7)),
                "states": rng.normal(size=(steps, 32)),
                "rewards": np.arange(steps) >= steps - 1.0,
                "dones": (np.arange(steps) == steps - 1).astype(np.int64),
            }
            arrays["rewards"] = arrays["rewards"].astype(np.float64)
            obs = {name: rng.normal(size=(steps + 1, width)) for name, width in LOW_DIM.items()}
            for camera in ("agentview", "robot0_eye_in_hand"):
                obs[f"{camera}_image"] = rng.integers(0, 256, (steps + 1, 6, 8, 3), dtype=np.uint8)
            obs["agentview_depth"] = rng.normal(size=(steps + 1, 16, 16, 1)).astype(np.float32)
            demo = data.create_group(f"demo_{number}")
            for name, values in arrays.items():
                demo.create_dataset(name, data=values)
            for name, values in obs.items():
                demo.create_dataset(f"obs/{name}", data=values[:-1], compression="gzip")
                if next_obs:
                    demo.create_dataset(f"next_obs/{name}", data=values[1:])
            demo.attrs["model_file"] = "<mujoco/>"
            demo.attrs["num_samples"] = steps
            written[number] = arrays | obs
        file["mask/train"] = np.array(["demo_0"], "S8")
        data.attrs["total"] = sum(demos)
        data.attrs["env_args"] = json.dumps(ENV_ARGS)
    return written


def state_of(arrays):
    return np.concatenate([arrays[f"robot0_{name}"] for name in ("eef_pos", "eef_quat", "gripper_qpos")], axis=1)


def test_robomimic_demos_arrive_value_by_value(tmp_path):
    written = write_robomimic(tmp_path / "image.hdf5")
    report = import_dataset(tmp_path / "image.hdf5", tmp_path / "s")
    store = Store.open(tmp_path / "s")
    assert (report.ids, report.labeled, report.failed) == ([0, 1], 2, [])
    for episode_id, number in enumerate((0, 10)):  # demo_10 comes after demo_0 and any demo_2
        arrays, episode = written[number], store.episode(episode_id)
        assert np.array_equal(episode.actions, arrays["actions"].astype("f4"))
        assert np.array_equal(episode.state, state_of(arrays).astype("f4"))
        assert set(episode.frames) == {"agentview", "robot0_eye_in_hand"}
        for camera in episode.frames:
            assert np.array_equal(episode.frames[camera], arrays[f"{camera}_image"])
        assert (episode.padded, episode.fps, episode.robot, episode.terminated) == ("none", 20, "Panda", True)
        targets = store.ledger.labels(episode_id).targets
        assert np.isnan(targets[0]) and np.array_equal(targets[1:], arrays["rewards"])


def test_without_next_obs_the_last_observation_is_repeated(tmp_path):
    written = write_robomimic(tmp_path / "image.hdf5", next_obs=False)
    episode, _ = open_dataset(tmp_path / "image.hdf5").sources[1].load()
    assert episode.padded == "last" and episode.steps == 5
    assert np.array_equal(episode.frames["agentview"][:5], written[10]["agentview_image"][:5])
    assert np.array_equal(episode.frames["agentview"][5], episode.frames["agentview"][4])
    assert np.array_equal(episode.state[5], episode.state[4])


def test_a_success_of_0_everywhere_labels_failures(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["state"], file["action"], file["is_success"] = np.zeros((4, 2)), np.zeros((4, 2)), np.zeros(4)
    _, labels = open_dataset(tmp_path / "a.hdf5").sources[0].load()
    assert labels is not None and not labels.success.any()


def test_failures_alone_come_back_from_an_export(tmp_path):
    export_dataset(labeled_store(tmp_path / "a", counting_episode(4), cutoff=None), tmp_path / "out", "hdf5")
    assert import_dataset(tmp_path / "out", tmp_path / "back").labeled == 1


def test_a_dense_reward_is_kept_and_labels_nothing(tmp_path):
    write_robomimic(tmp_path / "image.hdf5")
    with h5py.File(tmp_path / "image.hdf5", "a") as file:
        rewards: Any = file["data/demo_0/rewards"]
        rewards[:] = [0.25, 0.5, 0.75]
    episode, labels = open_dataset(tmp_path / "image.hdf5").sources[0].load()
    assert labels is None and episode.privileged["reward"].tolist() == [0.25, 0.5, 0.75]


def encode(image, format="JPEG"):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format)
    return file.getvalue()


def write_aloha(folder, compress, episodes=2, steps=4):
    """As ALOHA's record_episodes.py: a file an episode, raw images or padded JPEG rows with their lengths."""
    folder.mkdir()
    rng, written = np.random.default_rng(1), []
    for number in range(episodes):
        arrays = {name: rng.normal(size=(steps, 14)) for name in ("qpos", "qvel", "effort", "action")}
        images = {camera: rng.integers(0, 256, (steps, 6, 8, 3), dtype=np.uint8) for camera in ("cam_high", "cam_low")}
        with h5py.File(folder / f"episode_{number}.hdf5", "w", rdcc_nbytes=1024**2 * 2) as root:
            root.attrs["sim"], root.attrs["compress"] = False, compress
            observations = root.create_group("observations")
            group = observations.create_group("images")
            if compress:
                files = {camera: [encode(image) for image in images[camera]] for camera in images}
                longest = max(len(file) for rows in files.values() for file in rows)
                for camera, rows in files.items():
                    padded = np.stack([np.frombuffer(file.ljust(longest, b"\0"), np.uint8) for file in rows])
                    group.create_dataset(camera, data=padded, chunks=(1, longest))
                    images[camera] = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in rows])
                root.create_dataset("compress_len", data=[[len(file) for file in rows] for rows in files.values()])
            else:
                for camera, rows in images.items():
                    group.create_dataset(camera, data=rows, chunks=(1, 6, 8, 3))
            for name in ("qpos", "qvel", "effort"):
                observations.create_dataset(name, data=arrays[name])
            root.create_dataset("action", data=arrays["action"])
            root.create_dataset("base_action", data=np.zeros((steps, 2)))
        written.append((arrays, images))
    return written


@pytest.mark.parametrize("compress", [False, True])
def test_a_folder_of_aloha_episodes_arrives_value_by_value(tmp_path, compress):
    written = write_aloha(tmp_path / "in", compress)
    report = import_dataset(tmp_path / "in", tmp_path / "s", ReadOptions(task="fold", fps=50))
    store = Store.open(tmp_path / "s")
    assert report.ids == [0, 1] and "observations/qvel" in report.ignored
    for episode_id, (arrays, images) in enumerate(written):
        episode = store.episode(episode_id)
        assert (episode.task, episode.fps, episode.padded, episode.steps) == ("fold", 50, "last", 4)
        assert np.array_equal(episode.state[:4], arrays["qpos"].astype("f4"))
        assert np.array_equal(episode.actions, arrays["action"].astype("f4"))
        for camera in ("cam_high", "cam_low"):
            assert np.array_equal(episode.frames[camera][:4], images[camera])


@pytest.mark.parametrize("kind", ["bytes of one length", "bytes of any length"])
def test_images_may_be_files_of_one_length_or_of_any(tmp_path, kind):
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
    files = [encode(image, "PNG") for image in images]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if kind == "bytes of one length":  # as RoboTwin
            file["observation/head_camera/rgb"] = np.array(files, f"S{max(map(len, files))}")
        else:
            rows = file.create_dataset("observation/head_camera/rgb", 3, h5py.vlen_dtype(np.uint8))
            for row, data in enumerate(files):
                rows[row] = np.frombuffer(data, np.uint8)
        file["joint_action/vector"] = np.zeros((3, 14))
    options = ReadOptions(state=["none"], action=["joint_action/vector"])
    episode, _ = open_dataset(tmp_path / "a.h5", options).sources[0].load()
    assert np.array_equal(episode.frames["head_camera"][:3], images)


def test_libero_gives_its_instruction(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "open the drawer"})
        demo = data.create_group("demo_0")
        demo["actions"] = np.zeros((3, 7))
        demo["obs/agentview_rgb"] = np.zeros((3, 6, 8, 3), np.uint8)
        for name, width in (("ee_states", 6), ("gripper_states", 2), ("joint_states", 7)):
            demo[f"obs/{name}"] = np.full((3, width), width)
    episode, _ = open_dataset(tmp_path / "a.hdf5").sources[0].load()
    assert episode.task == "open the drawer" and episode.state[0].tolist() == [2] * 2 + [7] * 7


def test_unusual_names_stop_the_import_with_a_list_and_flags_decide(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["joints"], file["torque"] = np.arange(8).reshape(4, 2), np.zeros((4, 3))
        file["cmd"], file["ok"] = np.ones((4, 2)), np.array([0, 0, 0, 1])
        file["left/rgb"], file["right/rgb"] = np.zeros((2, 4, 6, 8, 3), np.uint8)
    with pytest.raises(DataError, match=r"--state KEY and --action KEY .*cmd \[2\], joints \[2\], ok \[1\], torque"):
        import_dataset(tmp_path / "a.hdf5", tmp_path / "s")
    assert not (tmp_path / "s").exists()
    options = ReadOptions(
        state=["joints"], action=["cmd"], success="ok", cameras=["left/rgb"], rename={"left/rgb": "front"}
    )
    import_dataset(tmp_path / "a.hdf5", tmp_path / "s", options)
    store = Store.open(tmp_path / "s")
    assert list(store.episode(0).frames) == ["front"] and store.ledger.labels(0).success.tolist() == [False] * 4 + [
        True
    ]
    for wrong, sentence in (
        ({"state": ["joint"]}, "'joint' is not a column of numbers here"),
        ({"cameras": ["top"]}, "camera 'top' is not in .*; it has: left, right"),
        ({"action": ["next"], "state": ["none"]}, "--action next needs a state"),
    ):
        with pytest.raises(DataError, match=sentence):
            import_dataset(tmp_path / "a.hdf5", tmp_path / "t", ReadOptions(**{"action": ["cmd"], **wrong}))


def test_the_action_may_be_the_state_that_follows(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["state"], file["front"] = np.arange(8).reshape(4, 2), np.zeros((4, 6, 8, 3), np.uint8)
    episode, _ = open_dataset(tmp_path / "a.hdf5", ReadOptions(action=["next"])).sources[0].load()
    assert episode.actions.tolist() == [[2, 3], [4, 5], [6, 7]] and episode.padded == "none"


def test_an_export_is_a_robomimic_file_and_comes_back_complete(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4, task="lift", fps=20.0), counting_episode(3), cutoff=2)
    export_dataset(store, tmp_path / "out", "hdf5")
    with h5py.File(tmp_path / "out/demos.hdf5") as file:
        demo: Any = file["data/demo_0"]
        assert {"actions", "rewards", "dones", "obs"} <= set(demo) and demo.attrs["num_samples"] == 4
        assert file["data"].attrs["total"] == 7 and json.loads(file["data"].attrs["env_args"])["type"] == 2
        assert demo["rewards"][:].tolist() == [0, 1, 1, 1] and demo["dones"][:].tolist() == [0, 0, 0, 1]
        camera = next(name for name in demo["obs"] if name.endswith("_image"))
        assert np.array_equal(demo["obs"][camera], store.episode(0).frames[camera.removesuffix("_image")][:4])
    import_dataset(tmp_path / "out", tmp_path / "back")
    back = Store.open(tmp_path / "back")
    for i in (0, 1):
        assert same_episode(store.episode(i), back.episode(i))
        assert np.array_equal(back.ledger.labels(i).targets[1:], store.ledger.labels(i).targets[1:], equal_nan=True)


def test_a_second_import_adds_nothing_and_other_labels_make_no_other_episode(tmp_path):
    write_robomimic(tmp_path / "a.hdf5")
    import_dataset(tmp_path / "a.hdf5", tmp_path / "s")
    (tmp_path / "a.hdf5").rename(tmp_path / "b.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "a") as file:
        rewards: Any = file["data/demo_0/rewards"]
        rewards[:] = 0
    report = import_dataset(tmp_path / "b.hdf5", tmp_path / "s")
    assert (report.ids, report.already_imported) == ([], 2)


# --- files from somebody who means no good, or whose disk was full ---


def external_link(demo, folder):
    with h5py.File(folder / "other.h5x", "w") as other:
        other["secret"] = np.zeros((3, 7))
    del demo["actions"]
    demo["actions"] = h5py.ExternalLink(str(folder / "other.h5x"), "/secret")


def link_to_a_pipe(demo, folder):
    """Whoever opens it waits for ever."""
    os.mkfifo(folder / "pipe")
    for name in ("actions", "rewards"):
        del demo[name]
        demo[name] = h5py.ExternalLink(str(folder / "pipe"), "/secret")


def virtual_in_a_pipe(demo, folder):
    os.mkfifo(folder / "pipe")
    del demo["actions"]
    layout = h5py.VirtualLayout((3, 7), "f8", maxshape=(None, 7))
    source = h5py.VirtualSource(folder / "pipe", "secret", (3, 7), maxshape=(None, 7))
    layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
    demo.create_virtual_dataset("actions", layout)


def soft_link(demo, folder):
    demo["obs/link"] = h5py.SoftLink("/data")


def external_storage(demo, folder):
    (folder / "secret").write_bytes(bytes(3 * 7 * 8))
    del demo["actions"]
    demo.create_dataset("actions", (3, 7), "f8", external=[(str(folder / "secret"), 0, 168)])


def virtual(demo, folder):
    external_link(demo, folder)
    del demo["actions"]
    layout = h5py.VirtualLayout((3, 7), "f8")
    layout[:] = h5py.VirtualSource(folder / "other.h5x", "secret", (3, 7))
    demo.create_virtual_dataset("actions", layout)


def bomb(demo, folder):
    del demo["obs/agentview_image"]
    demo.create_dataset("obs/agentview_image", (3, 30_000, 30_000, 3), "u1", chunks=(1, 512, 512, 3), compression=9)


def nan(demo, folder):
    demo["actions"][1] = np.nan


def short(demo, folder):
    del demo["obs/agentview_image"]
    demo["obs/agentview_image"] = np.zeros((2, 6, 8, 3), np.uint8)


def missing(demo, folder):
    del demo["actions"]


def objects(demo, folder):
    del demo["actions"]
    demo.create_dataset("actions", (3,), h5py.ref_dtype)


def cycle(demo, folder):
    demo["obs/again"] = demo["obs"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (external_link, "'actions' is a link, which was not followed"),
        (link_to_a_pipe, "'actions' is a link, which was not followed"),
        (virtual_in_a_pipe, "'actions' is stored in other files, which were not opened"),
        (soft_link, "'obs/link' is a link, which was not followed"),
        (external_storage, "'actions' is stored in other files, which were not opened"),
        (virtual, "'actions' is stored in other files, which were not opened"),
        (bomb, "more than any recording does"),
        (nan, "actions hold NaN or infinity at step 1"),
        (short, "'obs/robot0_eef_pos' has 4 rows and 'obs/agentview_image' has 2"),
        (missing, "this episode has no 'actions', others do"),
        (objects, "this episode has no 'actions', others do"),
        (cycle, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_hostile_episode_costs_itself_alone(tmp_path, spoil, sentence):
    write_robomimic(tmp_path / "a.hdf5", demos=(4, 3, 4))
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        spoil(file["data/demo_1"], tmp_path)
    report = import_dataset(tmp_path / "a.hdf5", tmp_path / "s")
    if sentence:
        assert len(report.ids) == 2 and len(report.failed) == 1
        assert report.failed[0].startswith("episode 1 was left out") and "Error" not in report.failed[0]
        assert sentence in report.failed[0]
    else:
        assert len(report.ids) == 3


@pytest.mark.parametrize("size", [0, 100, 5000, -300])
def test_a_truncated_file_leaves_no_store(tmp_path, size):
    write_robomimic(tmp_path / "a.hdf5")
    data = (tmp_path / "a.hdf5").read_bytes()
    (tmp_path / "a.hdf5").write_bytes(data[:size])
    with pytest.raises(DataError, match=r"a\.hdf5: this is not a whole HDF5 file"):
        import_dataset(tmp_path / "a.hdf5", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_damaged_jpeg_is_named_with_its_row(tmp_path):
    write_aloha(tmp_path / "in", compress=True)
    with h5py.File(tmp_path / "in/episode_1.hdf5", "a") as file:
        images: Any = file["observations/images/cam_high"]
        images[2] = 0
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.ids == [0] and "camera 'cam_high' cannot be read" in report.failed[0] and "row 2" in report.failed[0]


def test_a_link_in_a_folder_is_not_opened(tmp_path):
    write_aloha(tmp_path / "in", compress=False)
    (tmp_path / "in/episode_1.hdf5").rename(tmp_path / "elsewhere")
    (tmp_path / "in/episode_1.hdf5").symlink_to(tmp_path / "elsewhere")
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.ids == [0] and "this is a link and was not opened" in report.failed[0]


def test_another_file_is_no_data_set(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UnknownFormat, match=r"name the folder of the data set, or an \.hdf5"):
        open_dataset(tmp_path / "a.txt")

"""ROS 2 bags, written by rosbags: every topic resampled to one rate by a formula, or one sentence."""

import io

import numpy as np
import pytest
from PIL import Image
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from plaudit.data.formats import ReadOptions, open_dataset
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import DataError

STORE = get_typestore(Stores.ROS2_JAZZY)
TYPES = STORE.types
START = 1_700_000_000_000_000_000  # ns
MS = 1_000_000
CHOSEN = ReadOptions(action=["/command"], success="/done", fps=10, task="lift")


def header(time):
    stamp = TYPES["builtin_interfaces/msg/Time"](sec=time // 10**9, nanosec=time % 10**9)
    return TYPES["std_msgs/msg/Header"](stamp=stamp, frame_id="")


def image(time, pixels, encoding="rgb8", padding=0):
    height, width, channels = pixels.shape
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (0, padding)))
    kind = TYPES["sensor_msgs/msg/Image"]
    return kind(header(time), height, width, encoding, 0, width * channels + padding, rows.ravel())


def compressed(time, pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    kind = TYPES["sensor_msgs/msg/CompressedImage"]
    return kind(header(time), "png", np.frombuffer(file.getvalue(), np.uint8))


def joints(time, position):
    kind = TYPES["sensor_msgs/msg/JointState"]
    return kind(header(time), ["a", "b"], np.array(position, float), np.array([5.0, 6.0]), np.zeros(0))


def floats(*values):
    layout = TYPES["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=3)
    return TYPES["std_msgs/msg/Float64MultiArray"](layout, np.array(values, float))


def pixels(number, channels=3):
    """6x8, with a number of its own in each pixel and channel."""
    values = np.arange(6 * 8 * channels) + 7 * number
    return (values % 256).astype(np.uint8).reshape(6, 8, channels)


def topics():
    """Topic -> its messages with their times in ms: joints every 10, cameras every 50 and 70, commands every 100."""
    return {
        "/joint_states": [(t, joints(t, [t, -t])) for t in range(0, 1000, 10)],
        "/front/image_raw": [(t, image(t, pixels(t // 50), padding=4)) for t in range(20, 1000, 50)],
        "/wrist/image_raw/compressed": [(t, compressed(t, pixels(t // 70))) for t in range(30, 1000, 70)],
        "/command": [(t, floats(t, t + 1)) for t in range(0, 1000, 100)],
        "/done": [(t, TYPES["std_msgs/msg/Bool"](t >= 600)) for t in range(0, 1000, 100)],
        "/rosout": [(0, TYPES["std_msgs/msg/String"]("hello"))],
    }


def write_bag(path, content=None, storage="mcap", compression=None):
    plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
    writer = Writer(path, version=9, storage_plugin=plugin)
    if compression is not None:
        writer.set_compression(compression, CompressionFormat.ZSTD)
    with writer:
        messages = []
        for topic, entries in (topics() if content is None else content).items():
            kind = entries[0][1].__msgtype__
            connection = writer.add_connection(topic, kind, typestore=STORE)
            messages += [(t, connection, message) for t, message in entries]
        for t, connection, message in sorted(messages, key=lambda entry: entry[0]):
            writer.write(connection, START + t * MS, STORE.serialize_cdr(message, connection.msgtype))
    return path


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_topics_are_resampled_to_the_rate(tmp_path, storage):
    write_bag(tmp_path / "bag", storage=storage)
    report = import_dataset(tmp_path / "bag", tmp_path / "s", CHOSEN)
    store = Store.open(tmp_path / "s")
    episode, grid = store.episode(0), 30 + 100 * np.arange(9)  # all have sent one at 30 ms; /command ends at 900
    assert (episode.steps, episode.fps, episode.task, episode.padded) == (9, 10, "lift", "last")
    assert np.array_equal(episode.state[:9, 0], grid // 10 * 10) and np.array_equal(
        episode.state[:9, 1], -episode.state[:9, 0]
    )
    assert np.array_equal(episode.actions, np.stack([grid // 100 * 100, grid // 100 * 100 + 1], axis=1))
    fronts = [pixels(((t - 20) // 50 * 50 + 20) // 50) for t in grid]
    wrists = [pixels(((t - 30) // 70 * 70 + 30) // 70) for t in grid]
    assert np.array_equal(episode.frames["front"][:9], fronts) and np.array_equal(episode.frames["wrist"][:9], wrists)
    assert store.ledger.labels(0).success[1:].tolist() == (grid >= 600).tolist()
    assert any("/rosout" in name for name in report.ignored)


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8", "mono8"])
def test_every_order_of_colors_becomes_rgb(tmp_path, encoding):
    values = pixels(1, {"mono8": 1, "rgba8": 4, "bgra8": 4}.get(encoding, 3))
    expected = {
        "mono8": np.repeat(values, 3, axis=2),
        "bgr8": values[..., ::-1],
        "bgra8": values[..., 2::-1],
    }.get(encoding, values[..., :3])
    content = {"/camera": [(t, image(t, values, encoding)) for t in (0, 100, 200)]}
    write_bag(tmp_path / "bag", content | {"/joint_states": topics()["/joint_states"]})
    options = ReadOptions(fps=10, action=["/joint_states.velocity"])
    episode, _ = open_dataset(tmp_path / "bag", options).sources[0].load()
    assert all(np.array_equal(frame, expected) for frame in episode.frames["camera"])
    assert episode.actions.tolist() == [[5, 6]] * 3


def test_a_folder_of_bags_and_a_single_file_are_read_too(tmp_path):
    for number in range(2):
        write_bag(tmp_path / f"bags/bag_{number}")
    assert len(import_dataset(tmp_path / "bags", tmp_path / "s", CHOSEN).ids) == 2
    file = next((tmp_path / "bags/bag_0").glob("*.mcap"))
    episode, _ = open_dataset(file, CHOSEN).sources[0].load()
    assert np.array_equal(episode.actions, Store.open(tmp_path / "s").episode(0).actions)


def test_without_a_rate_or_an_action_the_topics_are_listed(tmp_path):
    write_bag(tmp_path / "bag")
    with pytest.raises(DataError) as error:
        import_dataset(tmp_path / "bag", tmp_path / "s")
    assert "give the one to resample to with --fps" in str(error.value)
    assert "--action KEY" in str(error.value) and "/command [2]" in str(error.value)
    assert open_dataset(tmp_path / "bag").metadata["state"] == "/joint_states"


def test_messages_compressed_one_by_one_are_read_and_whole_files_are_not(tmp_path):
    write_bag(tmp_path / "a", storage="sqlite3", compression=CompressionMode.MESSAGE)
    assert import_dataset(tmp_path / "a", tmp_path / "s", CHOSEN).ids == [0]
    write_bag(tmp_path / "b", storage="sqlite3", compression=CompressionMode.FILE)
    with pytest.raises(DataError, match="its files are compressed as a whole, which is not read"):
        import_dataset(tmp_path / "b", tmp_path / "t", CHOSEN)


def test_a_definition_in_a_bag_is_never_turned_into_code(tmp_path):
    types = get_types_from_msg("float64 x", "evil/msg/Type")
    STORE.register(types)
    content = topics() | {"/own": [(t, STORE.types["evil/msg/Type"](1.0)) for t in range(0, 900, 100)]}
    write_bag(tmp_path / "bag", content)
    assert "/own (evil/msg/Type)" in open_dataset(tmp_path / "bag", CHOSEN).ignored


def cut(folder, share):
    file = next(file for file in folder.iterdir() if file.name != "metadata.yaml")
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])


def linked(folder):
    file = next(folder.glob("*.mcap"))
    file.rename(folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")


def described_by(folder, text):
    (folder / "metadata.yaml").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: cut(folder, 0), "this is not a whole bag"),
        (lambda folder: cut(folder, 0.7), "this is not a whole bag"),
        (linked, "this is a link and was not opened"),
        (lambda folder: described_by(folder, "a: [b"), "this is not a whole bag"),
        (lambda folder: described_by(folder, "a: !!python/object/apply:os.getcwd []"), "this is not a whole bag"),
        (
            lambda folder: described_by(
                folder, (folder / "metadata.yaml").read_text().replace("bag.mcap", "../../etc")
            ),
            "this is not",
        ),
    ],
)
def test_a_damaged_or_hostile_bag_leaves_no_store(tmp_path, spoil, sentence):
    spoil(write_bag(tmp_path / "bag"))
    with pytest.raises(DataError, match=sentence):
        import_dataset(tmp_path / "bag", tmp_path / "s", CHOSEN)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"/command": [(0, floats(1, 2)), (300, floats(1)), (500, floats(1))]},
            "'/command' is [1] in one message and [2] in the first",
        ),
        ({"/command": [(t, floats(np.nan, 1)) for t in range(0, 900, 100)]}, "actions hold NaN or infinity at step 0"),
        ({"/command": [(2000, floats(1, 2))]}, "the chosen topics have -1.1 s in common, too few"),
        ({"far": True}, "the chosen topics have 9,000,000.0 s in common"),
        (
            {"/front/image_raw": [(t, image(t, pixels(t)[: 6 - t // 300])) for t in (0, 300, 500)]},
            "'/front/image_raw' is [5, 8, 3]",
        ),
    ],
)
def test_a_wrong_bag_costs_its_episode_alone(tmp_path, change, sentence):
    write_bag(tmp_path / "bags/a")
    content = topics() | {topic: entries for topic, entries in change.items() if topic != "far"}
    if "far" in change:  # all topics: nothing that a recording lasts
        content = {topic: [*entries, (9 * 10**9, entries[-1][1])] for topic, entries in topics().items()}
    write_bag(tmp_path / "bags/b", content)
    report = import_dataset(tmp_path / "bags", tmp_path / "s", CHOSEN)
    assert report.ids == [0] and len(report.failed) == 1 and sentence in report.failed[0]

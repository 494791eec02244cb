"""RLDS data sets, in the records of TensorBoard's writer and the messages of protobuf: every value, or one sentence."""

import io
import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image
from tensorboard.summary.writer.record_writer import RecordWriter

from plaudit.data.formats import ReadOptions, open_dataset
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import DataError

TFDS = "tensorflow_datasets.core.features"
FIELD = descriptor_pb2.FieldDescriptorProto


def example_class():
    """`tf.train.Example`, of TensorFlow's example.proto and feature.proto."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")

    def message(name, *fields, parent=file.message_type):
        new = parent.add(name=name)
        for number, (field, kind, type_name, repeated) in enumerate(fields, start=1):
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            new.field.add(name=field, number=number, type=kind, type_name=type_name, label=label)
        return new

    for name, kind in (("Bytes", FIELD.TYPE_BYTES), ("Float", FIELD.TYPE_FLOAT), ("Int64", FIELD.TYPE_INT64)):
        message(f"{name}List", ("value", kind, None, True))
    kinds = [
        (f"{name.lower()}_list", FIELD.TYPE_MESSAGE, f".tensorflow.{name}List") for name in ("Bytes", "Float", "Int64")
    ]
    feature = message("Feature", *((*kind, False) for kind in kinds))
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", FIELD.TYPE_MESSAGE, ".tensorflow.Features.FeatureEntry", True))
    entry = message(
        "FeatureEntry",
        ("key", FIELD.TYPE_STRING, None, False),
        ("value", FIELD.TYPE_MESSAGE, ".tensorflow.Feature", False),
        parent=features.nested_type,
    )
    entry.options.map_entry = True
    message("Example", ("features", FIELD.TYPE_MESSAGE, ".tensorflow.Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = example_class()


def tensor(dtype, *shape):
    dimensions = {"dimensions": [str(edge) for edge in shape]} if shape else {}
    kind = "tensor_feature.Tensor" if shape else "scalar.Scalar"
    return {"pythonClassName": f"{TFDS}.{kind}", "tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none"}}


def image(encoding):
    content = {"shape": {"dimensions": ["6", "8", "3"]}, "dtype": "uint8", "encodingFormat": encoding}
    return {"pythonClassName": f"{TFDS}.image_feature.Image", "image": content}


def group(**features):
    return {"pythonClassName": f"{TFDS}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


TEXT = {"pythonClassName": f"{TFDS}.text_feature.Text", "text": {}}
STEP = group(
    action=tensor("float32", 7),
    observation=group(image=image("jpeg"), wrist_image=image("png"), state=tensor("float32", 8), step=tensor("int64")),
    language_instruction=TEXT,
    language_embedding=tensor("float32", 4),
    reward=tensor("float32"),
    is_first=tensor("bool"),
    is_last=tensor("bool"),
    is_terminal=tensor("bool"),
)
FEATURES = group(
    steps={"pythonClassName": f"{TFDS}.dataset_feature.Dataset", "sequence": {"feature": STEP, "length": "-1"}},
    episode_metadata=group(file_path=TEXT),
)


def encode(pixels, format):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def make_episode(steps, rng):
    """What an episode holds, by the names of features.json; images as files."""
    pixels = rng.integers(0, 256, (2, steps, 6, 8, 3), dtype=np.uint8)
    last = np.arange(steps) == steps - 1
    return {
        "action": rng.normal(size=(steps, 7)).astype(np.float32),
        "observation/state": rng.normal(size=(steps, 8)).astype(np.float32),
        "observation/step": np.array([-1, *range(300, 299 + steps)]),
        "observation/image": [encode(image, "JPEG") for image in pixels[0]],
        "observation/wrist_image": [encode(image, "PNG") for image in pixels[1]],
        "language_instruction": [b"pick up the cup"] * steps,
        "language_embedding": np.zeros((steps, 4), np.float32),
        "reward": last.astype(np.float32),
        "is_first": np.arange(steps) == 0,
        "is_last": last,
        "is_terminal": last,
    }


def serialize(arrays):
    """As TensorFlow Datasets: a flat list for each name."""
    example: Any = Example()
    for name, values in arrays.items():
        feature = example.features.feature[f"steps/{name}"]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype.kind == "f":
            feature.float_list.value.extend(values.ravel().tolist())
        else:
            feature.int64_list.value.extend(map(int, values.ravel()))
    example.features.feature["episode_metadata/file_path"].bytes_list.value.append(b"/raw/episode.npy")
    return example.SerializeToString()


def write_rlds(folder, *episodes, features=FEATURES):
    folder.mkdir(parents=True)
    (folder / "features.json").write_text(json.dumps(features))
    (folder / "dataset_info.json").write_text(json.dumps({"name": "cups", "fileFormat": "tfrecord"}))
    for shard in range(2):
        with (folder / f"cups-train.tfrecord-{shard:05d}-of-00002").open("wb") as file:
            writer = RecordWriter(file)
            for episode in episodes[shard::2]:
                writer.write(serialize(episode))
            writer.flush()
    return folder


@pytest.fixture
def episodes():
    rng = np.random.default_rng(0)
    return [make_episode(steps, rng) for steps in (3, 5, 4)]


def test_episodes_arrive_value_by_value(tmp_path, episodes):
    report = import_dataset(write_rlds(tmp_path / "cups/1.0.0", *episodes), tmp_path / "s", ReadOptions(fps=10))
    store = Store.open(tmp_path / "s")
    assert (report.ids, report.failed, report.labeled) == ([0, 1, 2], [], 3)
    assert "language_embedding" in report.ignored and "episode_metadata/file_path" in report.ignored
    for i, arrays in enumerate((episodes[0], episodes[2], episodes[1])):  # by file
        episode, steps = store.episode(i), len(arrays["action"])
        assert (episode.task, episode.fps, episode.padded) == ("pick up the cup", 10, "last")
        assert np.array_equal(episode.actions, arrays["action"])
        assert np.array_equal(episode.state[:steps], arrays["observation/state"])
        for camera, key in (("image", "observation/image"), ("wrist", "observation/wrist_image")):
            decoded = [np.asarray(Image.open(io.BytesIO(data))) for data in arrays[key]]
            assert np.array_equal(episode.frames[camera][:steps], decoded)
        assert np.array_equal(store.ledger.labels(i).targets[1:], arrays["reward"])


def test_rewards_of_0_everywhere_label_nothing_unless_they_are_named(tmp_path, episodes):
    nothing = [one | {"reward": np.zeros(len(one["reward"]), np.float32)} for one in episodes]
    folder = write_rlds(tmp_path / "cups", *nothing)
    report = import_dataset(folder, tmp_path / "s", ReadOptions(fps=10))
    assert (len(report.ids), report.labeled) == (3, 0) and "reward" in report.ignored
    assert any("'reward' is 0 in all episodes and was left out" in note for note in report.notes)
    report = import_dataset(folder, tmp_path / "t", ReadOptions(fps=10, success="reward"))
    assert report.labeled == 3 and not Store.open(tmp_path / "t").ledger.labels(0).success.any()


def test_one_success_makes_the_other_episodes_failures(tmp_path, episodes):
    episodes[0]["reward"] *= 0
    assert import_dataset(write_rlds(tmp_path / "cups", *episodes), tmp_path / "s", ReadOptions(fps=10)).labeled == 3


def test_numbers_of_variable_length_are_exact(tmp_path, episodes):
    numbers = np.array([0, 1, -1, 127, 128, 2**31, -(2**62), 2**63 - 1])
    episode = {**episodes[0], "observation/step": numbers, "action": np.zeros((8, 7), np.float32)}
    episode |= {"observation/state": np.zeros((8, 8), np.float32), "reward": np.zeros(8, np.float32)}
    options = ReadOptions(state=["observation/step"], cameras=["wrist"])
    episode["observation/wrist_image"] = episode["observation/wrist_image"][:1] * 8
    loaded, _ = open_dataset(write_rlds(tmp_path / "a", episode), options).sources[0].load()
    assert np.array_equal(loaded.state[:8, 0], numbers.astype(np.float32))


def record_file(folder):
    return folder / "cups-train.tfrecord-00000-of-00002"  # episodes 0 and 2


def flip(folder, at):
    data = bytearray(record_file(folder).read_bytes())
    data[at] ^= 1
    record_file(folder).write_bytes(data)


def cut(folder, size):
    record_file(folder).write_bytes(record_file(folder).read_bytes()[:size])


def replace(folder, data):
    with record_file(folder).open("wb") as file:
        writer = RecordWriter(file)
        writer.write(data)
        writer.flush()


@pytest.mark.parametrize(
    ("spoil", "sentence", "kept"),
    [
        (lambda folder: flip(folder, 3), "the length at byte 0 does not match its checksum", 1),
        (lambda folder: flip(folder, 200), "the record at byte 0 does not match its checksum", 2),
        (lambda folder: cut(folder, -1), "it ends within the record at byte", 1),
        (lambda folder: cut(folder, 7), "it ends within a record", 1),
        (lambda folder: replace(folder, b"\x0a\xff\xff\xff\xff\x0f"), "its record is no tf.train.Example", 1),
        (lambda folder: replace(folder, b"\x0a" + b"\xff" * 20), "its record is no tf.train.Example", 1),
        (lambda folder: replace(folder, b""), "this episode has no 'observation/state', others do; it has: nothing", 1),
    ],
)
def test_a_damaged_record_costs_its_episode_or_its_file(tmp_path, episodes, spoil, sentence, kept):
    spoil(write_rlds(tmp_path / "in", *episodes))
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == kept and len(report.failed) == 1 and sentence in report.failed[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"action": np.zeros((2, 7), np.float32)}, "'observation/state' has 5 rows and 'action' has 2"),
        ({"action": np.zeros(34, np.float32)}, "'action' has 34 numbers, not rows of '(7,)'"),
        ({"action": np.full((5, 7), np.nan, np.float32)}, "actions hold NaN or infinity at step 0"),
        ({"observation/image": [b"\xff\xd8\xff"] * 5}, "this episode has no 'observation/image'"),
    ],
)
def test_wrong_values_cost_their_episode(tmp_path, episodes, change, sentence):
    write_rlds(tmp_path / "in", episodes[0], episodes[1] | change)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.ids == [0] and sentence in report.failed[0]


def test_a_description_that_is_none_is_named(tmp_path, episodes):
    folder = write_rlds(tmp_path / "in", *episodes)
    nested = {"sequence": {}}
    for _ in range(40):
        nested = {"sequence": {"feature": nested}}
    for tree in ([], {"featuresDict": {"features": 3}}, nested):
        (folder / "features.json").write_text(json.dumps(tree))
        with pytest.raises(DataError, match=r"features\.json"):
            import_dataset(folder, tmp_path / "s")
    assert not (tmp_path / "s").exists()

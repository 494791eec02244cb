"""Whether lerobot and plaudit read what the other writes, with lerobot itself: data sets, reward classifiers, devices.

    make interop                                   # an environment with Python 3.12 and lerobot, then this
    python benchmarks/interop.py [--quick]

lerobot writes data sets with its own recorder class (images and video, channels first and last) and plaudit reads them;
plaudit exports and lerobot loads; a reward classifier of each is scored by both; a robot and a teleoperator of
lerobot's base classes are driven by plaudit's adapters. --quick has fewer and smaller episodes and one encoder.
"""

import argparse
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded, and nothing local is replaced

import numpy as np
import torch

from bars import Bars
from plaudit.contracts import check_robot
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.encoders.efficientnet import EfficientNetConfig
from plaudit.encoders.resnet import Resnet10Config
from plaudit.errors import PlauditError
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.lerobot import save_lerobot_classifier
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.trust import CODE
from plaudit.types import Episode, Labels

CAMERAS = ("wrist", "front")  # not in alphabetical order
VIDEO_ERROR = 12.0  # gray values of 255 that a pixel of a compressed video may be off on average


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller episodes, one encoder")
    quick = parser.parse_args().quick
    episodes, steps, size = (2, 6, (64, 96)) if quick else (5, 40, (240, 320))
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for video in (False, True):
            for channels_first in (False, True):
                theirs_read_here(bars, folder, video, channels_first, episodes, steps, size)
            ours_read_there(bars, folder, video, episodes, steps, size)
        their_classifier_here(bars, folder)
        for encoder in (Resnet10Config(),) if quick else (Resnet10Config(), EfficientNetConfig()):
            our_classifier_there(bars, folder, encoder)
        devices(bars)
    bars.report()


def frames(number: int, steps: int, size: tuple[int, int]) -> np.ndarray:
    """[T, H, W, 3] a gradient whose brightness says which episode and frame it is; video keeps it."""
    slope = np.linspace(0, 60, size[1]).astype(np.uint8)
    light = 20 * number + 3 * (np.arange(steps) % 30)
    colors = np.array([0, 40, 80])
    return (light[:, None, None, None] + slope[None, None, :, None] + colors).astype(np.uint8).repeat(size[0], axis=1)


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """Mean difference in gray values; of frames of another shape, all that there is."""
    if found.shape != expected.shape:
        return 255.0
    return float(np.abs(found.astype(float) - expected).mean())


def dataset_class() -> Any:
    return import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset


def theirs_read_here(
    bars: Bars, folder: Path, video: bool, channels_first: bool, episodes: int, steps: int, size: tuple[int, int]
) -> None:
    name = f"{'video' if video else 'images'}_{'channels_first' if channels_first else 'channels_last'}"
    shape = (3, *size) if channels_first else (*size, 3)
    names = ["channels", "height", "width"] if channels_first else ["height", "width", "channels"]
    features = {
        "observation.images.front": {"dtype": "video" if video else "image", "shape": shape, "names": names},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }
    written = dataset_class().create(
        "plaudit/interop", 30, features, root=folder / name, use_videos=video, video_backend="pyav"
    )
    for number in range(episodes):
        for step, image in enumerate(frames(number, steps, size)):
            row = {
                "observation.images.front": image.transpose(2, 0, 1) if channels_first else image,
                "observation.state": np.array([number, step], np.float32),
                "action": np.array([step, -step], np.float32),
                "next.reward": np.array([float(step >= steps // 2)], np.float32),
                "task": "lift",
            }
            written.add_frame(row)
        written.save_episode()
    written.finalize()
    wrong = episodes
    try:
        import_dataset(folder / name, folder / f"{name}_store")
        store = Store.open(folder / f"{name}_store")
        wrong = episodes - len(store) + sum(not _as_written(store, i, steps, size, video) for i in store.ids)
    except PlauditError as error:
        print(f"{name}: {error}", flush=True)
    bars.exactly(f"interop_lerobot_{name}_read_wrong", wrong, 0)


def _as_written(store: Store, number: int, steps: int, size: tuple[int, int], video: bool) -> bool:
    episode = store.episode(number)
    expected = frames(int(episode.state[0, 0]), steps, size)
    found = np.asarray(episode.frames.get("front", np.zeros((0,))))[:steps]
    same = np.array_equal(episode.actions[: steps - 1, 0], np.arange(steps)[: steps - 1])
    return same and error_of(found, expected) <= (VIDEO_ERROR if video else 0)


def ours_read_there(bars: Bars, folder: Path, video: bool, episodes: int, steps: int, size: tuple[int, int]) -> None:
    kind = "video" if video else "images"
    store = Store.create(folder / f"ours_{kind}")
    for number in range(episodes):
        actions = np.arange(2.0 * steps).reshape(steps, 2)
        state = np.arange(2.0 * (steps + 1)).reshape(steps + 1, 2) + number
        episode = Episode.of(frames={"front": frames(number, steps + 1, size)}, state=state, actions=actions, fps=30.0)
        target = (np.arange(steps + 1) >= steps // 2).astype(np.float32)
        store.ledger.append(store.append(episode), Labels.from_targets(target, "human"))
    out = folder / f"export_{kind}"
    export_dataset(store, out, "lerobot", WriteOptions(video=video))
    loaded = dataset_class()("plaudit/interop", root=out, video_backend="pyav")
    wrong = int(loaded.num_episodes != episodes)
    for row in range(0, len(loaded), 5):
        item = loaded[row]
        number, step = int(item["episode_index"]), int(item["frame_index"])
        image = item["observation.images.front"].numpy().transpose(1, 2, 0) * 255
        expected = frames(number, steps + 1, size)[step]
        good = error_of(image, expected) <= (VIDEO_ERROR if video else 0.01)
        good &= bool(np.allclose(item["observation.state"].numpy(), [2 * step + number, 2 * step + 1 + number]))
        wrong += not good
    bars.exactly(f"interop_ours_{kind}_loaded_wrong", wrong, 0)


# Reward classifiers


def pixels() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {camera: rng.integers(0, 256, (4, 128, 128, 3), np.uint8) for camera in CAMERAS}


def logits_there(folder: Path, images: dict[str, np.ndarray]) -> torch.Tensor:
    """As lerobot itself computes them: its class, after its own saved preprocessor."""
    classifier = import_module("lerobot.rewards.classifier.modeling_classifier").Classifier
    pipeline = import_module("lerobot.processor").PolicyProcessorPipeline
    network = classifier.from_pretrained(str(folder)).eval()
    before = pipeline.from_pretrained(str(folder), config_filename="classifier_preprocessor.json")
    batch = before(
        {f"observation.images.{c}": torch.from_numpy(i).permute(0, 3, 1, 2) / 255 for c, i in images.items()}
    )
    with torch.inference_mode():
        return network.predict([batch[key] for key in network.config.input_features]).logits


def logits_here(model: RewardModel, images: dict[str, np.ndarray]) -> torch.Tensor:
    with torch.inference_mode():
        return model.members[0]({camera: torch.from_numpy(frame) for camera, frame in images.items()})[:, 0]


def their_classifier_here(bars: Bars, folder: Path) -> None:
    """One that lerobot saved, with an encoder of transformers and statistics of a data set."""
    transformers = import_module("transformers")
    configs = import_module("lerobot.configs")
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [1] * 4, "layer_type": "basic"}
    torch.manual_seed(0)
    transformers.ResNetModel(transformers.ResNetConfig(**sizes)).save_pretrained(folder / "resnet")
    visual = {
        f"observation.images.{c}": configs.PolicyFeature(configs.FeatureType.VISUAL, (3, 128, 128)) for c in CAMERAS
    }
    module = import_module("lerobot.rewards.classifier.configuration_classifier")
    config = module.RewardClassifierConfig(
        model_name=str(folder / "resnet"), num_cameras=len(CAMERAS), input_features=visual, output_features={}
    )
    network = import_module("lerobot.rewards.classifier.modeling_classifier").Classifier(config)
    network.save_pretrained(folder / "theirs")
    stats = {key: {"mean": torch.rand(3, 1, 1), "std": torch.rand(3, 1, 1) + 0.1} for key in visual}
    make = import_module("lerobot.rewards.classifier.processor_classifier").make_classifier_processor
    for processor in make(config, stats):
        processor.save_pretrained(folder / "theirs")
    images = pixels()
    difference = (
        logits_there(folder / "theirs", images) - logits_here(load_reward_model(folder / "theirs", "cpu"), images)
    ).abs()
    bars.at_most("interop_lerobot_classifier_logits_off", float(difference.max()), 1e-4)


def our_classifier_there(bars: Bars, folder: Path, encoder: Any) -> None:
    torch.manual_seed(0)
    shape = ClassifierConfig(encoder=encoder, cameras=dict.fromkeys(CAMERAS, (128, 128)))
    model = RewardModel([BinaryRewardClassifier(shape)], RewardModelConfig.untested(shape), "cpu")
    out = folder / f"ours_{encoder.type}"
    out.mkdir()
    save_lerobot_classifier(model, out, out)
    images = pixels()
    difference = (logits_there(out, images) - logits_here(model, images)).abs()
    bars.at_most(f"interop_our_{encoder.type}_logits_off", float(difference.max()), 1e-4)


# Devices


def devices(bars: Bars) -> None:
    os.environ[CODE] = "interop_devices"
    tree = {"type": "lerobot", "robot_type": "interop_arm", "module": "interop_devices", "realtime": False}
    arm: Any = ROBOT_REGISTRY.parse(tree)
    with arm.build() as robot:
        check_robot(robot)
        robot.reset()
        leader: Any = TELEOP_REGISTRY.parse(
            {"type": "lerobot", "teleop_type": "interop_leader", "module": "interop_devices"}
        )
        teleop, wrong = leader.build(robot.action_dim), 0
        for tick in range(1, 21):
            command = teleop.command()
            wrong += (command is not None) != (tick % 2 == 0)
            if command is not None:
                robot.act(command)
                wrong += not np.allclose(robot.observe().state, tick / 20)
        teleop.close()
    bars.exactly("interop_device_ticks_wrong", wrong, 0)


if __name__ == "__main__":
    main()

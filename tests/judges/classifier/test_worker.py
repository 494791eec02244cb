"""The worker behind the names that RLinf's training calls: frames in any usual layout, rewards of each."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plaudit.data.transfer import new_folder
from plaudit.errors import JudgeError, TargetNotEmpty
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.judge import RewardManager, RewardWorker, RewardWorkerConfig, load_reward_model
from plaudit.types import Observation
from tiny_reward import SIZE, noise_episode, tiny_model


def save(model: RewardModel, folder: Path) -> Path:
    with new_folder(folder) as partial_folder:
        model.save_pretrained(partial_folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return save(tiny_model(), tmp_path_factory.mktemp("models") / "plain")


def inline(folder: Path, **options) -> RewardWorker:
    worker = RewardWorker(RewardWorkerConfig(checkpoint_path=folder, **options))
    worker.init_worker()
    return worker


def frames(count: int) -> np.ndarray:
    return noise_episode(count).frames["front"][:count]


# Rewards


def test_binary_pays_from_the_threshold_on_and_continuous_the_probability():
    model = tiny_model()
    said = model.score_frames({"front": frames(6)}).success_prob
    between = float(np.sort(said)[2:4].mean())
    assert RewardManager(model, "continuous").compute_rewards({"front": frames(6)}).tolist() == said.tolist()
    paid = RewardManager(model, threshold=between).compute_rewards({"front": frames(6)})
    assert paid.dtype == np.float32 and paid.tolist() == (said >= between).tolist() and paid.sum() == 3


@pytest.mark.parametrize("layout", ["floats", "channels first", "both", "observation"])
def test_images_come_in_any_usual_layout(layout):
    manager, images = RewardManager(tiny_model(), "continuous"), frames(4)
    given = {
        "floats": {"front": images / np.float32(255)},
        "channels first": {"front": images.transpose(0, 3, 1, 2)},
        "both": {"front": images.transpose(0, 3, 1, 2) / np.float32(255)},
        "observation": Observation({"front": images, "wrist": images[:, :3]}, np.zeros((4, 2), np.float32)),
    }[layout]
    assert manager.compute_rewards(given).tolist() == manager.compute_rewards({"front": images}).tolist()


def test_floats_beyond_one_are_refused_not_guessed_at():
    with pytest.raises(ValueError, match=r"camera 'front' has floats from .* to 255; this layout holds \[0, 1\]"):
        RewardManager(tiny_model()).compute_rewards({"front": np.full((1, *SIZE, 3), 255.0)})


def test_mini_batches_make_no_difference(plain):
    whole, pieces = inline(plain, reward_type="continuous"), inline(plain, reward_type="continuous", micro_batch_size=3)
    given = {"front": frames(8)}
    assert pieces.compute_batch_rewards(given) == pytest.approx(whole.compute_batch_rewards(given), abs=1e-6)


def test_no_observations_get_no_rewards(plain):
    worker = inline(plain)
    for given in ({"front": frames(4)[:0]}, Observation({"front": frames(4)[:0]}, np.zeros((0, 2), np.float32))):
        paid = worker.compute_batch_rewards(given)
        assert paid.shape == (0,) and paid.dtype == np.float32
    assert RewardManager(tiny_model(predict_progress=True)).compute_rewards({"front": frames(4)[:0]}).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_torch_tensors_are_taken_with_a_gradient_and_in_half_the_bytes(plain, dtype):
    worker, images = inline(plain, reward_type="continuous"), frames(4)
    floats = torch.from_numpy(images).to(dtype) / (255 if dtype.is_floating_point else 1)
    tensor = floats.to(dtype).requires_grad_(dtype.is_floating_point)
    state = torch.zeros(4, 2, requires_grad=True)
    seen = Observation({"front": tensor}, state)  # type: ignore[arg-type]
    expected = worker.compute_batch_rewards({"front": images})
    for given in ({"front": tensor}, seen):
        paid = worker.compute_batch_rewards(given)
        assert isinstance(paid, np.ndarray) and paid == pytest.approx(expected, abs=0.05)


def test_on_a_processor_a_long_episode_is_looked_at_in_small_pieces():
    """Activations of 256 large images are gigabytes."""
    model, sizes = tiny_model(), []
    model.members[0].encoder.register_forward_pre_hook(lambda _, images: sizes.append(len(images[0])))
    assert len(model.score_frames({"front": frames(100)}).success_prob) == 100
    assert max(sizes) <= 32 and sum(sizes) == 100


def test_what_a_model_has_to_say_of_other_cameras_reaches_who_asked(plain):
    with pytest.raises(JudgeError, match="looks at camera 'front', which is not there; there are: none"):
        inline(plain).compute_batch_rewards({"wrist": frames(2)})


def test_a_stored_frame_that_cannot_be_written_to_is_looked_at_all_the_same():
    images = frames(3)
    images.flags.writeable = False
    assert RewardManager(tiny_model()).compute_rewards({"front": images}).shape == (3,)


def test_a_worker_that_has_not_begun_says_so(plain):
    with pytest.raises(JudgeError, match=r"has not begun; call init_worker\(\)"):
        RewardWorker(RewardWorkerConfig(checkpoint_path=plain)).compute_batch_rewards({"front": frames(1)})


def test_a_checkpoint_is_a_model_that_can_be_loaded_and_is_never_overwritten(plain, tmp_path):
    worker = inline(plain)
    folder = worker.save_checkpoint(tmp_path, 12)
    assert folder == tmp_path / "step_12" and load_reward_model(folder).fingerprint == worker.judge.model.fingerprint
    with pytest.raises(TargetNotEmpty, match="nothing was written"):
        worker.save_checkpoint(tmp_path, 12)

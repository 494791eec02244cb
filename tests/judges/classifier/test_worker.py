"""A worker here and in a process of its own: both say the same, and whatever happens to the second is reported."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from plaudit.data.transfer import new_folder
from plaudit.errors import RewardError, TargetNotEmpty
from plaudit.judges.classifier import process
from plaudit.judges.classifier.judge import Judgement, RewardModel
from plaudit.judges.classifier.process import About, Remote
from plaudit.judges.classifier.worker import RewardManager, RewardWorker, RewardWorkerConfig
from plaudit.judges.detector import JudgeConfig, ModelJudge, judge_episode
from plaudit.types import Observation
from processes import FORKED
from tiny_reward import SIZE, noise_episode, tiny_model
from waiting import stretch, wait_until

SHAPE = {"history": 2, "progress": True}


def save(model: RewardModel, folder: Path) -> Path:
    with new_folder(folder) as partial_folder:
        model.save(partial_folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return save(tiny_model(), tmp_path_factory.mktemp("models") / "plain")


@pytest.fixture(scope="module")
def remembering(tmp_path_factory) -> Path:
    return save(tiny_model(**SHAPE), tmp_path_factory.mktemp("models") / "remembering")


@pytest.fixture(scope="module")
def away(plain):
    with RewardWorker(RewardWorkerConfig(checkpoint_path=plain, place="process", reward_type="continuous")) as worker:
        yield worker


def inline(folder: Path, **options) -> RewardWorker:
    worker = RewardWorker(RewardWorkerConfig(checkpoint_path=folder, **options))
    worker.init_worker()
    return worker


def frames(count: int) -> np.ndarray:
    return noise_episode(count).frames["front"][:count]


# Rewards


def test_binary_pays_from_the_threshold_on_and_continuous_the_probability():
    model = tiny_model()
    said = model.score({"front": frames(6)}).probability
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


@pytest.mark.parametrize("place", ["inline", "process"])
def test_no_observations_get_no_rewards(plain, away, place):
    worker = away if place == "process" else inline(plain)
    for given in ({"front": frames(4)[:0]}, Observation({"front": frames(4)[:0]}, np.zeros((0, 2), np.float32))):
        paid = worker.compute_batch_rewards(given)
        assert paid.shape == (0,) and paid.dtype == np.float32
    assert RewardManager(tiny_model(progress=True)).compute_rewards({"front": frames(4)[:0]}).shape == (0,)


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
    assert len(model.score({"front": frames(100)}).probability) == 100
    assert max(sizes) <= 32 and sum(sizes) == 100


def test_what_a_model_has_to_say_of_other_cameras_reaches_who_asked(plain):
    with pytest.raises(RewardError, match="looks at camera 'front', which is not there; there are: none"):
        inline(plain).compute_batch_rewards({"wrist": frames(2)})


def test_a_stored_frame_that_cannot_be_written_to_is_looked_at_all_the_same():
    images = frames(3)
    images.flags.writeable = False
    assert RewardManager(tiny_model()).compute_rewards({"front": images}).shape == (3,)


def test_a_worker_that_has_not_begun_says_so(plain):
    with pytest.raises(RewardError, match=r"has not begun; call init_worker\(\)"):
        RewardWorker(RewardWorkerConfig(checkpoint_path=plain)).compute_batch_rewards({"front": frames(1)})


def test_a_checkpoint_is_a_model_that_can_be_loaded_and_is_never_overwritten(plain, tmp_path):
    worker = inline(plain)
    folder = worker.save_checkpoint(tmp_path, 12)
    assert folder == tmp_path / "step_12" and RewardModel.load(folder).fingerprint == worker.fingerprint
    with pytest.raises(TargetNotEmpty, match="nothing was written"):
        worker.save_checkpoint(tmp_path, 12)


# A process of its own


def test_a_process_says_the_same(plain, away):
    given = {"front": frames(5)}
    assert away.compute_batch_rewards(given) == pytest.approx(
        inline(plain, reward_type="continuous").compute_batch_rewards(given), abs=1e-6
    )
    assert (away.fingerprint, away.threshold, away.has_progress) == (tiny_model().fingerprint, 0.5, False)


def test_a_process_follows_scenes_and_judges_episodes_as_one_that_is_here(remembering):
    episode, config = noise_episode(8), JudgeConfig(shaping=0.5, reward_type="continuous")
    seen = [Observation({"front": f[None]}, s[None]) for f, s in zip(episode.frames["front"], episode.state)]
    here, said = inline(remembering), []
    with RewardWorker(RewardWorkerConfig(checkpoint_path=remembering, place="process")) as there:
        for worker in (here, there):
            judge = ModelJudge(worker, config, 1, 8)
            said.append([judge.start(seen[0]).item(), *(judge(o, {}).reward.item() for o in seen[1:])])
        assert said[0] == pytest.approx(said[1], abs=1e-6)
        assert judge_episode(there, episode, config).reward == pytest.approx(said[0][1:], abs=1e-5)


def test_an_error_comes_back_as_its_sentence_and_the_next_question_is_answered(away, tmp_path):
    with pytest.raises(RewardError, match="camera 'front' gives 8x16 images, this reward model was trained on 16x16"):
        away.compute_batch_rewards({"front": frames(2)[:, :8]})
    away.save_checkpoint(tmp_path, 0)
    with pytest.raises(RewardError, match="holds something already; nothing was written"):
        away.save_checkpoint(tmp_path, 0)
    assert away.compute_batch_rewards({"front": frames(2)}).shape == (2,)


def test_a_model_that_cannot_be_loaded_is_refused_with_the_same_sentence(tmp_path):
    with pytest.raises(RewardError, match="this is not a reward model: it has no model"):
        RewardWorker(RewardWorkerConfig(checkpoint_path=tmp_path, place="process")).init_worker()


class FakeHome:
    """Says how bright the first pixel of each frame is; some brightnesses make it do something else first."""

    about = About(0.5, False, "fake", {"front": SIZE})

    def ask(self, question, seen):
        brightness = seen.images["front"][:, 0, 0, 0]
        if brightness[0] == 3:
            os._exit(3)
        if brightness[0] == 9:
            time.sleep(0.5)
        return Judgement(brightness.astype(np.float32), None)

    def save(self, folder): ...

    def close(self): ...


def bright(value: int, count: int = 1) -> Observation:
    return Observation({"front": np.full((count, *SIZE, 3), value, np.uint8)}, np.zeros((count, 0), np.float32))


@pytest.fixture
def remote(monkeypatch):
    """However its process began; how it really does, the tests above and below see."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: FORKED)
    remote = Remote(FakeHome)
    yield remote
    remote.close()


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of shared memory that were made, and those of them that can still be found."""

    class Noted(SharedMemory):
        made: ClassVar[list[Path]] = []

        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.made.append(Path("/dev/shm") / self.name)

        @classmethod
        def left(cls) -> list[Path]:
            return [path for path in cls.made if path.exists()]

    monkeypatch.setattr(process, "SharedMemory", Noted)
    return Noted


def test_images_of_any_number_go_through_and_no_block_has_a_name(remote, blocks):
    for count in (1, 500, 2):
        assert remote.ask("score", bright(200, count)).probability.tolist() == [200] * count
    assert len(blocks.made) == 2 and blocks.left() == []


def test_a_process_that_dies_is_reported_and_nobody_waits_for_it(remote, blocks):
    with pytest.raises(RewardError, match=r"the reward worker's process \d+ ended with exit code 3; see what it"):
        remote.ask("score", bright(3))
    with pytest.raises(RewardError, match="exit code 3"):
        remote.ask("score", bright(4))
    assert len(blocks.made) == 1 and blocks.left() == []


def test_a_process_that_is_killed_leaves_nothing_behind(remote, blocks):
    remote.ask("score", bright(1))
    os.kill(remote._process.pid, signal.SIGKILL)
    with pytest.raises(RewardError, match=r"exit code -9 \(killed, often because memory ran out\)"):
        remote.ask("score", bright(1, 900))
    assert len(blocks.made) == 2 and blocks.left() == []


def test_the_answer_to_a_question_that_was_interrupted_is_not_taken_for_the_next(remote):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            remote.ask("score", bright(9))  # takes half a second
    finally:
        signal.signal(signal.SIGALRM, before)
    assert remote.ask("score", bright(7)).probability.tolist() == [7]


def test_a_closed_one_says_so(remote):
    remote.close()
    remote.close()
    with pytest.raises(RewardError, match="is closed; make a new one"):
        remote.ask("score", bright(1))


PROGRAM = """
import signal, sys, time
from plaudit.judges.classifier.process import Remote
from test_worker import FakeHome, bright

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes what it starts with & deaf to Ctrl-C
    if "early" in sys.argv:
        print("starting", flush=True)
    remote = Remote(FakeHome)
    remote.ask("score", bright(1))
    try:
        print(remote._process.pid, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", remote.ask("score", bright(2)).probability.item(), flush=True)
    remote.close()
"""


def start_program(folder: Path, *arguments: str) -> subprocess.Popen:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_ctrl_c_is_for_the_parent_alone(tmp_path):
    program = start_program(tmp_path)
    assert int(program.stdout.readline())
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does it: to all of them
    out, errors = program.communicate(timeout=stretch(60))
    assert (out, errors, program.returncode) == ("interrupted 2.0\n", "", 0)


@pytest.mark.slow
def test_ctrl_c_while_it_starts_prints_one_traceback_and_not_two(tmp_path):
    program = start_program(tmp_path, "early")
    assert program.stdout.readline() == "starting\n"
    time.sleep(0.7)  # both have forked by now, and the child is importing
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=stretch(60))
    assert errors.count("Traceback") == 1 and "program.py" in errors


@pytest.mark.slow
def test_it_ends_with_its_parent_whatever_ends_that(tmp_path):
    program = start_program(tmp_path)
    child = int(program.stdout.readline())
    maps = [line for line in Path(f"/proc/{program.pid}/maps").read_text().splitlines() if "/dev/shm/" in line]
    assert len(maps) == 1 and maps[0].endswith("(deleted)")  # so nothing can be left
    program.kill()
    program.communicate(timeout=stretch(60))
    wait_until(lambda: gone(child), what="for the child to end")


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True

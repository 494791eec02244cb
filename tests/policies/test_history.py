"""Policies that see earlier observations too: the same windows in replay, in rollouts and on a robot."""

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import counting_episode, labeled_store
from counting import CountingSimulation
from plaudit.config import parse
from plaudit.data.device_frames import DeviceFrames
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.errors import ConfigError
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.learners.base import EncoderSpec
from plaudit.learners.bc import train_flow_from_store
from plaudit.learners.config import PpoConfig, QChunkConfig, SacConfig
from plaudit.policies.config import FlowConfig, GaussianConfig, ImageEncoderConfig, OpenpiConfig
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import FROZEN, Encoder, ObsTensors, cut_patches, random_offsets, random_shift, weights_of
from plaudit.policies.pretrained import FrozenEncoder
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.rollout.vector import collect_rollout
from plaudit.training.config_file import load_training_config
from plaudit.training.evaluation import PolicyActor
from plaudit.types import EnvSpec, Labels, Observation

SPEC = EnvSpec(2, 1, {"front": (16, 16)})
NORMALIZER = Normalizer.identity(2, 1)
LEARNERS = {"sac": SacConfig(hidden_dims=(8,)), "ppo": PpoConfig(hidden_dims=(8,)), "qchunk": QChunkConfig(horizon=1)}


def linked(count: int, first: float = 0.0) -> list[Observation]:
    """The observations of an episode in 3 environments; observation t shows first + t."""
    seen: list[Observation] = []
    for t in range(count):
        previous = None if not seen else lambda last=seen[-1]: last
        frames = {"front": np.full((3, 16, 16, 3), 10 * t + first, np.uint8)}
        seen.append(Observation(frames, np.full((3, 2), t + first, np.float32), previous))
    return seen


def test_a_window_repeats_the_first_observation_of_an_episode():
    episode = linked(4)
    for t, expected in enumerate([[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1]]):
        window = episode[t].window(2, ["front"])
        assert window.state.shape == (3, 3, 2) and window.state[0, :, 0].tolist() == expected
        assert window.images["front"].shape == (3, 3, 16, 16, 3)
        assert window.images["front"][1, :, 0, 0, 0].tolist() == [10 * step for step in expected]
        one = episode[t][1].window(2, ["front"])
        assert one.images["front"].shape == (3, 16, 16, 3) and one.state[:, 1].tolist() == expected


def test_an_episode_that_is_recorded_gives_the_same_windows_and_the_next_one_starts_again():
    for first in (0.0, 50.0):
        buffer = EpisodeBuffer.allocate(EnvSpec(2, 1, {"front": (16, 16)}, fps=10.0), 4)
        for row, seen in enumerate(linked(4, first)):
            buffer.add_observation(row, seen[0], 0.0)
        assert buffer.observation(3).window(2, ["front"]).state[:, 0].tolist() == [first + 3, first + 2, first + 1]
        assert buffer.observation(1).window(2, ["front"]).state[:, 0].tolist() == [first + 1, first, first]


def test_a_rollout_and_an_evaluation_of_a_policys_folder_give_the_same_windows():
    env, windows = CountingSimulation(2), []

    def act(observation: Observation) -> np.ndarray:
        windows.append(observation.window(2, ["front"]).state[1, :, 1].tolist())
        return np.zeros((2, 1), np.float32)

    for _ in range(2):  # the second episode starts again
        collect_rollout(env, act, [9, 9], SuccessDetector(SimulatorJudge(), 2))
    assert windows == 2 * [[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1], [4, 3, 2]]
    spec = PolicySpec.of(GaussianConfig(state_dim=2, action_dim=1, history=2, seed=1))
    policy, acting = spec.build(), PolicyActor(spec, env).start()
    for observation in linked(4):
        expected = [policy.predict(observation[n], NORMALIZER)[0] for n in range(2)]
        assert np.array_equal(acting(observation), np.clip(expected, -1, 1))


@pytest.mark.parametrize(("n_step", "on_device"), [(1, False), (3, False), (1, True), (3, True)])
def test_windows_of_replay_do_not_cross_the_start_of_an_episode(tmp_path: Path, n_step: int, on_device: bool):
    store = labeled_store(tmp_path / "s", *(counting_episode(4 + n, first=20 * n) for n in range(3)))
    frames = DeviceFrames("cpu", max_bytes=1 << 20) if on_device else None
    batch = ReplaySampler(store, n_step=n_step, history=2, frames=frames, seed=0).sample_torch(256, "cpu")
    assert batch.state.shape == (256, 3, 2) and batch.images["front"].shape == (256, 3, 8, 10, 3)
    sampled = set()
    for n, (episode, step) in enumerate(zip(batch.episode.tolist(), batch.step.tolist())):
        following = min(step + n_step, 4 + episode)
        for t, images, state in (
            (step, batch.images["front"][n], batch.state[n]),
            (following, batch.next_images["front"][n], batch.next_state[n]),
        ):
            expected = [20 * episode + max(t - ago, 0) for ago in range(3)]
            assert state[:, 0].tolist() == [10 * number for number in expected]
            assert images[:, 0, 0, 0].tolist() == expected and (images == images[:, :1, :1, :1]).all()
        assert batch.actions[n] == step
        sampled.add((episode, step))
    assert len(sampled) == 4 + 5 + 6


def test_slots_of_a_window_are_right_after_evictions(tmp_path: Path):
    store = labeled_store(tmp_path / "s", *(counting_episode(3, first=10 * n) for n in range(3)), capacity_episodes=3)
    frames = DeviceFrames("cpu", max_bytes=1 << 20)
    fast, plain = (ReplaySampler(store, history=1, frames=each, seed=1) for each in (frames, None))
    for n in range(6):
        labeled = store.append(counting_episode(2 + n % 3, first=100 + 10 * n))
        store.ledger.append(labeled, Labels.from_cutoff(steps=2 + n % 3, cutoff=None, source="human"))
        fast.refresh()
        plain.refresh()
        one, other = (sampler.sample_torch(64, "cpu") for sampler in (fast, plain))
        assert torch.equal(one.images["front"], other.images["front"])
        assert torch.equal(one.next_images["front"], other.next_images["front"])


@pytest.mark.parametrize("kind", ["cnn", "cloned"])
def test_features_of_a_window_are_those_of_its_frames_one_after_the_other(kind: str):
    torch.manual_seed(0)
    config = ImageEncoderConfig(type=kind, features=5)
    frozen = FrozenEncoder(config, SPEC.cameras) if kind == "cloned" else None
    encoder = Encoder(SPEC, config, frozen, history=2)
    single = Encoder(SPEC, config, frozen)
    single.load_state_dict(encoder.state_dict())
    images, state = torch.randint(0, 256, (4, 3, 16, 16, 3), dtype=torch.uint8), torch.randn(4, 3, 2)
    each = [single(ObsTensors({"front": images[:, n]}, state[:, n])) for n in range(3)]
    frames, states = zip(*(one.split([single.size - 2, 2], dim=1) for one in each))
    expected = torch.cat([*frames, *states], dim=1)
    assert encoder.size == expected.shape[1] == 3 * single.size
    assert torch.allclose(encoder(ObsTensors({"front": images}, state)), expected, atol=1e-5)


def test_the_frames_of_a_window_are_shifted_together():
    images = torch.randint(0, 256, (5, 1, 16, 16, 3), dtype=torch.uint8).expand(-1, 3, -1, -1, -1)
    moved = random_shift(images, torch.Generator().manual_seed(0), 4)
    alone = random_shift(images[:, 0], torch.Generator().manual_seed(0), 4)
    assert not torch.equal(moved, images) and all(torch.equal(moved[:, n], alone) for n in range(3))
    offsets = random_offsets(5, torch.Generator().manual_seed(0), 4)
    patches = cut_patches(images, offsets)
    assert all(torch.equal(patches[:, n], cut_patches(images[:, 0], offsets)) for n in range(3))


@pytest.mark.parametrize("kind", ["cnn", "cloned", "state"])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_robots_policy_acts_as_the_learner_throughout_an_episode(name: str, kind: str):
    torch.manual_seed(0)
    spec = EnvSpec(2, 1, {}) if kind == "state" else SPEC
    encoder = ImageEncoderConfig() if kind == "state" else ImageEncoderConfig(type=kind)
    frozen = FrozenEncoder(encoder, SPEC.cameras) if kind == "cloned" else None
    learner = LEARNERS[name].build(spec, 3, "cpu", encoder=EncoderSpec(encoder, frozen, 2))
    policy = learner.policy_config().build()
    if frozen is not None:
        policy.load_frozen(weights_of(0, {FROZEN: frozen}))
    policy.load_weights(learner.weights())
    actions = []
    for first in (0.0, 3.0):
        act = learner.act_fn(explore=False)
        policy.rng.manual_seed(policy.config.seed)
        for observation in linked(4, first):
            actions.append(act(observation[:1])[0])
            assert np.allclose(policy.predict(observation[0], NORMALIZER)[0], actions[-1], atol=1e-5)
    assert name == "qchunk" or not np.allclose(actions[0], actions[1:])  # its actions are at the limit


def test_a_rollout_of_ppo_is_cut_into_the_windows_that_its_policy_has_seen():
    learner = LEARNERS["ppo"].build(SPEC, 0, "cpu", encoder=EncoderSpec(history=2))
    observed = np.arange(5, dtype=np.float32)[:, None] + np.float32([[0, 100]])  # [T+1, N]
    windows = learner._windows(observed)
    for t, observation in enumerate(linked(5)):
        expected = torch.from_numpy(observation.window(2, []).state[0, :, 0])
        assert torch.equal(windows[t], torch.stack([expected, expected + 100]))


def test_a_flow_policy_with_a_history_clones_demonstrations(tmp_path: Path):
    """The action is how far the state has moved: no single observation tells."""
    store = labeled_store(tmp_path / "s", *(counting_episode(6, first=10 * n) for n in range(2)), cutoff=6)
    config = FlowConfig(state_dim=2, action_dim=1, horizon=2, history=1, cameras={"front": (8, 10)})
    trainer = train_flow_from_store(config.build(), store, NORMALIZER, steps=2, batch_size=8)
    assert trainer.version == 2
    assert trainer.policy.predict(store.episode(0).observation(0), NORMALIZER).shape == (2, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("policy.history=-1", "policy.history"),
        ("policy.history=33", "policy.history"),
        ("policy.history=2 learner=own_learner:ImitationConfig", "sees one observation"),
    ],
)
def test_a_history_that_cannot_work_is_refused(words: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_training_config("train", None, ["env=lift", "learner=sac", *words.split()])


def test_an_openpi_policy_has_no_history():
    with pytest.raises(ConfigError, match="history"):
        parse(OpenpiConfig, {"openpi_model": {}, "action_dim": 3, "history": 1})

"""Image encoders of policies: frozen, fine-tuned, shared; and what replay and a robot's policy make of them."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import counting_episode
from plaudit.data.batch import FeatureCache
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.encoders import EncodedFrames
from plaudit.encoders.efficientnet import EfficientNetConfig
from plaudit.errors import PolicyError
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.config import ClassifierConfig
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.learners.base import EncoderSpec
from plaudit.learners.config import PpoConfig, QChunkConfig, SacConfig
from plaudit.policies.config import GaussianConfig, ImageEncoderConfig
from plaudit.policies.networks import FROZEN, Encoder, ObsTensors, is_small, takes_patches, weights_of
from plaudit.policies.pretrained import FrozenEncoder, spatial_softmax
from plaudit.types import Batch, EnvSpec, Labels, Observation

SIZE = (40, 64)
SPEC = EnvSpec(3, 2, {"front": SIZE, "wrist": SIZE})
RNG = np.random.default_rng(0)
EFFICIENT = {"type": "efficientnet_lite0", "features": 8}
KINDS = {
    "cnn": ImageEncoderConfig(),
    "cnn, shared": ImageEncoderConfig(shared=True),
    "cloned": ImageEncoderConfig(type="cloned"),
    "frozen, embeddings": ImageEncoderConfig(**EFFICIENT),
    "frozen, softmax": ImageEncoderConfig(**EFFICIENT, pooling="spatial_softmax", shared=True),
    "fine-tuned": ImageEncoderConfig(**EFFICIENT, frozen=False, shared=True),
    "fine-tuned, softmax": ImageEncoderConfig(**EFFICIENT, frozen=False, pooling="spatial_softmax"),
}
SLOW = ("fine-tuned",)  # one that shares its network and one that is fine-tuned are tested apart


def cache(encoder: FrozenEncoder, folder: Path) -> FeatureCache:
    return FeatureCache(encoder.encode, encoder.shapes, encoder.fingerprint, folder)


def frames(count: int) -> dict[str, np.ndarray]:
    return {camera: RNG.integers(0, 256, (count, *size, 3), np.uint8) for camera, size in SPEC.cameras.items()}


def spec_of(kind: str) -> EncoderSpec:
    torch.manual_seed(0)
    config = KINDS[kind]
    return EncoderSpec(config, FrozenEncoder(config, SPEC.cameras) if config.is_frozen else None)


def batch_of(encoder: EncoderSpec, horizon: int | None = None) -> Batch[torch.Tensor]:
    """A batch as replay makes it for this encoder."""

    def images() -> dict[str, torch.Tensor]:
        seen = frames(4)
        return {c: torch.from_numpy(x) for c, x in (encoder.frozen.encode(seen) if encoder.frozen else seen).items()}

    state, none = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    shape = (4, 2) if horizon is None else (4, horizon, 2)
    mask = torch.ones(4, horizon or 1).bool()
    rewards = torch.rand(4), torch.full((4,), 0.9)
    return Batch(images(), state, torch.rand(shape), mask, *rewards, images(), state, none, none, none)


def test_frames_are_cut_into_patches_only_if_every_encoder_takes_them():
    own, base = Encoder(SPEC), Encoder(SPEC, KINDS["fine-tuned"])  # of a learner, and of the policy that it improves

    assert takes_patches(torch.nn.ModuleList([own, Encoder(SPEC)]))
    assert not takes_patches(torch.nn.ModuleList([own, base]))
    assert is_small(own) and not is_small(torch.nn.ModuleList([own, base]))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        *(
            pytest.param(kind, SacConfig(policy_update_freq=1), marks=[pytest.mark.slow] * (kind in SLOW))
            for kind in KINDS
        ),
        *((kind, QChunkConfig(num_samples=2)) for kind in ("cnn, shared", "cloned")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.type,
)
def test_a_robots_policy_acts_as_the_learner_after_an_update(kind: str, config):
    encoder = spec_of(kind)
    learner = config.build(SPEC, 0, "cpu", encoder=encoder)
    metrics = learner.update(batch_of(encoder, getattr(config, "horizon", None)))
    assert all(torch.isfinite(value) for value in metrics.values())
    policy = learner.policy_config().build()
    if encoder.frozen is not None:
        policy.load_frozen(weights_of(0, {FROZEN: encoder.frozen}))
    weights = learner.weights()
    assert not [name for name in weights.tensors if name.startswith(FROZEN)]
    policy.load_weights(weights)
    seen = frames(1)
    state = RNG.normal(size=(1, 3)).astype(np.float32)
    expected = learner.act_fn(explore=False)(Observation(seen, state))[0]
    one = Observation({camera: image[0] for camera, image in seen.items()}, state[0])
    assert np.allclose(policy.predict(one, Normalizer.identity(3, 2))[0], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["cnn, shared", "cloned", "fine-tuned"])
def test_ppo_learns_from_a_rollout(kind: str):
    encoder = spec_of(kind)
    learner = PpoConfig(update_epochs=1, pretrain_batch_size=4).build(SPEC, 0, "cpu", encoder=encoder)
    before = learner.weights().tensors
    assert np.isfinite(float(learner.bc_update(batch_of(encoder))))
    after = learner.weights().tensors
    assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_the_critic_loss_alone_trains_a_shared_encoder():
    config = SacConfig(policy_update_freq=1)
    learner = config.build(SPEC, 0, "cpu", encoder=spec_of("cnn, shared"))
    assert learner.net.actor_encoder is learner.net.critic_encoder
    batch = batch_of(spec_of("cnn, shared"))
    before = [parameter.detach().clone() for parameter in learner.net.critic_encoder.parameters()]
    features = learner.net.critic_encoder(ObsTensors(batch.images, batch.state)).detach()
    learner._update_actor(batch, features, features, clone_only=False)
    assert all(torch.equal(*pair) for pair in zip(before, learner.net.critic_encoder.parameters()))
    learner.update(batch)
    after = list(learner.net.critic_encoder.parameters())
    assert any(not torch.equal(one, other) for one, other in zip(before, after))


@pytest.mark.parametrize("kind", ["cloned", "frozen, embeddings", "frozen, softmax"])
def test_no_update_changes_a_frozen_encoder_and_each_frame_is_encoded_once(kind: str):
    encoder = spec_of(kind)
    frozen = encoder.frozen
    assert frozen is not None
    fingerprint, encoded = frozen.fingerprint, []
    for network in frozen.networks.values():
        network.register_forward_hook(lambda _module, inputs, _output: encoded.append(len(inputs[0])))
    learner = SacConfig(policy_update_freq=1).build(SPEC, 0, "cpu", encoder=encoder)
    learner.update(batch_of(encoder))
    assert frozen.fingerprint == fingerprint
    encoded.clear()
    seen = frames(3)
    learner.act(Observation(seen, np.zeros((3, 3), np.float32)), learner.rng)
    features = frozen.encode({camera: np.concatenate([images, images[:1]]) for camera, images in seen.items()})
    assert encoded == [3, 3]  # two cameras
    whole = frozen({camera: torch.from_numpy(images) for camera, images in seen.items()})
    assert all(np.allclose(features[camera][:3], whole[camera].numpy(), atol=1e-5) for camera in seen)
    assert all(features[camera].shape[1:] == frozen.shapes[camera] for camera in seen)


def test_the_memory_of_encoded_frames_is_limited(monkeypatch):
    network, seen = spec_of("cloned").frozen.networks["front"], RNG.integers(0, 256, (32, *SIZE, 3), np.uint8)
    maps, encoded = torch.arange(8.0)[:, None, None, None], []
    monkeypatch.setattr("plaudit.encoders.MAX_BYTES", 10 * 4)
    once = EncodedFrames.of(network)
    for start in (0, 8, 16, 24, 16, 0):
        result = once(seen[start : start + 8], lambda new: maps[: encoded.append(len(new)) or len(new)])
        assert len(result) == 8
    assert encoded == [8, 8, 8, 8, 6, 8]  # the ten newest stay


def scoring_model(network: torch.nn.Module) -> RewardModel:
    """A judge with this frozen encoder and a head that was not trained."""
    config = ClassifierConfig(encoder=EfficientNetConfig(), cameras={"front": SIZE}, hidden_dim=8, latent_dim=8)
    about = {"frozen_encoder": True, "calibration": ((1.0, 0.0),), "threshold": {"value": 0.5}, "scores": {}}
    data = TrainingDataInfo(fingerprint="none", episodes={}, frames={}, sources=())
    facts = RewardModelConfig(classifier=config, **about, controls=(), problems=(), data=data, training={})
    return RewardModel([BinaryRewardClassifier(config, network)], facts, "cpu")


@pytest.mark.parametrize("first", ["policy", "judge"])
def test_a_judge_and_a_policy_with_the_same_frozen_encoder_encode_a_frame_once(first: str):
    gc.collect()  # policies of other tests
    policy: Any = spec_of("frozen, softmax").frozen
    judge, encoded = scoring_model(EfficientNetConfig().build()), []
    seen = {camera: images[:3] for camera, images in frames(3).items()}
    alone = judge.score_frames({"front": seen["front"]}).success_prob  # no policy has encoded anything yet
    for network in (policy.networks["all"], judge.members[0].encoder):
        network.register_forward_hook(lambda _module, inputs, _output: encoded.append(len(inputs[0])))
    policy.encode({camera: images[:1] for camera, images in seen.items()})
    encoded.clear()
    calls = [lambda: policy.encode(seen), lambda: judge.score_frames({"front": seen["front"]})]
    for call in calls if first == "policy" else reversed(calls):
        call()
    assert sum(encoded) == 2 + 2  # the two frames of each camera that are new
    assert np.allclose(judge.score_frames({"front": seen["front"]}).success_prob, alone, atol=1e-5)


def test_a_robots_policy_encodes_a_frame_of_its_history_once():
    config = GaussianConfig(**SPEC.policy_fields(), encoder=KINDS["frozen, softmax"], history=2, device="cpu")
    policy, encoded, seen = config.build(), [], None
    policy.frozen.networks["all"].register_forward_hook(lambda _m, inputs, _o: encoded.append(len(inputs[0])))
    for _ in range(4):
        previous = None if seen is None else (lambda before=seen: before)
        seen = Observation({c: images[0] for c, images in frames(1).items()}, np.zeros(3, np.float32), previous)
        policy.predict(seen, Normalizer.identity(3, 2))
    assert sum(encoded) == 2 * 4


def test_encoders_with_other_weights_have_other_fingerprints():
    one, other = (FrozenEncoder(KINDS["cloned"], SPEC.cameras) for _ in range(2))
    assert one.fingerprint != other.fingerprint
    other.load_state_dict(one.state_dict())
    assert one.fingerprint == other.fingerprint


def test_images_of_another_size_are_refused():
    frozen = spec_of("cloned").frozen
    assert frozen is not None
    with pytest.raises(PolicyError, match="camera 'front' gives images of 16x16, and the policy's encoder takes 40x64"):
        frozen.encode({camera: np.zeros((1, 16, 16, 3), np.uint8) for camera in SPEC.cameras})


def test_weights_of_another_encoder_are_refused():
    policy = SacConfig().build(SPEC, 0, "cpu", encoder=spec_of("cloned")).policy_config().build()
    with pytest.raises(PolicyError, match="lack 'frozen/"):
        policy.load_frozen(weights_of(0, {FROZEN: spec_of("frozen, embeddings").frozen}))
    plain = SacConfig().build(SPEC, 0, "cpu").policy_config().build()
    with pytest.raises(PolicyError, match="this policy has no frozen encoder"):
        plain.load_frozen(weights_of(0, {FROZEN: spec_of("cloned").frozen}))


def test_a_spatial_softmax_finds_where_a_channel_is_strongest():
    features = torch.zeros(1, 2, 5, 9)
    features[0, 0, 0, 8] = features[0, 1, 4, 4] = 100.0
    x, y = spatial_softmax(features).view(2, 2)
    assert torch.allclose(x, torch.tensor([1.0, 0.0]), atol=1e-5)
    assert torch.allclose(y, torch.tensor([-1.0, 1.0]), atol=1e-5)


def test_an_encoder_of_states_alone_returns_the_state():
    encoder = Encoder(EnvSpec(3, 2, {}), KINDS["cloned"])
    assert encoder.size == 3 and torch.equal(encoder(ObsTensors({}, torch.ones(2, 3))), torch.ones(2, 3))


def test_replay_serves_features_of_frames_that_it_encodes_once(tmp_path: Path):
    torch.manual_seed(0)
    frozen = FrozenEncoder(ImageEncoderConfig(type="cloned"), {"front": (16, 16)})
    calls = []
    frozen.networks["front"].register_forward_hook(lambda *_: calls.append(1))
    with Store.create(tmp_path / "store") as store:
        replay = ReplaySampler(store, cameras=("front",), features=cache(frozen, tmp_path / "features"), seed=0)
        for n in range(5):
            i = store.append(counting_episode(steps=3 + n, first=20 * n, size=(16, 16)))
            store.ledger.append(i, Labels.from_cutoff(steps=3 + n, cutoff=2, source="human"))
        replay.refresh()
        made = len(calls)
        assert made == 5
        batch = replay.sample(64)
        replay.refresh()
        assert len(calls) == made, "an episode is encoded again"
        for n, (i, t) in enumerate(zip(batch.episode.tolist(), batch.step.tolist())):
            expected = frozen.encode({"front": store.episode(i).frames["front"][t : t + 2]})["front"]
            assert np.array_equal(np.stack([batch.images["front"][n], batch.next_images["front"][n]]), expected)


def test_features_are_kept_in_files_that_only_the_same_encoder_reads(tmp_path: Path, monkeypatch):
    torch.manual_seed(0)
    one, other = (FrozenEncoder(ImageEncoderConfig(type="cloned"), {"front": (16, 16)}) for _ in range(2))
    with Store.create(tmp_path / "store") as store:
        i = store.append(counting_episode(steps=3, first=0, size=(16, 16)))
        expected = cache(one, tmp_path / "features").features(store, i)["front"]
        (file,) = (tmp_path / "features").glob("*/*.features")
        one.forget()
        monkeypatch.setattr(one, "encode", lambda _: pytest.fail("a frame is encoded again"))
        assert np.array_equal(cache(one, tmp_path / "features").features(store, i)["front"], expected)
        monkeypatch.undo()
        changed = cache(other, tmp_path / "features").features(store, i)["front"]
        assert not np.allclose(changed, expected)
        whole = file.read_bytes()
        for damaged in (b"", whole[:100], whole[:-200] + bytes(200), whole[:200] + b"\xff" + whole[201:]):
            file.write_bytes(damaged)
            assert np.allclose(cache(one, tmp_path / "features").features(store, i)["front"], expected)
            assert file.read_bytes() == whole
        cache(one, tmp_path / "features").forget(store, i)
        assert not file.exists() and len(list((tmp_path / "features").glob("*/*.features"))) == 1

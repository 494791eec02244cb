"""The best of N chunks: which one is taken, and that a policy of them keeps the contract."""

from typing import Any

import numpy as np
import pytest
import torch

from plaudit.config import parse
from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer
from plaudit.errors import ConfigError, PolicyError
from plaudit.learners.config import QChunkConfig
from plaudit.policies.config import CriticConfig, QChunkPolicyConfig, VelocityNetConfig
from plaudit.policies.flow import QChunkPolicy, best_of_n
from plaudit.policies.networks import CriticEnsemble, weights_of
from plaudit.registry import POLICY_REGISTRY
from plaudit.types import EnvSpec, Observation

TINY = {"velocity_net": VelocityNetConfig(width=16, depth=1), "critic": CriticConfig(hidden_dims=(16,))}
SPACES = {
    "state": EnvSpec(state_dim=5, action_dim=2, cameras={}),
    "pixels": EnvSpec(state_dim=3, action_dim=2, cameras={"front": (16, 20), "wrist": (12, 12)}),
}
IDENTITY = Normalizer.identity(5, 2)


def seen(env_spec: EnvSpec) -> Observation:
    rng = np.random.default_rng(0)
    images = {c: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for c, size in env_spec.cameras.items()}
    return Observation(images, rng.normal(size=env_spec.state_dim).astype(np.float32))


def made(**options) -> QChunkPolicy:
    return QChunkPolicyConfig(**{**SPACES["state"].policy_fields(), **TINY, **options}).build()


class Sum(CriticEnsemble):
    """Values a chunk by the sum of its actions, plus what each member thinks of everything."""

    def __init__(self, *biases: float):
        super().__init__(len(biases), 1, (1,))
        self.tastes = torch.tensor(biases)[:, None]

    def forward(self, features, actions, members=None):
        return self.tastes * actions.sum(dim=1)


def test_the_chunk_of_the_highest_value_is_taken_for_each_observation():
    chunks = torch.tensor([[1.0, 3.0, 2.0], [0.5, -1.0, 0.0]])[:, :, None, None] / 10  # two observations, three chunks
    assert best_of_n(Sum(1.0), torch.zeros(2, 1), chunks).flatten().tolist() == pytest.approx([0.3, 0.05])


def test_the_mean_of_the_critics_decides():
    chunks = torch.tensor([[[[0.1]], [[0.9]]]])
    assert best_of_n(Sum(1.0, -3.0), torch.zeros(1, 1), chunks).item() == pytest.approx(0.1)  # their mean likes less
    assert best_of_n(Sum(3.0, -1.0), torch.zeros(1, 1), chunks).item() == pytest.approx(0.9)


def test_critics_value_what_is_handed_out_and_that_lies_within_what_a_learner_may_say():
    chunks = torch.tensor([[[[5.0], [0.0]], [[1.0], [0.5]]]])  # clipped, the first is worth 1, the second 1.5
    assert best_of_n(Sum(1.0), torch.zeros(1, 1), chunks).flatten().tolist() == [1.0, 0.5]
    assert best_of_n(Sum(1.0), torch.zeros(1, 1), chunks[:, :1]).flatten().tolist() == [1.0, 0.0]


def test_of_more_samples_the_best_is_better():
    """Beside the same policy that draws one: the critics' own opinion of what is handed out."""

    def liked(samples: int) -> float:
        policy, one = made(num_samples=samples), seen(SPACES["state"])
        chunks = np.stack([policy.predict(one, IDENTITY) for _ in range(30)])
        with torch.no_grad():
            features = torch.from_numpy(one.state)[None].expand(30, -1)
            return float(policy.critic(features, torch.from_numpy(chunks).clamp(-1, 1).flatten(1)).mean())

    assert liked(1) < liked(4) < liked(32)


@pytest.mark.parametrize("guidance", ["vjp", "identity", "blend"])
@pytest.mark.parametrize("env_spec", SPACES.values(), ids=SPACES)
def test_it_keeps_the_contract(env_spec: EnvSpec, guidance: str):
    config = QChunkPolicyConfig(**env_spec.policy_fields(), **TINY, num_samples=4, guidance=guidance, horizon=6)
    policy = config.build()
    assert set(policy.components) == {"encoder", "velocity_net", "critic_encoder", "critic"}
    check_policy(
        policy, seen(env_spec), Normalizer.identity(env_spec.state_dim, env_spec.action_dim), env_spec.action_dim
    )


@pytest.mark.parametrize("env_spec", SPACES.values(), ids=SPACES)
def test_what_the_learner_learned_acts_the_same_on_the_robot(env_spec: EnvSpec):
    taught = QChunkConfig(velocity_net=TINY["velocity_net"], hidden_dims=(16,), num_samples=6).build(
        env_spec, seed=4, device="cpu"
    )
    policy = taught.policy_config().build()
    policy.load_weights(taught.weights())
    policy.warmup()
    one = seen(env_spec)
    many = Observation({c: image[None] for c, image in one.images.items()}, one.state[None])
    act = taught.act_fn(explore=False)
    steps = np.concatenate([act(many) for _ in range(5)])
    chunk = policy.predict(one, Normalizer.identity(env_spec.state_dim, env_spec.action_dim))
    assert chunk == pytest.approx(steps, abs=1e-6)


def test_a_config_goes_through_the_registry_and_weights_through_a_folder():
    policy = made(seed=3)
    config: Any = POLICY_REGISTRY.parse(policy.config.model_dump(mode="json"))
    other = config.build()
    assert np.array_equal(
        policy.predict(seen(SPACES["state"]), IDENTITY), other.predict(seen(SPACES["state"]), IDENTITY)
    )
    fresh = made(seed=9)
    fresh.load_weights(weights_of(1, policy.components))
    assert torch.equal(fresh.critic.weights[0], policy.critic.weights[0])


def test_a_previous_chunk_of_another_length_is_named():
    with pytest.raises(PolicyError, match=r"the previous chunk is \[4, 2\], this policy's are \[5, 2\]"):
        made().guided_inference(seen(SPACES["state"]), IDENTITY, np.zeros((4, 2), np.float32), 1, 1)


def test_a_policy_that_would_see_nothing_is_refused():
    with pytest.raises(ConfigError, match="something to see"):
        parse(QChunkPolicyConfig, {"state_dim": 0, "action_dim": 1})

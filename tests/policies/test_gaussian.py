import numpy as np
import pytest

from plaudit.config import parse
from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer
from plaudit.errors import ConfigError
from plaudit.learners.config import PpoConfig, SacConfig
from plaudit.policies.config import ActorConfig, GaussianConfig
from plaudit.types import EnvSpec, Observation

SPACES = {
    "mlp": EnvSpec(state_dim=5, action_dim=2, cameras={}),
    "cnn": EnvSpec(state_dim=3, action_dim=2, cameras={"front": (16, 20), "wrist": (12, 12)}),
}
LEARNERS = {"sac": SacConfig(hidden_dims=(16, 16)), "ppo": PpoConfig(hidden_dims=(16,))}


def seen(env_spec: EnvSpec) -> Observation:
    rng = np.random.default_rng(0)
    images = {c: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for c, size in env_spec.cameras.items()}
    return Observation(images, rng.normal(size=env_spec.state_dim).astype(np.float32))


@pytest.mark.parametrize("env_spec", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_what_a_learner_learned_acts_the_same_on_the_robot(learner, env_spec):
    taught = learner.build(env_spec, seed=4, device="cpu")
    policy = taught.policy_config().build()
    policy.load_weights(taught.weights())
    one = seen(env_spec)
    many = Observation({c: image[None] for c, image in one.images.items()}, one.state[None])
    action = policy.predict(one, Normalizer.identity(env_spec.state_dim, env_spec.action_dim))
    assert np.array_equal(action, taught.act(many, None))


@pytest.mark.parametrize("kind", ["squashed", "plain"])
def test_a_gaussian_policy_keeps_the_contract(kind):
    env_spec = SPACES["cnn"]
    config = GaussianConfig(**env_spec.policy_fields(), horizon=6, actor=ActorConfig(kind=kind, hidden_dims=(8,)))
    check_policy(config.build(), seen(env_spec), Normalizer.identity(3, 2), action_dim=2)


def test_it_explores_when_told_to_and_the_same_way_for_the_same_seed():
    config = GaussianConfig(state_dim=5, action_dim=2, stochastic=True, seed=1)
    one, other, normalizer = config.build(), config.build(), Normalizer.identity(5, 2)
    other.warmup()
    first, second = (one.predict(seen(SPACES["mlp"]), normalizer) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, other.predict(seen(SPACES["mlp"]), normalizer))


def test_a_plain_actor_cannot_be_stochastic():
    with pytest.raises(ConfigError, match="cannot be stochastic"):
        parse(GaussianConfig, {"state_dim": 5, "action_dim": 2, "stochastic": True, "actor": {"kind": "plain"}})

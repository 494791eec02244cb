"""Whether a learner follows `plaudit.protocols.Learner`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from plaudit.contracts.common import check_members, copy_observation, same_observation
from plaudit.data.batch import to_torch
from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.errors import ContractError
from plaudit.protocols import Learner
from plaudit.types import AnyArray, Batch, EnvSpec, Observation


def check_learner(config: Any, env_spec: EnvSpec, experience: Any = None) -> None:
    """The rules of a learner that every command can train with:

    1. it has all of `plaudit.protocols.Learner`
    2. `update` counts the version up by one, changes the policy within a few calls, and returns finite metrics
    3. the same seed and experience give the same weights
    4. `load_state_dict(state_dict())` continues exactly, also in a learner with another seed
    5. `weights()` fit the policy that `policy_config()` builds, and that acts as `act_fn(explore=False)` does

    config: of the learner, with `build(env_spec, seed, device)`
    env_spec: what it is built for
    experience: what `update` takes; None: a random batch, for a learner from replay
    """
    learner, twin, other = (config.build(env_spec, seed, "cpu") for seed in (0, 0, 1))
    check_members(learner, Learner)
    if experience is None:
        experience = _random_batch(learner.replay_options, env_spec)
    before = learner.weights().tensors
    for number in range(1, 5):
        _check_update(learner, experience, number)
        twin.update(experience)
    after = learner.weights()
    if not _different(before, after.tensors):
        raise ContractError("4 updates left the weights of the policy as they were")
    if after.version != learner.version:
        raise ContractError(f"weights() have version {after.version}, the learner has {learner.version}")
    if _different(after.tensors, twin.weights().tensors):
        raise ContractError(
            "the same seed and experience gave other weights the second time; sample with the learner's own rng"
        )
    other.load_state_dict(learner.state_dict())
    for each in (learner, other):
        each.update(experience)
    if other.version != learner.version or _different(learner.weights().tensors, other.weights().tensors):
        raise ContractError(
            "a learner continued differently from its own state_dict(): put weights, optimizers, random generators and "
            "the version into it"
        )
    _check_acting(learner, env_spec)


def _check_update(learner: Learner, experience: Any, number: int) -> None:
    metrics = learner.update(experience)
    if learner.version != number:
        raise ContractError(f"version is {learner.version} after {number} updates; update() counts it up by one")
    for name, value in metrics.items():
        if not np.isfinite(float(value)):
            raise ContractError(f"metric '{name}' is {float(value)}; it must be a finite number")


def _check_acting(learner: Learner, env_spec: EnvSpec) -> None:
    """The policy on the robot acts as in simulation."""
    observation = _observations(env_spec, 2)
    kept = copy_observation(observation)
    actions = learner.act_fn(explore=False)(observation)
    if not isinstance(actions, np.ndarray) or actions.shape != (2, env_spec.action_dim) or actions.dtype != np.float32:
        raise ContractError(f"act_fn() must return a function to float32 actions [N, {env_spec.action_dim}]")
    if not same_observation(observation, kept):
        raise ContractError("act_fn() changed the observation that it was given; work on copies")
    policy = learner.policy_config().build()
    try:
        policy.load_weights(learner.weights())
    except (ValueError, KeyError, RuntimeError) as error:
        raise ContractError(f"the policy of policy_config() does not take the learner's weights: {error}") from error
    alone = Observation({camera: image[:1] for camera, image in observation.images.items()}, observation.state[:1])
    first = Observation({camera: image[0] for camera, image in observation.images.items()}, observation.state[0])
    normalizer = AffineNormalizer.identity(env_spec.state_dim, env_spec.action_dim)
    on_robot, in_simulation = policy.predict(first, normalizer)[0], learner.act_fn(explore=False)(alone)[0]
    if not np.allclose(on_robot, in_simulation, atol=1e-4):
        raise ContractError(
            f"the policy of policy_config() acts differently from act_fn(explore=False): {on_robot}, {in_simulation}"
        )


def _random_batch(options: Mapping[str, Any], env_spec: EnvSpec, size: int = 16) -> Any:
    """Noise, in the form of a batch of `plaudit.data.replay.ReplaySampler`."""
    rng = np.random.default_rng(0)
    horizon = options.get("horizon")
    shape = (size, env_spec.action_dim) if horizon is None else (size, horizon, env_spec.action_dim)
    obs, after = _observations(env_spec, size, 1), _observations(env_spec, size, 2)
    return to_torch(
        Batch(
            images=obs.images,
            state=obs.state,
            actions=rng.uniform(-1, 1, shape).astype(np.float32),
            action_mask=np.ones((size, horizon or 1), bool),
            reward=rng.uniform(0, 1, size).astype(np.float32),
            discount=np.full(size, 0.9, np.float32),
            next_images=after.images,
            next_state=after.state,
            episode=np.zeros(size, np.int64),
            step=np.arange(size),
            part=np.zeros(size, np.int64),
        )
    )


def _observations(env_spec: EnvSpec, count: int, seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    images = {c: rng.integers(0, 255, (count, *size, 3), np.uint8) for c, size in env_spec.cameras.items()}
    return Observation(images, rng.normal(size=(count, env_spec.state_dim)).astype(np.float32))


def _different(one: Mapping[str, AnyArray], other: Mapping[str, AnyArray]) -> bool:
    return set(one) != set(other) or any(not np.array_equal(one[name], other[name]) for name in one)

"""Whether a simulation follows `plaudit.protocols.VecEnv`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from plaudit.contracts.common import check_members, check_observation, copy_observation, same_observation
from plaudit.errors import ContractError
from plaudit.protocols import VecEnv


def check_vec_env(env: Any) -> None:
    """Reset and step; the same seeds start the same, and environments that are not active stay as they are."""
    check_members(env, VecEnv)
    count, active = env.num_envs, np.ones(env.num_envs, bool)
    seeds = list(range(count))
    first = env.reset(seeds)
    check_observation(first, env.cameras, env.state_dim, "reset()", count)
    before = copy_observation(first)
    actions = np.zeros((count, env.action_dim), np.float32)
    observation, info = env.step(actions, active)
    check_observation(observation, env.cameras, env.state_dim, "step()", count)
    _check_info(info, count)
    still, _ = env.step(actions + 0.5, ~active)
    if not np.array_equal(still.state, observation.state):
        raise ContractError("step() moved environments that were not active")
    if not np.array_equal(first.state, before.state):
        raise ContractError("an observation changed after it was returned; hand out copies")
    if not same_observation(env.reset(seeds), before):
        raise ContractError("reset() with the same seeds showed another start the second time")


def _check_info(info: Mapping[str, Any], count: int) -> None:
    if info.get("success", np.zeros(0)).shape != (count,) or info["success"].dtype != np.bool_:
        raise ContractError(f"step() must report 'success' as bool [{count}], it reports {sorted(info)}")
    for name, values in info.items():
        if np.shape(values)[:1] != (count,):
            raise ContractError(
                f"step() reports '{name}' as {list(np.shape(values))}, not one value per environment, [{count}]"
            )

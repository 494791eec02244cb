"""Checks for authors of plugins: does a robot, a simulation, a policy or a judge keep the protocol it claims to?

    def test_my_robot():
        check_robot(MyRobot())

Each raises `ContractError` with a sentence that names the method and what it should have done.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plaudit.errors import ContractError
from plaudit.protocols import Labeler, Normalizer, Policy, Robot, Simulation
from plaudit.types import Episode, Labels, Observation


def check_observation(observation: Any, robot: Robot, where: str) -> None:
    if not isinstance(observation, Observation):
        raise ContractError(f"{where} must return an Observation, got {type(observation).__name__}")
    if set(observation.images) != set(robot.cameras):
        raise ContractError(f"{where} returned cameras {sorted(observation.images)}, not {sorted(robot.cameras)}")
    for camera, (height, width) in robot.cameras.items():
        image = observation.images[camera]
        if image.dtype != np.uint8 or image.shape != (height, width, 3):
            raise ContractError(
                f"{where}: camera '{camera}' must be uint8 [{height}, {width}, 3], got {image.dtype} "
                f"{list(image.shape)}"
            )
    state = observation.state
    if state.dtype != np.float32 or state.shape != (robot.state_dim,) or not np.isfinite(state).all():
        raise ContractError(
            f"{where}: state must be finite float32 [{robot.state_dim}], got {state.dtype} {list(state.shape)}"
        )


def check_robot(robot: Any) -> None:
    """Reset, act and observe twice; a simulation with the same seed must start the same."""
    if not isinstance(robot, Robot):
        missing = [name for name in ("reset", "act", "observe", "privileged", "hold") if not hasattr(robot, name)]
        raise ContractError(f"{type(robot).__name__} is not a Robot: it lacks {', '.join(missing) or 'attributes'}")
    first = robot.reset(seed=0)
    check_observation(first, robot, "reset()")
    seen = {camera: image.copy() for camera, image in first.images.items()}
    for _ in range(2):
        robot.act(np.zeros(robot.action_dim, np.float32))
        check_observation(robot.observe(), robot, "observe()")
    if any(not np.array_equal(seen[camera], first.images[camera]) for camera in seen):
        raise ContractError("an observation changed after it was returned; hand out copies")
    again = robot.reset(seed=0)
    simulated = bool(robot.privileged())
    if simulated and any(not np.array_equal(seen[camera], again.images[camera]) for camera in seen):
        raise ContractError("reset(seed=0) showed another scene the second time; a simulation must start the same")
    robot.hold()


def check_simulation(simulation: Any) -> None:
    """Reset and step; the same seeds start the same, and what is not active stays as it is."""
    if not isinstance(simulation, Simulation):
        raise ContractError(f"{type(simulation).__name__} is not a Simulation: see plaudit.protocols for what it needs")
    count, active = simulation.num_envs, np.ones(simulation.num_envs, bool)
    seeds = list(range(count))
    first = simulation.reset(seeds)
    _check_observations(first, simulation, "reset()")
    before = {"state": first.state.copy(), **{camera: image.copy() for camera, image in first.images.items()}}
    actions = np.zeros((count, simulation.action_dim), np.float32)
    seen, known = simulation.step(actions, active)
    _check_observations(seen, simulation, "step()")
    if known.get("success", np.zeros(0)).shape != (count,) or known["success"].dtype != np.bool_:
        raise ContractError(f"step() must report 'success' as bool [{count}], it reports {sorted(known)}")
    for name, values in known.items():
        if np.shape(values)[:1] != (count,):
            raise ContractError(
                f"step() reports '{name}' as {list(np.shape(values))}, not one value a scene, [{count}]"
            )
    still, _ = simulation.step(actions + 0.5, ~active)
    if not np.array_equal(still.state, seen.state):
        raise ContractError("step() moved scenes that were not active")
    if not np.array_equal(first.state, before["state"]):
        raise ContractError("an observation changed after it was returned; hand out copies")
    again = simulation.reset(seeds)
    if any(not np.array_equal(before[name], array) for name, array in (("state", again.state), *again.images.items())):
        raise ContractError("reset() with the same seeds showed another start the second time")


def _check_observations(observation: Any, simulation: Simulation, where: str) -> None:
    if not isinstance(observation, Observation):
        raise ContractError(f"{where} must return an Observation, got {type(observation).__name__}")
    wanted = {camera: (simulation.num_envs, *size, 3) for camera, size in simulation.cameras.items()}
    found = {camera: image.shape for camera, image in observation.images.items() if image.dtype == np.uint8}
    if wanted != found:
        raise ContractError(f"{where} must show uint8 images {wanted}, it shows {found}")
    state, shape = observation.state, (simulation.num_envs, simulation.state_dim)
    if state.dtype != np.float32 or state.shape != shape or not np.isfinite(state).all():
        raise ContractError(
            f"{where}: state must be finite float32 {list(shape)}, got {state.dtype} {list(state.shape)}"
        )


def check_policy(policy: Any, observation: Observation, normalizer: Normalizer, action_dim: int) -> None:
    """Numpy in, numpy out, chunks of the right shape, and nothing left to learn once frozen."""
    if not isinstance(policy, Policy):
        methods = ("predict", "guided_inference", "warmup", "freeze_all_model_params", "load_weights", "components")
        missing = [name for name in methods if not hasattr(policy, name)]
        raise ContractError(f"{type(policy).__name__} is not a Policy: it lacks {', '.join(missing)}")
    policy.warmup()
    chunk = policy.predict(observation, normalizer)
    _check_chunk(chunk, action_dim, "predict()")
    _check_chunk(
        policy.guided_inference(observation, normalizer, chunk, 0, len(chunk)), action_dim, "guided_inference()"
    )
    policy.freeze_all_model_params()
    for name, component in policy.components.items():
        learning = [key for key, value in component.named_parameters() if value.requires_grad]
        if learning:
            raise ContractError(f"freeze_all_model_params() left {name}.{learning[0]} learning")


def _check_chunk(chunk: Any, action_dim: int, where: str) -> None:
    if not isinstance(chunk, np.ndarray):
        raise ContractError(f"{where} must return a numpy array, got {type(chunk).__name__}")
    if chunk.dtype != np.float32 or chunk.ndim != 2 or chunk.shape[1] != action_dim or not np.isfinite(chunk).all():
        raise ContractError(
            f"{where} must return finite float32 [H, {action_dim}], got {chunk.dtype} {list(chunk.shape)}"
        )


def check_labeler(labeler: Any, episodes: Sequence[Episode]) -> None:
    """One verdict an episode, of its length, with the judge's name on it, and the episode untouched."""
    if not isinstance(labeler, Labeler):
        raise ContractError(f"{type(labeler).__name__} is not a Labeler: it needs `source` and `label(episodes)`")
    before = [episode.actions.copy() for episode in episodes]
    verdicts = labeler.label(episodes)
    if len(verdicts) != len(episodes):
        raise ContractError(f"label() returned {len(verdicts)} verdicts on {len(episodes)} episodes")
    for episode, verdict, actions in zip(episodes, verdicts, before, strict=True):
        if isinstance(verdict, Exception):
            continue
        if not isinstance(verdict, Labels):
            raise ContractError(f"label() must return Labels or an exception each, got {type(verdict).__name__}")
        if len(verdict.reward) != episode.steps:
            raise ContractError(f"label() judged {len(verdict.reward)} steps of an episode that has {episode.steps}")
        if verdict.source != labeler.source:
            raise ContractError(f"labels carry source '{verdict.source}', the labeler says '{labeler.source}'")
        if not np.array_equal(actions, episode.actions):
            raise ContractError("label() changed the episode it was shown")

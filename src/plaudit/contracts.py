"""Checks for authors of plugins: does a robot, a simulation, a policy, a learner or a judge keep its protocol?

    def test_my_robot():
        check_robot(MyRobot())

Each raises `ContractError` with a sentence that names the method and what it should have done.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import get_annotations
from types import ModuleType
from typing import Any

import numpy as np

from plaudit.data.batch import to_torch
from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.errors import ContractError, PlauditError
from plaudit.protocols import Judge, Learner, LiveJudge, Normalizer, Policy, Robot, VecEnv
from plaudit.types import AnyArray, Batch, Episode, FloatArray, JudgeId, Observation, PolicyWeights, Scores


def missing_members(thing: Any, protocol: type) -> list[str]:
    """What a thing lacks of a protocol of `plaudit.protocols`, by name."""
    bases = [base for base in protocol.__mro__ if base.__module__ == protocol.__module__]
    names = {name for base in bases for name in (*vars(base), *get_annotations(base)) if not name.startswith("_")}
    return sorted(name for name in names if not hasattr(thing, name))


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
    if not isinstance(simulation, VecEnv):
        raise ContractError(f"{type(simulation).__name__} is not a VecEnv: see plaudit.protocols for what it needs")
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


def _check_observations(observation: Any, simulation: VecEnv, where: str) -> None:
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
    """The seven rules that a policy lives by:

    1. it normalises inside, by the normaliser that it is handed
    2. it shows the parts that learn as `components`, and takes new weights for them
    3. it goes on from its previous chunk inside `guided_inference`
    4. what comes in is numpy, and stays as it was
    5. the normaliser is numpy alone
    6. what goes out is numpy
    7. torch stays inside

    observation: one that the policy can act on; its state and pixels should not all be 0
    """
    if not isinstance(policy, Policy):
        methods = ("predict", "guided_inference", "warmup", "freeze_all_model_params", "load_weights", "components")
        missing = [name for name in methods if not hasattr(policy, name)]
        raise ContractError(f"{type(policy).__name__} is not a Policy: it lacks {', '.join(missing)}")
    spy = _Spy(normalizer)
    before = _copy(observation)
    policy.warmup()
    chunk = policy.predict(observation, spy)
    _check_chunk(chunk, action_dim, "predict()")
    _check_guided(policy, observation, spy, chunk)
    if not _same(observation, before):
        raise ContractError("the policy changed the observation that it was shown; work on copies")
    if policy.components:
        _check_normalizing(policy, observation, spy.asked, normalizer)
        _check_components(policy)
    policy.freeze_all_model_params()
    for name, component in policy.components.items():
        learning = [key for key, value in component.named_parameters() if value.requires_grad]
        if learning:
            raise ContractError(f"freeze_all_model_params() left {name}.{learning[0]} learning")
    _check_chunk(policy.predict(observation, spy), action_dim, "predict(), once frozen,")


def _check_guided(policy: Policy, observation: Observation, normalizer: "_Spy", chunk: FloatArray) -> None:
    """A chunk that goes on from another begins near it, whatever the policy would do by itself."""
    horizon, action_dim = chunk.shape
    executed = delay = horizon // 3
    previous = chunk + np.float32(2)
    if policy.components and delay:  # it thinks in the normaliser's units, and may say no more than -1 to 1 in them
        ones, zeros = np.ones_like(chunk), np.zeros_like(chunk)
        middle = normalizer.denormalize_action(zeros)
        previous = chunk - np.copysign(normalizer.denormalize_action(ones) - middle, chunk - middle)
    handed, kept = previous.copy(), chunk.copy()
    guided = policy.guided_inference(observation, normalizer, handed, delay, executed)
    _check_chunk(guided, action_dim, "guided_inference()")
    if len(guided) != horizon:
        raise ContractError(f"guided_inference() returned {len(guided)} actions, predict() {horizon}")
    if not np.array_equal(handed, previous):
        raise ContractError("guided_inference() changed the previous chunk that it was handed; work on copies")
    if not np.array_equal(chunk, kept):
        raise ContractError("a chunk changed after it was returned; hand out copies")
    bound = previous[executed : executed + delay]
    alone = np.abs(policy.predict(observation, normalizer)[:delay] - bound).mean() if delay else 0.0
    if delay and np.abs(guided[:delay] - bound).mean() > 0.5 * alone:
        raise ContractError(
            f"guided_inference() does not go on from the previous chunk: its first {delay} actions are as far from it "
            "as those of predict()"
        )


def _check_normalizing(policy: Policy, observation: Observation, asked: set[str], inner: Normalizer) -> None:
    """By normalisers that say what they like: what the policy sees, and what it answers, must be what they say."""
    blind = _Spy(inner, {"normalize_state": 0.0, "normalize_image": 0.0})
    first, again = policy.predict(observation, blind), policy.predict(observation, blind)
    inverted = {camera: 255 - image for camera, image in observation.images.items()}
    with np.errstate(invalid="ignore"):
        other = policy.predict(Observation(inverted, np.full_like(observation.state, np.nan)), blind)
    if not np.isfinite(other).all():
        raise ContractError("predict() looks at the state, but not through normalizer.normalize_state()")
    if np.array_equal(first, again) and not np.array_equal(first, other):  # else it draws at random
        raise ContractError("predict() looks at images, but not through normalizer.normalize_image()")
    if "normalize_state" in asked:
        with np.errstate(invalid="ignore"):
            lost = policy.predict(observation, _Spy(inner, {"normalize_state": np.nan}))
        if np.isfinite(lost).all():
            raise ContractError("predict() asks normalizer.normalize_state() and does not use what it says")
    one, two = (policy.predict(observation, _Spy(inner, {"denormalize_action": said})) for said in (0.1, 0.2))
    if np.array_equal(one, two):
        raise ContractError("predict() returns actions that have not been through normalizer.denormalize_action()")


def _check_components(policy: Policy) -> None:
    """Each is a module whose numbers are those that `load_weights` sets."""
    mine: dict[str, Any] = {}
    for name, component in policy.components.items():
        if not hasattr(component, "state_dict") or not hasattr(component, "named_parameters"):
            raise ContractError(f"component '{name}' is a {type(component).__name__}, not a torch module")
        mine |= {f"{name}/{key}": value.detach().cpu().numpy().copy() for key, value in component.state_dict().items()}
    if not mine:
        return
    zero = {name: np.zeros_like(array) for name, array in mine.items()}
    policy.load_weights(PolicyWeights(1, zero))
    for name, component in policy.components.items():
        for key, value in component.state_dict().items():
            if value.detach().cpu().numpy().any():
                raise ContractError(f"load_weights() was handed zeros, and left component '{name}' its own '{key}'")
    policy.load_weights(PolicyWeights(2, mine))
    first = next(iter(mine))
    try:
        policy.load_weights(PolicyWeights(3, {name: array for name, array in mine.items() if name != first}))
    except (ValueError, KeyError, RuntimeError):
        return
    raise ContractError(f"load_weights() took weights that lack '{first}' without a word")


class _Spy:
    """A normaliser that notes what it is asked, and holds the one inside and who asks it to numpy.

    says: method -> the number that all of its answer is made of
    """

    def __init__(self, inner: Normalizer, says: Mapping[str, float] | None = None):
        self._inner, self._says = inner, says or {}
        self.asked: set[str] = set()
        places = (vars(inner), vars(sys.modules[type(inner).__module__]))
        strange = [name for place in places for name, value in place.items() if _of_torch(value)]
        if strange:
            raise ContractError(
                f"the normaliser {type(inner).__name__} is to use numpy alone; '{strange[0]}' is torch's"
            )

    def normalize_state(self, state: FloatArray) -> FloatArray:
        return self._answer("normalize_state", self._inner.normalize_state, state)

    def normalize_image(self, image: AnyArray) -> FloatArray:
        return self._answer("normalize_image", self._inner.normalize_image, image)

    def normalize_action(self, action: FloatArray) -> FloatArray:
        return self._answer("normalize_action", self._inner.normalize_action, action)

    def denormalize_action(self, action: FloatArray) -> FloatArray:
        return self._answer("denormalize_action", self._inner.denormalize_action, action)

    def _answer(self, method: str, ask: Callable[[AnyArray], FloatArray], array: AnyArray) -> FloatArray:
        self.asked.add(method)
        if not isinstance(array, np.ndarray):
            raise ContractError(f"the policy handed normalizer.{method}() a {type(array).__name__}, not a numpy array")
        result = ask(array)
        if not isinstance(result, np.ndarray):
            raise ContractError(f"normalizer.{method}() returned a {type(result).__name__}, not a numpy array")
        return np.full_like(result, self._says[method]) if method in self._says else result


def _of_torch(value: Any) -> bool:
    """Torch itself, or something it made; without importing it."""
    name = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    return name.split(".")[0] == "torch"


def _copy(observation: Observation) -> Observation:
    for name, array in (("state", observation.state), *observation.images.items()):
        if not isinstance(array, np.ndarray):
            raise ContractError(f"a policy is shown numpy arrays, '{name}' is a {type(array).__name__}")
    return Observation({camera: image.copy() for camera, image in observation.images.items()}, observation.state.copy())


def _same(one: Observation, other: Observation) -> bool:
    pairs = [(one.state, other.state), *((one.images[camera], other.images[camera]) for camera in other.images)]
    return set(one.images) == set(other.images) and all(np.array_equal(a, b) for a, b in pairs)


def _check_chunk(chunk: Any, action_dim: int, where: str) -> None:
    if not isinstance(chunk, np.ndarray):
        raise ContractError(f"{where} must return a numpy array, got {type(chunk).__name__}")
    if chunk.dtype != np.float32 or chunk.ndim != 2 or chunk.shape[1] != action_dim or not np.isfinite(chunk).all():
        raise ContractError(
            f"{where} must return finite float32 [H, {action_dim}], got {chunk.dtype} {list(chunk.shape)}"
        )


def check_learner(config: Any, env_spec: Any, experience: Any = None) -> None:
    """What a learner must keep, so that every command can train with it:

    1. it has all of `plaudit.protocols.Learner`
    2. `update` counts the version up by one, changes the policy within a few calls, and returns finite metrics
    3. the same seed and experience give the same weights
    4. `load_state_dict(state_dict())` continues exactly, also in a learner with another seed
    5. `weights()` fit the policy that `policy_config()` builds, and that acts as `act_fn(explore=False)` does

    config: of the learner, with `build(env_spec, seed, device)`
    env_spec: a `plaudit.types.EnvSpec`
    experience: what `update` takes; None: a random batch, for a learner from replay
    """
    learner, twin, other = (config.build(env_spec, seed, "cpu") for seed in (0, 0, 1))
    missing = missing_members(learner, Learner)
    if missing:
        raise ContractError(f"{type(learner).__name__} is not a Learner: it lacks {', '.join(missing)}")
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


def _check_acting(learner: Learner, env_spec: Any) -> None:
    """In simulation and on the robot it is the same policy."""
    observation = _observations(env_spec, 2)
    kept = _copy(observation)
    actions = learner.act_fn(explore=False)(observation)
    if not isinstance(actions, np.ndarray) or actions.shape != (2, env_spec.action_dim) or actions.dtype != np.float32:
        raise ContractError(f"act_fn() must return a function to float32 actions [N, {env_spec.action_dim}]")
    if not _same(observation, kept):
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


def _random_batch(options: Mapping[str, Any], env_spec: Any, size: int = 16) -> Any:
    """As `plaudit.data.replay.Replay` makes them, of noise."""
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


def _observations(env_spec: Any, count: int, seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    images = {c: rng.integers(0, 255, (count, *size, 3), np.uint8) for c, size in env_spec.cameras.items()}
    return Observation(images, rng.normal(size=(count, env_spec.state_dim)).astype(np.float32))


def _different(one: Mapping[str, AnyArray], other: Mapping[str, AnyArray]) -> bool:
    return set(one) != set(other) or any(not np.array_equal(one[name], other[name]) for name in one)


def check_judge(judge: Any, episodes: Sequence[Episode]) -> None:
    """What passes works in every command that takes a judge:

    1. one answer an episode, in order: scores of all its frames, an error, or None for later
    2. the episode stays as it was
    3. causal: scores of the first frames do not depend on later ones
    4. it reads nothing that only a simulator knows, unless it is the simulator
    5. its id says who it is, and stays the same
    6. its rule decides the same live and afterwards
    7. a `LiveJudge` scores the same live and afterwards, in environments that are at different steps

    episodes: at least one that the judge can score, of three steps or more
    """
    if not isinstance(judge, Judge):
        lacking = missing_members(judge, Judge)
        raise ContractError(f"{type(judge).__name__} is not a Judge: it lacks {', '.join(lacking)}")
    before = _check_id(judge.id)
    actions = [episode.actions.copy() for episode in episodes]
    pixels = [{camera: frames.copy() for camera, frames in episode.frames.items()} for episode in episodes]
    scored = [
        (episode, scores)
        for episode, scores in zip(episodes, _answers(judge, episodes), strict=True)
        if isinstance(scores, Scores)
    ]
    if not scored:
        raise ContractError("score() scored none of these episodes; check it with one that it can score")
    for episode, acted, seen in zip(episodes, actions, pixels, strict=True):
        same = all(np.array_equal(seen[camera], frames) for camera, frames in episode.frames.items())
        if not same or not np.array_equal(acted, episode.actions):
            raise ContractError("score() changed the episode it was shown")
    episode, scores = scored[0]
    _check_causal(judge, episode, scores)
    if judge.id.source != "simulator":
        _check_not_privileged(judge, episode, scores)
    _check_rule(judge, scores)
    if isinstance(judge, LiveJudge):
        _check_stream(judge, episode, scores)
    if judge.id != before:
        raise ContractError(f"the judge's id changed from {before} to {judge.id} while it scored")


def _check_id(judge_id: Any) -> JudgeId:
    if not isinstance(judge_id, JudgeId):
        raise ContractError(f"id must be a JudgeId, got {type(judge_id).__name__}")
    if not judge_id.source or not all(isinstance(part, str) for part in vars(judge_id).values()):
        raise ContractError(f"{judge_id} needs a source, and all of it must be text")
    try:
        fits = judge_id.rule == "" or isinstance(json.loads(judge_id.rule), dict)
    except ValueError:
        fits = False
    if not fits:
        raise ContractError(f"id.rule is {judge_id.rule!r}; it is rule.key(), or empty")
    return judge_id


def _answers(judge: Judge, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
    answers = judge.score(episodes)
    if len(answers) != len(episodes):
        raise ContractError(f"score() returned {len(answers)} answers on {len(episodes)} episodes")
    for episode, answer in zip(episodes, answers, strict=True):
        if not (answer is None or isinstance(answer, Scores | PlauditError)):
            raise ContractError(f"score() must return Scores, a PlauditError or None each, got {type(answer).__name__}")
        if isinstance(answer, Scores) and len(answer.success_prob) != episode.steps + 1:
            raise ContractError(
                f"score() scored {len(answer.success_prob)} frames of an episode that has {episode.steps + 1}"
            )
    return answers


def _check_causal(judge: Judge, episode: Episode, scores: Scores) -> None:
    """The same of an episode that was cut before its last step."""
    if episode.steps < 2:
        return
    steps = episode.steps - 1
    cut = replace(
        episode,
        frames={camera: frames[: steps + 1] for camera, frames in episode.frames.items()},
        state=episode.state[: steps + 1],
        actions=episode.actions[:steps],
        control_mode=episode.control_mode[:steps],
        privileged={name: values[:steps] for name, values in episode.privileged.items()},
        repeated="first" if episode.repeated == "first" else "none",
    )
    (found,) = _answers(judge, [cut])
    if isinstance(found, Scores) and not _close(found.success_prob, scores.success_prob[: steps + 1]):
        raise ContractError("score() of the first frames changed when the last one was taken away: it is not causal")


def _check_not_privileged(judge: Judge, episode: Episode, scores: Scores) -> None:
    flipped = np.ones(episode.steps, bool) if episode.success is None else ~episode.success
    (found,) = _answers(judge, [replace(episode, privileged={**episode.privileged, "success": flipped})])
    if not isinstance(found, Scores) or not _close(found.success_prob, scores.success_prob):
        raise ContractError("score() depends on what only the simulator knows (privileged); only its own judge may")


def _check_rule(judge: Judge, scores: Scores) -> None:
    if not judge.rule.causal:
        return
    tracker = judge.rule.tracker(1)
    prob = scores.success_prob
    live = np.array([tracker.update(prob[t : t + 1])[0] for t in range(len(prob))])
    if not np.array_equal(live, judge.rule.decide(prob)):
        raise ContractError("the rule decides otherwise live than afterwards")


def _check_stream(judge: LiveJudge, episode: Episode, scores: Scores) -> None:
    """Two environments that show the episode, of which the second starts anew after the first step."""

    def seen(first: int, second: int) -> Observation:
        pair = [first, second]
        return Observation({camera: frames[pair] for camera, frames in episode.frames.items()}, episode.state[pair])

    def info(t: int) -> dict[str, AnyArray]:
        return {name: np.stack([values[t], values[t]]) for name, values in episode.privileged.items()}

    stream = judge.stream(2)
    found = np.full((2, episode.steps + 1), np.nan, np.float32)
    found[0, 0] = stream.reset(seen(0, 0)).success_prob[0]
    for t in range(1, episode.steps + 1):
        second = max(t - 1, 0)
        step = stream.step(seen(t, second), info(t - 1)).success_prob
        if t == 1:
            again = stream.reset(seen(t, 0), np.array([False, True])).success_prob
            if not np.isnan(again[0]):
                raise ContractError("stream.reset() with a mask must say NaN of environments that go on")
            step = np.array([step[0], again[1]])
        found[0, t], found[1, second] = step
    recorded = episode.recorded
    if not _close(found[0][recorded], scores.success_prob[recorded]):
        raise ContractError("stream() scores an episode otherwise than score() does")
    late = slice(recorded.start or 0, episode.steps)
    simulator = judge.id.source == "simulator"  # whose flag comes with the step, not with the picture
    if not simulator and not _close(found[1][late], scores.success_prob[late]):
        raise ContractError("stream() mixes up environments that are at different steps")


def _close(one: FloatArray, other: FloatArray) -> bool:
    """Up to what batches of another size make of the same numbers."""
    return np.allclose(one, other, atol=1e-3, equal_nan=True)

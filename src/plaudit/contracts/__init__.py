"""Checks for plugin authors: whether a robot, env, policy, learner or judge follows its protocol.

    def test_my_robot():
        check_robot(MyRobot())

Each check raises `ContractError`. The message names the method and what it should have done.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from inspect import get_annotations
from types import ModuleType
from typing import Any

import numpy as np

from plaudit.data.batch import to_torch
from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.errors import ContractError, PlauditError
from plaudit.protocols import Judge, Learner, LiveJudge, Normalizer, Policy, Robot, VecEnv
from plaudit.rule import DecisionRule
from plaudit.types import (
    AnyArray,
    Batch,
    EnvSpec,
    Episode,
    FloatArray,
    JudgeId,
    Observation,
    PolicyWeights,
    Scores,
)


def missing_members(thing: Any, protocol: type) -> list[str]:
    """What a thing lacks of a protocol of `plaudit.protocols`, by name."""
    bases = [base for base in protocol.__mro__ if base.__module__ == protocol.__module__]
    names = {name for base in bases for name in (*vars(base), *get_annotations(base)) if not name.startswith("_")}
    return sorted(name for name in names if not hasattr(thing, name))


def check_members(thing: Any, protocol: type) -> None:
    """Raise `ContractError` unless a thing has all members of a protocol."""
    missing = missing_members(thing, protocol)
    if missing:
        raise ContractError(f"{type(thing).__name__} is not a {protocol.__name__}: it lacks {', '.join(missing)}")


def check_observation(
    observation: Any, cameras: Mapping[str, tuple[int, int]], state_dim: int, where: str, *lead: int
) -> None:
    """Whether an observation has these cameras and this state. lead: the leading dimensions, (N,) of N environments"""
    if not isinstance(observation, Observation):
        raise ContractError(f"{where} must return an Observation, got {type(observation).__name__}")
    if set(observation.images) != set(cameras):
        raise ContractError(f"{where} returned cameras {sorted(observation.images)}, not {sorted(cameras)}")
    for camera, size in cameras.items():
        image, shape = observation.images[camera], (*lead, *size, 3)
        if image.dtype != np.uint8 or image.shape != shape:
            raise ContractError(
                f"{where}: camera '{camera}' must be uint8 {list(shape)}, got {image.dtype} {list(image.shape)}"
            )
    state, shape = observation.state, (*lead, state_dim)
    if state.dtype != np.float32 or state.shape != shape or not np.isfinite(state).all():
        raise ContractError(
            f"{where}: state must be finite float32 {list(shape)}, got {state.dtype} {list(state.shape)}"
        )


def copy_observation(observation: Observation) -> Observation:
    """A copy, of an observation that is made of numpy arrays."""
    for name, array in (("state", observation.state), *observation.images.items()):
        if not isinstance(array, np.ndarray):
            raise ContractError(f"a policy is shown numpy arrays, '{name}' is a {type(array).__name__}")
    return Observation({camera: image.copy() for camera, image in observation.images.items()}, observation.state.copy())


def same_observation(one: Observation, other: Observation) -> bool:
    """Whether all images and states are equal."""
    return not _different({"state": one.state, **one.images}, {"state": other.state, **other.images})


def check_robot(robot: Any) -> None:
    """Reset, act and observe twice; a simulation with the same seed must start the same."""
    check_members(robot, Robot)
    first = robot.reset(seed=0)
    check_observation(first, robot.cameras, robot.state_dim, "reset()")
    before = copy_observation(first)
    for _ in range(2):
        robot.act(np.zeros(robot.action_dim, np.float32))
        sent = robot.last_command
        if np.shape(sent) != (robot.action_dim,) or not np.isfinite(sent).all():
            raise ContractError(
                f"last_command must be what act() sent, {robot.action_dim} finite numbers, it is {sent}"
            )
        check_observation(robot.observe(), robot.cameras, robot.state_dim, "observe()")
    if not same_observation(first, before):
        raise ContractError("an observation changed after it was returned; hand out copies")
    again = robot.reset(seed=0)
    is_simulated = bool(robot.privileged())
    if is_simulated and not same_observation(again, before):
        raise ContractError("reset(seed=0) started differently the second time; a simulation must start the same")
    robot.hold()


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
    if info.get("success", np.zeros(0)).shape != (count,) or info["success"].dtype != np.bool_:
        raise ContractError(f"step() must report 'success' as bool [{count}], it reports {sorted(info)}")
    for name, values in info.items():
        if np.shape(values)[:1] != (count,):
            raise ContractError(
                f"step() reports '{name}' as {list(np.shape(values))}, not one value per environment, [{count}]"
            )
    still, _ = env.step(actions + 0.5, ~active)
    if not np.array_equal(still.state, observation.state):
        raise ContractError("step() moved environments that were not active")
    if not np.array_equal(first.state, before.state):
        raise ContractError("an observation changed after it was returned; hand out copies")
    if not same_observation(env.reset(seeds), before):
        raise ContractError("reset() with the same seeds showed another start the second time")


def check_policy(policy: Any, observation: Observation, normalizer: Normalizer, action_dim: int) -> None:
    """The seven rules of a policy:

    1. it normalizes inside, by the normalizer that it receives
    2. its trainable modules are `components`, and `load_weights` sets them
    3. it continues its previous chunk inside `guided_inference`
    4. its inputs are numpy, and it does not change them
    5. the normalizer uses numpy only
    6. its outputs are numpy
    7. torch stays inside

    observation: one that the policy can act on; its state and pixels should not all be 0
    """
    check_members(policy, Policy)
    spy = _Spy(normalizer)
    before = copy_observation(observation)
    policy.warmup()
    chunk = policy.predict(observation, spy)
    _check_chunk(chunk, action_dim, "predict()")
    _check_guided(policy, observation, spy, chunk)
    if not same_observation(observation, before):
        raise ContractError("the policy changed the observation that it was given; work on copies")
    if policy.components:
        _check_normalizing(policy, observation, spy.called, normalizer)
        _check_components(policy)
    policy.freeze_all_model_params()
    for name, component in policy.components.items():
        learning = [key for key, value in component.named_parameters() if value.requires_grad]
        if learning:
            raise ContractError(f"freeze_all_model_params() left {name}.{learning[0]} learning")
    _check_chunk(policy.predict(observation, spy), action_dim, "predict(), once frozen,")


def _check_guided(policy: Any, observation: Observation, normalizer: "_Spy", chunk: FloatArray) -> None:
    """A chunk that continues another starts near it."""
    horizon, action_dim = chunk.shape
    executed = delay = horizon // 3
    previous = chunk + np.float32(2)
    if policy.components and delay:  # its actions are in the normalizer's units, where it may be limited to -1 to 1
        ones, zeros = np.ones_like(chunk), np.zeros_like(chunk)
        middle = normalizer.denormalize_action(zeros)
        previous = chunk - np.copysign(normalizer.denormalize_action(ones) - middle, chunk - middle)
    argument, chunk_before = previous.copy(), chunk.copy()
    guided = policy.guided_inference(observation, normalizer, argument, delay, executed)
    _check_chunk(guided, action_dim, "guided_inference()")
    if len(guided) != horizon:
        raise ContractError(f"guided_inference() returned {len(guided)} actions, predict() {horizon}")
    if not np.array_equal(argument, previous):
        raise ContractError("guided_inference() changed the previous chunk that it was given; work on copies")
    if not np.array_equal(chunk, chunk_before):
        raise ContractError("a chunk changed after it was returned; hand out copies")
    bound = previous[executed : executed + delay]
    alone = np.abs(policy.predict(observation, normalizer)[:delay] - bound).mean() if delay else 0.0
    if delay and np.abs(guided[:delay] - bound).mean() > 0.5 * alone:
        raise ContractError(
            f"guided_inference() does not continue the previous chunk: its first {delay} actions are as far from it "
            "as those of predict()"
        )


def _check_normalizing(policy: Any, observation: Observation, called: set[str], inner: Normalizer) -> None:
    """Predict with normalizers that return other values: inputs and outputs of the policy must follow them."""
    blind = _Spy(inner, {"normalize_state": 0.0, "normalize_image": 0.0})
    first, again = policy.predict(observation, blind), policy.predict(observation, blind)
    inverted = {camera: 255 - image for camera, image in observation.images.items()}
    with np.errstate(invalid="ignore"):
        other = policy.predict(Observation(inverted, np.full_like(observation.state, np.nan)), blind)
    if not np.isfinite(other).all():
        raise ContractError("predict() looks at the state, but not through normalizer.normalize_state()")
    if np.array_equal(first, again) and not np.array_equal(first, other):  # else it draws at random
        raise ContractError("predict() looks at images, but not through normalizer.normalize_image()")
    if "normalize_state" in called:
        with np.errstate(invalid="ignore"):
            lost = policy.predict(observation, _Spy(inner, {"normalize_state": np.nan}))
        if np.isfinite(lost).all():
            raise ContractError("predict() calls normalizer.normalize_state() and does not use the result")
    one, two = (policy.predict(observation, _Spy(inner, {"denormalize_action": value})) for value in (0.1, 0.2))
    if np.array_equal(one, two):
        raise ContractError("predict() returns actions that have not been through normalizer.denormalize_action()")


def _check_components(policy: Policy) -> None:
    """Each is a torch module whose parameters `load_weights` sets."""
    own: dict[str, Any] = {}
    for name, component in policy.components.items():
        if not hasattr(component, "state_dict") or not hasattr(component, "named_parameters"):
            raise ContractError(f"component '{name}' is a {type(component).__name__}, not a torch module")
        own |= {f"{name}/{key}": value.detach().cpu().numpy().copy() for key, value in component.state_dict().items()}
    if not own:
        return
    zero = {name: np.zeros_like(array) for name, array in own.items()}
    policy.load_weights(PolicyWeights(1, zero))
    for name, component in policy.components.items():
        for key, value in component.state_dict().items():
            if value.detach().cpu().numpy().any():
                raise ContractError(f"load_weights() was given zeros, and did not set '{key}' of component '{name}'")
    policy.load_weights(PolicyWeights(2, own))
    first = next(iter(own))
    try:
        policy.load_weights(PolicyWeights(3, {name: array for name, array in own.items() if name != first}))
    except (ValueError, KeyError, RuntimeError):
        return
    raise ContractError(f"load_weights() accepted weights that lack '{first}'")


class _Spy:
    """A normalizer that records which methods are called, and checks that both sides use numpy.

    answers: method -> the number that its answer is filled with
    """

    def __init__(self, inner: Normalizer, answers: Mapping[str, float] | None = None):
        self._inner, self._answers = inner, answers or {}
        self.called: set[str] = set()
        values = {**vars(inner), **vars(sys.modules[type(inner).__module__])}
        for name, value in values.items():
            module = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
            if module.split(".")[0] == "torch":
                raise ContractError(f"the normalizer {type(inner).__name__} is to use numpy alone; '{name}' is torch's")

    def __getattr__(self, method: str) -> Callable[[AnyArray], FloatArray]:
        """A method of the normalizer."""

        def answer(array: AnyArray) -> FloatArray:
            self.called.add(method)
            if not isinstance(array, np.ndarray):
                raise ContractError(
                    f"the policy gave normalizer.{method}() a {type(array).__name__}, not a numpy array"
                )
            result = getattr(self._inner, method)(array)
            if not isinstance(result, np.ndarray):
                raise ContractError(f"normalizer.{method}() returned a {type(result).__name__}, not a numpy array")
            return np.full_like(result, self._answers[method]) if method in self._answers else result

        if method.startswith("_"):
            raise AttributeError(method)
        return answer


def _check_chunk(chunk: Any, action_dim: int, where: str) -> None:
    if not isinstance(chunk, np.ndarray):
        raise ContractError(f"{where} must return a numpy array, got {type(chunk).__name__}")
    if chunk.dtype != np.float32 or chunk.ndim != 2 or chunk.shape[1] != action_dim or not np.isfinite(chunk).all():
        raise ContractError(
            f"{where} must return finite float32 [H, {action_dim}], got {chunk.dtype} {list(chunk.shape)}"
        )


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
        metrics = learner.update(experience)
        if learner.version != number:
            raise ContractError(f"version is {learner.version} after {number} updates; update() counts it up by one")
        for name, value in metrics.items():
            if not np.isfinite(float(value)):
                raise ContractError(f"metric '{name}' is {float(value)}; it must be a finite number")
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
    normalizer = AffineNormalizer.identity(env_spec.state_dim, env_spec.action_dim)
    on_robot, in_simulation = (
        policy.predict(observation[0], normalizer)[0],
        learner.act_fn(explore=False)(observation[:1])[0],
    )
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


PRIVILEGED = ("simulator", "noisy")  # sources of judges that go by what a simulator knows


def check_judge(judge: Any, episodes: Sequence[Episode]) -> None:
    """A judge that passes works in every command:

    1. one answer per episode, in order: scores of all its frames, an error, or None for later
    2. the episode is not changed
    3. causal: scores of the first frames do not depend on later ones
    4. it does not read privileged values, unless it is the simulator judge, or the noisy one made of it
    5. its id identifies it, and stays the same
    6. its rule decides the same live and afterwards
    7. a `LiveJudge` scores the same live and afterwards, in environments that are at different steps

    episodes: at least one that the judge can score, of three steps or more
    """
    check_members(judge, Judge)
    before = _check_id(judge.id)
    shown = [{"actions": episode.actions, **episode.frames} for episode in episodes]
    kept = deepcopy(shown)
    scored = [
        (episode, scores)
        for episode, scores in zip(episodes, _answers(judge, episodes), strict=True)
        if isinstance(scores, Scores)
    ]
    if not scored:
        raise ContractError("score() scored none of these episodes; check it with one that it can score")
    if any(map(_different, shown, kept)):
        raise ContractError("score() changed the episode it was shown")
    episode, scores = scored[0]
    _check_causal(judge, episode, scores)
    if judge.id.source not in PRIVILEGED:
        flipped = np.ones(episode.steps, bool) if episode.success is None else ~episode.success
        (answer,) = _answers(judge, [replace(episode, privileged={**episode.privileged, "success": flipped})])
        if not isinstance(answer, Scores) or not _close(answer.success_prob, scores.success_prob):
            raise ContractError("score() depends on what only the simulator knows (privileged); only its own judge may")
    if judge.rule.causal:
        tracker, prob = judge.rule.tracker(1), scores.success_prob
        live = np.array([tracker.update(prob[t : t + 1])[0] for t in range(len(prob))])
        if not np.array_equal(live, judge.rule.decide(prob)):
            raise ContractError("the rule decides otherwise live than afterwards")
    if isinstance(judge, LiveJudge):
        _check_stream(judge, episode, scores)
    if judge.id != before:
        raise ContractError(f"the judge's id changed from {before} to {judge.id} while it scored")


def _check_id(judge_id: Any) -> JudgeId:
    if not isinstance(judge_id, JudgeId):
        raise ContractError(f"id must be a JudgeId, got {type(judge_id).__name__}")
    if not judge_id.source or not all(isinstance(part, str) for part in (judge_id.source, judge_id.fingerprint)):
        raise ContractError(f"{judge_id} needs a source, and source and fingerprint must be text")
    if not isinstance(judge_id.rule, DecisionRule | None):
        raise ContractError(f"id.rule is {judge_id.rule!r}; it is rule.key(), or None")
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
    """Score the episode again without its last step."""
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
        padded="first" if episode.padded == "first" else "none",
    )
    (answer,) = _answers(judge, [cut])
    if isinstance(answer, Scores) and not _close(answer.success_prob, scores.success_prob[: steps + 1]):
        raise ContractError("score() of the first frames changed when the last one was taken away: it is not causal")


def _check_stream(judge: LiveJudge, episode: Episode, scores: Scores) -> None:
    """Score the episode live in two environments, of which the second starts again after the first step."""

    def seen(first: int, second: int) -> Observation:
        pair = [first, second]
        return Observation({camera: frames[pair] for camera, frames in episode.frames.items()}, episode.state[pair])

    def info(t: int) -> dict[str, AnyArray]:
        return {name: np.stack([values[t], values[t]]) for name, values in episode.privileged.items()}

    stream = judge.stream(2)
    live = np.full((2, episode.steps + 1), np.nan, np.float32)
    live[0, 0] = stream.reset(seen(0, 0)).success_prob[0]
    for t in range(1, episode.steps + 1):
        second = max(t - 1, 0)
        step = stream.step(seen(t, second), info(t - 1)).success_prob
        if t == 1:
            again = stream.reset(seen(t, 0), np.array([False, True])).success_prob
            if not np.isnan(again[0]):
                raise ContractError("stream.reset() with a mask must say NaN of environments that go on")
            step = np.array([step[0], again[1]])
        live[0, t], live[1, second] = step
    recorded = episode.observed
    if not _close(live[0][recorded], scores.success_prob[recorded]):
        raise ContractError("stream() scores an episode otherwise than score() does")
    late = slice(recorded.start or 0, episode.steps)
    simulator = judge.id.source in PRIVILEGED  # its flag comes with the step, not with the frame
    if not simulator and not _close(live[1][late], scores.success_prob[late]):
        raise ContractError("stream() mixes up environments that are at different steps")


def _close(one: FloatArray, other: FloatArray) -> bool:
    """Equal up to rounding, which depends on the size of a batch."""
    return np.allclose(one, other, atol=1e-3, equal_nan=True)

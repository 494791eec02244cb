"""Whether a policy follows `plaudit.protocols.Policy`."""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from plaudit.contracts.common import check_members, copy_observation, same_observation
from plaudit.errors import ContractError
from plaudit.protocols import Normalizer, Policy
from plaudit.types import AnyArray, FloatArray, Observation, PolicyWeights


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


def _check_guided(policy: Policy, observation: Observation, normalizer: "_Spy", chunk: FloatArray) -> None:
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


def _check_normalizing(policy: Policy, observation: Observation, called: set[str], inner: Normalizer) -> None:
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
        places = (vars(inner), vars(sys.modules[type(inner).__module__]))
        strange = [name for place in places for name, value in place.items() if _of_torch(value)]
        if strange:
            raise ContractError(
                f"the normalizer {type(inner).__name__} is to use numpy alone; '{strange[0]}' is torch's"
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
        self.called.add(method)
        if not isinstance(array, np.ndarray):
            raise ContractError(f"the policy gave normalizer.{method}() a {type(array).__name__}, not a numpy array")
        result = ask(array)
        if not isinstance(result, np.ndarray):
            raise ContractError(f"normalizer.{method}() returned a {type(result).__name__}, not a numpy array")
        return np.full_like(result, self._answers[method]) if method in self._answers else result


def _of_torch(value: Any) -> bool:
    """Torch itself, or something it made; without importing it."""
    name = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    return name.split(".")[0] == "torch"


def _check_chunk(chunk: Any, action_dim: int, where: str) -> None:
    if not isinstance(chunk, np.ndarray):
        raise ContractError(f"{where} must return a numpy array, got {type(chunk).__name__}")
    if chunk.dtype != np.float32 or chunk.ndim != 2 or chunk.shape[1] != action_dim or not np.isfinite(chunk).all():
        raise ContractError(
            f"{where} must return finite float32 [H, {action_dim}], got {chunk.dtype} {list(chunk.shape)}"
        )

"""Calling an actor as if it were an object of this process.

An actor that was killed is started again by Ray, which takes a second, or as long as its machine is away. Callers need
not know: a call that did not get through is made again for a while. Each may therefore reach the actor twice, which the
classes behind them allow for.
"""

import time
from functools import partial
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from plaudit.errors import PartLost, PlauditError

AGAIN = 0.2  # s before a call is made again
LOST = (RayActorError, ObjectLostError, GetTimeoutError)


class Stub:
    """`stub.method(x)` is the actor's `method(x)`.

    It knows the actor by name, so it can be an argument of another actor: a handle would lie in the memory of some
    node, and an actor whose arguments are lost cannot be started again.
    """

    def __init__(self, actor: str, name: str, patience: float):
        """
        actor: as it is known to Ray
        name: as it is known to people
        patience: s for which a call is made again
        """
        self.actor, self._name, self._patience = actor, name, patience

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):  # what copies and pickles look for
            raise AttributeError(method)
        return partial(self._call, method)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stub, (self.actor, self._name, self._patience)

    def _call(self, method: str, *arguments: Any) -> Any:
        until = time.monotonic() + self._patience
        while True:
            try:
                call = getattr(self._find(), method).remote(*arguments)
                return answer(call, self._name, max(until - time.monotonic(), AGAIN))
            except PartLost:
                if time.monotonic() > until:
                    raise
                time.sleep(AGAIN)

    def _find(self) -> Any:
        try:
            return ray.get_actor(self.actor)
        except ValueError as error:
            raise PartLost(f"there is no {self._name}") from error


def answer(call: ObjectRef[Any], name: str, seconds: float | None = None) -> Any:
    """What an actor returned, or what it raised; `PartLost` where it did not get to either."""
    try:
        return ray.get(call, timeout=seconds)
    except RayTaskError as error:
        if isinstance(error.cause, PlauditError):
            raise error.cause from None
        raise
    except LOST as error:
        raise PartLost(f"the {name} does not answer ({_words(error)})") from error


def _words(error: Exception) -> str:
    if isinstance(error, GetTimeoutError):
        return "it took too long"
    return "its process or its machine is gone"

"""Handles and slots: a call reaches the worker, and what came of it reaches the callback that asked."""

from concurrent.futures import Future
from threading import current_thread
from typing import Any, ClassVar

import pytest

from plaudit.errors import PlauditError, StoreFull, WorkerFailed, WorkerLost
from plaudit.training.workers.handles import SerialHandle, Slot, ThreadHandle


class Adder:
    """A worker that adds, or fails in the way it is told."""

    def __init__(self, raises: BaseException | None = None):
        self.raises = raises

    def add(self, a: int, b: int = 1) -> int:
        if self.raises is not None:
            raise self.raises
        return a + b


class Doubling(Adder):
    def add(self, a: int, b: int = 1) -> int:
        return 2 * super().add(a, b)


def slot(worker: Adder, now: float = 0.0) -> Slot[Adder]:
    return Slot(SerialHandle("adder", worker), lambda: now)


def finish(one: Slot[Any]) -> list[PlauditError]:
    failures: list[PlauditError] = []
    one.finish(lambda _, error: failures.append(error))
    return failures


def test_a_call_returns_what_the_worker_returns_and_a_subclass_may_answer_otherwise():
    assert SerialHandle("adder", Adder()).call(Adder.add, 3, b=4) == 7
    assert SerialHandle("adder", Doubling()).call(Adder.add, 3) == 8


def test_an_error_that_nobody_expected_arrives_with_its_traceback():
    with pytest.raises(WorkerFailed, match="the adder failed: ZeroDivisionError: by zero") as told:
        SerialHandle("adder", Adder(ZeroDivisionError("by zero"))).call(Adder.add, 1)
    assert "raise self.raises" in told.value.details


def test_an_error_of_ours_arrives_as_it_is():
    with pytest.raises(StoreFull, match="the disk is full"):
        SerialHandle("adder", Adder(StoreFull("the disk is full"))).call(Adder.add, 1)


def test_a_result_is_handed_to_the_callback_of_its_call_once():
    one, results = slot(Adder()), []
    one.start(results.append, Adder.add, 1)
    assert not one.idle and results == []
    finish(one)
    finish(one)
    assert one.idle and results == [2]


def test_a_call_that_is_not_over_is_left_alone():
    class Busy(SerialHandle[Adder]):
        def submit(self, method, *args, **kwargs):
            return Future()

    one: Slot[Adder] = Slot(Busy("adder", Adder()), lambda: 0.0)
    one.start(pytest.fail, Adder.add, 1)
    assert finish(one) == [] and not one.idle


def test_a_failure_is_handed_over_instead_of_a_result():
    one = slot(Adder(ZeroDivisionError()))
    one.start(pytest.fail, Adder.add, 1)
    (failure,) = finish(one)
    assert isinstance(failure, WorkerFailed) and one.idle


@pytest.mark.parametrize(("error", "ready"), [(WorkerLost("adder"), False), (StoreFull("full"), True)])
def test_a_worker_that_was_lost_has_to_be_set_up_again(error, ready):
    one = slot(Adder(error))
    one.ready = True
    one.start(pytest.fail, Adder.add, 1)
    finish(one)
    assert one.ready == ready


def test_a_worker_is_left_alone_until_it_is_to_be_tried_again():
    one = slot(Adder(), now=3.0)
    one.retry_at = 3.5
    assert not one.idle
    one.retry_at = 3.0
    assert one.idle


def test_ctrl_c_is_no_failure_of_the_worker():
    with pytest.raises(KeyboardInterrupt):
        slot(Adder(KeyboardInterrupt())).start(pytest.fail, Adder.add, 1)


# In threads


def test_a_worker_with_a_thread_of_its_own_is_called_there_one_call_after_the_other():
    class Noting(Adder):
        seen: ClassVar[list[tuple[int, str]]] = []

        def add(self, a: int, b: int = 1) -> int:
            self.seen.append((a, current_thread().name))
            return a + b

    handle = ThreadHandle("adder", Noting())
    futures = [handle.submit(Adder.add, number) for number in range(20)]
    assert [future.result() for future in futures] == list(range(1, 21)) and handle.call(Adder.add, 20) == 21
    handle.close()
    assert [number for number, _ in Noting.seen] == list(range(21))
    assert len({name for _, name in Noting.seen}) == 1 and current_thread().name not in Noting.seen[0]


def test_what_is_raised_in_a_thread_arrives_as_it_would_from_a_call():
    handle = ThreadHandle("adder", Adder(ZeroDivisionError("by zero")))
    with pytest.raises(WorkerFailed, match="the adder failed: ZeroDivisionError: by zero"):
        handle.submit(Adder.add, 1).result()
    handle.close()

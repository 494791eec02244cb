"""What judges could not judge: kept, counted, and read once."""

from plaudit.data.ledger import Failures


def test_what_another_process_appends_is_seen(store):
    here, elsewhere = Failures(store.ledger), Failures(store.ledger)
    assert here.all() == []
    elsewhere.append([(0, "the endpoint is down")], "vlm", "m1")
    here.append([(0, "the endpoint is down"), (1, "it said maybe")], "vlm", "m1")
    elsewhere.append([(0, "the endpoint is down")], "vlm", "m2")
    assert [failure.episode for failure in here.all()] == [0, 0, 1, 0]
    assert [here.attempts(0, "vlm", model) for model in ("m1", "m2", "m3")] == [2, 1, 0]
    assert {(failure.episode, failure.model) for failure in here.unresolved()} == {(0, "m2"), (1, "m1")}


def test_what_was_read_is_not_read_again(store):
    """What stood at the beginning of the file is nonsense since: who reads it again would notice."""
    failures = Failures(store.ledger)
    failures.append([(0, "the endpoint is down")], "vlm", "m1")
    assert len(failures.unresolved()) == 1
    with failures.path.open("r+b") as file:
        file.write(b"nonsense")
    assert len(failures.unresolved()) == 1


def test_failures_of_an_earlier_session_can_be_left_out(store):
    failures = Failures(store.ledger)
    failures.append([(0, "the endpoint is down")], "vlm", "m1")
    (failure,) = failures.all()
    assert failures.attempts(0, "vlm", "m1", since=failure.time) == 1
    assert failures.attempts(0, "vlm", "m1", since=failure.time + 1) == 0

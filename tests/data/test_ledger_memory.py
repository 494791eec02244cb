"""What a ledger keeps in memory, and that what it leaves in the file is read from the right one."""

import signal
import tracemalloc

import pytest

from conftest import counting_episode
from plaudit.data import ledger as ledger_module
from plaudit.data.ledger import Ledger
from plaudit.data.store import Store
from plaudit.errors import DataError, StoreDamaged
from plaudit.types import Labels

MANY = 2000


def make_labels(source: str = "classifier", **rest) -> Labels:
    return Labels.from_cutoff(steps=4, cutoff=3, source=source, **rest)


def kept(ledger: Ledger) -> int:
    """Bytes of what another one of the same file takes."""
    tracemalloc.start()
    try:
        again = Ledger(ledger.path)
        assert len(again) == len(ledger)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_ledger_of_thousands_of_labels_takes_little_memory(store):
    store.ledger.extend((i, make_labels(note=f"of episode {i}")) for i in range(MANY))
    assert kept(store.ledger) < 500 * MANY


def test_labels_on_ids_far_apart_take_little_memory_too(store):
    store.ledger.extend((i * 10**9, make_labels()) for i in range(200))
    assert kept(store.ledger) < 200_000
    assert [v.episode for v in store.ledger.history(7 * 10**9)] == [7 * 10**9]
    assert store.ledger.newest(5) is None and store.ledger.newest(-5) is None


def test_an_id_that_was_far_off_has_one_history_when_the_others_have_caught_up(store):
    far = 1500
    store.ledger.append(far, make_labels(note="first"))
    store.ledger.extend((i, make_labels()) for i in range(far))
    store.ledger.append(far, make_labels(note="second"))
    assert [(v.number, v.labels().note) for v in store.ledger.history(far)] == [(1, "first"), (2, "second")]


def test_a_version_is_read_from_the_file_it_came_from_after_a_repair_has_replaced_it(store):
    store.ledger.append(0, make_labels(note="of the old file"))
    old = store.ledger.newest(0)
    lines = (store.folder / "labels").read_bytes()
    (store.folder / "new").write_bytes(lines.replace(b"of the old file", b"of another one."))
    (store.folder / "new").replace(store.folder / "labels")
    assert old.labels().note == "of the old file"


def test_versions_outlive_their_ledger(store):
    store.ledger.append(0, make_labels(note="still here"))
    newest = Ledger(store.ledger.path).newest(0)
    assert newest.labels().note == "still here"


def test_a_line_that_went_bad_since_it_was_read_is_not_served(store):
    store.ledger.append(0, make_labels(note="sound"))
    newest = store.ledger.newest(0)
    path = store.ledger.path
    path.write_bytes(path.read_bytes().replace(b"sound", b"sOund"))
    with pytest.raises(StoreDamaged, match="was sound and fails its checksum now; run 'plaudit data check"):
        newest.labels()


def test_another_label_in_the_same_place_is_not_served(store, tmp_path):
    store.ledger.append(0, make_labels(time=5.0))
    newest = store.ledger.newest(0)
    with Store.create(tmp_path / "other") as other:
        other.ledger.append(1, make_labels(time=5.0))
        store.ledger.path.write_bytes(other.ledger.path.read_bytes())
    with pytest.raises(StoreDamaged, match="other labels stand where those of episode 0 were read"):
        newest.labels()


def test_a_label_nobody_could_read_again_is_not_written(store):
    with pytest.raises(DataError, match="these labels cannot be stored"):
        store.ledger.append(1 << 70, make_labels())
    assert len(Ledger(store.ledger.path)) == 0


def test_ctrl_c_while_labels_are_read_neither_loses_nor_doubles_one(store, monkeypatch):
    reader = Ledger(store.ledger.path)
    store.ledger.extend((0, make_labels()) for _ in range(3))
    sound = ledger_module.is_label_line
    monkeypatch.setattr(ledger_module, "is_label_line", lambda line: signal.raise_signal(signal.SIGINT) or sound(line))
    with pytest.raises(KeyboardInterrupt):
        reader.refresh()
    monkeypatch.undo()
    reader.refresh()
    assert [version.number for version in reader.history(0)] == [1, 2, 3]


def test_a_store_keeps_little_of_each_episode(store):
    meta = {"seed": 1, "weights": 2, "ended": "steps", "parts": {"a": 1.5, "b": 2.5, "c": [3.5, 4.5, 5.5]}}
    store.extend([counting_episode(2, task="lift", meta=meta)] * 500)
    tracemalloc.start()
    try:
        again = Store.open(store.folder)
        assert tracemalloc.get_traced_memory()[0] < 1300 * len(again)
    finally:
        tracemalloc.stop()
    assert again.episode(499).meta == meta


def test_a_reader_forgets_which_evicted_episodes_it_has_verified(store):
    store.extend([counting_episode(2)] * 3)
    reader = Store.open(store.folder)
    reader._verified = {(i, 0): {"steps"} for i in range(-5000, 0)}
    reader.verify(2)
    assert set(reader._verified) == {(2, 0)}

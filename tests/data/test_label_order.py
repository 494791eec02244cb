"""Several judges have labeled one episode: whose label counts."""

import json

import pytest

from command import plaudit
from conftest import counting_episode
from plaudit.data.formats import WriteOptions
from plaudit.data.replay import ReplaySampler
from plaudit.data.settings import DEFAULT_ORDER, LabelOrder, parse_order
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import DataError, StoreDamaged
from plaudit.types import Labels


def make_labels(cutoff: int | None, source: str) -> Labels:
    return Labels.from_cutoff(steps=4, cutoff=cutoff, source=source)


@pytest.fixture
def one(store) -> Store:
    """A store with one episode of four steps."""
    store.append(counting_episode(4))
    return store


def labeled_by(store: Store, *sources: str) -> Store:
    """Each says success from another frame on: the first from frame 1, the next from frame 2."""
    for number, source in enumerate(sources, start=1):
        store.ledger.append(0, make_labels(number, source))
    return store


def counting(store: Store) -> str:
    return store.ledger.current(0).source


@pytest.mark.parametrize("sources", [("human", "classifier"), ("classifier", "human")])
def test_a_persons_label_counts_whenever_the_model_labels(one, sources):
    assert counting(labeled_by(one, *sources)) == "human"
    assert one.ledger.newest(0).source == sources[-1] and len(one.ledger.history(0)) == 2


def test_of_two_people_the_newest_counts(one):
    labeled_by(one, "human", "vlm", "cutoff")
    assert counting(one) == "cutoff" and one.ledger.labels(0).targets.tolist() == [0, 0, 0, 1, 1]


def test_the_default_order_has_people_then_the_operator_then_the_simulator_then_models(one):
    for source in ("my_judge", "vlm", "classifier"):  # of equals, the newest
        labeled_by(one, source)
        assert counting(one) == source
    for source in ("simulator", "operator", "human"):
        labeled_by(one, source, "classifier")
        assert counting(one) == source


def test_a_version_that_somebody_restored_counts_until_a_person_labels_again(one):
    labeled_by(one, "classifier", "human")
    one.ledger.restore(0, 1)
    labeled_by(one, "vlm")
    assert (counting(one), one.ledger.current(0).restored_from) == ("classifier", 1)
    labeled_by(one, "human")
    assert counting(one) == "human"


def test_who_asks_for_one_source_gets_its_newest(one):
    labeled_by(one, "classifier", "human", "classifier")
    assert one.ledger.labels(0, {"classifier"}).targets.tolist() == [0, 0, 0, 1, 1]
    one.ledger.restore(0, 1)
    one.ledger.append(0, make_labels(4, "classifier"))
    assert one.ledger.current(0, ["classifier"]).number == 5
    assert one.ledger.labels(0, {"classifier", "vlm"}).judge.source == "classifier"


def test_replay_and_export_go_by_the_same_rule(one, tmp_path):
    labeled_by(one, "human", "classifier")
    batch = ReplaySampler(one, terminate_on_success=False, seed=0).sample(64)
    assert dict(zip(batch.step.tolist(), batch.reward.tolist())) == {0: 1, 1: 1, 2: 1, 3: 1}
    export_dataset(one, tmp_path / "out", "lerobot", WriteOptions(video=False, fps=10))
    import_dataset(tmp_path / "out", tmp_path / "copy")
    assert Store.open(tmp_path / "copy").ledger.labels(0).targets.tolist() == [0, 1, 1, 1, 1]


def test_the_order_is_a_setting_of_the_store(one):
    labeled_by(one, "human", "classifier")
    one.set_label_order(parse_order("classifier,human"))
    again = Store.open(one.folder)
    assert counting(one) == counting(again) == "classifier"
    assert str(again.ledger.order) == "classifier,human"
    one.set_label_order(DEFAULT_ORDER)
    assert counting(Store.open(one.folder)) == "human"
    assert "label_order" not in json.loads((one.folder / "store.json").read_text())


def test_newest_means_that_the_last_label_counts_whoever_gave_it(one):
    one.set_label_order(parse_order("newest"))
    assert counting(labeled_by(one, "human", "classifier")) == "classifier"
    assert LabelOrder(()).describe() == "the newest label counts, whoever gave it"


def test_a_ledger_elsewhere_has_the_order_of_the_store(one, tmp_path):
    one.set_label_order(parse_order("vlm"))
    other = Store.open(one.folder, labels=tmp_path / "labels")
    assert counting(labeled_by(other, "vlm", "human")) == "vlm"


@pytest.mark.parametrize("text", ["", "human,,vlm", "human+,vlm", "human,human", "a b", "x" * 101, "\x1b[31m"])
def test_what_is_no_order_is_answered_with_one_that_is(text):
    with pytest.raises(DataError, match=r"is not a valid order of sources .*human\+cutoff,operator,simulator\+dataset"):
        parse_order(text)


def test_an_order_that_somebody_wrote_into_the_file_is_checked(one):
    from plaudit.data.settings import Settings

    tree = {**one.settings.to_json(), "label_order": [["human"], "vlm"]}
    with pytest.raises(ValueError, match="label order"):
        Settings.from_json(tree)
    path = one.folder / "store.json"
    path.write_text(path.read_text().replace('"capacity_bytes"', '"label_order": 3, "capacity_bytes"'))
    with pytest.raises(StoreDamaged):
        Store.open(one.folder)


def test_the_command_shows_and_sets_it_and_info_does_too(one, tmp_path):
    labeled_by(one, "human", "classifier")
    one.close()
    default = plaudit("data", "order", "store", cwd=tmp_path)
    assert "Human or cutoff, then operator, then simulator or dataset, then others" in default
    assert "no label of store is by 'clasifier'; it has labels by " in plaudit(
        "data", "order", "store", "clasifier,human", cwd=tmp_path
    )
    info = plaudit("data", "info", "store", cwd=tmp_path)
    assert "clasifier, then human, then others" in info and "1 (1 by human)" in info
    versions = plaudit("data", "info", "store", "--episode", 0, cwd=tmp_path).strip().splitlines()
    assert [line.split()[:3] for line in versions[-2:]] == [["1", "yes", "human"], ["2", "-", "classifier"]]
    assert "'human' is named twice" in plaudit("data", "order", "store", "human,human", cwd=tmp_path, ok=False)

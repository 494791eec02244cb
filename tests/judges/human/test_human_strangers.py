"""DraftStore and lists of somebody else in a store: told in a sentence or passed over, and they lead nowhere."""

import json
import os

import pytest

from counted_stores import counted_store
from plaudit.errors import ForeignFile, StoreDamaged, StoreError
from plaudit.judges.human.drafts import DraftStore
from plaudit.judges.human.queue import LabelRequests


@pytest.fixture
def folder(tmp_path):
    return counted_store(tmp_path / "s")


def test_drafts_are_not_kept_where_a_link_leads(folder, tmp_path):
    (tmp_path / "away").mkdir()
    (folder / "drafts").symlink_to(tmp_path / "away")
    with pytest.raises(ForeignFile, match="is not a folder of this store"):
        DraftStore.open(folder)
    assert not list((tmp_path / "away").iterdir())


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_or_a_link_among_the_drafts_is_not_opened(folder, make):
    (folder / "drafts").mkdir()
    make(folder / "drafts/1a2b3c4d.json")
    with pytest.raises(StoreError, match="and not a file"):
        DraftStore.open(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"by": "", "drafts": {"0": "5x5"}}',
        '{"by": "", "drafts": {"-1": "0x5"}}',
        '{"by": "", "frames": {"0": []}}',
        '{"by": "", "done": [{"episode": 0, "frame": -1, "before": null, "after": null, "what": ""}]}',
        "[" * 100_000,
    ],
)
def test_a_draft_that_makes_no_sense_is_told_in_a_sentence(folder, text):
    (folder / "drafts").mkdir()
    (folder / "drafts/1a2b3c4d.json").write_text(text)
    with pytest.raises(StoreDamaged, match="is not a draft"):
        DraftStore.open(folder)


@pytest.mark.parametrize("text", ["", "{", "5", "[[1]]", '["a"]', "[NaN]", "[-1]", "[" * 100_000, json.dumps([1e300])])
def test_a_list_that_names_no_episodes_asks_for_none(folder, text):
    (folder / "label_requests.json").write_text(text)
    asked = LabelRequests(folder)
    assert asked.update() and len(asked) == 0


def test_a_pipe_in_place_of_the_list_is_not_waited_for(folder):
    os.mkfifo(folder / "label_requests.json")
    asked = LabelRequests(folder)
    assert asked.update() and len(asked) == 0

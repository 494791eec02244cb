"""Every command that takes a store takes a LeRobot folder: its frames are decoded once, into a store next to it."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from brightness import NAME, bright_store
from command import COMMANDS, plaudit
from plaudit.data import transfer
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, open_or_import
from processes import Forked

# Command -> its arguments after the folder, and how what it prints ends. Where a command would take long, a mistake in
# what it asks for is answered after it has opened the episodes.
COMMANDS_WITH_A_STORE = {
    "label": (["--judge", NAME], "6 episodes of bottle.store labeled by brightness"),
    "judge eval": (["--judge", NAME, "--reference", "vlm"], "vlm"),
    "judge calibrate": (["--judge", NAME, "--output", "out.yaml"], "out.yaml"),
    "judge arena": (["--judge", NAME, "--reference", "vlm"], "vlm"),
    "train-reward": (["--image-key", "wrist"], "has no camera 'wrist', it has: front"),
    "train-progress": (["--image-key", "wrist"], "has no camera 'wrist', it has: front"),
    "train-policy": (["--camera", "wrist"], "camera 'wrist' is not in bottle.store"),
    "data export": (["out"], "6 episodes exported to out"),
    "data info": (["--episode", "0"], "human"),
    "data repack": (["new", "--images", "lossless"], "6 episodes copied to new"),
    "data check": ([], "bottle.store is intact"),
    "data sheet": (["0"], "shows episode 0"),
    "data stats": ([], "stats.json has the statistics"),
    "data order": (["newest"], "The newest label counts, whoever gave it (newest)."),
    "data label": (["bottle.json"], "1 episode labeled"),
}
# Of these the argument comes later, a model has to be there, or the command runs until it is stopped.
ELSEWHERE = {"judge exam", "judge explain", "judge tune", "judge serve", "judge plan", "serve", "data view"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A LeRobot folder of six labeled episodes, `bottle`, and the store next to it."""
    folder = tmp_path_factory.mktemp("folders")
    export_dataset(bright_store(folder / "store"), folder / "bottle", "lerobot", WriteOptions(video=False))
    open_or_import(folder / "bottle")
    (folder / "bottle.json").write_text(json.dumps({"0": 1}))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    for name in ("bottle", "bottle.store", "bottle.json"):
        copy = shutil.copytree if (made / name).is_dir() else shutil.copy2
        copy(made / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def run(folder):
    return partial(plaudit, cwd=folder)


def test_the_table_has_every_command_that_takes_a_store():
    def walk(command, *names):
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, *names, name)
        yield " ".join(names), command

    takes = {
        name
        for name, command in walk(COMMANDS)
        for one in getattr(command, "params", ())
        if one.param_type_name == "argument" and "STORE" in str(one.metavar)
    }
    assert takes <= set(COMMANDS_WITH_A_STORE) | ELSEWHERE


@pytest.mark.parametrize("command", COMMANDS_WITH_A_STORE)
def test_a_command_takes_the_folder_and_decodes_nothing_again(run, folder, monkeypatch, command):
    monkeypatch.setattr(Store, "append", lambda *_: pytest.fail("an episode was decoded again"))
    files = {path: path.read_bytes() for path in (folder / "bottle").rglob("*") if path.is_file()}
    words, sentence = COMMANDS_WITH_A_STORE[command]
    mistake = "wrist" in words or "vlm" in words
    assert sentence in run(*command.split(), "bottle", *words, ok=not mistake)
    assert {path: path.read_bytes() for path in (folder / "bottle").rglob("*") if path.is_file()} == files
    assert not list(folder.glob("*.import"))


def test_labels_of_the_folder_are_in_the_ledger_next_to_it_and_train_a_judge(run, folder):
    run("data", "label", "bottle", "bottle.json")
    versions = Store.open(folder / "bottle.store").ledger.history(0)
    assert [version.source for version in versions] == ["human", "cutoff"]


def test_demonstrations_of_a_run_are_a_folder(run, folder):
    words = ["env=lift", "learner=sac", "demos.store=bottle", "run.max_steps=10"]
    said = run("train", *words, ok=False)
    assert "bottle.store" in said and "holds no store" not in said


def change_actions(folder: Path, episode: int) -> None:
    """Of one episode, as somebody who records it again."""
    (path,) = (folder / "data").rglob("*.parquet")
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        if row["episode_index"] == episode:
            row["timestamp"] += 0.001
    pq.write_table(table.from_pylist(rows, schema=table.schema), path)


def test_a_folder_that_changed_is_not_mixed_with_what_was_decoded_before(run, folder):
    change_actions(folder / "bottle", 2)
    before = (folder / "bottle.store/journal").read_bytes()
    said = run("data", "stats", "bottle", ok=False)
    assert "episode 2 of bottle changed since it was imported into bottle.store" in said
    assert "Move bottle.store away" in said and "name bottle.store" in said
    assert (folder / "bottle.store/journal").read_bytes() == before
    run("data", "stats", "bottle.store")
    shutil.move(folder / "bottle.store", folder / "old")
    run("data", "stats", "bottle")
    assert len(Store.open(folder / "bottle.store")) == len(Store.open(folder / "old"))


def test_a_file_that_changed_without_changing_an_episode_is_a_note(run, folder):
    os.utime(folder / "bottle/meta/info.json")
    assert "files of bottle changed since it was imported: it has no new episodes" in run("data", "stats", "bottle")
    assert "files of bottle" not in run("data", "stats", "bottle")


def test_other_options_than_those_of_the_store_are_refused(run, folder):
    said = run("label", "bottle", "--judge", NAME, "--camera", "front=left", ok=False)
    assert "bottle was imported into bottle.store with no options; leave the options out" in said


def test_the_options_of_the_first_import_stay(run, folder):
    shutil.rmtree(folder / "bottle.store")
    run("data", "import", "bottle", "bottle.store", "--camera", "front=left")
    os.utime(folder / "bottle/meta/info.json")
    run("data", "stats", "bottle")
    store = Store.open(folder / "bottle.store")
    assert len(store) == 6 and list(store.episode(0).frames) == ["left"]


def import_and_die(*words: str) -> None:
    """In a child process: killed when it would append the third episode."""
    append = Store.append

    def third(store, episode):
        if len(store) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return append(store, episode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "append", third)
        plaudit(*words, cwd=Path.cwd())


def test_an_import_that_was_killed_goes_on_with_its_options(run, folder):
    shutil.rmtree(folder / "bottle.store")
    words = ["data", "import", "bottle", "bottle.store", "--camera", "front=left"]
    with Forked(import_and_die, *words, cwd=folder) as process:
        assert process.wait() == -signal.SIGKILL and len(Store.open(folder / "bottle.store")) == 2
    run("data", "stats", "bottle")
    store = Store.open(folder / "bottle.store")
    assert len(store) == 6 and list(store.episode(5).frames) == ["left"]
    assert transfer.SourceRecord.load(folder / "bottle.store").fingerprint


def test_a_folder_that_another_command_imports_is_refused_until_that_has_ended(run, folder):
    (folder / "bottle.store/source.json").unlink()
    with Store.open(folder / "bottle.store", write=True):
        assert "it may be importing bottle; run this again when it has ended" in run(
            "data", "stats", "bottle", ok=False
        )
    run("data", "stats", "bottle")


def test_a_place_where_no_store_can_be_made_is_one_sentence(run, folder):
    shutil.rmtree(folder / "bottle.store")
    (folder / "bottle.store").write_text("notes")
    said = run("data", "stats", "bottle", ok=False)
    assert "belong into a store, and none can be written there" in said and "plaudit data import bottle STORE" in said


def test_a_damaged_record_is_one_sentence(run, folder):
    (folder / "bottle.store/source.json").write_text("{")
    said = run("data", "stats", "bottle", ok=False)
    assert "source.json: this is no record of a decoded data set" in said and "remove it" in said


def test_an_import_by_hand_is_the_store_next_to_the_folder(run, folder, monkeypatch):
    shutil.rmtree(folder / "bottle.store")
    run("data", "import", "bottle", "bottle.store", "--resize", "16x16")
    monkeypatch.setattr(Store, "append", lambda *_: pytest.fail("an episode was decoded again"))
    run("data", "stats", "bottle")

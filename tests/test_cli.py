"""The commands on data, as a user types them."""

import io
import json
import os
import pickle
import re
import signal
import time
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from lerobot_v21 import write_v21
from PIL import Image

from command import plaudit
from conftest import counting_episode, labeled_store
from plaudit.cli.common import PlainConsole, ProgressBar, epochs_bar, progress
from plaudit.data.store import Store
from plaudit.judges.epochs import EpochMetrics
from processes import start_plaudit


def test_the_whole_path_of_a_data_set(tmp_path):
    write_v21(tmp_path / "in")
    (tmp_path / "cutoffs.json").write_text('{"0": 6, "1": null, "2": [[3, 5]]}')
    assert "lerobot" in plaudit("data", "info", "in", cwd=tmp_path, alone=True)
    assert "3 episodes imported into store, 0 with labels" in plaudit("data", "import", "in", "store", cwd=tmp_path)
    said = plaudit("data", "label", "store", "cutoffs.json", cwd=tmp_path)
    assert "9 success frames, 27 failure frames (36 total)" in said
    said = plaudit("data", "info", "store", cwd=tmp_path)
    assert "2 of 3" in said and "cam_high 48x64" in said
    assert "store is intact.\nwhy: All checksums match: 3 episodes" in plaudit("data", "check", "store", cwd=tmp_path)
    plaudit("data", "sheet", "store", 0, "-o", "sheet.png", cwd=tmp_path)
    assert Image.open(tmp_path / "sheet.png").size[0] > 500
    said = plaudit("data", "export", "store", "out", cwd=tmp_path)
    assert "why: 3 episodes exported to out as lerobot." in said
    assert "3 episodes imported into again, 3 with labels" in plaudit("data", "import", "out", "again", cwd=tmp_path)
    assert "2 episodes exported" in plaudit(
        "data", "export", "store", "some", "--to", "npy", "--episodes", "0,2", cwd=tmp_path
    )
    plaudit("data", "stats", "store", "-o", "stats.json", cwd=tmp_path)
    assert (tmp_path / "stats.json").is_file()


def test_labels_have_a_history_that_can_be_gone_back_in(tmp_path):
    labeled_store(tmp_path / "s", counting_episode(4), cutoff=2).close()
    (tmp_path / "c.json").write_text('{"0": null}')
    plaudit("data", "label", "s", "c.json", "--note", "I was wrong", cwd=tmp_path)
    said = plaudit("data", "info", "s", "--episode", 0, cwd=tmp_path)
    assert "I was wrong" in said and "from frame 2" in said
    assert "version 1 counts again, as version 3" in plaudit("data", "label", "s", "--restore", "0:1", cwd=tmp_path)
    assert Store.open(tmp_path / "s").ledger.labels(0).success_once


@pytest.mark.parametrize(
    ("terminated", "meta", "end"),
    [
        (False, {"ended": "camera 'front' has been silent for 0.6 s"}, "truncated: camera 'front' has been silent"),
        (True, {"ended": "task ended"}, "terminated: task ended"),
        (False, {}, "truncated"),
    ],
)
def test_info_shows_why_an_episode_ended(tmp_path, terminated, meta, end):
    episode = replace(counting_episode(4), terminated=terminated, meta=meta)
    labeled_store(tmp_path / "s", episode, cutoff=2).close()
    said = plaudit("data", "info", "s", "--episode", 0, cwd=tmp_path)
    assert re.search(r"^end +(.*?) *$", said, re.MULTILINE)[1].startswith(end)
    assert "cut off" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data", "info", "nowhere"], "error: nowhere does not exist"),
        (["data", "import", "nowhere", "s2"], "error: nowhere does not exist"),
        (["data", "import", "s", "s2"], "error: s is a store already"),
        (["data", "check", "nowhere"], "error: nowhere does not exist"),
        (["data", "sheet", "s", "9"], "error: episode 9 was never in s, which has episodes 0 to 0"),
        (["data", "export", "s", "full"], "error: full holds something already; nothing was written"),
        (["data", "export", "s", "o", "--episodes", "a-b"], "error: --episodes takes ids like '0,3,7-9', not 'a-b'"),
        (
            ["data", "export", "s", "o", "--camera", "frnt"],
            "camera 'frnt' is not in episode 0; it has: front\n",
        ),
        (["data", "label", "s"], "error: name a label file like {0: 53, 1: null}"),
        (["data", "label", "s", "--restore", "0"], "error: --restore takes EPISODE:VERSION, like 3:1, not '0'"),
        (["data", "label", "s", "none.json"], "error: none.json: there is no such label file"),
        (
            ["demo", "--output-dir", "full"],
            "error: full holds something that is not a demo; nothing was written, name another with --output-dir",
        ),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(tmp_path, words, sentence):
    labeled_store(tmp_path / "s", counting_episode(4)).close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("x")
    said = plaudit(*words, cwd=tmp_path, ok=False)
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "s2").exists() and not (tmp_path / "o").exists()


def test_a_broken_episode_makes_the_import_say_so_and_return_one(tmp_path):
    folder = write_v21(tmp_path / "in")
    (folder / "data/chunk-000/episode_000001.parquet").write_bytes(b"PAR1")
    said = plaudit("data", "import", "in", "s", cwd=tmp_path, ok=False)
    assert "warning: episode 1 was left out" in said and "2 episodes imported into s" in said


def test_a_data_set_with_columns_of_other_names_is_imported_by_naming_them(tmp_path):
    folder = write_v21(tmp_path / "in")
    info = json.loads((folder / "meta/info.json").read_text())
    names = {"observation.state": "state", "action": "actions"}
    info["features"] = {names.get(name, name): feature for name, feature in info["features"].items()}
    (folder / "meta/info.json").write_text(json.dumps(info))
    for path in folder.glob("data/**/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), path)
    asked = "say with --state KEY and --action KEY which columns to take"
    assert "note: it cannot be imported as it is: in/meta/info.json: this data set has no" in plaudit(
        "data", "info", "in", cwd=tmp_path
    )
    assert asked in plaudit("data", "import", "in", "s", cwd=tmp_path, ok=False)
    flags = ("--state", "state", "--state", "actions", "--action", "actions", "--camera", "cam_high")
    assert "3 episodes imported into s" in plaudit("data", "import", "in", "s", *flags, cwd=tmp_path)
    episode = Store.open(tmp_path / "s").episode(0)
    assert (episode.state.shape[1], episode.actions.shape[1]) == (4, 2)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, ("touch pwned",)

    (tmp_path / "in/success").mkdir(parents=True)
    (tmp_path / "in/success/episode_000000.pkl").write_bytes(pickle.dumps(Bomb()))
    said = plaudit("data", "import", "in", "s", cwd=tmp_path, ok=False)
    assert "system, which could run code; nothing was run" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_path_with_brackets_is_shown_as_it_is(tmp_path):
    labeled_store(tmp_path / "run[bold]", counting_episode(4)).close()
    assert "run[bold] is intact" in plaudit("data", "check", "run[bold]", cwd=tmp_path)
    assert "error: no[red]where does not exist" in plaudit("data", "info", "no[red]where", cwd=tmp_path, ok=False)


def test_ctrl_c_keeps_what_was_imported_and_the_same_command_goes_on(tmp_path):
    write_v21(tmp_path / "in", lengths=(20,) * 40)
    with start_plaudit("data", "import", "in", "s", cwd=tmp_path) as process:
        while not ((tmp_path / "s/journal").is_file() and b'"op":"episode"' in (tmp_path / "s/journal").read_bytes()):
            time.sleep(0.01)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.read()
    assert process.returncode == 130
    assert said.strip().endswith("interrupted; the episodes so far are kept, run the same command to resume")
    kept = len(Store.open(tmp_path / "s"))
    assert 1 <= kept < 40
    said = plaudit("data", "import", "in", "s", cwd=tmp_path)
    assert f"{40 - kept} episodes imported into s, 0 with labels, {kept} were here already" in said
    assert len(Store.open(tmp_path / "s")) == 40


class FakeClock:
    """Stands still until it is moved on."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("plaudit.cli.common.monotonic", lambda: self.now)


def test_where_there_is_no_terminal_a_line_stands_in_for_the_bar_now_and_then(monkeypatch, capsys):
    clock = FakeClock(monkeypatch)
    for _ in progress("importing")(range(200)):
        clock.now += 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "importing: 20 of 200 (10%), 0:01:00 elapsed, about 0:09:00 left"
    assert len(lines) == 9 and lines[-1] == "importing: 180 of 200 (90%), 0:09:00 elapsed, about 0:01:00 left"


def test_work_that_is_slow_is_told_each_minute_and_never_twice_in_ten_seconds(monkeypatch, capsys):
    clock = FakeClock(monkeypatch)
    for item in progress("judging")(range(100)):
        clock.now += 31 if item < 4 else 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == ["judging: 2 of 100 (2%)", "judging: 4 of 100 (4%)"]
    assert len(lines) == 11


def test_work_that_is_soon_done_says_nothing(monkeypatch, capsys):
    clock = FakeClock(monkeypatch)
    for _ in progress("checking")(range(9)):
        clock.now += 1
    assert capsys.readouterr().err == ""


def test_what_goes_beyond_its_total_has_no_time_left(monkeypatch, capsys):
    """The last rollout of a training may."""
    clock, lines = FakeClock(monkeypatch), ProgressBar("training", 30)
    for done in (16, 32):
        clock.now += 20
        lines.update(done)
    assert capsys.readouterr().err.splitlines()[-1].endswith("32 of 30 (107%), 0:00:40 elapsed, about 0:00:00 left")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_bar_with_a_long_text_is_not_cut(columns, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("plaudit.cli.common.err", PlainConsole(file=screen, width=columns, force_terminal=True))
    bar = ProgressBar("training", 3_000_000)
    words = "success 1% in training, 2% on eval seeds, collected 7 of 200 successes and 200 of 200 failures"
    bar.update(28_800, words)
    bar.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "28800/3000000" in shown and "-:--:--" in shown and "…" not in shown
    assert set(words.split()) <= set(shown.split())


def test_a_training_tells_its_epochs_and_estimates_by_those_of_this_run(monkeypatch, capsys):
    clock = FakeClock(monkeypatch)
    with epochs_bar(epochs=20) as (watch, _):
        for epoch in range(11, 21):  # resumed after ten
            clock.now += 120
            assert watch(EpochMetrics(0, epoch, 0.25, 1.0, validation_loss=0.5, best=True, seconds=0.0))
        clock.now += 120
        assert watch(EpochMetrics(0, 10, 0.25, 1.0, validation_loss=0.5, best=True, seconds=0.0, fold=2))
    *lines, last = capsys.readouterr().err.splitlines()
    assert "6 of 20 (30%), cross-fitting, fold 2 of 5, loss 0.250" in last
    assert lines[0] == "training: 11 of 20 (55%), loss 0.250, 0.500 held out, 0:02:00 elapsed"
    assert lines[1].endswith("12 of 20 (60%), loss 0.250, 0.500 held out, 0:04:00 elapsed, about 0:16:00 left")
    assert len(lines) == 10


def test_an_import_with_its_output_in_a_file_reports_its_progress(tmp_path, monkeypatch):
    clock = FakeClock(monkeypatch)
    write_v21(tmp_path / "in", lengths=(3, 3, 3, 3))
    append = Store.append

    def slow(store, episode):
        clock.now += 60
        return append(store, episode)

    monkeypatch.setattr(Store, "append", slow)
    said = plaudit("data", "import", "in", "s", cwd=tmp_path)
    assert "importing: 1 of 4 (25%), 0:01:00 elapsed, about 0:03:00 left" in said


def test_counts_of_one_are_singular(tmp_path):
    write_v21(tmp_path / "in")
    (tmp_path / "cutoffs.json").write_text('{"0": 6}')
    said = plaudit("data", "import", "in", "all", cwd=tmp_path)
    said = plaudit("data", "export", "all", "one", "--episodes", 0, cwd=tmp_path)
    said += plaudit("data", "import", "one", "store", cwd=tmp_path)
    for words in (["label", "store", "cutoffs.json"], ["check", "store"], ["info", "store"]):
        said += plaudit("data", *words, cwd=tmp_path)
    assert said.count("1 episode") >= 4
    assert not re.search(r"\b1 (episode|label version|line)s\b", said), said

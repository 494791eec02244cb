"""Paths that lead out, texts without end: refused in a sentence, before anything is opened or built."""

import contextlib
import json
import os

import pytest

from plaudit.config import read_values
from plaudit.data.cutoffs import read_cutoffs
from plaudit.errors import BadFile, ConfigError
from plaudit.files import Root, brief, parse_json, read_metrics, understood
from plaudit.yaml_text import check_yaml, parse_yaml


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", "http://x/y", "~/a", "a\0b", "", 3, "a" * 2000])
def test_a_path_that_leads_out_is_not_even_looked_at(tmp_path, path):
    with pytest.raises(BadFile):
        Root(tmp_path).inside(path)


def test_a_link_out_of_the_folder_is_followed_only_where_the_user_says_so(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "blob").write_bytes(b"data")
    (tmp_path / "set/file").symlink_to(tmp_path / "blob")
    with pytest.raises(BadFile, match=r"this is a link and was not opened; .*--follow-links"):
        Root(tmp_path / "set").open(tmp_path / "set/file")
    assert Root(tmp_path / "set", follow_links=True).read(tmp_path / "set/file", 10) == b"data"


def test_links_of_a_model_in_the_cache_of_a_hub_lead_to_its_blobs_and_no_further(tmp_path):
    snapshot = tmp_path / "models--me--arm/snapshots/abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--me--arm/blobs").mkdir()
    for name in ("models--me--arm/blobs/1", "private"):
        (tmp_path / name).write_bytes(b"data")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (snapshot / "model.json").symlink_to(tmp_path / "private")
    assert Root(snapshot).read(snapshot / "config.json", 10) == b"data"
    with pytest.raises(BadFile, match="this is a link and was not opened"):
        Root(snapshot).open(snapshot / "model.json")


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device"])
def test_only_regular_files_are_opened(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(BadFile, match=f"this is {kind} and not a file"):
        Root(tmp_path, follow_links=True).open(path)


@pytest.mark.parametrize("text", ['{"0": 3, "1": 4, "0": 5}', "0: 3\n1: 4\n0x0: 5"], ids=["json", "yaml"])
def test_a_label_file_that_names_an_episode_twice_is_refused(tmp_path, text):
    path = tmp_path / "labels"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"labels: key '?0'? occurs twice in one object; remove one of them"):
        read_cutoffs(path)


@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_a_config_with_a_key_twice_is_refused(tmp_path, name):
    (tmp_path / name).write_text('{"run": {"seed": 1, "seed": 2}}')
    with pytest.raises(ConfigError, match=rf"{name}: .*key '?seed'?"):
        read_values(tmp_path / name, [])


def test_a_line_of_metrics_with_a_key_twice_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "step": 3}\n')
    with pytest.raises(BadFile, match="line 2: key 'step' occurs twice"):
        read_metrics(path)


def test_a_yaml_mapping_may_override_what_it_merges():
    assert parse_yaml("a: &a {k: 1}\nb: &b {<<: *a, k: 2}\nc: {<<: *b}")["c"] == {"k": 2}


def test_a_file_of_more_bytes_than_it_may_have_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(bytes(11))
    with pytest.raises(BadFile, match="11 bytes; the limit for this kind of file is 10"):
        Root(tmp_path).read(tmp_path / "a", 10)


@pytest.mark.parametrize("text", [b"[" * 50_000, b'{"a":' * 50_000, b"[" * 70 + b"]" * 70, b'{"a": "\\ud800"}'])
def test_json_that_nests_without_end_or_holds_half_a_character_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize("text", [b"[]", b"{}", b'""', b"0", b'{"a":{}}', b"[[[]]]"])
def test_json_of_millions_of_values_is_refused_before_one_of_them_is_built(text, monkeypatch):
    """Sixty megabytes of them would be gigabytes."""
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("they are built"))
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        parse_json(b"[" + b",".join([text] * 1_000_000) + b"]")


def test_brackets_within_strings_do_not_count():
    assert parse_json(b'{"a": "[[[\\"' + b"[" * 100 + b'"}')["a"].count("[") == 103


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "- " * 5000,
        "a: &a [*a]",
        "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
        "a: " + "1:" * 500 + "1",
        "a: !!bool x",
        "a: !!timestamp x",
    ],
)
def test_yaml_that_multiplies_or_nests_without_end_is_refused(text):
    with pytest.raises(ValueError):
        parse_yaml(text)


def test_yaml_with_anchors_as_people_use_them_is_read():
    check_yaml("base: &base {a: 1}\nother:\n  <<: *base\n  b: *base\n")


def test_a_config_whose_references_double_is_refused_before_they_are_written_out(tmp_path):
    lines = ["a0: xxxxxxxxxx", *(f"a{i}: ${{a{i - 1}}}${{a{i - 1}}}" for i in range(1, 60))]
    (tmp_path / "c.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="its templates lead to each other, and make too much of it"):
        read_values(tmp_path / "c.yaml", [])


def test_a_config_of_brackets_is_a_sentence(tmp_path):
    (tmp_path / "c.yaml").write_text("[" * 5000)
    with pytest.raises(ConfigError, match=r"c.yaml: .*nests more than 64 levels"):
        read_values(tmp_path / "c.yaml", [])


@pytest.mark.parametrize(
    "text", ["1", "1.5", "x", "2026-01-01", "null", "- 1", "[1, 2]", "", "!!set {a}", "--- 1\n--- 2"]
)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_config_that_is_no_mapping_is_a_sentence(tmp_path, text, suffix):
    (tmp_path / f"c.{suffix}").write_text(text)
    with contextlib.suppress(ConfigError):
        assert read_values(tmp_path / f"c.{suffix}", [])[0] == {}, "nothing is an empty config"


def test_a_large_description_in_json_is_read_at_once_and_not_filled_in(tmp_path):
    """OmegaConf takes half a millisecond for each value."""
    (tmp_path / "model.json").write_text(json.dumps({"scores": [0.5] * 100_000}))
    assert len(read_values(tmp_path / "model.json", ["a=1"])[0]["scores"]) == 100_000
    with pytest.raises(ConfigError, match="templates are for at most 10,000"):
        read_values(tmp_path / "model.json", ["a=${scores}"])


def test_lines_of_a_run_are_read_but_for_those_left_half(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 0.5}\n\n{"step": 2, "lo\n[1]\n\xff\n{"step": 3}\n{"step": 4')
    assert read_metrics(path) == [{"step": 1, "loss": 0.5}, {"step": 3}]
    assert read_metrics(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"step": "x"}', "'step', which is 'x'"),
        (b'{"loss": 1}', "a line without the number of a step"),
        (b'{"step": NaN}', "a line without the number of a step"),
        (b'{"step": 1' + b"0" * 400 + b"}", "a line without the number of a step"),
        (b'{"step": 1, "a": [1]}', "'a', which is a list of 1"),
        (b'{"step": ' + b"[" * 100 + b"}", "nests 101 levels deep"),
    ],
)
def test_lines_that_no_run_writes_are_refused(tmp_path, line, sentence):
    (tmp_path / "metrics.jsonl").write_bytes(line + b"\n")
    with pytest.raises(BadFile, match=sentence):
        read_metrics(tmp_path / "metrics.jsonl")


def test_lines_of_more_values_than_any_run_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.files.MAX_LINES_VALUES", 100)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step":1}\n' * 51)
    with pytest.raises(BadFile, match="no run writes that"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("use", [lambda value: f"{value:.2f}", lambda value: value["x"], lambda value: value / 2])
def test_a_value_of_another_kind_than_it_should_be_is_told_with_its_file(tmp_path, use):
    path = tmp_path / "config.json"
    with pytest.raises(BadFile, match=r"config\.json: its content is not valid"), understood(path):
        use("long text")


@pytest.mark.parametrize("text", ["{0-4000000000: 3}", "{²: 3}", '{"0-99999999999999999999999999": 3}'])
def test_a_label_file_with_a_range_that_no_store_has_is_refused(tmp_path, text):
    (tmp_path / "l.yaml").write_text(text)
    with pytest.raises(BadFile):
        read_cutoffs(tmp_path / "l.yaml")


def test_a_value_of_any_size_is_shown_in_a_few_words():
    assert brief(10**5000) == "a number of 16,610 bits"
    assert len(brief("x" * 10**6)) < 80
    assert brief([0] * 1000) == "a list of 1,000"

"""Paths that lead out, texts without end: refused in a sentence, before anything is opened or built."""

import os

import pytest

from plaudit.config import read_tree
from plaudit.data.cutoffs import read_cutoffs
from plaudit.errors import BadFile, ConfigError
from plaudit.untrusted import Root, check_yaml, parse_json, parse_yaml, shown


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", "http://x/y", "~/a", "a\0b", "", 3, "a" * 2000])
def test_a_path_that_leads_out_is_not_even_looked_at(tmp_path, path):
    with pytest.raises(BadFile):
        Root(tmp_path).inside(path)


def test_a_link_out_of_the_folder_is_followed_only_where_the_user_says_so(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "blob").write_bytes(b"data")
    (tmp_path / "set/file").symlink_to(tmp_path / "blob")
    with pytest.raises(BadFile, match=r"a link that leads out of the data set.*--follow-links"):
        Root(tmp_path / "set").open(tmp_path / "set/file")
    assert Root(tmp_path / "set", follow_links=True).read(tmp_path / "set/file", 10) == b"data"


def test_a_link_within_the_folder_is_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"data")
    (tmp_path / "b").symlink_to("a")
    assert Root(tmp_path).read(tmp_path / "b", 10) == b"data"


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


def test_a_file_of_more_bytes_than_it_may_have_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(bytes(11))
    with pytest.raises(BadFile, match="11 bytes where at most 10 are read"):
        Root(tmp_path).read(tmp_path / "a", 10)


@pytest.mark.parametrize("text", [b"[" * 50_000, b'{"a":' * 50_000, b"[" * 70 + b"]" * 70, b'{"a": "\\ud800"}'])
def test_json_that_nests_without_end_or_holds_half_a_character_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)


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
        read_tree(tmp_path / "c.yaml", [])


def test_a_config_of_brackets_is_a_sentence(tmp_path):
    (tmp_path / "c.yaml").write_text("[" * 5000)
    with pytest.raises(ConfigError, match=r"c.yaml: .*nests more than 64 levels"):
        read_tree(tmp_path / "c.yaml", [])


@pytest.mark.parametrize("text", ["{0-4000000000: 3}", "{²: 3}", '{"0-99999999999999999999999999": 3}'])
def test_a_label_file_with_a_range_that_no_store_has_is_refused(tmp_path, text):
    (tmp_path / "l.yaml").write_text(text)
    with pytest.raises(BadFile):
        read_cutoffs(tmp_path / "l.yaml")


def test_a_value_of_any_size_is_shown_in_a_few_words():
    assert shown(10**5000) == "a number of 16,610 bits"
    assert len(shown("x" * 10**6)) < 80
    assert shown([0] * 1000) == "a list of 1,000"

import os
import re
import shutil
import zlib

import pytest

from plaudit.data.check import inspect_journal, repair_journal
from plaudit.data.journal import Journal, decode, encode_lines, repair_lines
from plaudit.errors import Replaced, StoreDamaged


@pytest.fixture
def path(tmp_path):
    """Line 1 says whose it is, lines 2 to 4 were one append."""
    path = tmp_path / "journal"
    Journal.create(path, header={"id": "abc"})
    journal = Journal(path, lambda record, place: None)
    journal.read()
    journal.append([{"n": 1}, {"n": 2}, {"n": 3}])
    return path


def opened(path, records=None):
    """A journal, and where the numbers of its records are put."""
    return Journal(path, lambda record, place: None if records is None else records.append(record["n"]))


def numbers(path):
    records: list[int] = []
    opened(path, records).read()
    return records


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def test_what_was_appended_is_read_back_once(path):
    heard: list[int] = []
    reader = opened(path, heard)
    reader.read()
    assert heard == [1, 2, 3]
    opened(path).append([{"n": 4}])
    reader.read()
    reader.read()
    assert heard == [1, 2, 3, 4]
    assert reader.header == {"id": "abc"}


def test_an_append_tells_what_others_appended_meanwhile(path):
    heard: list[int] = []
    journal = opened(path, heard)
    journal.read()
    opened(path).append([{"n": 4}])
    journal.append([{"n": 5}])
    assert heard == [1, 2, 3, 4, 5]
    assert numbers(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kept", range(1, len(encode_lines([{"n": 4}], 5, 0)[0]), 3))
def test_a_line_torn_anywhere_is_not_seen_and_the_next_append_sets_it_aside(path, kept):
    whole = path.read_bytes()
    torn = encode_lines([{"n": 4}], 5, 0)[0][:kept]
    path.write_bytes(whole + torn)
    assert numbers(path) == [1, 2, 3]
    opened(path).append([{"n": 5}])
    assert numbers(path) == [1, 2, 3, 5]
    (aside,) = (path.parent / "quarantine").iterdir()
    assert (aside / f"journal.from-{len(whole)}").read_bytes() == torn
    assert "the count next to it does not include it" in (aside / "ABOUT.txt").read_text()


def test_an_append_of_which_a_power_cut_kept_the_second_line_alone_was_never_acknowledged(path):
    whole, journal = path.read_bytes(), opened(path)
    journal.read()
    head = path.with_name("journal.head").read_bytes()
    journal.append([{"n": 4}, {"n": 5}])
    first, second = lines_of(path)[-2:]
    path.write_bytes(whole + bytes(len(first) - 1) + b"\n" + second)
    path.with_name("journal.head").write_bytes(head)
    assert numbers(path) == [1, 2, 3]
    opened(path).append([{"n": 6}])
    assert numbers(path) == [1, 2, 3, 6]


def test_every_single_flipped_bit_is_noticed_and_mended(path):
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(StoreDamaged, match=r"run 'plaudit data check"):
            numbers(path)
        with pytest.raises(StoreDamaged):  # and nobody appends after it, or cuts it off as if it were torn
            opened(path).append([{"n": 4}])
        assert repair_journal(path)
        assert path.read_bytes() == whole
        assert [kept.read_bytes() for kept in path.parent.glob("quarantine/*/journal")] == [bytes(damaged)]
        shutil.rmtree(path.parent / "quarantine")


def test_a_line_beyond_mending_is_set_aside_and_the_others_stay(path):
    lines = lines_of(path)
    path.write_bytes(lines[0] + lines[1] + b"#" * 20 + b"\n" + lines[3])
    said = repair_journal(path)
    assert "line 3: 1 damaged line(s) could not be mended" in said[0]
    assert numbers(path) == [1, 3]
    opened(path).append([{"n": 4}])
    assert numbers(path) == [1, 3, 4]
    assert inspect_journal(path).problems == []


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        ([0], "line 1 is missing"),
        ([1], "line 2 is missing"),
        ([1, 2], "lines 2 to 3 are missing"),
        ([3], r"the last 1 acknowledged line\(s\) are missing"),
        ([2, 3], r"the last 2 acknowledged line\(s\) are missing"),
        ([0, 1, 2, 3], r"the last 4 acknowledged line\(s\) are missing"),
    ],
)
def test_lines_that_are_missing_are_named_and_nobody_writes_on(path, gone, sentence):
    lines = lines_of(path)
    path.write_bytes(b"".join(line for i, line in enumerate(lines) if i not in gone))
    with pytest.raises(StoreDamaged, match="missing"):
        numbers(path)
    with pytest.raises(StoreDamaged, match="missing"):
        opened(path).append([{"n": 4}])
    assert re.search(sentence, inspect_journal(path).problems[0])
    repair_journal(path)
    assert numbers(path) == [i for i in (1, 2, 3) if i not in gone]
    assert inspect_journal(path).problems == []


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 1, 1, 2, 3], [1, 0, 2, 3]])
def test_lines_that_were_swapped_or_doubled_are_named(path, order):
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[i] for i in order))
    with pytest.raises(StoreDamaged, match=r"missing|does not follow"):
        numbers(path)
    assert inspect_journal(path).problems


def test_a_cut_within_a_line_that_was_counted_is_a_loss(path):
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(StoreDamaged, match=r"last 1 acknowledged line\(s\) are missing or damaged"):
        numbers(path)
    assert inspect_journal(path).problems == [f"{path}: line 4 fails its checksum"]


def test_a_file_that_is_cut_while_somebody_reads_it_is_noticed(path):
    reader = opened(path)
    reader.read()
    os.truncate(path, len(lines_of(path)[0]))
    with pytest.raises(Replaced, match="replaced while it was open"):
        reader.read()


def test_a_count_that_is_gone_is_told_and_made_again(path):
    path.with_name("journal.head").unlink()
    assert numbers(path) == [1, 2, 3]
    assert "journal.head is missing or damaged" in inspect_journal(path).problems[0]
    repair_journal(path)
    assert inspect_journal(path).problems == []


def test_one_torn_count_leaves_the_one_before(path):
    opened(path).append([{"n": 4}])
    head = path.with_name("journal.head")
    for slot in (0, 64):
        whole = head.read_bytes()
        head.write_bytes(whole[:slot] + bytes(64) + whole[slot + 64 :])
        assert numbers(path) == [1, 2, 3, 4]
        path_bytes = path.read_bytes()
        path.write_bytes(lines_of(path)[0])
        with pytest.raises(StoreDamaged, match="missing"):
            numbers(path)
        path.write_bytes(path_bytes)
        head.write_bytes(whole)


def test_numbers_go_on_when_the_file_is_written_anew(path):
    journal, reader = opened(path), opened(path)
    journal.read()
    reader.read()
    journal.rewrite([{"n": 3}], lambda record, place: None)
    journal.append([{"n": 4}])
    assert numbers(path) == [3, 4]
    assert [decode(line[:-1]).number for line in lines_of(path)] == [5, 6, 7]
    with pytest.raises(Replaced, match="open the store again"):
        reader.read()


def test_two_flipped_bits_are_not_taken_for_one():
    line = bytearray(encode_lines([{"n": 4}], 1, 0)[0])
    line[3] ^= 1
    line[12] ^= 1
    assert repair_lines(bytes(line)) is None


@pytest.mark.parametrize(
    "text", ['{"n":4,"n":5}', '{"m":{"n":4,"n":5}}', '{"n": "\\ud800"}', "[" * 65 + "]" * 65, "[4]"]
)
def test_a_line_with_the_right_checksum_is_refused_if_its_record_is_ambiguous_or_no_record(text):
    assert decode(line_of(text)) is None


@pytest.mark.parametrize("text", ['{"n": 1e-05}', '{"n":1e-05}', '{ "n":1E-5 }', '{"n":0.00001}', '{"n":0.1e-4}'])
def test_a_record_in_another_spelling_of_json_is_read_alike(text):
    line = decode(line_of(text))
    assert line is not None and line.record == {"n": 0.00001}


def line_of(text):
    """A line with this record and the right checksum."""
    rest = b"1 1 00000000 " + text.encode()
    return b"%08x %s" % (zlib.crc32(rest), rest)


def test_text_of_any_language_survives():
    record = {"task": 'Возьми бутылку 🍼 \n\t"quoted"'}
    line = decode(encode_lines([record], 1, 0)[0][:-1])
    assert line is not None and line.record == record

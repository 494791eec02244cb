import pytest

from plaudit.data.journal import Journal, decode, encode, mend, mend_bytes
from plaudit.errors import StoreDamaged, StoreError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "journal"
    Journal.create(path)
    Journal(path).append([{"n": 1}, {"n": 2}, {"n": 3}])
    return path


def numbers(path):
    return [record["n"] for record in Journal(path).read()]


def test_what_was_appended_is_read_back_once(path):
    reader = Journal(path)
    assert [r["n"] for r in reader.read()] == [1, 2, 3]
    Journal(path).append([{"n": 4}])
    assert [r["n"] for r in reader.read()] == [4]
    assert reader.read() == []


def test_an_append_tells_what_others_appended_meanwhile(path):
    mine, theirs = Journal(path), Journal(path)
    mine.read()
    theirs.append([{"n": 4}])
    assert [r["n"] for r in mine.append([{"n": 5}])] == [4]
    assert numbers(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kept", range(1, len(encode({"n": 4}))))
def test_a_line_torn_anywhere_is_not_seen_and_the_next_append_cuts_it_off(path, kept):
    with path.open("ab") as file:
        file.write(encode({"n": 4})[:kept])
    assert numbers(path) == [1, 2, 3]
    Journal(path).append([{"n": 5}])
    assert numbers(path) == [1, 2, 3, 5]


def test_every_single_flipped_bit_is_noticed_and_mended(path):
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            last_line = position >= whole[:-1].rindex(b"\n")
            if not last_line:
                with pytest.raises(StoreDamaged, match=r"line [123] fails its checksum; run 'plaudit data check"):
                    numbers(path)
            with pytest.raises(StoreDamaged):  # and nobody appends after it, or cuts it off as if it were torn
                Journal(path).append([{"n": 4}])
            assert mend(path)
            assert path.read_bytes() == whole
            for backup in path.parent.glob("journal.before-repair-*"):
                assert backup.read_bytes() == bytes(damaged)
                backup.unlink()


def test_a_line_beyond_mending_is_set_aside_and_the_others_stay(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"#" * 20 + b"\n" + lines[2])
    said = mend(path)
    assert "1 damaged line(s) could not be mended" in said[0]
    assert numbers(path) == [1, 3]


def test_a_reader_is_told_when_a_repair_replaced_the_file(path):
    reader = Journal(path)
    reader.read()
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":0'))
    mend(path)
    with pytest.raises(StoreError, match="open the store again"):
        reader.read()


def test_two_flipped_bits_are_not_taken_for_one():
    line = bytearray(encode({"n": 4}))
    line[3] ^= 1
    line[12] ^= 1
    assert mend_bytes(bytes(line)) is None


def test_text_of_any_language_survives():
    record = {"task": 'Возьми бутылку 🍼 \n\t"quoted"'}
    assert decode(encode(record)[:-1]) == record

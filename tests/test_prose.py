"""README and docs are in short sentences, as benchmarks/prose.py measures them."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def prose():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield runpy.run_path(str(ROOT / "benchmarks/prose.py"))
    sys.path.remove(str(ROOT / "benchmarks"))


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_short_sentences(prose, page):
    mean = prose["mean_length"](prose["page_sentences"](page))
    assert mean <= prose["MAX_MEAN"], f"{page.name} has {mean:.1f} words per sentence"


def test_no_sentence_of_the_readme_is_too_long(prose):
    sentences = prose["page_sentences"](ROOT / "README.md", tables=True)
    assert [sentence for sentence in sentences if sentence.num_words > prose["MAX_WORDS"]] == []


def test_the_readme_fits_in_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_sentences_are_counted_without_code_links_and_tables(prose, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nRun `plaudit train env=lift`. See [a page](a.md).\n\n```bash\nls\n```\n\n- One item\n\n| a | b |\n"
    )
    assert [sentence.num_words for sentence in prose["page_sentences"](page)] == [2, 3, 2]


def test_messages_are_all_strings_but_docstrings(prose, tmp_path):
    lines = (
        '"""A module."""',
        'raise ValueError(f"key {name} is wrong. Use " "another one.")',
        'notes = ["Look here."]',
    )
    (tmp_path / "module.py").write_text("\n".join(lines))
    texts = [sentence.text for sentence in prose["message_sentences"](tmp_path)]
    assert texts == ["key X is wrong.", "Use another one.", "Look here."]

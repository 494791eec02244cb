"""Measures how long the sentences of the docs, the command line help and the messages are.

    python benchmarks/prose.py [--quick] [--longest N] [PAGE ...]

Code blocks, tables and headings are not sentences. Code in backticks counts as one word, a link as its text. A list
item or a paragraph ends a sentence, and so does a colon or a semicolon followed by a line break. The mean is taken over
prose only; sentences of more than 30 words are also counted in table cells.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bars import Bars

ROOT = Path(__file__).parents[1]
MAX_MEAN, MAX_WORDS = 16, 30


class Sentence(NamedTuple):
    """A sentence and where it stands."""

    place: str
    text: str

    @property
    def num_words(self) -> int:
        return len(re.findall(r"[\w'’.,%/+-]*\w[\w'’.,%/+-]*", self.text))


def pages(root: Path = ROOT) -> list[Path]:
    """README and all pages of docs/."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def page_sentences(path: Path, *, tables: bool = False) -> list[Sentence]:
    """The sentences of a Markdown page; with `tables`, those of table cells too."""
    return [Sentence(path.name, text) for block in _blocks(path.read_text(), tables) for text in split(block)]


def split(text: str) -> list[str]:
    """The sentences of one paragraph."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = text.replace("*", "")
    text = re.sub(r"\b(e\.g|i\.e|vs|etc|cf|approx)\.", r"\1", " ".join(text.split()))
    parts = re.split(r"(?<=[.!?])[)\"”]?\s+(?=[\"“(]?[A-Z0-9CODE])", text)
    return [part.strip() for part in parts if re.search(r"[A-Za-z]{2}", part)]


def mean_length(sentences: list[Sentence]) -> float:
    """Words per sentence."""
    return sum(sentence.num_words for sentence in sentences) / max(len(sentences), 1)


def help_sentences() -> list[Sentence]:
    """The help of every command and of every option."""
    from typer.main import get_command

    from plaudit.cli import load_app

    def walk(command: Any, name: str) -> Iterator[Sentence]:
        texts = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
        for block in (block for text in texts for block in re.split(r"\n\s*\n|\x08\n", text)):
            yield from (Sentence(name, text) for text in split(block))
        for child, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{name} {child}")

    return list(walk(get_command(load_app()), "plaudit"))


def message_sentences(source: Path = ROOT / "src/plaudit") -> list[Sentence]:
    """One-line string literals that are not docstrings: errors, warnings, notes. A placeholder counts as one word."""
    return [
        Sentence(f"{path.relative_to(source)}:{node.lineno}", sentence)
        for path in sorted(source.rglob("*.py"))
        for node in _strings(ast.parse(path.read_text()))
        if "\n" not in (text := _literal(node))
        for sentence in split(text)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages; default: README, docs and all messages")
    parser.add_argument("--quick", action="store_true", help="the same: this benchmark takes seconds")
    parser.add_argument("--longest", type=int, default=0, help="also print the N longest sentences of each place")
    options = parser.parse_args()
    for page in options.pages:
        if not page.is_file():
            parser.error(f"there is no page {page}")
    bars = Bars()
    for path in options.pages or pages():
        sentences = page_sentences(path)
        _show(path.name, sentences, options.longest)
        bars.at_most(f"prose_mean_{path.stem}", mean_length(sentences), MAX_MEAN)
    if not options.pages:
        places = {"readme": page_sentences(ROOT / "README.md", tables=True)}
        places |= {"help": help_sentences(), "messages": message_sentences()}
        for name, sentences in places.items():
            too_long = [sentence for sentence in sentences if sentence.num_words > MAX_WORDS]
            _show(name, too_long, options.longest)
            bars.at_most(f"prose_long_{name}", len(too_long), 0)
    bars.report()


def _blocks(text: str, tables: bool) -> Iterator[str]:
    text = re.sub(r"^```.*?^```[^\n]*$|<!--.*?-->", "\n", text, flags=re.DOTALL | re.MULTILINE)
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_row, is_item = line.lstrip().startswith("|"), re.match(r"\s*([-*+]|\d+\.)\s", line)
        if block and (is_row or is_item or not line.strip() or line.startswith("#")):
            yield " ".join(block)
            block = []
        if is_row and tables and not re.fullmatch(r"[\s|:-]*", line):
            yield from (cell for cell in re.split(r"(?<!\\)\|", line) if cell.strip())
        elif line.strip() and not is_row and not line.startswith("#"):
            block.append(line[is_item.end() :] if is_item else line)


def _strings(tree: ast.AST) -> Iterator[ast.expr]:
    """The outermost strings of a syntax tree, docstrings left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) and _literal(node):
            yield node
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield from _strings(node)


def _literal(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts)  # type: ignore[misc]
        case ast.BinOp(left=left, right=right):
            return _literal(left) + _literal(right)
    return ""


def _show(name: str, sentences: list[Sentence], count: int) -> None:
    for sentence in sorted(sentences, key=lambda one: -one.num_words)[:count]:
        print(f"{name}: {sentence.num_words} words, {sentence.place}: {sentence.text}")


if __name__ == "__main__":
    main()

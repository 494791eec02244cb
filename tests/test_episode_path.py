"""docs/architecture.md follows one online episode through the code: what it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FILES = 15
SECTION = (
    (ROOT / "docs/architecture.md").read_text().split("## One online episode, file by file\n")[1].split("\n## ")[0]
)
STEPS = [
    (path, name)
    for path, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", SECTION)
    for name in re.findall(r"`([\w.]+)`", names)
]


def defined(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


@pytest.mark.parametrize(("path", "name"), STEPS, ids=lambda value: value)
def test_every_name_on_the_path_exists(path, name):
    owner, _, method = name.partition(".")
    node = defined(ast.parse((ROOT / "src/plaudit" / path).read_text()).body).get(owner)
    assert node is not None, f"{path} has no {owner}"
    assert not method or (isinstance(node, ast.ClassDef) and method in defined(node.body)), f"{path} has no {name}"


def test_the_path_names_a_file_in_every_row_and_few_in_all():
    rows = re.findall(r"^\| \d+ \|.*$", SECTION, re.MULTILINE)
    assert len(rows) >= 10 and all(re.search(r"`[\w/]+\.py`: `", row) for row in rows)
    assert len({path for path, _ in STEPS}) <= MAX_FILES

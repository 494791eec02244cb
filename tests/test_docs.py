"""The documents tell the truth: what they name exists."""

import re
from pathlib import Path

import pytest

from command import plaudit

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_code_style_exist(page):
    for name in re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_command_in_the_readme_exists(tmp_path):
    commands = set(
        re.findall(r"^plaudit ((?:data |env )?[a-z-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    )
    assert {"data import", "env view", "train-reward", "train"} <= commands
    for command in commands:
        plaudit(*command.split(), "--help", cwd=tmp_path)


def test_the_annotated_tree_is_true():
    tree = (ROOT / "docs/architecture.md").read_text().split("```text\nsrc/plaudit/")[1].split("```")[0]
    folders: dict[int, str] = {}
    named = set()
    for line in tree.splitlines()[1:]:
        match = re.match(r"^( +)([\w./]+)", line)
        if not match:
            continue
        depth, name = len(match[1]), match[2]
        parent = "".join(folder for d, folder in sorted(folders.items()) if d < depth)
        folders = {d: f for d, f in folders.items() if d < depth}
        if name.endswith("/"):
            folders[depth] = name
        assert (ROOT / "src/plaudit" / parent / name).exists(), f"the tree names {parent}{name}"
        named.add(parent + name)
    top = {p.name for p in (ROOT / "src/plaudit").iterdir() if p.suffix == ".py" and p.name != "__init__.py"}
    assert top <= named, f"the tree does not name {top - named}"

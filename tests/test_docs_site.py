"""The pages that `make docs` adds: every config key and command; and the navigation. mkdocs itself is not needed."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from command import COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(ROOT / "scripts"))
    yield import_module("docs_reference")
    sys.path.remove(str(ROOT / "scripts"))


class _Loader(yaml.SafeLoader):
    """Skips the Python objects of mkdocs.yml."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for inner in (nav.values() if isinstance(nav, dict) else nav) for page in _pages(inner)]


def test_every_page_is_in_the_navigation():
    nav = _pages(yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"])
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "docs/notebooks").glob("*.ipynb")]
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    missing = {*pages, *notebooks} - set(nav)
    assert not missing, f"add {', '.join(sorted(missing))} to the nav of mkdocs.yml"
    assert set(nav) - {*pages, *notebooks} == {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}


def test_every_config_key_has_a_description(reference):
    bare = [
        f"{title}: {key.name}"
        for title, keys in reference.all_keys().items()
        for key in keys
        if not key.description and key.kind != "block"
    ]
    assert not bare, f"add a comment to the field in the source: {bare}"


def test_the_page_of_learners_has_type_range_default_and_description(reference):
    rows = reference.all_keys()["learner=sac"]
    key = next(key for key in rows if key.name == "learner.lr")
    assert (key.kind, key.range, key.default, key.description) == (
        "float",
        "above 0, to 10",
        "`0.001`",
        "learning rate",
    )
    half_life = next(key for key in rows if key.name == "learner.interventions.half_life")
    assert (half_life.kind, half_life.range, half_life.default) == ("int or null", "above 0, to 1e9", "`null`")


def test_every_command_and_flag_is_on_a_page(reference):
    text = "\n".join(page for _, _, page in reference.commands())
    commands: dict[str, Any] = COMMANDS.commands  # pyright: ignore[reportAttributeAccessIssue]
    assert all(f"# `plaudit {name}`" in text for name in commands)
    for flag in ("--robot", "--policy_yaml", "--allow-code", "--target-success", "--to-lerobot"):
        assert f"`{flag}" in text or f" {flag}" in text

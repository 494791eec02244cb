"""Follows docs/add_a_policy.md to the letter, in an empty folder."""

import re
from pathlib import Path

from processes import run_pytest

DOCUMENT = Path(__file__).parents[2] / "docs/add_a_policy.md"


def test_what_the_document_says_makes_a_policy_that_keeps_the_contract(tmp_path):
    files = re.findall(
        r"`(my_policy/[\w./]+)`[^`]*?(?:`[^`]*`[^`]*?)?:\n\n```\w+\n(.*?)```", DOCUMENT.read_text(), re.DOTALL
    )
    assert [name for name, _ in files] == [
        "my_policy/policy.py",
        "my_policy/policy.yaml",
        "my_policy/components/network.yaml",
        "my_policy/test_policy.py",
    ]
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run_pytest(tmp_path, "my_policy/test_policy.py")
    assert "1 passed" in (tmp_path / "output.txt").read_text()

"""Tests in several processes are reported as those of one."""

from pathlib import Path

from processes import run_pytest

CONFTEST = """
from workers import run_tests

def pytest_runtestloop(session):
    run_tests(session, 2)
    return True
"""
FILES = {
    "test_one.py": "def test_passes(tmp_path): ...\ndef test_fails(): assert 1 == 2, 'on purpose'\n",
    "test_two.py": "import os\ndef test_before(): ...\ndef test_dies(): os._exit(3)\ndef test_after(): ...\n",
}


def test_a_failure_and_a_death_are_reported_and_the_rest_passes(tmp_path: Path):
    for name, text in {"conftest.py": CONFTEST, **FILES}.items():
        (tmp_path / name).write_text(text)
    said = run_pytest(tmp_path, ok=False)
    assert "on purpose" in said and "test_dies - it was not run to its end: its process died" in said
    assert "3 failed, 2 passed" in said

"""Versions agree, and what builds and tests elsewhere only calls `make`."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import plaudit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_the_version_is_the_same_everywhere():
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == plaudit.__version__ == citation["version"]
    assert f"\n## {plaudit.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_every_step_of_the_workflows_calls_a_target_of_make():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        for job in jobs:
            targets = job.get("strategy", {}).get("matrix", {}).get("target", [])
            runs = [step["run"] for step in job["steps"] if "run" in step]
            assert runs, f"{path.name} has a job that runs nothing"
            for run in runs:
                for target in targets or ["-"]:
                    words = run.replace("${{ matrix.target }}", target).split()
                    assert words[0] == "make" and words[1] in TARGETS, f"{path.name}: {run}"


@pytest.mark.parametrize("image", ["cpu", "cuda"])
def test_an_image_has_the_libraries_that_setup_asks_for(image):
    text = (ROOT / f"docker/{image}.Dockerfile").read_text()
    setup = (ROOT / "scripts/setup.sh").read_text()
    libraries = re.findall(r"^lib\S+\.so\.\d+ (\S+)$", setup, flags=re.MULTILINE)
    assert len(libraries) == 5
    assert set(libraries) <= set(text.split())
    assert set(re.findall(r"^RUN make ([a-z-]+)", text, flags=re.MULTILINE)) == {"environments"} <= TARGETS

"""The walls between the rooms, checked on the code itself and on what gets imported when it runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plaudit
from counted_stores import counted_store

SOURCE = Path(plaudit.__file__).parent

# Lowest first: a room may import from rooms above it in this list, and from itself.
ROOMS = [
    "errors",
    "trust",
    "processes",
    "files",
    "yaml_text",
    "types",
    "config",
    "rule",
    "protocols",
    "registry",
    "devices",
    "data",
    "encoders",
    "contracts",
    "envs",
    "robots",
    "policies",
    "judges",
    "rollout",
    "learners",
    "report",
    "training",
    "cluster",
    "web",
    "cli",
    "__main__",
    "testing",
]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


# Read as text: in Python 3.11 `ast.parse` fails while another thread compiles something.
IMPORT_LINE = re.compile(r"^ *(?:from ([\w.]+) import |import ([\w.]+))", flags=re.MULTILINE)


def imports_of(path: Path) -> set[str]:
    return {name for names in IMPORT_LINE.findall(path.read_text()) for name in names if name}


FILES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
IMPORTS = {path: imports_of(path) for path in FILES}


def test_every_room_is_on_the_plan():
    assert {room_of(path) for path in FILES} <= set(ROOMS)


def test_imports_point_one_way():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, names in IMPORTS.items()
        for name in names
        if name.startswith("plaudit.") and ROOMS.index(name.split(".")[1]) > ROOMS.index(room_of(path))
    ]
    assert not wrong, "these import what stands below them"


KEPT_TO = {  # ruff bans these too, but a file that may import torch is let off all of its bans
    "ray": ("cluster/",),
    "pickle": ("data/unpickle.py", "data/formats/pkl.py"),
    "tensordict": ("data/batch.py",),
    **dict.fromkeys(("huggingface_hub", "datasets", "lerobot"), ()),
}


def test_some_packages_are_kept_to_one_place():
    wrong = [
        f"{where} imports {package}"
        for where, names in ((path.relative_to(SOURCE).as_posix(), names) for path, names in IMPORTS.items())
        for package in {name.split(".")[0] for name in names} & set(KEPT_TO)
        if not where.startswith(KEPT_TO[package])
    ]
    assert not wrong


WITHOUT_TORCH = [
    "types",
    "protocols",
    "config",
    "data.normalize",
    "data.store",
    "data.replay",
    "judges.controls",
    "judges.evaluation",  # and metrics, calibration and labeling, which it imports
    "rollout.control",
    "rollout.inference",
    "rollout.engine",
    "rollout.collector",
    "rollout.wrappers",
    "robots.ros",
    "robots.sim",
    "robots.lerobot",
    "robots.twin.twin",
    "envs",
    "policies.guidance",
    "policies.loader",
    "policies.config",
    "policies.openpi",
    "learners.config",
    "training.config_file",
    "training.workers.labelers",
    "policies.scripted",
    "judges.classifier.config",
    "data.transfer",
    "cli",
]


IMPORT = """
import importlib, sys
unwanted, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(f"plaudit.{module}")
    for package in set(unwanted.split(",")) & set(sys.modules):
        sys.exit(f"plaudit.{module} imports {package}")
if "torch" in sys.modules:
    import torch
    from plaudit.learners.base import make_adam, optimizer_step
    net = torch.nn.Linear(1, 1)
    optimizer = make_adam(0.1, net)
    optimizer_step(optimizer, net(torch.ones(1)).sum())
    optimizer.load_state_dict(optimizer.state_dict())
    assert "torch._dynamo" not in sys.modules, "whoever trains imports torch's compiler"
"""


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (WITHOUT_TORCH, "torch,ray,PySide6"),
        # Every worker of a run starts with these; they would take as long to import as torch.
        (["training.online", "training.trainer"], "ray,sklearn,scipy,matplotlib,pyarrow,transformers"),
        (
            [f"cli.{path.stem}" for path in sorted((SOURCE / "cli").glob("[a-z]*.py"))],
            "numpy,pydantic,yaml,rich.progress",
        ),
        (
            ["data.store", "report.tables", "report.verdict"],
            "omegaconf,yaml,sklearn,scipy,PIL,rich.progress,plaudit.data.formats.base",
        ),
    ],
    ids=["the robot's side", "workers", "plaudit --help", "plaudit data info"],
)
def test_heavy_packages_are_imported_where_they_are_used(modules: list[str], unwanted: str):
    """One after the other in one process: the first that imports such a package is the one to blame."""
    done = subprocess.run([sys.executable, "-c", IMPORT, unwanted, *modules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_private_part_of_ray_is_used():
    """Nor replaced: a release of Ray may change them."""
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"\bray\._", path.read_text()), f"{path.name} uses a private part of Ray"


WATCH = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        assert name != "numpy" or os.environ.get("OPENBLAS_THREAD_TIMEOUT") == "4"
sys.meta_path.insert(0, Watch())
from plaudit.cli import main
main()
"""


def test_the_threads_that_numpy_starts_in_a_command_wait_without_spinning(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    command = [sys.executable, "-c", WATCH, "data", "info", str(counted_store(tmp_path / "a.store"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr

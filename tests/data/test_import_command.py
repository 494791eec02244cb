"""The commands of docs/data.md for formats with free column names, on small files that have the names shown there."""

import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
from test_hdf5 import write_aloha, write_robomimic
from test_rlds import make_episode, write_rlds
from test_rosbag import topics, write_bag
from test_zarr import pusht, write_buffer

from command import plaudit
from plaudit.data.store import Store
from plaudit.errors import format_count

SECTION = (Path(__file__).parents[2] / "docs/data.md").read_text().split("### Columns by name")[1].split("\n### ")[0]
LINES = re.findall(r"^plaudit data import .*$", SECTION.replace("\\\n", " "), flags=re.MULTILINE)


def write_log(path):
    with h5py.File(path, "w") as file:
        for name, width in (("q", 6), ("gripper", 1), ("command", 7)):
            file[f"arm/{name}"] = np.zeros((4, width))
        file["task/done"] = np.array([0, 0, 0, 1])
        file["left/rgb"] = np.zeros((4, 6, 8, 3), np.uint8)


def write_bags(folder):
    content = topics()
    write_bag(folder / "first", {"/arm/command": content.pop("/command"), **content})


WRITERS = {
    "image.hdf5": write_robomimic,
    "aloha_folder": lambda path: write_aloha(path, compress=True),
    "pusht_cchi_v7_replay.zarr": lambda path: write_buffer(path, pusht()),
    "bridge/1.0.0": lambda path: write_rlds(path, make_episode(3, np.random.default_rng(0))),
    "bags": write_bags,
    "log.h5": write_log,
}


def test_every_format_has_a_command():
    assert [shlex.split(line)[3] for line in LINES] == list(WRITERS)


@pytest.mark.parametrize("line", LINES, ids=[shlex.split(line)[3] for line in LINES])
def test_the_command_of_the_page_imports_every_episode(tmp_path, line):
    words = shlex.split(line, comments=True)
    WRITERS[words[3]](tmp_path / words[3])
    said = plaudit(*words[1:], cwd=tmp_path)
    store = Store.open(tmp_path / "episodes")
    assert f"{format_count(len(store.ids), 'episode')} imported into episodes" in said and store.ids
    assert store.episode(0).frames and store.episode(0).actions.shape[1]
    assert f"{len(store.ids)} were here already" in plaudit(*words[1:], cwd=tmp_path)

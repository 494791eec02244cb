"""The three lines that the output of a command begins with. Listings (`config list`, `env list`) have none."""

import json
import shlex

import pytest
from lerobot_v21 import write_v21

from command import check_command, plaudit
from conftest import counting_episode, labeled_store
from plaudit.data.store import Store

COMMANDS = [
    "data info s",
    "data info s --episode 0",
    "data info s --episode 1",
    "data info in",
    "data order s newest",
    "data sheet s 0",
    "data stats s",
    "data repack s new --images lossless",
    "data check s",
    "data export s out --to npy",
    "data import in more",
    "data label s cutoffs.json",
    "data label s --restore 0:1",
    "data label in cutoffs.json --to-lerobot copy",
    "data label imported cutoffs.json --to-lerobot copy",
    "config copy online_sim_sac",
    "config copy judge_vlm",
    "config copy my_robot",
    "config copy pickcube_collect_reward_data",
    "config copy pickcube_train_reward_keypoints",
    "doctor",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdicts")
    with labeled_store(folder / "s", counting_episode(6), cutoff=2) as store:
        store.append(counting_episode(6))
    (folder / "cutoffs.json").write_text(json.dumps({"0": 3}))
    write_v21(folder / "in")
    plaudit("data", "import", folder / "in", "imported", cwd=folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reports_its_result_the_reason_and_what_to_do_next(folder, command, tmp_path):
    words = [str(folder / word) if (folder / word).exists() else word for word in command.split()]
    said = plaudit(*words, cwd=tmp_path).splitlines()
    (first,) = [n for n, line in enumerate(said) if line.startswith("result: ")]
    assert said[first + 1].startswith("why: ") and said[first + 2].startswith("next: ")
    advised = said[first + 2].partition(": plaudit ")[2]
    if advised:
        check_command(shlex.join(["plaudit", *shlex.split(advised)]))


def test_a_store_is_usable_by_what_its_labels_allow(tmp_path):
    def result(*cutoffs: int | None) -> str:
        with Store.create(tmp_path / f"s{len(list(tmp_path.iterdir()))}") as store:
            store.extend(counting_episode(4) for _ in cutoffs)
        for i, cutoff in enumerate(cutoffs):
            (tmp_path / "c.json").write_text(json.dumps({str(i): cutoff}))
            if cutoff != -1:
                plaudit("data", "label", store.folder, tmp_path / "c.json", cwd=tmp_path)
        return plaudit("data", "info", store.folder, cwd=tmp_path)

    assert "Not usable yet: it has no episodes." in result()
    assert "Partly usable: some episodes have no label.\nwhy: 2 episodes: 1 successful, 0 not, 1 un" in result(2, -1)
    assert "plaudit train-reward" in result(2, None)
    assert "plaudit train-policy" in result(2, 1)

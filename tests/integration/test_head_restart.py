"""The head goes away while a person labels on another machine: network namespaces, and a disk that the person's has not
got. `tests/training/test_labeling_window.py` has the same without a cluster."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plaudit.data.store import Store, is_store
from plaudit.judges.human.session import Session, replay_actions
from waiting import stretch, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and ip"),
]
EPISODES = 6
RUN = [
    "env=glow:GlowConfig",
    "learner=sac",
    "learner.hidden_dims=[8]",
    "learner.batch_size=8",
    "learner.random_steps=0",
    "judge=human",
    "judge.window.open=false",
    "policy.inference=sequential",
    "policy.inference.realtime=false",
    "policy.inference.max_episode_steps=12",
    "policy.cameras=[]",
    "evaluation.episodes=1",
    "run.max_unlabeled_episodes=4",
    f"run.max_episodes={EPISODES}",
    "run.name=run",
]


def hosts_module() -> Any:
    spec = importlib.util.spec_from_file_location("hosts", Path(__file__).parents[2] / "benchmarks" / "hosts.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["hosts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Lab:
    """Three machines; that of the person has a home of its own and does not see the run's folder."""

    def __init__(self, hosts: Any, folder: Path):
        self.head, self.robot, self.person = hosts
        self.runs, self.home = folder / "runs", folder / "home"
        for made in (self.runs, self.home):
            made.mkdir()

    def start(self) -> None:
        address = f"{self.head.address}:6379"
        self.head.start("training")
        self.robot.start("inference", address)
        words = f"cluster start --role labeling --address {self.person.address} --head {address}"
        hidden = f"mount -t tmpfs none {self.runs} && HOME={self.home} exec {sys.executable} -m plaudit {words}"
        done = self.person.run("sh", "-c", hidden)
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self) -> None:
        for host in (self.head, self.robot, self.person):
            host.stop()

    def online(self) -> subprocess.Popen[str]:
        words = [*RUN, "--folder", str(self.runs), "--ray", f"{self.head.address}:6379"]
        command = (sys.executable, "-m", "plaudit", "online", *words)
        return self.head.spawn(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @property
    def mirror(self) -> Path | None:
        found = list((self.home / ".plaudit/mirrors").glob("*"))
        assert len(found) <= 1, "a second mirror was begun"
        return found[0] if found and is_store(found[0]) else None

    def mirrored(self) -> int:
        return 0 if self.mirror is None else len(Store.open(self.mirror))

    def answered(self) -> int:
        return len(Store.open(self.mirror).ledger)

    def label(self, count: int) -> None:
        """A person labels that many episodes, each a failure."""
        with Session.open(self.mirror) as session:
            replay_actions(session, "F Return " * count)

    def labeled(self) -> list[int]:
        """The episodes that labels have come home of, one for each label."""
        return [version.episode for version in Store.open(self.runs / "run/episodes").ledger.since(0)]


@pytest.fixture
def lab(tmp_path) -> Iterator[Lab]:
    with hosts_module().three_hosts() as hosts:
        yield Lab(hosts, tmp_path)


def test_every_label_arrives_once_although_the_head_was_away_meanwhile(lab):
    lab.start()
    run = lab.online()
    wait_until(lambda: lab.mirrored() >= 4, 120)
    lab.label(1)
    wait_until(lambda: lab.labeled() == [0])
    run.kill()  # its machine is switched off
    run.communicate()
    lab.head.stop()
    lab.label(2)
    assert lab.labeled() == [0]
    lab.stop()
    lab.start()
    run = lab.online()
    wait_until(lambda: len(lab.labeled()) == 3, 120)
    while run.poll() is None:
        lab.label(lab.mirrored() - lab.answered())
        time.sleep(0.2)
    told, _ = run.communicate(timeout=stretch(60))
    assert run.returncode == 0, told
    assert sorted(lab.labeled()) == list(range(EPISODES))

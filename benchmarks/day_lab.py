"""What a day at two robots needs: three machines, a twin, its operator, a person who labels, and a policy server.

The machines are the network namespaces of `hosts.py`. The twin and the operator are at the robot, whose topics go
through sockets in a folder, so that a cut of the network is one between the machines and not one to the robot.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from hosts import ROLES, Host
from plaudit.data.normalize import ACTION, STATE, Normalizer, Stats
from plaudit.data.store import Store, is_store
from plaudit.judges.human.session import Session, replay_actions
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.transport import ZenohConfig
from plaudit.robots.transport.messages import STRING, encode_string
from plaudit.robots.twin import TwinProcess

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40  # of an episode that nobody ends before: two seconds
SWING = 0.15  # rad around the start pose that a policy may command
PARAMS = {"mono_image_resize": {"width": 64, "height": 48}}  # the robots' own in everything else
SERVER_PORT = 8000
BOOT_S = 5.0  # that the head's machine is away
SERVER = """
model: {component_config_paths: {openpi_model: server.yaml}}
policy:
  type: openpi_policy
  action_dim: %d
  prompt: put the bottle on the coaster
  image_keys: {head: observation/image}
  state_key: observation/state
"""
RUN = f"""
learner.batch_size=16 learner.num_samples=2 learner.utd_ratio=0.2 judge=human judge.window.open=false
policy.inference.max_episode_steps={STEPS} policy.inference.execution_horizon=10 operator.sources=[topic]
run.max_unlabeled_episodes=8 run.publish_freq=5 run.checkpoint_freq=200
"""


class Bench:
    """One robot: its twin, while this is entered, its folder, and the words of its run."""

    def __init__(self, name: str, folder: Path, *, served: bool):
        """served: a policy behind openpi's server acts, and the learner learns from its episodes"""
        self.name, self.folder, self.served = name, folder, served
        folder.mkdir()
        self.log = folder / "sent.jsonl"
        self._sockets = [f"unixsock-stream/{folder}/{end}" for end in ("twin", "operator")]
        self._class = ROBOT_REGISTRY.get(name)
        self.config: Any = self._class(
            inference_runtime_params_config=PARAMS, transport=ZenohConfig(connect=(self._sockets[0],))
        )
        self.params = self.config.params()
        (folder / "params.json").write_text(json.dumps(PARAMS))
        self._write_stats()
        if served:
            (folder / "policy.yaml").write_text(SERVER % self.params.action_dim)
            (folder / "server.yaml").write_text(f"{{host: localhost, port: {SERVER_PORT}, connect_s: 60}}")

    def words(self, episodes: int) -> list[str]:
        """The arguments of `plaudit online`: the robot's shipped config, and what makes a day short."""
        config = "online_igris_b_human" if self.name == "igris_b" else "online_igris_c"
        words = ["--config", str(ROOT / f"examples/configs/{config}.yaml"), *RUN.split(), "--no-auto"]
        words += [f"robot.inference_runtime_params_config={self.folder}/params.json"]
        words += [f"robot.transport.connect=[{','.join(self._sockets)}]", f"policy.normalizer={self.folder}/stats.json"]
        words += [f"run.max_episodes={episodes}", "run.name=run", "--folder", str(self.folder / "runs")]
        served = [f"policy.path={self.folder}/policy.yaml", "policy.behavior=pretrained"]
        return words + (served if self.served else ["--allow-untrained"])

    @property
    def run(self) -> Path:
        return self.folder / "runs/run"

    def restart_twin(self) -> None:
        """Power off and on again; each life of the twin has a log of its own."""
        self.twin.send_signal(signal.SIGKILL)
        self.twin.process.end()
        self.log.rename(self.folder / f"sent.{len(self.logs())}.jsonl")
        self.twin.start()
        _prefer(self.twin.process.pid)

    def logs(self) -> list[Path]:
        return [*sorted(self.folder.glob("sent.*.jsonl")), self.log]

    def say(self, command: str) -> None:
        """What the operator says."""
        self.to_robot.publish(self.config.topics().operator, STRING, encode_string(command))

    def __enter__(self) -> Self:
        self.twin = TwinProcess(self.config, self.log)
        _prefer(self.twin.process.pid)
        self.to_robot = ZenohConfig(connect=(), listen=(self._sockets[1],)).build()
        return self

    def __exit__(self, *_: object) -> None:
        self.twin.stop()
        self.to_robot.close()

    def _write_stats(self) -> None:
        start, size = np.array(self.params.start_pose, np.float32), self.params.proprio_state_dim
        state = np.zeros(size, np.float32)
        state[: len(start)] = start
        stats = {STATE: Stats(state, np.ones(size, np.float32)), ACTION: Stats(start, np.full_like(start, SWING))}
        Normalizer(stats).save(self.folder / "stats.json")


class Operator:
    """At the robot: starts an episode when it stands still, and ends and marks some of them."""

    COMMANDS = ("", "", "", "success", "failure", "end", "discard", "pause")

    def __init__(self, bench: Bench, rng: random.Random):
        self._bench, self._rng = bench, rng
        self.said: list[tuple[int, str]] = []  # ns, command; of those that end an episode
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._attend, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._done.set()
        self._thread.join()

    def _attend(self) -> None:
        command, due = "", 0.0
        moves = False
        while not self._done.wait(0.1):
            moved, moves = moves, not self._bench.twin.last_entry().get("holding", True)
            if not moves:
                self._bench.say("start")
            elif not moved:
                command, due = self._rng.choice(self.COMMANDS), time.monotonic() + self._rng.uniform(1.0, 2.0)
            elif command and time.monotonic() > due:
                self._bench.say(command)
                self.said.append((time.time_ns(), command))
                command = ""


class Person:
    """At the labeling machine, or at that of the store: labels whatever has no label yet."""

    def __init__(self, store: Callable[[], Path | None], rng: random.Random):
        """store: where the person finds the episodes; None before there are any"""
        self._store, self._rng = store, rng
        self.given = 0  # labels
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._done.wait(0.3):
            folder = self._store()
            if folder is None or not is_store(folder):
                continue
            store = Store.open(folder)
            left = [i for i in store.ids if store.ledger.newest(i, {"human", "operator"}) is None]
            if left:
                with Session.open(folder) as session:
                    replay_actions(session, " ".join(self._label(i) for i in left))
                self.given += len(left)

    def _label(self, episode: int) -> str:
        return f"={episode} {self._rng.choice(['F', 'End S'])} Return"


class Machines:
    """Three hosts; those of the robot and the person have homes of their own and do not see the runs."""

    def __init__(self, hosts: Sequence[Host], root: Path):
        self.head, self.robot, self.person = hosts
        self._homes = {host.name: root / role for host, role in zip(hosts, ROLES, strict=True)}
        for home in self._homes.values():
            home.mkdir()
        self.hidden: list[Path] = []  # folders that only the head has

    @property
    def address(self) -> str:
        return f"{self.head.address}:6379"

    def start(self) -> None:
        self.head.start("training")
        self._start_others()

    def restart(self) -> None:
        """After the head was lost, and has booted: the others belong to a cluster that is gone, and start again too.

        They do first: Ray takes their processes, which are on this machine, for those of a head that still runs.
        """
        time.sleep(BOOT_S)
        self.stop()
        self.start()

    def stop(self) -> None:
        self._stop(self.head, self.robot, self.person)

    def _stop(self, *hosts: Host) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: host.stop(), hosts))

    def _start_others(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._join, (self.robot, self.person), ROLES[1:]))

    def _join(self, host: Host, role: str) -> None:
        words = f"cluster start --role {role} --address {host.address} --head {self.address}"
        hide = "".join(f"mount -t tmpfs none {folder} && " for folder in self.hidden)
        done = host.run("sh", "-c", f"{hide}HOME={self._homes[host.name]} exec {sys.executable} -m plaudit {words}")
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def mirror(self, run: Path) -> Path | None:
        """The copy of a run's episodes that the person has."""
        if not is_store(run / "episodes"):
            return None
        return self._homes[self.person.name] / ".plaudit/mirrors" / Store.open(run / "episodes").settings.id[:12]

    def processes(self, host: Host, what: str = "") -> list[int]:
        """Those on a host whose title has this in it."""
        pids = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in pids if what in _title(int(pid))]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _prefer(pid: int) -> None:
    """A robot is a machine of its own: its twin does not wait for what else runs on this one."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), -10)


def kill(pids: Sequence[int]) -> None:
    """At once, and whatever has ended meanwhile is fine."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class PolicyServer:
    """An openpi server in a process of its own, that can be restarted."""

    def __init__(self, where: Callable[[Sequence[str]], list[str]], start_pose: Sequence[float]):
        """where: makes the command that runs on the robot's machine"""
        script = Path(__file__).with_name("day_server.py")
        self._command = where([sys.executable, str(script), str(SERVER_PORT), json.dumps(list(start_pose))])
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

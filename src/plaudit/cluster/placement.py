"""Which node and which GPU each worker gets, decided and checked before the first actor is created.

Workers are pinned by a small share of a resource: of the role's (`training_pc`), or of the one that Ray defines for
each address (`node:10.0.0.1`). A node that is lost and started again offers the same ones, so an actor that restarts
finds its place; pinned to a node's id it never would.

GPUs are assigned here, because Ray would put every worker that asks for a fraction on the first GPU. Each learner gets
the next GPU of its machine, then the env, then the labeler, and around again. Workers that need no GPU see none.

Rejected: Ray's placement groups. They put shares of GPUs on the first GPU too, and cannot name one. A role that no node
has leaves them pending, without a reason. They would replace the resource in `options`, and nothing else.

A node has its software versions as labels. A cluster of different versions is refused before the first actor is
created, not when an array arrives that one side cannot read.
"""

import os
import platform
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from plaudit import __version__
from plaudit.errors import ClusterError, MissingExtra
from plaudit.training.config import ROLES, WORKERS, ClusterConfig, Role, WorkerName

# Of a node of each role, like `training_pc`: one for each worker (the learner, replay and state).
RESOURCES: dict[Role, int] = {"training": 3, "inference": 1, "labeling": 1}
SHARE = 0.01  # of a resource: pins a worker and leaves room for any number of others
ON_GPU: tuple[WorkerName, ...] = ("learner", "env", "labeler")

Rank = tuple[WorkerName, int]  # a worker; learners are counted
Place = tuple[str, str | None]  # the resource that pins a worker, and its GPU


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, as Ray describes it."""

    id: str
    address: str
    hostname: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # of python, ray, torch, plaudit; {} where unknown
    gpu_ids: tuple[str, ...] = ()  # their names in CUDA_VISIBLE_DEVICES on that machine
    head: bool = False
    alive: bool = True

    @property
    def roles(self) -> list[Role]:
        """Those that `plaudit cluster start --role` gave it."""
        return [role for role in ROLES if f"{role}_pc" in self.resources]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.hostname} ({self.address})" if self.hostname else self.address


class Placement:
    """Where the workers go. `Actor.options(**placement.options("learner", rank=1)).remote(...)`.

    nodes: those that are alive
    requires_gpu: workers that cannot run without one, like a labeler with a vision-language model
    versions: of this machine; None: those of the nodes are not compared with them
    """

    def __init__(
        self,
        config: ClusterConfig,
        nodes: Sequence[Node],
        requires_gpu: Collection[WorkerName] = (),
        versions: Mapping[str, str] | None = None,
    ):
        self.config = config
        self.nodes = sorted((n for n in nodes if n.alive), key=lambda n: (not n.head, n.address, n.id))
        texts = {} if versions is None else {node.name: difference(versions, node.versions) for node in self.nodes}
        if any(texts.values()):
            names = "; ".join(f"{name} has {text}" for name, text in texts.items() if text)
            raise ClusterError(f"{names}; install the same versions on all machines and start that node again")
        ranks: list[Rank] = [
            (worker, rank) for worker in WORKERS for rank in range(config.num_learners if worker == "learner" else 1)
        ]
        place = self._by_role if config.component_placement is None else self._by_number
        self._places = place(ranks)
        for worker in requires_gpu:
            resource, gpu = self._places[worker, 0]
            if gpu is None:
                where = ", ".join(node.name for node in self.nodes if resource in node.resources)
                raise ClusterError(
                    f"the {worker} needs a GPU and there is none on {where}; start that node on a machine with one, "
                    "or use judge.device=cpu or a judge behind an endpoint"
                )

    def options(self, worker: WorkerName, rank: int = 0) -> dict[str, Any]:
        """Keyword arguments for `Actor.options`."""
        resource, gpu = self._places[worker, rank]
        return {
            "num_cpus": 0,  # actors live as long as the run, and may use all of their machine
            "num_gpus": 0,
            "resources": {resource: SHARE},
            "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": gpu or ""}},
        }

    def _by_role(self, ranks: Sequence[Rank]) -> dict[Rank, Place]:
        assigned: Counter[tuple[str, ...]] = Counter()  # nodes -> GPUs given out; roles of one machine share its GPUs
        places: dict[Rank, Place] = {}
        for worker, rank in ranks:
            resource = self.config.resource(worker)
            nodes = self._offering(worker, resource)
            # With several machines of one role the worker may land on any: only GPUs that all of them have are safe.
            gpus, key = min((node.gpu_ids for node in nodes), key=len), tuple(node.id for node in nodes)
            gpu = None
            if gpus and worker in ON_GPU:
                gpu = gpus[assigned[key] % len(gpus)]
                assigned[key] += 1
            places[worker, rank] = resource, gpu
        return places

    def _by_number(self, ranks: Sequence[Rank]) -> dict[Rank, Place]:
        slots = [(node, gpu) for node in self.nodes for gpu in node.gpu_ids] or [(node, None) for node in self.nodes]
        chosen = {worker: self._slots_of(worker, slots) for worker in self.config.numbers()}
        places: dict[Rank, Place] = {}
        for worker, rank in ranks:
            numbers = chosen[worker if worker in chosen else "learner"]  # replay and state go with the learner
            node, gpu = slots[numbers[rank % len(numbers)]]
            places[worker, rank] = f"node:{node.address}", gpu if worker in ON_GPU else None
        return places

    def _slots_of(self, worker: WorkerName, slots: Sequence[tuple[Node, str | None]]) -> list[int]:
        """The numbers of a worker, those that it shares with the fewest others first.

        So `reward: 0-1` where all others are on 0 is 1.
        """
        all_numbers = self.config.numbers()
        numbers = list(range(len(slots))) if all_numbers[worker] == "all" else [int(n) for n in all_numbers[worker]]
        beyond = [n for n in numbers if n >= len(slots)]
        if beyond:
            raise ClusterError(
                f"component_placement puts the {worker} on {'node' if slots[0][1] is None else 'GPU'} {beyond[0]}, and "
                f"the cluster has {len(slots)} of them, counted from 0: "
                f"{', '.join(f'{i} on {node.name}' for i, (node, _) in enumerate(slots))}"
            )
        others = [set(ns) for other, ns in all_numbers.items() if other != worker and ns != "all"]
        return sorted(numbers, key=lambda n: (sum(n in ns for ns in others), n))

    def _offering(self, worker: WorkerName, resource: str) -> list[Node]:
        nodes = [node for node in self.nodes if resource in node.resources]
        if nodes:
            return nodes
        by_role = self.config.resources.model_dump()
        role = next(role for role in ROLES if by_role[role] == resource)
        offered = sorted({r for node in self.nodes for r in node.resources if r in by_role.values()})
        raise ClusterError(
            f"no node offers '{resource}', which the {worker} asks for; start one with: plaudit cluster start "
            f"--role {role} --head ADDRESS; the cluster has: {', '.join(offered) or 'none of the roles'}"
        )


PACKAGES = ("python", "ray", "torch", "plaudit")


def need_ray() -> None:
    """Raise `MissingExtra` where Ray is not installed."""
    if find_spec("ray") is None:  # not imported: it reads its environment variables when it is
        raise MissingExtra("ray", "cluster")


def own_versions() -> dict[str, str]:
    """Of this machine, without importing the packages."""
    installed = {name: metadata.version(name) for name in ("ray", "torch")}
    return {"python": platform.python_version(), "plaudit": __version__, **installed}


def own_labels() -> dict[str, str]:
    """The labels of a node of this machine; their characters are letters, digits, dots, dashes and underscores."""
    labels = {f"plaudit.{name}": version.replace("+", "_") for name, version in own_versions().items()}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(number.isdecimal() for number in visible):
        labels["plaudit.gpus"] = "_".join(visible)
    return labels


def versions_of(labels: Mapping[str, str]) -> dict[str, str]:
    """From the labels of a node."""
    named = {name: labels.get(f"plaudit.{name}") for name in PACKAGES}
    return {name: version.replace("_", "+") for name, version in named.items() if version is not None}


def gpus_of(labels: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The ids of a node's GPUs in CUDA_VISIBLE_DEVICES: from 0 on, unless it was started with some of them."""
    visible = labels.get("plaudit.gpus", "").split("_")
    return tuple(visible) if len(visible) == count and all(visible) else tuple(map(str, range(count)))


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Which versions differ, for a message; None when two machines can work together.

    Builds of one torch release (2.13.0+cpu, 2.13.0+cu130) are equal. An unknown version is accepted: a node that was
    started by hand has no labels, and `plaudit cluster check` reads its versions.
    """
    pairs = {name: (theirs[name], ours[name]) for name in PACKAGES if name in theirs}
    differing = {name: pair for name, pair in pairs.items() if len({one.partition("+")[0] for one in pair}) > 1}
    return ", ".join(f"{name} {one} instead of {other}" for name, (one, other) in differing.items()) or None

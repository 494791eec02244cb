"""Which node and which GPU each part gets, decided and checked before the first actor is made.

Parts are pinned by a small share of a resource: of the role's (`training_pc`), or of the address that Ray makes a
resource of by itself (`node:10.0.0.1`). A node that is lost and started again offers the same ones, so an actor that
restarts finds its place; pinned to a node's id it never would. Ids are used only where several nodes share an address.

GPUs are dealt here and not by Ray, which would fill the first GPU with every part that asks for a fraction: each
trainer worker gets the next GPU of its machine, then the env, then the labeler, around again when there are more parts
than GPUs. Parts that need none see none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plaudit.cluster.versions import difference
from plaudit.errors import ClusterError
from plaudit.training.cluster_config import PARTS, ROLES, ClusterConfig, Part

SHARE = 0.01  # of a resource: pins a part and leaves room for any number of others
ON_GPU: tuple[Part, ...] = ("trainer", "env", "labeler")


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, as it tells of itself."""

    id: str
    address: str
    hostname: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # of python, ray, torch, plaudit; {} if it tells none
    gpu_ids: tuple[str, ...] = ()  # what CUDA_VISIBLE_DEVICES calls them on that machine
    head: bool = False
    alive: bool = True

    @property
    def name(self) -> str:
        return f"{self.hostname} ({self.address})" if self.hostname else self.address


@dataclass(frozen=True)
class Place:
    """Where one worker of a part goes."""

    pin: Mapping[str, float]  # resources
    node_id: str | None = None  # where resources are not enough to tell nodes apart
    gpu: str | None = None


class Placement:
    """Where the parts go. `Actor.options(**placement.options("trainer", rank=1)).remote(...)`.

    nodes: those that are alive
    needs_gpu: parts that cannot do without, like a labeler that holds a vision-language model
    ours: the versions of this machine, where they are to be compared
    """

    def __init__(
        self,
        config: ClusterConfig,
        nodes: Sequence[Node],
        needs_gpu: Collection[Part] = (),
        ours: Mapping[str, str] | None = None,
    ):
        self.config = config
        self.nodes = sorted((n for n in nodes if n.alive), key=lambda n: (not n.head, n.address, n.id))
        if ours is not None:
            _check_versions(self.nodes, ours)
        self._places = self._by_role() if config.component_placement is None else self._by_number()
        for part in needs_gpu:
            self._check_gpu(part)

    @property
    def num_learners(self) -> int:
        return self.config.num_learners

    def options(self, part: Part, rank: int = 0) -> dict[str, Any]:
        """Keyword arguments for `Actor.options`."""
        place = self._places[part, rank]
        options: dict[str, Any] = {
            "num_cpus": 0,  # actors live as long as the run: what they may use is the machine's, not a share of it
            "num_gpus": 0,
            "resources": dict(place.pin),
            "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": place.gpu or ""}},
        }
        if place.node_id is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(place.node_id, soft=False)
        return options

    def gpu(self, part: Part, rank: int = 0) -> str | None:
        """The GPU of a worker, as its machine calls it; None without one."""
        return self._places[part, rank].gpu

    def _by_role(self) -> dict[tuple[Part, int], Place]:
        dealt: dict[str, int] = {}  # resource -> GPUs that were given out on its nodes
        places = {}
        for part, rank in self._workers():
            resource = self.config.resource(part)
            gpus = _common_gpus(self._offering(part, resource))
            gpu = None
            if gpus and part in ON_GPU:
                key = self._machine_of(resource)
                gpu = gpus[dealt.get(key, 0) % len(gpus)]
                dealt[key] = dealt.get(key, 0) + 1
            places[part, rank] = Place({resource: SHARE}, gpu=gpu)
        return places

    def _by_number(self) -> dict[tuple[Part, int], Place]:
        slots = [(node, gpu) for node in self.nodes for gpu in node.gpu_ids] or [(node, None) for node in self.nodes]
        chosen = {part: self._slots_of(part, slots) for part in self.config.numbers()}
        places = {}
        for part, rank in self._workers():
            numbers = chosen[part if part in chosen else "trainer"]  # replay and state live beside the trainer
            node, gpu = slots[numbers[rank % len(numbers)]]
            places[part, rank] = self._on(node, gpu if part in ON_GPU else None)
        return places

    def _slots_of(self, part: Part, slots: Sequence[tuple[Node, str | None]]) -> list[int]:
        """The numbers of a part, those that it shares with the fewest others first.

        So `reward: 0-1` where all others are on 0 is 1.
        """
        asked = self.config.numbers()
        what = "GPU" if slots[0][1] is not None else "node"
        numbers = list(range(len(slots))) if asked[part] == "all" else [int(n) for n in asked[part]]
        beyond = [n for n in numbers if n >= len(slots)]
        if beyond:
            raise ClusterError(
                f"component_placement puts the {part} on {what} {beyond[0]}, and the cluster has {len(slots)} of them, "
                f"counted from 0: {', '.join(f'{i} on {node.name}' for i, (node, _) in enumerate(slots))}"
            )
        others = [set(ns) for other, ns in asked.items() if other != part and ns != "all"]
        return sorted(numbers, key=lambda n: (sum(n in ns for ns in others), n))

    def _on(self, node: Node, gpu: str | None) -> Place:
        alone = sum(other.address == node.address for other in self.nodes) == 1
        if alone and f"node:{node.address}" in node.resources:
            return Place({f"node:{node.address}": SHARE}, gpu=gpu)
        return Place({}, node_id=node.id, gpu=gpu)

    def _workers(self) -> list[tuple[Part, int]]:
        return [(part, rank) for part in PARTS for rank in range(self.num_learners if part == "trainer" else 1)]

    def _offering(self, part: Part, resource: str) -> list[Node]:
        found = [node for node in self.nodes if node.resources.get(resource, 0) >= SHARE]
        if not found:
            raise ClusterError(_nobody_offers(part, resource, self.config, self.nodes))
        return found

    def _machine_of(self, resource: str) -> str:
        """Two roles of one machine deal from the same GPUs."""
        return "+".join(node.id for node in self.nodes if node.resources.get(resource, 0) >= SHARE)

    def _check_gpu(self, part: Part) -> None:
        if self._places[part, 0].gpu is None:
            pin = next(iter(self._places[part, 0].pin), "")
            where = ", ".join(n.name for n in self.nodes if pin in n.resources or n.id == self._places[part, 0].node_id)
            raise ClusterError(
                f"the {part} needs a GPU and there is none on {where}; start that node on a machine with one, "
                "or use judge.device=cpu or a judge behind an endpoint"
            )


def _common_gpus(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Where several machines have one role, the part may land on any: only what all of them have can be promised."""
    return min((node.gpu_ids for node in nodes), key=len)


def _nobody_offers(part: Part, resource: str, config: ClusterConfig, nodes: Sequence[Node]) -> str:
    by_role = config.resources.model_dump()
    role = next((role for role in ROLES if by_role[role] == resource), ROLES[0])
    there = sorted({r for node in nodes for r in node.resources if r in by_role.values()})
    return (
        f"no node offers '{resource}', which the {part} asks for; start one with: plaudit cluster start --role {role} "
        f"--head ADDRESS; the cluster has: {', '.join(there) or 'none of the roles'}"
    )


def _check_versions(nodes: Sequence[Node], ours: Mapping[str, str]) -> None:
    apart = [f"{node.name} has {words}" for node in nodes if (words := difference(ours, node.versions))]
    if apart:
        raise ClusterError(f"{'; '.join(apart)}; install the same versions on all machines and start that node again")

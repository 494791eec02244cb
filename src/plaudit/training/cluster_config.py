"""Which worker of an online run lives on which machine: the `cluster` block of a training config.

Two ways to say it. By **role**: a machine is started as training, inference or labeling, which gives it a custom
resource, and each worker asks for the resource of its role. Machines may come and go; any machine with the role can
take the worker. By **number** (`component_placement`, as in RLinf's configs): components on GPUs counted over the
nodes, the head's first; where there is no GPU at all the numbers count nodes. One or the other: together they could
contradict.
"""

from typing import Literal

from pydantic import model_validator

from plaudit.config import Config, NonNegativeInt, SmallInt
from plaudit.errors import did_you_mean

WorkerName = Literal["learner", "replay", "state", "env", "labeler"]
Role = Literal["training", "inference", "labeling"]

WORKERS: tuple[WorkerName, ...] = ("learner", "replay", "state", "env", "labeler")
ROLES: tuple[Role, ...] = ("training", "inference", "labeling")
COMPONENTS: dict[str, WorkerName] = {"actor": "learner", "env": "env", "rollout": "env", "reward": "labeler"}

Numbers = tuple[int, ...] | Literal["all"]


class RoleResources(Config):
    """The custom resource that a machine of each role offers."""

    training: str = "training_pc"
    inference: str = "inference_pc"
    labeling: str = "labeling_pc"


class WorkerRoles(Config):
    """The role of the machine that each worker runs on."""

    learner: Role = "training"
    replay: Role = "training"
    state: Role = "training"
    env: Role = "inference"
    labeler: Role = "labeling"


class ClusterConfig(Config):
    """By role, or by number."""

    resources: RoleResources = RoleResources()
    workers: WorkerRoles = WorkerRoles()
    component_placement: dict[str, NonNegativeInt | str] | None = None  # "actor: 0-3", "env,rollout: 0", "reward: all"
    num_learners: SmallInt = 1  # data-parallel

    @model_validator(mode="after")
    def _one_way(self) -> "ClusterConfig":
        by_role = sorted(self.model_fields_set & {"resources", "workers"})
        if self.component_placement is None:
            return self
        if by_role:
            raise ValueError(
                f"component_placement and {' and '.join(by_role)} both say where workers run; keep one of them"
            )
        self.numbers()  # raises on every mistake in it
        return self

    def resource(self, worker: WorkerName) -> str:
        """The custom resource that `worker` asks for."""
        return self.resources.model_dump()[self.workers.model_dump()[worker]]

    def numbers(self) -> dict[WorkerName, Numbers]:
        """`component_placement`, parsed: the numbers of each worker that it names."""
        found: dict[WorkerName, Numbers] = {}
        for names, text in (self.component_placement or {}).items():
            for name in (word.strip() for word in names.split(",")):
                if name not in COMPONENTS:
                    raise ValueError(
                        f"unknown component '{name}' in component_placement; {did_you_mean(name, COMPONENTS)}"
                    )
                worker, numbers = COMPONENTS[name], _parse_numbers(name, str(text))
                if found.setdefault(worker, numbers) != numbers:
                    raise ValueError(
                        f"env and rollout are one worker here: one placement, not {found[worker]} and {numbers}"
                    )
        missing = sorted({c for c, worker in COMPONENTS.items() if worker not in found} - {"rollout"})
        if self.component_placement is not None and missing:
            raise ValueError(f"component_placement does not say where these are: {', '.join(missing)}")
        return found


def _parse_numbers(component: str, text: str) -> Numbers:
    """'0-1,3' -> (0, 1, 3)."""
    if text.strip() == "all":
        return "all"
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = (word.strip() for word in piece.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(
                f"component_placement.{component} is '{text}'; write a number, a range like 0-3, a list like 0,2 or all"
            )
        found += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(found))

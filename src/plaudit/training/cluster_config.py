"""Which worker of an online run lives on which machine: the `cluster` block of a training config.

Two ways to say it. By **role**: a machine is started as training, inference or labeling, which gives it a custom
resource, and each part asks for the resource of its role. Machines may come and go; whoever has the role takes the
part. By **number** (`component_placement`, as RLinf's configs write it): components on GPUs counted over the nodes, the
head's first; where there is no GPU at all the numbers count nodes. One or the other: together they could contradict.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from plaudit.config import Config
from plaudit.errors import did_you_mean

Part = Literal["trainer", "replay", "state", "env", "labeler"]
Role = Literal["training", "inference", "labeling"]

PARTS: tuple[Part, ...] = ("trainer", "replay", "state", "env", "labeler")
ROLES: tuple[Role, ...] = ("training", "inference", "labeling")
COMPONENTS: dict[str, Part] = {"actor": "trainer", "env": "env", "rollout": "env", "reward": "labeler"}

Numbers = tuple[int, ...] | Literal["all"]


class RoleResources(Config):
    """The custom resource that a machine of each role offers."""

    training: str = "training_pc"
    inference: str = "inference_pc"
    labeling: str = "labeling_pc"


class WorkerRoles(Config):
    """The role of the machine that each part lives on."""

    trainer: Role = "training"
    replay: Role = "training"
    state: Role = "training"
    env: Role = "inference"
    labeler: Role = "labeling"


class ClusterConfig(Config):
    """By role, or by number."""

    resources: RoleResources = RoleResources()
    workers: WorkerRoles = WorkerRoles()
    component_placement: dict[str, int | str] | None = None  # "actor: 0-3", "env,rollout: 0", "reward: all"
    num_learners: Annotated[int, Field(ge=1)] = 1  # data-parallel

    @model_validator(mode="after")
    def _one_way(self) -> "ClusterConfig":
        by_role = sorted(self.model_fields_set & {"resources", "workers"})
        if self.component_placement is None:
            return self
        if by_role:
            raise ValueError(
                f"component_placement and {' and '.join(by_role)} both say where parts live; keep one of them"
            )
        self.numbers()  # every mistake in it is told here
        return self

    def resource(self, part: Part) -> str:
        """The custom resource that `part` asks for."""
        return _field(self.resources, _field(self.workers, part))

    def numbers(self) -> dict[Part, Numbers]:
        """`component_placement`, read: the numbers of each part that it names."""
        found: dict[Part, Numbers] = {}
        for names, text in (self.component_placement or {}).items():
            for name in (word.strip() for word in names.split(",")):
                part = _part_of(name)
                numbers = _numbers_of(name, str(text))
                if found.setdefault(part, numbers) != numbers:
                    raise ValueError(
                        f"env and rollout are one part here: one placement, not {found[part]} and {numbers}"
                    )
        missing = sorted({c for c, part in COMPONENTS.items() if part not in found} - {"rollout"})
        if self.component_placement is not None and missing:
            raise ValueError(f"component_placement does not say where these are: {', '.join(missing)}")
        return found


def _field(config: Config, name: str) -> Any:
    return config.model_dump()[name]


def _part_of(component: str) -> Part:
    if component not in COMPONENTS:
        raise ValueError(
            f"unknown component '{component}' in component_placement; {did_you_mean(component, COMPONENTS)}"
        )
    return COMPONENTS[component]


def _numbers_of(component: str, text: str) -> Numbers:
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

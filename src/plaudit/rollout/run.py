"""What `plaudit run` runs: names and `a.b=c` overrides in, an executor that is ready to drive out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from plaudit.config import Config, load
from plaudit.registry import ROBOT_REGISTRY, TAKEOVER_REGISTRY
from plaudit.robots.ros import RosRobotConfig
from plaudit.rollout.executor import ExecutorConfig, PolicyConfig
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.sequential import Sequential

Algorithm = Literal["rtc", "sequential"]
EXECUTORS = {"rtc": Rtc, "sequential": Sequential}


def check_algorithm(algorithm: Algorithm, executor: ExecutorConfig) -> None:
    if algorithm == "rtc" and not executor.realtime:
        raise ValueError("rtc controls in real time; write executor.realtime=true, or take algorithm 'sequential'")


class RunConfig(Config):
    """Everything but the policy, which has a file of its own."""

    robot: Annotated[Any, ROBOT_REGISTRY.field]
    takeover: Annotated[Any, TAKEOVER_REGISTRY.optional_field] = None
    executor: ExecutorConfig = ExecutorConfig()
    algorithm: Algorithm = "rtc"

    @model_validator(mode="after")
    def _it_can_be_driven(self) -> Self:
        check_algorithm(self.algorithm, self.executor)
        return self

    def start(self, policy: PolicyConfig) -> Rtc | Sequential:
        return EXECUTORS[self.algorithm](self.robot, policy, self.executor, self.takeover)


def load_run(
    overrides: Sequence[str],
    *,
    robot: str,
    algorithm: Algorithm,
    takeover: str,
    robot_files: Mapping[str, Path | None],
    **executor: Any,
) -> RunConfig:
    """
    overrides: robot.x=y, takeover.x=y, executor.x=y; they win
    takeover: a name, or "none"
    robot_files: key of the robot -> file
    executor: its settings
    """
    known = ROBOT_REGISTRY.get(robot).model_fields
    of_robot: dict[str, Any] = {key: str(path.absolute()) for key, path in robot_files.items() if path is not None}
    if "realtime" in known:  # robots that can keep a rate by themselves are not to: the executor does
        of_robot["realtime"] = False

    def translate(tree: dict[str, Any]) -> dict[str, Any]:
        body = {"type": robot, **of_robot, **tree.get("robot", {})}
        person = {"type": takeover, **({"robot": body} if takeover == "topic" else {}), **tree.pop("takeover", {})}
        return {
            **tree,
            **({} if takeover == "none" else {"takeover": person}),
            "algorithm": algorithm,
            "robot": body,
            "executor": {"name": robot, **executor, **tree.get("executor", {})},
        }

    return with_params(load(RunConfig, None, overrides, translate))


def with_params(config: RunConfig) -> RunConfig:
    """What a robot's own file says of policies fills in what nobody else did."""
    if not isinstance(config.robot, RosRobotConfig):
        return config
    params, how = config.robot.params(), config.executor
    filled = {
        "execute": how.execute or params.policy_update_period,
        "normalizer": how.normalizer or params.norm_stats_file_path,
    }
    return config.model_copy(update={"executor": how.model_copy(update=filled)})

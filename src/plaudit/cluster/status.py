"""What lives on a cluster right now."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Actor:
    """A process that serves calls."""

    kind: str  # its class
    name: str  # "" without one
    node_id: str
    pid: int
    state: str  # "ALIVE", "RESTARTING", ...
    restarts: int


def actors() -> list[Actor]:
    """All that are not dead, of any driver. Ray's public listing needs its dashboard, which we do not run."""
    state: Any = import_module("ray._private.state")
    found = [
        Actor(
            kind=facts["ActorClassName"],
            name=facts["Name"],
            node_id=facts["Address"]["NodeID"],
            pid=facts["Pid"],
            state=facts["State"],
            restarts=facts["NumRestarts"],
        )
        for facts in state.actors().values()
        if facts["State"] != "DEAD"
    ]
    return sorted(found, key=lambda actor: (actor.node_id, actor.kind, actor.pid))

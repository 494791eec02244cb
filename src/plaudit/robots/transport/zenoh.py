"""Messages over zenoh, by default between processes of one machine.

A topic's key is its ROS name without the leading slash, and the payload is the CDR message with its four bytes of
header: what zenoh-bridge-ros2dds does, so behind a bridge that listens where we connect to stands a whole ROS 2
system.

Sessions are peers with the endpoints that are written in the config: nothing listens anywhere else, nobody is searched
for by multicast and nobody is introduced by gossip unless `scouting` says so. A connection that is lost, or not there
yet, is tried again for ever. Messages to a reader that does not keep up are dropped (`CongestionControl.DROP`): a
frozen peer must not stop whoever controls the robot.

Whoever reaches an endpoint may send commands: zenoh asks nobody for a name. Between processes of a machine that others
use too, `unixsock-stream//PATH` in a folder of one's own keeps them out.
"""

import json
from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import field_validator

from plaudit.config import Config
from plaudit.errors import MissingExtra, RobotError

DEFAULT = "tcp/127.0.0.1:7447"


class ZenohConfig(Config):
    type: Literal["zenoh"] = "zenoh"
    connect: tuple[str, ...] = (DEFAULT,)  # where the robot, its twin or the bridge listens
    listen: tuple[str, ...] = ()  # where we do
    scouting: bool = False  # search for peers by multicast, and let those that are known introduce others

    @field_validator("connect", "listen")
    @classmethod
    def _endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in endpoints:
            if "/" not in endpoint:
                raise ValueError(f"'{endpoint}' is no endpoint; write it like {DEFAULT}")
        return endpoints

    def build(self) -> "ZenohTransport":
        return ZenohTransport(self)

    def other_side(self) -> Self:
        """What the robot's end of it uses: it listens where we connect to."""
        return self.model_copy(update={"connect": self.listen, "listen": self.connect})


class ZenohTransport:
    """One session."""

    def __init__(self, config: ZenohConfig):
        try:
            import zenoh
        except ModuleNotFoundError as error:
            raise MissingExtra("eclipse-zenoh", "ros") from error
        self._zenoh = zenoh
        settings = zenoh.Config()
        for key, value in _settings(config).items():
            settings.insert_json5(key, json.dumps(value))
        try:
            self._session = zenoh.open(settings)
        except zenoh.ZError as error:
            where = ", ".join((*config.listen, *config.connect)) or "nowhere"
            raise RobotError(f"zenoh cannot open a session at {where}: {_reason(error)}") from error
        self._publishers: dict[str, Any] = {}
        self._subscribers: list[Any] = []

    def publish(self, topic: str, kind: str, data: bytes) -> None:
        try:
            if topic not in self._publishers:
                self._publishers[topic] = self._session.declare_publisher(
                    key_of(topic), congestion_control=self._zenoh.CongestionControl.DROP, express=True
                )
            self._publishers[topic].put(data)
        except self._zenoh.ZError as error:
            raise RobotError(f"zenoh cannot send to {topic}: {_reason(error)}") from error

    def subscribe(self, topic: str, kind: str, receive: Callable[[bytes], None]) -> None:
        def take(sample: Any) -> None:
            receive(sample.payload.to_bytes())

        self._subscribers.append(self._session.declare_subscriber(key_of(topic), take))

    def close(self) -> None:
        self._session.close()


def key_of(topic: str) -> str:
    """
    >>> key_of("/igris_b/joint_states")
    'igris_b/joint_states'
    """
    return topic.removeprefix("/")


def _settings(config: ZenohConfig) -> dict[str, Any]:
    return {
        "mode": "peer",
        "connect/endpoints": list(config.connect),
        "connect/exit_on_failure": False,  # those that are not there yet are tried in the background
        "connect/retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2},
        "listen/endpoints": list(config.listen),
        "scouting/delay": 500 if config.scouting else 0,
        "scouting/multicast/enabled": config.scouting,
        "scouting/gossip/enabled": config.scouting,
        # Its segments outlive the process in /dev/shm, and messages of a robot are small.
        "transport/shared_memory/enabled": False,
        "adminspace/enabled": False,
    }


def _reason(error: Exception) -> str:
    """The part of zenoh's sentence that means something to a user: without the places in its source."""
    return str(error).split(" at /")[0].split("[")[-1].rstrip(".]")

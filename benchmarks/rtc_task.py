"""A task where pauses hurt: a mass on a spring follows a target that does not wait, around a post that must not be hit.

Commands are points that a spring pulls the robot to, as the joint targets of an arm are. Without a new one it comes to
rest at the last, and the target moves on. The post stands in between and may be passed on either side: the expert takes
both, so that two chunks in a row may disagree, and the average of the two sides is the post.

The environment runs by the clock, not by the calls: a robot that is looked at late has moved meanwhile.
"""

import mmap
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.policies.config import FlowConfig, PolicyConfig
from plaudit.policies.loader import PolicySpec
from plaudit.protocols import Normalizer, Policy
from plaudit.robots.config import RobotConfig
from plaudit.types import AnyArray, FloatArray, Observation, PolicyWeights

RATE = 50.0  # commands a second
DT = 0.005  # s, of a step of the simulation
EACH = round(1 / RATE / DT)  # of these, a command
HORIZON = 40  # commands of a chunk
STIFF, DAMPED = 225.0, 30.0  # of the spring: critically damped, 1/15 s
POST, POST_RADIUS, CLEARANCE = np.array([-0.15, 0.0]), 0.10, 0.24  # m
TOP_SPEED = 1.3  # m/s, of the expert
NEAR = 0.05  # m: on the target
STEPS = 120  # of an episode
JUDGED = 50  # of them, the last ones, are judged; nine in ten have to be near


@dataclass(frozen=True, eq=False)
class TrackingTask:
    """N environments: a mass on a spring that follows a moving target around a post."""

    place: AnyArray  # [N, 2] m
    speed: AnyArray  # [N, 2] m/s
    centre: AnyArray  # [N, 2] of the target's circle
    radius: AnyArray  # [N]
    turning: AnyArray  # [N] rad/s
    phase: AnyArray  # [N] rad

    @classmethod
    def starts(cls, count: int, rng: np.random.Generator) -> "TrackingTask":
        return cls(
            place=np.stack([rng.uniform(-0.75, -0.6, count), rng.uniform(-0.08, 0.08, count)], axis=1),
            speed=np.zeros((count, 2)),
            centre=np.stack([rng.uniform(0.35, 0.45, count), rng.uniform(-0.1, 0.1, count)], axis=1),
            radius=rng.uniform(0.15, 0.25, count),
            turning=rng.choice([-1, 1], count) * rng.uniform(1.5, 2.5, count),
            phase=rng.uniform(0, 2 * np.pi, count),
        )

    @classmethod
    def anywhere(cls, count: int, rng: np.random.Generator) -> "TrackingTask":
        """Moments of episodes, and such as noise may lead to: to learn from."""
        start = cls.starts(count, rng)
        kind = rng.integers(3, size=count)[:, None]
        anywhere = np.stack([rng.uniform(-0.8, 0.7, count), rng.uniform(-0.5, 0.5, count)], axis=1)
        close = start.target + rng.normal(0, 0.04, (count, 2))
        place = np.where(kind == 0, start.place, np.where(kind == 1, anywhere, close))
        speed = np.where(kind == 0, 0.0, np.where(kind == 1, rng.normal(0, 0.6, (count, 2)), start.drift))
        return replace(start, place=place, speed=speed + rng.normal(0, 0.1, (count, 2)))

    @property
    def target(self) -> AnyArray:
        return self.centre + self.radius[:, None] * np.stack([np.cos(self.phase), np.sin(self.phase)], axis=1)

    @property
    def drift(self) -> AnyArray:
        """[N, 2] m/s, of the target."""
        along = np.stack([-np.sin(self.phase), np.cos(self.phase)], axis=1)
        return (self.radius * self.turning)[:, None] * along

    @property
    def state(self) -> FloatArray:
        """[N, 9] what a policy sees."""
        parts = [self.place, self.speed, self.target, self.drift, self.turning[:, None]]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def moved(self, command: AnyArray) -> "TrackingTask":
        pull = STIFF * (command - self.place) - DAMPED * self.speed
        speed = self.speed + DT * pull
        return replace(self, place=self.place + DT * speed, speed=speed, phase=self.phase + DT * self.turning)

    @property
    def hit(self) -> AnyArray:
        return np.linalg.norm(self.place - POST, axis=1) < POST_RADIUS

    @property
    def near(self) -> AnyArray:
        return np.linalg.norm(self.place - self.target, axis=1) < NEAR


def expert(task: TrackingTask, side: AnyArray) -> AnyArray:
    """[N, 2] commands; side [N]: +1 or -1, where the post is passed while that is still open."""
    ahead = task.target - task.place
    way = np.linalg.norm(ahead, axis=1, keepdims=True)
    ahead = ahead / np.maximum(way, 1e-6)
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
    to_post = POST - task.place
    before = (to_post * ahead).sum(axis=1)  # m to go until beside the post
    offset = -(to_post * across).sum(axis=1)  # m, of the straight way beside it
    side = np.where(np.abs(offset) > 0.06, np.sign(offset), side)
    blocked = (before > -0.02) & (before < way[:, 0]) & (np.abs(offset) < CLEARANCE - 0.02)
    around = POST + CLEARANCE * side[:, None] * across - task.place
    around *= TOP_SPEED / np.maximum(np.linalg.norm(around, axis=1, keepdims=True), 1e-6)
    chase = 6.0 * (task.target - task.place) + task.drift
    chase *= np.minimum(1, TOP_SPEED / np.maximum(np.linalg.norm(chase, axis=1, keepdims=True), 1e-6))
    wanted = np.where(blocked[:, None], around, chase)
    return task.place + (DAMPED / STIFF) * wanted


def chunks_of(task: TrackingTask, rng: np.random.Generator) -> FloatArray:
    """[N, H, 2] what the expert does from here on."""
    side, commands = rng.choice([-1, 1], len(task.place)), []
    for _ in range(HORIZON):
        commands.append(expert(task, side))
        for _ in range(EACH):
            task = task.moved(commands[-1])
    return np.stack(commands, axis=1).astype(np.float32)


class ChaseConfig(RobotConfig):
    """The robot."""

    def build(self) -> "Chase":
        return Chase()


class Chase:
    state_dim, action_dim, fps = 9, 2, RATE

    def __init__(self) -> None:
        self.cameras: Mapping[str, tuple[int, int]] = {}
        self._command: AnyArray | None = None
        self.last_command: FloatArray | None = None

    def reset(self, seed: int | None = None) -> Observation:
        self._task, self._command = TrackingTask.starts(1, np.random.default_rng(seed)), None
        self._track, self._near, self._hit = [self._task.place[0]] * 4, [], False
        return self._observation()

    def act(self, action: FloatArray) -> None:
        """Time begins with the first command."""
        self.last_command = action
        if self._command is None:
            self._begun, self._made = time.monotonic(), 0
        self._run()
        self._command = np.asarray(action, float)[None]

    def observe(self) -> Observation:
        self._run()
        return self._observation()

    def privileged(self) -> Mapping[str, AnyArray]:
        """As things stand: whether it is a success so far, and the mean squared jerk, m^2/s^6."""
        jerk: AnyArray = np.diff(np.array(self._track), 3, axis=0)
        jerk = jerk * RATE**3
        near = np.mean(self._near[-JUDGED:]) if self._near else 0.0
        return {
            "success": np.asarray(not self._hit and near >= 0.9),
            "jerk": np.asarray((jerk**2).sum(axis=1).mean()),
            "near": np.asarray(near),
            "hit": np.asarray(self._hit),
        }

    def hold(self) -> None:
        self._command = None

    def _run(self) -> None:
        if self._command is None:
            return
        due = round((time.monotonic() - self._begun) / DT)
        while self._made < due:
            self._task = self._task.moved(self._command)
            self._made += 1
            self._hit |= bool(self._task.hit[0])
            if self._made % EACH == 0:
                self._track.append(self._task.place[0])
                self._near.append(bool(self._task.near[0]))

    def _observation(self) -> Observation:
        return Observation({}, self._task.state[0])


class SlowedConfig(PolicyConfig):
    """A policy whose inference takes as long as it is told to, as on a slow GPU: most of that is waiting."""

    policy: PolicySpec
    seconds: float
    guidance: str

    def build(self) -> Policy:
        tree = {**self.policy.policy, "guidance": self.guidance}
        return Slowed(self.policy.model_copy(update={"policy": tree}).build(), self.seconds)


class Slowed:
    def __init__(self, policy: Policy, seconds: float):
        self._policy, self._seconds = policy, seconds
        self.components: Mapping[str, Any] = policy.components

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        begun = time.monotonic()
        return self._late(begun, self._policy.predict(observation, normalizer))

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        begun = time.monotonic()
        return self._late(begun, self._policy.guided_inference(observation, normalizer, previous, delay, executed))

    def _late(self, begun: float, chunk: FloatArray) -> FloatArray:
        time.sleep(max(self._seconds - (time.monotonic() - begun), 0))
        return chunk

    def warmup(self) -> None:
        self._policy.warmup()

    def freeze_all_model_params(self) -> None:
        self._policy.freeze_all_model_params()

    def load_weights(self, weights: PolicyWeights) -> None:
        self._policy.load_weights(weights)


def flow_config() -> FlowConfig:
    return FlowConfig.model_validate(
        {"state_dim": 9, "action_dim": 2, "horizon": HORIZON, "velocity_net": {"width": 128, "depth": 2}}
        | {"max_prefix": 20}  # 400 ms at 50 Hz
    )


class GalleryConfig(RobotConfig):
    """A robot that shows three still pictures, and writes that it moved or was held into a file."""

    log: Path | None = None

    def build(self) -> "Gallery":
        return Gallery(self.log)


class Gallery:
    state_dim, action_dim, fps = 24, 24, RATE

    def __init__(self, log: Path | None):
        self.cameras: Mapping[str, tuple[int, int]] = dict.fromkeys(("head", "left", "right"), (240, 320))
        self._log, self._moved = log, False
        self.last_command: FloatArray | None = None
        self._shown = {camera: np.full((*size, 3), 7, np.uint8) for camera, size in self.cameras.items()}

    def reset(self, seed: int | None = None) -> Observation:
        return self.observe()

    def act(self, action: FloatArray) -> None:
        if not self._moved:
            self._write("moved")
        self.last_command, self._moved = action, True

    def observe(self) -> Observation:
        return Observation(self._shown, np.zeros(self.state_dim, np.float32))

    def privileged(self) -> Mapping[str, AnyArray]:
        return {}

    def hold(self) -> None:
        self._write("hold")
        self._moved = False

    def _write(self, word: str) -> None:
        if self._log is not None:
            with self._log.open("a") as log:
                log.write(f"{word}\n")


class StaringConfig(PolicyConfig):
    """A policy that looks at every frame and moves nothing, without torch."""

    def build(self) -> "Staring":
        return Staring()


class Staring:
    def __init__(self) -> None:
        self.components: Mapping[str, Any] = {}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        for image in observation.images.values():
            assert isinstance(memory_of(image), mmap.mmap), "a frame was copied on its way"
            assert int(image.sum()) in (0, 7 * image.size), "a frame was torn"  # 0: the blank ones before an episode
        return np.zeros((50, 24), np.float32)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        return self.predict(observation, normalizer)

    def warmup(self) -> None: ...

    def freeze_all_model_params(self) -> None: ...

    def load_weights(self, weights: PolicyWeights) -> None: ...


def memory_of(array: AnyArray) -> object:
    """What an array is a view of, in the end."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base

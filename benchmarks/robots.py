"""The IGRIS robots against their twins: is everything recorded as it was sent, what does it cost, what do faults do?

    python benchmarks/robots.py [--quick]

Each robot drives its twin, a process of its own, over zenoh at 20 Hz and its full image size, for 1,000 steps (100 with
--quick); every frame and every state is then looked up in the twin's log. The codec is timed beside
rosbags, which does its work, on the same message. Each fault hits one short episode, which has to end by itself and be
kept.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_typestore

from bars import Bars
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.limits import Rate
from plaudit.robots.transport import ZenohConfig
from plaudit.robots.transport.messages import IMAGE, decode_image, encode_image
from plaudit.robots.twin import TwinProcess
from plaudit.robots.twin.log import compare_episode
from plaudit.types import FloatArray, Observation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from driving import drive  # of the tests
from twins import Waves, free_endpoint

FAULTS = ("kill", "freeze", "late=400", "back=5000", "repeat=head", "size=left", "nan", "joints", "garbage=right")
bars = Bars()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 steps instead of 1,000, three faults of nine")
    options = parser.parse_args()
    measure_codec(200)
    with tempfile.TemporaryDirectory() as folder:
        for robot in ("igris_b", "igris_c"):
            measure_episode(Path(folder), robot, 100 if options.quick else 1000)
        measure_faults(Path(folder), FAULTS[::4] if options.quick else FAULTS)
    bars.report()


class Timed:
    """A robot whose calls are timed. It keeps the rate itself, so that waiting for the next tick does not count."""

    def __init__(self, robot: Any):
        self._robot, self._rate = robot, Rate(robot.fps)
        self.spent: dict[str, list[float]] = {"act": [], "observe": []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._robot, name)

    def act(self, action: FloatArray) -> None:
        begun = time.perf_counter()
        self._robot.act(action)
        self.spent["act"].append(time.perf_counter() - begun)

    def observe(self) -> Observation:
        self._rate.wait()
        begun = time.perf_counter()
        seen = self._robot.observe()
        self.spent["observe"].append(time.perf_counter() - begun)
        return seen


def config_of(folder: Path, robot: str, **params: Any) -> Any:
    transport = ZenohConfig(connect=(free_endpoint(),))
    path = folder / f"{robot}.json"
    path.write_text(json.dumps(params))
    return ROBOT_REGISTRY.get(robot)(inference_runtime_params_config=path, transport=transport, realtime=False)


def measure_episode(folder: Path, name: str, steps: int) -> None:
    config = config_of(folder, name)
    params = config.params()
    with TwinProcess(config, folder / f"{name}.jsonl") as twin, config.build() as robot:
        timed: Any = Timed(robot)
        begun = time.monotonic()
        episode, failure = drive(timed, Waves(params.start_pose, slowness=20), max_steps=steps, task="wave")
        seconds = time.monotonic() - begun
        assert episode is not None
        dropped = sum(sum(reasons.values()) for reasons in robot.sensors.dropped().values())
    match = compare_episode(episode, twin.log(), params.proprio_fields)
    ms = {what: 1e3 * np.percentile(spent, (50, 99)) for what, spent in timed.spent.items()}
    print(
        f"{name}: {episode.steps} steps at {params.HZ:g} Hz in {seconds:.1f} s, {match.num_frames} frames and "
        f"{match.num_states} states compared, {len(match.mismatches)} wrong, {dropped} messages dropped; "
        f"ms, median and 99%: "
        f"observe {ms['observe'][0]:.3f} {ms['observe'][1]:.3f}, act {ms['act'][0]:.3f} {ms['act'][1]:.3f}"
    )
    for sentence in (*match.mismatches[:3], *([failure] if failure else [])):
        print(f"  {sentence}")
    bars.exactly(f"robots_{name}_steps", episode.steps, steps)
    bars.exactly(f"robots_{name}_wrong", len(match.mismatches), 0)
    bars.at_most(f"robots_{name}_observe_and_act_ms", ms["observe"][0] + ms["act"][0], 1.0)


def measure_faults(folder: Path, faults: tuple[str, ...]) -> None:
    kept = 0
    for fault in faults:
        config = config_of(folder, "igris_b", HZ=50, start_speed=5.0).model_copy(update={"realtime": True})
        with TwinProcess(config, folder / "faults.jsonl") as twin, config.build() as robot:
            strike = lambda twin=twin, fault=fault: twin.inject(fault)  # noqa: E731
            policy = Waves(config.params().start_pose, at=10, then=strike, slowness=20)
            episode, failure = drive(robot, policy, max_steps=5000, task="wave")
            assert episode is not None
        wrong = compare_episode(episode, twin.log(), ("position",)).mismatches
        kept += bool(failure) and episode.steps >= 10 and not wrong
        print(f"{fault}: {episode.steps} steps kept; {(failure or 'nothing was noticed')[:150]}")
    bars.exactly("robots_faults_told_and_kept", kept, len(faults))


def measure_codec(repeats: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    data = encode_image(1, pixels)
    store: Any = get_typestore(Stores.ROS2_HUMBLE)
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: encode_image(1, pixels),
        "decode": lambda: decode_image(data),
        "rosbags": lambda: np.array(store.deserialize_cdr(data, IMAGE).data),
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - begun)
    ms = {name: 1e3 * float(np.median(times)) for name, times in spent.items()}
    print(
        f"an Image of 240x320: {ms['encode']:.3f} ms to encode, {ms['decode']:.3f} to decode and copy "
        f"({ms['rosbags']:.3f} rosbags alone)"
    )
    bars.at_most("robots_image_decode_of_rosbags", ms["decode"] / ms["rosbags"], 1.5)


if __name__ == "__main__":
    main()

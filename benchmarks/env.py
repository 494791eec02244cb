"""Steps and frames a second of the built-in task, beside gym_hil's PandaPickCube and Gymnasium-Robotics' Fetch.

    python benchmarks/env.py [--quick] [--peers .venv-simulators/bin/python]

The peers need an older MuJoCo and so an environment of their own (`make .venv-simulators/.ready`); they run from
here, in the same minutes, on the same machine. Image throughput is control steps a second with images in the
observation, from as many cameras as the peer has: front and wrist for gym_hil, front for Fetch. Without a GPU their
frames are drawn by Mesa's software renderer, which uses all cores, and most of that time goes into shadows; each peer
is measured as its users have it and with shadows off, and the bar is against the faster.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bars import Bars

GOAL = 10.0
CAMERAS = {"gym_hil": ("front", "wrist"), "fetch": ("front",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a second or two for each figure")
    parser.add_argument(
        "--peers", type=Path, default=Path(".venv-simulators/bin/python"), help="a Python that has them"
    )
    parser.add_argument("--peer", nargs=4, metavar=("NAME", "SIZE", "SHADOWS", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        name, size, shadows, seconds = options.peer
        print(json.dumps(peer_rate(name, int(size), shadows == "True", float(seconds))))
        return
    seconds = 1.0 if options.quick else 5.0
    print(f"{os.cpu_count()} cores; steps of 20 Hz control, 8 substeps of physics each")
    for threads in (1, 2):
        for count in (1, 16, 64):
            print(f"state   {threads} threads {count:3} scenes {our_rate(count, threads, 0, (), seconds):9.0f} steps/s")
    ours: dict[tuple[str, int], float] = {}
    for peer, cameras in CAMERAS.items():
        for size in (64, 128):
            for threads in (1, 2):
                rate = our_rate(16, threads, size, cameras, seconds)
                speed = f"{rate:9.0f} steps/s {rate * len(cameras):9.0f} frames/s"
                print(f"{size:3}x{size:<3} {threads} threads  16 scenes {speed} {'+'.join(cameras)}")
            ours[peer, size] = rate
    if not options.peers.exists():
        sys.exit(f"{options.peers} is not there; run 'make .venv-simulators/.ready' to measure the peers")
    bars = Bars()
    for peer, size in ours:
        rates = [call_peer(options.peers, peer, size, shadows, seconds) for shadows in (True, False)]
        print(f"{peer:8} {size}x{size}: {rates[0]:.2f} steps/s as it comes, {rates[1]:.2f} without shadows")
        bars.at_least(f"env_{size}_against_{peer}", ours[peer, size] / max(rates), GOAL)
    bars.report()


def our_rate(count: int, threads: int, size: int, cameras: tuple[str, ...], seconds: float) -> float:
    """Control steps a second, all scenes together; without cameras, of states alone."""
    from plaudit.envs.commands import measure_throughput
    from plaudit.envs.panda import PandaConfig

    images = {"obs": "both", "cameras": cameras, "image_size": (size, size)} if cameras else {}
    config = PandaConfig(type="pick_place", num_threads=threads, **images)
    return measure_throughput(config, count, seconds).steps_per_s


def call_peer(python: Path, name: str, size: int, shadows: bool, seconds: float) -> float:
    command = [str(python), __file__, "--peer", name, str(size), str(shadows), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MUJOCO_GL": "egl"})
    if done.returncode:
        sys.exit(f"{name} did not run:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peer_rate(name: str, size: int, shadows: bool, seconds: float) -> float:
    env = {"gym_hil": make_gym_hil, "fetch": make_fetch}[name](size)
    env.reset(seed=0)
    if not shadows:
        env.unwrapped.model.light_castshadow[:] = 0
    draw = env.render if name == "fetch" else lambda: None  # gym_hil's images are in its observations
    rng = np.random.default_rng(0)
    env.step(env.action_space.sample() * 0)
    draw()
    steps, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds or steps < 3:
        action = rng.uniform(-1, 1, env.action_space.shape) * 0.01  # small enough for either's units
        _, _, terminated, truncated, _ = env.step(action.astype(np.float32))
        draw()
        steps += 1
        if terminated or truncated:
            env.reset()
    return steps / spent


def make_gym_hil(size: int) -> Any:
    import gym_hil  # type: ignore[import-not-found]
    import gymnasium as gym

    spec = gym_hil.GymRenderingSpec(height=size, width=size)
    return gym.make("gym_hil/PandaPickCubeBase-v0", image_obs=True, render_spec=spec, disable_env_checker=True)


def make_fetch(size: int) -> Any:
    import gymnasium as gym
    import gymnasium_robotics  # type: ignore[import-not-found]

    gym.register_envs(gymnasium_robotics)
    options = {"render_mode": "rgb_array", "height": size, "width": size, "disable_env_checker": True}
    return gym.make("FetchPickAndPlace-v4", **options)


if __name__ == "__main__":
    main()

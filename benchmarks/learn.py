"""How soon is the built-in task solved? SAC with 20 demonstrations and PPO with dense reward, beside stable-baselines3.

    python benchmarks/learn.py            three seeds each, both tasks, both learners; about an hour on two cores
    python benchmarks/learn.py --quick    a small SAC on lift, one seed, no peer, until 10%: whether it learns
    python benchmarks/learn.py --qchunk   Q-chunking on lift with 20 demonstrations, which the peer does not have

Solved means 90% success on 50 eval seeds. Every run is a process of its own with the machine to itself, and its
clock runs from the first step, evaluations included. The peer gets the same task, the same batched physics, the
same demonstrations in its replay buffer, as many updates a step, its own defaults otherwise, the same evaluation, and
twice what our run with that seed took, in time and in steps: what it has not solved by then counts as unsolved. Writes
the curves as an SVG.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bars import Bars, line_charts
from plaudit.data.store import Store
from plaudit.envs.panda import PandaConfig
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.scripted import record_demos
from plaudit.rollout.vector import collect_rollout
from plaudit.training.config import EVAL_SEEDS, demo_seed

PEER = "stable-baselines3"
SOLVED, EPISODES, N_DEMOS = 0.9, 50, 20
UNDER_WAY = 0.1  # success that the quick form waits for
# Of the quick form.
SMALL = ["learner.hidden_dims=[64,64]", "learner.batch_size=128", "learner.n_step=3", "learner.tau=0.01"]
PRETRAINED = 0.4  # at most, with Q-chunking, before the first episode: what is more was not learned by doing
LIMITS = {"sac": 180.0, "ppo": 600.0, "qchunk": 300.0}  # seconds that a learner may take
EVERY = {"sac": 1000, "ppo": 25_000, "qchunk": 500}  # steps between evaluations
OURS = {
    "sac": [f"demos.scripted={N_DEMOS}", "run.max_steps=60000"],
    "ppo": [
        *("reward.env_reward=dense", "run.num_envs=128", "run.max_steps=3000000"),
        *("learner.lr=1e-3", "learner.num_minibatches=16"),  # as in examples/configs/pickcube_ppo_mlp.yaml
    ],
    "qchunk": [f"demos.scripted={N_DEMOS}", "run.max_steps=60000"],
}


Curve = list[tuple[int, float, float]]  # step, seconds and success at each evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a small SAC on lift, one seed, until 10%%: whether it learns"
    )
    parser.add_argument("--qchunk", action="store_true", help="Q-chunking on lift instead")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer-seeds", type=int, default=1, help="how many of the seeds the peer is run on")
    parser.add_argument("--learners", nargs="+", default=["sac", "ppo"])
    parser.add_argument("--tasks", nargs="+", default=["lift", "pick_place"])
    parser.add_argument("--plot", type=Path, default=Path("runs/learn.svg"))
    parser.add_argument(
        "--peer", nargs=5, metavar=("LEARNER", "TASK", "SEED", "SECONDS", "STEPS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.peer:
        learner, task, seed, seconds, steps = options.peer
        print(json.dumps(run_peer(learner, task, int(seed), float(seconds), int(steps))))
        return
    if options.quick:
        options.learners, options.tasks, options.seeds, options.peer_seeds = ["sac"], ["lift"], 1, 0
    if options.qchunk:
        options.learners, options.tasks, options.peer_seeds = ["qchunk"], ["lift"], 0
    solved = UNDER_WAY if options.quick else SOLVED
    cells = [(learner, task) for learner in options.learners for task in options.tasks]
    results: dict[tuple[str, str], dict[str, list[Curve]]] = {cell: {"plaudit": [], PEER: []} for cell in cells}
    for (learner, task), found in results.items():
        for seed in range(options.seeds):
            found["plaudit"].append(run_ours(learner, task, seed, solved, SMALL if options.quick else []))
            show(learner, task, seed, "plaudit", found["plaudit"][-1], solved)
    for (learner, task), found in results.items():
        for seed in range(options.peer_seeds):
            found[PEER].append(call_peer(learner, task, seed, found["plaudit"][seed]))
            show(learner, task, seed, PEER, found[PEER][-1], solved)
    save_plot(results, options.plot)
    bars = Bars()
    for (learner, task), cell in results.items():
        add_bars(bars, learner, task, cell, solved)
    bars.report()


def run_ours(learner: str, task: str, seed: int, solved: float, more: list[str]) -> Curve:
    """The curve: (step, seconds, success) at each evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"learner={learner}", f"env={task}", f"run.seed={seed}", *OURS[learner], *more,
            f"evaluation.freq={EVERY[learner]}", f"evaluation.episodes={EPISODES}",
            f"evaluation.stop_success_rate={solved}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "plaudit", "train", *words, "--folder", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=1.5 * LIMITS[learner])
        except subprocess.TimeoutExpired:
            print("  stopped: over the limit by half")
        [metrics] = Path(folder).glob("*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    evaluations = [line for line in lines if "eval/success_once" in line]
    return [(line["step"], line["time/elapsed_s"], line["eval/success_once"]) for line in evaluations]


def call_peer(learner: str, task: str, seed: int, ours: Curve) -> Curve:
    budget = [str(2.1 * ours[-1][1]), str(int(2.1 * ours[-1][0]))]
    command = [sys.executable, __file__, "--peer", learner, task, str(seed), *budget]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [tuple(point) for point in json.loads(done.stdout.splitlines()[-1])]


def run_peer(learner: str, task: str, seed: int, seconds: float, steps: int) -> Curve:
    """stable-baselines3 with its defaults; ends when both budgets are spent or the task is solved."""
    from stable_baselines3 import PPO, SAC  # type: ignore[import-not-found]
    from stable_baselines3.common.callbacks import BaseCallback  # type: ignore[import-not-found]
    from stable_baselines3.common.vec_env import VecEnv  # type: ignore[import-not-found]

    env_config = PandaConfig(type=task)  # type: ignore[arg-type]
    count = {"sac": 16, "ppo": 128}[learner]
    env = as_vec_env(VecEnv, env_config.build(count), dense=learner == "ppo")
    eval_env = env_config.build(EPISODES)
    curve: Curve = []

    class StopCallback(BaseCallback):
        def _on_training_start(self) -> None:
            self.began, self.next = time.monotonic(), EVERY[learner]

        def _on_step(self) -> bool:
            spent = time.monotonic() - self.began
            if self.num_timesteps >= self.next:
                self.next += EVERY[learner]
                seeds = range(EVAL_SEEDS, EVAL_SEEDS + EPISODES)
                act = lambda seen: self.model.predict(seen.state, deterministic=True)[0]  # noqa: E731
                success = float(
                    collect_rollout(
                        eval_env, act, seeds, SuccessDetector(SimulatorJudge(), EPISODES)
                    ).success_once.mean()
                )
                curve.append((self.num_timesteps, time.monotonic() - self.began, success))
                if success >= SOLVED:
                    return False
            return spent < seconds or self.num_timesteps < steps

    if learner == "ppo":
        model = PPO("MlpPolicy", env, seed=seed, n_steps=50, batch_size=400, device="cpu")
    else:
        # one update for two steps, as ours
        model = SAC("MlpPolicy", env, seed=seed, train_freq=2, gradient_steps=count, device="cpu")
        fill(model, env_config, seed, count)
    model.learn(10**9, callback=StopCallback())
    return curve


def as_vec_env(base: Any, env: Any, *, dense: bool) -> Any:
    """Our batch of scenes as the peer's vector of environments: an episode ends with success or after 50 steps."""
    from gymnasium import spaces

    class Batched(base):
        def __init__(self) -> None:
            box = spaces.Box(-np.inf, np.inf, (env.state_dim,), np.float32)
            super().__init__(env.num_envs, box, spaces.Box(-1, 1, (env.action_dim,), np.float32))
            self.rng = np.random.default_rng(0)

        def fresh(self, count: int) -> list[int]:
            return self.rng.integers(0, EVAL_SEEDS, count).tolist()

        def reset(self) -> Any:
            self.steps = np.zeros(self.num_envs, int)
            return env.reset(self.fresh(self.num_envs)).state

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            seen, known = env.step(self.actions)
            self.steps += 1
            success, late = known["success"], self.steps >= env.max_steps
            over = late if dense else success | late
            reward = known["reward"] if dense else success.astype(np.float32)
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            state = seen.state
            if over.any():
                ended = np.flatnonzero(over)
                for n in ended:
                    cut = bool(late[n] and (dense or not success[n]))
                    infos[n] = {"terminal_observation": state[n].copy(), "TimeLimit.truncated": cut}
                begun = env.reset(self.fresh(len(ended)), ended).state
                state = np.where(over[:, None], begun, state)
                self.steps[ended] = 0
            return state, reward, over, infos

        def close(self) -> None: ...

        def get_attr(self, name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * self.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return Batched()


def fill(model: Any, env: PandaConfig, seed: int, count: int) -> None:
    """The same demonstrations, in the peer's replay buffer."""
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "demos") as store:
        record_demos(env, store, episodes=N_DEMOS, seed=demo_seed(seed))
        rows = [
            (e.state[t], e.state[t + 1], np.clip(e.actions[t], -1, 1), float(e.success[t]), t == e.steps - 1)
            for _, e in store
            for t in range(e.steps)
            if e.success is not None
        ]
    for start in range(0, len(rows) - count + 1, count):
        state, after, action, reward, done = (np.array(column) for column in zip(*rows[start : start + count]))
        model.replay_buffer.add(state, after, action, reward, done, [{} for _ in range(count)])


def solved_at(curve: Curve, solved: float) -> tuple[int, float] | None:
    return next(((step, seconds) for step, seconds, success in curve if success >= solved), None)


def show(learner: str, task: str, seed: int, who: str, curve: Curve, solved: float) -> None:
    found = solved_at(curve, solved)
    last = curve[-1] if curve else (0, 0.0, 0.0)
    said = (
        f"{solved:.0%} after {found[0]:,} steps, {found[1]:.0f} s"
        if found
        else f"{last[2]:.0%} after {last[0]:,} steps, {last[1]:.0f} s"
    )
    print(f"{learner} {task:10} seed {seed} {who:18} {said}", flush=True)


def add_bars(bars: Bars, learner: str, task: str, cell: dict[str, list[Curve]], solved: float) -> None:
    ours = [solved_at(curve, solved) for curve in cell["plaudit"]]
    worst = max((found[1] for found in ours if found), default=float("inf")) if all(ours) else float("inf")
    bars.at_most(f"{learner}_{task}_seconds_to_{100 * solved:.0f}", worst, LIMITS[learner])
    if learner == "qchunk":
        before = max(curve[0][2] for curve in cell["plaudit"])
        bars.at_most(f"{learner}_{task}_success_before_the_first_episode", before, PRETRAINED)
    for curve, found in zip(cell[PEER], ours, strict=False):
        theirs = solved_at(curve, solved)
        spent = theirs or (curve[-1][0], curve[-1][1])
        for name, mine, their in zip(("steps", "seconds"), found or (np.inf, np.inf), spent, strict=True):
            bars.at_most(f"{learner}_{task}_{name}_against_sb3", mine / their, 0.5)


def save_plot(results: dict[tuple[str, str], dict[str, list[Curve]]], path: Path) -> None:
    panels = []
    for (learner, task), cell in results.items():
        lines = {who: [[(s, y) for _, s, y in curve] for curve in curves] for who, curves in cell.items() if curves}
        title = f"{learner.upper()} on {task}"
        panels.append({"title": title, "lines": lines, "x": "seconds", "percent": True, "marks": (SOLVED,)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line_charts(panels, size=(560, 280)))
    print(f"curves: {path}")


if __name__ == "__main__":
    main()

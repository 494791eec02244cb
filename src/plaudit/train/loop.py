"""The training loop: a round of episodes, what is learned from it, now and then a look at how good it is.

    while steps remain:
        played = run_round(simulation, act, seeds, judge)     # N episodes
        metrics = study.learn(played)                         # PPO: this round. SAC: stored, then batches of replay
        evaluate, checkpoint                                  # when due

Everything random comes from generators that a checkpoint keeps, and a round starts from seeds alone: a run that was
killed and resumed makes the same curve as one that was not.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from plaudit.data.batch import to_torch
from plaudit.data.replay import Replay
from plaudit.data.store import Store
from plaudit.learners.networks import Spaces
from plaudit.learners.ppo import Ppo
from plaudit.learners.sac import Sac
from plaudit.protocols import Simulation
from plaudit.rollout.demos import record_demos
from plaudit.rollout.rounds import Act, Round, SimulatorJudge, run_round
from plaudit.train.config import TrainConfig
from plaudit.train.folder import RunFolder, open_demos
from plaudit.types import Labels, Observation

TRAINING, HELD_BACK, DEMOS = 0, 1_000_000_000, 2_000_000_000  # where the seeds of each kind begin


@dataclass(frozen=True)
class Progress:
    """What a run tells whoever watches."""

    step: int
    episodes: int
    success: float  # share of the last round's episodes that the judge saw succeed
    evaluated: float | None  # share on seeds held back, at the last evaluation
    seconds: float  # of work so far, over all sittings


class Study(Protocol):
    """How a learner takes in a round."""

    def act(self, steps: int) -> Act: ...

    def learn(self, played: Round) -> Mapping[str, float]: ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to keep besides the learner, as JSON."""
        ...

    def restore(self, facts: Mapping[str, Any]) -> None: ...


class OnPolicy:
    """PPO: each round is used once. It is stored only when asked for."""

    def __init__(self, learner: Ppo, store: Store | None, simulation: Simulation):
        self._learner, self._store, self._simulation = learner, store, simulation

    def act(self, steps: int) -> Act:
        return lambda observation: self._learner.act(observation, explore=True)

    def learn(self, played: Round) -> Mapping[str, float]:
        if self._store is not None:
            pairs = played.episodes(self._simulation, SimulatorJudge.source)
            ids = self._store.extend([episode for episode, _ in pairs])
            self._store.ledger.extend(zip(ids, (labels for _, labels in pairs), strict=True))
        return self._learner.update(played)

    def facts(self) -> dict[str, Any]:
        return {}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """The learner is all there is."""


class OffPolicy:
    """SAC: episodes go to the store with their verdicts, batches come from replay, mixed with demonstrations."""

    def __init__(self, learner: Sac, store: Store, demos: Store | None, simulation: Simulation, seed: int):
        config = learner.config
        self._learner, self._store, self._simulation = learner, store, simulation
        options: dict[str, Any] = {
            "gamma": config.gamma,
            "n_step": config.n_step,
            "cameras": tuple(learner.spaces.cameras),
            "seed": seed,
        }
        self._replay = (
            Replay.mix(demos, store, config.demo_share, **options) if demos is not None else Replay(store, **options)
        )
        self._rng = np.random.default_rng([seed, 1])  # of the actions before anything was learned
        self._kept = 0  # episodes so far; the store numbers them from 0
        self._owed = 0.0  # updates, a fraction of one at most between rounds

    def act(self, steps: int) -> Act:
        if steps < self._learner.config.start_after:
            return self._random
        return lambda observation: self._learner.act(observation, explore=True)

    def _random(self, observation: Observation) -> Any:
        return self._rng.uniform(-1, 1, (len(observation.state), self._simulation.action_dim)).astype(np.float32)

    def learn(self, played: Round) -> Mapping[str, float]:
        self._keep(played)
        self._replay.refresh()
        self._owed += played.steps * self._learner.config.updates_per_step
        metrics: Mapping[str, float] = {}
        while self._owed >= 1:
            batch = to_torch(self._replay.sample(self._learner.config.batch_size), self._learner.device)
            metrics = {**metrics, **self._learner.update(batch)}
            self._owed -= 1
        return metrics

    def _keep(self, played: Round) -> None:
        """Store what was played; after a resume, the first of it may be there already from before the stop."""
        pairs = played.episodes(self._simulation, SimulatorJudge.source)
        alive = set(self._store.ids)
        there = [i for i in range(self._kept, self._kept + len(pairs)) if i in alive]
        there += self._store.extend([episode for episode, _ in pairs[len(there) :]])
        self._store.ledger.extend(zip(there, (labels for _, labels in pairs), strict=True))
        self._kept += len(pairs)

    def facts(self) -> dict[str, Any]:
        states = {"replay": self._replay.rng, "random": self._rng}
        return {
            "kept": self._kept,
            "owed": self._owed,
            "rng": {name: rng.bit_generator.state for name, rng in states.items()},
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        self._kept, self._owed = facts["kept"], facts["owed"]
        self._replay.rng.bit_generator.state = facts["rng"]["replay"]
        self._rng.bit_generator.state = facts["rng"]["random"]
        later = [i for i in self._store.ids if i >= self._kept]
        self._store.ledger.extend((i, _not_yet(self._store.place(i).steps)) for i in later)
        self._replay.refresh()


def _not_yet(steps: int) -> Labels:
    """For an episode recorded after the checkpoint: it counts again once the resumed run has come to it."""
    unknown = np.full(steps, np.nan, np.float32)
    return Labels(
        unknown, np.zeros(steps, bool), source=SimulatorJudge.source, note="later than the resumed checkpoint"
    )


def train(folder: RunFolder, watch: Callable[[Progress], bool], track: Callable[[str], Any]) -> Progress:
    """Run to the end, or until `watch`, told of each round, says False; goes on from the newest checkpoint.

    track: wraps the making of demonstrations in a progress bar
    """
    config = folder.config
    simulation = config.env.build(config.num_envs)
    audience = config.env.build(min(config.evaluation.episodes, 64))
    device = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = simulation.cameras if config.policy_cameras is None else config.policy_cameras
    cameras = {camera: simulation.cameras[camera] for camera in chosen}
    if config.threads or not cameras:
        torch.set_num_threads(config.threads or 1)
    learner = config.learner.build(Spaces(simulation.state_dim, simulation.action_dim, cameras), config.seed, device)
    judge = SimulatorJudge(dense=config.reward.kind == "dense")
    with _stores(folder, learner, track) as stores:
        study = _study(learner, stores, simulation, config.seed)
        facts = folder.restore(learner)
        now = Progress(0, 0, 0.0, None, 0.0)
        if facts:
            study.restore(facts["study"])
            now = Progress(facts["step"], facts["episodes"], facts["success"], facts["evaluated"], facts["seconds"])
        since = time.monotonic() - now.seconds
        going = now.step < config.steps and not _good_enough(now, config)
        while going:
            seeds = [_seed(config.seed, now.episodes + i) for i in range(config.num_envs)]
            played = run_round(simulation, study.act(now.step), seeds, judge, end_on_success=config.reward.ends)
            metrics = study.learn(played)
            before, now = now, replace(
                now,
                step=now.step + played.steps,
                episodes=now.episodes + config.num_envs,
                success=float(played.succeeded.mean()),
                seconds=time.monotonic() - since,
            )  # fmt: skip
            folder.log(now.step, {**metrics, **_of_round(played, now)})
            last = now.step >= config.steps
            if last or _passed(before.step, now.step, config.evaluation.every):
                success = evaluate(audience, learner, config.evaluation.episodes)
                now = replace(now, evaluated=success)
                folder.log(now.step, {"eval/success": success, "time/seconds": now.seconds})
                folder.save_policy(learner.weights())
                last |= _good_enough(now, config)
            going = watch(now) and not last
            if not going or _passed(before.step, now.step, config.checkpoint_every):
                folder.checkpoint(now.step, learner, {**vars(now), "study": study.facts()})
    simulation.close()
    audience.close()
    folder.close()
    return now


def evaluate(simulation: Simulation, learner: Ppo | Sac, episodes: int) -> float:
    """Share of episodes, on seeds held back, that the simulator saw succeed."""
    succeeded: list[bool] = []
    while len(succeeded) < episodes:
        seeds = [HELD_BACK + len(succeeded) + i for i in range(simulation.num_envs)]
        played = run_round(simulation, lambda seen: learner.act(seen, explore=False), seeds, SimulatorJudge())
        succeeded += played.succeeded.tolist()
    return float(np.mean(succeeded[:episodes]))


def _good_enough(now: Progress, config: TrainConfig) -> bool:
    wanted = config.evaluation.stop_at
    return wanted is not None and now.evaluated is not None and now.evaluated >= wanted


def _seed(run: int, episode: int) -> int:
    return TRAINING + (run * 10_000_019 + episode) % HELD_BACK


def _passed(before: int, now: int, every: int) -> bool:
    return now // every > before // every


def _of_round(played: Round, now: Progress) -> dict[str, float]:
    return {
        "train/success": now.success,
        "train/reward": float(played.reward[played.valid].mean()),
        "train/length": float(played.length.mean()),
        "train/episodes": now.episodes,
        "time/steps_per_second": now.step / max(now.seconds, 1e-9),
        "time/seconds": now.seconds,
    }


class _stores:
    """The stores of a run: its own episodes, and demonstrations."""

    def __init__(self, folder: RunFolder, learner: Ppo | Sac, track: Callable[[str], Any]):
        self._folder, self._learner, self._track = folder, learner, track
        self.episodes: Store | None = None
        self.demos: Store | None = None

    def __enter__(self) -> "_stores":
        config, path = self._folder.config, self._folder.path
        keep = isinstance(self._learner, Sac) if config.keep_episodes is None else config.keep_episodes
        if keep or isinstance(self._learner, Sac):
            self.episodes = _open(path / "episodes", int(config.capacity_gb * 1e9))
        self.demos = self._demonstrations(config, path)
        return self

    def __exit__(self, *_: object) -> None:
        if self.episodes is not None:
            self.episodes.close()

    def _demonstrations(self, config: TrainConfig, path: Path) -> Store | None:
        if config.demos is not None:
            return open_demos(config.demos)
        if not config.scripted_demos:
            return None
        with _open(path / "demos", int(config.capacity_gb * 1e9)) as store:
            missing = config.scripted_demos - len(store)
            if missing > 0:
                seed = DEMOS + config.seed * 100_003 + len(store)
                record_demos(
                    config.env, store, episodes=missing, noise=config.demo_noise, seed=seed,
                    track=self._track("demonstrations"),
                )  # fmt: skip
        return Store.open(path / "demos")


def _open(path: Path, capacity: int) -> Store:
    return Store.open(path, write=True) if path.exists() else Store.create(path, capacity_bytes=capacity)


def _study(learner: Ppo | Sac, stores: _stores, simulation: Simulation, seed: int) -> Study:
    if isinstance(learner, Ppo):
        return OnPolicy(learner, stores.episodes, simulation)
    assert stores.episodes is not None
    return OffPolicy(learner, stores.episodes, stores.demos, simulation, seed)

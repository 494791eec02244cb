"""The training loop: a round of episodes, what is learned from it, now and then a look at how good it is.

    while steps remain:
        played = run_round(simulation, act, seeds, judge)     # N episodes
        metrics = study.learn(played)                         # PPO: this round. SAC: stored, then batches of replay
        evaluate, checkpoint                                  # when due

Everything random comes from generators that a checkpoint keeps, and a round starts from seeds alone: a run that was
killed and resumed makes the same curve as one that was not.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
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
from plaudit.rollout.rounds import Act, Judge, Round, SimulatorJudge, run_round
from plaudit.train.collect import collecting
from plaudit.train.config import TrainConfig
from plaudit.train.folder import RunFolder, open_demos
from plaudit.train.referee import Referee, referee
from plaudit.types import Labels, Observation

SIDE_BY_SIDE = 64  # episodes of an evaluation, at most
TRAINING, HELD_BACK, DEMOS = 0, 1_000_000_000, 2_000_000_000  # where the seeds of each kind begin


@dataclass(frozen=True)
class Progress:
    """What a run tells whoever watches."""

    step: int
    episodes: int
    success: float  # share of the last round's episodes that the judge saw succeed
    evaluated: float | None  # share on seeds held back, at the last evaluation
    seconds: float  # of work so far, over all sittings
    alarm: str | None = None  # why the judge in charge is not to be trusted any more


class Study(Protocol):
    """How a learner takes in a round."""

    def prepare(self, track: Callable[[str], Any]) -> None:
        """What is to be done once, before the first round of a new run."""
        ...

    def act(self, steps: int) -> Act: ...

    def learn(self, played: Round) -> Mapping[str, float]: ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to keep besides the learner, as JSON."""
        ...

    def restore(self, facts: Mapping[str, Any]) -> None: ...


class OnPolicy:
    """PPO: each round is used once. It is stored only when asked for. Demonstrations are cloned before the first."""

    def __init__(self, learner: Ppo, store: Store | None, demos: Store | None, charge: Referee, seed: int):
        self._learner, self._store, self._demos, self._charge, self._seed = learner, store, demos, charge, seed

    def prepare(self, track: Callable[[str], Any]) -> None:
        if self._demos is None:
            return
        config, cameras = self._learner.config, tuple(self._learner.spaces.cameras)
        replay = Replay(self._demos, cameras=cameras, seed=self._seed)
        for _ in track("cloning demonstrations")(range(config.clone_updates)):
            self._learner.clone(to_torch(replay.sample(config.clone_batch_size), self._learner.device))

    def act(self, steps: int) -> Act:
        return lambda observation: self._learner.act(observation, explore=True)

    def learn(self, played: Round) -> Mapping[str, float]:
        if self._store is not None:
            pairs = self._charge.episodes(played)
            ids = self._store.extend([episode for episode, _ in pairs])
            self._store.ledger.extend(zip(ids, (labels for _, labels in pairs), strict=True))
        return self._learner.update(played)

    def facts(self) -> dict[str, Any]:
        return {}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """The learner is all there is."""


class OffPolicy:
    """SAC: episodes go to the store with their verdicts, batches come from replay, mixed with demonstrations."""

    def __init__(self, learner: Sac, store: Store, demos: Store | None, charge: Referee, seed: int):
        config = learner.config
        self._learner, self._store, self._charge = learner, store, charge
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

    def prepare(self, track: Callable[[str], Any]) -> None:
        """Demonstrations come with every batch."""

    def act(self, steps: int) -> Act:
        if steps < self._learner.config.start_after:
            return self._random
        return lambda observation: self._learner.act(observation, explore=True)

    def _random(self, observation: Observation) -> Any:
        return self._rng.uniform(-1, 1, (len(observation.state), self._learner.spaces.action_dim)).astype(np.float32)

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
        pairs = self._charge.episodes(played)
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
        self._store.ledger.extend((i, _not_yet(self._store.place(i).steps, self._charge.source)) for i in later)
        self._replay.refresh()


def _not_yet(steps: int, source: str) -> Labels:
    """For an episode recorded after the checkpoint: it counts again once the resumed run has come to it."""
    unknown = np.full(steps, np.nan, np.float32)
    return Labels(unknown, np.zeros(steps, bool), source=source, note="later than the resumed checkpoint")


def train(folder: RunFolder, watch: Callable[[Progress], bool], track: Callable[[str], Any]) -> Progress:
    """Run to the end, or until `watch`, told of each round, says False; goes on from the newest checkpoint.

    track: wraps what is done before the first round in a progress bar
    """
    config = folder.config
    simulation = config.env.build(config.num_envs)
    learner = make_learner(config, simulation)
    audience = _audience(config, learner)
    with (
        referee(config, simulation) as charge,
        _stores(folder, learner, charge, track) as (episodes, demos),
        collecting(config.collect, folder.path) as collected,
    ):
        study = _study(learner, episodes, demos, charge, config.seed)
        now = _resume(folder, learner, study, charge, track)
        since = time.monotonic() - now.seconds
        enough = collected is not None and collected.enough
        going = now.step < config.steps and not enough and not _good_enough(now, config) and not _ringing(now, config)
        while going:
            seeds = [_seed(config.seed, now.episodes + i) for i in range(config.num_envs)]
            played = run_round(simulation, study.act(now.step), seeds, charge.judge, end_on_success=config.reward.ends)
            metrics = {**study.learn(played), **charge.report(played, now.episodes)}
            if collected is not None:
                metrics |= collected.take(played, simulation)
                enough = collected.enough
            before = now.step
            now = _after(now, played, charge, time.monotonic() - since)
            folder.log(now.step, {**metrics, **_of_round(played, now)})
            last = enough or now.step >= config.steps or _ringing(now, config)
            if last or _passed(before, now.step, config.evaluation.every):
                success = evaluate(audience, learner, config.evaluation.episodes)
                now = replace(now, evaluated=success, seconds=time.monotonic() - since)
                folder.log(now.step, {"eval/success": success, "time/seconds": now.seconds})
                folder.save_policy(learner.weights())
                last |= _good_enough(now, config)
            going = watch(now) and not last
            if not going or _passed(before, now.step, config.checkpoint_every):
                facts = {**vars(now), "study": study.facts(), "referee": charge.facts()}
                folder.checkpoint(now.step, learner, facts)
    simulation.close()
    audience.close()
    folder.close()
    return now


def _audience(config: TrainConfig, learner: Ppo | Sac) -> Simulation:
    """For evaluations. Cameras that only the judge looks at see nothing there: the judge is not asked."""
    env = config.env
    if env.obs == "both" and not learner.spaces.cameras:
        env = env.model_copy(update={"obs": "state"})
    episodes = config.evaluation.episodes
    return env.build(-(-episodes // -(-episodes // SIDE_BY_SIDE)))  # in rounds of about the same size


def evaluate(simulation: Simulation, learner: Ppo | Sac, episodes: int) -> float:
    """Share of episodes, on seeds held back, that the simulator saw succeed."""
    played = list(play_held_back(simulation, learner, episodes, SimulatorJudge()))
    return float(np.mean(np.concatenate([round.succeeded for round in played])[:episodes]))


def play_held_back(
    simulation: Simulation,
    learner: Ppo | Sac,
    episodes: int,
    judge: Judge,
    *,
    offset: int = 0,
    end_on_success: bool = True,
) -> Iterator[Round]:
    """At least so many episodes of the policy's middle actions.

    offset: of the seeds; those from 0 on decide when a run stops, later ones say without a bias how good it is then
    """
    for first in range(0, episodes, simulation.num_envs):
        seeds = [HELD_BACK + offset + first + i for i in range(simulation.num_envs)]
        act = partial(learner.act, explore=False)
        yield run_round(simulation, act, seeds, judge, end_on_success=end_on_success)


def make_learner(config: TrainConfig, simulation: Simulation) -> Ppo | Sac:
    chosen = simulation.cameras if config.policy_cameras is None else config.policy_cameras
    cameras = {camera: simulation.cameras[camera] for camera in chosen}
    if config.threads or not cameras:
        torch.set_num_threads(config.threads or 1)
    device = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    return config.learner.build(Spaces(simulation.state_dim, simulation.action_dim, cameras), config.seed, device)


def _resume(
    folder: RunFolder, learner: Ppo | Sac, study: Study, charge: Referee, track: Callable[[str], Any]
) -> Progress:
    """Where the newest checkpoint stands, everything put back as it was; the beginning where there is none."""
    facts = folder.restore(learner)
    if facts is None:
        study.prepare(track)
        return Progress(0, 0, 0.0, None, 0.0)
    study.restore(facts["study"])
    charge.restore(facts["referee"])
    before = Progress(**{field.name: facts[field.name] for field in fields(Progress)})
    return replace(before, alarm=charge.alarm)


def _ringing(now: Progress, config: TrainConfig) -> bool:
    return now.alarm is not None and config.reward.on_alarm == "stop"


def _after(now: Progress, played: Round, charge: Referee, seconds: float) -> Progress:
    return Progress(
        step=now.step + played.steps,
        episodes=now.episodes + len(played.length),
        success=float(played.succeeded.mean()),
        evaluated=now.evaluated,
        seconds=seconds,
        alarm=charge.alarm,
    )


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


@contextmanager
def _stores(
    folder: RunFolder, learner: Ppo | Sac, charge: Referee, track: Callable[[str], Any]
) -> Iterator[tuple[Store | None, ...]]:
    """The run's own episodes, where they are kept, and the demonstrations, where there are some."""
    config = folder.config
    keep = config.keep_episodes or isinstance(learner, Sac)
    episodes = _open(folder.path / "episodes", config.capacity_gb) if keep else None
    try:
        if episodes is not None:
            charge.judge_again(episodes, track)
        demos = _demonstrations(folder, charge, track)
        judged = None if demos is None else charge.judge_demos(demos, folder.path / "demos.labels", track)
        yield episodes, judged
    finally:
        if episodes is not None:
            episodes.close()


def _demonstrations(folder: RunFolder, charge: Referee, track: Callable[[str], Any]) -> Store | None:
    config, path = folder.config, folder.path / "demos"
    if config.demos is not None:
        return open_demos(config.demos)
    if not config.scripted_demos:
        return None
    if not path.exists():  # made aside: a run that is killed meanwhile begins them anew, and has the same ones
        part = path.with_name(".demos.part")
        shutil.rmtree(part, ignore_errors=True)
        with Store.create(part) as store:
            record_demos(
                config.env,
                store,
                episodes=config.scripted_demos,
                noise=config.demo_noise,
                seed=DEMOS + config.seed * 100_003,
                linger=charge.linger,
                track=track("demonstrations"),
            )
        part.rename(path)
    return Store.open(path)


def _open(path: Path, capacity_gb: float) -> Store:
    return Store.open(path, write=True) if path.exists() else Store.create(path, capacity_bytes=int(capacity_gb * 1e9))


def _study(learner: Ppo | Sac, episodes: Store | None, demos: Store | None, charge: Referee, seed: int) -> Study:
    if isinstance(learner, Ppo):
        return OnPolicy(learner, episodes, demos, charge, seed)
    assert episodes is not None
    return OffPolicy(learner, episodes, demos, charge, seed)

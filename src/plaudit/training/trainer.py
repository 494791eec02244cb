"""The training loop: a round of episodes, what is learned from it, now and then a look at how good it is.

    while steps remain:
        played = collect_rollout(simulation, act, seeds, detector)  # N episodes
        metrics = study.learn(played)                         # PPO: this round. Others: stored, then batches of replay
        evaluate, checkpoint                                  # when due

Everything random comes from generators that a checkpoint keeps, and a round starts from seeds alone: a run that was
killed and resumed makes the same curve as one that was not.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch

from plaudit.data.batch import to_torch
from plaudit.data.replay import ReplaySampler
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.learners.threads import torch_threads
from plaudit.protocols import Learner, VecEnv
from plaudit.rollout.vector import ActFn, RolloutBatch, collect_rollout
from plaudit.training.collect import collecting
from plaudit.training.config import TrainConfig
from plaudit.training.reward import Referee, referee
from plaudit.training.run_folder import RunFolder
from plaudit.training.stores import Kept, stores
from plaudit.types import EnvSpec, Observation

SIDE_BY_SIDE = 64  # episodes of an evaluation, at most
TRAINING, HELD_BACK = 0, 1_000_000_000  # where the seeds of each kind begin; see also stores.py


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

    def prepare(self, track: Callable[[str], Any]) -> bool:
        """What is to be done once, before the first round of a new run; returns whether something was learned."""
        ...

    def act(self, steps: int) -> ActFn: ...

    def learn(self, played: RolloutBatch, steps: int) -> Mapping[str, float]:
        """steps: of the run before this round"""
        ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to keep besides the learner, as JSON."""
        ...

    def restore(self, facts: Mapping[str, Any]) -> None: ...


class OnPolicy:
    """PPO: each round is used once. It is stored only when asked for. Demonstrations are cloned before the first."""

    def __init__(self, learner: Any, kept: Kept | None, demos: Store | None, seed: int):
        self._learner, self._kept, self._demos, self._seed = learner, kept, demos, seed

    def prepare(self, track: Callable[[str], Any]) -> bool:
        if self._demos is None:
            return False
        config, cameras = self._learner.config, tuple(self._learner.env_spec.cameras)
        replay = ReplaySampler(self._demos, cameras=cameras, seed=self._seed)
        for _ in track("cloning demonstrations")(range(config.pretrain_updates)):
            self._learner.bc_update(to_torch(replay.sample(config.pretrain_batch_size), self._learner.device))
        return config.pretrain_updates > 0

    def act(self, steps: int) -> ActFn:
        return self._learner.act_fn(explore=True)

    def learn(self, played: RolloutBatch, steps: int) -> Mapping[str, float]:
        if self._kept is not None:
            self._kept.add(played)
        return self._learner.update(played)

    def facts(self) -> dict[str, Any]:
        return {} if self._kept is None else {"kept": self._kept.end}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """A round is used once, and the learner has it."""


class OffPolicy:
    """SAC, Q-chunking: episodes go to the store with their verdicts, batches come from replay, demonstrations mixed in.

    A learner that wants to rehearses them before the first round.
    """

    def __init__(
        self,
        learner: Any,
        kept: Kept,
        demos: Store | None,
        seed: int,
        *,
        reward: RewardConfig,
        end_on_success: bool,
        believe_demos: bool,
    ):
        """believe_demos: whether a demonstration that was recorded as ended has ended, whatever the judge sees"""
        self._learner, self._kept, self._demos = learner, kept, demos
        options = {**learner.replay_options, "reward": reward, "end_on_success": end_on_success, "seed": seed}
        if demos is not None:
            ends, share = (believe_demos, True), learner.config.demo_ratio
            self._replay = ReplaySampler.mix(demos, kept.store, share, trust_terminated=ends, **options)
        else:
            self._replay = ReplaySampler(kept.store, **options)
        self._rng = np.random.default_rng([seed, 1])  # of the actions before anything was learned
        self._owed = 0.0  # updates, a fraction of one at most between rounds

    def prepare(self, track: Callable[[str], Any]) -> bool:
        updates = self._learner.pretrain_updates if self._demos is not None else 0
        for _ in track("rehearsing demonstrations")(range(updates)):
            self._update()
        return updates > 0

    def act(self, steps: int) -> ActFn:
        if steps < self._learner.config.random_steps:
            return self._random
        return self._learner.act_fn(explore=True)

    def _random(self, observation: Observation) -> Any:
        return self._rng.uniform(-1, 1, (len(observation.state), self._learner.env_spec.action_dim)).astype(np.float32)

    def learn(self, played: RolloutBatch, steps: int) -> Mapping[str, float]:
        self._kept.add(played)
        self._replay.refresh()
        pace = self._learner.config
        self._owed += pace.updates_due(steps + played.steps) - pace.updates_due(steps)
        newest: dict[str, Any] = {}
        while self._owed >= 1:
            newest |= self._update()
            self._owed -= 1
        return {name: float(number) for name, number in newest.items()}

    def _update(self) -> Mapping[str, Any]:
        batch = self._replay.sample(self._learner.config.batch_size)
        return self._learner.update(to_torch(batch, self._learner.device))

    def facts(self) -> dict[str, Any]:
        states = {"replay": self._replay.rng, "random": self._rng}
        return {
            "kept": self._kept.end,
            "owed": self._owed,
            "rng": {name: rng.bit_generator.state for name, rng in states.items()},
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        self._owed = facts["owed"]
        self._replay.rng.bit_generator.state = facts["rng"]["replay"]
        self._rng.bit_generator.state = facts["rng"]["random"]


def train(folder: RunFolder, watch: Callable[[Progress], bool], track: Callable[[str], Any]) -> Progress:
    """Run to the end, or until `watch`, told of each round, says False; goes on from the newest checkpoint.

    track: wraps what is done before the first round in a progress bar
    """
    config = folder.config
    with ExitStack() as stack:
        stack.callback(folder.close)
        simulation = stack.enter_context(closing(config.env.build(config.num_envs)))
        stack.enter_context(learner_threads(config, simulation))
        learner = make_learner(config, simulation)
        audience = stack.enter_context(closing(_audience(config, learner)))
        charge = stack.enter_context(referee(config, simulation))
        kept, demos = stack.enter_context(stores(folder, charge, track))
        collected = stack.enter_context(collecting(config.collect, folder.path))
        study = _study(config, learner, kept, demos, charge)
        now = _resume(folder, learner, study, charge, track, audience)
        since = time.monotonic() - now.seconds
        enough = collected is not None and collected.enough
        going = now.step < config.steps and not enough and not _good_enough(now, config) and not _ringing(now, config)
        while going:
            seeds = [training_seed(config.seed, now.episodes + i) for i in range(config.num_envs)]
            played = collect_rollout(
                simulation,
                study.act(now.step),
                seeds,
                charge.detector,
                reward=config.reward.rewards,
                gamma=config.learner.gamma,
                terminate_on_success=config.reward.ends,
            )
            metrics = {**study.learn(played, now.step), **charge.report(played, now.episodes)}
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
                folder.save_policy(learner.policy_config(), learner.weights())
                last |= _good_enough(now, config)
            going = watch(now) and not last
            if not going or _passed(before, now.step, config.checkpoint_every):
                facts = {**vars(now), "study": study.facts(), "referee": charge.facts()}
                folder.checkpoint(now.step, learner, facts)
    return now


def _audience(config: TrainConfig, learner: Learner) -> VecEnv:
    """For evaluations. Cameras that only the judge looks at see nothing there: the judge is not asked."""
    env = config.env
    if env.obs == "both" and not learner.env_spec.cameras:
        env = env.model_copy(update={"obs": "state"})
    episodes = config.evaluation.episodes
    return env.build(-(-episodes // -(-episodes // SIDE_BY_SIDE)))  # in rounds of about the same size


def evaluate(simulation: VecEnv, learner: Learner, episodes: int) -> float:
    """Share of episodes, on seeds held back, that the simulator saw succeed."""
    played = list(play_held_back(simulation, learner, episodes, SuccessDetector(SimulatorJudge(), simulation.num_envs)))
    return float(np.mean(np.concatenate([round.success_once for round in played])[:episodes]))


def play_held_back(
    simulation: VecEnv,
    learner: Learner,
    episodes: int,
    detector: SuccessDetector,
    *,
    offset: int = 0,
    end_on_success: bool = True,
) -> Iterator[RolloutBatch]:
    """At least so many episodes of the policy's middle actions.

    offset: of the seeds; those from 0 on decide when a run stops, later ones say without a bias how good it is then
    """
    for first in range(0, episodes, simulation.num_envs):
        seeds = [HELD_BACK + offset + first + i for i in range(simulation.num_envs)]
        yield collect_rollout(
            simulation, learner.act_fn(explore=False), seeds, detector, terminate_on_success=end_on_success
        )


def _policy_cameras(config: TrainConfig, simulation: VecEnv) -> dict[str, tuple[int, int]]:
    """Name -> size of those that the policy looks at."""
    chosen = simulation.cameras if config.policy_cameras is None else config.policy_cameras
    return {camera: simulation.cameras[camera] for camera in chosen}


def learner_threads(config: TrainConfig, simulation: VecEnv) -> AbstractContextManager[None]:
    """For as long as a run's learner computes."""
    return torch_threads(config.threads, images=bool(_policy_cameras(config, simulation)))


def make_learner(config: TrainConfig, simulation: VecEnv) -> Learner:
    """The run's learner as its seed makes it."""
    cameras = _policy_cameras(config, simulation)
    if config.horizon > simulation.max_steps:
        raise DataError(
            f"learner.horizon is {config.horizon}, and an episode is over after {simulation.max_steps} steps"
        )
    device = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    return config.learner.build(EnvSpec(simulation.state_dim, simulation.action_dim, cameras), config.seed, device)


def _resume(
    folder: RunFolder,
    learner: Learner,
    study: Study,
    charge: Referee,
    track: Callable[[str], Any],
    audience: VecEnv,
) -> Progress:
    """Where the newest checkpoint stands, everything put back as it was; the beginning where there is none."""
    begun, facts = time.monotonic(), folder.restore(learner)
    if facts is None:
        if study.prepare(track):  # what demonstrations alone are worth
            success = evaluate(audience, learner, folder.config.evaluation.episodes)
            folder.log(0, {"eval/success": success, "time/seconds": time.monotonic() - begun})
        return Progress(0, 0, 0.0, None, time.monotonic() - begun)
    study.restore(facts["study"])
    charge.restore(facts["referee"])
    before = Progress(**{field.name: facts[field.name] for field in fields(Progress)})
    return replace(before, alarm=charge.alarm)


def _ringing(now: Progress, config: TrainConfig) -> bool:
    return now.alarm is not None and config.reward.on_alarm == "stop"


def _after(now: Progress, played: RolloutBatch, charge: Referee, seconds: float) -> Progress:
    return Progress(
        step=now.step + played.steps,
        episodes=now.episodes + len(played.length),
        success=float(played.success_once.mean()),
        evaluated=now.evaluated,
        seconds=seconds,
        alarm=charge.alarm,
    )


def _good_enough(now: Progress, config: TrainConfig) -> bool:
    wanted = config.evaluation.stop_at
    return wanted is not None and now.evaluated is not None and now.evaluated >= wanted


def training_seed(run: int, episode: int) -> int:
    """Of an episode of a run; none of these is held back."""
    return TRAINING + (run * 10_000_019 + episode) % HELD_BACK


def _passed(before: int, now: int, every: int) -> bool:
    return now // every > before // every


def _of_round(played: RolloutBatch, now: Progress) -> dict[str, float]:
    return {
        "train/success": now.success,
        "train/reward": float(played.reward[played.valid].mean()),
        "train/length": float(played.length.mean()),
        "train/episodes": now.episodes,
        "time/steps_per_second": now.step / max(now.seconds, 1e-9),
        "time/seconds": now.seconds,
    }


def _study(config: TrainConfig, learner: Any, kept: Kept | None, demos: Store | None, charge: Referee) -> Study:
    if not config.off_policy:
        return OnPolicy(learner, kept, demos, config.seed)
    assert kept is not None
    return OffPolicy(
        learner,
        kept,
        demos,
        config.seed,
        reward=config.reward.rewards,
        end_on_success=config.reward.ends,
        believe_demos=charge.believes_demos,
    )

"""What one seed draws: a config, a judge with its errors, people, an operator, and faults.

    scenario = draw(7)
    config = scenario.build(folder)

Every part is drawn by a key of its own (`uniform(seed, ...)`), so that `shrink` can leave one out and the rest stays as
it was. Keys of the config are drawn from all that can be set; what validation refuses is drawn again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plaudit.config import parse
from plaudit.data.store import Store
from plaudit.errors import ConfigError
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.config import CLONED
from plaudit.registry import LEARNER_REGISTRY
from plaudit.rollout.vector import collect_rollout
from plaudit.testing.env import HONEST, TYPE, SimulatedEnvConfig, write_model
from plaudit.testing.keys import NEVER, Leaf, any_value, belongs, leaves
from plaudit.testing.learner import ENCODER, OFF_POLICY, ON_POLICY, SMALL, base_policy
from plaudit.testing.people import TELEOP, Habits
from plaudit.testing.world import pick, uniform
from plaudit.training.config import DEMO_SEEDS, TrainingConfig
from plaudit.types import Labels

Kind = Literal[
    "kill", "power", "full", "worker", "slow", "operator", "silent", "unreachable", "person", "replace", "stop"
]
TRIES = 40  # configs that are drawn before a plain one is taken
BASIC_KEYS: Mapping[str, Any] = {
    "env.type": "plaudit.testing.env:SimulatedEnvConfig",
    "learner.type": OFF_POLICY,
    "policy.cameras": [],
    "run.device": "cpu",
    "run.checkpoint_freq": 60,
    "evaluation.episodes": 2,
    "evaluation.freq": 200,
}
ONLINE_KEYS = {
    "policy.inference.realtime": False,
    "run.publish_freq": 10,
    "judge.window.open": False,
    "policy.device": "cpu",
}


@dataclass(frozen=True)
class Event:
    """Something that happens in a run."""

    kind: Kind
    at: int  # change of the disk, call of a worker, episode, or turn of the loop
    what: str = ""
    number: float = 0.0  # length, turns, step, or which episode


@dataclass(frozen=True)
class Scenario:
    """Everything that one seed draws."""

    seed: int
    schedule: str
    judge: str
    keys: Mapping[str, Any] = field(default_factory=dict)  # dotted key -> value, on top of the basic ones
    errors: Mapping[str, Any] = field(default_factory=dict)  # of the judge
    habits: Habits = field(default_factory=Habits)
    events: tuple[Event, ...] = ()
    episodes: int = 40

    def tree(self, folder: Path) -> dict[str, Any]:
        """The config as a tree. folder: of everything that it names"""
        judge = {"type": TYPE, "model": str(folder / "judge")}
        if self.judge == "cascade":
            judge = {"type": "cascade", "stages": [judge, {"type": "human"}]}
        elif self.judge != "classifier":
            judge = {"type": self.judge}
        steps = pick((4, 6, 8, 12), self.seed, "max_steps")
        online = {**ONLINE_KEYS, "policy.inference.max_episode_steps": steps}
        flat: dict[str, Any] = {
            **BASIC_KEYS,
            **({"run.num_envs": 4} if self.schedule == "train" else online),
            **{f"judge.{key}": value for key, value in judge.items()},
            "schedule": "train" if self.schedule == "train" else "online",
            "env.max_steps": steps,
            "run.seed": self.seed % 1000,
            "run.max_episodes": self.episodes,
            **self.keys,
        }
        if "learner.real" in flat:
            flat["learner.type"] = flat.pop("learner.real")
            small = SMALL.get(flat["learner.type"], {})
            flat = {**{f"learner.{key}": value for key, value in small.items()}, **flat}
            if flat["learner.type"] in FROM_BASE:
                flat["learner.base"] = str(base_policy()[0])
        if flat.get("policy.encoder.type") == CLONED:
            flat = {"policy.encoder.clone_updates": 5, "policy.encoder.clone_batch_size": 8, **flat}
        if flat.get("policy.behavior") == "pretrained":
            flat["policy.path"] = str(base_policy()[0])
        if flat.pop("demos.made", 0):
            flat["demos.store"] = str(folder / "demos")
        if "collect.store" in flat:
            flat["collect.store"] = str(folder / "collected")
        tree: dict[str, Any] = {}
        for key, value in flat.items():
            *path, last = key.split(".")
            node = tree
            for name in path:
                node = node.setdefault(name, {})
            node[last] = dict(value) if isinstance(value, Mapping) else value
        return tree

    def accepted(self) -> TrainingConfig | None:
        """The config; None if validation refuses it."""
        try:
            return parse(TrainingConfig, self.tree(Path("/nonexistent")))
        except ConfigError:
            return None

    def build(self, folder: Path) -> TrainingConfig:
        """The config, if it is accepted, and the files that it names."""
        config = parse(TrainingConfig, self.tree(folder))
        write_model(folder / "judge", {**self.errors, "run_seed": config.run.seed})
        factor = pick((1.0, 0.2), self.seed, "judge_b")  # somebody who replaces a judge hopes for a better one
        rates = {name: factor * self.errors[name] for name in HONEST.keys() & self.errors.keys()}
        write_model(folder / "judge_b", {**self.errors, **rates, "run_seed": config.run.seed, "name": "b"})
        if config.demos.store is not None and not config.demos.store.exists():
            make_demos(config.demos.store, int(self.keys["demos.made"]), config.run.seed, config.env)
        return config

    @property
    def honest(self) -> bool:
        """Whether its judge errs no more than the audit allows, and no person relabels its episodes wrongly. A lossy
        codec spoils the pictures that it reads, and its scores lie around 0.04 and 0.97."""
        errs = any(value for name, value in self.errors.items() if name not in ("false", "missed"))
        lies = any(event.what == "relabel" for event in self.events)
        sees = (
            "jpeg" not in self.keys.get("run.store_images", "")
            and 0.1 < self.keys.get("judge.rule.threshold", 0.5) < 0.94
        )
        return self.judge in ("classifier", "simulator") and sees and not errs and not lies


# What may be set, with values to draw from; each is set in a quarter of the runs, a real learner in half of them.
KEYS: Mapping[str, tuple[Any, ...]] = {
    "reward.mode": ("replace", "add", "terminal"),
    "reward.reward_type": ("binary", "continuous"),
    "reward.shaping": (0.5, 1.0, 0.1),
    "reward.env_reward": ("sparse", "dense"),
    "reward.terminate_on_success": (True, False),
    "audit.fraction": (0.0, 0.05, 0.5, 1.0, 0.01),
    "audit.first_episodes": (0, 5, 40),
    "audit.max_false": (0.005, 0.01, 0.05, 0.3, 0.9),
    "audit.max_missed": (0.005, 0.01, 0.1, 0.5, 0.9),
    "audit.window": (1, 10, 50),
    "audit.onset_tolerance": (0, 2),
    "audit.on_alarm": ("stop", "warn"),
    "audit.by": ("auto", "simulator", "human"),
    "audit.minutes_per_hour": (1.0, 6.0, 60.0),
    "audit.minutes_per_episode": (0.1, 5.0),
    "evaluation.episodes": (1, 3),
    "evaluation.freq": (50, 10_000),
    "evaluation.stop_success_rate": (0.5, 1.0),
    "demos.made": (2, 6),
    "demos.relabel": (True, False),
    "run.max_steps": (50, 150, 400),
    "run.checkpoint_freq": (1, 20, 1000),
    "run.publish_freq": (1, 50),
    "run.num_envs": (1, 3, 8),
    "run.max_unlabeled_episodes": (1, 4),
    "run.max_pending_episodes": (1, 100, None),
    "run.worker_timeout_s": (5.0, 30.0),
    "run.sampling": ("local", "remote"),
    "run.capacity_gb": (1e-5, 1e-4),
    "run.keep_episodes": (True, False),
    "run.store_images": ("lossless",),
    "run.compress_old": ("lossless",),
    "learner.type": (OFF_POLICY, ON_POLICY),
    "learner.real": ("dagger", "dagger", *SMALL),  # with small settings
    "learner.gamma": (0.0, 0.5, 1.0),
    "learner.batch_size": (1, 16),
    "learner.utd_ratio": (0.1, 1.0, 2.0),
    "learner.random_steps": (10, 60),
    "learner.demo_ratio": (0.0, 0.1, 0.5, 1.0),
    "learner.n_step": (2, 3, 20),
    "learner.horizon": (2, 4),
    "learner.bc_weight": (0.0, 1.0),
    "learner.pretrain_updates": (5, 20),
    "learner.interventions.share": (0.0, 0.5, 1.0),
    "learner.interventions.half_life": (1, 5),
    "learner.interventions.drop_before": (1, 3),
    "learner.interventions.successes": (True, False),
    "learner.clone_updates": (3, 20),
    "learner.gripper": ("discrete",),
    "learner.critic_horizon": (1, 2),
    "learner.finetune_lr": (1e-3,),
    "learner.method": ("success", "advantage", "progress", "conditioned"),
    "learner.advantage_steps": (1, 3),
    "learner.resets.every": (6, 20),
    "learner.resets.relabeled": (0.0, 0.2),
    "learner.resets.relearn_updates": (0, 5),
    "judge.rule.decode": ("per_frame", "k_of_n", "cutoff"),
    "judge.rule.k": (1, 2, 3),
    "judge.rule.n": (3, 4),
    "judge.rule.threshold": (0.3, 0.9),
    "judge.ood": ("accept", "audit", "abstain"),
    "judge.retrain.min_new_labels": (2, 10),
    "judge.retrain.min_episodes": (1, 10),
    "judge.retrain.val_fraction": (0.5, 0.9),
    "judge.check": (0.0, 0.2, 0.5),
    "judge.budget": (1.0, 30.0),
    "judge.false_positives": (0.01, 0.3),
    "judge.misses": (0.1, 0.5),
    "judge.late_by": (1, 5),
    "policy.history": (1, 3),
    "policy.cameras": (("front",), None),
    "policy.encoder.type": (ENCODER, ENCODER, CLONED, "small"),
    "policy.encoder.frozen": (True, False),
    "policy.encoder.pooling": ("spatial_embeddings", "spatial_softmax"),
    "policy.encoder.features": (4,),
    "policy.encoder.shared": (True, False),
    "policy.inference.max_episode_steps": (1, 3, 10),
    "policy.inference.patience_s": (5.0, 20.0),
    "policy.inference.execution_horizon": (1, 2),
    "policy.inference.stop_on": ("success", "failure"),
    "policy.behavior": ("learner", "learner", "pretrained"),
    "env.obs": ("state", "pixels"),
    "env.fails": (False, True),
    "env.strange": (0.2, 1.0),
    "operator.gate": (True, False),
    "teleop": tuple({"type": TELEOP, **habits} for habits in ({}, {"helps": 1.0, "stretch": 1}, {"skill": 0.0})),
    "collect.store": ("collected",),
    "collect.target_success": (0, 5),
    "collect.target_failure": (0, 5),
}
INTERVENTIONS = "learner.interventions."  # keys that have an effect where a person takes over
CRITICS_OF_CHUNKS, FROM_BASE = ("expo", "dsrl", "steer"), ("weighted_bc", "expo", "dsrl", "steer")
ONLY: Mapping[str, tuple[str, ...]] = {  # keys that only some judges, schedules or real learners have
    **dict.fromkeys(("teleop", "policy.behavior"), ("online",)),
    "judge.rule": ("classifier", "simulator", "noisy"),
    "judge.ood": ("classifier",),
    "judge.retrain": ("classifier", "cascade"),
    "learner.resets": ("sac", "qchunk", *CRITICS_OF_CHUNKS),
    "learner.clone_updates": ("sac",),
    "learner.gripper": ("sac",),
    "learner.critic_horizon": ("qchunk", *CRITICS_OF_CHUNKS),
    "learner.finetune_lr": ("expo",),
    "learner.method": ("weighted_bc",),
    "learner.advantage_steps": ("weighted_bc",),
    **dict.fromkeys(("judge.check", "judge.budget"), ("cascade",)),
    **dict.fromkeys(("judge.false_positives", "judge.misses", "judge.late_by"), ("noisy",)),
}
RECORDING, SETTINGS = "record", "settings"  # what `draw` can leave out besides keys
# Keys that every scenario sets, or that follow from others.
FIXED = (
    *("schedule", "env.type", "env.max_steps", "run.seed", "run.max_episodes", "learner.type", "learner.base"),
    *("judge.type", "judge.model", "judge.stages", "judge.calibration", "policy.cameras", "policy.encoder.type"),
    *("demos.store", "collect.store", "teleop", "policy.path"),
)
RECORDED = ("teleop", "env.", "operator.", "policy.inference.patience_s", "policy.inference.max_episode_steps")
DISK = ("kill", "power", "full")  # events whose time is a change of the disk
WORKERS = ("replay buffer", "state manager", "env", "judge", "labeler", "learner")


def draw(seed: int, without: tuple[str, ...] = ()) -> Scenario:
    """The scenario of a seed. without: keys that are not drawn, by their beginning"""
    if RECORDING not in without and uniform(seed, RECORDING) < 0.08:
        return _draw_recording(seed)
    schedule = pick(("online", "online", "train"), seed, "schedule")
    judges = ("classifier",) * 6 + (
        ("simulator", "noisy") if schedule == "train" else ("simulator", "human", "cascade")
    )
    judge = pick(judges, seed, "judge")
    plain = Scenario(
        seed,
        schedule,
        judge,
        errors=_errors(seed),
        habits=Habits(**{name: pick(values, seed, name) for name, values in HABITS.items()}),
        events=_events(seed, schedule, judge),
        episodes=pick((20, 40, 60, 100), seed, "episodes"),
    )
    for attempt in range(TRIES):
        scenario = replace(plain, keys=_keys(seed, attempt, {judge, schedule}, without))
        if (config := scenario.accepted()) is not None:
            return scenario if SETTINGS in without else _varied(scenario, config)
    return plain


def _varied(scenario: Scenario, config: TrainingConfig) -> Scenario:
    """With other values of some keys, whatever they are; what validation refuses is left out."""
    seed, keys = scenario.seed, leaves(config)
    for n in range(pick((0, 0, 2, 5, 10, 20), seed, SETTINGS)):
        part, drawn = pick(("learner.", "learner.", "judge.", ""), seed, SETTINGS, n, "part"), scenario.keys
        free = [key for key in sorted(keys) if key.startswith(part) and not belongs(key, {*FIXED, *NEVER, *drawn})]
        if not free:
            continue
        key = pick(free, seed, SETTINGS, n)
        value = any_value(keys[key], key, seed, SETTINGS, n, "value")
        if value != keys[key][1] and not any(belongs(name, [key]) for name in drawn):
            other = replace(scenario, keys={**drawn, key: value})
            scenario = scenario if other.accepted() is None else other
    return scenario


@cache
def every_key() -> dict[str, Leaf]:
    """The keys of the configs that are drawn from, whatever their judge and learner."""
    common: dict[str, Any] = {"teleop": {"type": TELEOP}, "demos.made": 2, "collect.store": "collected"}
    kinds = [("train", judge, OFF_POLICY) for judge in ("classifier", "simulator", "noisy")]
    kinds += [("online", judge, OFF_POLICY) for judge in ("human", "cascade")]
    kinds += [("train", "simulator", learner) for learner in (ON_POLICY, *SMALL)]
    keys: dict[str, Leaf] = {}
    for schedule, judge, learner in kinds:
        own = {key: common[key] for key in common if key != {"train": "teleop", "online": "collect.store"}[schedule]}
        config = Scenario(0, schedule, judge, {**own, "learner.real": learner}).accepted()
        assert config is not None, f"{judge}, {learner}"
        keys |= leaves(config)
    return {key: leaf for key, leaf in keys.items() if key not in ("teleop", "collect")}  # sections that some lack


def _draw_recording(seed: int) -> Scenario:
    """A session of `plaudit record`, with the faults that robot, disk and operator have."""
    kinds = ("kill", "power", "full", "operator", "silent")
    events = [
        replace(e, at=1 + e.at * 200 // 1200) if e.kind in DISK else e for e in _events(seed, "online", RECORDING)
    ]
    stops = ("success", "failure", "discard", "repeat", "end", "pause", "stop")
    marks = [Event("operator", n, pick(stops, seed, "mark", n), 2) for n in range(25) if uniform(seed, "mark", n) < 0.5]
    keys = _keys(seed, 0, {RECORDING, "online"}, ())
    return Scenario(
        seed,
        RECORDING,
        "simulator",
        {"env.obs": "both", **{key: keys[key] for key in keys if key.startswith(RECORDED)}},
        events=(*(e for e in events if e.kind in kinds), *(marks if uniform(seed, "attended") < 0.7 else ())),
        episodes=pick((2, 5, 12), seed, "episodes"),
    )


def _keys(seed: int, attempt: int, has: set[str], without: tuple[str, ...]) -> dict[str, Any]:
    """has: judge and schedule"""
    chance = 0.25 * 0.95**attempt
    drawn: dict[str, Any] = {}
    for key, values in KEYS.items():
        fits = all(
            not {*has, drawn.get("learner.real")}.isdisjoint(names)
            for prefix, names in ONLY.items()
            if key.startswith(prefix)
        )
        often = 2 if key == "learner.real" else 1
        if fits and not key.startswith(without) and uniform(seed, attempt, key) < often * chance:
            drawn[key] = pick(values, seed, attempt, key, "value")
    if "policy.encoder.type" in drawn:
        drawn.setdefault("policy.cameras", ("front",))
    if real := drawn.get("learner.real"):
        fields = LEARNER_REGISTRY.get(real).model_fields
        drawn = {k: v for k, v in drawn.items() if not k.startswith("learner.") or k.split(".")[1] in {"real", *fields}}
    if not drawn.get("env.fails", True) and drawn.get("policy.inference.stop_on") == "failure":
        del drawn["policy.inference.stop_on"]  # the first episode ends the run: the env reports no such flag
    return drawn if "teleop" in drawn else {key: drawn[key] for key in drawn if not key.startswith(INTERVENTIONS)}


BAD_ERRORS: Mapping[str, tuple[float, ...]] = {  # of a judge that is not honest; each in three of ten
    "false": (0.1, 0.5, 1.0),
    "missed": (0.3, 0.9),
    "early": (0.3, 1.0),
    "late": (0.3, 1.0),
    "exploitable": (0.5, 1.0),
    "start": (0.05, 0.3),
    "strange": (0.5, 1.0),
    "drift": (10, 30),
    "raises": (0.1, 1.0),
}
HABITS: Mapping[str, tuple[Any, ...]] = {
    "order": ("in order", "random", "errors first"),
    "delay": (0, 2, 20),
    "twice": (0.0, 0.2),
    "never": (0.0, 0.0, 0.3),
    "excludes": (0.0, 0.0, 0.2),
}


def _errors(seed: int) -> dict[str, Any]:
    kind = pick(("honest", "honest", "bad", "bad", "exploitable"), seed, "errors")
    errors = {"false": pick((0.0, 0.01, 0.018), seed, "false"), "missed": pick((0.0, 0.05), seed, "missed")}
    if kind == "exploitable":
        return {**errors, "exploitable": 1.0}
    bad = [name for name in BAD_ERRORS if kind == "bad" and uniform(seed, "bad", name) < 0.3]
    return {**errors, **{name: pick(BAD_ERRORS[name], seed, "bad value", name) for name in bad}}


def _events(seed: int, schedule: str, judge: str) -> tuple[Event, ...]:
    events: list[Event] = []

    def add(kind: Kind, most: int, chance: float, until: int, whats: tuple[str, ...] = ("",), upto: int = 1) -> None:
        for n in range(most if uniform(seed, kind) < chance else 0):
            at, what = 1 + int(uniform(seed, kind, n) * until), pick(whats, seed, kind, n, "what")
            events.append(Event(kind, at, what, 1 + int(uniform(seed, kind, n, "number") * upto)))

    add("kill", 2, 0.4, 1200)
    add("power", 1, 0.2, 1200)
    add("full", 1, 0.2, 1200, upto=60)
    add("person", 6, 0.4, 120, ("answer", "relabel", "exclude"), 1000)
    add("stop", 1, 0.2, 80)
    if judge == "classifier":
        add("replace", 1, 0.4, 300, ("model", "calibration"))
    if schedule == "online":
        kinds = tuple(f"{worker}: {kind}" for worker in WORKERS for kind in ("raise", "lost", "answer lost", "hang"))
        add("worker", 3, 0.4, 60, kinds)
        add("slow", 1, 0.4, 1, ("env", "judge", "judge", "learner"), 5)
        add("operator", 6, 0.3, 20, ("success", "failure", "discard", "repeat", "end", "pause"), 3)
        add("silent", 1, 0.2, 20, ("once", "often", "always"), 3)
        add("unreachable", 1, 0.2, 60, upto=40)
    return tuple(events)


def make_demos(folder: Path, episodes: int, seed: int, env_config: SimulatedEnvConfig) -> None:
    """A store of sliders that are pushed to the goal, with the simulator's labels; a person may have excluded one."""
    env, judge = env_config.build(episodes), SimulatorJudge()
    push = np.tile(np.array([1, 0], np.float32), (episodes, 1))
    seeds = range(DEMO_SEEDS + 1000 * seed, DEMO_SEEDS + 1000 * seed + episodes)
    rollout = collect_rollout(env, lambda _: push, list(seeds), SuccessDetector(judge, episodes), steps_after_success=2)
    with Store.create(folder) as store:
        for episode, labels in rollout.episodes(env, judge):
            store.ledger.append(store.append(episode), labels)
        if uniform(seed, "excluded demonstration") < 0.5:
            nothing = np.full(store.entry(0).steps + 1, np.nan)
            store.ledger.append(0, Labels.from_targets(nothing, "human"))

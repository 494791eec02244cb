"""A judge as a file: its `type`, what it needs, its decision rule, its calibration, and what its scores mean.

    type: classifier
    model: runs/reward_model
    rule: {threshold: 0.93, k: 2, n: 3}
    calibration: {temperature: 1.2, bias: -0.1}
    calibration_record: {...}                       # how the two came about, by `plaudit judge calibrate`

`plaudit train-reward` writes one next to the weights (`judge.yaml`), and every command takes that folder. A calibration
belongs to the model it was fitted on: the record has that model's fingerprint, and there is a warning if it differs.

A `Signal` is the unit, direction and bounds of a score, and which scores may be compared. A score that was scaled by
the smallest and the largest value of its own episode ends near 1 in every episode, also in one that fails. It shows the
order within an episode and nothing about which episode succeeds, so it is refused where episodes are compared or
rewarded.

`JudgeWithProgress` adds the values of a model of progress, for potential-based shaping
(`judge.progress=runs/progress`). The judge alone says what succeeded; the model, which `plaudit train-progress` makes,
says how far it is.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import (
    Config,
    NonNegativeFloat,
    NonNegativeInt,
    dump_yaml,
    key_location,
    merge,
    parse_overrides,
    read_values,
    read_yaml,
)
from plaudit.data.disk import write_atomic
from plaudit.data.rewards import RewardConfig
from plaudit.errors import BadFile, ConfigError, JudgeError, NotAllowed, PlauditError, UnknownName, did_you_mean
from plaudit.files import Root, read_json_object
from plaudit.judges.calibration import CalibrationRecord, PlattScaling
from plaudit.judges.guarantee import Rights
from plaudit.protocols import Judge, LiveJudge, ScoreStream
from plaudit.registry import JUDGE_REGISTRY
from plaudit.rule import DecisionRule, Decode, OodAction, PartialRule
from plaudit.trust import from_file
from plaudit.types import AnyArray, BoolArray, Episode, FloatArray, Observation, Scores

SUCCESS, PROGRESS = "success_prob", "progress"  # the arrays of `Scores`


@dataclass(frozen=True)
class Signal:
    """The meaning of one array of scores."""

    description: str
    unit: Literal["probability", "fraction", "score"] = "probability"
    direction: Literal["higher", "lower"] = "higher"  # which values are better
    bounds: tuple[float, float] = (0.0, 1.0)
    scope: Literal["any", "task", "episode"] = "any"  # episodes whose values may be compared: any, of one task, itself


DEFAULT: Mapping[str, Signal] = {SUCCESS: Signal("probability that the frame shows success")}


def check_compared(config: Any) -> None:
    """Refuse a judge whose scores mean nothing outside of their own episode, where episodes are compared.

    config: a `JudgeConfig`
    """
    if config.signals[SUCCESS].scope == "episode":
        raise JudgeError(
            f"judge '{config.type}' scales its scores by the smallest and the largest of each episode, so a failure "
            "ends near 1 like a success. Episodes cannot be compared by such scores; leave the scaling out (scale=none)"
        )


def check_rewarded(config: Any, reward: RewardConfig) -> None:
    """Refuse rewards that a judge's scores must not become."""
    check_compared(config)
    progress = config.signals.get(PROGRESS)
    if reward.shaping and progress is not None and progress.scope == "episode":
        raise JudgeError(
            f"the progress of judge '{config.type}' is scaled within each episode, so it would pay failures like "
            "successes; set reward.shaping=0, or leave the scaling out (scale=none)"
        )
    paid = reward.reward_type == "continuous" and reward.mode != "terminal"
    if paid and config.signals[SUCCESS].unit != "probability":
        raise JudgeError(
            f"the scores of judge '{config.type}' are progress, and reward.reward_type=continuous would pay it at "
            "every step. A policy then earns most by staying almost finished for as long as it can. Use "
            "reward.reward_type=binary, and reward.shaping for progress: it pays only for changes, so the best policy "
            "stays the same"
        )


STALLED = 0.05  # a smaller rise of progress does not count
STALL_FRACTION = 1 / 3  # of an episode, at its end: so long without a rise is a stall


class JudgeWithProgress:
    """A `LiveJudge` where the judge is one: its own scores, with the progress of another."""

    def __init__(self, judge: Judge, progress: LiveJudge):
        self.judge, self.progress, self.rule = judge, progress, judge.rule
        # Labels have both judges' numbers, so either of them changed makes other labels.
        self.id = replace(judge.id, progress=progress.id.fingerprint)
        self.uncalibrated = getattr(judge, "uncalibrated", judge.id.fingerprint)
        self.warnings: Sequence[str] = getattr(judge, "warnings", ())
        self.trained_on: str | None = getattr(judge, "trained_on", None)

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """The first error of the two where one of them has one."""
        answers: list[Scores | PlauditError | None] = []
        for one, value in zip(self.judge.score(episodes), self.progress.score(episodes), strict=True):
            if isinstance(one, Scores) and isinstance(value, Scores):
                answers.append(replace(one, progress=value.progress))
            else:
                answers.append(value if isinstance(one, Scores) else one)
        return answers

    def stream(self, num_envs: int) -> "StreamWithProgress":
        if not isinstance(self.judge, LiveJudge):
            raise JudgeError(f"judge '{self.id.source}' scores whole episodes, and cannot follow one")
        return StreamWithProgress(self.judge.stream(num_envs), self.progress.stream(num_envs))


class StreamWithProgress:
    """A `ScoreStream` of two."""

    def __init__(self, judge: ScoreStream, progress: ScoreStream):
        self._judge, self._progress = judge, progress

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        value = self._progress.reset(observation, mask)
        return replace(self._judge.reset(observation, mask), progress=value.progress)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        return replace(self._judge.step(observation, info), progress=self._progress.step(observation, {}).progress)


def describe_progress(values: FloatArray) -> str:
    """How far an episode came, and whether it stalled: '62%, stalled'."""
    values = values[~np.isnan(values)]
    if not len(values):
        return ""
    before = values[: max(1, round(len(values) * (1 - STALL_FRACTION)))]
    stalled = values[len(before) :].max(initial=0.0) <= before.max() + STALLED and values[-1] < 1 - STALLED
    return f"{values[-1]:.0%}{', stalled' if stalled else ''}"


HUMAN, CASCADE = "human", "cascade"  # the sources of a human's labels, and of a cascade's
REFERENCE_SOURCES = (HUMAN, "simulator", "dataset", "cutoff")  # whose labels a model may learn from
JUDGE_FILE, MODEL_FILE, ADAPTER_FILE = "judge.yaml", "model.json", "adapter.json"  # of a judge's own folder
JUDGE_FILES, _WEIGHTS = (".yaml", ".yml", ".json"), (".pt", ".safetensors")
_OWN_FOLDERS = {MODEL_FILE: "classifier", ADAPTER_FILE: "vlm"}  # the description that a folder is known by -> its type


class TrainingDataInfo(Config):
    """The data that a model was trained on."""

    fingerprint: str  # of episodes and labels
    episodes: dict[str, NonNegativeInt]  # part -> how many
    frames: dict[str, NonNegativeInt]
    sources: tuple[str, ...]  # whose labels
    seen: str | None = None  # keys of its training and validation episodes (data/episode_keys.py); None: not known


class JudgeConfig(Config):
    """Base of every judge's config. A plugin adds what it needs and a `build`."""

    # Whether it is examined before it judges what a robot does: all but a human and a simulator.
    needs_certificate: ClassVar[bool] = True
    # Whether it uses what only a simulator knows. It looks at no camera, and no robot can have it.
    reads_simulator: ClassVar[bool] = False

    rule: PartialRule = Field(default_factory=DecisionRule)  # from frame scores to success
    calibration: PlattScaling | None = None  # of its probabilities; None: as they are
    calibration_record: CalibrationRecord | None = None  # written by `plaudit judge calibrate`
    ood: OodAction | None = None  # of its rule, see there
    rights: Rights | None = None  # which episodes it decides alone as a stage of a cascade
    cost_s: NonNegativeFloat = 1.0  # of an episode there, in seconds of compute, or of a human
    progress: Path | None = None  # a model of progress (plaudit train-progress), whose values are added to its scores
    force: bool = False  # take it although it failed a control; on a robot also uncalibrated, or without a certificate

    @model_validator(mode="after")
    def _ood_in_rule(self) -> Self:
        """`ood` is a key of its own and part of the rule: another setting makes other labels."""
        if self.ood is not None:
            object.__setattr__(self, "rule", self.rule.model_copy(update={"ood": self.ood}))
        return self

    @property
    def certificate_path(self) -> Path | None:
        """Where `plaudit judge exam` puts its certificate; None where nothing follows from this config."""
        return None

    @property
    def sees_images(self) -> bool:
        """Whether the judge uses camera images, even if only for progress."""
        return not self.reads_simulator or self.progress is not None

    @property
    def uses_task(self) -> bool:
        """Whether its scores depend on the episode's instruction: such a judge is also tried with a wrong one."""
        return False

    @property
    def signals(self) -> Mapping[str, Signal]:
        """What its scores mean."""
        return DEFAULT

    @property
    def needs_calibration(self) -> bool:
        """Whether its probabilities mean nothing before `plaudit judge calibrate`, and that is still to be done."""
        return False

    @property
    def requires_gpu(self) -> bool:
        """Whether it needs a machine with a GPU."""
        return False

    def build(self) -> Judge:
        """The judge, where it is to run."""
        raise NotImplementedError

    def build_progress(self, device: str = "auto") -> LiveJudge | None:
        """The judge of `progress`; None where it is not set."""
        if self.progress is None:
            return None
        tree = {"type": "progress", "model": str(self.progress), "force": self.force, "device": device}
        config: Any = JUDGE_REGISTRY.parse(tree)
        return config.build()

    def build_with_progress(self, device: str = "auto") -> Judge:
        """The judge, with the values of `progress` where it is set."""
        progress = self.build_progress(device)
        return self.build() if progress is None else JudgeWithProgress(self.build(), progress)

    def resolved(self) -> Self:
        """The config with everything that affects labels, including settings from other files."""
        return self

    def with_judge_file(self, folder: Path) -> Self:
        """The config with rule and calibration from the judge.yaml of its folder, unless they are set."""
        if not (folder / JUDGE_FILE).exists():
            return self
        own = load_judge_config(folder, None)
        rule = DecisionRule(**{**own.rule.model_dump(exclude_unset=True), **self.rule.model_dump(exclude_unset=True)})
        update: dict[str, Any] = {"rule": rule, "rights": self.rights or own.rights}
        if "calibration" not in self.model_fields_set:
            update |= {"calibration": own.calibration, "calibration_record": own.calibration_record}
        return self.model_copy(update=update)

    def with_decode(self, decode: Decode) -> Self:
        """The config with another decode rule."""
        return self.model_copy(update={"rule": self.rule.model_copy(update={"decode": decode})})


def load_judge_config(
    path: Path | None, name: str | None, flags: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> JudgeConfig:
    """From a file or a judge's folder, a name (or dotted path) of the registry, flags and `a.b=c` overrides, of which
    the later win."""
    path, own, root = _own_judge(path)
    tree, given = read_values(path, overrides, root=root)
    tree = {**own, **tree}
    kind = tree.get("type", name)
    if name is not None and kind != name:
        raise ConfigError([(("type",), f"{path} describes a '{kind}', not a '{name}'; name one of the two")])
    names = sorted(one for one in JUDGE_REGISTRY.names() if ":" not in one)
    if not isinstance(kind, str):
        where = "with --judge" if path is None else f"with --judge, or as 'type' in {path}"
        raise UnknownName(f"name a judge {where}; known: {', '.join(names)}")
    if kind == HUMAN:
        raise UnknownName(
            "a person labels in a window: plaudit label STORE --judge human; measure a person's labels with: "
            "plaudit judge eval STORE --judge ledger --source human"
        )
    if ":" not in kind and kind not in names:
        raise UnknownName(f"there is no judge '{kind}'; {did_you_mean(kind, names)}")
    typed, flags = [given, name, dict(flags or {})], {**(flags or {}), "type": kind}
    try:
        with from_file(path, typed):
            config = JUDGE_REGISTRY.parse({**tree, **flags})
    except NotAllowed as error:
        raise ConfigError([(("type",), f"{path}: {error}")]) from None
    except ConfigError as error:
        set_keys = {**given, **flags}
        raise ConfigError(
            (where, f"{key_location(where, path, set_keys)}: {message}") for where, message in error.problems
        ) from None
    if not isinstance(config, JudgeConfig):
        raise UnknownName(f"'{kind}' is not a judge: its config does not derive from plaudit.judges.config.JudgeConfig")
    return config


def load_named_judge(name: str, overrides: Sequence[str] = ()) -> JudgeConfig:
    """From a folder or a file of any kind, or a name (or dotted path) of the registry."""
    path = Path(name)
    given = (path, None) if path.exists() else (None, name)
    return load_judge_config(*given, None, overrides)


def _own_judge(path: Path | None) -> tuple[Path | None, dict[str, Any], Root | None]:
    """The judge's file that a path names; the keys that follow from a judge's own folder, which is its model, or from a
    reward model of RLinf or lerobot; and the own folder, or None if the user named the file."""
    if path is None:
        return None, {}, None
    has_description = (path / MODEL_FILE).is_file()
    if path.suffix in _WEIGHTS or (is_lerobot_classifier(path) and not has_description):
        return None, {"type": "classifier", "model": str(path)}, None
    folder = path if path.is_dir() else path.parent
    kind = own_kind(folder)
    if kind is None or path not in (folder, folder / JUDGE_FILE):
        return path, {}, None
    file = folder / JUDGE_FILE
    return file if file.exists() else None, {"type": kind, "model": str(folder)}, Root(folder)


def own_kind(folder: Path) -> str | None:
    """The type of the judge whose own folder this is: a reward model's, or an adapter's; None where it is neither."""
    return next((kind for name, kind in _OWN_FOLDERS.items() if (folder / name).is_file()), None)


def is_judge_path(name: str) -> bool:
    """Whether a judge is named by a file or a folder, and not by its type or a dotted path."""
    if ":" in name or name in JUDGE_REGISTRY.names():
        return False
    return "/" in name or Path(name).suffix in (*JUDGE_FILES, *_WEIGHTS) or Path(name).exists()


def judge_tree(path: Path) -> dict[str, Any]:
    """The keys of the judge that a path names: its own folder, a reward model's file, lerobot's folder, or a judge's
    file."""
    file, own, root = _own_judge(path)
    if path.is_dir() and not own:
        raise BadFile(path, f"this is not a reward model: it has no {MODEL_FILE}; 'plaudit train-reward' makes one")
    return {**own, **({} if file is None else read_values(file, (), root=root)[0])}


def is_lerobot_classifier(folder: Path) -> bool:
    """Whether this is a folder of lerobot's reward classifier."""
    path = folder / "config.json"
    return path.is_file() and read_json_object(path).get("type") == "reward_classifier"


def save_own_judge(folder: Path, rule: DecisionRule, *, kind: str = "classifier") -> None:
    """Write the `judge.yaml` of a reward model's folder: every command that gets the folder decides by this rule."""
    tree = {"type": kind, "rule": rule.model_dump(mode="json")}
    write_atomic(folder / JUDGE_FILE, dump_yaml(tree).encode())


def save_rights(folder: Path, rights: Rights) -> None:
    """Add to the `judge.yaml` of a reward model's folder what it may decide alone in a cascade."""
    tree = {**read_yaml(folder / JUDGE_FILE, Root(folder)), "rights": rights.model_dump(mode="json")}
    write_atomic(folder / JUDGE_FILE, dump_yaml(tree).encode())


def judge_warnings(config: JudgeConfig, judge: Judge) -> list[str]:
    """Messages about a judge, before its labels are used."""
    warnings: list[str] = list(getattr(judge, "warnings", ()))
    if config.needs_calibration:
        warnings.append(uncalibrated_warning(config))
    record, now = config.resolved().calibration_record, getattr(judge, "uncalibrated", judge.id.fingerprint)
    if record is not None and record.fingerprint != now:
        warnings.append(
            f"this judge's rule was fitted on {record.fingerprint} and it is {now} now: its threshold may let anything "
            "through; run plaudit judge calibrate again"
        )
    return warnings


def uncalibrated_warning(config: JudgeConfig) -> str:
    """Warning that the judge is not calibrated, with the command that calibrates it."""
    given = config.model_dump(mode="json", exclude_defaults=True, exclude={"type", "force", "calibration"})
    keys = map(shlex.quote, _overrides(given))
    words = ["plaudit judge calibrate STORE --judge", JUDGE_REGISTRY.name_of(config), *keys, "--output judge.yaml"]
    return (
        "this judge is not calibrated, and its threshold may let anything through. Fit it on a store with about 50 "
        f"episodes that a human has labeled: {' '.join(words)}; then use judge.yaml as the judge"
    )


def _overrides(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`a.b=c` for each value of a tree, which is read back the same."""

    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _overrides(value, f"{prefix}{key}.")
        elif isinstance(value, str) and dump_yaml({"key": value}) == f"key: {value}\n":
            yield f"{prefix}{key}={value}"
        else:
            yield f"{prefix}{key}={json.dumps(value)}"


def save_judge_config(
    output: Path,
    path: Path | None,
    name: str | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str],
    fitted: JudgeConfig,
) -> None:
    """Write the judge that `load_judge_config` got from the same arguments, with what was fitted; `${...}` stays."""

    path, own, root = _own_judge(path)
    named = {} if name is None else {"type": name}
    given = {} if path is None else read_yaml(path, root)
    new = fitted.model_dump(mode="json", include={"calibration", "calibration_record", "rights"})
    new["rule"] = fitted.rule.model_dump(mode="json")
    tree = reduce(merge, (named, own, given, parse_overrides(overrides), dict(flags), new))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, dump_yaml(tree).encode())

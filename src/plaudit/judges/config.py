"""A judge as a file has it: its `type`, what it needs, and the rule that was fitted for it.

    type: classifier
    model: runs/reward_model
    rule: {decode: cutoff, threshold: 0.93, shift: 2}    # of a judge that gives numbers
    calibrated: {...}                                    # how the rule came about, by `plaudit judge calibrate`

Judges that give every frame a number derive from `FrameLabelerConfig`, others from `LabelerConfig`. A rule belongs to
the model it was fitted on, so the record has that model's fingerprint, and another model under it is told of.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import Field

from plaudit.config import Config, place_of, read_tree
from plaudit.data.journal import write_atomic
from plaudit.errors import ConfigError, NotAllowed, UnknownName, nearest
from plaudit.judges.decoded import Decoded
from plaudit.judges.frames import Decode, EpisodeJudge, FrameLabeler, Rule
from plaudit.registry import LABELER_REGISTRY
from plaudit.trust import from_file
from plaudit.yaml_file import read_yaml

HUMAN = "human"  # not of the registry: nobody builds a person


class LabelerConfig(Config):
    """Base of every judge's config."""

    @property
    def reads_task(self) -> bool:
        """Whether its verdict depends on the episode's instruction: such a judge is also asked with a wrong one."""
        return False

    @property
    def needs_gpu(self) -> bool:
        """Whether a machine without one is no place for it."""
        return False

    def build(self) -> EpisodeJudge:
        raise NotImplementedError


class Calibrated(Config):
    """Where a rule came from, and what it is worth on episodes that did not choose it."""

    date: str  # UTC
    fingerprint: str  # of the scorer
    reference: tuple[str, ...]  # whose labels it was fitted on
    episodes: int
    successes: int  # of these, episodes that succeed
    target_fpr: float  # share of failure frames that may be called success
    fpr: float  # share that was, on episodes held back
    fpr_low: float  # 95% confidence interval of it, by episodes
    fpr_high: float
    recall: float  # share of success frames called, on episodes held back


class FrameLabelerConfig(LabelerConfig):
    """Of a judge that gives every frame a number."""

    rule: Rule = Field(default_factory=Rule)
    calibrated: Calibrated | None = None

    def build(self) -> FrameLabeler:
        raise NotImplementedError


def read_judge(
    path: Path | None, name: str | None, flags: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> LabelerConfig:
    """From a file, a name (or dotted path) of the registry, flags and `a.b=c` overrides, of which the later win."""
    tree, given = read_tree(path, overrides)
    kind = tree.get("type", name)
    if name is not None and kind != name:
        raise ConfigError([(("type",), f"{path} describes a '{kind}', not a '{name}'; name one of the two")])
    _check_kind(kind, path)
    typed, flags = [given, name, dict(flags or {})], {**(flags or {}), "type": kind}
    try:
        with from_file(path, typed):
            config = LABELER_REGISTRY.parse({**tree, **flags})
    except NotAllowed as error:
        raise ConfigError([(("type",), f"{path}: {error}")]) from None
    except ConfigError as error:
        asked = {**given, **flags}
        raise ConfigError(
            (where, f"{place_of(where, path, asked)}: {sentence}") for where, sentence in error.problems
        ) from None
    if not isinstance(config, LabelerConfig):
        raise UnknownName(f"'{kind}' is not a judge: its config does not derive from plaudit.judges.config")
    return config


def _check_kind(kind: Any, path: Path | None) -> None:
    known = sorted([HUMAN, *(name for name in LABELER_REGISTRY.names() if ":" not in name)])
    if not isinstance(kind, str):
        where = "with --judge" if path is None else f"with --judge, or as 'type' in {path}"
        raise UnknownName(f"name a judge {where}; known: {', '.join(known)}")
    if kind == HUMAN:
        raise UnknownName(
            "a person is asked in a window: plaudit label STORE --judge human; what one said before is measured with: "
            "plaudit judge eval STORE --judge ledger --source human"
        )
    if ":" not in kind and kind not in known:
        raise UnknownName(f"there is no judge '{kind}'; {nearest(kind, known)}")


def build_judge(config: LabelerConfig, decode: Decode | None = None) -> EpisodeJudge:
    """The judge, with another way from numbers to labels if one is asked for; who has no rule is wrapped in one."""
    if decode is None:
        return config.build()
    if isinstance(config, FrameLabelerConfig):
        rule = config.rule.model_copy(update={"decode": decode})
        return config.model_copy(update={"rule": rule}).build()
    return Decoded(config.build(), Rule(decode=decode))


def doubts(config: LabelerConfig, judge: EpisodeJudge) -> list[str]:
    """What to tell of a judge before it is believed."""
    notes = list(judge.notes) if isinstance(judge, FrameLabeler) else []
    fitted = config.calibrated if isinstance(config, FrameLabelerConfig) else None
    if fitted is None or fitted.fingerprint == judge.facts["model"]:
        return notes
    return [
        *notes,
        f"this judge's rule was fitted on {fitted.fingerprint} and it is {judge.facts['model']} now: its threshold may "
        "let anything through; run plaudit judge calibrate again",
    ]


def save_calibrated(
    output: Path,
    path: Path | None,
    name: str | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str],
    rule: Rule,
    calibrated: Calibrated,
) -> None:
    """The judge that `read_judge` got from the same, as a file, with its rule. What stands in `${...}` stays so."""
    named = {} if name is None else {"type": name}
    given = {} if path is None else read_yaml(path)
    told = {"rule": rule.model_dump(mode="json"), "calibrated": calibrated.model_dump(mode="json")}
    tree = OmegaConf.merge(named, given, OmegaConf.from_dotlist(list(overrides)), dict(flags), told)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, OmegaConf.to_yaml(tree).encode())

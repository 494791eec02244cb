"""Judges who are asked in turn, the cheapest first: a classifier, a vision-language model where it is unsure, a human.

    type: cascade
    budget: 6                                # minutes of a human an hour
    stages:
      - runs/reward_model                    # a file or a folder, as of `judge=`, or the keys of a judge
      - {type: judge_vlm.yaml, cost_s: 4}    # seconds that an episode takes it
      - human

A stage decides alone where its rights prove it (guarantee.py; `plaudit judge calibrate` writes them into its file) and
no stage before it contradicts. The other episodes get labels in which no frame is labeled: they are not learned from,
and the same judges are not asked again. A person who labels one decides it; training/audit.py chooses which
ones to ask about. A stage without rights decides nothing and may still contradict.

Some episodes go to the person by lot, whatever the stages say. A later version of a classifier is measured on these:
among episodes that an earlier stage was unsure of, those that it is sure and wrong about are missing.

A label says which stage decided and at what cost (`CascadeResult`). If it was not the first stage, the labels of the
deciding one are kept next to the cascade's, under their own source, for the first stage to learn from.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from plaudit.config import Number
from plaudit.data.episode_keys import pack_keys
from plaudit.errors import JudgeError, JudgeUnavailable, PlauditError
from plaudit.judges.config import CASCADE, JudgeConfig, is_judge_path, judge_tree, judge_warnings
from plaudit.judges.evaluation import seen_keys
from plaudit.judges.guarantee import Rights
from plaudit.judges.human.judge import HumanJudgeConfig
from plaudit.judges.labeling import label_episodes
from plaudit.protocols import Judge
from plaudit.registry import JUDGE_REGISTRY
from plaudit.rule import DecisionRule, Decode, begins_with_success, release
from plaudit.trust import from_file
from plaudit.types import CascadeResult, Episode, JudgeId, Labels, Scores

# Why an episode is undecided. A human is asked about the first kind first.
BY_LOT, DISAGREE, UNSURE = "by lot", "disagreement", "unsure"
URGENCY = {BY_LOT: 0, DISAGREE: 1, UNSURE: 2}


def _read_stage(value: Any) -> Any:
    """A judge by its name, its file or its keys; keys of a file are checked as those of a file."""
    tree = {"type": value} if isinstance(value, str) else value
    named = tree.get("type") if isinstance(tree, dict) else None
    if not isinstance(named, str) or not is_judge_path(named):
        return tree
    path = Path(named)
    if not path.exists():
        raise ValueError(f"there is no judge {named}; name a file, a reward model's folder, or a type")
    own = judge_tree(path)
    if own.get("type") == CASCADE:  # before its stages are read: this may be the very file that names it
        raise ValueError(f"{named} is a cascade, and a stage cannot be a cascade; list its stages instead")
    with from_file(path):
        return JUDGE_REGISTRY.parse({**own, **{key: tree[key] for key in tree if key != "type"}})


class CascadeConfig(JudgeConfig):
    """Stages, and the limits on questions to a human."""

    type: Literal["cascade"] = "cascade"
    # The cheapest first.
    stages: tuple[Annotated[Any, JUDGE_REGISTRY.field, BeforeValidator(_read_stage)], ...] = Field((), max_length=16)
    budget: Number | None = None  # minutes of a human an hour; None: no limit
    check: float = Field(default=0.05, ge=0, lt=1)  # of the episodes, that go to the human by lot

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        kinds = [JUDGE_REGISTRY.name_of(stage) for stage in self.stages]
        if not self.models:
            raise ValueError("a cascade needs a stage before the human, like stages=[runs/reward_model,human]")
        if CASCADE in kinds:
            raise ValueError("a stage of a cascade cannot be a cascade; list its stages instead")
        if any(isinstance(stage, HumanJudgeConfig) for stage in self.stages[:-1]):
            raise ValueError("a human must be the last stage of a cascade")
        if self.budget is not None and not 0 < self.budget <= 60:
            raise ValueError(
                f"{self.budget:g} minutes of a human per hour is not a valid budget; use a value above 0 and at "
                "most 60, or leave the stage 'human' out"
            )
        if self.budget is not None and self.human is None:
            raise ValueError("budget limits a human's time, but no stage is human; add one, or leave out budget")
        if self.budget is not None and self.human is not None and 60 * self.budget < self.human.cost_s:
            raise ValueError(
                f"a budget of {self.budget:g} minutes an hour is less than one episode takes a human "
                f"({self.human.cost_s:g} s); allow more, or set cost_s of the stage 'human'"
            )
        if self.rule.model_fields_set:
            raise ValueError("a cascade has no rule of its own; set that of a stage, in its file")
        return self

    @property
    def human(self) -> HumanJudgeConfig | None:
        """The last stage, where a human is asked."""
        last = self.stages[-1] if self.stages else None
        return last if isinstance(last, HumanJudgeConfig) else None

    @property
    def models(self) -> tuple[JudgeConfig, ...]:
        """The stages before the human."""
        return self.stages[:-1] if self.human is not None else self.stages

    @property
    def requires_gpu(self) -> bool:
        return any(stage.requires_gpu for stage in self.models)

    @property
    def uses_task(self) -> bool:
        return any(stage.uses_task for stage in self.models)

    def names(self) -> list[str]:
        """The types of the stages, each once."""
        kinds = [JUDGE_REGISTRY.name_of(stage).rpartition(":")[2] for stage in self.stages]
        return [kind if kinds.count(kind) == 1 else f"{kind}_{i + 1}" for i, kind in enumerate(kinds)]

    def with_models(self, models: Iterable[JudgeConfig]) -> Self:
        """The cascade with other models for the stages before the human."""
        return self.model_copy(update={"stages": (*models, *self.stages[len(self.models) :])})

    def with_decode(self, decode: Decode) -> NoReturn:
        raise JudgeError("each stage of a cascade decides by its own rule; set rule.decode in the file of a stage")

    def build(self) -> "Cascade":
        return Cascade(self)


@dataclass(frozen=True)
class Stage:
    """A judge that answers without waiting."""

    name: str
    judge: Judge
    rights: Rights | None  # None: it decides nothing alone
    cost_s: float

    def ood(self, labels: Labels) -> str:
        """Why an episode is out of distribution; "" if the rule labels such episodes like others."""
        return "" if labels.scores is None or self.judge.rule.ood == "accept" else labels.scores.ood

    def decides(self, labels: Labels) -> bool:
        """Whether this stage may decide these labels alone."""
        if self.rights is None or labels.scores is None or self.ood(labels):
            return False
        score = self.judge.rule.episode_score(labels.scores.success_prob)
        return self.rights.decides(labels.success_once, score) and not begins_with_success(
            labels.success[labels.labeled], self.judge.rule, self.judge.id
        )


class Cascade:
    """A `Judge` of whole episodes, not for judging live: which stage decides may depend on the last frame."""

    rule = DecisionRule(decode="per_frame")

    def __init__(self, config: CascadeConfig):
        self.warnings: list[str] = []
        self._check = 0.0 if config.human is None else config.check
        judges = [stage.build() for stage in config.models]
        self._stages = [
            Stage(name, judge, self._rights(name, stage, judge), stage.cost_s)
            for name, stage, judge in zip(config.names(), config.models, judges)
        ]
        if config.human is None and not any(stage.rights for stage in self._stages):
            raise JudgeError(f"no stage of this cascade may decide anything, and none is human: {self.warnings[0]}")
        seen = [seen_keys(stage, judge)[0] for stage, judge in zip(config.models, judges)]
        self.trained_on = pack_keys(frozenset[bytes]().union(*seen))
        stages_text = [(s.judge.id, s.rights and s.rights.model_dump_json()) for s in self._stages]
        fingerprint = hashlib.sha256(f"{stages_text} {self._check}".encode()).hexdigest()[:16]
        self.id = JudgeId(CASCADE, fingerprint, self.rule.key())

    def _rights(self, name: str, config: JudgeConfig, judge: Judge) -> Rights | None:
        """The rights in its file if they are of this very judge; a warning if there are none."""
        if not judge.rule.causal:
            raise JudgeError(f"stage '{name}' decides by one cutoff; set its rule.decode to k_of_n or per_frame")
        self.warnings += [f"{name}: {warning}" for warning in judge_warnings(config, judge)]
        rights, why = config.resolved().rights, "nothing is proven about it"
        if rights is not None:
            why = rights.describe()
            if (rights.fingerprint, rights.k, rights.n) != (judge.id.fingerprint, *judge.rule.window):
                why = "what is proven is of another model, calibration or rule"
            elif rights.any:
                return rights
        again = "run plaudit judge calibrate on episodes that it has not seen, and name the file as the stage"
        self.warnings.append(f"stage '{name}' decides nothing alone: {why}; {again}")
        return None

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """1, 0 and NaN of the stage that decides; NaN everywhere where none may."""
        cases = [_Case(episode, by_lot=lot_of(episode) < self._check) for episode in episodes]
        for stage in self._stages:
            open_cases = [case for case in cases if not case.closed]
            answers = label_episodes(stage.judge, [case.episode for case in open_cases])
            for case, answer in zip(open_cases, answers, strict=True):
                case.add(stage, answer, first=stage is self._stages[0])
        return [case.answer() for case in cases]


@dataclass
class _Case:
    """An episode on its way through the stages."""

    episode: Episode
    by_lot: bool
    cost_s: float = 0.0
    reports: list[str] = field(default_factory=list)  # what each stage says, for people
    predictions: set[bool] = field(default_factory=set)
    failure: PlauditError | None = None  # of a stage
    ended: bool = False  # whether a stage has given the answer
    result: Scores | PlauditError | None = None  # that answer

    @property
    def closed(self) -> bool:
        """Whether no further stage is consulted."""
        return self.by_lot or self.ended or len(self.predictions) > 1

    def add(self, stage: Stage, answer: Labels | PlauditError | None, *, first: bool) -> None:
        """Add the answer of a stage. first: it is the first stage"""
        self.cost_s += stage.cost_s
        if answer is None or isinstance(answer, JudgeUnavailable):
            self.ended, self.result = True, answer
        elif isinstance(answer, PlauditError):
            self.failure = answer
            self.reports.append(f"{stage.name} fails ({answer})")
        else:
            labels = release(answer, stage.judge.rule)  # what it withholds is passed on
            self.predictions.add(labels.success_once)
            strange = f" and flags it as out of distribution ({ood})" if (ood := stage.ood(labels)) else ""
            self.reports.append(f"{stage.name} says {'success' if labels.success_once else 'failure'}{strange}")
            if not self.closed and stage.decides(labels):
                note, result = f"decided by {stage.name}, {self.cost_s:.4g} s", CascadeResult(stage.name, self.cost_s)
                parts = () if first else (labels,)
                self.ended, self.result = True, Scores(labels.targets, note=note, cascade=result, parts=parts)

    def answer(self) -> Scores | PlauditError | None:
        """The answer of the cascade."""
        if self.ended:
            return self.result
        if self.failure is not None and not self.predictions:
            return self.failure
        why = BY_LOT if self.by_lot else DISAGREE if len(self.predictions) > 1 else UNSURE
        note = f"undecided, {self.cost_s:.4g} s: {why}" + (f" ({', '.join(self.reports)})" if self.reports else "")
        unlabeled = np.full(self.episode.steps + 1, np.nan, np.float32)
        return Scores(unlabeled, note=note, cascade=CascadeResult("", self.cost_s, why))


def lot_of(episode: Episode) -> float:
    """In [0, 1), the same for the same episode wherever it is stored."""
    digest = hashlib.sha256(np.ascontiguousarray(episode.actions).tobytes())
    digest.update(np.ascontiguousarray(episode.state).tobytes())
    for camera in sorted(episode.frames):
        digest.update(np.ascontiguousarray(episode.frames[camera][-1]).tobytes())
    return int.from_bytes(digest.digest()[:8], "big") / 2**64

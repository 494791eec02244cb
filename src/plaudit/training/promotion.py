"""An old judge and a new one before the same episodes, none of which the new one has seen: which of them is in charge?

    old, new = examine(now, held_out), examine(candidate, held_out)
    replaces, sentence = decide(old, new, rules)

The new one replaces the old one when all of this holds:

1. it passes the negative controls (judges/controls.py), made of the held-out episodes that succeed;
2. it calls no larger share of the held-out failures than the old one does, or at most `most_false` of them;
3. it misses no larger share of the held-out successes than the old one does, or at most `most_missed` of them;
4. it is right about more episodes, and surely so; or about as many, and it surely calls fewer failure frames.

"Surely" is about the episodes in which the two differ, since the others say nothing of which is better. Between two
judges that are equally good each of these goes either way, like a coin; the new one takes over when the lower end of
the exact one-sided interval of its share of them (Clopper and Pearson, 95%) lies above one half. Five of five will do,
four of four will not, nor nine of twelve.

"Right" is about whole episodes, and the mean over the kinds that there are: failures and successes of the run, failures
and successes of the data that the first judge was trained on. Counted together, a hundred easy failures of last week
would drown the five that the policy found yesterday; and a young policy has no successes, so that a judge that calls
nothing would look perfect on its episodes alone. The first judge may have learned from some of the held-out episodes of
its own data, which speaks for the old one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pydantic import Field, PositiveInt

from plaudit.config import Config
from plaudit.data.store import Store
from plaudit.judges.classifier.dataset import REFERENCE_SOURCES
from plaudit.judges.controls import failed
from plaudit.judges.evaluation import ask_controls, compare
from plaudit.judges.labeling import BATCH, batches, label_ids
from plaudit.judges.reference import load_reference_labels
from plaudit.judges.scored import EpisodePrediction
from plaudit.protocols import Judge
from plaudit.training.retrain_data import part_of
from plaudit.types import FloatArray, Labels

SUCCESSES, FAILURES = "successes", "failures"


class Rules(Config):
    most_false: float = Field(default=0.05, ge=0, le=1)  # of held-out failures that a new judge may always call
    most_missed: float = Field(default=0.2, ge=0, le=1)  # of held-out successes that it may always miss
    least_held_out: PositiveInt = 4  # episodes; a comparison on fewer says nothing
    confidence: float = Field(default=0.95, ge=0.5, lt=1)  # with which the new judge has to be the better one


@dataclass(frozen=True)
class Verdict:
    """What one judge makes of one held-out episode."""

    right: bool  # about whether it succeeds
    called: int  # failure frames that it calls a success


@dataclass(frozen=True)
class Figures:
    """What one judge makes of the held-out episodes. A number that nothing was there to measure with is NaN."""

    fingerprint: str
    right: Mapping[str, int]  # kind -> episodes judged right, "run failures" and so on
    of: Mapping[str, int]  # kind -> episodes; only kinds that there are
    fpr: float  # share of failure frames called
    fpr_low: float  # 95% confidence interval of it, by episodes
    fpr_high: float
    recall: float  # share of success frames called
    problems: tuple[str, ...]  # controls that it does not pass; episodes that it cannot judge
    each: Mapping[str, Verdict] = field(default_factory=dict)  # by episode; decisions of earlier versions have none

    @property
    def episodes(self) -> int:
        return sum(self.of.values())

    @property
    def score(self) -> float:
        """Share of episodes that it is right about, the mean over kinds."""
        return sum(self.right[kind] / self.of[kind] for kind in self.of) / len(self.of)

    @property
    def false(self) -> float:
        """Share of the failures that it calls a success."""
        return self._wrong(FAILURES)

    @property
    def missed(self) -> float:
        """Share of the successes that it does not call."""
        return self._wrong(SUCCESSES)

    def _wrong(self, outcome: str) -> float:
        kinds = [kind for kind in self.of if kind.endswith(outcome)]
        total = sum(self.of[kind] for kind in kinds)
        return sum(self.of[kind] - self.right[kind] for kind in kinds) / total if total else math.nan

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        tree = {**asdict(self), "score": self.score, "false": self.false, "missed": self.missed}
        return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in tree.items()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        numbers = {name: math.nan if tree[name] is None else tree[name] for name in _NUMBERS}
        each = {episode: Verdict(**said) for episode, said in tree.get("each", {}).items()}
        return cls(
            tree["fingerprint"], tree["right"], tree["of"], **numbers, problems=tuple(tree["problems"]), each=each
        )


_NUMBERS = ("fpr", "fpr_low", "fpr_high", "recall")


def examine(judge: Judge, held_out: Store) -> Figures:
    """Ask it about all of them, and about the controls made of those that succeed."""
    truths = load_reference_labels(held_out, REFERENCE_SOURCES)
    verdicts: dict[int, Labels] = {}
    not_judged: dict[int, str] = {}
    for ids in batches(list(truths), BATCH):
        said, not_said = label_ids(held_out, judge, ids)
        verdicts |= said
        not_judged |= not_said
    found = compare(held_out, verdicts, truths, judge.rule, not_judged)
    controls, _ = ask_controls(held_out, judge, truths, found, None, BATCH)
    right, of = _count(held_out, verdicts, truths)
    lost = [f"{len(not_judged)} episodes could not be judged: {next(iter(not_judged.values()))}"] if not_judged else []
    scores = found.scores
    return Figures(
        judge.id.fingerprint,
        right,
        of,
        **{name: getattr(scores, name) for name in _NUMBERS},
        problems=(*failed(controls), *lost),
        each={
            str(scored.episode): _verdict(scored, verdicts[scored.episode], scores.threshold) for scored in found.scored
        },
    )


def _verdict(scored: EpisodePrediction, labels: Labels, threshold: float) -> Verdict:
    true = bool((scored.truth == 1).any())
    return Verdict(labels.success_once == true, int((scored.called(threshold) & (scored.truth == 0)).sum()))


def _count(
    store: Store, verdicts: Mapping[int, Labels], truths: Mapping[int, FloatArray]
) -> tuple[dict[str, int], dict[str, int]]:
    right: dict[str, int] = {}
    of: dict[str, int] = {}
    for episode_id, labels in verdicts.items():
        true = bool((truths[episode_id] == 1).any())
        kind = f"{part_of(store, episode_id)} {SUCCESSES if true else FAILURES}"
        of[kind] = of.get(kind, 0) + 1
        right[kind] = right.get(kind, 0) + (labels.success_once == true)
    return right, of


def decide(old: Figures, new: Figures, rules: Rules) -> tuple[bool, str]:
    """Whether the new one replaces the old one, and why."""
    reason = _against(old, new, rules)
    told = f"right about {new.score:.0%} of {new.episodes} held-out episodes, the old one about {old.score:.0%}"
    if reason is None:
        return True, f"the new judge takes over: it is {told}"
    return False, f"the old judge stays: {reason} ({told})"


def _against(old: Figures, new: Figures, rules: Rules) -> str | None:
    """The first reason to keep the old one."""
    if new.problems:
        return f"the new one is not to be trusted: {'; '.join(new.problems)}"
    if new.episodes < rules.least_held_out:
        return f"{new.episodes} held-out episodes are too few to compare on, {rules.least_held_out} are needed"
    for share, missing in ((new.false, "fails"), (new.missed, "succeeds")):
        if math.isnan(share):
            return f"none of the held-out episodes {missing}, so there is nothing to compare on; label some that do"
    if new.false > max(old.false, rules.most_false):
        return f"the new one calls {new.false:.0%} of the failures a success, the old one {old.false:.0%}"
    if new.missed > max(old.missed, rules.most_missed):
        return f"the new one misses {new.missed:.0%} of the successes, the old one {old.missed:.0%}"
    if new.score < old.score:
        return "the new one is right less often"
    both = [(old.each[episode], new.each[episode]) for episode in new.each if episode in old.each]
    fewer = _compared([(old.called, new.called) for old, new in both], rules.confidence)
    if new.score == old.score:
        if fewer.surely:
            return None
        return f"the new one is right as often, and calls fewer failure frames in {fewer.words(rules.confidence)}"
    righter = _compared([(new.right, old.right) for old, new in both], rules.confidence)
    return None if righter.surely else f"the new one is right in {righter.words(rules.confidence)}"


@dataclass(frozen=True)
class Differing:
    """The episodes in which two judges differ."""

    better: int  # those in which the new one does better
    of: int
    surely: bool  # whether that is more than half of all such episodes, at the confidence asked for

    def words(self, confidence: float) -> str:
        return (
            f"{self.better} of the {self.of} held-out episodes in which the two differ, which may be chance: "
            f"{confidence:.0%} confidence is asked for"
        )


def _compared(pairs: Sequence[tuple[int, int]], confidence: float) -> Differing:
    """Of numbers of which the first is larger where the new one does better."""
    better, of = sum(one > other for one, other in pairs), sum(one != other for one, other in pairs)
    chance = sum(math.comb(of, count) for count in range(better, of + 1)) / 2**of  # of so many heads, or more
    return Differing(better, of, of > 0 and chance <= 1 - confidence)

"""What each transition should pay, said a second time and without the code that computes it.

    oracle = Oracle(config, store, gamma=0.95, n_step=1)
    oracle.problem(episode, step, reward, discount)     # "" where the transition is as it should be

The rules, in order:

1. A person's newest label counts before everything; one that labels no frame excludes the episode.
2. Then an operator's mark, then the newest label of the run's judge. Nobody else's.
3. What the judge withholds pays nothing: out-of-distribution episodes, and success that begins before its rule
   could see anything done. A person's label of the episode counts as in 1.
4. The first success ends an episode where success terminates. So do the simulator's failure and an operator's mark.
5. With shaping, the potential of a success is 1 and that of a lost episode 0. A label without progress is shaped by the
   judge's own progress, or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.training.config import TrainingConfig
from plaudit.types import Episode, Labels

PEOPLE = ("human", "cutoff")
Options = list[tuple[float, float]]  # (reward, discount), each of which is right


@dataclass(frozen=True)
class Paying:
    """The label that an episode is paid by."""

    labels: Labels
    by: str  # source
    model: str  # fingerprint


class Oracle:
    """Of one store."""

    def __init__(self, config: TrainingConfig, store: Store, source: str | None, n_step: int, *, demos: bool = False):
        """
        source: of the judge's labels; None: whoever labeled, as in demonstrations that keep their labels
        demos: whether it has demonstrations: a person has shown them, so none of them is withheld
        """
        self.store, self._config, self._source, self._demos = store, config, source, demos
        self._gamma, self._n_step = float(config.learner.gamma), n_step
        self._trusts = not demos or not config.relabels_demos  # that an episode recorded as ended has ended
        self._expected: dict[int, tuple[int, dict[int, Options]]] = {}  # episode -> versions, by step

    def problem(self, episode: int, step: int, reward: float, discount: float) -> str:
        """What is wrong with a sampled transition."""
        options = self._rows(episode).get(step)
        if options is None:
            why = self.why_not(episode) or "it lies after the episode's end, or is not labeled"
            return f"episode {episode}, step {step} was sampled with reward {reward:.3g}: {why}"
        if any(abs(reward - r) < 1e-4 and abs(discount - d) < 1e-5 for r, d in options):
            return ""
        right = " or ".join(f"{r:.4g} (discount {d:.4g})" for r, d in options[:3])
        paid = self.paying(episode)
        return (
            f"episode {episode}, step {step}, labeled by {paid.by if paid else '?'}: paid {reward:.4g} (discount "
            f"{discount:.4g}), not {right}"
        )

    def can_pay(self, episode: int) -> bool:
        """Whether something of an episode may be sampled."""
        return self.paying(episode) is not None and not self.why_not(episode)

    def paying(self, episode: int) -> Paying | None:
        """The label that counts."""
        history = self.store.ledger.history(episode)
        for sources in (PEOPLE, ("operator",), (self._source,)):
            versions = [v for v in history if v.source in sources or (sources == (None,))]
            if versions:
                return Paying(versions[-1].labels(), versions[-1].source, versions[-1].model)
        return None

    def why_not(self, episode: int) -> str:
        """Why nothing of an episode may be sampled; "" if it may."""
        paid = self.paying(episode)
        if paid is None:
            return "nobody whose labels count has labeled it"
        if paid.by in PEOPLE:
            return "" if paid.labels.labeled.any() else "a person has excluded it"
        if paid.by == "operator":
            return ""
        if not self._demos and _withholds_ood(paid.labels):
            return "the judge withholds it, and no person has confirmed it"
        if not self._demos and begins_with_success(paid.labels):
            return "it shows success before anything was done"
        return "" if paid.labels.labeled.any() else "nothing of it is labeled"

    def _rows(self, episode: int) -> dict[int, Options]:
        versions = len(self.store.ledger.history(episode))
        if self._expected.get(episode, (-1, {}))[0] != versions:
            self._expected[episode] = versions, self._compute(episode)
        return self._expected[episode][1]

    def _compute(self, episode_id: int) -> dict[int, Options]:
        paid = self.paying(episode_id)
        if paid is None or self.why_not(episode_id):
            return {}
        episode, labels = self.store.episode(episode_id), paid.labels
        terminates, end = self._config.reward.terminates, episode.steps - 1
        done = np.zeros(episode.steps, bool)
        if terminates and labels.success[1:].any():
            end = int(labels.success[1:].argmax())
            done[end] = True
        ended = self._trusts and (episode.terminated or episode.meta.get("operator") == "failure")
        done[-1] |= ended
        rows: dict[int, Options] = {}
        lost = bool(ended and not labels.success[-1])
        rewards = self._rewards(episode, labels, episode_id, lost)
        for step in range(end + 1):
            transition = self._transition(step, rewards, labels, done)
            if transition is not None:
                rows[step] = [transition]
        return rows

    def _transition(self, step: int, rewards: Any, labels: Labels, done: Any) -> tuple[float, float] | None:
        total, count = 0.0, 0
        for t in range(step, min(step + self._n_step, len(rewards))):
            if not labels.labeled[t + 1]:
                return None
            total += self._gamma**count * float(rewards[t])
            count += 1
            if done[t]:
                return total, 0.0
        return total, self._gamma**count

    def _rewards(self, episode: Episode, labels: Labels, episode_id: int, lost: bool) -> list[float]:
        scores, config = labels.scores, self._config.reward
        prob = None if scores is None else scores.success_prob
        progress = None if scores is None else scores.progress
        if progress is None and config.shaping:  # a person's label: the newest judge's progress, or no shaping
            judged = [v.labels().scores for v in self.store.ledger.history(episode_id)]
            progress = next((s.progress for s in judged[::-1] if s is not None and s.progress is not None), None)
        return expected_rewards(labels.success, prob, progress, episode.privileged, config, self._gamma, lost=lost)


def expected_rewards(
    success: Any,
    prob: Any,
    progress: Any,
    privileged: Mapping[str, Any],
    config: RewardConfig,
    gamma: float,
    *,
    lost: bool,
) -> list[float]:
    """Of each action. progress: None: no shaping; lost: whether the last frame is that of a lost episode"""
    steps = len(success) - 1
    if config.env_reward == "dense":
        return [float(r) for r in privileged["reward"][:steps]]
    rewards: list[float] = []
    for t in range(steps):
        paid = float(success[t + 1])
        if config.reward_type == "continuous" and prob is not None:
            paid = float(prob[t + 1])
        if config.mode == "terminal" and not (success[t + 1] or t == steps - 1):
            paid = 0.0
        if config.mode == "add":
            paid += float(privileged["shaping"][t])
        if config.shaping and progress is not None:
            now, after = (1.0 if success[i] else float(progress[i]) for i in (t, t + 1))
            if lost and t == steps - 1:
                after = 0.0
            paid += config.shaping * (gamma * after - now)
        rewards.append(paid)
    return rewards


def begins_with_success(labels: Labels) -> bool:
    """Whether success was decided as soon as the judge's rule could decide anything."""
    rule = labels.judge.rule
    return rule is not None and bool(labels.success[labels.labeled][: rule.window[0]].any())


def _withholds_ood(labels: Labels) -> bool:
    """Whether the judge found an episode out of distribution, and its rule pays none of those."""
    return bool(labels.ood) and labels.judge.rule is not None and labels.judge.rule.withholds

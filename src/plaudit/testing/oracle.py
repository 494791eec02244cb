"""What each transition should pay, computed a second time and without the code under test.

    oracle = Oracle(config, store, gamma=0.95, n_step=1)
    oracle.problem(episode, step, reward, discount)     # "" where the transition is as it should be

The rules, in order:

1. A person's newest label counts before everything; one that labels no frame excludes the episode.
2. Then an operator's mark, then the newest label of the run's judge. No other label counts.
3. What the judge withholds pays nothing: out-of-distribution episodes, and success that begins before its rule
   could see anything done. A person's label of the episode counts as in 1.
4. The first success ends an episode where success terminates. So do the simulator's failure and an operator's mark.
5. With shaping, the potential of a success is 1 and that of a lost episode 0. A label without progress is shaped by the
   judge's own progress, or not at all.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from plaudit.data.ledger import LabelVersion
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.training.config import TrainingConfig
from plaudit.types import TRUSTED, Episode, Labels

PEOPLE = ("human", "cutoff")
Transitions = dict[int, tuple[float, float]]  # step -> reward, discount


class Oracle:
    """The expected transitions of one store."""

    def __init__(
        self,
        config: TrainingConfig,
        store: Store,
        source: str | None,
        n_step: int,
        *,
        demos: bool = False,
        original: Store | None = None,
    ):
        """
        source: of the judge's labels; None: whoever labeled, as in demonstrations that keep their labels
        demos: whether it has demonstrations: a person has shown them, so none of them is withheld
        original: the same demonstrations with the labels that they came with, where the run labels them anew
        """
        self._excluded = set[int]() if original is None else excluded(original)
        self.store, self._config, self._source, self._demos = store, config, source, demos
        self._gamma, self._n_step = float(config.learner.gamma), n_step
        self._trusts = not demos or not config.relabels_demos  # that an episode recorded as ended has ended
        self._expected: dict[int, tuple[int, Transitions]] = {}  # episode -> number of its labels, transitions

    def problem(self, episode: int, step: int, reward: float, discount: float) -> str:
        """What is wrong with a sampled transition; "" if it is as it should be."""
        versions = len(self.store.ledger.history(episode))
        if self._expected.get(episode, (-1, {}))[0] != versions:
            self._expected[episode] = versions, self._transitions(episode)
        expected, paying = self._expected[episode][1].get(step), self.paying(episode)
        if expected is None or paying is None:
            why = self.why_not(episode) or "it lies after the episode's end, or is not labeled"
            return f"episode {episode}, step {step} was sampled with reward {reward:.3g}: {why}"
        if abs(reward - expected[0]) < 1e-4 and abs(discount - expected[1]) < 1e-5:
            return ""
        return (
            f"episode {episode}, step {step}, labeled by {paying.source}: paid {reward:.4g} (discount {discount:.4g}), "
            f"not {expected[0]:.4g} (discount {expected[1]:.4g})"
        )

    def can_pay(self, episode: int) -> bool:
        """Whether something of an episode may be sampled."""
        return not self.why_not(episode)

    def succeeds(self, episode: int) -> bool:
        """Whether the label that an episode is paid by shows a success."""
        paying = self.paying(episode)
        return paying is not None and bool(paying.labels().success.any())

    def paying(self, episode: int) -> LabelVersion | None:
        """The label that an episode is paid by."""
        history = self.store.ledger.history(episode)
        for sources in (PEOPLE, ("operator",), (self._source,)):
            versions = [v for v in history if v.source in sources or sources == (None,)]
            if versions:
                return versions[-1]
        return None

    def why_not(self, episode: int) -> str:
        """Why nothing of an episode may be sampled; "" if it may."""
        paying = self.paying(episode)
        if paying is None:
            return "it has no label from a source that counts"
        labels = paying.labels()
        if paying.source in PEOPLE:
            return "" if labels.labeled.any() else "a person has excluded it"
        if episode in self._excluded:
            return "a person has excluded it before the run"
        if paying.source == "operator":
            return ""
        rule = labels.judge.rule
        if not self._demos and labels.ood and rule is not None and rule.withholds:
            return "the judge withholds it, and no person has confirmed it"
        if not self._demos and begins_with_success(labels):
            return "it shows success before anything was done"
        return "" if labels.labeled.any() else "nothing of it is labeled"

    def _transitions(self, episode_id: int) -> Transitions:
        paying = self.paying(episode_id)
        if paying is None or self.why_not(episode_id):
            return {}
        episode, labels = self.store.episode(episode_id), paying.labels()
        done, end = np.zeros(episode.steps, bool), episode.steps - 1
        if self._config.reward.terminates and labels.success[1:].any():
            end = int(labels.success[1:].argmax())
            done[end] = True
        ended = self._trusts and (episode.terminated or episode.meta.get("operator") == "failure")
        done[-1] |= ended
        rewards = self._rewards(episode, labels, episode_id, lost=bool(ended and not labels.success[-1]))
        transitions: Transitions = {}
        for step in range(end + 1):
            last = min(step + self._n_step, len(rewards))
            last = next((t + 1 for t in range(step, last) if done[t]), last)
            if labels.labeled[step + 1 : last + 1].all():
                total = sum(self._gamma ** (t - step) * float(rewards[t]) for t in range(step, last))
                transitions[step] = total, 0.0 if done[last - 1] else self._gamma ** (last - step)
        return transitions

    def _rewards(self, episode: Episode, labels: Labels, episode_id: int, *, lost: bool) -> list[float]:
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
    """The reward of each action. progress: None: no shaping; lost: whether the episode ends as a failure"""
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


def excluded(store: Store) -> set[int]:
    """Episodes that their newest label by a person leaves out."""
    newest = {i: [v for v in store.ledger.history(i) if v.source in PEOPLE][-1:] for i in store.ids}
    return {i for i, versions in newest.items() if versions and not versions[0].labels().labeled.any()}


def begins_with_success(labels: Labels) -> bool:
    """Whether a judge, which may be wrong, saw success as soon as its rule could decide anything."""
    rule = labels.judge.rule
    return (
        rule is not None
        and labels.judge.source not in TRUSTED
        and bool(labels.success[labels.labeled][: rule.window[0]].any())
    )

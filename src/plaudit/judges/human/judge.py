"""A person as a judge: asked in a labeling window, answering later.

    judge = HumanJudge(store, show=window.show)
    judge.score(episodes)          # None until the person has completed an episode; never waits

The window is open on a store on this machine: the run's own, or a mirror of it where the screen is. Episodes that are
asked about carry the id that they have in that store (`with_window_id`); they come first in the window's queue. The
answers are read from the store's ledger, the newest counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NoReturn

from pydantic import Field

from plaudit.config import PositiveFloat
from plaudit.data.store import Store
from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.config import HUMAN, JudgeConfig
from plaudit.judges.human.drafts import SOURCE
from plaudit.judges.human.queue import write_requests
from plaudit.rule import DecisionRule, PartialRule
from plaudit.types import Episode, JudgeId, Scores

_WINDOW_ID = "window_id"  # in an episode's meta


def with_window_id(episode: Episode, episode_id: int) -> Episode:
    """The episode, marked with the id that it has in the store of the labeling window."""
    return replace(episode, meta={**episode.meta, _WINDOW_ID: episode_id})


class HumanJudge:
    """A `Judge` whose answers come later. What a person labeled stands: there is no fingerprint and no rule to tune."""

    id = JudgeId(SOURCE)
    rule = DecisionRule(decode="per_frame")

    def __init__(self, store: Store, show: Callable[[], Any] = lambda: None):
        """
        store: that the labeling window is open on, for reading
        show: opens the window, unless it is open; called whenever answers are missing
        """
        self._store, self._show = store, show
        self._requested: list[int] = []

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """The newest answer of each episode as scores of 1, 0 and NaN; None, and a request, where there is none."""
        self._store.ledger.refresh()
        answers: list[Scores | None] = []
        missing: list[int] = []
        for episode in episodes:
            episode_id = episode.meta.get(_WINDOW_ID)
            labels = None if episode_id is None else self._store.ledger.labels(episode_id, (SOURCE,))
            if labels is not None and labels.steps == episode.steps:
                answers.append(Scores(labels.targets, note=labels.note, labeler=labels.labeler))
                continue
            answers.append(None)
            missing += [] if episode_id is None else [episode_id]
        self.request(missing)
        return answers

    def request(self, ids: Sequence[int]) -> None:
        """Put these first in the window's queue, and nothing else; the most wanted first."""
        if list(ids) != self._requested:
            write_requests(self._store.folder, ids)
            self._requested = list(ids)
        if ids:
            self._show()


class HumanJudgeConfig(JudgeConfig):
    """A human who labels in a window on the labeling machine."""

    needs_certificate: ClassVar[bool] = False

    type: Literal["human"] = HUMAN
    cost_s: PositiveFloat = 30.0
    rule: PartialRule = Field(default=DecisionRule(decode="per_frame"))

    def build(self) -> NoReturn:
        """Refused: a human is asked through a window (`HumanLabelWorker`, `plaudit label --judge human`)."""
        raise JudgeError("a human labels in a window, and not in place of a model: plaudit label STORE --judge human")

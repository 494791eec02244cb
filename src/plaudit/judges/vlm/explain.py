"""Explanations of a vision-language model in words, episode by episode, for people.

They never become labels. An answer that cannot be parsed is recorded as a failure, beside those of labeling, and the
others go on.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plaudit.data.ledger import Failures
from plaudit.data.store import Store
from plaudit.judges.vlm.judge import VlmBackend
from plaudit.judges.vlm.prompt import Explanation

SOURCE = "vlm_explanation"  # in the record of failures; not the name of a judge, since it labels nothing


@dataclass(frozen=True, kw_only=True)
class EpisodeExplanation(Explanation):
    """The explanation of one episode, with its newest label."""

    episode: int
    label: bool | None  # whether the newest label is a success; None without one
    source: str | None  # whose label that is

    @property
    def summary(self) -> str:
        """The answer in a few words, with the label."""
        answer = self.error if self.answer is None else ("success" if self.answer else "no success")
        if self.label is None:
            return str(answer)
        return f"{answer} ({self.source} says {'success' if self.label else 'no success'})"


def explain_episodes(
    store: Store,
    backend: VlmBackend,
    ids: Sequence[int],
    report: Callable[[EpisodeExplanation], None],
    output: Path | None = None,
) -> int:
    """Ask about each of these episodes; returns how many answers could not be parsed."""
    num_failed = 0
    for episode_id in ids:
        explanation = backend.explain(store.episode(episode_id))
        labels = store.ledger.labels(episode_id)
        explained = EpisodeExplanation(
            **vars(explanation),
            episode=episode_id,
            label=None if labels is None else labels.success_once,
            source=None if labels is None else labels.judge.source,
        )
        if explanation.answer is None:
            num_failed += 1
            Failures(store.ledger).append([(episode_id, str(explanation.error))], SOURCE, backend.fingerprint)
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("a") as file:
                file.write(json.dumps({**asdict(explained), "model": backend.fingerprint}) + "\n")
        report(explained)
    return num_failed

"""A stored episode in the viewer of Rerun, or as a file: what was recorded, and the newest labels of every judge.

    reward           of the labels that count: 1 where an action led to success
    simulator/NAME   what only the simulator knew, such as its own reward
    score/SOURCE     P(success) of each frame; progress/SOURCE likewise
    label/SOURCE     1 success, 0 failure
    events           text: the task, takeovers, and where each judge sees success begin

Values that follow from an action are at the frame that it led to. rollout/rerun.py has the rest.
"""

from pathlib import Path

import numpy as np

from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.data.store import Store
from plaudit.errors import TargetNotEmpty
from plaudit.rollout.rerun import VIEWER, RerunLog
from plaudit.types import AnyArray, Episode, Labels, ProgressFn


def save_episode(store: Store, episode_id: int, path: Path, progress: ProgressFn = iter) -> None:
    """Write an episode into a new .rrd file; an interrupted call leaves none."""
    if path.suffix != ".rrd" or path.exists():
        raise TargetNotEmpty(f"{path} {'exists' if path.exists() else 'does not end with .rrd'}; name a new .rrd file")
    part = path.with_name(f".{path.stem}.part.rrd")
    try:
        show_episode(store, episode_id, str(part), progress)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def show_episode(store: Store, episode_id: int, target: str = VIEWER, progress: ProgressFn = iter) -> None:
    """Log an episode and its labels. target: see `plaudit.rollout.rerun`"""
    episode, counts = store.episode(episode_id), store.ledger.labels(episode_id)
    labels = {version.source: version.labels() for version in store.ledger.history(episode_id)}
    series, events = _of_frames(labels) | _of_steps(episode, counts), _events(episode, labels)
    log = RerunLog(target, f"{store.folder.name}, episode {episode_id}")
    try:
        for frame in progress(range(episode.steps + 1)):
            log.at(frame, frame / (episode.fps or 1.0))
            log.observe(episode.observation(frame))
            if frame < episode.steps:
                log.act(frame, episode.actions, episode.control_mode)
            for name, values in series.items():
                if np.isfinite(values[frame]).all():
                    log.log(name, values[frame])
            for text in events.get(frame, ()):
                log.say(text)
    finally:
        log.close()


def _of_frames(labels: dict[str, Labels]) -> dict[str, AnyArray]:
    """[T+1] of each judge, NaN where a frame has no value."""
    series: dict[str, AnyArray] = {}
    for source, one in labels.items():
        series[f"label/{source}"] = one.targets
        if one.scores is not None:
            series[f"score/{source}"] = one.scores.success_prob
            if one.scores.progress is not None:
                series[f"progress/{source}"] = one.scores.progress
    return series


def _of_steps(episode: Episode, counts: Labels | None) -> dict[str, AnyArray]:
    """[T+1, N] what the actions led to, NaN at the first frame."""
    steps = {f"simulator/{name}": values for name, values in episode.privileged.items()}
    if counts is not None:
        ended = np.zeros(episode.steps, bool)
        signal = learning_signal(Decisions.of(counts), ended, {}, RewardConfig(), 1.0, terminate_on_success=False)
        steps["reward"] = signal.reward
    rows = {name: values.reshape(len(values), -1).astype(float) for name, values in steps.items()}
    return {name: np.concatenate([np.full_like(values[:1], np.nan), values]) for name, values in rows.items()}


def _events(episode: Episode, labels: dict[str, Labels]) -> dict[int, list[str]]:
    """Frame -> what happens there."""
    events: dict[int, list[str]] = {0: [f"task: {episode.task}"] if episode.task else [], episode.steps: []}
    for source, one in labels.items():
        first = one.first_success
        text = f"{source}: no success" if first is None else f"{source}: success begins"
        events.setdefault(episode.steps if first is None else first, []).append(text)
        events[0] += [f"{source}: {one.note}"] if one.note else []
    events[episode.steps] += [f"ended by: {episode.meta['ended']}"] if "ended" in episode.meta else []
    return events

"""A judge whose scores are kept in a file, so that an exam that was interrupted resumes.

    judge = KeepingJudge(judge, Path("runs/judge_exam/.my_judge.scores"))
    judge.score(episodes)            # an episode that is in the file is not scored again

A score belongs to a judge and to the content of an episode, so episodes and controls that did not change are reused and
all others are scored. Errors and missing answers are not kept: the next run tries these episodes again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.disk import Folder, write_atomic
from plaudit.errors import PlauditError
from plaudit.files import MAX_LINES_BYTES
from plaudit.protocols import Judge
from plaudit.types import Episode, Scores


class KeepingJudge:
    """A `Judge` that scores each episode once over several runs."""

    def __init__(self, judge: Judge, path: Path):
        """path: the file, made if it does not exist; one of another judge is replaced"""
        self.judge, self.id, self.rule = judge, judge.id, judge.rule
        self._path = path
        self._known = _read(path, asdict(judge.id))
        lines = [asdict(judge.id), *(_to_line(key, scores) for key, scores in self._known.items())]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """The judge's answers, or those of an earlier run."""
        keys = [_content_key(episode) for episode in episodes]
        new = {key: episode for key, episode in zip(keys, episodes, strict=True) if key not in self._known}
        answers = dict(zip(new, self.judge.score(list(new.values())), strict=True)) if new else {}
        found = {key: answer for key, answer in answers.items() if isinstance(answer, Scores)}
        lines = "".join(json.dumps(_to_line(key, scores)) + "\n" for key, scores in found.items())
        Folder(self._path.parent).append(self._path.name, lines.encode())
        self._known |= found
        return [self._known.get(key, answers.get(key)) for key in keys]


def _content_key(episode: Episode) -> str:
    """Of everything that a judge may look at."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((episode.task, episode.fps, episode.robot, episode.padded, episode.terminated)).encode())
    arrays = {f"camera {name}": frames for name, frames in episode.frames.items()}
    arrays |= {f"privileged {name}": values for name, values in episode.privileged.items()}
    arrays |= {"state": episode.state, "actions": episode.actions, "control mode": episode.control_mode}
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _to_line(key: str, scores: Scores) -> dict[str, Any]:
    progress = None if scores.progress is None else scores.progress.tolist()
    values = {"success_prob": scores.success_prob.tolist(), "progress": progress}
    return {"episode": key, **values, "note": scores.note, "unlike": scores.unlike}


def _read(path: Path, judge: dict[str, Any]) -> dict[str, Scores]:
    """What an earlier run of this judge kept, up to a line that a kill cut off."""
    known: dict[str, Scores] = {}
    try:
        first, *lines = Folder(path.parent).read(path.name, MAX_LINES_BYTES).decode().splitlines() or [""]
        if json.loads(first) != judge:
            return {}
        for line in lines:
            tree = json.loads(line)
            prob, progress = np.array(tree["success_prob"], np.float32), tree["progress"]
            progress = None if progress is None else np.array(progress, np.float32)
            known[tree["episode"]] = Scores(prob, progress, tree["note"], tree["unlike"])
    except (OSError, ValueError, KeyError, TypeError, PlauditError):
        pass
    return known

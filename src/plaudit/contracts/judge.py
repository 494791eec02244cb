"""Whether a judge follows `plaudit.protocols.Judge`, and `LiveJudge` where it scores live."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plaudit.contracts.common import check_members
from plaudit.errors import ContractError, PlauditError
from plaudit.protocols import Judge, LiveJudge
from plaudit.types import AnyArray, Episode, FloatArray, JudgeId, Observation, Scores

PRIVILEGED = ("simulator", "noisy")  # sources of judges that go by what a simulator knows


def check_judge(judge: Any, episodes: Sequence[Episode]) -> None:
    """A judge that passes works in every command:

    1. one answer per episode, in order: scores of all its frames, an error, or None for later
    2. the episode is not changed
    3. causal: scores of the first frames do not depend on later ones
    4. it does not read privileged values, unless it is the simulator judge, or the noisy one made of it
    5. its id identifies it, and stays the same
    6. its rule decides the same live and afterwards
    7. a `LiveJudge` scores the same live and afterwards, in environments that are at different steps

    episodes: at least one that the judge can score, of three steps or more
    """
    check_members(judge, Judge)
    before = _check_id(judge.id)
    actions = [episode.actions.copy() for episode in episodes]
    pixels = [{camera: frames.copy() for camera, frames in episode.frames.items()} for episode in episodes]
    scored = [
        (episode, scores)
        for episode, scores in zip(episodes, _answers(judge, episodes), strict=True)
        if isinstance(scores, Scores)
    ]
    if not scored:
        raise ContractError("score() scored none of these episodes; check it with one that it can score")
    for episode, acted, seen in zip(episodes, actions, pixels, strict=True):
        same = all(np.array_equal(seen[camera], frames) for camera, frames in episode.frames.items())
        if not same or not np.array_equal(acted, episode.actions):
            raise ContractError("score() changed the episode it was shown")
    episode, scores = scored[0]
    _check_causal(judge, episode, scores)
    if judge.id.source not in PRIVILEGED:
        _check_not_privileged(judge, episode, scores)
    _check_rule(judge, scores)
    if isinstance(judge, LiveJudge):
        _check_stream(judge, episode, scores)
    if judge.id != before:
        raise ContractError(f"the judge's id changed from {before} to {judge.id} while it scored")


def _check_id(judge_id: Any) -> JudgeId:
    if not isinstance(judge_id, JudgeId):
        raise ContractError(f"id must be a JudgeId, got {type(judge_id).__name__}")
    if not judge_id.source or not all(isinstance(part, str) for part in vars(judge_id).values()):
        raise ContractError(f"{judge_id} needs a source, and all of it must be text")
    try:
        fits = judge_id.rule == "" or isinstance(json.loads(judge_id.rule), dict)
    except ValueError:
        fits = False
    if not fits:
        raise ContractError(f"id.rule is {judge_id.rule!r}; it is rule.key(), or empty")
    return judge_id


def _answers(judge: Judge, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
    answers = judge.score(episodes)
    if len(answers) != len(episodes):
        raise ContractError(f"score() returned {len(answers)} answers on {len(episodes)} episodes")
    for episode, answer in zip(episodes, answers, strict=True):
        if not (answer is None or isinstance(answer, Scores | PlauditError)):
            raise ContractError(f"score() must return Scores, a PlauditError or None each, got {type(answer).__name__}")
        if isinstance(answer, Scores) and len(answer.success_prob) != episode.steps + 1:
            raise ContractError(
                f"score() scored {len(answer.success_prob)} frames of an episode that has {episode.steps + 1}"
            )
    return answers


def _check_causal(judge: Judge, episode: Episode, scores: Scores) -> None:
    """Score the episode again without its last step."""
    if episode.steps < 2:
        return
    steps = episode.steps - 1
    cut = replace(
        episode,
        frames={camera: frames[: steps + 1] for camera, frames in episode.frames.items()},
        state=episode.state[: steps + 1],
        actions=episode.actions[:steps],
        control_mode=episode.control_mode[:steps],
        privileged={name: values[:steps] for name, values in episode.privileged.items()},
        padded="first" if episode.padded == "first" else "none",
    )
    (found,) = _answers(judge, [cut])
    if isinstance(found, Scores) and not _close(found.success_prob, scores.success_prob[: steps + 1]):
        raise ContractError("score() of the first frames changed when the last one was taken away: it is not causal")


def _check_not_privileged(judge: Judge, episode: Episode, scores: Scores) -> None:
    flipped = np.ones(episode.steps, bool) if episode.success is None else ~episode.success
    (found,) = _answers(judge, [replace(episode, privileged={**episode.privileged, "success": flipped})])
    if not isinstance(found, Scores) or not _close(found.success_prob, scores.success_prob):
        raise ContractError("score() depends on what only the simulator knows (privileged); only its own judge may")


def _check_rule(judge: Judge, scores: Scores) -> None:
    if not judge.rule.causal:
        return
    tracker = judge.rule.tracker(1)
    prob = scores.success_prob
    live = np.array([tracker.update(prob[t : t + 1])[0] for t in range(len(prob))])
    if not np.array_equal(live, judge.rule.decide(prob)):
        raise ContractError("the rule decides otherwise live than afterwards")


def _check_stream(judge: LiveJudge, episode: Episode, scores: Scores) -> None:
    """Score the episode live in two environments, of which the second starts again after the first step."""

    def seen(first: int, second: int) -> Observation:
        pair = [first, second]
        return Observation({camera: frames[pair] for camera, frames in episode.frames.items()}, episode.state[pair])

    def info(t: int) -> dict[str, AnyArray]:
        return {name: np.stack([values[t], values[t]]) for name, values in episode.privileged.items()}

    stream = judge.stream(2)
    found = np.full((2, episode.steps + 1), np.nan, np.float32)
    found[0, 0] = stream.reset(seen(0, 0)).success_prob[0]
    for t in range(1, episode.steps + 1):
        second = max(t - 1, 0)
        step = stream.step(seen(t, second), info(t - 1)).success_prob
        if t == 1:
            again = stream.reset(seen(t, 0), np.array([False, True])).success_prob
            if not np.isnan(again[0]):
                raise ContractError("stream.reset() with a mask must say NaN of environments that go on")
            step = np.array([step[0], again[1]])
        found[0, t], found[1, second] = step
    recorded = episode.observed
    if not _close(found[0][recorded], scores.success_prob[recorded]):
        raise ContractError("stream() scores an episode otherwise than score() does")
    late = slice(recorded.start or 0, episode.steps)
    simulator = judge.id.source in PRIVILEGED  # its flag comes with the step, not with the frame
    if not simulator and not _close(found[1][late], scores.success_prob[late]):
        raise ContractError("stream() mixes up environments that are at different steps")


def _close(one: FloatArray, other: FloatArray) -> bool:
    """Equal up to rounding, which depends on the size of a batch."""
    return np.allclose(one, other, atol=1e-3, equal_nan=True)

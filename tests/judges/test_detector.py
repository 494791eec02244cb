"""Success while it happens: what a detector decides, in rounds of a simulation and of episodes played back."""

import numpy as np
import pytest

from counting import CountingSimulation
from plaudit.data.rewards import RewardConfig
from plaudit.errors import JudgeError
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.labeling import SuccessDetector, label_episodes
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.vector import collect_rollout
from plaudit.rule import DecisionRule, release
from plaudit.types import Labels, Observation, Scores
from tiny_reward import noise_episode, tiny_model
from told import Told, ToldStream

NOTHING = Observation({}, np.zeros((1, 0), np.float32))


def test_it_decides_as_the_judges_rule_does():
    detector = SuccessDetector(Told(0, 1, 0, 1, 0), 1)
    decided = [detector.reset(NOTHING), *(detector.step(NOTHING, {}) for _ in range(4))]
    assert np.concatenate(decided).tolist() == [False, False, False, True, False]


def test_a_new_episode_forgets_the_last():
    detector = SuccessDetector(Told(1, 0, 0), 1)
    detector.reset(NOTHING)
    detector.reset(NOTHING)
    assert not detector.step(NOTHING, {}).any()


def test_a_rule_that_needs_whole_episodes_is_refused():
    with pytest.raises(JudgeError, match="decode 'cutoff' needs the whole episode"):
        SuccessDetector(Told(1, decode="cutoff"), 1)


def test_it_ends_episodes_by_what_the_camera_shows_and_not_by_what_the_simulation_knows():
    class Brightness(Told):
        """Frames are as bright as their scene's count, which is what this one goes by."""

        def stream(self, num_envs):
            class Stream(ToldStream):
                def step(self, observation, info):
                    return Scores(np.float32(observation.images["front"][:, 0, 0, 0] >= 2))

            return Stream(self.scores, num_envs)

    simulation = CountingSimulation(2)
    played = collect_rollout(
        simulation, lambda seen: np.ones((2, 1), np.float32), [1, 9], SuccessDetector(Brightness(0), 2)
    )
    assert played.length.tolist() == [3, 3]  # seen at 2 and 3, whatever the simulator said at 1
    assert played.reward.tolist() == [[0, 0], [0, 0], [1, 1]]


def test_terminal_pays_at_the_last_step_whatever_ended_the_episode():
    simulation = CountingSimulation(2)
    config = RewardConfig(mode="terminal", reward_type="continuous")
    detector = SuccessDetector(Told(*[0.25] * 6), 2)
    played = collect_rollout(simulation, lambda seen: np.ones((2, 1), np.float32), [-2, 9], detector, reward=config)
    assert played.length.tolist() == [2, 5]  # the first fails at its second step, the time of the other runs out
    assert played.reward[:2, 0].tolist() == [0, 0.25]
    assert played.reward[:, 1].tolist() == [0, 0, 0, 0, 0.25]


def test_the_labels_of_a_round_are_those_of_its_stored_episodes():
    simulation, judge = CountingSimulation(3), SimulatorJudge()
    played = collect_rollout(simulation, lambda seen: np.ones((3, 1), np.float32), [1, 3, 9], SuccessDetector(judge, 3))
    for episode, labels in played.episodes(simulation, judge):
        (afterwards,) = label_episodes(judge, [episode])
        assert isinstance(afterwards, Labels) and labels.targets.tolist() == afterwards.targets.tolist()
        assert labels.judge == afterwards.judge


@pytest.mark.parametrize("history", [0, 2])
def test_a_reward_model_decides_the_same_live_and_afterwards(history):
    model = tiny_model(num_history_frames=history, history_stride=2)
    episode = noise_episode(24)
    between = float(np.sort(model.score_episode(episode).success_prob)[11:13].mean())  # half of the frames lie below
    judge = ClassifierJudge(model, DecisionRule(threshold=between))
    seen = [
        Observation({c: f[t : t + 1] for c, f in episode.frames.items()}, episode.state[t : t + 1])
        for t in range(episode.steps + 1)
    ]
    detector = SuccessDetector(judge, 1)
    live = np.concatenate([detector.reset(seen[0]), *(detector.step(now, {}) for now in seen[1:])])
    (labels,) = label_episodes(judge, [episode])
    assert isinstance(labels, Labels)
    labels = release(labels, judge.rule)  # it may find success from the first frame on
    assert 0 < labels.success.sum() < 24  # or this would show nothing
    assert labels.success.tolist() == live.tolist()


@pytest.mark.parametrize("history", [0, 1])
def test_a_reward_model_encodes_only_the_frames_that_are_new(history):
    model, rows = tiny_model(num_history_frames=history, history_stride=1), []
    embed, frames = model.embed, noise_episode(4).frames["front"]

    def counting(images, state=None):
        rows.append(len(images["front"]))
        return embed(images, state)

    model.embed = counting
    shown = [frames[[0, 1, 2]], frames[[0, 1, 3]], frames[[0, 1, 3]], frames[[4, 1, 3]]]
    seen = [Observation({"front": images}, np.zeros((3, 2), np.float32)) for images in shown]
    stream = ClassifierJudge(model).stream(3)
    scores = [stream.reset(seen[0]), *(stream.step(one, {}) for one in seen[1:])]
    assert rows == [3, 1, 1]
    for row in range(3):
        alone = ClassifierJudge(tiny_model(num_history_frames=history, history_stride=1)).stream(1)
        own = [Observation({"front": images[row : row + 1]}, np.zeros((1, 2), np.float32)) for images in shown]
        expected = [alone.reset(own[0]), *(alone.step(one, {}) for one in own[1:])]
        np.testing.assert_allclose(
            [score.success_prob[row] for score in scores], [score.success_prob[0] for score in expected], rtol=1e-5
        )


def test_frames_may_be_written_into_the_same_array():
    model, episode = tiny_model(), noise_episode(4)
    frames = np.asarray(episode.frames["front"])
    stream, shown = ClassifierJudge(model).stream(1), Observation({"front": frames[:1].copy()}, np.zeros((1, 2)))
    probs = [stream.reset(shown).success_prob]
    for frame in frames[1:]:
        shown.images["front"][0] = frame
        probs.append(stream.step(shown, {}).success_prob)
    assert np.allclose(np.concatenate(probs), model.score_frames({"front": frames}).success_prob, atol=1e-5)

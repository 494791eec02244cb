"""A scorer that says what it was told: probabilities you can count on your fingers, and what a judge makes of them."""

import numpy as np
import pytest

from conftest import counting_episode
from counting import CountingSimulation
from plaudit.config import parse
from plaudit.errors import ConfigError, RewardError
from plaudit.judges.classifier.judge import Judgement
from plaudit.judges.detector import Alarm, JudgeConfig, ModelJudge, judge_episode
from plaudit.rollout.rounds import run_round
from plaudit.types import Episode, Observation
from tiny_reward import noise_episode, tiny_model

NOTHING = Observation({}, np.zeros((1, 0), np.float32))


class Told:
    """Plays back probabilities of one scene, frame 0 first; also as a model that judges whole episodes."""

    threshold, fingerprint = 0.5, "told"

    def __init__(self, *probability: float, progress: tuple[float, ...] = ()):
        self.probability, self.progress = np.array(probability, np.float32), np.array(progress, np.float32)
        self.has_progress = bool(progress)

    def start(self, observation: Observation) -> Judgement:
        self.frame = -1
        return self.see(observation)

    def see(self, observation: Observation) -> Judgement:
        self.frame += 1
        here = slice(self.frame, self.frame + 1)
        return Judgement(self.probability[here], self.progress[here] if self.has_progress else None)

    def judge(self, episode: Episode) -> Judgement:
        return Judgement(self.probability, self.progress if self.has_progress else None)


def signals(scorer: Told, known=None, **config):
    """What a judge says after each step of an episode that may take four."""
    judge = ModelJudge(scorer, JudgeConfig(**config), num_envs=1, max_steps=4)
    judge.start(NOTHING)
    steps = len(scorer.probability) - 1
    return [judge(NOTHING, known or {"success": np.array([False])}) for _ in range(steps)]


def rewards(scorer: Told, **config) -> list[float]:
    return [signal.reward.item() for signal in signals(scorer, **config)]


def successes(scorer: Told, **config) -> list[bool]:
    return [signal.success.item() for signal in signals(scorer, **config)]


# Success


def test_a_single_frame_is_no_success():
    assert successes(Told(0, 0, 1, 0, 0)) == [False, False, False, False]


def test_two_of_the_last_three_frames_are():
    assert successes(Told(0, 1, 0, 1, 0)) == [False, False, True, False]


def test_the_first_frame_counts_as_one():
    assert successes(Told(1, 1, 0)) == [True, True]


def test_a_probability_at_the_threshold_is_called():
    assert successes(Told(0, 0.3, 0.31), confirm=(1, 1), threshold=0.3) == [True, True]
    assert successes(Told(0, 0.3, 0.5), confirm=(1, 1)) == [False, True]  # the model's own


def test_a_new_round_forgets_the_last():
    judge = ModelJudge(Told(1, 0, 0), JudgeConfig(), num_envs=1, max_steps=4)
    judge.start(NOTHING)
    judge.start(NOTHING)
    assert not judge(NOTHING, {}).success


def test_a_rule_that_can_never_be_met_is_refused():
    with pytest.raises(ConfigError, match=r"key 'confirm': 3 of the last 2 frames can never be called"):
        parse(JudgeConfig, {"confirm": [3, 2]})


# Rewards


def test_binary_pays_one_for_a_confirmed_success_and_nothing_else():
    assert rewards(Told(0, 0.9, 0.2, 0.9)) == [0, 0, 1]


def test_continuous_pays_the_probability():
    assert rewards(Told(0, 0.25, 0.75), reward_type="continuous") == [0.25, 0.75]


def test_terminal_pays_only_at_the_end():
    told = Told(0, 0.25, 0.5, 0.25, 0.25)
    assert rewards(told, mode="terminal", reward_type="continuous") == [0, 0, 0, 0.25]  # the fourth step is the last
    early = Told(0, 0.25, 0.5, 0.75)
    assert rewards(early, mode="terminal", reward_type="continuous") == [0, 0, 0.75]  # confirmed


def test_terminal_pays_at_the_last_step_whatever_ended_the_episode():
    class Doubtful(Told):
        def see(self, observation):
            return Judgement(np.full(2, 0.25, np.float32), None)

    simulation = CountingSimulation(2)
    config = JudgeConfig(mode="terminal", reward_type="continuous")
    judge = ModelJudge(Doubtful(), config, num_envs=2, max_steps=simulation.max_steps)
    played = run_round(simulation, lambda seen: np.ones((2, 1), np.float32), [-2, 9], judge)
    assert played.length.tolist() == [2, 5]  # the first fails at its second step, the time of the other runs out
    assert played.reward[:2, 0].tolist() == [0, 0.25]
    assert played.reward[:, 1].tolist() == [0, 0, 0, 0, 0.25]


def test_add_pays_on_top_of_the_simulations_shaping_and_says_what_is_what():
    told = signals(Told(1, 1), known={"shaping": np.float32([0.25])}, mode="add")[0]
    assert told.reward.item() == 1.25
    assert {name: part.item() for name, part in told.parts.items()} == {"model": 1, "env": 0.25}


def test_add_refuses_a_simulation_whose_reward_pays_for_success():
    with pytest.raises(RewardError, match=r"does not pay for success, and this one gives none \('shaping'\)"):
        signals(Told(0, 0), known={"reward": np.float32([1])}, mode="add")


def test_shaping_pays_for_progress_and_takes_it_back_at_the_end():
    told = Told(0, 0, 1, 1, progress=(0.25, 0.5, 0.75, 1))
    shaping = [s.parts["shaping"].item() for s in signals(told, shaping=2.0, gamma=0.5)]
    assert shaping == [2 * (0.25 - 0.25), 2 * (0.375 - 0.5), 2 * (0 - 0.75)]  # success is confirmed at the last
    assert rewards(told, shaping=2.0, gamma=0.5)[-1] == 1 - 1.5


def test_shaping_needs_a_model_that_knows_progress():
    with pytest.raises(RewardError, match=r"shaping is 0.5, but this reward model has not learned progress"):
        signals(Told(0), shaping=0.5)


@pytest.mark.parametrize("mode", ["replace", "add", "terminal"])
def test_what_the_simulation_knows_of_success_changes_nothing(mode):
    def told(success: bool):
        known = {"success": np.array([success]), "reward": np.float32([success]), "shaping": np.float32([0.5])}
        scorer = Told(0.1, 0.9, 0.4, 0.8, 0.2, progress=(0, 0.2, 0.4, 0.6, 0.8))
        said = signals(scorer, known, mode=mode, reward_type="continuous", shaping=1.0)
        return [(s.probability.item(), s.reward.item(), s.success.item()) for s in said]

    assert told(True) == told(False)


def test_it_takes_charge_of_a_round():
    class Brightness(Told):
        """Frames are as bright as their scene's count, which is what this one goes by."""

        def see(self, observation):
            return Judgement(np.float32(observation.images["front"][:, 0, 0, 0] >= 2), None)

    simulation = CountingSimulation(2)
    judge = ModelJudge(Brightness(), JudgeConfig(), num_envs=2, max_steps=simulation.max_steps)
    played = run_round(simulation, lambda seen: np.ones((2, 1), np.float32), [1, 9], judge)
    assert played.length.tolist() == [3, 3]  # seen at 2 and 3, whatever the simulator said at 1
    assert played.reward.tolist() == [[0, 0], [0, 0], [1, 1]]


# Stored episodes


def live(model, episode: Episode, config: JudgeConfig):
    """The same judge while the episode happens."""
    judge = ModelJudge(model.watch(1), config, 1, episode.steps)
    seen = [
        Observation({c: f[t : t + 1] for c, f in episode.frames.items()}, episode.state[t : t + 1])
        for t in range(episode.steps + 1)
    ]
    start = judge.start(seen[0])
    return start, [judge(o, {n: v[t : t + 1] for n, v in episode.privileged.items()}) for t, o in enumerate(seen[1:])]


@pytest.mark.parametrize("mode", ["replace", "add", "terminal"])
@pytest.mark.parametrize("reward_type", ["binary", "continuous"])
def test_an_episode_is_judged_as_it_would_have_been_while_it_happened(mode, reward_type):
    model = tiny_model(history=2, history_stride=2, progress=True)
    episode = noise_episode(24, privileged={"shaping": np.arange(24, dtype=np.float32)})
    between = float(np.sort(model.judge(episode).probability)[11:13].mean())  # half of the frames lie below
    config = JudgeConfig(mode=mode, reward_type=reward_type, shaping=0.5, threshold=between)
    start, said = live(model, episode, config)
    labels = judge_episode(model, episode, config)
    assert 0 < labels.success.sum() < 24  # or this would show nothing
    assert labels.success.tolist() == [s.success.item() for s in said]
    assert labels.reward == pytest.approx(np.concatenate([s.reward for s in said]), abs=1e-5)
    assert labels.probability == pytest.approx(np.concatenate([s.probability for s in said]), abs=1e-5)
    assert labels.start == pytest.approx(0 if start.item() >= between else start.item(), abs=1e-5)


def test_a_first_frame_that_is_called_alone_is_no_success():
    assert not judge_episode(Told(0.9, 0.1, 0.1), counting_episode(2), JudgeConfig()).succeeded
    assert judge_episode(Told(0.9, 0.1, 0.1), counting_episode(2), JudgeConfig(confirm=(1, 1))).succeeded
    assert judge_episode(Told(0.9, 0.9, 0.1), counting_episode(2), JudgeConfig()).succeeded


def test_its_labels_say_who_judged_and_how():
    model = tiny_model(threshold=0.7)
    labels = judge_episode(model, noise_episode(), JudgeConfig())
    assert (labels.source, labels.model, labels.threshold) == ("classifier", model.fingerprint, 0.7)
    assert labels.note == "replace, binary, 2 of 3 frames"


def test_a_frame_that_was_not_recorded_is_not_judged_and_confirms_nothing():
    last = judge_episode(Told(0, 0, 1, 1), counting_episode(3, repeated="last"), JudgeConfig())
    assert last.judged.tolist() == [True, True, False] and not last.success.any()
    first = judge_episode(Told(1, 1, 0), counting_episode(2, repeated="first"), JudgeConfig())
    assert np.isnan(first.start) and not first.success.any()


# The alarm


def noted(judged: int, true: int, of: int, **options) -> Alarm:
    alarm = Alarm(**options)
    for i in range(of):
        alarm.note(i < judged, i < true)
    return alarm


def test_the_alarm_rings_when_more_is_judged_than_true():
    assert noted(12, 4, of=20).gap == pytest.approx(0.4)
    assert noted(12, 4, of=20).ringing and not noted(12, 8, of=20).ringing  # 0.2 is not beyond 0.2


def test_the_alarm_rings_for_a_judge_that_sees_too_little():
    strict = noted(4, 12, of=20)
    assert strict.ringing and not noted(8, 12, of=20).ringing
    assert "called 20% of the last 20 audited episodes a success and 60% were" in strict.sentence
    assert "40% are missed successes, at most 20% may be" in strict.sentence
    assert "does not see what the policy does right" in strict.sentence and "false" not in strict.sentence


def test_the_alarm_rings_for_a_judge_whose_mistakes_cancel_out():
    alarm = Alarm()
    for i in range(60):
        alarm.note(judged=i % 2 == 0, true=i % 2 == 1)  # wrong about every one
    assert alarm.gap == 0 and alarm.ringing
    assert (alarm.false_successes, alarm.missed_successes) == (0.5, 0.5)
    assert "50% are false successes" in alarm.sentence and "50% are missed successes" in alarm.sentence


@pytest.mark.parametrize("more", [{}, {"two_sided": False}, {"two_sided": True}])
def test_an_alarm_of_an_earlier_version_is_read(more):
    """Those of `train` rang on one side only, and the oldest did not say so."""
    tree = {"bound": 0.2, "window": 50, "least": 20, "noted": [[False, True]] * 20, **more}
    assert Alarm.from_json(tree).ringing and Alarm.from_json(tree).missed_successes == 1


def test_the_alarm_waits_until_it_has_seen_enough_and_forgets_what_is_old():
    assert not noted(19, 0, of=19).ringing and noted(20, 0, of=20).ringing
    later = noted(20, 0, of=20, window=20)
    for _ in range(20):
        later.note(True, True)
    assert later.gap == 0 and not later.ringing
    assert np.isnan(Alarm().gap) and not Alarm().ringing


def test_the_alarm_says_what_is_wrong_and_what_to_do():
    said = noted(12, 4, of=20).sentence
    assert said.startswith("the judge called 60% of the last 20 audited episodes a success and 20% were")
    assert "plaudit train-reward" in said


def test_the_alarm_survives_a_checkpoint():
    alarm = noted(12, 4, of=20, bound=0.3, window=30)
    again = Alarm.from_json(alarm.to_json())
    assert (again.gap, again.ringing, again.to_json()) == (alarm.gap, True, alarm.to_json())


def test_an_alarm_that_can_never_ring_is_refused():
    with pytest.raises(RewardError, match="waits for 20 episodes and remembers 10 can never ring"):
        Alarm(window=10)

"""The simulator, a classifier, any judge decoded, and how they are read from files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brightness import NAME, BrightnessConfig
from conftest import counting_episode
from glow import bright_model, saved
from plaudit.contracts import check_labeler
from plaudit.errors import BadFile, ConfigError, RewardError, UnknownName
from plaudit.judges.classifier.labeler import ClassifierLabelerConfig
from plaudit.judges.config import Calibrated, build_judge, doubts, read_judge
from plaudit.judges.decoded import Decoded
from plaudit.judges.frames import Rule
from plaudit.judges.simulator import SimulatorConfig, SimulatorLabeler
from plaudit.trust import allow_code
from plaudit.types import Episode, Labels
from tiny_reward import noise_episode, tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples/configs"


def said(judge: Any, *episodes: Episode) -> Any:
    """Of one episode its verdict, of several a list of them."""
    verdicts = judge.label(list(episodes))
    return verdicts[0] if len(episodes) == 1 else verdicts


# The simulator


def test_the_simulators_flag_becomes_labels():
    episode = counting_episode(4, privileged={"success": np.array([0, 1, 0, 1], bool)})
    labels = said(SimulatorLabeler(), episode)
    assert labels.frames.tolist() == [0, 0, 1, 0, 1]
    assert labels.source == "simulator"
    check_labeler(SimulatorLabeler(), [episode])


def test_a_repeated_frame_is_not_judged():
    for repeated, place in (("first", 0), ("last", 2)):
        episode = counting_episode(2, repeated=repeated, privileged={"success": np.array([1, 1], bool)})
        assert np.flatnonzero(np.isnan(said(SimulatorLabeler(), episode).frames)).tolist() == [place]


def test_no_simulator_knows_of_a_robots_episode():
    error = str(said(SimulatorLabeler(), counting_episode(2)))
    assert "no simulator knows of this episode" in error and "another judge" in error


# A classifier


def test_a_classifier_says_what_its_model_says(tmp_path):
    model, episode = tiny_model(threshold=0.6), noise_episode()
    judge = ClassifierLabelerConfig(model=saved(model, tmp_path / "m"), rule=Rule(decode="frames")).build()
    labels = said(judge, episode)
    assert labels.probability == pytest.approx(model.judge(episode).probability[1:], abs=1e-6)
    assert labels.success.tolist() == (model.judge(episode).probability[1:] >= 0.6).tolist()
    rule = '{"bias": 0.0, "decode": "frames", "temperature": 1.0}'
    assert judge.facts == {"model": model.fingerprint, "threshold": 0.6, "note": "by frame", "rule": rule}
    check_labeler(judge, [episode])


def test_a_probability_of_one_stays_one(tmp_path):
    model = tiny_model(threshold=1.0)
    model.facts = model.facts.model_copy(update={"calibration": ((0.001, 50.0),)})
    judge = ClassifierLabelerConfig(model=saved(model, tmp_path / "m")).build()
    assert said(judge, noise_episode()).probability.tolist() == [1.0] * 12


def test_what_the_rule_does_not_say_is_the_models_own(tmp_path):
    model = tiny_model(threshold=0.6)
    model.facts = model.facts.model_copy(update={"cutoff_shift": 2})
    folder = saved(model, tmp_path / "m")
    own = ClassifierLabelerConfig(model=folder).build().rule
    assert (own.threshold, own.shift, own.decode) == (0.6, 2, "cutoff")
    mine = read_judge(None, "classifier", {"model": str(folder)}, ["rule.decode=confirm", "rule.shift=0"])
    judge: Any = build_judge(mine)
    rule = judge.rule
    assert (rule.threshold, rule.shift, rule.decode) == (0.6, 0, "confirm")
    judge = build_judge(mine, "frames")
    assert judge.rule.decode == "frames"


def test_episodes_that_do_not_fit_the_model_fail_alone(tmp_path):
    judge = ClassifierLabelerConfig(model=saved(bright_model(0.5), tmp_path / "m")).build()
    fits = counting_episode(2, size=(8, 8))
    large, right, short = said(judge, counting_episode(2), fits, counting_episode(2, size=(8, 8), repeated="last"))
    assert "trained on 8x8" in str(large) and isinstance(right, Labels)
    assert np.isnan(short.reward).tolist() == [False, True]
    other = ClassifierLabelerConfig(model=saved(bright_model(0.5, camera="wrist"), tmp_path / "w")).build()
    assert "looks at camera 'wrist', which is not there; there are: front" in str(said(other, fits))
    blind = Episode.of(frames={}, actions=np.zeros((2, 1)))
    assert "looks at camera 'front', which is not there; there are: none" in str(said(judge, blind))


def test_a_model_that_is_not_there_or_not_trusted_is_refused(tmp_path):
    with pytest.raises(BadFile, match=r"this is not a reward model: it has no model\.json"):
        ClassifierLabelerConfig(model=tmp_path / "nowhere").build()
    folder = saved(bright_model(0.5, problems=("blank white: 100%",)), tmp_path / "m")
    with pytest.raises(RewardError, match=r"not to be trusted: blank white.*force=true where it labels"):
        ClassifierLabelerConfig(model=folder).build()
    assert ClassifierLabelerConfig(model=folder, force=True).build().source == "classifier"


# Any judge, decoded


class Says:
    """A judge that says what it was told."""

    source, facts = "says", {"model": "m", "threshold": None, "note": "by ear"}

    def __init__(self, *said):
        self._said = said

    def label(self, episodes):
        return list(self._said)


def decoded(verdict, probability=None, **rule) -> Any:
    labels = Labels.from_frames(verdict, probability=probability, source="says")
    return Decoded(Says(labels), Rule(**rule)).label([None])[0]


def test_yes_and_no_become_one_cutoff():
    labels = decoded([0, 1, 0, 0, 1, 1])
    assert labels.frames.tolist() == [0, 0, 0, 0, 1, 1]
    assert (labels.source, labels.model, labels.note) == ("says", "m", "by ear; one cutoff, shift 0")
    assert labels.threshold == 0.5


def test_k_of_n_of_yes_and_no():
    assert decoded([0, 1, 0, 1, 0, 0], decode="confirm").frames.tolist() == [0, 0, 0, 1, 0, 0]


def test_probabilities_are_decoded_where_there_are_some_and_stay():
    probability = np.array([0.6, 0.1, 0.9, 0.9], np.float32)
    labels = decoded([0, 1, 0, 1, 1], probability)
    assert labels.frames.tolist() == [0, 0, 0, 1, 1]
    assert labels.probability.tolist() == probability.tolist()


def test_what_was_not_judged_stays_so():
    assert np.isnan(decoded([0, np.nan, 1, np.nan, 1]).frames).tolist() == [False, True, False, True, False]


def test_an_error_is_handed_on_and_the_labels_keep_the_contract():
    judge = Decoded(Says(RewardError("too dark"), Labels.from_cutoff(steps=2, cutoff=1, source="says")), Rule())
    assert str(judge.label([None, None])[0]) == "too dark"
    check_labeler(judge, [counting_episode(2), counting_episode(2)])


def test_a_judge_without_a_rule_is_wrapped_when_it_is_asked_to_decode():
    judge = build_judge(SimulatorConfig(), "cutoff")
    episode = counting_episode(4, privileged={"success": np.array([1, 0, 0, 1], bool)})
    assert said(judge, episode).frames.tolist() == [0, 0, 0, 0, 1]
    assert said(build_judge(SimulatorConfig()), episode).frames.tolist() == [0, 1, 0, 0, 1]


# From files


def test_a_file_says_everything_and_the_command_line_wins(tmp_path):
    (tmp_path / "judge.yaml").write_text(f"type: {NAME}\ncut: 3\nrule: {{threshold: 0.7}}\n")
    allow_code("brightness")
    config: Any = read_judge(tmp_path / "judge.yaml", None, overrides=["rule.decode=frames"])
    assert (config.cut, config.rule.threshold, config.rule.decode) == (3, 0.7, "frames")


@pytest.mark.parametrize("preset", sorted(EXAMPLES.glob("judge_*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_judge(preset):
    config: Any = read_judge(preset, None)
    assert preset.stem.startswith(f"judge_{config.type}")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("clasifier", "there is no judge 'clasifier'; did you mean 'classifier'"),
        ("humman", "did you mean 'human'"),
        ("human", "a person is asked in a window: plaudit label STORE --judge human"),
        (None, "name a judge with --judge; known: classifier, human, simulator, vlm"),
        ("tests.nothing:Config", "could not be loaded"),
        ("plaudit.judges.detector:JudgeConfig", "is not a judge"),
    ],
)
def test_a_judge_that_is_none(name, sentence):
    with pytest.raises(UnknownName, match=sentence):
        read_judge(None, name)


def test_a_file_of_another_judge_or_with_a_wrong_key_is_told(tmp_path):
    path = tmp_path / "judge.yaml"
    path.write_text("type: simulator\n")
    with pytest.raises(ConfigError, match=r"judge.yaml describes a 'simulator', not a 'classifier'"):
        read_judge(path, "classifier")
    path.write_text("type: classifier\nmodel: m\nrule: {threshhold: 0.9}\n")
    with pytest.raises(ConfigError, match=r"judge.yaml: unknown key 'rule.threshhold'; did you mean 'threshold'"):
        read_judge(path, None)
    with pytest.raises(ConfigError, match="command line: key 'model' is missing"):
        read_judge(None, "classifier")
    with pytest.raises(ConfigError, match=r"key 'rule.confirm': 3 of the last 2 frames can never be called"):
        read_judge(None, "classifier", {"model": "m"}, ["rule.confirm=[3,2]"])


def test_a_rule_that_was_fitted_on_another_model_is_told_of():
    facts = {"date": "", "reference": ["human"], "episodes": 9, "successes": 4, "target_fpr": 0.01}
    rates = {"fpr": 0.0, "fpr_low": 0.0, "fpr_high": 0.1, "recall": 1.0}
    calibrated = Calibrated.model_validate({**facts, **rates, "fingerprint": "cut 4"})
    mine, other = (BrightnessConfig(cut=cut, calibrated=calibrated) for cut in (4, 5))
    assert doubts(mine, mine.build()) == [] and doubts(SimulatorConfig(), SimulatorLabeler()) == []
    assert "was fitted on cut 4 and it is cut 5 now" in doubts(other, other.build())[0]

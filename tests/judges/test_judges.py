"""The simulator, a classifier, any judge decoded, and how they are read from files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brightness import NAME, BrightnessConfig
from conftest import counting_episode
from glow import bright_model, saved
from plaudit.contracts import check_judge
from plaudit.errors import BadFile, ConfigError, JudgeError, UnknownName
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.config import CalibrationRecord, judge_warnings, load_judge_config
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SimulatorJudge, SimulatorJudgeConfig
from plaudit.rule import DecisionRule
from plaudit.trust import allow_code
from plaudit.types import Episode, JudgeId, Labels
from tiny_reward import noise_episode, tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples/configs"


def said(judge: Any, *episodes: Episode) -> Any:
    """Of one episode its labels, of several a list of them."""
    predictions = label_episodes(judge, list(episodes))
    return predictions[0] if len(episodes) == 1 else predictions


# The simulator


def test_the_simulators_flag_becomes_labels():
    episode = counting_episode(4, privileged={"success": np.array([0, 1, 0, 1], bool)})
    labels = said(SimulatorJudge(), episode)
    assert labels.targets.tolist() == [0, 0, 1, 0, 1]
    assert labels.judge == JudgeId("simulator")
    check_judge(SimulatorJudge(), [episode])


def test_a_repeated_frame_is_not_judged():
    for padded, place in (("first", 0), ("last", 2)):
        episode = counting_episode(2, padded=padded, privileged={"success": np.array([1, 1], bool)})
        assert np.flatnonzero(np.isnan(said(SimulatorJudge(), episode).targets)).tolist() == [place]


def test_no_simulator_knows_of_a_robots_episode():
    error = str(said(SimulatorJudge(), counting_episode(2)))
    assert "no simulator knows of this episode" in error and "another judge" in error


# A classifier


def test_a_classifier_says_what_its_model_says(tmp_path):
    model, episode = tiny_model(threshold=0.6), noise_episode()
    judge = ClassifierJudgeConfig(model=saved(model, tmp_path / "m"), rule=DecisionRule(decode="per_frame")).build()
    labels = said(judge, episode)
    prob = model.score_episode(episode).success_prob
    assert labels.scores.success_prob.tolist() == prob.tolist()
    assert labels.success.tolist() == (prob >= 0.6).tolist()
    assert judge.id == JudgeId("classifier", model.fingerprint, DecisionRule(threshold=0.6, decode="per_frame").key())
    check_judge(judge, [episode])


def test_a_probability_of_one_stays_one(tmp_path):
    model = tiny_model(threshold=1.0)
    model.config = model.config.model_copy(update={"calibration": ((0.001, 50.0),)})
    judge = ClassifierJudgeConfig(model=saved(model, tmp_path / "m")).build()
    assert said(judge, noise_episode()).scores.success_prob.tolist() == [1.0] * 13


def test_what_the_rule_does_not_say_is_the_models_own(tmp_path):
    model = tiny_model(threshold=0.6)
    model.config = model.config.model_copy(update={"cutoff_offset": 2})
    folder = saved(model, tmp_path / "m")
    own = ClassifierJudgeConfig(model=folder).build().rule
    assert (own.threshold, own.cutoff_offset, own.decode, own.k, own.n) == (0.6, 2, "k_of_n", 2, 3)
    mine = load_judge_config(None, "classifier", {"model": str(folder)}, ["rule.decode=cutoff", "rule.cutoff_offset=0"])
    judge: Any = mine.build()
    rule = judge.rule
    assert (rule.threshold, rule.cutoff_offset, rule.decode) == (0.6, 0, "cutoff")
    judge = mine.with_decode("per_frame").build()
    assert judge.rule.decode == "per_frame"


def test_episodes_that_do_not_fit_the_model_fail_alone(tmp_path):
    judge = ClassifierJudgeConfig(model=saved(bright_model(0.5), tmp_path / "m")).build()
    fits = counting_episode(2, size=(8, 8))
    large, right, short = said(judge, counting_episode(2), fits, counting_episode(2, size=(8, 8), padded="last"))
    assert "trained on 8x8" in str(large) and isinstance(right, Labels)
    assert short.labeled.tolist() == [True, True, False]
    other = ClassifierJudgeConfig(model=saved(bright_model(0.5, camera="wrist"), tmp_path / "w")).build()
    assert "looks at camera 'wrist', which is not there; there are: front" in str(said(other, fits))
    blind = Episode.of(frames={}, actions=np.zeros((2, 1)))
    assert "looks at camera 'front', which is not there; there are: none" in str(said(judge, blind))


def test_a_model_that_is_not_there_or_not_trusted_is_refused(tmp_path):
    with pytest.raises(BadFile, match=r"this is not a reward model: it has no model\.json"):
        ClassifierJudgeConfig(model=tmp_path / "nowhere").build()
    folder = saved(bright_model(0.5, problems=("blank white: 100%",)), tmp_path / "m")
    with pytest.raises(JudgeError, match=r"not to be trusted: blank white.*force=true where it labels"):
        ClassifierJudgeConfig(model=folder).build()
    assert ClassifierJudgeConfig(model=folder, force=True).build().id.source == "classifier"


def test_the_simulators_flag_is_made_into_one_cutoff_when_asked_for():
    judge = SimulatorJudgeConfig().with_decode("cutoff").build()
    episode = counting_episode(4, privileged={"success": np.array([1, 0, 0, 1], bool)})
    assert said(judge, episode).targets.tolist() == [0, 0, 0, 0, 1]
    assert said(SimulatorJudgeConfig().build(), episode).targets.tolist() == [0, 1, 0, 0, 1]


# From files


def test_a_file_says_everything_and_the_command_line_wins(tmp_path):
    (tmp_path / "judge.yaml").write_text(f"type: {NAME}\ncut: 3\nrule: {{threshold: 0.7}}\n")
    allow_code("brightness")
    config: Any = load_judge_config(tmp_path / "judge.yaml", None, overrides=["rule.decode=per_frame"])
    assert (config.cut, config.rule.threshold, config.rule.decode) == (3, 0.7, "per_frame")


@pytest.mark.parametrize("preset", sorted(EXAMPLES.glob("judge_*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_judge(preset):
    config: Any = load_judge_config(preset, None)
    assert preset.stem.startswith(f"judge_{config.type}")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("clasifier", "there is no judge 'clasifier'; did you mean 'classifier'"),
        ("humman", "did you mean 'human'"),
        ("human", "a person labels in a window: plaudit label STORE --judge human"),
        (None, "name a judge with --judge; known: cascade, classifier, grm, human, noisy, progress, rewind, robometer"),
        ("tests.nothing:Config", "could not be loaded"),
        ("plaudit.data.rewards:RewardConfig", "cannot be the config of a judge: it has no build"),
    ],
)
def test_a_judge_that_is_none(name, sentence):
    with pytest.raises(UnknownName, match=sentence):
        load_judge_config(None, name)


def test_a_file_of_another_judge_or_with_a_wrong_key_is_told(tmp_path):
    path = tmp_path / "judge.yaml"
    path.write_text("type: simulator\n")
    with pytest.raises(ConfigError, match=r"judge.yaml describes a 'simulator', not a 'classifier'"):
        load_judge_config(path, "classifier")
    path.write_text("type: classifier\nmodel: m\nrule: {threshhold: 0.9}\n")
    with pytest.raises(ConfigError, match=r"judge.yaml: unknown key 'rule.threshhold'; did you mean 'threshold'"):
        load_judge_config(path, None)
    with pytest.raises(ConfigError, match="command line: key 'model' is missing"):
        load_judge_config(None, "classifier")
    with pytest.raises(ConfigError, match=r"3 of the last 2 frames can never be above"):
        load_judge_config(None, "classifier", {"model": "m"}, ["rule.k=3", "rule.n=2"])


def test_a_rule_that_was_fitted_on_another_model_is_told_of():
    facts = {"date": "", "reference": ["human"], "episodes": 9, "successes": 4, "target_fpr": 0.01}
    rates = {"fpr": 0.0, "fpr_low": 0.0, "fpr_high": 0.1, "recall": 1.0}
    record = CalibrationRecord.model_validate({**facts, **rates, "fingerprint": "cut 4"})
    mine, other = (BrightnessConfig(cut=cut, calibration_record=record) for cut in (4, 5))
    assert judge_warnings(mine, mine.build()) == [] and judge_warnings(SimulatorJudgeConfig(), SimulatorJudge()) == []
    assert "was fitted on cut 4 and it is cut 5 now" in judge_warnings(other, other.build())[0]


def test_what_to_do_with_ood_episodes_stands_beside_the_rule_and_is_part_of_it():
    config = load_judge_config(None, "vlm", None, ["cameras=[head]", "ood=abstain", "rule.k=1"])
    assert (config.rule.ood, config.rule.k) == ("abstain", 1)
    assert config.model_dump()["cameras"] == ("head",)

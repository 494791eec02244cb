"""A cascade: who decides what, who is asked next, and what is kept of it.

Frames are as bright as their number. The first stage is sure of what stays at 2 or gets to 7, and unsure in between.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from brightness import NAME, STEPS, ramp
from conftest import counting_episode
from plaudit.config import parse
from plaudit.data.store import Store
from plaudit.errors import ConfigError, JudgeError, JudgeUnavailable, PlauditError
from plaudit.judges.cascade import CascadeConfig, lot_of
from plaudit.judges.config import load_judge_config
from plaudit.judges.exam import examine
from plaudit.judges.guarantee import prove_rights
from plaudit.judges.labeling import LabelRunner, StoreQueue, label_episodes
from plaudit.judges.metrics import EpisodePrediction
from plaudit.rule import DecisionRule
from plaudit.trust import allow_code
from plaudit.types import Labels

PROBS = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20)


def rights(cut: float, **more: object) -> dict[str, object]:
    tried = {"max_error": 0.05, "confidence": 0.9, "failures": 60, "successes": 60, "k": 2, "n": 3}
    return {"fingerprint": f"cut {cut:g}", **tried, "success_from": 0.9, "failure_to": 0.1, **more}


def stage(cut: float, **more: object) -> dict[str, object]:
    return {"type": NAME, "cut": cut, "rights": rights(cut), **more}


def cascade(*stages: object, check: float = 0.0, **more: object) -> CascadeConfig:
    return parse(CascadeConfig, {"stages": list(stages), "check": check, **more})


def answers(config: CascadeConfig, *tops: int) -> list[Labels]:
    found = label_episodes(config.build(), [ramp(top) for top in tops])
    assert all(isinstance(one, Labels) for one in found), found
    return [one for one in found if isinstance(one, Labels)]


def notes(labels: list[Labels]) -> list[str]:
    return [one.scores.cascade.decided_by for one in labels]


# The right to decide


@given(PROBS, st.sampled_from([(1, 1), (2, 3), (3, 3), (1, 4)]))
def test_the_score_of_an_episode_is_the_highest_threshold_that_calls_it_a_success(probs, window):
    prob = np.array(probs, np.float32)
    rule = DecisionRule(k=window[0], n=window[1], threshold=0.5)
    score = rule.episode_score(prob)
    if score > 0:
        assert rule.model_copy(update={"threshold": score}).decide(prob).any()
    above = float(np.nextafter(np.float32(score), np.float32(2)))
    assert not rule.model_copy(update={"threshold": above}).decide(prob).any()


def scored(*episodes: tuple[float, int]) -> list[EpisodePrediction]:
    """Of a score all along, and whether the episode ends in success."""
    return [EpisodePrediction(np.full(4, p), np.array([0, 0, s, s]), i) for i, (p, s) in enumerate(episodes)]


def test_a_right_is_proven_by_enough_episodes_of_the_other_kind_and_not_where_it_errs():
    sure = [(0.05, 0)] * 60 + [(0.95, 1)] * 60
    found = prove_rights(scored(*sure), DecisionRule(), "abc", 0.05, 0.9)
    assert found.success_from is not None and found.failure_to is not None and found.any
    assert found.decides(True, 0.97) and not found.decides(True, 0.03) and found.decides(False, 0.03)
    misled = prove_rights(scored(*sure, *[(0.99, 0)] * 12), DecisionRule(), "abc", 0.05, 0.9)
    assert not misled.decides(True, 0.95) and misled.decides(False, 0.03)  # a sixth of the failures score 0.99
    assert not found.decides(True, 0.5) and not found.decides(False, 0.5)  # nothing was seen there
    few = prove_rights(scored(*sure[30:70]), DecisionRule(), "abc", 0.05, 0.9)
    assert not few.any and "label at least 20 more (30 that fail were tried, it takes 50)" in few.describe()


# Who decides


def test_a_stage_decides_what_it_may_and_the_next_is_asked_about_the_rest():
    found = answers(cascade(stage(4, cost_s=0.5), stage(3, cost_s=4)), 2, 4, 7)
    assert notes(found) == ["BrightnessConfig_1", "BrightnessConfig_2", "BrightnessConfig_1"]
    assert [one.success_once for one in found] == [False, True, True]
    assert found[2].targets.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]  # as the stage's own rule has it
    assert [one.scores.cascade.cost_s for one in found] == [0.5, 4.5, 0.5]


def test_the_word_of_a_later_stage_is_kept_under_its_own_name_and_that_of_the_first_is_not(tmp_path):
    store = Store.create(tmp_path / "store")
    for top in (2, 4):
        store.append(ramp(top))
    LabelRunner(cascade(stage(4), stage(3)).build(), StoreQueue(store)).run()
    assert [v.source for v in store.ledger.history(0)] == ["cascade"]
    assert next((v.source, v.model) for v in store.ledger.history(1)) == ("brightness", "cut 3")
    assert store.ledger.labels(1).judge.source == "cascade" and store.ledger.labels(1).success_once


def test_where_stages_disagree_or_none_may_decide_no_frame_is_labeled():
    config = cascade(stage(4), stage(2))
    disputed, unsure = answers(config, 3, 4)[0], answers(cascade(stage(4), "human"), 4)[0]
    assert not disputed.labeled.any() and disputed.scores.cascade.why == "disagreement"
    assert not unsure.labeled.any() and unsure.scores.cascade.why == "unsure"
    assert "BrightnessConfig_1 says failure, BrightnessConfig_2 says success" in disputed.note


def test_what_a_human_has_labeled_is_decided_and_the_rest_is_asked_about_once(tmp_path):
    store = Store.create(tmp_path / "store")
    for top in (4, 4, 7):
        store.append(ramp(top))
    store.ledger.append(0, Labels.from_cutoff(steps=STEPS, cutoff=5, source="human"))
    judge = cascade(stage(4), "human").build()
    runner = LabelRunner(judge, StoreQueue(store))
    stats = runner.run()
    assert (stats.done, stats.undecided) == ([1, 2], [1])
    assert StoreQueue(store).stale(judge.id) == []  # also the undecided one
    again = cascade(stage(4.5), "human").build()  # another version of the first stage
    assert StoreQueue(store).stale(again.id) == [1, 2]


def test_a_cascade_that_contains_itself_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("type: cascade\nstages: [mine.yaml, human]\n")
    with pytest.raises(ConfigError, match=r"key 'stages.0': mine.yaml is a cascade, and a stage cannot be a cascade"):
        load_judge_config(Path("mine.yaml"), None)


def test_a_cascade_has_a_bounded_number_of_stages():
    with pytest.raises(ConfigError, match="key 'stages' is a list of 2,000: tuple should have at most 16 items"):
        cascade(*[stage(4)] * 2000)


def test_success_from_the_first_frame_on_is_decided_by_no_stage():
    bright = [replace(ramp(7), frames={"front": np.full((STEPS + 1, 8, 10, 3), 7, np.uint8)})]
    (found,) = label_episodes(cascade(stage(4), "human").build(), bright)
    assert isinstance(found, Labels) and not found.labeled.any()


@pytest.mark.parametrize(("setting", "decided"), [(None, False), ("escalate", False), ("accept", True)])
def test_an_ood_episode_is_passed_on(monkeypatch, setting, decided):
    config = cascade(stage(4, rule={"ood": setting} if setting else {}), "human")
    judge = config.build()
    first = judge._stages[0].judge
    score = first.score
    monkeypatch.setattr(first, "score", lambda e: [replace(one, ood="another table") for one in score(e)])
    (found,) = label_episodes(judge, [ramp(7)])
    assert isinstance(found, Labels) and found.labeled.any() == decided and not found.withheld
    assert decided or "BrightnessConfig says success and flags it as out of distribution (another table)" in found.note


def test_some_episodes_go_to_the_human_by_lot_whatever_the_stages_would_say():
    config = cascade(stage(4), "human", check=0.3)
    found = answers(config, *[7] * 3)
    drawn = lot_of(ramp(7)) < 0.3
    assert all(one.labeled.any() != drawn for one in found)
    many = [lot_of(counting_episode(4, first)) < 0.3 for first in range(200)]
    assert 30 < sum(many) < 90
    everyone = answers(cascade(stage(4), "human", check=0.999), 7)
    assert everyone[0].scores.cascade.why == "by lot" and everyone[0].scores.cascade.cost_s == 0


def test_a_stage_that_fails_on_an_episode_passes_it_on_and_one_that_is_away_is_waited_for(monkeypatch):
    config = cascade(stage(4), {**stage(4), "brightest": 6.5, "rights": None}, "human")
    (failed,) = label_episodes(config.build(), [ramp(7, task="")])
    assert isinstance(failed, PlauditError) and "no task text" in str(failed)  # all of them did
    judge = config.build()
    away = judge._stages[0].judge
    monkeypatch.setattr(away, "score", lambda episodes: [JudgeUnavailable("the server is away")] * len(episodes))
    assert isinstance(label_episodes(judge, [ramp(7)])[0], JudgeUnavailable)
    monkeypatch.setattr(away, "score", lambda episodes: [JudgeError("no such camera")] * len(episodes))
    (passed_on,) = label_episodes(judge, [ramp(4)])
    assert isinstance(passed_on, Labels) and "fails (no such camera)" in passed_on.note


def test_rights_of_another_model_or_rule_are_none_and_it_is_told():
    for strange in (rights(5), rights(4, k=3), None, rights(4, success_from=None, failure_to=None)):
        judge = cascade({**stage(4), "rights": strange}, "human").build()
        assert "stage 'BrightnessConfig' decides nothing alone" in judge.warnings[-1]
        (found,) = label_episodes(judge, [ramp(7)])
        assert isinstance(found, Labels) and not found.labeled.any()
    with pytest.raises(JudgeError, match="no stage of this cascade may decide anything, and none is human"):
        cascade({**stage(4), "rights": None}).build()


def test_the_exam_of_a_cascade_that_decides_nothing_says_so(store: Store):
    for level in (2, 7, 2, 7, 2, 7):
        target = (np.arange(STEPS + 1) > 3) & (level == 7)
        store.ledger.append(store.append(ramp(level)), Labels.from_targets(target.astype("f4"), "human"))
    config = cascade({**stage(4), "rights": None}, "human", check=0)
    with pytest.raises(JudgeError, match=r"decides none of the 6 episodes, .* \(undecided, .*BrightnessConfig says"):
        examine(store, config, config.build(), ("human",), store.ids, name="cascade")


# What one writes


def test_a_stage_is_a_file_a_type_or_keys_and_comes_back_from_what_is_written(tmp_path):
    file = tmp_path / "first.yaml"
    file.write_text(yaml.safe_dump(stage(4)))
    allow_code("brightness")
    config = cascade({"type": str(file), "cost_s": 2}, "human", budget=6)
    assert config.models[0].cost_s == 2 and config.models[0].rights.success_from == 0.9
    assert config.names() == ["BrightnessConfig", "human"] and config.human.cost_s == 30
    path = tmp_path / "cascade.yaml"
    path.write_text(yaml.safe_dump({"type": "cascade", **config.model_dump(mode="json")}))
    assert load_judge_config(path, None).build().id == config.build().id


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "a cascade needs a stage before the human, like stages=[runs/reward_model,human]"),
        ({"stages": []}, "a cascade needs a stage before the human"),
        ({"stages": ["human"]}, "a cascade needs a stage before the human"),
        ({"stages": ["human", "simulator"]}, "a human must be the last stage of a cascade"),
        ({"stages": ["simulator", "human"], "budget": 0}, "0 minutes of a human per hour is not a valid budget"),
        ({"stages": ["simulator", "human"], "budget": 0.1}, "is less than one episode takes a human"),
        ({"stages": ["simulator"], "budget": 5}, "no stage is human"),
        ({"stages": ["simulator", "human"], "rule": {"k": 1}}, "a cascade has no rule of its own"),
        ({"stages": ["runs/none", "human"]}, "there is no judge runs/none"),
        ({"stages": ["clasifier", "human"]}, "there is no judge 'clasifier'; did you mean 'classifier'"),
        ({"stages": [{"type": "cascade", "stages": ["simulator"]}]}, "a stage of a cascade cannot be a cascade"),
        ({"stages": ["simulator"], "check": 1.5}, "key 'check' is 1.5"),
    ],
)
def test_a_mistake_is_one_sentence(keys, sentence):
    with pytest.raises(PlauditError) as told:
        parse(CascadeConfig, keys)
    assert sentence in str(told.value) and len(str(told.value).splitlines()) == 1


def test_a_stage_that_decides_by_a_cutoff_is_refused():
    with pytest.raises(JudgeError, match="decides by one cutoff"):
        cascade(stage(4, rule={"decode": "cutoff"}), "human").build()


def test_code_that_the_file_of_a_stage_names_needs_the_users_word(tmp_path):
    file = tmp_path / "first.yaml"
    file.write_text("type: somebody.elses:Config\n")
    with pytest.raises(PlauditError, match="--allow-code somebody"):
        cascade(str(file), "human")

"""What a judge's errors cost, from a few runs whose success you can follow by eye."""

from importlib import import_module
from pathlib import Path

import pytest

from plaudit.data.disk import encode_checked
from plaudit.errors import BadFile, DataError
from plaudit.judges.certificate import FIGURES, Certificate
from plaudit.judges.plan import NoiseRun, Plan, PlanTable, noise_of, noise_of_certificate, precision_of
from plaudit.judges.stats import episodes_needed, p_value
from plaudit.report.tables import labels_sentence, needs_sentences


def runs(learner: str, **levels: dict[float, float]) -> list[NoiseRun]:
    """Two runs at each level of each kind, a point below and above its success."""
    return [
        NoiseRun(env="lift", learner=learner, noise={kind: level} if level else {}, seed=seed, success=success + off)
        for kind, found in levels.items()
        for level, success in found.items()
        for seed, off in enumerate((-0.01, 0.01))
    ]


def table() -> PlanTable:
    """Success falls by 1 point for 5 of false positives, and by 2 for 5 of misses, from 90% on."""
    made = runs("ppo", false_positives={0: 0.9, 0.5: 0.8}, misses={0.25: 0.8, 0.5: 0.7}, tricks={0.5: 0.9, 1.0: 0.1})
    late = runs("sac", late_by={0: 0.6, 100: 0.3})
    return PlanTable(recipes={"lift": {"ppo": "env=lift learner=ppo", "sac": "env=lift learner=sac"}}, runs=made + late)


def plan() -> Plan:
    return table().plan("lift")


def test_success_between_two_levels_lies_between_theirs():
    assert plan().predict({}).success == pytest.approx(0.9)
    assert plan().predict({"false_positives": 0.25}).success == pytest.approx(0.85)
    assert plan().predict({"misses": 0.125}).success == pytest.approx(0.85)
    assert plan().predict({"misses": 0.5}).spread == pytest.approx(0.0141, abs=1e-4)


def test_errors_of_two_kinds_cost_what_each_costs_alone():
    assert plan().predict({"false_positives": 0.5, "misses": 0.25}).success == pytest.approx(0.9 * (8 / 9) * (8 / 9))


def test_late_labels_leave_the_share_that_they_left_another_learner():
    assert plan().predict({"late_by": 100}).success == pytest.approx(0.45)


def test_what_is_worse_than_in_any_run_is_named():
    found = plan().predict({"misses": 0.8, "tricks": 0.2})
    assert found.beyond == ("misses",) and found.success == pytest.approx(0.7)


def test_more_errors_never_raise_success():
    made = runs("ppo", misses={0: 0.8, 0.2: 0.9, 0.4: 0.6})
    found = PlanTable(recipes={"lift": {"ppo": ""}}, runs=made).plan("lift")
    assert found.curves["misses"].means == pytest.approx([0.85, 0.85, 0.6])


def test_a_wanted_success_allows_so_many_errors():
    assert plan().highest(0.85, "false_positives") == pytest.approx(0.25, abs=1e-3)
    assert plan().highest(0.85, "false_positives", given={"misses": 0.125}) == pytest.approx(0, abs=1e-3)
    assert plan().highest(0.95, "misses") is None


def test_precision_and_recall_are_false_positives_and_misses():
    noise = noise_of(precision=0.8, recall=0.8)
    assert noise == pytest.approx({"false_positives": 0.2, "misses": 0.2})
    assert precision_of(**noise) == pytest.approx(0.8)
    assert noise_of(0.5, 0.9, success_share=0.1)["false_positives"] == pytest.approx(0.1)
    with pytest.raises(DataError, match="more failures a success than there are"):
        noise_of(precision=0.1, recall=0.9)


def test_the_labels_to_buy_prove_what_was_asked_for():
    told = " ".join(needs_sentences(plan(), 0.85, 0.9))
    assert "wrong about 8% of failures and 8% of successes" in told and "precision of 92%" in told
    assert f"label {2 * episodes_needed(plan().highest(0.85, 'false_positives', 'misses') or 0, 0.95)} episodes" in told
    assert "the number of training episodes that it needs is not predicted" in told


def test_more_labels_are_needed_where_the_judge_is_sometimes_wrong():
    none, some = episodes_needed(0.1, 0.9), episodes_needed(0.1, 0.9, actual=0.05)
    assert none == 25 < some
    wrong = -(-some // 20)  # one in twenty
    assert p_value([1] * wrong + [0] * (some - wrong), 0.1) <= 0.1


def test_no_judge_is_good_enough_for_what_the_recipe_never_reaches():
    (told,) = needs_sentences(plan(), 0.95, 0.9)
    assert "reaches 90% with a perfect judge" in told


def test_no_labels_prove_nothing():
    assert "prove at best an error rate of 10% on each kind" in labels_sentence(plan(), 60, 0.9)
    with pytest.raises(DataError, match="--labels 0: nothing is proven without"):
        labels_sentence(plan(), 0, 0.9)


def test_a_certificate_gives_the_errors_it_measured_and_the_worst_it_allows():
    figures = {name: {"value": None, "low": None, "high": None} for name in FIGURES}
    figures |= {"precision": {"value": 0.9, "low": 0.8, "high": 0.95}, "recall": {"value": 0.9, "low": 0.7, "high": 1}}
    data = {"store": "s", "fingerprint": "f", "reference": ("human",), "episodes": 40, "successes": 20, "frames": 9}
    certificate = Certificate(
        date="2026-11-17", name="mine", source="classifier", fingerprint="f", rule="", rule_text="",
        data={**data, "num_left_out": 0}, figures=figures, controls=(), problems=(),
    )  # fmt: skip
    measured, worst = noise_of_certificate(certificate)
    assert measured == pytest.approx({"false_positives": 0.1, "misses": 0.1})
    assert worst == pytest.approx({"false_positives": 0.225, "misses": 0.3})
    one_kind = certificate.model_copy(update={"data": certificate.data.model_copy(update={"successes": 40})})
    with pytest.raises(DataError, match="all end the same way"):
        noise_of_certificate(one_kind)


def test_a_table_is_read_as_it_was_written_and_another_file_is_refused(tmp_path):
    table().save(tmp_path / "plan.json")
    assert PlanTable.load(tmp_path / "plan.json") == table()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BadFile, match="not written by 'plaudit judge plan"):
        PlanTable.load(tmp_path / "other.json")


def test_a_table_without_the_recipe_of_a_run_is_refused(tmp_path):
    tree = table().model_dump(mode="json") | {"recipes": {}}
    (tmp_path / "plan.json").write_bytes(encode_checked(tree))
    with pytest.raises(BadFile, match="not written by 'plaudit judge plan"):
        PlanTable.load(tmp_path / "plan.json")


def test_the_table_of_the_docs_has_a_row_for_each_kind_of_error_and_a_column_for_each_task(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    lines = import_module("plan").markdown_table(table()).splitlines()
    assert lines[0] == "| the judge is wrong | `lift` |" and "| never wrong | 90% +- 1 |" in lines
    assert "| 64 episodes late | 61% +- 1 |" in lines
    assert "| 80% of successes never seen | at most 70% +- 1 |" in lines

"""An exam ranks judges and names one that goes by the clock; its certificate is of one judge and of one data set."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from command import plaudit
from drawn import drawn_figures, overlaps
from five_judges import KINDS, NAME, STEPS, PushJudge, PushJudgeConfig, push_episode, push_store
from plaudit.data.disk import encode_checked
from plaudit.data.store import Store
from plaudit.errors import BadFile, JudgeError
from plaudit.judges import stats
from plaudit.judges.certificate import FIGURES, Certificate, certificate_beside, certificate_status, load_certificate
from plaudit.judges.evaluation import JudgeEvaluation
from plaudit.judges.exam import KeepingJudge, examine, rank
from plaudit.report.exam import write_exam_report
from plaudit.report.judge import save_evaluation
from plaudit.report.verdict import exam_verdict
from plaudit.types import Episode, JudgeId, Labels, ProgressFn, Scores


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """16 episodes that succeed and 12 that fail; 8 others that one judge knows by heart."""
    folder = tmp_path_factory.mktemp("lab")
    push_store(folder / "episodes", 16, 12)
    push_store(folder / "memory", 4, 4, first_seed=500)
    return folder


def examined(lab: Path, kind: str, store: str = "episodes", **options) -> tuple[Certificate, JudgeEvaluation]:
    config = PushJudgeConfig(kind=kind, memory=lab / "memory" if kind == "overfit" else None)
    data = Store.open(lab / store)
    return examine(data, config, config.build(), ("human",), data.ids, name=kind, **options)


def exam_of(lab: Path, kind: str, store: str = "episodes", **options) -> Certificate:
    return examined(lab, kind, store, **options)[0]


@pytest.fixture(scope="module")
def five(lab) -> list[tuple[Certificate, JudgeEvaluation]]:
    return [examined(lab, kind) for kind in KINDS]


@pytest.fixture(scope="module")
def certificates(five) -> dict[str, Certificate]:
    return {certificate.name: certificate for certificate, _ in five}


def test_five_judges_come_in_their_order_and_the_clock_is_named(certificates, five, tmp_path):
    ranked = sorted(certificates.values(), key=rank)
    assert [one.name for one in ranked] == list(KINDS)
    assert [one.passed for one in ranked] == [True, True, False, False, False]
    assert {one.name: one.shortcut for one in ranked if one.shortcut} == {"clock": "clock-like", "constant": "constant"}
    write_exam_report(tmp_path / "report.html", five, exam_verdict([one for one, _ in five], {}))
    page = (tmp_path / "report.html").read_text()
    assert "clock did not pass: it is clock-like (its values rise with time, whatever happens)" in page
    assert all(f">{about}" in page for about in FIGURES.values())


def test_the_page_says_what_its_intervals_cover_and_no_texts_overlap(five, tmp_path, monkeypatch, written_charts):
    figures = drawn_figures(monkeypatch)
    write_exam_report(tmp_path / "report.html", five, exam_verdict([one for one, _ in five], {}))
    assert (
        "episodes that are independent and recorded like those of this store" in (tmp_path / "report.html").read_text()
    )
    assert len(figures) == 27  # two rates; of each judge: a trace, calibration, a histogram, two timelines
    assert [overlaps(figure) for figure in figures] == [[]] * 27


def headings(page: Path) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page.read_text())


def test_an_exam_has_the_sections_of_an_evaluation_in_the_same_order(five, tmp_path):
    save_evaluation(tmp_path / "eval", "good", five[0][1], {})
    for name, some in (("one", five[:1]), ("two", five[:2])):
        write_exam_report(tmp_path / f"{name}.html", some, exam_verdict([one for one, _ in some], {}))
    top, *sections = headings(tmp_path / "eval" / "report.html")
    assert top == "P(success) over time"
    assert {"Episodes", "Frames", "Probabilities", "Negative controls", "Largest errors", "Metadata"} <= {*sections}
    assert headings(tmp_path / "one.html") == ["Result", top, "Figures", *sections]
    assert headings(tmp_path / "two.html") == ["Result", top, "Figures", "good", *sections, "weak", *sections]


def test_a_clock_looks_good_in_what_it_is_not_named_by(certificates):
    clock = certificates["clock"].figures
    frames, same_time = clock["frame_roc_auc"], clock["same_time_roc_auc"]
    assert frames.low > 0.7 and same_time.value == 0.5
    order = [clock[name].value for name in ("value_order", "value_order_still", "value_order_reversed")]
    assert order == pytest.approx([1, 1, 1])
    good = certificates["good"].figures
    assert good["value_order_still"].value == 0
    assert good["value_order_reversed"].high < -0.9 < 0.9 < good["value_order"].low


def test_all_controls_are_tried_each_with_an_interval_over_episodes(lab, certificates):
    push_store(lab / "other", 0, 4, first_seed=900)
    found = exam_of(lab, "weak", other_task=Store.open(lab / "other")).controls
    blanks = [f"blank {name}" for name in ("black", "white", "gray", "noise")]
    seen_otherwise = ["front dark", "wrist dark", "brighter", "darker", "cropped", "shifted"]
    assert {one.name for one in found} == {
        *("frozen frame", "time reversed", "truncated"), *blanks, *seen_otherwise, "another task"
    }  # fmt: skip
    rates = [(one.fpr.low, one.fpr.value, one.fpr.high) for one in found]
    assert all(np.isfinite(rate).all() and list(rate) == sorted(rate) for rate in rates)
    recall = {one.name: one.recall for one in certificates["good"].controls}
    assert recall["front dark"] == 0 and recall["wrist dark"] > 0.9 and recall["truncated"] is None


def test_nothing_that_went_right_a_few_times_is_certain(certificates):
    good = certificates["good"].figures
    assert good["frame_roc_auc"].value == 1 and good["frame_roc_auc"].low < 0.95
    assert good["fpr"].value == 0 and good["fpr"].high > 0.1
    assert good["fpr_at_95_recall"].high > 0.1
    assert math.isinf(good["onset_p90"].high)  # 16 successes do not bound it


def test_a_quantile_is_within_its_interval_as_often_as_is_said():
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(300):
        found = stats.quantile(rng.exponential(size=12), 0.5)
        hits.append(found.low <= math.log(2) <= found.high)
    assert np.mean(hits) >= 0.93
    assert math.isinf(stats.quantile(np.arange(35), 0.9).high)
    assert stats.quantile(np.arange(36), 0.9).high == 35 and 1 - 0.9**36 > 0.975  # that not all are below


def test_an_area_is_within_its_interval_as_often_as_is_said():
    """Eight episodes, frames of which are right or wrong together."""
    rng = np.random.default_rng(0)

    def scores(episodes: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        shifts = rng.normal(0, 0.8, episodes)
        success = [(1.6 + s + rng.normal(0, 0.7, 10))[: 10 * (n % 2)] for n, s in enumerate(shifts)]
        return success, [s + rng.normal(0, 0.7, 10) for s in shifts]

    concordant, pairs = stats.count_pairs(*scores(1000))
    true, found = concordant.sum() / pairs.sum(), [stats.auc(*stats.count_pairs(*scores(8))) for _ in range(80)]
    assert np.mean([one.low <= true <= one.high for one in found]) >= 0.9


def test_pairs_are_those_of_the_formula():
    """Success frames 2 and 3 of one episode beside failure frames 1 and 2 of another: three and a half of four."""
    concordant, pairs = stats.count_pairs([np.array([2.0, 3]), np.zeros(0)], [np.zeros(0), np.array([1.0, 2])])
    assert concordant.tolist() == [[0, 3.5], [0, 0]] and pairs.tolist() == [[0, 4], [0, 0]]
    scores, targets = [np.array([2.0, 3]), np.array([1.0, 3])], [np.array([0.0, 1]), np.array([0.0, 0])]
    concordant, pairs = stats.count_same_time_pairs(scores, targets)
    assert concordant[0, 1] == 0.5 and pairs[0, 1] == 1 and pairs.sum() == 1


def test_a_judge_that_misses_most_successes_does_not_pass(lab):
    config, data = PushJudgeConfig(kind="good", rule={"threshold": 0.9999}), Store.open(lab / "episodes")
    certificate, _ = examine(data, config, config.build(), ("human",), data.ids, name="strict")
    assert certificate.figures["recall"].value == 0 and certificate.figures["frame_roc_auc"].low > 0.9
    assert certificate.problems == ("it misses most successes (recall, episodes: 0.00 to 0.19)",)
    assert "Not usable" in exam_verdict([certificate], {}).result


def test_a_judge_that_cannot_score_all_episodes_does_not_pass(tmp_path):
    store = push_store(tmp_path / "episodes", 4, 4)
    blind = replace(push_episode(50, False)[0], frames={"wrist": push_episode(50, False)[0].frames["wrist"]})
    store.ledger.append(store.append(blind), Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))
    found = exam_of(tmp_path, "good")
    (problem,) = found.problems
    assert problem.startswith("it could not score 1 of 9 episodes: the judge raised KeyError: 'front'")
    assert found.data.episodes == 8 and found.data.num_left_out == 1


def test_where_no_two_frames_have_the_same_number_all_frames_count(tmp_path):
    """Every episode succeeds at the same moment, so that a clock would be right."""
    store = Store.create(tmp_path / "episodes")
    for seed in range(6):
        episode, _ = push_episode(0, True)
        labels = Labels.from_cutoff(steps=STEPS, cutoff=12, source="human")
        store.ledger.append(store.append(replace(episode, state=episode.state + seed)), labels)
    found = exam_of(tmp_path, "constant")
    assert all(math.isnan(found.figures[name].value) for name in ("same_time_roc_auc", "episode_roc_auc"))
    assert found.shortcut == "constant" and rank(found)[1] == -0.5


# The command


@pytest.fixture
def judges(lab, monkeypatch) -> Path:
    """good.yaml and overfit.yaml, which knows all of `memory`."""
    monkeypatch.setenv("PLAUDIT_ALLOW_CODE", "five_judges")
    for kind in ("good", "overfit"):
        memory = {"memory": str(lab / "memory")} if kind == "overfit" else {}
        (lab / f"{kind}.yaml").write_text(yaml.safe_dump({"type": NAME, "kind": kind, **memory}))
    return lab


def test_the_command_writes_a_page_and_puts_the_certificate_beside_the_judge(judges):
    said = plaudit("judge", "exam", "good.yaml", "episodes", "-o", "out", cwd=judges)
    assert "passed" in said and "13 of 13" in said and "the certificate is good.certificate.json" in said
    assert {path.name for path in (judges / "out").iterdir()} == {"report.html", "certificate.json"}
    path = judges / "good.certificate.json"
    assert path.read_bytes() == (judges / "out" / "certificate.json").read_bytes()
    assert "is of this judge and this data; exam passed" in plaudit(
        "judge", "exam", "good.yaml", "episodes", "--check", cwd=judges
    )
    another = plaudit("judge", "exam", "good.yaml", "memory", "--check", cwd=judges, ok=False)
    assert "error: good.certificate.json was made on other data: 28 episodes of episodes with fingerprint" in another
    stricter = ("good.yaml", "episodes", "--check", "rule.threshold=0.9")
    told = plaudit("judge", "exam", *stricter, cwd=judges, ok=False)
    assert "good.certificate.json is the certificate of another judge: it was made for the rule" in told


def test_without_failing_episodes_no_judge_passes(tmp_path):
    push_store(tmp_path / "episodes", 6, 1)
    certificate = exam_of(tmp_path, "good")
    assert certificate.problems == ("only 1 of 7 episodes fail; 3 show how often it is fooled",)


def test_an_exam_says_what_its_intervals_hold_for(judges):
    for words, which in (((), "all of episodes"), (("--episodes", "0-19"), "those chosen with --episodes of episodes")):
        said = " ".join(plaudit("judge", "exam", "good.yaml", "episodes", *words, cwd=judges).split())
        assert f"The 95% intervals hold for new episodes drawn like these {20 if words else 28}: {which}" in said
        assert "labels of human, simulator, dataset, cutoff. They do not cover other tasks, scenes or policies." in said


class InterruptedAfter:
    """Lets a judge score so many episodes, then presses Ctrl-C; counts what it scored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int):
        self.most, self.scored, score = most, 0, PushJudge.score

        def counted(judge: PushJudge, episodes: Sequence[Episode]) -> Sequence[Scores]:
            if self.scored >= self.most:
                raise KeyboardInterrupt
            self.scored += len(episodes)
            return score(judge, episodes)

        monkeypatch.setattr(PushJudge, "score", counted)


def test_an_exam_that_was_interrupted_scores_only_what_is_left(judges, tmp_path, monkeypatch):
    whole = InterruptedAfter(monkeypatch, most=10**6)
    plaudit("judge", "exam", "good.yaml", judges / "episodes", "-o", tmp_path / "whole", cwd=judges)
    total, counter = whole.scored, InterruptedAfter(monkeypatch, most=10)
    words = ("judge", "exam", "good.yaml", judges / "episodes", "-o", tmp_path / "out")
    for most in (10, 100):  # while it scores episodes, and controls
        counter.most = most
        assert "the scores so far are kept, run the same command to resume" in plaudit(*words, cwd=judges, ok=False)
        assert not (tmp_path / "out").exists()
        assert counter.scored == most
    counter.most = 10**6
    plaudit(*words, cwd=judges)
    assert counter.scored == total
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out", "whole"]
    figures = [load_certificate(tmp_path / name / "certificate.json", None).figures for name in ("out", "whole")]
    assert figures[0] == figures[1]


def test_scores_of_another_judge_or_another_episode_are_not_reused(tmp_path):
    episode, other = push_episode(1, True)[0], push_episode(2, True)[0]
    judges = {kind: PushJudgeConfig(kind=kind).build() for kind in ("good", "clock")}
    for kind, shown in (
        ("good", episode),
        ("good", other),
        ("good", replace(episode, task="pull")),
        ("clock", episode),
    ):
        (kept,) = KeepingJudge(judges[kind], tmp_path / "scores").score([shown])
        (scored,) = judges[kind].score([shown])
        assert isinstance(kept, Scores) and isinstance(scored, Scores)
        np.testing.assert_array_equal(kept.success_prob, scored.success_prob)


def test_scores_after_a_line_that_a_kill_cut_off_are_kept(tmp_path, monkeypatch):
    judge, path = PushJudgeConfig(kind="good").build(), tmp_path / "scores"
    episodes = [push_episode(seed, True)[0] for seed in range(3)]
    KeepingJudge(judge, path).score(episodes[:2])
    path.write_text(path.read_text()[:-9])
    KeepingJudge(judge, path).score(episodes[2:])
    counter = InterruptedAfter(monkeypatch, most=1)
    KeepingJudge(judge, path).score(episodes)
    assert counter.scored == 1


def test_an_exam_counts_every_episode_and_control_on_the_screen(lab):
    counted: dict[str, int] = {}

    def watch(what: str) -> ProgressFn:
        def track(items):
            for item in items:
                counted[what] = counted.get(what, 0) + 1
                yield item

        return track

    exam_of(lab, "good", progress=watch)
    assert list(counted) == ["scoring episodes, part 1 of 2", "scoring controls, part 2 of 2"]
    assert counted["scoring episodes, part 1 of 2"] == 28 and counted["scoring controls, part 2 of 2"] > 100


def test_what_cannot_be_examined_is_one_sentence_and_nothing_is_written(judges):
    push_store(judges / "failures", 0, 4, first_seed=700)
    for words, problem in (
        (("overfit.yaml", "memory"), "nothing unseen is left; use other episodes\n"),
        (("good.yaml", "failures"), "Of the 4 in failures that this judge has not seen 0 show success and 4 failure"),
        (("good.yaml",), "name a judge, or several, and then a store"),
        (("nobody", "episodes"), "there is no judge 'nobody'"),
    ):
        said = plaudit("judge", "exam", *words, "-o", "none", cwd=judges, ok=False)
        assert problem in said and said.count("error:") == 1
        assert not (judges / "none").exists() and not (judges / "overfit.certificate.json").exists()


# The certificate


def test_a_certificate_is_of_one_judge(certificates, tmp_path):
    path, good = tmp_path / "certificate.json", certificates["good"]
    good.save(path)
    assert load_certificate(path, good.judge) == good
    with pytest.raises(JudgeError, match="certificate of another judge: it was made for push_good push good, this is"):
        load_certificate(path, certificates["weak"].judge)
    assert certificate_status(path, good.judge) == (good.line, "")
    certificates["clock"].save(path)
    line, refusal = certificate_status(path, certificates["clock"].judge)
    assert "exam FAILED (clock-like) on 28 unseen episodes" in line
    assert refusal == f"its judge failed its exam: {certificates['clock'].problems[0]}"


def test_an_unreadable_certificate_is_told_in_a_sentence(certificates, tmp_path):
    path = tmp_path / "certificate.json"
    certificates["good"].save(path)
    better = path.read_text().replace('"num_left_out": 0', '"num_left_out": 1')
    for text, why in (("{", ""), ("{}", "its checksum is missing"), (better, "it fails its checksum")):
        path.write_text(text)
        with pytest.raises(BadFile, match=f"this certificate cannot be read \\(.*{why}"):
            load_certificate(path)
        assert "run plaudit judge exam again" in certificate_status(path, JudgeId("push_good"))[1]


BAD_CONTROL = {"fpr": {"value": 0.9, "low": 0.8, "high": 1.0}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"figures": {}}, "it lacks the figure 'same_time_roc_auc'"),
        ({"data": {"episodes": 0}}, "key 'data.episodes': Input should be greater than 0"),
        ({"data": {"successes": 999}}, "999 of its 28 episodes succeed"),
        ({"figures": {"recall": {"value": 1.5, "low": 1.4, "high": 1.6}}}, "'recall' is not between 0 and 1"),
        ({"figures": {"recall": {"value": 0.5, "low": 0.6, "high": 0.4}}}, "0.5 is not between 0.6 and 0.4"),
        ({"controls": [BAD_CONTROL]}, "it says that the judge passed, although frozen frame: "),
        ({"controls": [BAD_CONTROL | {"max_fpr": 1.0}]}, "its control 'frozen frame' has a limit of 100%"),
        ({"shortcut": "clock-like"}, "although it is clock-like"),
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(certificates, tmp_path, changes, why):
    path, good = tmp_path / "certificate.json", certificates["good"]
    tree = good.model_dump(mode="json")
    for key, value in changes.items():
        if key == "controls":
            tree[key] = [{**tree[key][0], **value[0]}, *tree[key][1:]]
        else:
            tree[key] = {**tree[key], **value} if isinstance(value, dict) and value else value
    path.write_bytes(encode_checked(tree))
    line, refusal = certificate_status(path, good.judge)
    assert why in line and refusal == line and "run plaudit judge exam again" in line


def test_a_certificate_lies_beside_its_judge(tmp_path):
    (tmp_path / "model.json").touch()
    assert certificate_beside(tmp_path) == tmp_path / "certificate.json"
    assert certificate_beside(tmp_path / "judge.yaml") == tmp_path / "certificate.json"
    assert certificate_beside(tmp_path / "strict.yaml") == tmp_path / "strict.certificate.json"


def test_an_episode_of_the_five_judges_is_as_its_label_says(tmp_path):
    episode, cutoff = push_episode(0, True)
    labels = Labels.from_cutoff(steps=STEPS, cutoff=cutoff, source="human")
    (scores,) = PushJudgeConfig().build().score([episode])
    assert np.array_equal(scores.success_prob > 0.5, labels.success)

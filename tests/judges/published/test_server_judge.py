"""A judge behind a server: the same scores, and never one from a server that is gone, slow or wrong."""

import json
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from brightness_server import Brightness, answering, http, ramp, serving
from plaudit.contracts import check_judge
from plaudit.data.store import Store
from plaudit.errors import JudgeError, JudgeUnavailable
from plaudit.judges.labeling import LabelRunner, StoreQueue
from plaudit.judges.published.config import RobometerServerConfig
from plaudit.rule import DecisionRule
from plaudit.types import Episode

EACH_FRAME = DecisionRule(decode="per_frame")
VALUES = [0.0, 0.1, 0.3, 0.5, 0.4, 0.8, 0.9, 1.0, 0.6, 0.2]


def episode(values=VALUES, **facts):
    return Episode.of(frames={"front": ramp(values)}, actions=np.zeros((len(values) - 1, 1)), task="lift", **facts)


def judge_at(url, **settings):
    return RobometerServerConfig(url=url, **{"retries": 0, "timeout": 5.0, **settings}).build()


@pytest.mark.parametrize("settings", [{}, {"wire": "json"}, {"samples": 3, "max_frames": 2}])
def test_it_scores_like_the_judge_that_is_served(settings):
    with serving() as url:
        scores: Any = judge_at(url, **settings).score([episode()])[0]
    own: Any = Brightness().score([episode()])[0]
    assert_allclose(scores.progress, own.progress, atol=1e-5)
    assert_allclose(scores.success_prob, own.success_prob, atol=1e-5)


def test_it_passes_the_contract():
    with serving() as url:
        check_judge(judge_at(url), [episode(), episode([0.1, 0.5], padded="last")])


def test_a_token_is_sent(monkeypatch):
    with serving(token="a-long-token-1") as url:
        (error,) = judge_at(url).score([episode()])
        assert "refuses the token in the variable PLAUDIT_API_KEY" in str(error)
        monkeypatch.setenv("PLAUDIT_API_KEY", "a-long-token-1")
        (scores,) = judge_at(url).score([episode()])
    assert scores.progress is not None


def reply(progress, success=None):
    tree = {"outputs_progress": {"progress_pred": progress}}
    tree |= {} if success is None else {"outputs_success": {"success_probs": success}}
    return http(json.dumps(tree).encode())


ONE = episode([0.5, 0.7], padded="last")  # one frame, so one value


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply([[0.5, 0.6]]), "with a list of 2 for 1 frames"),
        (reply([]), "with a list of 0 for 1 samples"),
        (reply([[float("nan")]]), "with nan, which is not a number"),
        (reply([["0.5"]]), "with '0.5', which is not a number"),
        (reply([[10**400]]), "which is not a number"),
        (reply([[True]]), "with True, which is not a number"),
        (reply([[7.0]]), "set values=seconds if it serves seconds"),
        (reply([[0.5]], [[1.5]]), "a probability outside of 0 to 1"),
        (http(b"{}"), "is it a server of Robometer"),
        (http(b"<html>"), "something that is not JSON"),
        (http(b"[" * 200_000), "something that is not JSON"),
        (http(b"x" * (9 << 20)), "more than 8,388,608 bytes"),
        (http(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "answered HTTP 302"),
        (http(b'{"error": "no task"}', "400 Bad Request"), 'HTTP 400: \'{"error": "no task"}\''),
    ],
)
def test_a_wrong_answer_is_one_clear_error_and_no_score(answer, message):
    with answering(answer) as url:
        (error,) = judge_at(url).score([ONE])
    assert isinstance(error, JudgeError) and not isinstance(error, JudgeUnavailable)
    assert message in str(error)


@pytest.mark.parametrize(
    ("answer", "drip_s", "message"),
    [
        (http(b"{}", "503 Service Unavailable"), 0, "answered HTTP 503"),
        (b"", 0, "cannot be reached"),
        (b"no http at all\r\n\r\n", 0, "cannot be reached"),
        (reply([[0.5]]), 0.05, "did not answer within 0.5 s"),  # byte by byte: each arrives in time, and all do not
        (http(b'{"outputs')[:-2] + b"", 0, "cannot be reached"),
    ],
)
def test_a_server_that_does_not_work_is_unavailable(answer, drip_s, message):
    with answering(answer, drip_s) as url:
        first, second = judge_at(url, timeout=0.5).score([ONE, ONE])
    assert isinstance(first, JudgeUnavailable) and isinstance(second, JudgeUnavailable)
    assert message in str(first)


def test_seconds_become_progress_by_the_horizon():
    with answering(reply([[30.0]])) as url:
        (scores,) = judge_at(url, values="seconds", horizon_s=40.0).score([ONE])
    assert scores.progress[0] == pytest.approx(0.25)
    with answering(reply([[-1.0]])) as url:
        (error,) = judge_at(url, values="seconds").score([ONE])
    assert "with a negative time" in str(error)


def test_a_killed_server_makes_labels_late_and_none_wrong(tmp_path):
    store = Store.create(tmp_path / "episodes")
    ids = [store.append(episode()) for _ in range(3)]
    with serving() as url:
        port = int(url.rsplit(":", 1)[1])
        runner = LabelRunner(judge_at(url, timeout=2.0, rule=EACH_FRAME), StoreQueue(store), batch_size=1, retry_s=0.0)
        assert runner.step().done == [ids[0]]
    for _ in range(2):
        with pytest.raises(JudgeUnavailable, match="is the server up"):
            runner.step()
    ids.append(store.append(episode()))  # data collection goes on
    assert [i for i in ids if store.ledger.newest(i) is not None] == ids[:1]
    with serving(port=port):
        assert [runner.step().done for _ in range(3)] == [[i] for i in ids[1:]]
    successes = [store.ledger.labels(i).success.tolist() for i in ids]
    assert successes == [(np.array(VALUES) ** 2 >= 0.5).tolist()] * 4


def test_an_address_that_is_none_is_refused():
    with pytest.raises(JudgeError, match="is no address of a server"):
        judge_at("localhost:8000")

"""The same model behind a real HTTP server: the same numbers, and a sentence for each way in which a server fails."""

import socket
import sys
import time
from typing import Any

import pytest
from numpy.testing import assert_allclose

from brightness import NAME, STEPS, ramp
from chat_server import ChatServer
from plaudit.config import parse
from plaudit.errors import JudgeError, JudgeUnavailable, MissingExtra
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.labeling import label_episodes
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.endpoint import TokenLogprob, logit_of
from plaudit.registry import JUDGE_REGISTRY
from plaudit.types import Labels
from tiny_vlm import moving

BUSY = (429, {"Retry-After": "0.3"}, '{"error": {"message": "slow down"}}')


@pytest.fixture
def server(plain):
    with ChatServer(plain) as server:
        yield server


def scorer_of(url, endpoint=(), **settings) -> Any:
    endpoint = {"base_url": url, "retries": 1, "timeout": 20.0, **dict(endpoint)}
    return VlmJudgeConfig(model="tiny", backend="openai", image_size=64, endpoint=endpoint, **settings).load_backend()


@pytest.mark.parametrize("facts", [{}, {"size": (48, 96)}, {"cameras": ("front", "wrist")}], ids=str)
def test_both_backends_agree(scorer, server, facts):
    episodes = [moving(steps=3, **facts), moving(steps=1, seed=1, **facts)]
    for here, there in zip(scorer.score(episodes), scorer_of(server.url).score(episodes), strict=True):
        assert_allclose(there, here, atol=1e-4)


def test_each_frame_is_one_request_and_the_longest_comes_first(server):
    scorer_of(server.url, {"parallel": 1}).score([moving(steps=3)])
    assert [len(body["messages"]) for _, _, body in server.requests] == [8, 2, 4, 6]
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["top_logprobs"]) == ("tiny", 1, 20)


def test_a_stride_asks_about_fewer_frames(server):
    (said,) = scorer_of(server.url, frame_stride=3).score([moving(steps=6)])
    assert len(server.requests) == 3
    assert said[0] == said[1] == said[2] != said[3]


def test_the_key_comes_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    scorer_of(server.url, {"api_key_env": "MY_KEY"}).score([moving(steps=1)])
    assert server.requests[0][1] == "Bearer secret"


def test_a_busy_server_is_waited_for_as_long_as_it_says(server):
    server.faults.append(BUSY)
    begun = time.perf_counter()
    (said,) = scorer_of(server.url).score([moving(steps=1)])
    assert len(said) == 2
    assert time.perf_counter() - begun > 0.3


def test_a_server_that_fails_once_is_asked_again(server):
    server.faults.append((500, {}, '{"error": {"message": "oh"}}'))
    assert len(scorer_of(server.url).score([moving(steps=1)])[0]) == 2


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (BUSY, "is busy (HTTP 429), 2 times; lower endpoint.parallel, or raise endpoint.retries"),
        ((500, {"Retry-After": "0.01"}, '{"error": {"message": "no GPU"}}'), "answered HTTP 500: Error code: 500"),
        ((401, {}, "{}"), "refuses the key in the variable OPENAI_API_KEY"),
        ((404, {}, '{"error": {"message": "nothing here"}}'), "knows no model 'tiny' (HTTP 404"),
        (
            (200, {"Content-Type": "text/html"}, "<html>hello"),
            "answered with something that is not a chat completion: '<html>hello'",
        ),
        ((200, {}, '{"choices": '), "answered with something that is not a chat completion"),
        ((200, {}, '{"choices": []}'), "answered with no choices"),
        ((200, {}, '{"choices": [{"message": {"content": "Yes"}}]}'), "gave an answer without log-probabilities"),
    ],
    ids=["429", "500", "401", "404", "html", "cut off", "empty", "no logprobs"],
)
def test_a_server_that_goes_on_failing_is_one_sentence(server, fault, sentence):
    server.always = fault
    (said,) = scorer_of(server.url).score([moving(steps=3)])
    assert isinstance(said, JudgeError)
    assert str(said).startswith(server.url) and sentence in str(said)
    assert len(server.requests) <= 2  # of the last frame: the others are not even tried


def test_a_slow_server_is_given_up_on(server):
    server.always = 0.6
    (said,) = scorer_of(server.url, {"timeout": 0.2}).score([moving(steps=1)])
    assert "did not answer within 0.2 s, 2 times; raise endpoint.timeout" in str(said)


def test_a_server_that_is_down_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    (said,) = scorer_of(url, {"retries": 0}).score([moving(steps=1)])
    assert str(said).startswith(f"{url} cannot be reached (") and str(said).endswith("is the server up?")


def test_one_bad_episode_leaves_the_others_alone(server):
    first, second, third = scorer_of(server.url).score([moving(steps=1), moving(task=""), moving(steps=2)])
    assert (len(first), len(third)) == (2, 3)
    assert "has no task text" in str(second)


def test_a_word_that_is_not_listed_counts_as_the_least_that_is():
    listed = [
        TokenLogprob(token="Yes", logprob=-0.5),
        TokenLogprob(token=" yes", logprob=-0.5),
        TokenLogprob(token="The", logprob=-6.0),
    ]
    assert logit_of(listed, 0) == pytest.approx(-0.5 + 0.693147 + 6.0)


def test_an_answer_that_is_neither_yes_nor_no_is_an_error():
    with pytest.raises(JudgeError, match="neither yes nor no is among the 2 likeliest answers at frame 7") as error:
        logit_of([TokenLogprob(token="<think>", logprob=0.0), TokenLogprob(token="The", logprob=-9.0)], 7)
    assert "'<think>', 'The'" in str(error.value)


def test_words_are_asked_for_and_read(server):
    server.texts.extend(["It slides.\nAnswer: Yes", "<think>hm</think><answer>no</answer>", "It may be done."])
    yes, no, unclear = (scorer_of(server.url).explain(moving(steps=2)) for _ in range(3))
    assert (yes.answer, no.answer, unclear.answer) == (True, False, None)
    assert unclear.error.endswith("'It may be done.'") and yes.error is None


def test_words_from_a_server_that_is_busy_are_an_error_on_the_record(server):
    server.always = BUSY
    assert "is busy" in scorer_of(server.url).explain(moving(steps=2)).error


def test_jpeg_is_another_judge(server):
    png, jpeg = (scorer_of(server.url, {"image_format": form}) for form in ("png", "jpeg"))
    (one,), (other,) = png.score([moving(steps=1)]), jpeg.score([moving(steps=1)])
    assert_allclose(one, other, atol=0.5)
    assert png.fingerprint != jpeg.fingerprint


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"openai is not installed; run: pip install 'plaudit\[vlm\]'"):
        scorer_of("http://127.0.0.1:1/v1")


def test_in_a_cascade_it_is_asked_only_where_the_stage_before_is_unsure(server):
    """The first stage is sure of what stays dark, and unsure of what is as bright as 3 or 4."""
    tried = {"max_error": 0.05, "confidence": 0.9, "failures": 60, "successes": 60, "k": 2, "n": 3}
    first = {"type": NAME, "rights": {"fingerprint": "cut 4", **tried, "success_from": 0.9, "failure_to": 0.1}}
    endpoint = {"base_url": server.url, "retries": 0}
    vlm = VlmJudgeConfig(model="tiny", backend="openai", image_size=64, endpoint=endpoint, rule={"threshold": 2.0})
    rights = {"fingerprint": vlm.build().id.fingerprint, **tried, "failure_to": 1.0}  # it never sees success
    second = {**JUDGE_REGISTRY.dump(vlm), "rights": rights}
    judge = parse(CascadeConfig, {"stages": [first, second, "human"], "check": 0.0}).build()
    found = label_episodes(judge, [ramp(2), ramp(3), ramp(4)])
    assert [one.note.partition(":")[0] for one in found if isinstance(one, Labels)] == [
        "decided by BrightnessConfig, 1 s",
        "decided by vlm, 6 s",
        "undecided, 6 s",  # the first leans to success
    ]
    assert len(server.requests) == 2 * (STEPS + 1)
    server.always = (503, {}, "busy")
    assert isinstance(label_episodes(judge, [ramp(3)])[0], JudgeUnavailable)  # it is waited for

"""`plaudit judge serve`: what Robometer's client and RLinf's API reward worker send, and what is refused."""

import base64
import io
import json
import re
import threading

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from brightness_server import Brightness, app, ramp
from plaudit.web import judge_server
from plaudit.web.judge_server import WAITING


@pytest.fixture(scope="module")
def client():
    return TestClient(app())


def sample(frames, **changes):
    """As Robometer's client builds it."""
    trajectory = {"frames": frames, "frames_shape": [3, 8, 8, 3], "task": "lift", "id": "0", "video_embeddings": None}
    trajectory |= {"metadata": {"subsequence_length": 3}}
    return {"sample_type": "progress", "trajectory": {**trajectory, **changes}}


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def form(samples, files, boundary="6d3c1f0c9f6d4a27"):
    """Byte by byte as the `requests` library sends it: fields first, then files."""
    out = b""
    for number, one in enumerate(samples):
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="sample_{number}"\r\n\r\n'.encode()
        out += json.dumps(one).encode() + b"\r\n"
    for name, data in files.items():
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.npy"\r\n'.encode()
        out += b"Content-Type: application/octet-stream\r\n\r\n" + data + b"\r\n"
    return out + f"--{boundary}--\r\n".encode(), {"content-type": f"multipart/form-data; boundary={boundary}"}


def test_a_recorded_form_of_robometers_client_is_answered(client):
    name = "sample_0_trajectory_frames"
    body, headers = form([sample({"__numpy_file__": name})], {name: npy(ramp([0, 0.4, 1]))})
    answer = client.post("/evaluate_batch_npy", content=body, headers=headers)
    assert answer.status_code == 200
    tree = answer.json()
    np.testing.assert_allclose(tree["outputs_progress"]["progress_pred"], [[0, 0.4, 1]], atol=1e-6)
    np.testing.assert_allclose(tree["outputs_success"]["success_probs"], [[0, 0.16, 1]], atol=1e-6)
    assert tree["outputs_preference"] is None


def test_frames_in_json_give_the_same(client):
    both = {"samples": [sample(ramp([0.2, 0.6]).tolist()), sample(ramp([0.8]).tolist())], "use_frame_steps": True}
    tree = client.post("/evaluate_batch", json=both).json()
    np.testing.assert_allclose(tree["outputs_progress"]["progress_pred"][0], [0.2, 0.6], atol=1e-6)
    np.testing.assert_allclose(tree["outputs_progress"]["progress_pred"][1], [0.8], atol=1e-6)
    assert client.get("/health").json()["status"] == "healthy"
    assert client.get("/gpu_status").json()["gpu_stats"]["0"]["total_requests"] >= 1
    about = client.get("/model_info").json()
    assert (about["judge"], about["signals"]["success_prob"]["scope"], about["calibrated"]) == (
        "brightness",
        "any",
        False,
    )


# RLinf's API reward worker


def data_url(frame, kind="JPEG"):
    file = io.BytesIO()
    Image.fromarray(frame).save(file, format=kind, quality=95)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def rlinf_request(*clips):
    """Images of all clips, then the text; sampling parameters beside the messages."""
    content = [{"type": "image_url", "image_url": {"url": data_url(frame)}} for clip in clips for frame in clip]
    content.append({"type": "text", "text": "You are currently performing the task: lift. Is it getting better?"})
    messages = [{"role": "user", "content": content}]
    return {"model": "brightness", "messages": messages, "max_tokens": 32, "temperature": 0.0}


def trend_parser(text):
    """The rule of RLinf's vlm_trend_reward_parser."""
    label = str(json.loads(text).get("trend", "")).strip().lower()
    return {"positive": 1.0, "negative": -0.2, "unclear": 0.0}[label]


def digit_parser(text):
    """The rule of RLinf's vlm_trend_binary_digit_reward_parser."""
    return float(re.findall(r"(?<!\d)([01])(?!\d)", text.strip())[-1])


@pytest.mark.parametrize(
    ("values", "trend", "success"),
    [([0.1, 0.3, 0.9], 1.0, 1), ([0.9, 0.5, 0.1], -0.2, 0), ([0.5, 0.5, 0.5], 0.0, 0), ([0.9, 0.9, 0.9], 0.0, 1)],
)
def test_one_answer_serves_both_parsers_of_rlinf(client, values, trend, success):
    answer = client.post("/v1/chat/completions", json=rlinf_request(ramp(values)))
    text = answer.json()["choices"][0]["message"]["content"]
    assert (trend_parser(text), digit_parser(text)) == (trend, success)


def test_clips_of_two_cameras_are_told_apart():
    seen = []

    class Watching(Brightness):
        def score(self, episodes):
            seen.extend(episodes)
            return super().score(episodes)

    two = TestClient(app(Watching(), cameras=("global", "wrist"), task="lift"))
    request = rlinf_request(ramp([0.1, 0.2]), ramp([0.8, 0.9]))
    assert two.post("/v1/chat/completions", json=request).status_code == 200
    (episode,) = seen
    assert {name: int(frames.mean()) for name, frames in episode.frames.items()} == {"global": 38, "wrist": 217}
    assert episode.task == "lift"
    assert two.post("/v1/chat/completions", json=rlinf_request(ramp([0.1, 0.2, 0.3]))).status_code == 400


# What is refused

NAN = b'{"samples": [{"trajectory": {"frames": [[[[NaN,0,0]]]], "task": "a"}}]}'


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"samples": []}, 400, "has no samples"),
        ({"samples": [sample([])] * 65}, 413, "at most 64"),
        ({"samples": [sample([[1, 2]])]}, 400, "not [T, H, W, 3]"),
        ({"samples": [sample([[[[1, 2]], [[3]]]])]}, 400, "do not form an array"),
        ({"samples": [sample([[[[1, 2, 300]]]])]}, 400, "no numbers from 0 to 255"),
        ({"samples": [sample(ramp([1]).tolist(), task="")]}, 400, "has no task"),
        ({"samples": [sample({"__numpy_file__": "elsewhere"})]}, 400, "'elsewhere', which the request does not have"),
        ({"samples": [{"sample_type": "preference", "trajectory": {}}]}, 400, "only 'progress' is answered"),
        ({"samples": [7]}, 400, "has no trajectory"),
    ],
)
def test_bad_samples_are_one_clear_error(client, body, status, message):
    answer = client.post("/evaluate_batch", json=body)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.json()


def test_hostile_bodies_are_refused(client):
    deep = client.post("/evaluate_batch", content=b"[" * 100_000)
    assert (deep.status_code, "levels deep" in deep.json()["error"]) == (400, True)
    large = client.post("/evaluate_batch", content=iter([b"x" * 100_000] * 20))  # chunked, without a length
    assert (large.status_code, "larger than 1,048,576 bytes" in large.json()["error"]) == (413, True)
    assert client.post("/evaluate_batch", content=b"{", headers={"content-length": "99999999"}).status_code == 413
    nan = client.post(
        "/evaluate_batch", content=b'{"samples": [{"trajectory": {"frames": [[[[NaN,0,0]]]], "task": "a"}}]}'
    )
    assert nan.status_code == 400
    name = "sample_0_trajectory_frames"
    pickled = form([sample({"__numpy_file__": name})], {name: npy(np.array([{"a": 1}], dtype=object))})
    answer = client.post("/evaluate_batch_npy", content=pickled[0], headers=pickled[1])
    assert (answer.status_code, "objects where numbers should be" in answer.json()["error"]) == (400, True)
    body, headers = form([sample({"__numpy_file__": name})], {name: npy(ramp([1]))})
    assert (
        client.post("/evaluate_batch_npy", content=body[:-30], headers=headers).json()["error"]
        == "the form is cut short"
    )
    many = form([{}] * 300, {})
    assert client.post("/evaluate_batch_npy", content=many[0], headers=many[1]).status_code == 413


def test_small_files_of_many_large_images_are_not_decoded(client, monkeypatch):
    monkeypatch.setattr(judge_server, "MAX_DECODED", 3 * 8 * 8)
    content = [{"type": "image_url", "image_url": {"url": data_url(ramp([1])[0])}} for _ in range(4)]
    for images, status in ((content[:3], 200), (content, 413)):
        body = {"messages": [{"role": "user", "content": [*images, {"type": "text", "text": "lift"}]}]}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == status, answer.json()
    assert answer.json()["error"] == "image 3 has 8x8 pixels, too many with the others"


def test_bad_chats_are_refused(client):
    for content, message in (
        ([{"type": "text", "text": "hello"}], "has 0 images"),
        ([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/x"}}], "addresses are not fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "cannot be decoded"),
        ([{"type": "image_url", "image_url": {"url": data_url(ramp([1])[0])}}], "has no task"),
    ):
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
        assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.json()
    different = [data_url(ramp([1])[0]), data_url(ramp([1], 16)[0])]
    content = [{"type": "image_url", "image_url": {"url": url}} for url in different] + [{"type": "text", "text": "a"}]
    answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert answer.json()["error"] == "the images have different sizes"


def test_foreign_hosts_pages_and_tokens_are_refused():
    client = TestClient(app(token="a-long-token-1"))
    body = {"samples": [sample(ramp([0.5]).tolist())]}
    assert client.post("/evaluate_batch", json=body).status_code == 401
    assert client.post("/evaluate_batch", json=body, headers={"authorization": "Bearer wrong"}).status_code == 401
    given = {"authorization": "Bearer a-long-token-1"}
    assert client.post("/evaluate_batch", json=body, headers=given).status_code == 200
    assert client.post("/evaluate_batch", json=body, headers={**given, "host": "evil.example"}).status_code == 421
    assert (
        client.post("/evaluate_batch", json=body, headers={**given, "origin": "http://evil.example"}).status_code == 403
    )
    assert client.get("/model_info").status_code == 401


def test_a_judge_that_fails_gives_no_number():
    class Failing(Brightness):
        def score(self, episodes):
            raise ValueError("no")

    answer = TestClient(app(Failing())).post("/evaluate_batch", json={"samples": [sample(ramp([1]).tolist())]})
    assert (answer.status_code, "cannot be scored" in answer.json()["error"]) == (422, True)


def test_requests_beyond_the_queue_are_told_to_come_back():
    judge = Brightness()
    judge.block = threading.Event()
    client, body, answers = TestClient(app(judge)), {"samples": [sample(ramp([1]).tolist())]}, []
    asking = [
        threading.Thread(target=lambda: answers.append(client.post("/evaluate_batch", json=body)))
        for _ in range(WAITING + 3)
    ]
    for thread in asking:
        thread.start()
    while len(answers) < 3:
        pass
    judge.block.set()
    for thread in asking:
        thread.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] * WAITING + [503] * 3
    assert next(a for a in answers if a.status_code == 503).headers["retry-after"] == "1"

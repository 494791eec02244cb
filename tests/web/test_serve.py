"""`plaudit serve` over HTTP: what it shows, and what it refuses."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from command import plaudit
from conftest import counting_episode, labeled_store
from plaudit.data.store import Store
from plaudit.rule import DecisionRule, labels_from_scores
from plaudit.training.audit import CORRECTED
from plaudit.types import JudgeId, Labeler, Labels, Scores
from plaudit.web import guard
from plaudit.web import server as server_module
from plaudit.web.guard import LOCAL, Access
from plaudit.web.judges import WhatIf
from plaudit.web.pages import listen
from plaudit.web.server import make_app
from processes import start_plaudit
from waiting import stretch, wait_until

PROTOCOL_ERROR, TOO_BIG = b"\x03\xea", b"\x03\xf1"  # in the frame that closes a websocket
NASTY = "<img src=x onerror=alert(1)>"


class Serving:
    """A server in a process of its own."""

    def __init__(self, *words: object, port: int = 0):
        self._process = start_plaudit("serve", *words, "--port", port)
        self.said = ""
        wait_until(self._opened, what="for the server")
        self.address = re.search(r"open (\S+)", self.said)[1]
        self.port = int(re.search(r":(\d+)/", self.address)[1])

    def _opened(self) -> bool:
        line = self._process.readline()
        self.said += line
        assert line or self._process.poll() is None, self.said
        return line.startswith("open ")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.__exit__()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait()

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, the answer (JSON where it is) and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=stretch(30))
        data = None if body is None else json.dumps(body)
        own = {} if body is None else {"content-type": "application/json", "x-plaudit": "1"}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in {**own, **given}.items() if value is not None}
        connection.request("GET" if body is None else "POST", path, data, sent)
        answer = connection.getresponse()
        content, kind = answer.read(), answer.headers.get_content_type()
        connection.close()
        return answer.status, json.loads(content) if kind == "application/json" else content, dict(answer.headers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three labeled episodes, one of them unlabeled, and a run with a report of somebody else's."""
    folder = tmp_path_factory.mktemp("served")
    with labeled_store(folder / "data", counting_episode(4), counting_episode(4, 50, task=NASTY), cutoff=2) as store:
        store.append(counting_episode(4, 100))
        store.ledger.append(1, Labels.from_cutoff(steps=4, cutoff=None, source="classifier", note=NASTY))
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("schedule: online\n")
    lines = [{"step": 100 * i, "judge/success_once": i / 10, "time/elapsed_s": i} for i in range(1, 11)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "report.html").write_text("<script>alert(1)</script>")
    (folder / "exam").mkdir()
    (folder / "exam" / "report.html").write_text("<b>exam</b>")
    (folder / "secret.txt").write_text("do not show")
    (folder / "link").symlink_to("/etc")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with Serving(folder) as server:
        yield server


def test_the_library_has_stores_and_runs_and_follows_no_link(server, folder):
    _, items, _ = server.ask("/api/library")
    name = folder.name
    assert {"kind": "store", "name": f"{name}/data", "episodes": 3, "labeled": 2} in items
    run = {"kind": "run", "name": f"{name}/runs/one", "verdict": "Good: 100% success.", "tone": "good"}
    assert run | {"live": False, "step": 1000} in items
    assert {"kind": "report", "name": f"{name}/exam"} in items
    assert server.ask(f"/report/report/{name}/exam")[1] == b"<b>exam</b>"
    assert not any("link" in item["name"] for item in items)


def test_episodes_are_listed_filtered_and_paged(server, folder):
    address = f"/api/episodes/{folder.name}/data"
    _, page, _ = server.ask(address)
    assert [row["id"] for row in page["episodes"]] == [2, 1, 0]
    assert [row["outcome"] for row in page["episodes"]] == ["unlabeled", "success", "success"]
    for query, ids in {
        "outcome=success": [1, 0],
        "disagree=1": [1],
        "source=classifier": [1],
        "outcome=unlabeled": [2],
        "task=onerror": [1],
        "order=oldest&count=1&first=1": [1],
        "id=7": [],
    }.items():
        assert [row["id"] for row in server.ask(f"{address}?{query}")[1]["episodes"]] == ids, query


def test_a_new_label_changes_the_row(folder, server):
    with Store.open(folder / "data") as store:
        before = store.ledger.labels(0)
        store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=None, source="human"))
        _, page, _ = server.ask(f"/api/episodes/{folder.name}/data?id=0")
        assert page["episodes"][0]["outcome"] == "failure"
        store.ledger.append(0, before)


def test_an_episode_has_states_actions_scores_and_history(server, folder):
    _, episode, _ = server.ask(f"/api/episode/1/{folder.name}/data")
    assert episode["state"][0] == [500, 510, 520, 530, 540] and episode["actions"] == [[0, 1, 2, 3]]
    assert episode["labels"] == [0, 0, 1, 1, 1] and episode["cameras"] == {"front": [8, 10]}
    assert [(one["source"], one["counts"], one["summary"]) for one in episode["history"]] == [
        ("human", True, "success from frame 2"),
        ("classifier", False, "no success"),
    ]


def test_a_frame_is_the_pixels_of_the_episode(server, folder, tmp_path):
    from PIL import Image

    status, data, headers = server.ask(f"/frame/1/3/front/{folder.name}/data")
    (tmp_path / "frame.png").write_bytes(data)
    assert status == 200 and headers["content-type"] == "image/png"
    assert (np.asarray(Image.open(tmp_path / "frame.png")) == 53).all()
    assert server.ask(f"/frame/1/9/front/{folder.name}/data")[:2] == (
        400,
        {"error": "episode 1 has frames 0 to 4, not 9"},
    )
    assert server.ask(f"/frame/9/0/front/{folder.name}/data")[0] == 404


def test_a_run_begins_with_its_verdict(server, folder):
    _, run, _ = server.ask(f"/api/run/{folder.name}/runs/one")
    assert run["verdict"]["result"] == "Good: 100% success."
    assert run["verdict"]["why"].startswith("100% success by the judge alone") and run["live"] is None
    assert run["success"]["judge"][-1] == [1000, 1.0]


def test_a_report_runs_no_script(server, folder):
    status, _, headers = server.ask(f"/report/run/{folder.name}/runs/one")
    assert status == 200
    assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")


@pytest.mark.parametrize(
    "path",
    ["/api/episodes/../secret.txt", "/static/../server.py", "/static/%2e%2e/server.py", "/api/run/link", "/report/x/y"],
)
def test_nothing_else_is_served(server, folder, path):
    status, answer, _ = server.ask(path)
    assert status == 404 and "do not show" not in str(answer)


def test_foreign_names_and_pages_are_refused(server, folder):
    address, body = f"/api/label/{folder.name}/data", {"name": "ada"}
    assert server.ask("/", host="evil.example")[0] == 421
    assert server.ask(address, body, origin="http://evil.example")[0] == 403
    assert server.ask(address, body, x_plaudit=None)[0] == 403
    assert server.ask(address, {"name": "x" * 70_000})[0] == 413
    assert server.ask("/api/tasks", {"kind": "import", "name": "x"}, origin="http://evil.example")[0] == 403
    assert server.ask(address, body, origin=f"http://127.0.0.1:{server.port}")[0] == 200
    socket = f"ws://127.0.0.1:{server.port}/live/{folder.name}/runs/one"
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        with pytest.raises(InvalidStatus, match="HTTP 403"):
            connect(socket, origin=origin)
    with connect(socket, origin=f"http://127.0.0.1:{server.port}") as live:
        assert json.loads(live.recv(timeout=stretch(30)))["verdict"]["result"] == "Good: 100% success."
    page = server.ask("/")[2]["content-security-policy"]
    assert "script-src 'self'" in page and "unsafe" not in page


def test_requests_that_make_no_sense_are_answered_with_a_message(server, folder):
    address = f"/api/label/{folder.name}/data"
    nested = "[" * 30_000 + "]" * 30_000
    for body in ([1], nested, {"name": {}, "order": []}, {"name": "ada", "order": {}}):
        status, answer, _ = server.ask(address, body)
        assert status == 400 and answer["error"], body
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=stretch(30))
    connection.request("POST", address, nested, {"x-plaudit": "1"})
    assert connection.getresponse().status == 400
    connection.close()
    for task in (
        {"kind": "rm"},
        {"kind": "import", "name": "../x"},
        {"kind": "train-reward", "name": "x", "minutes": -1},
    ):
        assert server.ask("/api/tasks", task)[0] in (400, 404), task
    assert server.ask("/api/tasks")[1] == []
    for path in (f"/frame/1/0/none/{folder.name}/data", f"/clip/1/none/{folder.name}/data"):
        assert server.ask(path)[0] in (400, 404), path
    assert server.ask(f"/api/episodes/{folder.name}/data?count=x")[0] == 400
    assert server.ask(f"/frame/1/0/front/{folder.name}/data?w=x")[0] == 400


def test_a_token_is_needed_where_there_is_one(folder):
    token = "abcdefghijkl"
    with Serving(folder, "--token", token) as server:
        assert server.address.endswith(f"/?token={token}")
        assert server.ask("/api/library")[0] == 401
        assert server.ask("/api/library?token=abcdefghijkm")[0] == 401
        status, _, headers = server.ask(f"//evil.example?token={token}")
        assert headers["location"] == "/"
        assert (
            status == 303 and "HttpOnly" in headers["set-cookie"] and "samesite=strict" in headers["set-cookie"].lower()
        )
        assert server.ask("/api/library", cookie=f"plaudit_{server.port}={token}")[0] == 200
        with pytest.raises(InvalidStatus, match="HTTP 403"):
            connect(f"ws://127.0.0.1:{server.port}/live/x")
        assert server.stop() in (0, -signal.SIGINT, 130)


def test_labels_go_through_the_session_of_the_window(tmp_path):
    labeled_store(tmp_path / "s").close()
    with Store.open(tmp_path / "s", write=True) as store:
        store.extend([counting_episode(4), counting_episode(4, 50)])
    with Serving(tmp_path / "s") as server:

        def act(**request: Any) -> Any:
            return server.ask("/api/label/s", {"name": "ada", **request})[1]

        first = act()
        assert (first["episode"], first["left"], first["total"]) == (0, 2, 2)
        other = server.ask("/api/label/s", {"name": "grace"})[1]
        assert other["episode"] == 1  # two people are not given the same one
        marked = act(action="success_from_here", episode=0, frame=3)
        assert marked["runs"] == [[0, 2, 0], [3, 4, 1]]
        assert act(action="undo", episode=0, frame=3)["summary"] == "nothing labeled"
        assert "nothing is labeled in episode 0 yet" in act(action="complete", episode=0, frame=3)["error"]
        assert act(action="complete", episode=7)["status"] == "this page was out of date; nothing was changed"
        ranged = act(action="label_success", episode=0, frame=2, selection=[1, 2])
        assert ranged["runs"] == [[0, 0, None], [1, 2, 1], [3, 4, None]]
        assert act(action="start_selection", episode=0, frame=3)["selection"] == [3, None]
        to_here = act(action="label_failure", episode=0, frame=4, selection=[3, None])  # the person moved on
        assert to_here["runs"] == [[0, 0, None], [1, 2, 1], [3, 4, 0]]
        act(action="fail", episode=0, frame=0)
        assert act(action="complete", episode=0, frame=0)["completed"] == 1
        assert server.ask("/api/label/s", {"name": " "})[0] == 400
        assert server.ask("/api/label/s", {"name": "ada", "order": "best"})[0] == 400
    with Store.open(tmp_path / "s") as store:
        labels = store.ledger.labels(0)
        assert labels.judge.source == "human" and not labels.success_once and labels.labeler == Labeler("ada")


def test_what_cannot_be_served_is_said(tmp_path, server):
    assert "at least 12 characters" in plaudit("serve", tmp_path, "--token", "abc", cwd=tmp_path, ok=False)
    assert "is not a folder" in plaudit("serve", tmp_path / "none", cwd=tmp_path, ok=False)
    said = plaudit("serve", tmp_path, "--port", server.port, cwd=tmp_path, ok=False)
    assert "Address already in use; choose another --port" in " ".join(said.split())


@pytest.fixture
def client(tmp_path) -> Iterator[TestClient]:
    """The pages of a folder, in this process; an error that is no answer is raised."""
    (tmp_path / "w").mkdir()
    labeled_store(tmp_path / "w/data", counting_episode(4), cutoff=2).close()
    with TestClient(make_app([tmp_path / "w"], Access(frozenset({"here"}))), "http://here:1") as client:
        yield client


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[" * 30_000 + "]" * 30_000, "nests 30,000 levels deep"),
        ('{"name": "a", "name": "b"}', "'name' occurs twice"),
        ('{"name": "a", "episode": 0, "action": ["complete"]}', "no valid action"),
        ("[1]", "a JSON object"),
    ],
)
def test_a_request_that_no_page_sends_is_refused_in_a_sentence(client, body, words):
    answer = client.post("/api/label/w/data", content=body, headers={"x-plaudit": "1"})
    assert answer.status_code == 400 and words in answer.json()["error"]


def test_an_episode_is_opened_by_its_number_only(client):
    body = '{"name": "a", "open": false}'
    assert client.post("/api/label/w/data", content=body, headers={"x-plaudit": "1"}).json()["episode"] is None


@pytest.mark.parametrize("value", ["NaN", "-Infinity"])
def test_numbers_that_are_none_are_left_out_of_charts(client, tmp_path, value):
    lines = [f'{{"step": {step}, "loss/critic": {loss}}}' for step, loss in ((1, 3), (2, 4), (3, value))]
    serve_run(tmp_path / "w/run", lines)
    events = '{"event": "alarm", "time": ' + value + "}"
    (tmp_path / "w/run/events.jsonl").write_text(events + "\n")
    answer = client.get("/api/run/w/run").json()
    assert answer["groups"]["Learning"]["loss of the critic"] == [[1, 3], [2, 4]]
    assert answer["events"][0]["time"] is None


def test_a_run_is_saved_as_one_file_and_its_folder_stays_as_it_is(client, tmp_path):
    line = '{{"step": {0}, "judge/success_once": 1, "time/elapsed_s": {0}}}'
    serve_run(tmp_path / "w/run", [line.format(step) for step in (1, 2)])
    before = sorted(tmp_path.rglob("*"))
    answer = client.get("/report/run/w/run?save")
    assert answer.headers["content-disposition"] == 'attachment; filename="w_run.html"'
    assert "Good: 100% success." in answer.text
    assert not re.search(r'(src|href)="(?!data:|#)', answer.text)  # it needs no network
    assert sorted(tmp_path.rglob("*")) == before


def test_intervals_of_an_audit_say_what_they_are_about(client, tmp_path):
    audited = {f"{CORRECTED}{end}": value for end, value in (("", 0.5), ("_low", 0.4), ("_high", 0.6))}
    serve_run(tmp_path / "w/run", [json.dumps({"step": 1, "judge/success_once": 0.5} | audited)])
    serve_run(tmp_path / "w/plain", ['{"step": 1, "judge/success_once": 0.5}'])
    assert "drawn at random" in client.get("/api/run/w/run").json()["about"]
    assert client.get("/api/run/w/plain").json()["about"] == ""


def test_a_run_or_a_judge_with_senseless_numbers_is_told(client, tmp_path):
    huge = "1" + "0" * 400
    serve_run(tmp_path / "w/run", [f'{{"step": 1, "judge/success_once": {huge}}}'])
    (tmp_path / "w/judge").mkdir()
    (tmp_path / "w/judge/judge.yaml").write_text("type: classifier")
    (tmp_path / "w/judge/model.json").write_text(f'{{"scores": {{"precision": {huge}, "recall": 1}}}}')
    run, judge = (client.get(page).json()["verdict"] for page in ("/api/run/w/run", "/api/judge/w/judge"))
    assert run["result"] == "No result yet." and judge["why"].startswith("Precision unknown, recall 100.0%")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_hides_nothing_else(client, tmp_path):
    (tmp_path / "w/closed").mkdir(mode=0)
    assert [item["name"] for item in client.get("/api/library").json()] == ["w/data"]


def serve_run(folder: Path, metrics: list[str]) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text("schedule: online\n")
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in metrics))


def test_without_its_packages_it_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['uvicorn'] = None; from plaudit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", str(tmp_path)], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 1 and "plaudit[web]" in done.stderr


@pytest.fixture
def attacked(tmp_path, monkeypatch) -> Iterator[int]:
    """The port of a server in this process that waits shortly."""
    monkeypatch.setattr(guard, "SILENT_S", 0.1)
    monkeypatch.setattr("plaudit.web.server.BODY_S", 0.1)
    (tmp_path / "w").mkdir()
    labeled_store(tmp_path / "w/data").close()
    serve_run(tmp_path / "w/run", ['{"step": 1, "judge/success_once": 0.5}'])
    listening = listen("127.0.0.1", 0)
    server = guard.make_server(make_app([tmp_path / "w"], Access(frozenset(LOCAL))))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def answer_to(port: int, sent: bytes, then: bytes = b"") -> bytes:
    """What the server says until it closes the connection. then: sent once the head of an answer is there"""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=stretch(20)) as one:
        one.sendall(sent)
        while part := one.recv(4096):
            said += part
            if then and b"\r\n\r\n" in said:
                one.sendall(then)
                then = b""
    return said


def test_silent_and_slow_connections_are_closed(attacked):
    page = b"GET /static/theme.js HTTP/1.1\r\nHost: localhost\r\n"
    assert answer_to(attacked, b"") == answer_to(attacked, page) == b""
    assert answer_to(attacked, page + b"\r\n" + page).count(b"200 OK") == 1
    slow = b"POST /api/label/w/data HTTP/1.1\r\nHost: localhost\r\nX-Plaudit: 1\r\nContent-Length: 50\r\n\r\n{"
    assert b"the request did not arrive in 0.1 s" in answer_to(attacked, slow)
    assert b"400 Bad Request" in answer_to(attacked, b"\x16\x03\x01 no HTTP\r\n\r\n")


def test_a_websocket_that_sends_anything_is_closed_and_others_share_one_look(attacked, monkeypatch):
    looks = []
    describe = server_module.describe_run
    monkeypatch.setattr(server_module, "describe_run", lambda run: looks.append(run) or describe(run))
    address = f"ws://127.0.0.1:{attacked}/live/w/run"
    with connect(address, open_timeout=None) as one, connect(address, open_timeout=None) as other:
        assert one.recv(timeout=stretch(20)) == other.recv(timeout=stretch(20)) and len(looks) == 1
        for page, message in ((one, b"\x00"), (other, "x" * 100_000)):
            with suppress(ConnectionClosed):
                page.send(message)
            with pytest.raises(ConnectionClosed):
                page.recv(timeout=stretch(20))
    head = f"GET /live/w/run HTTP/1.1\r\nHost: localhost:{attacked}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    unmasked, unknown, huge = b"\x81\x01x", b"\x8f\x80\x00\x00\x00\x00", b"\xf1\xff" + b"\xff" * 12
    for frame, reason in ((unmasked, PROTOCOL_ERROR), (unknown, PROTOCOL_ERROR), (huge, TOO_BIG)):
        answer = answer_to(attacked, (head + key).encode(), then=frame)
        assert answer.startswith(b"HTTP/1.1 101 Switching") and reason in answer
    monkeypatch.setattr(server_module, "MAX_FOLLOWING", 1)
    with connect(address, open_timeout=None) as one:
        one.recv(timeout=stretch(20))
        with connect(address, open_timeout=None) as other, pytest.raises(ConnectionClosed, match="1013"):
            other.recv(timeout=stretch(20))


def test_sessions_are_limited(client, monkeypatch):
    monkeypatch.setattr("plaudit.web.labeling.MAX_OPEN", 2)
    answers = [
        client.post("/api/label/w/data", json={"name": name}, headers={"x-plaudit": "1"}) for name in ("a", "b", "c")
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert "2 people are labeling; try again in 10 minutes" in answers[2].json()["error"]


@pytest.mark.parametrize("path", ["/frame/0/{}/front/w/data", "/api/episode/{}/w/data"])
def test_an_address_is_not_too_long(client, path):
    assert client.get(path.format("9" * 4500)).status_code == 414
    assert client.get(path.format("9" * 400)).status_code in (400, 404)


def test_rates_that_are_none_do_not_count(client, tmp_path):
    rates = enumerate(("0.25", "NaN", "1e300", "-3"))
    serve_run(tmp_path / "w/run", [f'{{"step": {step}, "judge/success_once": {rate}}}' for step, rate in rates])
    run = client.get("/api/run/w/run").json()
    assert run["success"] == {"judge": [[0, 0.25]]}
    assert run["verdict"]["result"] == "Not good enough yet: 25% success; 90% is the goal."
    answer = client.get("/video/last/w/run")
    assert (answer.status_code, answer.json()) == (404, {"error": "this run has no last video"})


def test_a_judges_page_shows_what_a_threshold_decides_and_its_worst_frames(tmp_path):
    rule = DecisionRule(threshold=0.5, k=1, n=1)
    with labeled_store(tmp_path / "data", counting_episode(3), counting_episode(3), cutoff=None) as store:
        for i, probs in ((0, [0.1, 0.2, 0.3, 0.2]), (1, [0.1, 0.2, 0.9, 0.1])):  # people saw no success in either
            scores = Scores(np.array(probs, np.float32))
            judge = JudgeId("classifier", "m", rule.key())
            store.ledger.append(i, labels_from_scores(judge, rule, store.episode(i), scores))
        shown = WhatIf().describe(store, "classifier")
    assert [(one["id"], round(one["score"], 2), one["target"]) for one in shown["episodes"]] == [
        (0, 0.3, 0),
        (1, 0.9, 0),
    ]
    assert shown["worst"][0] == {"id": 1, "frame": 2, "prob": 0.9, "target": 0}

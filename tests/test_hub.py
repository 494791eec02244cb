"""Push and pull with the client of the Hub, against a server in this process that speaks its protocol."""

import base64
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from huggingface_hub import constants

from conftest import counting_episode
from glow import saved
from plaudit.cli import main
from plaudit.data.hub import find_repository, pull
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, TargetNotEmpty
from plaudit.judges.certificate import FIGURES, Certificate, certificate_beside
from plaudit.judges.config import load_named_judge
from plaudit.policies.config import FlowConfig
from plaudit.policies.loader import load_policy, save_policy
from plaudit.policies.networks import weights_of
from plaudit.types import JudgeId, Labels
from tiny_reward import tiny_model

FLOW = FlowConfig(state_dim=2, action_dim=3, cameras={"front": (24, 32)}, horizon=4, velocity_net={"width": 16})


class Hub(BaseHTTPRequestHandler):
    """Repositories as dictionaries of path -> bytes, and the sizes that the server lists."""

    server: Any
    repos: dict[str, dict[str, bytes]]
    sizes: dict[str, int]
    private: dict[str, bool]
    broken: set[str]  # paths that cannot be downloaded

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            asked = json.loads(body)
            kind = "datasets/" if asked.get("type") == "dataset" else ""
            name = f"{kind}{asked['organization']}/{asked['name']}"
            new = name not in self.repos
            self.repos.setdefault(name, {})
            self.private.setdefault(name, asked.get("visibility") == "private")
            self.answer({"url": f"{self.server.url}/{name}", "name": name}, 200 if new else 409)
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})
        else:
            name = path.partition("/commit/")[0].removeprefix("/api/").removeprefix("models/")
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.repos[name][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del self.repos[name][value["path"]]
            sha = self.commit(name)
            self.answer({"commitUrl": f"{self.server.url}/{name}/commit/{sha}", "commitOid": sha})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/"):
            self.describe(path.removeprefix("/api/").removeprefix("models/"))
            return
        name, _, rest = path.lstrip("/").partition("/resolve/")
        file = rest.partition("/")[2]
        if file in self.broken:
            self.answer({"error": "gone"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        data = self.repos[name][file]
        etag = hashlib.sha1(data).hexdigest()
        self.answer(data, headers={"ETag": f'"{etag}"', "X-Repo-Commit": self.commit(name)})

    do_HEAD = do_GET

    def commit(self, name: str) -> str:
        return hashlib.sha1(repr(sorted(self.repos[name].items())).encode()).hexdigest()

    def describe(self, path: str) -> None:
        name = next((name for name in self.repos if f"{path}/".startswith(f"{name}/")), None)
        if name is None:
            self.answer({"error": "not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in path:
            files = self.repos[name].items()
            sizes = {path: self.sizes.get(path, len(data)) for path, data in files}
            self.answer([{"type": "file", "path": p, "size": size, "oid": "0"} for p, size in sizes.items()])
        else:
            siblings = [{"rfilename": path} for path in self.repos[name]]
            facts = {
                "id": name.removeprefix("datasets/"),
                "sha": self.commit(name),
                "siblings": siblings,
                "private": False,
            }
            self.answer({**facts, "tags": [], "downloads": 0, "likes": 0, "createdAt": "2026-01-01T00:00:00.000Z"})

    def answer(self, data: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    handler = type("Handler", (Hub,), {"repos": {}, "sizes": {}, "private": {}, "broken": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in (("ENDPOINT", server.url), ("HF_HUB_OFFLINE", False), ("HF_HUB_CACHE", str(tmp_path / "cache"))):  # type: ignore[attr-defined]
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        server.url + "/{repo_id}/resolve/{revision}/{filename}",  # type: ignore[attr-defined]
    )
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command, as a user types it."""

    def command(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["plaudit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return command


def certificate_of(judge: JudgeId, problems: tuple[str, ...] = ()) -> Certificate:
    figures = {name: {"value": 0.9, "low": 0.8, "high": 0.95} for name in FIGURES}
    data = {"store": "s", "fingerprint": "f", "reference": ("human",), "episodes": 40, "successes": 20, "frames": 9}
    rule = judge.rule.model_dump_json(exclude_none=True)
    return Certificate(
        date="2026-11-17", name="judge", source=judge.source, fingerprint=judge.fingerprint, rule=rule,
        rule_text="", data={**data, "num_left_out": 0}, figures=figures, controls=(), problems=problems,
    )  # fmt: skip


def store_of(folder: Path, episodes: int = 2) -> Path:
    with Store.create(folder) as store:
        for number in range(episodes):
            episode_id = store.append(counting_episode(first=10 * number))
            store.ledger.append(episode_id, Labels.from_cutoff(steps=4, cutoff=2, source="human"))
    return folder


def test_a_store_comes_back_with_the_same_frames_and_labels(tmp_path, hub, run):
    store_of(tmp_path / "data")
    (tmp_path / "data" / "drafts").mkdir()
    (tmp_path / "data" / "drafts" / "someone.json").write_text("{}")
    code, said = run("hub", "push", tmp_path / "data", "lab/lift", "--private")
    assert code == 0 and "a data set" in said and "datasets/lab/lift" in said, said
    assert hub.private == {"datasets/lab/lift": True}
    pushed = hub.repos["datasets/lab/lift"]
    assert {"README.md", "store.json", "journal"} <= set(pushed)
    assert not {name for name in pushed if "drafts" in name or "lock" in name}
    card = pushed["README.md"].decode()
    assert "| episodes | 2 |" in card and "| labeled episodes | 2 by human |" in card and "front 8x10" in card
    code, said = run("hub", "pull", "lab/lift", tmp_path / "back")
    assert code == 0 and "pulled into" in said, said
    before, after = (Store.open(tmp_path / name) for name in ("data", "back"))
    for episode_id in before.ids:
        np.testing.assert_array_equal(
            before.episode(episode_id).frames["front"], after.episode(episode_id).frames["front"]
        )
        np.testing.assert_array_equal(before.ledger.labels(episode_id).success, after.ledger.labels(episode_id).success)
    assert not list(tmp_path.glob(".back*")) and not (tmp_path / "back" / ".cache").exists()


def test_the_card_of_a_judge_has_the_verdict_of_its_exam(tmp_path, hub, run):
    judge = saved(tiny_model(), tmp_path / "judge")
    run("hub", "push", judge, "lab/judge")
    assert "**None.** Examine it" in hub.repos["lab/judge"]["README.md"].decode()
    own = load_named_judge(str(judge)).build().id
    certificate_of(own, problems=("it fails the control 'frozen'",)).save(certificate_beside(judge))
    code, said = run("hub", "push", judge, "lab/judge")
    assert code == 0, said
    card = hub.repos["lab/judge"]["README.md"].decode()
    assert "**Not usable: it failed its exam.**" in card and "it fails the control 'frozen'" in card.lower()
    assert "| false-positive rate, frames |" in card
    run("hub", "pull", "lab/judge", tmp_path / "back")
    assert load_named_judge(str(tmp_path / "back")).build().id == own

    certificate_of(replace(own, fingerprint="another")).save(certificate_beside(judge))
    run("hub", "push", judge, "lab/judge")
    assert "**Not valid.**" in hub.repos["lab/judge"]["README.md"].decode()


def test_a_policy_comes_back_as_it_was(tmp_path, hub, run):
    built = FLOW.build()
    save_policy(tmp_path / "policy", FLOW, weights_of(1, built.components))
    assert run("hub", "push", tmp_path / "policy", "lab/flow")[0] == 0
    assert "| cameras | {'front': (24, 32)} |" in hub.repos["lab/flow"]["README.md"].decode()
    assert run("hub", "pull", "lab/flow", tmp_path / "back")[0] == 0
    before, after = (load_policy(tmp_path / name).build().components["velocity_net"] for name in ("policy", "back"))
    for name, tensor in before.state_dict().items():
        assert tensor.equal(after.state_dict()[name])


def test_a_repository_of_somebody_else_is_not_changed(tmp_path, hub, run):
    hub.repos["datasets/lab/papers"] = {"README.md": b"# Papers", "one.txt": b"1"}
    code, said = run("hub", "push", store_of(tmp_path / "data"), "lab/papers")
    assert code == 1 and "name a new repository" in said
    assert hub.repos["datasets/lab/papers"] == {"README.md": b"# Papers", "one.txt": b"1"}


def test_a_second_push_removes_what_is_gone(tmp_path, hub, run):
    judge = saved(tiny_model(), tmp_path / "judge")
    (judge / "notes.txt").write_text("old")
    run("hub", "push", judge, "lab/judge")
    assert "notes.txt" in hub.repos["lab/judge"]
    (judge / "notes.txt").unlink()
    run("hub", "push", judge, "lab/judge")
    assert "notes.txt" not in hub.repos["lab/judge"] and "model.json" in hub.repos["lab/judge"]


def test_pickles_are_left_out_in_both_directions(tmp_path, hub, run):
    judge = saved(tiny_model(), tmp_path / "judge")
    (judge / "old.pt").write_bytes(b"\x80\x02}.")
    code, said = run("hub", "push", judge, "lab/judge")
    assert code == 0 and "old.pt is left out" in said and "old.pt" not in hub.repos["lab/judge"]
    hub.repos["lab/judge"]["sub/Evil.PKL"] = b"\x80\x02}."
    code, said = run("hub", "pull", "lab/judge", tmp_path / "back")
    assert code == 0 and "Evil.PKL is left out" in said
    assert not list((tmp_path / "back").rglob("*.[pP]*[kK]*"))


def test_a_folder_with_a_link_is_not_pushed(tmp_path, hub, run):
    judge = saved(tiny_model(), tmp_path / "judge")
    (judge / "secrets").symlink_to("/etc/passwd")
    code, said = run("hub", "push", judge, "lab/judge")
    assert code == 1 and "is a link" in said and not hub.repos


@pytest.mark.parametrize("path", ["../evil.json", "/etc/evil.json", "a/../../evil", "a\\..\\evil.json", "a\nb.json"])
def test_paths_that_lead_elsewhere_are_refused(tmp_path, hub, path):
    hub.repos["lab/evil"] = {"policy.yaml": b"", path: b"{}"}
    with pytest.raises(BadFile):
        find_repository("lab/evil")


def test_a_file_of_another_size_than_listed_is_refused(tmp_path, hub):
    hub.repos["lab/large"] = {"model.json": b"x" * 1000}
    hub.sizes["model.json"] = 10
    with pytest.raises(BadFile, match="1,000 bytes, and the Hub lists 10"):
        pull(find_repository("lab/large"), tmp_path / "new", 10**9)
    assert not (tmp_path / "new").exists()


def test_sizes_are_limited_before_anything_is_downloaded(tmp_path, hub):
    hub.repos["lab/large"] = {"model.safetensors": b"x"}
    hub.sizes["model.safetensors"] = 10**15
    with pytest.raises(DataError, match=r"1,000,000.0 GB, and 50.0 GB is the limit"):
        pull(find_repository("lab/large"), tmp_path / "new", 50 * 10**9)
    with pytest.raises(DataError, match="free on the disk"):
        pull(find_repository("lab/large"), tmp_path / "new", 10**18)
    assert not (tmp_path / "new").exists()


def test_an_interrupted_download_leaves_no_folder_and_resumes(tmp_path, hub):
    hub.repos["lab/two"] = {"a.json": b"{}", "b.json": b"[]"}
    repository = find_repository("lab/two")
    hub.broken.add("b.json")
    with pytest.raises(DataError):
        pull(repository, tmp_path / "new", 10**9)
    assert not (tmp_path / "new").exists()
    hub.broken.clear()
    pull(repository, tmp_path / "new", 10**9)
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == {"a.json": b"{}", "b.json": b"[]"}


def test_nothing_is_overwritten(tmp_path, hub):
    hub.repos["lab/two"] = {"a.json": b"{}"}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own.txt").write_text("mine")
    with pytest.raises(TargetNotEmpty):
        pull(find_repository("lab/two"), tmp_path / "full", 10**9)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["own.txt"]


def test_a_name_of_a_model_and_a_data_set_must_say_which(hub):
    hub.repos |= {"lab/both": {"policy.yaml": b""}, "datasets/lab/both": {"store.json": b"{}"}}
    with pytest.raises(DataError, match="write datasets/lab/both"):
        find_repository("lab/both")
    assert find_repository("datasets/lab/both").type == "dataset"


@pytest.mark.parametrize("name", ["lab/none", "not a name", "a/b/c"])
def test_a_repository_that_does_not_exist_is_one_error(hub, run, tmp_path, name):
    code, said = run("hub", "pull", name, tmp_path / "new")
    assert code == 1 and f"error: {name}" in said and "Traceback" not in said


def test_a_folder_of_something_else_is_not_pushed(tmp_path, hub, run):
    (tmp_path / "notes").mkdir()
    code, said = run("hub", "push", tmp_path / "notes", "lab/notes")
    assert code == 1 and "is not the folder of a store" in said and not hub.repos

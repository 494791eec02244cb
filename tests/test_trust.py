"""What a file may make this process do: nothing that its user did not say."""

import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from chat_server import ChatServer
from conftest import counting_episode
from plaudit.config import CodeName, Config, load
from plaudit.errors import BadFile, ConfigError, NotAllowed
from plaudit.judges.classifier.rlinf import load_rlinf_checkpoint
from plaudit.judges.config import load_judge_config
from plaudit.judges.vlm.config import EndpointConfig, VlmJudgeConfig
from plaudit.policies.loader import load_policy
from plaudit.registry import ENCODER_REGISTRY, ENV_REGISTRY, Registry
from plaudit.trust import allow_code, allow_host, check_code, check_host, from_file, host_of, shown_url

JUDGES = Registry("labeler")


class Lamp(Config):
    def build(self) -> str:
        return "bright"


class Experiment(Config):
    name: str
    judge: Annotated[Any, JUDGES.optional_field] = None


LAMP = f"{__name__}:Lamp"
TRAP = "from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nclass Net: pass\n"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch) -> Path:
    """A module that leaves a file when it is imported."""
    (tmp_path / "my_trap.py").write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_trap", raising=False)
    return tmp_path


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


REFUSED = "asks for my_trap:Net, third-party code; nothing was imported. If you trust it, add --allow-code my_trap"


def test_a_config_that_names_code_imports_nothing(trap):
    with pytest.raises(ConfigError, match=REFUSED):
        load(Experiment, written(trap, "e.yaml", "name: x\njudge: {type: 'my_trap:Net'}"))
    assert not (trap / "sprung").exists()


@pytest.mark.parametrize(
    "policy",
    ["{type: 'my_trap:Net'}", "{type: scripted, function: 'my_trap:Net'}"],
)
def test_a_policy_that_names_code_imports_nothing(trap, policy):
    with pytest.raises(ConfigError, match=REFUSED):
        load_policy(written(trap, "policy.yaml", f"policy: {policy}"))
    assert not (trap / "sprung").exists()


def test_a_judge_that_names_code_imports_nothing(trap):
    with pytest.raises(ConfigError, match=REFUSED):
        load_judge_config(written(trap, "judge.yaml", "type: 'my_trap:Net'"), None)
    assert not (trap / "sprung").exists()


def test_a_checkpoint_that_names_code_imports_nothing(trap):
    described = {"classifier": {"encoder": {"type": "my_trap:Net"}, "cameras": {"front": [8, 8]}}}
    torch.save({"model_state_dict": {"a": torch.zeros(1)}, "plaudit": described}, trap / "model.pt")
    with pytest.raises(BadFile, match=r"model\.pt asks for my_trap:Net, third-party code"):
        load_rlinf_checkpoint(trap / "model.pt")
    assert not (trap / "sprung").exists()


def test_a_task_of_gymnasium_that_names_a_module_imports_nothing(trap):
    with from_file(trap / "run.yaml"), pytest.raises(ConfigError, match="asks for my_trap:Task-v0"):
        ENV_REGISTRY.parse({"type": "gymnasium", "id": "my_trap:Task-v0", "obs": "state"})
    assert not (trap / "sprung").exists()


def test_code_of_ours_that_is_in_no_registry_is_not_for_files_either(tmp_path):
    with pytest.raises(ConfigError, match="add --allow-code plaudit"):
        load(Experiment, written(tmp_path, "e.yaml", "name: x\njudge: {type: 'plaudit.__main__:Net'}"))


def test_what_is_typed_beside_a_file_is_the_users_word(tmp_path):
    path = written(tmp_path, "e.yaml", "name: x")
    config = load(Experiment, path, [f"judge.type={LAMP}"])
    assert config.judge.build() == "bright"
    load(Experiment, written(tmp_path, "e.yaml", f"name: x\njudge: {{type: '{LAMP}'}}"))  # and is remembered


def test_an_allowed_package_is_imported(tmp_path):
    path = written(tmp_path, "e.yaml", f"name: x\njudge: {{type: '{LAMP}'}}")
    with pytest.raises(ConfigError, match=f"--allow-code {__name__}"):
        load(Experiment, path)
    allow_code(__name__)
    assert load(Experiment, path).judge.build() == "bright"


@pytest.mark.parametrize("package", ["", "a.b", "a,b", "os;", "1x"])
def test_what_is_no_package_cannot_be_allowed(package):
    with pytest.raises(NotAllowed, match="is not a package name"):
        allow_code(package)


def test_a_field_of_a_plugin_may_name_code_too(tmp_path):
    class Mine(Config):
        module: CodeName

    with pytest.raises(ConfigError, match="asks for os, third-party code"):
        load(Mine, written(tmp_path, "mine.yaml", "module: os"))


def test_an_encoder_of_the_registry_needs_no_word(tmp_path):
    with from_file(tmp_path / "model.json"):
        check_code(
            "plaudit.encoders:SmallConfig",
            {"plaudit.encoders:SmallConfig"},
        )
        assert ENCODER_REGISTRY.parse({"type": "plaudit.encoders:SmallConfig"})


# Servers and secrets


def vlm(url: str, more: str = "") -> str:
    return f"type: vlm\nbackend: openai\nmodel: tiny\nendpoint: {{base_url: '{url}'{more}}}\n"


def test_a_judge_may_name_no_variable_but_those_for_keys(tmp_path):
    path = written(tmp_path, "judge.yaml", vlm("http://localhost:1/v1", ", api_key_env: AWS_SECRET_ACCESS_KEY"))
    with pytest.raises(ConfigError, match="asks for the environment variable AWS_SECRET_ACCESS_KEY; a file may name"):
        load_judge_config(path, None)
    assert load_judge_config(path, None, overrides=["endpoint.api_key_env=AWS_SECRET_ACCESS_KEY"])


@pytest.mark.parametrize("host", ["evil.example", "10.1.2.3", "localhost.evil.example", "[2001:db8::1]"])
def test_a_judge_on_another_machine_is_called_by_the_users_word_alone(tmp_path, host):
    path = written(tmp_path, "judge.yaml", vlm(f"http://{host}/v1"))
    with pytest.raises(ConfigError, match=r"nothing was sent\. If it is yours, add --allow-host"):
        load_judge_config(path, None)
    allow_host(host_of(f"http://{host}"))
    assert load_judge_config(path, None)


def test_a_policy_on_another_machine_likewise(tmp_path):
    text = "policy: {type: openpi, action_dim: 1, openpi_model: {host: evil.example}}"
    path = written(tmp_path, "policy.yaml", text)
    with pytest.raises(ConfigError, match=r"names the server evil\.example"):
        load_policy(path)
    assert load_policy(path, ["policy.openpi_model.host=evil.example"])


def test_a_file_does_not_download(tmp_path):
    path = written(tmp_path, "judge.yaml", "type: vlm\nmodel: somebody/model\nlocal_files_only: false\n")
    with pytest.raises(ConfigError, match=r"add --allow-host huggingface\.co"):
        load_judge_config(path, None)
    allow_host("huggingface.co")
    assert load_judge_config(path, None)


def test_a_password_in_a_url_is_refused_and_not_shown(tmp_path):
    for url in ("http://me:hunter2@localhost/v1", "http://localhost/v1?api_key=hunter2"):
        with pytest.raises(ConfigError, match="has a password or a key in it") as caught:
            load_judge_config(written(tmp_path, "judge.yaml", vlm(url)), None)
        assert "hunter2" not in str(caught.value)


def test_passwords_and_keys_are_left_out_of_urls():
    assert shown_url("at http://me:word@here:1/v1, again") == "at http://***@here:1/v1, again"
    assert shown_url("https://here/v1?n=1&access_token=abc#end") == "https://here/v1?n=1&access_token=***#end"
    assert shown_url("a monkey=1 and me@here") == "a monkey=1 and me@here"


class Server(Config):
    api_key: str = ""
    timeout_s: float = 1.0
    headers: str = ""


SECRET = "sk-proj-0123456789abcdefghij"


@pytest.mark.parametrize(
    "text",
    [
        "api_key: [mellon]",
        "api_key: 5550123",
        f"timeout_s: {SECRET}",
        "headers: {password: mellon}",
        "headers: {Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.mellon, x_api_key: mellon}",
        "timeout_s: http://me:mellon@server",
    ],
)
def test_a_setting_of_a_wrong_type_that_looks_like_a_secret_is_not_repeated(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"\*\*\*") as error:
        load(Server, tmp_path / "c.yaml")
    assert not any(secret in str(error.value) for secret in ("mellon", "5550123", SECRET))


def test_other_settings_of_a_wrong_type_are_repeated(tmp_path):
    with pytest.raises(ConfigError, match="key 'timeout_s' is \"soon\""):
        load(Server, None, ["timeout_s=soon"])


def test_a_key_in_place_of_the_variable_that_holds_it_is_not_repeated(tmp_path):
    path = written(tmp_path, "judge.yaml", vlm("http://localhost:1/v1", f", api_key_env: {SECRET}"))
    with pytest.raises(ConfigError, match=r"environment variable \*\*\*"):
        load_judge_config(path, None)


def test_a_server_that_names_another_is_not_followed():
    with ChatServer(None) as server, ChatServer(None) as other:
        server.faults.append((307, {"Location": f"{other.url}/chat/completions"}, ""))
        endpoint = EndpointConfig(base_url=server.url, retries=0)
        judge = VlmJudgeConfig(backend="openai", model="tiny", image_size=32, endpoint=endpoint)
        (said,) = judge.load_backend().score([counting_episode(steps=1)])
        assert "answered HTTP 307" in str(said)
        assert not other.requests


def test_here_is_this_machine_alone(tmp_path):
    with from_file(tmp_path / "judge.yaml"):
        for here in ("http://localhost:8000/v1", "127.0.0.1:80", "http://[::1]/v1", "localhost"):
            assert check_host(here)
        for there in ("http://0.0.0.0/v1", "http://localhost@evil/v1", "http://127.0.0.1.evil/", "http://[::1", ""):
            with pytest.raises(NotAllowed):
                check_host(there)


@pytest.mark.parametrize("host", ["", "a b", "a,b", "http://x", "x\ud800", "\udcff", "me@here", "x" * 300])
def test_what_is_no_machine_is_not_allowed_as_one(host):
    with pytest.raises(NotAllowed, match="is not a host name"):
        allow_host(host)

from pathlib import Path

import numpy as np
import pytest
import yaml

from plaudit.data.normalize import Normalizer
from plaudit.errors import BadFile, ConfigError
from plaudit.policies.config import FlowConfig
from plaudit.policies.loader import PolicySpec, load_policy, read_weights, save_policy
from plaudit.policies.networks import weights_of
from plaudit.registry import POLICY_REGISTRY
from plaudit.rollout.engine import InferenceConfig
from plaudit.trust import allow_code
from plaudit.types import EnvSpec, Observation
from plugins import install

FLOW = "policy: {type: flow, state_dim: 2, action_dim: 1, horizon: 3}\n"
MINE = """
from typing import Literal
import numpy as np
from plaudit.config import Config

class Speed(Config):
    metres: float = 1.0

class Still(Config):
    speed: Speed
    action_dim: int = 2
    def build(self):
        return StillPolicy(self)

class StillPolicy:
    components = {}
    def __init__(self, config):
        self.config = config
    def predict(self, observation, normalizer):
        return np.full((1, self.config.action_dim), self.config.speed.metres, np.float32)
"""


def written(folder: Path, policy: str, **components: str) -> Path:
    """A policy.yaml with component files beside it."""
    paths = "".join(f"    {name}: components/{name}.yaml\n" for name in components)
    (folder / "components").mkdir()
    for name, text in components.items():
        (folder / f"components/{name}.yaml").write_text(text)
    model = f"model:\n  component_config_paths:\n{paths}" if components else ""
    (folder / "policy.yaml").write_text(model + policy)
    return folder / "policy.yaml"


def test_components_are_found_beside_the_file_and_fill_their_sections(tmp_path):
    path = written(tmp_path, FLOW, velocity_net="width: 32\ndepth: 1\n", encoder="features: 8\n")
    config = load_policy(path).config
    assert (config.velocity_net.width, config.velocity_net.depth, config.encoder.features) == (32, 1, 8)


def test_the_openpi_policy_of_the_examples_is_understood():
    folder = Path(__file__).parents[2] / "examples/policies/openpi_policy"
    config = load_policy(folder / "openpi_policy.yaml").config
    assert config.type == "openpi_policy" and config.openpi_model.url == "ws://localhost:8000"


def test_an_override_wins(tmp_path):
    assert load_policy(written(tmp_path, FLOW), ["policy.guidance=blend"]).config.guidance == "blend"


def test_a_policys_folder_is_whole_and_crosses_to_another_process_as_json(tmp_path):
    config = load_policy(written(tmp_path, FLOW, velocity_net="width: 8\ndepth: 1\n")).config
    policy, normalizer = config.build(), Normalizer.of(np.float32([[0, 1], [2, 3]]), np.float32([[4], [8]]))
    saved = save_policy(tmp_path / "taught", config, weights_of(3, policy.components), normalizer)
    spec = PolicySpec.model_validate_json(load_policy(saved).model_dump_json())
    seen = Observation({}, np.float32([1, 2]))
    same = spec.build().predict(seen, Normalizer.load(spec.normalizer))
    assert np.array_equal(same, config.build().predict(seen, normalizer))
    assert read_weights(tmp_path / "taught/model.safetensors").version == 3


def test_without_statistics_a_policy_is_in_the_robots_own_units(tmp_path):
    spec = load_policy(written(tmp_path, FLOW))
    normalizer = InferenceConfig(normalizer=spec.normalizer).load_normalizer(EnvSpec(2, 1, {}))
    assert normalizer.normalize_state(np.float32([5, -3])).tolist() == [5, -3]


@pytest.mark.parametrize(
    ("policy", "components", "said"),
    [
        ("policy: {type: flaw}", {}, "key 'policy.type': there is no policy 'flaw'; did you mean 'flow'"),
        ("policy: {horizon: 3}", {}, "needs a 'type'; known: dsrl, expo, flow, gaussian"),
        (FLOW, {"velocty": "width: 8"}, "policy 'flow' has no component 'velocty'; did you mean 'velocity_net'"),
        (FLOW, {"velocity_net": "widht: 8"}, "components/velocity_net.yaml: unknown key 'widht'; did you mean 'width'"),
        (FLOW + "wieghts: a", {}, "policy.yaml: unknown key 'wieghts'; did you mean 'weights'"),
        (
            FLOW.replace("}", ", encoder: {features: 2}}"),
            {"encoder": "features: 3"},
            "has a file and stands under 'policy'",
        ),
        ("policy: {type: openpi_policy, action_dim: 2}", {}, "needs component 'openpi_model'; name its file under"),
        ("policy: {type: flow, state_dim: 2}", {}, "policy.yaml: key 'policy.action_dim' is missing"),
    ],
)
def test_a_mistake_is_told_with_the_file_it_stands_in(tmp_path, policy, components, said):
    with pytest.raises(ConfigError) as told:
        load_policy(written(tmp_path, policy, **components))
    assert said in str(told.value) and str(tmp_path) in str(told.value)


def test_files_that_are_not_there_are_named(tmp_path):
    path = written(tmp_path, FLOW, velocity_net="width: 8")
    (tmp_path / "components/velocity_net.yaml").unlink()
    with pytest.raises(ConfigError, match=r"the file of component 'velocity_net' is not there: .*velocity_net.yaml"):
        load_policy(path)
    path.write_text(FLOW + "weights: gone.safetensors")
    with pytest.raises(BadFile, match=r"it names 'gone.safetensors', but there is no such file next to it"):
        load_policy(path)
    path.write_text(FLOW + f"weights: {'x' * 5000}")  # longer than any file's name
    with pytest.raises(BadFile, match=r"it names 'x+\.\.\.', but there is no such file next to it"):
        load_policy(path)
    with pytest.raises(ConfigError, match=r"there is no such file; did you mean 'policy.yaml'"):
        load_policy(tmp_path / "polcy.yaml")


def test_a_file_that_is_no_weights_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(BadFile, match=r"model.safetensors: this is not a file of weights"):
        read_weights(tmp_path / "model.safetensors")


def test_a_users_own_policy_is_found_by_its_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "my_still.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    allow_code("my_still")
    spec = load_policy(written(tmp_path, "policy: {type: 'my_still:Still'}", speed="metres: 0.5"))
    again = PolicySpec.model_validate_json(spec.model_dump_json())
    assert again.build().predict(None, None).tolist() == [[0.5, 0.5]]


def test_a_users_own_policy_is_found_by_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "my_other_still.py").write_text(
        MINE.replace("class Still(Config):", "class Still(Config):\n    type: str")
    )
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, tmp_path / "installed", "still", "[plaudit.policy]\nstill = my_other_still:Still")
    spec = load_policy(written(tmp_path, "policy: {type: still}", speed="metres: 2.0"))
    assert spec.build().predict(None, None).tolist() == [[2, 2]]


def test_flow_is_known_by_name():
    assert POLICY_REGISTRY.get("flow") is FlowConfig


@pytest.mark.parametrize("change", [{"state_dim": 2**16}, {"horizon": 1000}, {}])
def test_a_policy_that_would_not_fit_its_weights_is_refused_before_it_is_built(tmp_path, change):
    config = FlowConfig(state_dim=2, action_dim=1, horizon=4)
    path = save_policy(tmp_path, config, weights_of(1, config.build().components))
    tree = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**tree, "policy": {**tree["policy"], "velocity_net": {"width": 2**16}, **change}}))
    with pytest.raises(BadFile, match="needs more numbers than its weights"):
        load_policy(path).build()

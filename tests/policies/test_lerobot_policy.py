"""Policy folders of LeRobot. What needs lerobot itself runs in the environment of `make interop` (Python 3.12)."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer
from plaudit.errors import BadFile, ConfigError, MissingPackage, NotAllowed, PolicyError
from plaudit.policies.guidance import check_sampling
from plaudit.policies.loader import load_policy
from plaudit.types import EnvSpec, Observation

CAMERAS = {"front": (64, 64), "side": (64, 64)}
SPEC = EnvSpec(9, 8, CAMERAS, 20.0, "lift")
IDENTITY = Normalizer.identity(9, 8)


def seen(seed: int, **rest: Any) -> Observation:
    rng = np.random.default_rng(seed)
    images = {camera: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for camera, size in CAMERAS.items()}
    return Observation(images, rng.normal(size=9).astype(np.float32), **rest)


def described(kind: str = "act", **keys: Any) -> dict[str, Any]:
    features = {"observation.state": {"type": "STATE", "shape": [9]}}
    features |= {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 64, 64]} for name in CAMERAS}
    sizes = {"n_obs_steps": 1, "chunk_size": 12, "n_action_steps": 12}
    outputs = {"action": {"type": "ACTION", "shape": [8]}}
    return {"type": kind, "input_features": features, "output_features": outputs, **sizes, **keys}


def write_folder(folder: Path, tree: dict[str, Any], steps: Any = ()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tree))
    (folder / "model.safetensors").write_bytes(b"")
    for name in ("policy_preprocessor", "policy_postprocessor"):
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": list(steps)}))
    return folder


# What the folder says, without lerobot


def test_a_folder_says_what_the_policy_observes_and_returns(tmp_path):
    spec = load_policy(write_folder(tmp_path / "act", described()))
    assert spec.inputs == EnvSpec(9, 8, CAMERAS) and spec.horizon == 12
    spec.check_fits(SPEC)
    diffusion = described("diffusion", n_obs_steps=2, horizon=16, n_action_steps=8, noise_scheduler_type="DDIM")
    folder = load_policy(write_folder(tmp_path / "diffusion", diffusion)).config.folder
    assert (folder.horizon, folder.history, folder.noise_shape) == (8, 1, (16, 8))
    assert load_policy(tmp_path / "diffusion").config.history == 1  # a server asks its clients for it
    with_ddpm = write_folder(tmp_path / "ddpm", {**diffusion, "noise_scheduler_type": "DDPM"})
    assert load_policy(with_ddpm).config.folder.noise_shape is None  # it draws noise in every step
    assert load_policy(with_ddpm, ["policy.options.noise_scheduler_type=DDIM"]).config.folder.noise_shape == (16, 8)


def test_a_policys_file_names_the_folder_and_the_robots_cameras(tmp_path):
    write_folder(tmp_path / "act", described())
    file = tmp_path / "policy.yaml"
    file.write_text("policy: {type: lerobot, path: act, cameras: {top: front}, task: lift it}\n")
    assert set(load_policy(file).inputs.cameras) == {"top", "side"}
    file.write_text("policy: {type: lerobot, path: act, cameras: {top: frnt}}\n")
    with pytest.raises((BadFile, ConfigError), match="no camera 'frnt'"):
        load_policy(file).check_fits(SPEC)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (EnvSpec(9, 7, CAMERAS, name="arm"), "an action of 8 numbers, and that of arm has 7"),
        (EnvSpec(9, 8, {"front": (64, 64)}, name="arm"), "looks at camera 'side', which arm does not have"),
        (EnvSpec(9, 8, {**CAMERAS, "side": (48, 64)}, name="arm"), "gives 48x64 images"),
    ],
)
def test_a_robot_of_other_sizes_is_refused_before_it_moves(tmp_path, spec, problem):
    with pytest.raises(PolicyError, match=problem):
        load_policy(write_folder(tmp_path, described())).check_fits(spec)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"type": "tdmpc"}, "'tdmpc' cannot be run; act, diffusion, smolvla, pi0"),
        ({"use_peft": True}, "merge it into its base policy"),
        ({"chunk_size": 10**9}, "'chunk_size' is 1000000000"),
        ({"output_features": {}}, "no 'action'"),
        ({"input_features": {"observation.environment_state": {"shape": [3]}}}, "robots do not observe"),
        ({"input_features": {"observation.state": {"shape": "nine"}}}, "has no shape"),
    ],
)
def test_a_folder_that_cannot_be_run_says_why(tmp_path, keys, problem):
    with pytest.raises(BadFile, match=problem):
        load_policy(write_folder(tmp_path, described(**keys)))


def test_a_folder_of_an_older_version_is_refused_with_the_command_that_converts_it(tmp_path):
    (write_folder(tmp_path, described()) / "policy_preprocessor.json").unlink()
    with pytest.raises(BadFile, match=r"a LeRobot before 0.4 wrote it; .*migrate_policy_normalization"):
        load_policy(tmp_path)


def test_processors_of_others_run_no_code_that_the_user_has_not_allowed(tmp_path):
    steps = [{"class": "os.path.Evil", "config": {}}]
    with pytest.raises(NotAllowed, match=r"asks for os.path.Evil"):
        load_policy(write_folder(tmp_path, described(), steps))
    steps = [{"registry_name": "normalizer_processor", "state_file": "../../secret.safetensors"}]
    with pytest.raises(NotAllowed, match="not in its folder"):
        load_policy(write_folder(tmp_path, described(), steps))


def test_without_lerobot_the_error_says_what_to_install(tmp_path):
    try:
        import lerobot  # noqa: F401
    except ImportError:
        spec = load_policy(write_folder(tmp_path, described()))
        with pytest.raises(MissingPackage, match=r"pip install 'lerobot>=0.6"):
            spec.build()
    else:
        pytest.skip("lerobot is installed")


# With lerobot itself


@pytest.fixture(scope="module", params=["act", "diffusion"])
def folder(request, tmp_path_factory) -> Iterator[Path]:
    pytest.importorskip("lerobot")
    from lerobot_policies import write

    path = tmp_path_factory.mktemp(request.param)
    write(request.param, path)
    yield path
    shutil.rmtree(path)


def reference_actions(folder: Path, earlier: Observation, now: Observation, steps: int, seed: int) -> np.ndarray:
    """The actions of lerobot's own loop: select_action, one step at a time. The noise is drawn as ours."""
    import torch
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder)
    before, after = make_pre_post_processors(config, str(folder))

    def batch(observation: Observation) -> dict[str, Any]:
        images = {f"observation.images.{c}": i for c, i in observation.images.items()}
        tensors = {key: torch.from_numpy(i).permute(2, 0, 1).float() / 255 for key, i in images.items()}
        return before({**tensors, "observation.state": torch.from_numpy(observation.state), "task": "lift it"})

    if config.type == "act":
        return np.stack([after(policy.select_action(batch(now)))[0].numpy() for _ in range(steps)])
    noise = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(seed))
    policy._queues["action"].extend([torch.zeros(1, 8)])  # nothing is inferred from the first observation
    policy.select_action(batch(earlier))
    return np.stack([after(policy.select_action(batch(now), noise=noise))[0].numpy() for _ in range(steps)])


def test_chunks_are_those_of_lerobots_own_loop(folder):
    earlier = seen(1)
    now = seen(2, previous=lambda: earlier, task="lift it")
    spec = load_policy(folder, ["policy.device=cpu", "policy.seed=5"])
    chunk = spec.build().predict(now, IDENTITY)
    assert chunk.shape == (spec.horizon, 8) and chunk.dtype == np.float32
    np.testing.assert_allclose(chunk, reference_actions(folder, earlier, now, spec.horizon, 5), atol=1e-5)


def test_it_keeps_the_policys_contract(folder):
    check_policy(load_policy(folder).build(), seen(0), IDENTITY, action_dim=8)


def test_act_cannot_be_resampled_and_diffusion_follows_the_noise(folder):
    policy: Any = load_policy(folder, ["policy.device=cpu"]).build()
    if policy.folder.kind == "act":
        with pytest.raises(PolicyError, match="the base cannot be resampled"):
            check_sampling(policy, "the base", samples=4)
        with pytest.raises(PolicyError, match="the base is a base without noise input"):
            check_sampling(policy, "the base", noise=True)
        return
    assert check_sampling(policy, "the base", samples=4, noise=True) is policy
    noise = np.random.default_rng(0).normal(size=(3, 16, 8)).astype(np.float32)
    chunks = policy.sample(seen(0), IDENTITY, 3, noise)
    assert chunks.shape == (3, 8, 8) and not np.allclose(chunks[0], chunks[1])
    np.testing.assert_allclose(policy.sample(seen(0), IDENTITY, 1, noise[1:2])[0], chunks[1], atol=1e-5)


def test_its_own_loss_falls_and_the_checkpoint_loads_in_lerobot_again(folder, tmp_path):
    import torch
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class

    policy: Any = load_policy(folder, ["policy.device=cpu"]).build()
    history, batch = policy.folder.history, 4
    each = [seen(n).window(history, CAMERAS) for n in range(batch)]
    images = {camera: np.stack([one.images[camera] for one in each]) for camera in CAMERAS}
    observation = Observation(images, np.stack([one.state for one in each]))
    chunks = np.random.default_rng(0).uniform(-0.5, 0.5, (batch, policy.train_horizon, 8)).astype(np.float32)
    mask = np.ones(chunks.shape[:2], bool)
    optimizer = torch.optim.Adam(policy.policy.parameters(), lr=1e-3)

    def measure() -> float:
        torch.manual_seed(1)
        with torch.no_grad():
            return float(np.mean([policy.loss(observation, chunks, mask).item() for _ in range(8)]))

    before = measure()
    for _ in range(25):
        optimizer.zero_grad()
        policy.loss(observation, chunks, mask).backward()
        optimizer.step()
    assert measure() < 0.9 * before
    policy.save(tmp_path)
    again = get_policy_class(policy.folder.kind).from_pretrained(tmp_path, strict=True)
    assert PreTrainedConfig.from_pretrained(tmp_path).type == policy.folder.kind
    assert all(torch.equal(a, b) for a, b in zip(policy.policy.state_dict().values(), again.state_dict().values()))
    reloaded = load_policy(tmp_path, ["policy.device=cpu", "policy.seed=1"]).build()
    same = load_policy(tmp_path, ["policy.device=cpu", "policy.seed=1"]).build()
    assert np.array_equal(reloaded.predict(seen(1), IDENTITY), same.predict(seen(1), IDENTITY))


def test_a_folder_of_another_version_is_refused_when_it_is_built(folder, tmp_path):
    newer = shutil.copytree(folder, tmp_path / "newer")
    tree = json.loads((newer / "config.json").read_text())
    (newer / "config.json").write_text(json.dumps({**tree, "attention_of_2031": 8}))
    with pytest.raises(BadFile, match=r"another version wrote this folder: .*attention_of_2031"):
        load_policy(newer).build()
    key = "dim_model" if tree["type"] == "act" else "down_dims"
    (newer / "config.json").write_text(json.dumps({**tree, key: 32 if tree["type"] == "act" else [16, 32]}))
    with pytest.raises(BadFile, match="another version wrote this folder"):
        load_policy(newer).build()

"""What a training is told, in our words and in those of other stacks."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plaudit.errors import ConfigError, PlauditError
from plaudit.judges.classifier.train_job import RewardTrainJob, deep_merge, encoder_of, load_reward_train_job

LEROBOT: dict[str, Any] = {
    "policy": {
        "type": "reward_classifier",
        "model_name": "helper2424/resnet10",
        "image_size": 128,
        "num_cameras": 1,
        "num_classes": 2,
        "hidden_dim": 256,
        "latent_dim": 256,
    },
    "dataset": {"repo_id": "gtgando/so101_pick_lift_cube_rl_labeled", "root": "labeled", "video_backend": "pyav"},
}
LEROBOT_06: dict[str, Any] = {  # as lerobot 0.6 saves it, train_config.json
    "dataset": {
        "repo_id": "someone/labeled",
        "root": "labeled",
        "episodes": None,
        "video_backend": "torchcodec",
        "image_transforms": {"enable": False},
        "use_imagenet_stats": True,
        "streaming": False,
        "revision": None,
    },
    "policy": None,
    "reward_model": {
        "type": "reward_classifier",
        "input_features": {
            "observation.images.front": {"type": "VISUAL", "shape": [3, 96, 128]},
            "observation.state": {"type": "STATE", "shape": [6]},
        },
        "output_features": {"next.reward": {"type": "REWARD", "shape": [1]}},
        "device": None,
        "push_to_hub": True,
        "repo_id": None,
        "name": "reward_classifier",
        "num_classes": 2,
        "hidden_dim": 128,
        "latent_dim": 64,
        "image_embedding_pooling_dim": 4,
        "dropout_rate": 0.2,
        "model_name": "lerobot/resnet10",
        "model_type": "cnn",
        "num_cameras": 2,
        "learning_rate": 2e-4,
        "weight_decay": 0.02,
        "grad_clip_norm": 1.0,
        "normalization_mapping": {"VISUAL": "MEAN_STD"},
    },
    "output_dir": "outputs/train/x",
    "job_name": "x",
    "resume": False,
    "seed": None,
    "num_workers": 4,
    "batch_size": 16,
    "steps": 5000,
    "save_freq": 1000,
    "log_freq": 200,
    "save_checkpoint": True,
    "env": None,
    "optimizer": {"type": "adamw", "lr": 2e-4},
    "scheduler": None,
    "wandb": {"enable": False},
    "rename_map": {},
}
MANISKILL: dict[str, Any] = {
    "reward_training": {
        "enabled": True,
        "only": True,
        "data_path": "data",
        "epochs": 100,
        "micro_batch_size": 64,
        "global_batch_size": 64,
        "lr": 1.0e-4,
        "save_dir": "logs/reward_checkpoints",
    }
}


def read(folder: Path, tree: dict[str, Any], *overrides: str, **flags: Any) -> tuple[RewardTrainJob, list[str]]:
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return load_reward_train_job(folder / "config.yaml", flags, overrides)


@pytest.mark.parametrize("tree", [LEROBOT, LEROBOT_06], ids=["before 0.6", "0.6"])
def test_rewards_of_a_lerobot_config_are_about_a_rows_own_frame_unless_it_or_the_data_set_says_otherwise(
    tmp_path, tree
):
    root = tmp_path / "labeled"
    asked = _changed(tree, "dataset", root=str(root))
    assert read(tmp_path, asked)[0].reward_frame == "same"  # as lerobot's classifier reads them
    assert read(tmp_path, asked, reward_frame="next")[0].reward_frame == "next"
    asked["dataset"]["reward_frame"] = "next"
    assert read(tmp_path, asked)[0].reward_frame == "next"
    asked["dataset"]["reward_frame"] = None
    (root / "meta").mkdir(parents=True)
    (root / "meta/plaudit.parquet").touch()
    assert read(tmp_path, asked)[0].reward_frame is None  # as the data set says
    asked["dataset"]["reward_frame"] = "own"
    with pytest.raises(ConfigError, match="reward_frame"):
        read(tmp_path, asked)


def test_our_own_keys(tmp_path):
    recipe, notes = read(
        tmp_path, {"data": ["episodes"], "output_dir": "judge", "encoder": {"type": "small"}, "epochs": 3}
    )
    assert (recipe.data, recipe.output_dir, recipe.epochs) == ((Path("episodes"),), Path("judge"), 3)
    assert recipe.training.epochs == 3 and recipe.training.encoder.type == "small"
    assert notes == []


def test_flags_win_over_the_file_and_overrides_over_flags(tmp_path):
    recipe, _ = read(tmp_path, {"epochs": 1, "lr": 1.0, "seed": 1}, "seed=3", "encoder=small", seed=2, lr=0.5)
    assert (recipe.epochs, recipe.lr, recipe.seed, recipe.encoder.type) == (1, 0.5, 3, "small")


def test_an_encoder_of_another_type_replaces_the_one_before():
    before = {"encoder": {"type": "resnet10", "weights": "a.pkl"}, "augment": {"shift": 0.1}}
    assert deep_merge(before, {"encoder": {"type": "small"}})["encoder"] == {"type": "small"}
    assert deep_merge(before, {"encoder": {"weights": "b.pkl"}})["encoder"] == {"type": "resnet10", "weights": "b.pkl"}
    assert deep_merge(before, {"augment": {"scale": 0.2}})["augment"] == {"shift": 0.1, "scale": 0.2}


def test_lerobots_config_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LEROBOT))
    recipe, notes = load_reward_train_job(tmp_path / "config.json", {})
    assert recipe.data == (Path("labeled"),) and recipe.image_size == (128, 128) and recipe.num_cameras == 1
    assert (recipe.encoder.type, recipe.encoder.weights, recipe.frozen) == ("resnet10", None, False)
    assert (recipe.hidden_dim, recipe.latent_dim, recipe.num_spatial_blocks) == (256, 256, 8)
    assert len(notes) == 1 and notes[0].startswith("nothing is downloaded: ResNet-10 begins from random weights")
    assert "--pretrained-encoder-path" in notes[0]


def test_lerobots_config_since_0_6_is_read(tmp_path):
    (tmp_path / "train_config.json").write_text(json.dumps(LEROBOT_06))
    recipe, notes = load_reward_train_job(tmp_path / "train_config.json", {})
    assert recipe.data == (Path("labeled"),) and recipe.encoder.type == "resnet10"
    assert (recipe.image_keys, recipe.image_size, recipe.num_cameras) == (("front",), (96, 128), None)
    assert (recipe.hidden_dim, recipe.latent_dim, recipe.num_spatial_blocks, recipe.dropout) == (128, 64, 4, 0.2)
    assert (recipe.lr, recipe.weight_decay, recipe.batch_size, recipe.device) == (2e-4, 0.02, 16, "auto")
    assert notes[0] == "video_backend 'torchcodec' is not used: videos are read with PyAV"
    assert notes[1].startswith("of lerobot's keys these are not used: steps, output_dir, job_name, num_workers, ")


def test_lerobots_config_since_0_6_as_people_write_it(tmp_path):
    tree = {"reward_model": {"type": "reward_classifier", "num_cameras": 1}, "dataset": {"root": "labeled"}}
    recipe, notes = read(tmp_path, {**tree, "epochs": 3}, "reward_model.hidden_dim=64")
    assert (recipe.num_cameras, recipe.image_size, recipe.hidden_dim, recipe.epochs) == (1, (128, 128), 64, 3)
    assert len(notes) == 1 and notes[0].startswith("nothing is downloaded")
    chosen = {"root": "labeled", "episodes": [0, 1, 2], "exclude_episodes": [1]}
    recipe, _ = read(tmp_path, {**tree, "dataset": chosen})
    assert [number for number in range(5) if recipe.takes(number)] == [0, 2]


def test_a_folder_that_transformers_wrote_is_its_network(tmp_path):
    described = {"model_type": "resnet", "architectures": ["ResNetModel"]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "model.safetensors").write_text("weights")
    block = {**LEROBOT_06["reward_model"], "model_name": str(tmp_path)}
    recipe, _ = read(tmp_path, {**LEROBOT_06, "reward_model": block})
    assert (recipe.encoder.type, recipe.encoder.name) == ("transformers", str(tmp_path))


def test_a_local_folder_or_file_of_weights_may_stand_for_the_name(tmp_path):
    (tmp_path / "resnet10").mkdir()
    (tmp_path / "resnet10/model.safetensors").write_text("weights")
    for name in ("resnet10", "resnet10/model.safetensors"):
        tree = {**LEROBOT, "policy": {**LEROBOT["policy"], "model_name": str(tmp_path / name)}}
        recipe, notes = read(tmp_path, tree)
        assert recipe.encoder.weights == tmp_path / "resnet10/model.safetensors" and notes == []
    recipe, notes = read(tmp_path, LEROBOT, encoder={"weights": "resnet10_params.pkl"})
    assert recipe.encoder.weights == Path("resnet10_params.pkl") and notes == []


def test_another_network_of_the_hub_is_transformers_business(tmp_path):
    tree = {**LEROBOT, "policy": {**LEROBOT["policy"], "model_name": "facebook/dinov2-small"}}
    encoder = read(tmp_path, tree)[0].encoder
    assert (encoder.type, encoder.name, encoder.local_files_only) == ("transformers", "facebook/dinov2-small", True)


def test_the_maniskill_block_is_read(tmp_path):
    recipe, notes = read(tmp_path, MANISKILL, encoder={"type": "small"})
    assert recipe.data == (Path("data"),) and recipe.output_dir == Path("logs/reward_checkpoints/reward_model")
    assert recipe.output_checkpoint == Path("logs/reward_checkpoints/reward_model_best.pt")
    assert (recipe.epochs, recipe.batch_size, recipe.lr, notes) == (100, 64, 1e-4, [])


def test_a_key_of_their_block_may_be_given_on_the_command_line(tmp_path):
    recipe, _ = read(tmp_path, MANISKILL, "reward_training.epochs=3", "seed=4")
    assert (recipe.epochs, recipe.seed, recipe.lr) == (3, 4, 1e-4)
    with pytest.raises(ConfigError, match=r"^command line: unknown key 'reward_training.epoch'"):
        read(tmp_path, MANISKILL, "reward_training.epoch=3")


def test_our_example_is_such_a_block():
    recipe, notes = load_reward_train_job(Path(__file__).parents[3] / "examples/configs/pickcube_train_reward.yaml", {})
    assert recipe.data == (Path("runs/pickcube_data"),) and recipe.encoder.type == "small" and notes == []


def test_what_is_not_used_is_told(tmp_path):
    block = {**MANISKILL["reward_training"], "micro_batch_size": 16}
    _, notes = read(tmp_path, {"reward_training": block})
    assert notes[0] == "micro_batch_size 16 is not used: a batch of 64 is one piece"
    changed = {"video_backend": "torchcodec", "image_transforms": {"enable": True}}
    _, notes = read(tmp_path, {**LEROBOT, "dataset": {"root": "labeled", **changed}})
    assert notes[0] == "video_backend 'torchcodec' is not used: videos are read with PyAV"
    assert notes[1] == "dataset.image_transforms is not used: 'augment' says how images are changed"


def test_the_flags_of_two_folders_bring_their_own_defaults():
    recipe, _ = load_reward_train_job(None, {"data": ["p", "n"]}, folders=True)
    assert (recipe.encoder.type, recipe.image_keys, recipe.image_size) == ("resnet10", ("base_camera",), (64, 64))
    assert (recipe.batch_size, recipe.epochs, recipe.lr) == (32, 100, 1e-4)
    assert (recipe.hidden_dim, recipe.num_spatial_blocks, recipe.frozen) == (256, 8, False)
    flags = {"data": ["p", "n"], "encoder": {"weights": "w.pt"}, "hidden_dim": 64}
    recipe, _ = load_reward_train_job(None, flags, folders=True)
    assert (recipe.encoder.weights, recipe.frozen, recipe.freezes_stem, recipe.latent_dim) == (
        Path("w.pt"),
        True,
        False,
        64,
    )


def test_weights_alone_mean_resnet10_and_a_file_alone_a_folder_beside_it():
    recipe, _ = load_reward_train_job(
        None, {"encoder": {"weights": "w.pt"}, "output_checkpoint": "checkpoints/judge.pt"}
    )
    assert recipe.encoder.type == "resnet10" and recipe.freezes_stem and recipe.output_dir == Path("checkpoints/judge")


def test_backbones_by_their_names():
    assert encoder_of("small") == {"type": "small"}
    assert encoder_of("torchvision:resnet18") == {"type": "torchvision", "name": "resnet18"}
    assert encoder_of("transformers:/models/dino") == {"type": "transformers", "name": "/models/dino"}


def test_the_cameras_must_be_as_many_as_the_config_counts_on(tmp_path):
    recipe, _ = read(tmp_path, LEROBOT)
    recipe.check_cameras(["front"])
    with pytest.raises(PlauditError, match="num_cameras is 1 and there are 2: front, wrist; change it, or choose"):
        recipe.check_cameras(["front", "wrist"])
    read(tmp_path, LEROBOT, image_keys=["wrist"])[0].check_cameras(["front", "wrist"])


def _changed(tree: dict[str, Any], block: str, **changes: Any) -> dict[str, Any]:
    kept = {key: value for key, value in {**tree[block], **changes}.items() if value != "left out"}
    return {**tree, block: kept}


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"epoch": 3}, "config.yaml: unknown key 'epoch'; did you mean 'epochs'?"),
        ({"batch_size": 1}, "key 'batch_size' is 1: input should be greater than or equal to 2"),
        ({"encoder": {"type": "resnet11"}}, "there is no encoder 'resnet11'; did you mean 'resnet10'?"),
        ({"output_checkpoint": "model"}, "output_checkpoint is a file like reward_model.pt, not model"),
        ({"output_checkpoint": "m.pt", "ensemble_size": 3}, "a .pt file holds one network, and ensemble_size is 3"),
        (
            _changed(MANISKILL, "reward_training", enabled=False),
            "reward_training.enabled' is false: input should be true",
        ),
        (
            _changed(MANISKILL, "reward_training", only=False),
            "reward_training.only' is false: input should be true",
        ),
        (_changed(MANISKILL, "reward_training", data="x"), "unknown key 'reward_training.data'; did you mean 'data_p"),
        (_changed(MANISKILL, "reward_training", save_dir="left out"), "key 'reward_training.save_dir' is missing"),
        (_changed(LEROBOT, "policy", type="act"), "key 'policy.type' is \"act\": input should be 'reward_classifier'"),
        (_changed(LEROBOT, "policy", num_classes=3), "key 'policy.num_classes' is 3: input should be 2"),
        (_changed(LEROBOT, "policy", hiden_dim=3), "unknown key 'policy.hiden_dim'; did you mean 'hidden_dim'?"),
        (_changed(LEROBOT, "dataset", root="left out"), "write 'root', the folder on this machine: a repo_id alone"),
        ({"policy": LEROBOT["policy"]}, "key 'dataset' is missing; it has no default"),
        (_changed(LEROBOT_06, "reward_model", type="sarm"), "key 'reward_model.type' is \"sarm\": input should be"),
        (_changed(LEROBOT_06, "reward_model", hiden_dim=3), "unknown key 'reward_model.hiden_dim'; did you mean"),
        (_changed(LEROBOT_06, "dataset", root=None), "write 'root', the folder on this machine: a repo_id alone"),
        ({**LEROBOT_06, "stepz": 3}, "unknown key 'stepz'"),
    ],
)
def test_a_key_that_means_nothing_is_refused_in_a_sentence(tmp_path, tree, sentence):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, tree)
    assert sentence in str(error.value) and len(error.value.problems) == 1


def test_a_mistake_on_the_command_line_is_said_to_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"^command line: unknown key 'epoch'"):
        read(tmp_path, MANISKILL, "epoch=3")
    with pytest.raises(ConfigError, match="'small' is not KEY=VALUE, like encoder=small"):
        read(tmp_path, MANISKILL, "small")


def test_keys_that_lerobot_has_always_had_are_taken_or_answered(tmp_path):
    visual = {"observation.images.front": {"type": "VISUAL", "shape": [3, 128, 128]}}
    more = {"model_type": "cnn", "input_features": visual, "push_to_hub": True, "grad_clip_norm": 2.0}
    tree = {**LEROBOT, "policy": {**LEROBOT["policy"], **more}, "steps": 5000, "wandb": {"enable": False}}
    recipe, notes = read(tmp_path, tree)
    assert recipe.image_keys == ("front",) and recipe.image_size == (128, 128)
    assert notes[0].startswith("of lerobot's keys these are not used: steps, wandb; 'epochs' and --output-dir say")
    assert notes[1:3] == [
        "policy.push_to_hub is not used: nothing is uploaded",
        "policy.grad_clip_norm is not used: gradients are not clipped here",
    ]


def test_lerobots_resnet10_is_frozen_where_there_are_weights_to_freeze(tmp_path):
    recipe, _ = read(tmp_path, LEROBOT, encoder={"weights": "resnet10_params.pkl"})
    assert recipe.frozen and not recipe.freezes_stem
    assert not read(tmp_path, LEROBOT)[0].frozen  # random weights learn
    assert read(tmp_path, LEROBOT, freeze_encoder=True)[0].frozen


def test_the_maniskill_recipe_trains_the_network_that_it_names(tmp_path):
    whole = {**MANISKILL, "runner": {"max_epochs": 3}, "cluster": {"num_nodes": 1}, "env": {}}
    recipe, notes = read(tmp_path, whole)
    assert (recipe.encoder.type, recipe.encoder.padding, recipe.head, recipe.hidden_dim) == (
        *("resnet10", "torchvision", "mlp", 256),
    )
    assert "of the recipe these are not used: cluster, env, runner; they are about the policy" in notes

"""Policy folders with random weights, written by lerobot itself: `python lerobot_policies.py act FOLDER`."""

import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

STATE_DIM, ACTION_DIM, SIZE = 9, 8, (64, 64)
CAMERAS = ("front", "side")
SMALL: dict[str, dict[str, Any]] = {
    "act": {"chunk_size": 12, "n_action_steps": 12, "dim_model": 64, "n_heads": 4, "dim_feedforward": 128}
    | {"n_encoder_layers": 2, "n_vae_encoder_layers": 2, "latent_dim": 16},
    "diffusion": {"n_obs_steps": 2, "horizon": 16, "n_action_steps": 8, "down_dims": (32, 64)}
    | {"num_train_timesteps": 10, "noise_scheduler_type": "DDIM", "num_inference_steps": 5, "n_groups": 4}
    | {"spatial_softmax_num_keypoints": 8, "use_group_norm": True, "crop_shape": (56, 56)},
}


def write(kind: str, folder: Path, state_dim: int = STATE_DIM, action_dim: int = ACTION_DIM, **options: Any) -> Any:
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

    torch.manual_seed(0)
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (state_dim,))}
    inputs |= {f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, *SIZE)) for name in CAMERAS}
    config = make_policy_config(
        kind,
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (action_dim,))},
        device="cpu",
        pretrained_backbone_weights=None,
        push_to_hub=False,
        **{**SMALL[kind], **options},
    )
    one = {"mean": 0.1, "std": 0.5, "min": -1.0, "max": 1.0}
    vectors = {"observation.state": state_dim, "action": action_dim}
    stats = {key: {name: torch.full((size,), v) for name, v in one.items()} for key, size in vectors.items()}
    images = {name: torch.full((3, 1, 1), v) for name, v in {"mean": 0.5, "std": 0.25, "min": 0.0, "max": 1.0}.items()}
    stats |= {f"observation.images.{name}": images for name in CAMERAS}
    policy = get_policy_class(kind)(config)
    policy.save_pretrained(folder)
    for part in make_pre_post_processors(config, dataset_stats=stats):
        part.save_pretrained(folder)
    return policy


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:5]))

"""Tiny SARM and ReWiND checkpoints in their published layouts, with tiny encoders, and their definitions written out.

The definitions use nothing of our networks: attention is spelled out, a window or a prefix at a time.
"""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import nn
from torch.nn import functional as F

from plaudit.types import Episode
from tiny_vlm import make_tokenizer

WIDTH, IMAGES, TEXT = 24, 20, 12
LENGTH = 5  # of ReWiND's window
GAP, HALF, STATE = 2, 2, 6  # of SARM's window and state
SHARES = [0.5, 0.3, 0.2]


def random_weights(module: nn.Module, seed: int) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(std=2 / weight[0].numel() ** 0.5) if weight.ndim > 1 else weight.normal_(std=0.2)
        for name, weight in module.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight.uniform_(0.5, 2.0)
    return module.eval()


def colored(steps: int, size: int = 64, seed: int = 0, **facts: Any) -> Episode:
    """An episode of four random colors per frame, so that features of frames differ; its state has two numbers."""
    colors = np.random.default_rng(seed).integers(0, 256, (steps + 1, 2, 2, 3), np.uint8)
    numbers = np.arange(steps + 1)
    return Episode.of(
        frames={"front": colors.repeat(size // 2, axis=1).repeat(size // 2, axis=2)},
        actions=np.zeros((steps, 1)),
        state=np.stack([numbers, np.sin(numbers)], axis=1).astype(np.float32),
        **{"task": "push the square to the right", **facts},
    )


@cache
def loaded(kind: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(folder)


def save_clip(folder: Path) -> Path:
    import transformers

    tokenizer = make_tokenizer("push the square to the right lift the cube")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    post = TemplateProcessing(single="$A <|im_end|>", special_tokens=[("<|im_end|>", end)])
    tokenizer.backend_tokenizer.post_processor = post
    tokenizer.model_max_length = 40
    shared = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "eos_token_id": end, "bos_token_id": 0}
    config = transformers.CLIPConfig(
        text_config={**shared, **text},
        vision_config={**shared, "image_size": 32, "patch_size": 16},
        projection_dim=IMAGES,
    )
    model: Any = transformers.CLIPModel(config)
    random_weights(model, 1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_dino(folder: Path) -> Path:
    import transformers

    shape = {"hidden_size": IMAGES, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 224}
    config = transformers.Dinov2Config(**shape, patch_size=56, mlp_ratio=2)
    model: Any = transformers.Dinov2Model(config)
    random_weights(model, 2).save_pretrained(folder)
    return folder


def save_minilm(folder: Path) -> Path:
    import transformers

    tokenizer = make_tokenizer("push the square to the right lift the cube")
    shape = {"hidden_size": TEXT, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **shape)
    model: Any = transformers.BertModel(config)
    random_weights(model, 3).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def encoder(heads: int, layers: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, heads, 4 * WIDTH, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def streams(count: int, outputs: dict[str, int], seed: int) -> dict[str, torch.Tensor]:
    """Weights of one of SARM's networks, by their published names."""
    network = nn.Module()
    network.lang_proj, network.visual_proj = nn.Linear(IMAGES, WIDTH), nn.Linear(IMAGES, WIDTH)
    network.state_proj, network.transformer = nn.Linear(STATE, WIDTH), encoder(2, 3)
    network.first_pos = nn.Parameter(torch.zeros(1, WIDTH))
    fused = count * WIDTH
    network.fusion_backbone = nn.Sequential(nn.LayerNorm(fused), nn.Linear(fused, WIDTH), nn.ReLU())
    network.heads = nn.ModuleDict({name: nn.Linear(WIDTH, number) for name, number in outputs.items()})
    return {name: value.clone() for name, value in random_weights(network, seed).state_dict().items()}


def save_sarm(folder: Path, **described: Any) -> dict[str, torch.Tensor]:
    """LeRobot's folder; returns its tensors."""
    tensors = {f"stage_model.{k}": v for k, v in streams(3, {"sparse": 3, "dense": 4}, 5).items()}
    tensors |= {f"subtask_model.{k}": v for k, v in streams(4, {"sparse": 1, "dense": 1}, 6).items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {"type": "sarm", "annotation_mode": "dual", "n_obs_steps": 2 * HALF, "frame_gap": GAP, "num_heads": 2}
    config |= {
        "hidden_dim": 768,
        "num_layers": 8,
        "max_state_dim": 32,
    }  # LeRobot's defaults, which the files contradict
    config |= {"sparse_subtask_names": ["a", "b", "c"], "sparse_temporal_proportions": SHARES}
    config |= {"dense_temporal_proportions": [0.25] * 4, "state_key": "observation.state"}
    config |= {"normalization_mapping": {"STATE": "MEAN_STD", "VISUAL": "IDENTITY"}}
    (folder / "config.json").write_text(json.dumps({**config, **described}))
    steps = [{"registry_name": "rename_observations_processor"}]
    steps += [{"registry_name": "normalizer_processor", "state_file": "stats.safetensors"}]
    (folder / "policy_preprocessor.json").write_text(json.dumps({"name": "policy_preprocessor", "steps": steps}))
    stats = {"observation.state.mean": torch.tensor([1.0, -2.0]), "observation.state.std": torch.tensor([2.0, 0.5])}
    save_file(stats, folder / "stats.safetensors")
    return tensors


def save_rewind(path: Path, seed: int = 7) -> dict[str, torch.Tensor]:
    """Upstream's checkpoint: the training's arguments and the weights; returns these."""
    network = nn.Module()
    network.video_proj, network.text_proj = nn.Linear(IMAGES, WIDTH), nn.Linear(TEXT, WIDTH)
    network.first_pos_embed = nn.Parameter(torch.zeros(1, WIDTH))
    network.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
    network.transformer = encoder(8, 2)
    layers = [nn.Linear(WIDTH, 12), nn.LayerNorm(12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 1), nn.Sigmoid()]
    network.progress_head = nn.Sequential(*layers)
    tensors = random_weights(network, seed).state_dict()
    arguments = argparse.Namespace(max_length=LENGTH, subsample_video=True, exp_name="tiny", lr=1e-4, cameras=["front"])
    torch.save({"args": arguments, "model_state_dict": tensors}, path)
    return tensors


def causal_layers(tensors: dict[str, torch.Tensor], x: torch.Tensor, heads: int, layers: int) -> torch.Tensor:
    """[L, D] through layers with normalization after each part, each token seeing those before it."""
    length, width = x.shape
    hidden = torch.full((length, length), -torch.inf).triu(1)
    for number in range(layers):
        t = {k.removeprefix(f"transformer.layers.{number}."): v for k, v in tensors.items()}
        qkv = F.linear(x, t["self_attn.in_proj_weight"], t["self_attn.in_proj_bias"])
        q, k, v = (part.view(length, heads, -1).transpose(0, 1) for part in qkv.chunk(3, dim=-1))
        weights = (q @ k.transpose(1, 2) / (width // heads) ** 0.5 + hidden).softmax(-1)
        mixed = (weights @ v).transpose(0, 1).reshape(length, width)
        x = x + F.linear(mixed, t["self_attn.out_proj.weight"], t["self_attn.out_proj.bias"])
        x = F.layer_norm(x, (width,), t["norm1.weight"], t["norm1.bias"])
        inner = F.linear(x, t["linear1.weight"], t["linear1.bias"]).relu()
        x = x + F.linear(inner, t["linear2.weight"], t["linear2.bias"])
        x = F.layer_norm(x, (width,), t["norm2.weight"], t["norm2.bias"])
    return x


def linear(tensors: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def plain_streams(tensors: dict[str, torch.Tensor], images, text, state, stage, head: str) -> torch.Tensor:
    """[W, outputs] of one window."""
    window = len(images)
    vision = linear(tensors, "visual_proj", images)
    vision[0] += tensors["first_pos"][0]
    parts = [vision, linear(tensors, "lang_proj", text).expand(window, -1), linear(tensors, "state_proj", state)]
    if stage is not None:
        wide = torch.zeros(window, WIDTH)
        wide[range(window), stage] = 1
        parts.append(wide)
    hidden = causal_layers(tensors, torch.cat(parts), 2, 3).view(len(parts), window, WIDTH)
    fused = torch.cat(list(hidden), dim=-1)
    fused = F.layer_norm(
        fused, fused.shape[-1:], tensors["fusion_backbone.0.weight"], tensors["fusion_backbone.0.bias"]
    )
    return linear(tensors, f"heads.{head}", linear(tensors, "fusion_backbone.1", fused).relu())


@torch.no_grad()
def plain_sarm(tensors, clip: Path, frames, state, task: str, frame: int, place: int = HALF, head: str = "sparse"):
    """Progress at one place of the window around a frame, as LeRobot's script computes it."""
    model, tokenizer = loaded("CLIPModel", clip), loaded("AutoTokenizer", clip)
    rows = [min(max(frame + GAP * step, 0), len(frames) - 1) for step in range(-HALF, HALF + 1)]
    pixels = []
    for row in rows:  # frames of 64x64, the tiny CLIP sees 32x32
        small = Image.fromarray(frames[row]).resize((32, 32), Image.Resampling.BICUBIC)
        pixels.append(torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
    images = features(model.get_image_features(pixel_values=(torch.stack(pixels) - mean) / std))
    text = features(model.get_text_features(**tokenizer([task], return_tensors="pt")))[0]
    states = torch.zeros(len(rows), STATE)
    states[:, :2] = (torch.tensor(state[rows]) - torch.tensor([1.0, -2.0])) / torch.tensor([2.0, 0.5])
    one, other = (
        {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        for prefix in ("stage_model.", "subtask_model.")
    )
    stage = plain_streams(one, images, text, states, None, head).argmax(-1)
    share = plain_streams(other, images, text, states, stage, head).sigmoid()[place, 0].item()
    shares = SHARES if head == "sparse" else [0.25] * 4
    at = int(stage[place])
    return sum(shares[:at]) + share * shares[at], at


def features(output: Any) -> torch.Tensor:
    """transformers 5 returns an object where 4.57 returned its tensor."""
    return output if isinstance(output, torch.Tensor) else output.pooler_output


@torch.no_grad()
def plain_rewind(tensors, dino: Path, minilm: Path, frames, task: str, last: int, place: int = -1) -> float:
    """Progress at one place of the padded prefix that ends at a frame, as upstream's wrapper computes it."""
    rows = [*range(last + 1), *[last] * LENGTH][:LENGTH]
    if last >= LENGTH:
        rows = [int(last * n / (LENGTH - 1)) for n in range(LENGTH)]
    height, width = frames.shape[1:3]
    canvas = np.zeros((LENGTH, 224, 224, 3), np.uint8)  # frames are smaller, so the rest is black
    top, left = (224 - height) // 2, (224 - width) // 2
    canvas[:, top : top + height, left : left + width] = frames[rows]
    pixels = torch.from_numpy(canvas).permute(0, 3, 1, 2) / 255 * 2 - 1
    images = loaded("Dinov2Model", dino)(pixel_values=pixels).pooler_output
    words = loaded("BertModel", minilm)(**loaded("AutoTokenizer", minilm)([task], return_tensors="pt"))
    x = linear(tensors, "video_proj", images)
    x[0] += tensors["first_pos_embed"][0]
    x = torch.cat([linear(tensors, "text_proj", words.last_hidden_state[0].mean(0))[None], x])
    hidden = causal_layers(tensors, x, 8, 2)[1:]
    inner = linear(tensors, "progress_head.0", hidden)
    inner = F.layer_norm(inner, (12,), tensors["progress_head.1.weight"], tensors["progress_head.1.bias"])
    return linear(tensors, "progress_head.4", F.gelu(inner)).sigmoid()[place, 0].item()

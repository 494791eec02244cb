"""Tiny random models in the exact folder layouts of published reward models, and their definitions by transformers.

The definition of a score is one call of transformers for one prefix, with its own positions and its own masks. Nothing
of our prompts, layouts or passes is used: texts are written out here a second time.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from tiny_vlm import make_config, make_tokenizer

# Qwen3-VL-Instruct's template, as far as published models use it.
TEMPLATE = """
{%- set image_count = namespace(value=0) %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- for part in message.content %}
        {%- if part.type == 'image' %}
            {%- set image_count.value = image_count.value + 1 %}
            {%- if add_vision_id %}{{- 'Picture ' ~ image_count.value ~ ': ' }}{%- endif %}
            {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
        {%- elif part.type == 'video' %}
            {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
        {%- else %}
            {{- part.text }}
        {%- endif %}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
ROBOMETER_TOKENS = ["<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", "<|prog_token|>"]
WIDTH = 64  # of hidden states


@torch.no_grad()
def tiny_model(
    words: str = "is: True is: True is: True ANSWER: 1 2 3 4 5", tokens: list[str] = (), rows: int = 0, seed: int = 0
) -> Any:
    """(model, tokenizer) with these added tokens; rows: of the embedding, 0: as many as tokens"""
    import transformers

    tokenizer = make_tokenizer(words)
    tokenizer.chat_template = TEMPLATE
    for token in tokens:
        tokenizer.add_tokens([token], special_tokens=True)
    config = make_config(tokenizer)
    config.text_config.vocab_size = rows or len(tokenizer)
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    torch.manual_seed(seed)
    model = transformers.Qwen3VLForConditionalGeneration(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=2 / weight[0].numel() ** 0.5)
    model.model.language_model.norm.weight.uniform_(0.5, 2.0)  # so that a state before it gives other scores
    return model, tokenizer


def head(outputs: int, seed: int) -> dict[str, torch.Tensor]:
    """A head of Robometer, by its published names."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, outputs))
    return {key: 3 * value.detach() for key, value in layers.state_dict().items()}


def robometer_heads(bins: int = 10) -> dict[str, torch.Tensor]:
    heads = {"progress_head": bins, "success_head": 1, "preference_head": 1}
    tensors = {f"{name}.{k}": v for i, (name, n) in enumerate(heads.items()) for k, v in head(n, i + 1).items()}
    unused = {"frame_pool_attn.weight": torch.ones(1, WIDTH), "similarity_head.4.bias": torch.ones(1)}  # of old files
    return {**tensors, **unused}


def save_robometer(folder: Path, layout: str = "upstream", bins: int = 10, tokenizer_too: bool = True) -> Any:
    """A folder as published; returns the model and its tokenizer."""
    model, tokenizer = tiny_model(tokens=ROBOMETER_TOKENS)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    described = json.loads(model.config.to_json_string())
    heads = robometer_heads(bins)
    if layout == "upstream":  # the bare model, in shards, without a language head
        weights = {k: v for k, v in weights.items() if k != "lm_head.weight"}
        save_shards(folder, {**weights, **heads})
        (folder / "config.json").write_text(json.dumps(described))
    else:
        save_file({**{f"model.{k}": v for k, v in weights.items()}, **heads}, folder / "model.safetensors")
        wrapped = {"type": "robometer", "base_model_id": "Qwen/Qwen3-VL-4B-Instruct", "vlm_config": described}
        (folder / "config.json").write_text(json.dumps(wrapped))
    if tokenizer_too:
        tokenizer.save_pretrained(folder)
    return model, tokenizer


def save_shards(folder: Path, tensors: dict[str, torch.Tensor], count: int = 2) -> None:
    """Shards with their index, as transformers writes them."""
    names, table = sorted(tensors), {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        own = names[number::count]
        save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
        table |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


SYMLOG = {"bins": 256, "min_value": 0.0, "max_value": 512.0, "support_transform": "symlog", "encoding": "two_hot"}


class BroNet(nn.Module):
    """RynnValue's value head, written from its description."""

    def __init__(self, inputs: int, outputs: int, width: int = 16, depth: int = 2):
        super().__init__()
        self.input_layer, self.input_norm = nn.Linear(inputs, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"fc1": nn.Linear(width, width), "ln1": nn.LayerNorm(width), "fc2": nn.Linear(width, width)}
                | {"ln2": nn.LayerNorm(width)}
            )
            for _ in range(depth)
        )
        self.final_layer = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.input_norm(self.input_layer(x)).relu()
        blocks: Any = self.blocks
        for block in blocks:
            x = x + block["ln2"](block["fc2"](block["ln1"](block["fc1"](x)).relu()))
        return self.final_layer(x)


def save_rynnvalue(
    folder: Path,
    layout: str = "upstream",
    kind: str = "bro",
    repeats: int = 8,
    bins: dict = SYMLOG,
    num_heads: int = 2,
    **more: Any,
) -> Any:
    """A folder as published; returns the model, its tokenizer and its value heads."""
    model, tokenizer = tiny_model(
        tokens=["<value>", "<relative_value>"], rows=700
    )  # more rows than tokens, as released
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(5)
    make = {"bro": BroNet, "linear": nn.Linear}[kind]
    heads = [make(WIDTH * repeats, bins["bins"]) for _ in range(num_heads)]
    for one in heads:
        for parameter in one.parameters():
            parameter.data *= 3
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    for number, one in enumerate(heads):
        tensors |= {f"value_heads.{number}.proj.{k}": v.detach() for k, v in one.state_dict().items()}
    relative = make(WIDTH * repeats, bins["bins"]).state_dict()
    tensors |= {f"relative_value_head.proj.{k}": v for k, v in relative.items()}
    described = json.loads(model.config.to_json_string()) | {
        "model_type": "rynn_value_lang",
        "value_tokenizer_config": bins,
        "relative_value_tokenizer_config": {**bins, "min_value": -256.0, "max_value": 256.0},
        "value_head_config": {"head_type": kind, "hidden_dims": 16, "depth": 2},
        "relative_value_head_config": {"head_type": kind, "hidden_dims": 16, "depth": 2},
        "num_value_heads": num_heads,
        "value_token_repeat": repeats,
        "relative_value_token_repeat": repeats,
        "value_token_id": tokenizer.convert_tokens_to_ids("<value>"),
        "relative_value_token_id": tokenizer.convert_tokens_to_ids("<relative_value>"),
        "attn_implementation": "pred_slot_isolated_eager",
        **more,
    }
    if layout == "lerobot":
        save_file({f"model.{k}": v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"type": "rynnvalue", "model_config": described}))
    else:
        save_shards(folder, tensors)
        (folder / "config.json").write_text(json.dumps(described))
    settings = {"use_meta": False, "conversation_style": "interleaved_history", "value_token_repeat": repeats}
    settings["relative_value_token_repeat"] = repeats
    (folder / "processor_config.json").write_text(json.dumps(settings))
    limits = {"size": {"shortest_edge": 4096, "longest_edge": 16777216}}
    (folder / "preprocessor_config.json").write_text(json.dumps(limits))
    tokenizer.save_pretrained(folder)
    return model, tokenizer, heads


# The definition: one call of transformers


def resized(frame: np.ndarray, *sizes: tuple[int, int]) -> np.ndarray:
    """By PIL, whose sizes are width and height."""
    image = Image.fromarray(frame)
    for height, width in sizes:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def patch_rows(first: np.ndarray, second: np.ndarray) -> torch.Tensor:
    """[patches, 1536] of two frames of one size; written by hand, so that a change of ours is noticed."""
    height, width, _ = first.shape
    pair = (np.stack([first, second]).astype(np.float32) / 255 - 0.5) / 0.5  # [2, H, W, 3]
    rows = []
    for top in range(0, height, 32):
        for left in range(0, width, 32):
            for y in (0, 16):
                for x in (0, 16):
                    patch = pair[:, top + y : top + y + 16, left + x : left + x + 16]
                    rows.append(patch.transpose(3, 0, 1, 2).ravel())  # channel, time, row, column
    return torch.from_numpy(np.stack(rows))


def call(
    model: Any, tokenizer: Any, text: str, pairs: list[tuple[np.ndarray, np.ndarray]], *, video: bool = False
) -> Any:
    """Ids and what one call of the model takes; each placeholder in the text is one pair of frames."""
    pad = "<|video_pad|>" if video else "<|image_pad|>"
    parts = text.split(pad)
    assert len(parts) == len(pairs) + 1
    grown = parts[0]
    for (first, _), rest in zip(pairs, parts[1:]):
        grown += pad * (first.shape[0] * first.shape[1] // 1024) + rest
    ids = tokenizer(grown, return_tensors="pt", add_special_tokens=False)["input_ids"]
    grids = torch.tensor([[1, first.shape[0] // 16, first.shape[1] // 16] for first, _ in pairs])
    if video:
        grids = torch.tensor([[len(pairs), *grids[0, 1:].tolist()]])
    kind, token = ("video", model.config.video_token_id) if video else ("image", model.config.image_token_id)
    values = "pixel_values_videos" if video else "pixel_values"
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == token).int() * (2 if video else 1),
        values: torch.cat([patch_rows(*pair) for pair in pairs]),
        f"{kind}_grid_thw": grids,
    }


@torch.no_grad()
def last_hidden(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """[L, D] after the last normalization."""
    return model.model(**inputs, use_cache=False).last_hidden_state[0]


def run_sequential(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    outputs = len(tensors["4.weight"])
    layers = nn.Sequential(
        nn.Linear(x.shape[-1], 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, outputs)
    ).eval()
    layers.load_state_dict(tensors)
    return layers(x).detach()


def plain_robometer(model, tokenizer, frames, task, indices, sizes, bins=10):
    """(progress, success) of the last of these frames, by one call."""
    text = (
        "<|im_start|>user\nThe task for the robot is '" + task + "'. Given the trajectory video, predict the task "
        "progress at each frame, how far along the robot is towards completing the task, a float between 0 and 1, "
        "where 0 is the starting state and 1 is when the task is completed. If the robot is not performing the same "
        "task, predict 0 progress."
    )
    for number in range(len(indices)):
        text += f"Picture {number + 1}: <|vision_start|><|image_pad|><|vision_end|><|prog_token|>"
    shown = [resized(frames[i], *sizes) for i in indices]
    inputs = call(model, tokenizer, text + "<|im_end|>\n", [(one, one) for one in shown])
    token = tokenizer.convert_tokens_to_ids("<|prog_token|>")
    hidden = last_hidden(model, inputs)[inputs["input_ids"][0] == token]
    assert len(hidden) == len(indices)
    heads = robometer_heads(bins)
    progress, success = (
        run_sequential({k[len(n) + 1 :]: v for k, v in heads.items() if k.startswith(n + ".")}, hidden)
        for n in ("progress_head", "success_head")
    )
    progress = progress[:, 0].sigmoid() if bins == 1 else (progress.softmax(-1) * torch.linspace(0, 1, bins)).sum(-1)
    return progress[-1].item(), success[-1, 0].sigmoid().item()


def slot_mask(ids: torch.Tensor, value: int, relative: int) -> torch.Tensor:
    """[L, L] which tokens (rows) see which (columns): a slot is seen by itself alone, all else by what follows it."""
    tokens, places = ids.tolist(), torch.arange(len(ids))
    slots, current = [], -1
    for place, token in enumerate(tokens):
        if token in (value, relative) and (place == 0 or tokens[place - 1] != token):
            current += 1
        slots.append(current if token in (value, relative) else -1)
    slot = torch.tensor(slots)
    return torch.where(slot[None] < 0, places[None] <= places[:, None], slot[None] == slot[:, None])


@torch.no_grad()
def plain_rynnvalue(model, tokenizer, heads, frames, task, indices, sizes, repeats=8, bins=SYMLOG):
    """Remaining seconds of the last of these frames, by one call with an explicit mask."""
    text = (
        f"<|im_start|>user\nThe agent is performing the following task: {task}."
        "Question: For each frame after the first, what is the time delta from the previous frame?"
        "Question: Estimate the minimum remaining time in seconds until the agent completes the task."
    )
    for number in range(len(indices)):
        text += "<|vision_start|><|image_pad|><|vision_end|>"
        text += "<relative_value>" * (repeats if number else 0) + "<value>" * repeats
    text += "Analyze this trajectory. Provide:"
    shown = [resized(frames[i], *sizes) for i in indices]
    inputs = call(model, tokenizer, text, [(one, one) for one in shown])
    value, relative = (tokenizer.convert_tokens_to_ids(word) for word in ("<value>", "<relative_value>"))
    ids = inputs["input_ids"][0]
    mask = slot_mask(ids, value, relative)
    inputs["attention_mask"] = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    # Positions as transformers computes them from the ids.
    plain = dict(inputs, attention_mask=torch.ones_like(ids)[None])
    positions = model.model.get_rope_index(
        plain["input_ids"],
        mm_token_type_ids=plain["mm_token_type_ids"],
        image_grid_thw=plain["image_grid_thw"],
        attention_mask=plain["attention_mask"],
    )[0]
    hidden = last_hidden(model, {**inputs, "position_ids": positions})[ids == value]
    hidden = hidden.view(len(indices), -1)  # the repeated tokens side by side
    probs = [one(hidden).softmax(-1) for one in heads]
    low, high = (math.copysign(math.log1p(abs(end)), end) for end in (bins["min_value"], bins["max_value"]))
    centers = torch.linspace(low, high, bins["bins"])
    means = [(p * centers).sum(-1) for p in probs]
    return torch.stack([m.sign() * m.abs().expm1() for m in means]).mean(0)[-1].item()

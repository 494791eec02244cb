"""A Qwen3-VL of 200,000 random weights, saved as the hub would have it, and episodes of a bright square for it to see.

The weights are large enough that its scores differ clearly from frame to frame. One number of every token is kept out
of all mixing and raises yes and no above the other words: an endpoint lists only the 20 likeliest.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plaudit.judges.vlm.config import EXPLAIN_PROMPT, QUESTION, SYSTEM_PROMPT
from plaudit.judges.vlm.prompt import ANSWER_TOKENS
from plaudit.types import Episode

if TYPE_CHECKING:  # it takes as long to import as torch, and most test processes have no use for it
    import transformers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIAL += ["<|video_pad|>"]

# As Qwen3-VL-Instruct has it, without tools and videos.
TEMPLATE = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type in ('image', 'image_url') %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- else %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def make_tokenizer(words: str = "Yes yes No no user assistant system") -> "transformers.PreTrainedTokenizerFast":
    import transformers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [SYSTEM_PROMPT, QUESTION, EXPLAIN_PROMPT, words, *words.split()]
    tokenizer.train_from_iterator([*text, *text], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )


def make_config(tokenizer: "transformers.PreTrainedTokenizerFast") -> "transformers.Qwen3VLConfig":
    import transformers

    ids = {
        name: tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for name in ("image_pad", "video_pad", "vision_start", "vision_end")
    }
    return transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
    )


@torch.no_grad()
def make_model(tokenizer: "transformers.PreTrainedTokenizerFast", seed: int = 0) -> Any:
    import transformers

    torch.manual_seed(seed)
    model = transformers.Qwen3VLForConditionalGeneration(make_config(tokenizer)).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=2 / weight[0].numel() ** 0.5)
    text, visual = model.model.language_model, model.model.visual
    for layer in text.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    for merger in (visual.merger, *visual.deepstack_merger_list):
        merger.linear_fc2.weight[0] = 0
    text.embed_tokens.weight[:, 0] = 8
    visual.merger.linear_fc2.bias[0] = 8
    spelled = [tokenizer(form)["input_ids"] for forms in ANSWER_TOKENS.values() for form in forms]
    words = [ids[0] for ids in spelled if len(ids) == 1]
    model.lm_head.weight[:, 0] = 0
    model.lm_head.weight[words, 0] = 12
    return model


def save_tiny(folder: Path, seed: int = 0) -> Path:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer, seed).save_pretrained(folder)
    facts = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16, "merge_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return folder


def moving(
    steps: int = 5, seed: int = 0, size: tuple[int, int] = (64, 64), cameras=("front",), **facts: Any
) -> Episode:
    """A bright square that moves over noise."""
    rng = np.random.default_rng(seed)
    height, width = size
    frames = rng.integers(0, 120, (len(cameras), steps + 1, height, width, 3), np.uint8)
    for t in range(steps + 1):
        left = (t * 7 + 5 * seed) % (width - 8)
        frames[:, t, height // 3 : height // 3 + 8, left : left + 8] = 255
    return Episode.of(
        frames=dict(zip(cameras, frames, strict=True)),
        actions=np.zeros((steps, 1)),
        **{"task": "push the square to the right", **facts},
    )

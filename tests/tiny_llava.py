"""A LLaVA of a few thousand random weights: a vision-language model that is no Qwen3-VL."""

from pathlib import Path
from typing import Any

import torch

from tiny_vlm import TEMPLATE, make_tokenizer


def save_llava(folder: Path, template: str = TEMPLATE) -> Path:
    """As the hub would have it, with its processor."""
    import transformers

    tokenizer: Any = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(size={"height": 32, "width": 32}, do_center_crop=False),
        tokenizer=tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>"),
    )
    torch.manual_seed(0)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16
    )
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
    )
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=image_token)
    model: Any = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=2 / weight[0].numel() ** 0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder

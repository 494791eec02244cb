"""A folder of the hub to a model, its tokenizer or processor, its chat template and a fingerprint."""

import hashlib
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from plaudit.devices import resolve_device
from plaudit.encoders.others import from_hub
from plaudit.errors import JudgeError, import_extra
from plaudit.files import MAX_HEAD, MAX_JSON, Root, read_json_object, understood
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.images import MERGE, PATCH, TIMES
from plaudit.judges.vlm.prompt import ANSWER_TOKENS
from plaudit.judges.vlm.qwen3_vl import attention_on

# What our own forward (qwen3_vl.py) takes for granted; it is so in every published Qwen3-VL.
PUBLISHED = (
    ("text_config", "hidden_act", "silu"),
    ("text_config", "attention_bias", False),
    ("vision_config", "hidden_act", "gelu_pytorch_tanh"),
    ("vision_config", "patch_size", PATCH),
    ("vision_config", "spatial_merge_size", MERGE),
    ("vision_config", "temporal_patch_size", TIMES),
)
LORA_CONFIG = "adapter_config.json"  # of an adapter, as peft writes it
SAMPLES, SAMPLE = 16, 1 << 16  # places of a file that its fingerprint looks at, and bytes at each


@dataclass(frozen=True, eq=False)
class LoadedVlm:
    """A model that is ready to run."""

    model: Any  # on its device
    tokenizer: Any
    processor: Any  # transformers' preprocessing; the tokenizer again for a Qwen3-VL
    template: str  # of chats, jinja
    fingerprint: str  # of weights, preprocessing and template
    trained_on: str = ""  # keys of the episodes that an adapter learned from
    warnings: tuple[str, ...] = ()


def load_description(config: VlmJudgeConfig) -> Any:
    """The model's own config, as transformers reads it."""
    return _from_hub(config, import_extra("transformers", "vlm").AutoConfig)


def unknown_part(name: str, described: Any) -> str | None:
    """Why our own forward cannot run this model; None where it can."""
    if described.model_type != "qwen3_vl":
        return f"'{name}' is a '{described.model_type}' and no Qwen3-VL"
    for part, key, published in PUBLISHED:
        value = getattr(getattr(described, part), key)
        if value != published:
            return f"'{name}' has {part}.{key} {value}, where every published Qwen3-VL has {published}"
    return None


def load_vlm(config: VlmJudgeConfig, *, with_processor: bool = False) -> LoadedVlm:
    """A model of transformers that takes images and answers in text.

    with_processor: with transformers' own preprocessing; a Qwen3-VL needs none, as images.py prepares its images
    """
    transformers = import_extra("transformers", "vlm")
    processor = _from_hub(config, transformers.AutoProcessor if with_processor else transformers.AutoTokenizer)
    tokenizer = getattr(processor, "tokenizer", processor)  # a model of text has no processor
    template = getattr(processor, "chat_template", None) or _template(_folder(config), tokenizer)
    device = resolve_device(config.device)
    usual = torch.bfloat16 if device.type == "cuda" else torch.float32
    model, report = _from_hub(
        config,
        transformers.AutoModelForImageTextToText,
        dtype=usual if config.dtype == "auto" else getattr(torch, config.dtype),
        attn_implementation=attention_on(device, config.attention),
        output_loading_info=True,
    )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise JudgeError(f"the weights of '{config.model}' lack {len(missing)} tensors, '{missing[0]}' first")
    try:
        model.to(device)
    except torch.OutOfMemoryError as error:
        raise JudgeError(
            f"the weights of '{config.model}' do not fit on {device}; free some memory there, or take a smaller model"
        ) from error
    model.eval().requires_grad_(False)
    return LoadedVlm(model, tokenizer, processor, template, fingerprint_of(_folder(config), template))


def answer_token_ids(tokenizer: Any, word: Literal["yes", "no"]) -> list[int]:
    """The tokens that each spell the given text alone."""
    spelled = [tokenizer(form, add_special_tokens=False)["input_ids"] for form in ANSWER_TOKENS[word]]
    single = sorted({ids[0] for ids in spelled if len(ids) == 1})
    if not single:
        raise JudgeError(f"this model's tokenizer has no single token for '{word}', so its answer cannot be read")
    return single


def fingerprint_of(folder: Path, template: str) -> str:
    """Cheap for tens of gigabytes: of every file of weights its size, its table of tensors and samples of its bytes."""
    root, digest = Root(folder), hashlib.sha256(template.encode())
    for name in ("config.json", "tokenizer.json", "processor_config.json", "preprocessor_config.json", LORA_CONFIG):
        if (folder / name).is_file():
            digest.update(root.read(folder / name, MAX_JSON))
    for path in sorted(folder.glob("*.safetensors")):
        with root.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.name} {size}".encode())
            digest.update(file.read(min(8 + int.from_bytes(file.read(8), "little"), MAX_HEAD)))
            for sample in range(SAMPLES):
                file.seek(size * sample // SAMPLES)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def _from_hub(config: VlmJudgeConfig, loader: Any, **options: Any) -> Any:
    advice = (
        "name a folder with config.json, tokenizer and weights, or set local_files_only: false for a model of the hub. "
        "Models with code of their own are not run; serve such a model with vLLM and set backend: openai"
    )
    return from_hub(loader, config.model, local_files_only=config.local_files_only, advice=advice, **options)


def _folder(config: VlmJudgeConfig) -> Path:
    if Path(config.model).is_dir():
        return Path(config.model)
    cached_file = import_module("transformers.utils").cached_file
    return Path(cached_file(config.model, "config.json", local_files_only=config.local_files_only)).parent


def _template(folder: Path, tokenizer: Any) -> str:
    """The tokenizer's, or that of the file next to it, which only transformers' processor reads."""
    beside = folder / "chat_template.json"
    if tokenizer.chat_template is None and beside.is_file():
        with understood(beside):
            return read_json_object(beside)["chat_template"]
    if tokenizer.chat_template is None:
        raise JudgeError(f"{folder} has no chat template; take an Instruct model, which brings one")
    return tokenizer.chat_template

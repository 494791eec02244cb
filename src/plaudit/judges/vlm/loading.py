"""A folder of the hub to a model that is known to be a Qwen3-VL, its tokenizer, its chat template and a fingerprint."""

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from plaudit.errors import JudgeError, MissingExtra
from plaudit.judges.vlm.attention import attention_on
from plaudit.judges.vlm.config import VlmConfig
from plaudit.judges.vlm.images import MERGE, PATCH, TIMES
from plaudit.untrusted import read_json_object, understood

# What `vision` and `decoder` take for granted; it is so in every Qwen3-VL there is.
KNOWN: dict[str, dict[str, Any]] = {
    "text_config": {"hidden_act": "silu", "attention_bias": False},
    "vision_config": {
        "hidden_act": "gelu_pytorch_tanh",
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": TIMES,
    },
}
SAMPLES, SAMPLE = 16, 1 << 16  # places of a file that its fingerprint looks at, and bytes at each


@dataclass(frozen=True, eq=False)
class Loaded:
    model: Any  # a Qwen3VLForConditionalGeneration, on its device
    tokenizer: Any
    template: str  # of chats, jinja
    fingerprint: str  # of weights, tokenizer and template


def load_model(config: VlmConfig, device: torch.device, dtype: torch.dtype) -> Loaded:
    transformers = _transformers()
    described = _from_hub(config, transformers.AutoConfig)
    check_known(config.model, described)
    tokenizer = _from_hub(config, transformers.AutoTokenizer)
    folder = _folder(config)
    template = _template(folder, tokenizer)
    model, report = _from_hub(
        config,
        transformers.Qwen3VLForConditionalGeneration,
        dtype=dtype,
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
    return Loaded(model.eval().requires_grad_(False), tokenizer, template, fingerprint_of(folder, template))


def device_on(name: str) -> torch.device:
    try:
        device = torch.device(name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise JudgeError(
            f"the judge's device '{name}' is none that torch knows; set auto, cuda, cuda:1 or cpu"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise JudgeError(
            f"the judge's device is '{name}', and torch sees no CUDA GPU here; set device: cpu, which takes minutes an "
            "episode for an 8B model, or backend: openai for a server elsewhere"
        )
    return device


def check_known(name: str, described: Any) -> None:
    """Whether this is a network that we know how to run."""
    if described.model_type != "qwen3_vl":
        raise JudgeError(
            f"'{name}' is a '{described.model_type}' and no Qwen3-VL, the only kind that is run in this process; "
            "serve it with vLLM and set backend: openai"
        )
    for part, facts in KNOWN.items():
        for fact, known in facts.items():
            found = getattr(getattr(described, part), fact)
            if found != known:
                raise JudgeError(f"'{name}' has {part}.{fact} {found}, where every Qwen3-VL known here has {known}")


def fingerprint_of(folder: Path, template: str) -> str:
    """Cheap for tens of gigabytes: of every file of weights its size, its table of tensors and samples of its bytes."""
    digest = hashlib.sha256(template.encode())
    for name in ("config.json", "tokenizer.json"):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(8 + int.from_bytes(file.read(8), "little")))
            for sample in range(SAMPLES):
                file.seek(size * sample // SAMPLES)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def _from_hub(config: VlmConfig, loader: Any, **options: Any) -> Any:
    try:
        return loader.from_pretrained(
            config.model, local_files_only=not config.allow_download, trust_remote_code=False, **options
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise JudgeError(
            f"transformers cannot load '{config.model}' ({reason}); name a folder with config.json, tokenizer and "
            "weights, or set allow_download: true for a model of the hub; models with code of their own are not run"
        ) from error


def _folder(config: VlmConfig) -> Path:
    if Path(config.model).is_dir():
        return Path(config.model)
    cached_file = import_module("transformers.utils").cached_file
    return Path(cached_file(config.model, "config.json", local_files_only=not config.allow_download)).parent


def _template(folder: Path, tokenizer: Any) -> str:
    """Some models keep it with the tokenizer, some beside it, where only transformers' processor looks."""
    beside = folder / "chat_template.json"
    if tokenizer.chat_template is None and beside.is_file():
        with understood(beside):
            return read_json_object(beside)["chat_template"]
    if tokenizer.chat_template is None:
        raise JudgeError(f"{folder} has no chat template; take an Instruct model, which brings one")
    return tokenizer.chat_template


def _transformers() -> ModuleType:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise MissingExtra("transformers", "vlm") from error

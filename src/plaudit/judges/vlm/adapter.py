"""An adapter: what a vision-language model learned from labels, as a folder that describes itself.

    runs/bottle_vlm/
      adapter.json               base model, prompt, tasks, episodes it learned from, scores, fingerprint
      adapter_model.safetensors  weights, in the names and the layout of peft: other tools load them too
      adapter_config.json        the same for peft and for servers; never read here
      curve.jsonl, tensorboard/  how the training went
      judge.yaml                 rule and calibration, where `plaudit judge calibrate --output` put one

peft's own loader is not used: it takes pickles, and its config may name modules to import. The network follows from
adapter.json alone, and the names and shapes of the weights are checked.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from plaudit.config import load
from plaudit.data.weights import fitting, numbers_at_most, read_safetensors
from plaudit.errors import BadFile, JudgeError, import_extra
from plaudit.files import Root
from plaudit.judges.config import ADAPTER_FILE
from plaudit.judges.vlm.config import AdapterInfo, LoraShape, PromptSettings, VlmJudgeConfig
from plaudit.judges.vlm.loading import LoadedVlm, fingerprint_of, load_description, load_vlm, unknown_part

WEIGHTS = "adapter_model.safetensors"
# Products of a Qwen3-VL, by their full names; the patches' own stay as they are.
LANGUAGE = r"language_model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
VISION = r"visual\.(blocks\.\d+\.attn\.(qkv|proj)|(blocks|merger|deepstack_merger_list)\.([\w.]+\.)?linear_fc[12])"


def add_lora(model: Any, shape: LoraShape) -> Any:
    """Put an adapter that changes nothing yet into a Qwen3-VL, in place; returns it as peft has it."""
    peft = import_extra("peft", "vlm")
    names = f"{LANGUAGE}|{VISION}" if shape.vision else LANGUAGE
    config = peft.LoraConfig(r=shape.rank, lora_alpha=shape.alpha, target_modules=rf"model\.({names})")
    return peft.get_peft_model(model, config)


def load_base(config: VlmJudgeConfig) -> LoadedVlm:
    """The model that an adapter is for."""
    if config.adapter is not None:
        raise JudgeError(f"{config.adapter} is an adapter already; tune the model that it adapts, on all episodes")
    if config.backend != "transformers":
        raise JudgeError("a model behind an endpoint cannot be tuned here; name its folder, and backend: transformers")
    import_extra("peft", "vlm")  # before a large model is loaded
    reason = unknown_part(config.model, load_description(config))
    if reason is not None:
        raise JudgeError(f"{reason}: it can judge, but only a Qwen3-VL is tuned here")
    return load_vlm(config)


def load_adapted(config: VlmJudgeConfig) -> LoadedVlm:
    """The base of an adapter with the adapter in it."""
    folder = config.adapter
    assert folder is not None
    info = load(AdapterInfo, folder / ADAPTER_FILE, root=Root(folder))
    loaded = load_base(config.model_copy(update={"model": info.base}))
    if loaded.fingerprint != info.base_fingerprint:
        raise JudgeError(f"{folder} adapts '{info.base}', which has changed since; restore that model, or tune again")
    path = folder / WEIGHTS
    if not path.exists():
        raise BadFile(folder, f"this adapter has no {WEIGHTS}; weights of another kind are not read")
    weights = read_safetensors(path, "weights that cannot be read ({}); tune or copy the adapter again")
    with numbers_at_most(fitting(tensor.shape for tensor in weights.values()), folder / ADAPTER_FILE):
        peft_model = add_lora(loaded.model, info.lora)
    own = _weights(peft_model)
    for name in sorted(set(weights) ^ set(own)):
        raise BadFile(path, f"tensor {name} is in {'it' if name in weights else 'the model'} alone: another adapter")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape or not tensor.isfinite().all():
            raise BadFile(path, f"{name} is not {list(own[name].shape)} finite numbers: another adapter")
        own[name].copy_(tensor)
    loaded.model.eval().requires_grad_(False)
    fingerprint = fingerprint_with(loaded, info.lora, folder)
    if fingerprint != info.fingerprint:
        raise BadFile(folder, f"its weights are not those that {ADAPTER_FILE} describes; copy the whole folder again")
    other = sorted(name for name in PromptSettings.model_fields if getattr(config, name) != getattr(info.prompt, name))
    warning = f"{folder} learned with another {', '.join(other)}; calibrate and examine it as it is now"
    warnings = (warning,) if other else ()
    return replace(loaded, fingerprint=fingerprint, trained_on=info.data.seen or "", warnings=warnings)


def save_adapter(folder: Path, peft_model: Any) -> None:
    """The weights and peft's config, into a folder that is there."""
    (config,) = peft_model.peft_config.values()
    config.save_pretrained(str(folder))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _weights(peft_model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def fingerprint_with(base: LoadedVlm, shape: LoraShape, folder: Path) -> str:
    """Of a model with the adapter in a folder."""
    parts = (base.fingerprint, shape.model_dump_json(), fingerprint_of(folder, base.template))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _weights(peft_model: Any) -> dict[str, Tensor]:
    """By the names that peft saves them under; the tensors themselves. Without the embeddings, about which peft would
    ask the hub."""
    return import_extra("peft", "vlm").get_peft_model_state_dict(peft_model, save_embedding_layers=False)

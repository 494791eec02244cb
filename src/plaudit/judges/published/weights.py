"""The folders of published reward models: a Qwen3-VL with small heads, under several names.

    source                           files                                  names of the backbone
    upstream                         model-0000k-of-n.safetensors, index    model.language_model.*, model.visual.*
    LeRobot                          model.safetensors                      model.model.language_model.*, ...
    training with LoRA               adapter_model, adapter_config.json,    names of the base, with lora_A and lora_B
                                     custom_heads.safetensors

Wrappers of training (module., _orig_mod., base_model.model.) are removed. Everything that can be counted is counted in
the files: rows of the embedding, layers, bins, heads. A folder without trained heads is refused, because transformers
would fill them with random numbers and say so only in a log.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plaudit.data.weights import read_safetensors
from plaudit.devices import resolve_device
from plaudit.errors import BadFile, JudgeError, import_extra
from plaudit.files import Root, brief, file_name, read_json_object
from plaudit.judges.vlm.loading import fingerprint_of, unknown_part
from plaudit.judges.vlm.qwen3_vl import attention_on

INDEX, ADAPTER, HEADS = "model.safetensors.index.json", "adapter_model.safetensors", "custom_heads.safetensors"
_DAMAGED = "this is no sound safetensors file ({}); copy the folder again"
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module)\.|^base_model\.model\.")
_EMBEDDING = "language_model.embed_tokens.weight"
_LORA = re.compile(r"^(.*)\.lora_([AB])(?:\.default)?\.weight$")
_LAYER = re.compile(r"^model\.(language_model\.layers|visual\.blocks)\.(\d+)\.")


@dataclass(eq=False)
class PublishedModel:
    """A published reward model that is ready to run."""

    model: Any  # a `Qwen3VLForConditionalGeneration` on its device
    tokenizer: Any
    template: str  # of chats, jinja
    described: Mapping[str, Any]  # config.json of the folder, or the description that it wraps
    layout: str  # "upstream", "lerobot", "adapter"
    fingerprint: str
    heads: dict[str, Tensor] = field(default_factory=dict)  # name -> float32 on the device

    def head(self, name: str) -> dict[str, Tensor]:
        """The tensors of one head, by the rest of their names."""
        return {key[len(name) + 1 :]: value for key, value in self.heads.items() if key.startswith(name + ".")}


def load_published(
    folder: Path,
    heads: Sequence[str],
    optional: Sequence[str] = (),
    *,
    base: str = "",
    tokens: Sequence[str] = (),
    device: str = "auto",
    dtype: str = "auto",
    attention: str = "auto",
) -> PublishedModel:
    """A model with heads from its folder.

    heads, optional: names of heads that must be there, and of others that are kept
    base: the folder of the Qwen3-VL that it was made from, where its own lacks tokenizer or description
    tokens: added tokens, in the order of their training
    """
    if not folder.is_dir():
        raise JudgeError(
            f"{folder} is not a folder. Nothing is downloaded here: fetch the model first (hf download REPO "
            "--local-dir FOLDER) and name that folder"
        )
    names = (*heads, *optional)
    if (folder / ADAPTER).is_file():
        layout = "adapter"
        tensors = _merge_adapter(folder, _base_folder(folder, base))
        own = read_safetensors(folder / HEADS, _DAMAGED) if (folder / HEADS).is_file() else {}
        tensors |= {_unwrapped(name): tensor for name, tensor in own.items()}
    else:
        tensors = _read_folder(folder)
        layout = "lerobot" if any(name.startswith("model.model.") for name in tensors) else "upstream"
    backbone, kept = _sort(folder, tensors, names)
    if missing := [name for name in heads if not any(key.startswith(name + ".") for key in kept)]:
        raise BadFile(
            folder,
            f"it has no trained {missing[0]}, so its scores would be random; this is the base model or another one",
        )
    described, config = _description(folder, base, backbone)
    model = _build(folder, config, backbone, device, dtype, attention)
    folders = (folder, Path(base)) if base else (folder,)
    home = next((one for one in folders if (one / "tokenizer.json").is_file()), None)
    if home is None:
        raise BadFile(
            folder, f"it has no tokenizer; name the folder of its base model ({_base_name(folder)}) with base"
        )
    tokenizer = import_extra("transformers", "vlm").AutoTokenizer.from_pretrained(home, local_files_only=True)
    _add_tokens(folder, tokenizer, tokens, len(backbone["model." + _EMBEDDING]))
    template = tokenizer.chat_template
    if template is None:
        raise BadFile(home, "its tokenizer has no chat template; name the folder of the base model with base")
    where = model.model.language_model.embed_tokens.weight.device
    ready = {name: tensor.to(where, torch.float32) for name, tensor in kept.items()}
    for name, tensor in ready.items():
        if not tensor.isfinite().all():
            raise BadFile(folder, f"{brief(name)} holds values that are no numbers; copy the folder again")
    return PublishedModel(model, tokenizer, template, described, layout, fingerprint_of(folder, template), ready)


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """All tensors of all shards, without wrappers."""
    root = Root(folder)
    if (folder / INDEX).is_file():
        table = read_json_object(folder / INDEX, root).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise BadFile(folder / INDEX, "it has no weight_map from tensors to files; copy the folder again")
        files = [root.inside(name) for name in sorted(set(table.values()))]
    else:
        table, files = {}, sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadFile(folder, "it has no .safetensors file; weights of another kind are not read")
    tensors: dict[str, Tensor] = {}
    for path in files:
        if not path.is_file():
            raise BadFile(folder, f"shard {file_name(path.name)} is missing; fetch the folder again")
        for name, tensor in read_safetensors(path, _DAMAGED, root).items():
            if (short := _unwrapped(name)) in tensors:
                raise BadFile(path, f"tensor {brief(short)} occurs twice; the folder mixes two models")
            tensors[short] = tensor
    if lost := sorted(set(map(_unwrapped, table)) - set(tensors)):
        raise BadFile(folder, f"its index names {len(lost)} tensors that no shard has, {brief(lost[0])} first")
    return tensors


def _unwrapped(name: str) -> str:
    while (short := _WRAPPERS.sub("", name)) != name:
        name = short
    return name


def _sort(
    folder: Path, tensors: Mapping[str, Tensor], heads: Iterable[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The backbone in the names of transformers, and the heads in short ones. Others, like old heads, are left out."""
    prefixes = [name.removesuffix(_EMBEDDING) for name in tensors if name.endswith(_EMBEDDING)]
    if len(prefixes) != 1:
        what = "no embedding of tokens" if not prefixes else "two models"
        raise BadFile(folder, f"its weights hold {what} ('...{_EMBEDDING}'); this is no Qwen3-VL reward model")
    wanted = re.compile(rf"(?:^|\.)((?:{'|'.join(map(re.escape, heads))})\..+)$")
    backbone: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        inner = name.removeprefix(prefixes[0])
        if name.startswith(prefixes[0]) and inner.startswith(("language_model.", "visual.")):
            backbone["model." + inner] = tensor
        elif name.endswith("lm_head.weight"):
            backbone["lm_head.weight"] = tensor
        elif match := wanted.search(name):
            kept[match[1]] = tensor
    return backbone, kept


def _description(folder: Path, base: str, backbone: Mapping[str, Tensor]) -> tuple[dict[str, Any], Any]:
    """The folder's own description, and the config of its Qwen3-VL with the counts of the files."""
    transformers = import_extra("transformers", "vlm")
    own = read_json_object(folder / "config.json", Root(folder)) if (folder / "config.json").is_file() else {}
    described = own
    for key in ("vlm_config", "model_config"):  # LeRobot keeps the model's own description inside
        if isinstance(own.get(key), dict):
            described = own[key]
    if "text_config" not in described and base:
        described = {**read_json_object(Path(base) / "config.json"), **described}
    if not isinstance(described.get("text_config"), dict) or not isinstance(described.get("vision_config"), dict):
        raise BadFile(folder, f"it does not describe its Qwen3-VL; name the folder of {_base_name(folder)} with base")
    text, vision = dict(described["text_config"]), dict(described["vision_config"])
    layers: dict[str, set[int]] = {"language_model.layers": set(), "visual.blocks": set()}
    for name in backbone:
        if match := _LAYER.match(name):
            layers[match[1]].add(int(match[2]))
    for part, key, numbers in (
        (text, "num_hidden_layers", layers["language_model.layers"]),
        (vision, "depth", layers["visual.blocks"]),
    ):
        if part.get(key) != len(numbers) or numbers != set(range(len(numbers))):
            raise BadFile(folder, f"config.json says {key} {brief(part.get(key))}, and the weights have {len(numbers)}")
    rows = len(backbone["model." + _EMBEDDING])
    text["vocab_size"] = rows  # the base model has more rows than its tokenizer has tokens: resizing shrank them
    special = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    given = {key: described[key] for key in (*special, "tie_word_embeddings") if key in described}
    try:
        config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **given)
        reason = unknown_part(str(folder), config)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadFile(folder, f"config.json does not describe a Qwen3-VL ({str(error).splitlines()[0]})") from error
    if reason is not None:
        raise JudgeError(reason)
    return {**own, **described}, config


def _build(folder: Path, config: Any, backbone: dict[str, Tensor], device: str, dtype: str, attention: str) -> Any:
    """The Qwen3-VL with these weights; nothing is allocated before names and shapes agree."""
    transformers = import_extra("transformers", "vlm")
    backbone.setdefault("lm_head.weight", backbone["model." + _EMBEDDING])
    try:
        with torch.device("meta"):
            expected = {
                k: v.shape for k, v in transformers.Qwen3VLForConditionalGeneration(config).state_dict().items()
            }
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BadFile(folder, f"config.json does not describe a Qwen3-VL ({str(error).splitlines()[0]})") from error
    for name in sorted(set(expected) ^ set(backbone)):
        raise BadFile(folder, f"tensor {brief(name)} is {'missing' if name in expected else 'unknown'}: another model")
    for name, shape in expected.items():
        if backbone[name].shape != shape:
            raise BadFile(folder, f"{name} is {list(backbone[name].shape)}, and config.json says {list(shape)}")
    where = resolve_device(device)
    usual = torch.bfloat16 if where.type == "cuda" else torch.float32
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
        None,
        config=config,
        state_dict=backbone,
        dtype=usual if dtype == "auto" else getattr(torch, dtype),
        attn_implementation=attention_on(where, attention),  # type: ignore[arg-type]
    )
    try:
        model.to(where)
    except torch.OutOfMemoryError as error:
        raise JudgeError(f"the weights of {folder} do not fit on {where}; free some memory there") from error
    return model.eval().requires_grad_(False)


def _add_tokens(folder: Path, tokenizer: Any, tokens: Sequence[str], rows: int) -> None:
    """Give the tokenizer the tokens of the training, one by one. Their order is an interface: a token in another place
    reads an untrained row."""
    vocabulary = tokenizer.get_vocab()
    for token in tokens:
        if token not in vocabulary:
            tokenizer.add_tokens([token], special_tokens=True)
    ids = [tokenizer.convert_tokens_to_ids(token) for token in tokens]
    if ids and ids != list(range(ids[0], ids[0] + len(ids))):
        raise BadFile(folder, f"its added tokens have the ids {ids}, not {len(ids)} in a row: the order is another one")
    if ids and ids[-1] + 1 != rows:
        raise BadFile(
            folder,
            f"the last added token is {ids[-1]}, and the embedding has {rows:,} rows: this tokenizer is another one",
        )


def _base_name(folder: Path) -> str:
    path = folder / "config.json"
    own = read_json_object(path, Root(folder)) if path.is_file() else {}
    name = own.get("base_model_id") or own.get("model_id")
    return brief(name) if isinstance(name, str) else "its base model"


# LoRA


def _base_folder(folder: Path, base: str) -> Path:
    if base:
        return Path(base)
    name = _adapter_settings(folder).get("base_model_name_or_path")
    if isinstance(name, str) and Path(name).is_dir():
        return Path(name)
    raise BadFile(folder, f"it is an adapter of {brief(name)}, which is not a folder here; name its folder with base")


def _adapter_settings(folder: Path) -> dict[str, Any]:
    return read_json_object(folder / "adapter_config.json", Root(folder))


def _merge_adapter(folder: Path, base: Path) -> dict[str, Tensor]:
    """The weights of the base with the adapter's products added, in float32."""
    settings = _adapter_settings(folder)
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if not all(isinstance(n, int | float) and 0 < n < 1e6 for n in (rank, alpha)):
        raise BadFile(folder / "adapter_config.json", "it has no r and lora_alpha; copy the folder again")
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)  # type: ignore[operator, arg-type]
    tensors = _read_folder(base)
    short = {re.sub(r"^(model\.)+", "", name): name for name in tensors}
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_safetensors(folder / ADAPTER, _DAMAGED).items():
        name = re.sub(r"^(model\.)+", "", _unwrapped(name)).replace("modules_to_save.default.", "")
        if match := _LORA.match(name):
            pairs.setdefault(match[1], {})[match[2]] = tensor
        elif (target := short.get(name)) is not None:
            tensors[target] = tensor  # saved whole, like the embedding with the added tokens
        else:
            tensors[name] = tensor  # a head
    for name, pair in pairs.items():
        target = short.get(f"{name}.weight")
        if target is None or set(pair) != {"A", "B"}:
            raise BadFile(folder / ADAPTER, f"{brief(name)} has no counterpart in {base}: the adapter of another model")
        wide = tensors[target]
        if (pair["B"].shape[0], pair["A"].shape[1]) != wide.shape or pair["A"].shape[0] != pair["B"].shape[1]:
            raise BadFile(folder / ADAPTER, f"{brief(name)} does not fit {list(wide.shape)} of {base}")
        tensors[target] = (wide.float() + scale * pair["B"].float() @ pair["A"].float()).to(wide.dtype)
    return tensors

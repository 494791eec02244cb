"""Our own forward pass of a Qwen3-VL: frames to features, tokens and features to logits, for many episodes at once.

Weights and mathematics are transformers' own. transformers runs attention image by image and patches through a 3-D
convolution; here both are one matrix product for hundreds of frames. Products of the same input are one product. There
is no cache. The end of the last layer and the logits of yes and no are computed only where an answer is read. Sequences
are padded at their ends, which a causal model never sees from before, so attention needs no mask.

Adapters (adapter.py) are two thin products beside a wide one, in scoring as in training (tune.py).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from plaudit.errors import JudgeError, MissingPackage
from plaudit.judges.vlm.images import MERGE, PATCH, patches

MAX_FRAMES = 256  # encoded together: products are large enough, and memory stays small

# queries [B, L, H, D], keys and values [B, L, K, D] with H a multiple of K, causal -> [B, L, H, D]
Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
Attention = Literal["flash_attention_2", "sdpa"]


def attention_on(device: torch.device, wanted: Literal["auto", "flash_attention_2", "sdpa"]) -> Attention:
    """The implementation that `auto` stands for on a device; another one, if it can run there."""
    if wanted == "flash_attention_2":
        if device.type != "cuda":
            raise JudgeError(f"attention: flash_attention_2 runs on a CUDA GPU, and the device is {device}; set auto")
        attend_by(wanted)
    if wanted != "auto":
        return wanted
    return "flash_attention_2" if device.type == "cuda" and find_spec("flash_attn") is not None else "sdpa"


def attend_by(attention: Attention) -> Attend:
    """An implementation by its name; an error if its package is missing."""
    if attention == "sdpa":
        return attend_sdpa
    try:
        flash = import_module("flash_attn").flash_attn_func
    except ImportError as error:
        raise MissingPackage("flash-attn", "flash-attn --no-build-isolation (or set attention: sdpa)") from error
    return lambda q, k, v, causal: flash(q, k, v, causal=causal)


def attend_sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Where there are more keys than queries, the queries are the last ones."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    gqa = q.shape[1] != k.shape[1]
    if causal and q.shape[2] < k.shape[2]:
        from torch.nn.attention.bias import causal_lower_right  # it imports torch's compiler

        last = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=last, enable_gqa=gqa).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa).transpose(1, 2)


# Products, with what an adapter adds


class Lora(NamedTuple):
    """Two thin matrices whose product is added to a wide one."""

    down: Tensor  # [r, in]
    up: Tensor  # [out, r]
    scale: float


class Linear(NamedTuple):
    """Weights of one product, or of a normalization."""

    weight: Tensor
    bias: Tensor | None
    lora: Lora | None = None


class Joined(NamedTuple):
    """Weights of several products of one input, one below the other; without biases."""

    weight: Tensor
    widths: tuple[int, ...]  # of each product
    loras: tuple[Lora | None, ...]


def product(x: Tensor, linear: Linear) -> Tensor:
    """[..., out] of [..., in]"""
    return _adapted(F.linear(x, linear.weight, linear.bias), x, linear.lora)


def products(x: Tensor, joined: Joined) -> list[Tensor]:
    """[..., width] of [..., in], each of them; one large product is faster than a large and two small ones."""
    parts = F.linear(x, joined.weight).split(joined.widths, -1)
    return [_adapted(part, x, lora) for part, lora in zip(parts, joined.loras, strict=True)]


def _adapted(y: Tensor, x: Tensor, lora: Lora | None) -> Tensor:
    """A product with the adapter's thin ones, in the precision of the wide one."""
    if lora is None:
        return y
    thin = F.linear(x, lora.down.to(x.dtype)) * lora.scale
    return torch.addmm(y.flatten(0, -2), thin.flatten(0, -2), lora.up.to(x.dtype).T).view_as(y)


def _linear(module: Any) -> Linear:
    """Of a layer of torch, or of one that peft has put an adapter around."""
    parts = dict(module.named_children())
    if "lora_A" not in parts:
        return Linear(module.weight, module.bias)
    (name,) = module.scaling
    lora = Lora(parts["lora_A"][name].weight, parts["lora_B"][name].weight, module.scaling[name])
    return Linear(module.weight, module.bias, lora)


def _join(*modules: Any) -> Joined:
    """Of several layers, whose own weights become views of the joined one, so that memory does not grow."""
    linears = [_linear(module) for module in modules]
    joined = torch.cat([linear.weight.detach() for linear in linears])
    widths = tuple(len(linear.weight) for linear in linears)
    for linear, part in zip(linears, joined.split(widths), strict=True):
        linear.weight.data = part
    return Joined(joined, widths, tuple(linear.lora for linear in linears))


def _runner(run: Callable[..., Tensor], recompute: bool) -> Callable[..., Tensor]:
    """The same, which with `recompute` keeps only its input for the gradients and runs again when these are made."""
    return partial(checkpoint, run, use_reentrant=False) if recompute else run


# Frames to features


class Block(NamedTuple):
    """Weights of one block."""

    norm1: Linear
    qkv: Linear
    proj: Linear
    norm2: Linear
    up: Linear
    down: Linear


class Features(NamedTuple):
    """Of n tokens."""

    first: Tensor  # [n, D] what stands in for their embeddings
    deep: list[Tensor]  # [n, D] each, what is added after the first decoder layers


class Vision:
    """The vision encoder."""

    recompute = False  # what a block made, when its gradients are wanted

    def __init__(self, visual: Any, attend: Attend, compiled: bool):
        """visual: a `Qwen3VLVisionModel`"""
        self._visual, self._attend = visual, attend
        self._heads: int = visual.config.num_heads
        self._blocks = [_block(block) for block in visual.blocks]
        self._deep = dict(zip(visual.config.deepstack_visual_indexes, visual.deepstack_merger_list, strict=True))
        self._run = torch.compile(run_block) if compiled else run_block
        self._where = lru_cache(maxsize=16)(self._embed)

    def __call__(self, frames: Tensor, later: Tensor | None = None) -> Features:
        """Of uint8 [N, h, w, 3], edges in whole tokens. later: see `patches`"""
        parts = math.ceil(len(frames) / MAX_FRAMES)
        seconds = [None] * parts if later is None else later.tensor_split(parts)
        encoded = [self._encode(*pair) for pair in zip(frames.tensor_split(parts), seconds, strict=True)]
        deep = [torch.cat(parts) for parts in zip(*(features.deep for features in encoded), strict=True)]
        return Features(torch.cat([features.first for features in encoded]), deep)

    def _encode(self, frames: Tensor, later: Tensor | None) -> Features:
        kernel = self._visual.patch_embed.proj
        place, cos, sin = self._where(frames.shape[1] // PATCH, frames.shape[2] // PATCH)
        x = F.linear(patches(frames, kernel.weight.dtype, later), kernel.weight.flatten(1), kernel.bias) + place
        deep, run = [], _runner(self._run, self.recompute)
        for number, block in enumerate(self._blocks):
            x = run(x, cos, sin, block, self._heads, self._attend)
            if number in self._deep:
                deep.append(self._deep[number](x.flatten(0, 1)))
        return Features(self._visual.merger(x.flatten(0, 1)), deep)

    def _embed(self, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where each patch is: the learned grid stretched to the image [P, D], and the angles of rotation [P, 1, d]."""
        grid = self._visual.pos_embed.weight
        side = int(len(grid) ** 0.5)
        learned = grid.T.reshape(1, -1, side, side).float()
        place = F.interpolate(learned, (rows, columns), mode="bilinear", align_corners=True)[0].flatten(1).T
        frequencies = self._visual.rotary_pos_emb.inv_freq.to(grid.device, torch.float32)
        y, x = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (rows, columns)), indexing="ij"))
        angles = torch.cat([axis.to(grid.device)[:, None] * frequencies for axis in (y, x)], dim=1).repeat(1, 2)
        order = torch.arange(rows * columns, device=grid.device).view(rows // MERGE, MERGE, columns // MERGE, MERGE)
        order = order.transpose(1, 2).flatten()  # the patches of a token come together
        return place[order].to(grid.dtype), angles.cos()[order, None], angles.sin()[order, None]


def run_block(x: Tensor, cos: Tensor, sin: Tensor, block: Block, heads: int, attend: Attend) -> Tensor:
    """[N, P, D]; every patch of a frame sees all others of it."""
    normed = F.layer_norm(x, x.shape[-1:], block.norm1.weight, block.norm1.bias, eps=1e-6)
    q, k, v = product(normed, block.qkv).unflatten(2, (3, heads, -1)).unbind(2)
    x = x + product(attend(rotate(q, cos, sin), rotate(k, cos, sin), v, False).flatten(2), block.proj)
    normed = F.layer_norm(x, x.shape[-1:], block.norm2.weight, block.norm2.bias, eps=1e-6)
    return x + product(F.gelu(product(normed, block.up), approximate="tanh"), block.down)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, in the precision of the angles."""
    one, other = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-other, one], dim=-1) * sin).to(x.dtype)


def _block(block: Any) -> Block:
    modules = (block.norm1, block.attn.qkv, block.attn.proj, block.norm2, block.mlp.linear_fc1, block.mlp.linear_fc2)
    return Block(*map(_linear, modules))


# Tokens and features to logits


class Layer(NamedTuple):
    """Weights of one layer; each product is without a bias."""

    norm: Tensor
    qkv: Joined
    q_norm: Tensor
    k_norm: Tensor
    o: Linear
    mlp_norm: Tensor
    gate_up: Joined
    down: Linear


class Decoder:
    """The language model."""

    recompute = False  # as of `Vision`

    def __init__(self, model: Any, yes: Sequence[int], no: Sequence[int], attend: Attend, compiled: bool):
        """model: a `Qwen3VLForConditionalGeneration`; yes, no: the tokens that spell them"""
        self._model, self._attend = model.model.language_model, attend
        config = model.config.text_config
        self._eps: float = config.rms_norm_eps
        self._layers = [_layer(layer) for layer in self._model.layers]
        self._words = model.lm_head.weight[[*yes, *no]].float()
        self._yes = len(yes)
        self._enter: Any = torch.compile(enter_layer) if compiled else enter_layer
        self._leave: Any = torch.compile(leave_layer) if compiled else leave_layer

    def read(
        self,
        ids: Tensor,
        positions: Tensor,
        places: Tensor,
        features: Features,
        wanted: Tensor,
        attend: Attend | None = None,
    ) -> Tensor:
        """[A, D] what the model makes of some tokens, after the last normalization, which heads are made for.

        ids: [B, L]; positions: [3, B, L]; places: [n] which of the B x L tokens each feature stands for
        wanted: [A] of the B x L tokens; none stands for a feature
        attend: in place of causal attention
        """
        x = self._model.embed_tokens(ids)
        x.flatten(0, 1)[places] = features.first
        cos, sin = (angles.unsqueeze(2) for angles in self._model.rotary_emb(x, positions))
        run = _runner(self._layer, self.recompute)
        for number, layer in enumerate(self._layers[:-1]):
            x = run(x, cos, sin, layer, attend or self._attend)
            if number < len(features.deep):
                x.flatten(0, 1)[places] += features.deep[number]
        x = run(x, cos, sin, self._layers[-1], attend or self._attend, wanted)
        return F.rms_norm(x, x.shape[-1:], self._model.norm.weight, self._eps)

    def _layer(
        self, x: Tensor, cos: Tensor, sin: Tensor, layer: "Layer", attend: Attend, wanted: Tensor | None = None
    ) -> Tensor:
        """[B, L, D], or [A, D] of the wanted tokens; every token sees those before it. Attention is not compiled: it
        differs from call to call."""
        q, k, v = self._enter(x, cos, sin, layer, self._eps)
        seen = attend(q, k, v, True)
        if wanted is None:
            return self._leave(x, seen, layer, self._eps)
        return leave_layer(x.flatten(0, 1)[wanted], seen.flatten(0, 1)[wanted], layer, self._eps)

    def yes_minus_no(self, last: Tensor) -> Tensor:
        """[A] log P(yes) - log P(no) of the word after each token, from the last hidden states [A, D]; what all words
        sum to cancels out."""
        logits = last.float() @ self._words.T
        return logits[:, : self._yes].logsumexp(1) - logits[:, self._yes :].logsumexp(1)


def enter_layer(x: Tensor, cos: Tensor, sin: Tensor, layer: Layer, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, L, heads, d] of tokens [B, L, D]."""
    normed = F.rms_norm(x, x.shape[-1:], layer.norm, eps)
    size = layer.q_norm.shape
    q, k, v = (part.unflatten(2, (-1, *size)) for part in products(normed, layer.qkv))
    q, k = F.rms_norm(q, size, layer.q_norm, eps), F.rms_norm(k, size, layer.k_norm, eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def leave_layer(x: Tensor, seen: Tensor, layer: Layer, eps: float) -> Tensor:
    """[..., D] with what attention has seen, [..., heads, d]."""
    x = x + product(seen.flatten(-2), layer.o)
    normed = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, eps)
    gate, up = products(normed, layer.gate_up)
    return x + product(F.silu(gate) * up, layer.down)


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, gate_up = (
        _join(attention.q_proj, attention.k_proj, attention.v_proj),
        _join(mlp.gate_proj, mlp.up_proj),
    )
    norm, mlp_norm = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    norms = attention.q_norm.weight, attention.k_norm.weight
    return Layer(norm, qkv, *norms, _linear(attention.o_proj), mlp_norm, gate_up, _linear(mlp.down_proj))

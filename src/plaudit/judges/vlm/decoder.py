"""The half of a Qwen3-VL that answers: tokens and features to logits, in one pass over all episodes of a batch.

The weights are transformers' own, the mathematics too; left out is what scoring does not need: no cache, no mask (see
`attention`), no words but yes and no, and those only where an answer is read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.judges.vlm.attention import Attend
from plaudit.judges.vlm.vision import Features, turned


class Layer(NamedTuple):
    """Weights of one layer; each product is without a bias."""

    norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Decoder:
    def __init__(self, model: Any, yes: Sequence[int], no: Sequence[int], attend: Attend, compiled: bool):
        """model: a `Qwen3VLForConditionalGeneration`; yes, no: the tokens that spell them"""
        self._model, self._attend = model.model.language_model, attend
        config = model.config.text_config
        self._eps: float = config.rms_norm_eps
        self._layers = [_layer(layer) for layer in self._model.layers]
        self._words = model.lm_head.weight[[*yes, *no]].float()
        self._yes = len(yes)
        self._run = torch.compile(run_layer) if compiled else run_layer

    def read(self, ids: Tensor, positions: Tensor, places: Tensor, features: Features) -> Tensor:
        """[B, L, D] what the last layer makes of each token.

        ids: [B, L]; positions: [3, B, L]; places: [n] which of the B x L tokens each feature stands for
        """
        x = self._model.embed_tokens(ids)
        x.flatten(0, 1)[places] = features.first
        cos, sin = (angles.unsqueeze(2) for angles in self._model.rotary_emb(x, positions))
        for number, layer in enumerate(self._layers):
            x = self._run(x, cos, sin, layer, self._eps, self._attend)
            if number < len(features.deep):
                x.flatten(0, 1)[places] += features.deep[number]
        return x

    def logits(self, x: Tensor, answers: Tensor) -> Tensor:
        """[A] log P(yes) - log P(no) of the word after each of these tokens; what all words sum to cancels out."""
        return self.compared(F.rms_norm(x.flatten(0, 1)[answers], x.shape[-1:], self._model.norm.weight, self._eps))

    def compared(self, last: Tensor) -> Tensor:
        """[A] the same, from the last hidden states [A, D]."""
        said = last.float() @ self._words.T
        return said[:, : self._yes].logsumexp(1) - said[:, self._yes :].logsumexp(1)


def run_layer(x: Tensor, cos: Tensor, sin: Tensor, layer: Layer, eps: float, attend: Attend) -> Tensor:
    """[B, L, D]; every token sees those before it."""
    normed = F.rms_norm(x, x.shape[-1:], layer.norm, eps)
    size = layer.q_norm.shape
    q, k, v = (F.linear(normed, weight).unflatten(2, (-1, *size)) for weight in (layer.q, layer.k, layer.v))
    q, k = F.rms_norm(q, size, layer.q_norm, eps), F.rms_norm(k, size, layer.k_norm, eps)
    x = x + F.linear(attend(turned(q, cos, sin), turned(k, cos, sin), v, True).flatten(2), layer.o)
    normed = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, eps)
    return x + F.linear(F.silu(F.linear(normed, layer.gate)) * F.linear(normed, layer.up), layer.down)


def _layer(layer: Any) -> Layer:
    mixing, mlp = layer.self_attn, layer.mlp
    modules = (
        layer.input_layernorm, mixing.q_proj, mixing.k_proj, mixing.v_proj, mixing.q_norm, mixing.k_norm, mixing.o_proj,
        layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj, mlp.down_proj,
    )  # fmt: skip
    return Layer(*(module.weight for module in modules))

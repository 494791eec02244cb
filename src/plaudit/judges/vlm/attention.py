"""Attention over whole sequences, without a mask and without a cache: all that scoring needs.

Sequences of a batch are filled up at their ends. A causal model never looks ahead, so what was filled in is seen by no
token that counts, and the fast kernels can be used, none of which takes a mask.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.errors import MissingPackage

# queries [B, L, H, D], keys and values [B, L, K, D] with H a multiple of K, causal -> [B, L, H, D]
Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
Attention = Literal["flash_attention_2", "sdpa"]


def attention_on(device: torch.device, wanted: Literal["auto", "flash_attention_2", "sdpa"]) -> Attention:
    if wanted != "auto":
        return wanted
    return "flash_attention_2" if device.type == "cuda" and find_spec("flash_attn") is not None else "sdpa"


def attend_by(attention: Attention) -> Attend:
    if attention == "sdpa":
        return attend_sdpa
    try:
        flash = import_module("flash_attn").flash_attn_func
    except ImportError as error:
        raise MissingPackage("flash-attn", "flash-attn --no-build-isolation (or set attention: sdpa)") from error
    return lambda q, k, v, causal: flash(q, k, v, causal=causal)


def attend_sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]).transpose(
        1, 2
    )

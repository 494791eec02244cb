"""Where networks run, and with what precision."""

import torch
from torch import nn


def device_of(name: str) -> torch.device:
    return torch.device(name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu"))


def precision(device: torch.device) -> torch.autocast:
    """Half the bytes and many times the speed on a GPU; as it is on a processor."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def placed(module: nn.Module, device: torch.device) -> nn.Module:
    """On a device, its convolutions in the order of memory that images come in."""
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]

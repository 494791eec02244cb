"""Where networks run, and with what precision."""

import torch
from torch import nn

from plaudit.errors import JudgeError


def device_of(name: str) -> torch.device:
    """By its name; "auto" is a GPU where there is one."""
    try:
        device = torch.device(name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise JudgeError(f"'{name}' is no device; write cpu, cuda, cuda:1 or auto") from None
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise JudgeError(f"nothing can be trained or judged on the device '{name}'; write cpu, cuda, cuda:1 or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise JudgeError(f"there is no device '{name}' here; this machine has {torch.cuda.device_count()} GPUs")
    return device


def precision(device: torch.device) -> torch.autocast:
    """Half the bytes and many times the speed on a GPU; as it is on a processor."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def placed(module: nn.Module, device: torch.device) -> nn.Module:
    """On a device, its convolutions in the order of memory that images come in."""
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]

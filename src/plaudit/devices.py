"""Where networks run, and in which precision."""

import torch
from torch import nn

from plaudit.errors import DeviceError


def resolve_device(name: str) -> torch.device:
    """A device by its name; "auto" is a GPU where there is one."""
    try:
        device = torch.device(name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise DeviceError(f"'{name}' is no device; write cpu, cuda, cuda:1 or auto") from None
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise DeviceError(f"no network is trained or run on the device '{name}'; write cpu, cuda, cuda:1 or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise DeviceError(
            f"there is no device '{name}' here; this machine has {count} GPU{'' if count == 1 else 's'} that torch can "
            "use; write auto, or cpu"
        )
    return device


def autocast_bf16(device: torch.device) -> torch.autocast:
    """Half the bytes and many times the speed on a GPU; nothing on a processor."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def to_channels_last(module: nn.Module, device: torch.device) -> nn.Module:
    """Moved to a device, its convolutions in the memory order that images come in."""
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]

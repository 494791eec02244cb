"""The device, the precision and the optimizers of networks."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import unwrap

import torch
from torch import nn

from plaudit.errors import DeviceError, format_count


def resolve_device(name: str) -> torch.device:
    """Return a device by its name; "auto" is a GPU if there is one."""
    try:
        device = torch.device(name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise DeviceError(f"'{name}' is not a device; write cpu, cuda, cuda:1 or auto") from None
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise DeviceError(f"no network is trained or run on the device '{name}'; write cpu, cuda, cuda:1 or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise DeviceError(
            f"there is no device '{name}' here; this machine has {format_count(count, 'GPU')} that torch can "
            "use; write auto, or cpu"
        )
    return device


def autocast_bf16(device: torch.device) -> torch.autocast:
    """Compute in bfloat16 on a GPU; does nothing on the CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@contextmanager
def tf32(*, enabled: bool) -> Iterator[None]:
    """Let a GPU multiply matrices of 32-bit numbers in TF32."""
    before = torch.get_float32_matmul_precision()
    if enabled:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def allows_tf32() -> bool:
    """Whether a GPU may multiply matrices of 32-bit numbers in TF32, see `tf32`."""
    return torch.get_float32_matmul_precision() != "highest"


def to_channels_last(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a network to a device, with its convolutions in channels-last memory order."""
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` that does not import torch's compiler; do not call it inside `torch.compile`.

    torch marks the methods of optimizers for its compiler, and imports the whole compiler for it: 820 modules, 1.7 s
    and 70 MB in every process that trains. These are the same methods without that mark.
    """

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(Adam, torch.optim.AdamW):
    """`torch.optim.AdamW`, in the same way."""


def gpu_names() -> list[str]:
    """Each GPU that torch can use, with its memory."""
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{card.name}, {card.total_memory / 2**30:.0f} GiB" for card in cards]

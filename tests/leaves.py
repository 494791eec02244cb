"""The arrays of a batch by flat names."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from plaudit.types import Batch


def leaves(batch: Batch[Any]) -> dict[str, Any]:
    """Every array by its field's name, `images.front` for those of cameras."""
    flat: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if isinstance(value, Mapping):
            flat |= {f"{item.name}.{camera}": array for camera, array in value.items()}
        else:
            flat[item.name] = value
    return flat

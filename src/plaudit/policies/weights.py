"""Weights of a policy as a safetensors file with the version in its header. No torch, and no code in the file."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from plaudit.data.disk import write_atomic
from plaudit.errors import BadFile
from plaudit.files import open_safetensors
from plaudit.types import PolicyWeights


def write_weights(path: str | Path, weights: PolicyWeights) -> None:
    """Write the file at once; it is on disk when this returns."""
    write_atomic(Path(path), save(dict(weights.tensors), metadata={"version": str(weights.version)}))


def read_weights(path: str | Path) -> PolicyWeights:
    """Read the file that `write_weights` wrote."""
    try:
        with open_safetensors(Path(path)) as name, safe_open(name, framework="numpy") as file:
            version = int((file.metadata() or {}).get("version", 0))
            return PolicyWeights(version, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
    except BadFile:
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file of weights") from None
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, MemoryError, OSError) as error:
        raise BadFile(path, f"this is not a file of weights: {str(error)[:200]}") from error

"""Features of the frames of stored episodes, by a frozen image encoder, kept in files.

    runs/NAME/features/FINGERPRINT/STORE-EPISODE-CHECKSUM.features

The fingerprint is the encoder's, so features of another encoder are never read. The files are a cache: one that is
missing or damaged is computed again. A resumed run reads the very numbers that it has learned from.
"""

import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from plaudit.data.segments import camera_column
from plaudit.data.store import Store
from plaudit.files import Root
from plaudit.types import AnyArray, FloatArray

MAX_FILE = 1 << 31  # bytes of the features of an episode


Encode = Callable[[Mapping[str, AnyArray]], Mapping[str, FloatArray]]  # frames [N, H, W, 3] of each camera -> features


class FeatureCache:
    """Encodes each episode once."""

    def __init__(
        self, encode: Encode, shapes: Mapping[str, tuple[int, ...]], fingerprint: str, folder: Path | None = None
    ):
        """
        shapes: camera -> shape of the features of one frame
        fingerprint: of the encoder
        folder: for the files; None: nothing is kept
        """
        self.encode, self.shapes = encode, dict(shapes)
        self._folder = None if folder is None else folder / fingerprint

    def features(self, store: Store, episode_id: int) -> Mapping[str, FloatArray]:
        """Features [T+1, ...] of the frames of an episode, of each camera."""
        path = self._path(store, episode_id)
        shapes = {camera: (store.entry(episode_id).rows, *shape) for camera, shape in self.shapes.items()}
        if path is not None:
            with suppress(OSError, ValueError, KeyError, SafetensorError):
                data = Root(path.parent).read(path, MAX_FILE)
                saved = load(data[4:]) if zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4] else {}
                if {camera: saved[camera].shape for camera in shapes} == shapes:
                    return saved
        store.verify(episode_id, [camera_column(camera) for camera in self.shapes])
        features = self.encode(store.episode(episode_id).frames)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            part, data = path.with_suffix(".part"), save(dict(features))
            part.write_bytes(zlib.crc32(data).to_bytes(4, "little") + data)
            part.replace(path)
        return features

    def forget(self, store: Store, episode_id: int) -> None:
        """Remove the file of an episode that was evicted."""
        if self._folder is not None:
            for path in self._folder.glob(f"{store.settings.id}-{episode_id}-*"):
                path.unlink(missing_ok=True)

    def _path(self, store: Store, episode_id: int) -> Path | None:
        """Named by the episode's line in the journal, which has the checksums of its frames."""
        line = zlib.crc32(store.entry(episode_id).text.encode())
        return self._folder and self._folder / f"{store.settings.id}-{episode_id}-{line:08x}.features"

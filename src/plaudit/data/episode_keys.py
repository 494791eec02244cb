"""Keys by which an episode is recognized again: in its store, in a copy of it, and in an import of the same recording.

    keys = episode_keys(store, ids)                # id -> a few keys
    seen = pack_keys(chain.from_iterable(keys.values()))       # one short text, for the description of a model
    [i for i in ids if keys[i] & unpack_keys(seen)]            # those that were seen before

The checksum of each camera's frames is a key, whatever the camera is called. The states are a key, so that a copy with
other images (resized, or compressed by a video) is recognized too. The whole recording with its place in its store is a
key, for episodes in which nothing changes from frame to frame. Frames and states that do not change are no keys: a dead
camera shows the same in every episode. Nor are states that episodes with different images share.
"""

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from plaudit.data.catalog import source_checksums
from plaudit.data.segments import STEPS, camera_column
from plaudit.data.store import Store
from plaudit.types import AnyArray

SIZE = 6  # bytes of a key: of a million pairs of episodes that differ, one in 10^8 has one in common by chance

Keys = frozenset[bytes]


def episode_keys(store: Store, ids: Sequence[int]) -> dict[int, Keys]:
    """The keys of each of these episodes."""
    images: dict[int, Keys] = {}
    states: dict[int, bytes] = {}
    places: dict[int, bytes] = {}
    shown: defaultdict[bytes, set[Keys]] = defaultdict(set)  # state -> the different images that go with it
    for i in ids:
        episode, line = store.episode(i), store.entry(i).line
        checksums = {STEPS: line["crc"][STEPS], **source_checksums(line)}
        images[i] = frozenset(
            _key("images", len(frames), checksums[camera_column(camera)])
            for camera, frames in episode.frames.items()
            if _changes(frames)
        )
        # A copy of a store continues with the same id and the same numbers, so the checksums are part of the key.
        places[i] = _key(store.settings.id, i, sorted(checksums.items()))
        # The state before each action: formats without a last observation repeat the one before it.
        state = np.ascontiguousarray(episode.state[:-1], "<f4")
        if state.size and _changes(state):
            states[i] = _key("state", state.shape, hashlib.sha256(state.tobytes()).hexdigest())
            shown[states[i]].add(images[i])
    own_states = {i: {state} for i, state in states.items() if len(shown[state]) == 1}
    return {i: images[i] | {places[i]} | own_states.get(i, set()) for i in ids}


def pack_keys(keys: Iterable[bytes]) -> str:
    """Keys as text, 8 letters each."""
    return base64.b64encode(b"".join(sorted(set(keys)))).decode()


def unpack_keys(text: str) -> Keys:
    """Keys from a text of `pack_keys`; ValueError for any other text."""
    data = base64.b64decode(text.encode(), validate=True)
    if len(data) % SIZE:
        raise ValueError(f"{len(data)} bytes are not a whole number of keys")
    return frozenset(data[start : start + SIZE] for start in range(0, len(data), SIZE))


def _changes(rows: AnyArray) -> bool:
    return any((row != rows[0]).any() for row in rows[::-1])


def _key(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:SIZE]

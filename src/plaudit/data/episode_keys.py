"""Keys by which an episode is recognized again: in its store, in a copy of it, and in an import of the same recording.

    keys = episode_keys(store, ids)                # id -> a few keys
    seen = pack_keys(chain.from_iterable(keys.values()))       # one short text, for the description of a model
    [i for i in ids if keys[i] & unpack_keys(seen)]            # those that are known

Each camera is a key by the checksum of its frames, whatever the camera is called; the states are one, so that a copy
with other images (resized, or compressed by a video) is recognized too; and the whole recording with its place in its
store is one, for episodes in which nothing changes from frame to frame. Such frames and states are no keys of their
own, since a dead camera shows the same in every episode; nor are states that several episodes with different images
share.
"""

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from plaudit.data.segments import camera_column
from plaudit.data.store import Store
from plaudit.types import AnyArray

SIZE = 6  # bytes of a key: of a million pairs of episodes that differ, one in 10^8 has one in common by chance

Keys = frozenset[bytes]


def episode_keys(store: Store, ids: Sequence[int]) -> dict[int, Keys]:
    """The keys of each of these episodes."""
    images = {i: _image_keys(store, i) for i in ids}
    states = {i: _state_key(store, i) for i in ids}
    shows: defaultdict[bytes | None, set[Keys]] = defaultdict(set)  # state -> the different images that go with it
    for i, key in states.items():
        shows[key].add(images[i])
    found: dict[int, Keys] = {}
    for i in ids:
        state = states[i]
        own = {_place_key(store, i)} | ({state} if state is not None and len(shows[state]) == 1 else set())
        found[i] = images[i] | own
    return found


def pack_keys(keys: Iterable[bytes]) -> str:
    """As text, 8 letters a key."""
    return base64.b64encode(b"".join(sorted(set(keys)))).decode()


def unpack_keys(text: str) -> Keys:
    """A ValueError where it is no text of `pack_keys`."""
    data = base64.b64decode(text.encode(), validate=True)
    if len(data) % SIZE:
        raise ValueError(f"{len(data)} bytes are no whole number of keys")
    return frozenset(data[start : start + SIZE] for start in range(0, len(data), SIZE))


def _image_keys(store: Store, episode_id: int) -> Keys:
    checksums = store.entry(episode_id).line["crc"]
    frames = store.episode(episode_id).frames
    return frozenset(
        _key("images", len(images), checksums[camera_column(camera)])
        for camera, images in frames.items()
        if _changes(images)
    )


def _state_key(store: Store, episode_id: int) -> bytes | None:
    """Of the state before each action: formats that record no last observation repeat the one before it."""
    state = np.ascontiguousarray(store.episode(episode_id).state[:-1], "<f4")
    if not state.size or not _changes(state):
        return None
    return _key("state", state.shape, hashlib.sha256(state.tobytes()).hexdigest())


def _place_key(store: Store, episode_id: int) -> bytes:
    """A copy of a store goes on with the same id and the same numbers, so the checksums belong to it."""
    return _key(store.settings.id, episode_id, sorted(store.entry(episode_id).line["crc"].items()))


def _changes(rows: AnyArray) -> bool:
    return any((row != rows[0]).any() for row in rows[::-1])


def _key(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:SIZE]

"""Many prompts that begin alike, in one pass of a Qwen3-VL.

A dense curve asks a model about every prefix of an episode. Most of these prompts share their beginning, so they form a
tree: a node is a piece of text with its images, and every prompt is a path.

    tree = PromptTree(grid_of, image_ids, cut_after, slots)
    tree.add(Query(ids, images))            # one prompt, which ends where its answer is read
    packed = tree.pack()                    # each node once, with positions and what it sees

All nodes go through the products of a layer together. Attention runs for the nodes of one length and one depth at a
time: the tokens of a node see its own earlier ones and its ancestors, which is what they see in a prompt of their own.
So the numbers are those of one call per prompt. With 8 frames each, the 50 prompts about a 50-frame episode hold 372
images, and their tree 218, of which 50 are encoded.

Slots are tokens that no other token sees, and that see each other in both directions (RynnValue). They are computed
only where they are read.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.judges.vlm.chat_template import ChatSegment, IntArray, expand_images
from plaudit.judges.vlm.images import Size
from plaudit.judges.vlm.qwen3_vl import Attend

MAX_KEYS = 1 << 18  # keys that are gathered together, so that memory stays small


@dataclass(frozen=True, eq=False)
class Query:
    """One prompt, which ends at the tokens whose hidden states are read."""

    ids: IntArray  # [l] tokens, one for each image
    images: tuple[Hashable, ...]  # one for each image token, in order; equal ones are the same image
    reads: int = 1  # how many of its last tokens are read


@dataclass(eq=False)
class _Node:
    parent: int
    ids: IntArray  # as in Query, without slots
    images: tuple[Hashable, ...]
    slot: IntArray  # its slot tokens at the end, which are read
    skipped: int  # slot tokens before, for which positions are left
    is_read: bool = False


@dataclass(frozen=True, eq=False)
class AttentionGroup:
    """Nodes whose attention runs together."""

    queries: Tensor  # [n, L] tokens
    keys: Tensor  # [n, K] tokens that they see
    causal: bool  # the queries are the last of the keys, and see the earlier ones only


@dataclass(frozen=True, eq=False)
class PackedTree:
    """N tokens of all nodes."""

    ids: IntArray  # [N]
    positions: IntArray  # [3, N]
    places: IntArray  # [n] the tokens that stand for images
    images: Sequence[Hashable]  # of each image in the tree, which may occur several times
    reads: list[IntArray]  # of each query, the tokens that are read
    groups: list[tuple[IntArray, IntArray, bool]]

    def attention(self, attend: Attend, device: torch.device) -> Attend:
        """The attention of this tree, to be used in place of a causal one."""
        groups = [
            AttentionGroup(*(torch.from_numpy(part).to(device) for part in pair), causal)
            for queries, keys, causal in self.groups
            for pair in zip(*(_split(index, keys.shape) for index in (queries, keys)), strict=True)
        ]

        def run(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
            out = torch.empty_like(q)
            for group in groups:
                out[0, group.queries] = attend(q[0, group.queries], k[0, group.keys], v[0, group.keys], group.causal)
            return out

        return run


def _split(index: IntArray, keys: tuple[int, ...]) -> list[IntArray]:
    rows, length = keys
    return np.array_split(index, -(-rows * length // MAX_KEYS))[:rows]


@dataclass(eq=False)
class PromptTree:
    """Prompts, added one by one."""

    grid_of: Callable[[Any], Size]  # rows and columns of tokens of an image
    image_ids: frozenset[int]
    cut_after: int  # the token that ends a piece, or the last of several in a row
    slots: frozenset[int] = frozenset()  # tokens of slots
    _nodes: list[_Node] = field(default_factory=list)
    _index: dict[tuple[int, bytes, tuple[Hashable, ...]], int] = field(default_factory=dict)
    _images_in: dict[bytes, int] = field(default_factory=dict)  # a piece -> how many images it has
    _reads: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0  # of all nodes

    def add(self, query: Query) -> None:
        """Add a prompt."""
        ends = np.flatnonzero((query.ids == self.cut_after) & (np.append(query.ids[1:], -1) != self.cut_after)) + 1
        node, images = -1, iter(query.images)
        for piece in np.split(query.ids, ends[ends < len(query.ids)]):
            text = piece.tobytes()
            if text not in self._images_in:
                self._images_in[text] = int(np.isin(piece, list(self.image_ids)).sum())
            own = tuple(islice(images, self._images_in[text]))
            key = (node, text, own)
            if key not in self._index:
                self._index[key] = len(self._nodes)
                self._nodes.append(self._node(node, piece, own))
                self.tokens += len(piece) + sum(rows * columns - 1 for rows, columns in map(self.grid_of, own))
            node = self._index[key]
        self._nodes[node].is_read = True
        self._reads.append((node, query.reads))

    def _node(self, parent: int, piece: IntArray, images: tuple[Hashable, ...]) -> _Node:
        is_slot = np.isin(piece, list(self.slots)) if self.slots else np.zeros(1, bool)
        if not is_slot.any():
            return _Node(parent, piece, images, piece[:0], 0)
        first = int(is_slot.argmax())
        assert is_slot[first:].all()  # slots end a piece, which `cut_after` is chosen for
        others = np.flatnonzero(piece[first:] != piece[-1])
        last = first + (int(others[-1]) + 1 if len(others) else 0)
        return _Node(parent, piece[:first], images, piece[last:], last - first)

    def _expand(self, ids: bytes, grids: tuple[Size, ...]) -> ChatSegment:
        return expand_images(np.frombuffer(ids, np.int64), self.image_ids, grids)

    def pack(self) -> PackedTree:
        """All nodes, with what each of their tokens sees."""
        ids: list[IntArray] = []
        positions: list[IntArray] = []
        places: list[IntArray] = []
        images: list[Hashable] = []
        paths: list[IntArray] = []  # of each node: the tokens that its children see
        ends: list[int] = []  # of each node: where positions go on after it
        tails: list[IntArray] = []  # of each node: its tokens, slot included
        causal: dict[tuple[int, int], list[tuple[IntArray, IntArray]]] = defaultdict(list)
        isolated: dict[tuple[int, int], list[tuple[IntArray, IntArray]]] = defaultdict(list)
        count = 0
        expand = cache(self._expand)  # most nodes have the text of another
        for node in self._nodes:  # parents first
            above, start = (paths[node.parent], ends[node.parent]) if node.parent >= 0 else (np.zeros(0, np.int64), 0)
            segment = expand(node.ids.tobytes(), tuple(self.grid_of(one) for one in node.images))
            own = count + np.arange(len(segment.ids))
            slot = own[-1] + 1 + np.arange(len(node.slot) if node.is_read else 0)
            path = np.concatenate([above, own])
            causal[len(own), len(path)].append((own, path))
            if len(slot):
                isolated[len(slot), len(path) + len(slot)].append((slot, np.concatenate([path, slot])))
            after = start + segment.advance + node.skipped
            ids += [segment.ids, node.slot[: len(slot)]]
            positions += [start + segment.positions, np.broadcast_to(after + np.arange(len(slot)), (3, len(slot)))]
            places += [count + place for place in segment.image_positions]
            images += node.images
            paths.append(path)
            ends.append(after + len(node.slot))
            tails.append(np.concatenate([own, slot]))
            count += len(own) + len(slot)
        groups = [
            (np.stack([q for q, _ in pairs]), np.stack([k for _, k in pairs]), order)
            for kind, order in ((causal, True), (isolated, False))
            for pairs in kind.values()
        ]
        return PackedTree(
            np.concatenate(ids),
            np.concatenate(positions, axis=1),
            np.concatenate(places) if places else np.zeros(0, np.int64),
            images,
            [tails[node][-reads:] for node, reads in self._reads],
            groups,
        )

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
from collections.abc import Callable, Hashable
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


@dataclass(frozen=True, eq=False)
class _Piece:
    text: bytes  # all of its tokens
    ids: IntArray  # as in Query, without slots
    slot: IntArray  # its slot tokens at the end, which are read
    skipped: int  # slot tokens before, for which positions are left
    images: int

    @property
    def tokens(self) -> int:
        return len(self.ids) + self.skipped + len(self.slot)


@dataclass(eq=False)
class _Node:
    parent: int
    piece: _Piece
    images: tuple[Hashable, ...]
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
    reads: list[IntArray]  # of each query, the tokens that are read
    groups: list[tuple[IntArray, IntArray, bool]]

    def attention(self, attend: Attend, device: torch.device) -> Attend:
        """The attention of this tree, to be used in place of a causal one."""
        groups = [
            AttentionGroup(torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device), causal)
            for queries, keys, causal in self.groups
            for rows, columns in zip(*(_split(index, keys.shape) for index in (queries, keys)), strict=True)
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
    _cut: dict[bytes, list[_Piece]] = field(default_factory=dict)  # of each text, since most prompts share one
    _reads: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0  # of all nodes

    @property
    def images(self) -> list[Hashable]:
        """Of all nodes, in order; one may occur several times."""
        return [one for node in self._nodes for one in node.images]

    def add(self, query: Query) -> None:
        """Add a prompt."""
        whole = query.ids.tobytes()
        if whole not in self._cut:
            self._cut[whole] = self._pieces(query.ids)
        node, images = -1, iter(query.images)
        for piece in self._cut[whole]:
            own = tuple(islice(images, piece.images))
            key = (node, piece.text, own)
            if key not in self._index:
                self._index[key] = len(self._nodes)
                self._nodes.append(_Node(node, piece, own))
                self.tokens += piece.tokens + sum(rows * columns - 1 for rows, columns in map(self.grid_of, own))
            node = self._index[key]
        self._nodes[node].is_read = True
        self._reads.append((node, query.reads))

    def _pieces(self, ids: IntArray) -> list[_Piece]:
        ends = np.flatnonzero((ids == self.cut_after) & (np.append(ids[1:], -1) != self.cut_after)) + 1
        pieces = []
        for piece in np.split(ids, ends[ends < len(ids)]):
            is_slot, images = np.isin(piece, list(self.slots)), int(np.isin(piece, list(self.image_ids)).sum())
            first = int(is_slot.argmax()) if is_slot.any() else len(piece)
            assert is_slot[first:].all()  # slots end a piece, which `cut_after` is chosen for
            others = np.flatnonzero(piece[first:] != piece[-1])
            last = first + (int(others[-1]) + 1 if len(others) else 0)
            pieces.append(_Piece(piece.tobytes(), piece[:first], piece[last:], last - first, images))
        return pieces

    def _expand(self, ids: bytes, grids: tuple[Size, ...]) -> ChatSegment:
        return expand_images(np.frombuffer(ids, np.int64), self.image_ids, grids)

    def pack(self) -> PackedTree:
        """All nodes, with what each of their tokens sees."""
        ids: list[IntArray] = []
        positions: list[IntArray] = []
        places: list[IntArray] = []
        paths: list[IntArray] = []  # of each node: the tokens that its children see
        ends: list[int] = []  # of each node: where positions go on after it
        tails: list[IntArray] = []  # of each node: its tokens, slot included
        causal: dict[tuple[int, int], list[tuple[IntArray, IntArray]]] = defaultdict(list)
        isolated: dict[tuple[int, int], list[tuple[IntArray, IntArray]]] = defaultdict(list)
        count = 0
        expand = cache(self._expand)  # most nodes have the text of another
        for node in self._nodes:  # parents first
            above, start = (paths[node.parent], ends[node.parent]) if node.parent >= 0 else (np.zeros(0, np.int64), 0)
            piece = node.piece
            segment = expand(piece.ids.tobytes(), tuple(map(self.grid_of, node.images)))
            own = np.arange(count, count + len(segment.ids))
            slot = own[-1] + 1 + np.arange(len(piece.slot) if node.is_read else 0)
            path = np.concatenate([above, own])
            causal[len(own), len(path)].append((own, path))
            if len(slot):
                isolated[len(slot), len(path) + len(slot)].append((slot, np.concatenate([path, slot])))
            after = start + segment.advance + piece.skipped
            ids.append(segment.ids)
            positions.append(start + segment.positions)
            if len(slot):
                ids.append(piece.slot)
                positions.append(np.broadcast_to(after + np.arange(len(slot)), (3, len(slot))))
            places += [count + place for place in segment.image_positions]
            paths.append(path)
            ends.append(after + len(piece.slot))
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
            [tails[node][-reads:] for node, reads in self._reads],
            groups,
        )

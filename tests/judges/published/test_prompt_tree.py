"""Prompts as a tree: tokens, positions and what sees what, against values that were worked out by hand."""

import numpy as np
import torch
from numpy.testing import assert_array_equal

from plaudit.judges.published.tree import PromptTree, Query

IMAGE, END, SLOT, OTHER = 90, 91, 92, 93


def tree(**options):
    return PromptTree(lambda _: (1, 2), frozenset({IMAGE}), END, **options)


def test_a_shared_beginning_is_kept_once():
    prompts = tree()
    prompts.add(Query(np.array([1, IMAGE, END]), ("a",)))
    prompts.add(Query(np.array([1, IMAGE, END, 2, IMAGE, END]), ("a", "b")))
    prompts.add(Query(np.array([1, IMAGE, END, 2, IMAGE, END]), ("a", "c")))
    packed = prompts.pack()
    assert prompts.tokens == len(packed.ids) == 12
    assert_array_equal(packed.ids, [1, IMAGE, IMAGE, END, 2, IMAGE, IMAGE, END, 2, IMAGE, IMAGE, END])
    # an image of one row and two columns: both tokens at the same time, and text goes on after the longer edge
    assert_array_equal(packed.positions[0], [0, 1, 1, 3, 4, 5, 5, 7, 4, 5, 5, 7])
    assert_array_equal(packed.positions[1], [0, 1, 1, 3, 4, 5, 5, 7, 4, 5, 5, 7])
    assert_array_equal(packed.positions[2], [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7])
    assert prompts.images == ["a", "b", "c"]
    assert_array_equal(packed.places, [1, 2, 5, 6, 9, 10])
    assert [reads.tolist() for reads in packed.reads] == [[3], [7], [11]]
    (root, leaves) = packed.groups
    assert_array_equal(root[1], [[0, 1, 2, 3]])
    assert_array_equal(leaves[0], [[4, 5, 6, 7], [8, 9, 10, 11]])
    assert_array_equal(leaves[1], [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 8, 9, 10, 11]])  # not each other


def test_slots_are_computed_where_they_are_read_and_leave_their_positions():
    prompts = tree(slots=frozenset({SLOT, OTHER}))
    prompts.cut_after = SLOT
    first = [1, IMAGE, SLOT, SLOT]
    prompts.add(Query(np.array([*first, IMAGE, OTHER, SLOT, SLOT]), ("a", "b"), reads=2))
    packed = prompts.pack()
    assert_array_equal(packed.ids, [1, IMAGE, IMAGE, IMAGE, IMAGE, SLOT, SLOT])
    # 0, an image at 1 to 2, two slots that nobody reads at 3 and 4, an image at 5 to 6, one of the other kind at 7
    assert_array_equal(packed.positions[2], [0, 1, 2, 5, 6, 8, 9])
    context, later, slot = packed.groups
    assert_array_equal(later[1], [[0, 1, 2, 3, 4]])
    assert (slot[0].tolist(), slot[1].tolist(), slot[2]) == ([[5, 6]], [[0, 1, 2, 3, 4, 5, 6]], False)
    assert context[2] and later[2]
    assert [reads.tolist() for reads in packed.reads] == [[5, 6]]


def test_attention_runs_each_group_by_itself():
    prompts = tree()
    for name in ("b", "c"):
        prompts.add(Query(np.array([1, IMAGE, END, 2, IMAGE, END]), ("a", name)))
    packed, seen = prompts.pack(), []

    def attend(q, k, v, causal):
        seen.append((tuple(q.shape), tuple(k.shape), causal))
        return q + v.sum(1, keepdim=True)

    count = len(packed.ids)
    q = torch.arange(count, dtype=torch.float32).view(1, count, 1, 1)
    out = packed.attention(attend, torch.device("cpu"))(q, q, q, True)
    assert seen == [((1, 4, 1, 1), (1, 4, 1, 1), True), ((2, 4, 1, 1), (2, 8, 1, 1), True)]
    assert out[0, 4].item() == 4 + sum(range(8))
    assert out[0, 8].item() == 8 + sum([0, 1, 2, 3, 8, 9, 10, 11])

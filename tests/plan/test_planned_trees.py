"""Samples with equal beginnings lie side by side, and share exactly their equal tokens."""

from zlib import crc32

import hypothesis
import numpy as np
from hypothesis import strategies as st

from energon_pack.plan.items import Items
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import GroupBy, PackingConfig, SharedBeginnings
from energon_pack.plan.trees import Beginnings, PrefixTrees, group_items_into_trees, subtract_shared_counts
from energon_pack.run.seeded_random import Ints

PACKING = PackingConfig(max_token_len=100, share=SharedBeginnings.prefix, share_min_tokens=1, group_by=GroupBy.none)


def items_of(samples: list[str]) -> Items:
    lens, zero = np.array([len(sample) for sample in samples], np.int32), np.zeros(len(samples), np.int32)
    counts = {"token_len": lens, "num_images": zero, "num_visual_tokens": zero}
    return Items(counts, zero.astype(np.int8), zero, zero, zero.astype(np.int8), lens)


def found_in(samples: list[str]) -> Beginnings:
    """Each letter is a token, and a tree may fork before any lower-case letter: capitals are trained."""
    rows = [(n, sample[:end], sample[end:]) for n, sample in enumerate(samples) for end in range(1, len(sample) + 1)]
    keys = np.array([crc32(begin.encode()) for _, begin, _ in rows], np.uint64)
    ends = np.array([len(begin) for _, begin, _ in rows], np.int32)
    none = np.zeros(len(rows), np.int32)
    counts = {"token_len": ends, "num_images": none, "num_videos": none, "num_visual_tokens": none}
    may_fork = np.array([rest[:1].islower() for _, _, rest in rows], np.bool_)
    return Beginnings(np.array([n for n, _, _ in rows], np.int64), keys, keys.copy(), may_fork, counts)


def made(samples: list[str], packing: PackingConfig = PACKING, group: Ints | None = None) -> PrefixTrees:
    group = np.zeros(len(samples), np.int64) if group is None else group
    return group_items_into_trees(found_in(samples), items_of(samples), packing, group)


def as_shown(samples: list[str], trees: PrefixTrees) -> list[list[str]]:
    """Return the tokens that each member adds, with a dot for each shared token; trees by their first sample."""
    rows = [
        [f"{'.' * trees.shared['token_len'][n]}{samples[n][trees.shared['token_len'][n] :]}" for n in tree.tolist()]
        for tree in np.split(trees.items, trees.starts[1:-1])
    ]
    return sorted(sorted(row, key=lambda text: (text.count("."), text)) for row in rows)


def test_trees_to_check_by_head() -> None:
    """Two questions after one root, a fork within a fork, one that ends where another goes on, one alone."""
    samples = ["abcx", "abdy", "abcz", "abc", "qr"]
    assert as_shown(samples, made(samples)) == [["abdy", "..c", "...x", "...z"], ["qr"]]


def test_no_fork_before_a_trained_token() -> None:
    """The label of the token before it would be another sample's: the fork moves back to where both may part."""
    samples = ["abcX", "abcY"]
    assert as_shown(samples, made(samples)) == [["abcX", "..cY"]]


def test_no_fork_before_a_token_that_any_sample_trains() -> None:
    """Two samples have the same third token, and one trains it (B): neither may part before it from the first."""
    samples = ["pqax", "pqby", "pqBz"]
    alike = found_in([sample.lower() for sample in samples])._replace(may_fork=found_in(samples).may_fork)
    trees = group_items_into_trees(alike, items_of(samples), PACKING, np.zeros(3, np.int64))
    assert sorted(trees.shared["token_len"].tolist()) == [0, 1, 3]


def test_samples_of_two_groups_share_nothing() -> None:
    samples = ["abx", "aby", "abz"]
    assert as_shown(samples, made(samples, group=np.array([0, 1, 0]))) == [["abx", "..z"], ["aby"]]


def test_a_tree_that_is_too_large_is_cut_and_begins_anew() -> None:
    """Five branches of one token after a root of three: three fit into six tokens."""
    samples = [f"abc{letter}" for letter in "uvwxy"]
    packing = PackingConfig(max_token_len=6, share=SharedBeginnings.prefix, share_min_tokens=1)
    assert [len(row) for row in as_shown(samples, made(samples, packing))] == [3, 2]


@hypothesis.given(st.lists(st.text("abCD", min_size=1, max_size=7), min_size=1, max_size=30), st.integers(7, 40))
def test_every_item_is_in_one_tree_that_holds_its_tokens(samples: list[str], limit: int) -> None:
    """From the trees alone each sample comes back: the tokens before it in its tree, and its own."""
    packing = PackingConfig(
        max_token_len=limit, share=SharedBeginnings.prefix, share_min_tokens=1, group_by=GroupBy.none
    )
    trees = made(samples, packing)
    assert sorted(trees.items.tolist()) == list(range(len(samples)))
    for tree in np.split(trees.items, trees.starts[1:-1]):
        before, used = "", 0
        for n in tree.tolist():
            shared = int(trees.shared["token_len"][n])
            assert samples[n][:shared] == before[:shared]
            assert not shared or samples[n][shared].islower()
            before, used = samples[n], used + len(samples[n]) - shared
        assert used <= limit
        assert trees.shared["token_len"][tree[0]] == 0
    own = subtract_shared_counts(items_of(samples), trees.shared)
    plan = plan_packs(own, packing, trees=trees)
    assert sorted(plan.items.tolist()) == list(range(len(samples)))
    for pack in np.split(plan.items, plan.starts[1:-1]):
        assert own.lens[pack].sum() <= limit
        for before_n, n in zip([None, *pack.tolist()], pack.tolist(), strict=False):
            shared = int(trees.shared["token_len"][n])
            assert not shared or (before_n is not None and samples[before_n][:shared] == samples[n][:shared])


@hypothesis.given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=25, unique=True))
def test_without_limits_each_beginning_is_there_once(samples: list[str]) -> None:
    """The tokens of all trees are the nodes of the trie of the samples; what none else has, costs nothing more."""
    trees = made(samples)
    own = subtract_shared_counts(items_of(samples), trees.shared)
    nodes = {sample[:end] for sample in samples for end in range(1, len(sample) + 1)}
    assert own.lens.sum() == len(nodes)

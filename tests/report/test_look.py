"""Packs to look at are those where something is seen, and as many as a page has room for."""

from collections.abc import Iterator

import numpy as np

from energon_pack.plan.items import Items
from energon_pack.plan.packs import PackPlan
from energon_pack.report.look import packs_to_look_at
from energon_pack.report.pages.html import Html
from energon_pack.report.run_report import fitting, some_of_each


def items(lens: list[int], media: list[int]) -> Items:
    zeros = np.zeros(len(lens), np.int32)
    counts = {"token_len": np.array(lens, np.int32), "num_images": zeros, "num_visual_tokens": zeros}
    return Items(counts, np.array(media, np.int8), zeros, zeros, zeros.astype(np.int8), zeros)


def test_each_medium_and_the_edges() -> None:
    """Packs: text 10; text 5 + 4 + 3; image 20; text 2."""
    of = items([10, 5, 4, 3, 20, 2], [0, 0, 0, 0, 1, 0])
    plan = PackPlan(np.array([0, 1, 4, 5, 6]), np.arange(6), np.zeros(6, np.int8), 4)
    assert packs_to_look_at(of, plan) == {
        0: "the first text pack",
        2: "the first image pack, the fullest",
        3: "the emptiest",
        1: "the most members",
    }


def test_no_pack() -> None:
    nothing = PackPlan(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8), 0)
    assert packs_to_look_at(items([], []), nothing) == {}


def test_a_page_takes_what_it_has_room_for() -> None:
    """A pack of large pictures must not keep out the next."""
    sections = {number: Html("a" * size) for number, size in enumerate((5000, 100_000, 4000))}
    assert [*fitting(sections, 12_000)] == [0, 2]


def test_some_examples_of_each_reason_are_enough() -> None:
    """A ledger may have millions of lines."""
    seen = []

    def ledger() -> Iterator[dict[str, str]]:
        for number, reason in enumerate("aabaaab" + "a" * 100):
            seen.append(number)
            yield {"reason": reason, "sample_id": str(number)}

    found = some_of_each(ledger(), {"a": 105, "b": 2})
    assert {reason: [entry["sample_id"] for entry in entries] for reason, entries in found.items()} == {
        "a": ["0", "1", "3"],
        "b": ["2", "6"],
    }
    assert len(seen) == 7

"""Users' mistakes with packs made while loading end with one line that tells what to do, never with other data."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from energon_pack.errors import SamplesLost
from energon_pack.lazy import LazyPackedDataset
from energon_pack.on_disk import PackedDataset
from energon_pack.samplers import LengthGroupedSampler, PackSampler
from energon_pack.streaming import StreamingPackedDataset
from support.running import need_torchvision

TALK = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A word."}]
HELD = [{"messages": TALK}] * 8


@pytest.fixture(scope="module")
def settings(demo: tuple[Path, Path], cache: Path) -> list[str]:
    need_torchvision()
    common = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "executor.num_workers=1"]
    return [*common, "packing.max_token_len=64"]


@pytest.fixture(scope="module")
def packs(settings: list[str]) -> LazyPackedDataset:
    return LazyPackedDataset(settings, HELD, fingerprint="held")


@pytest.mark.parametrize(
    ("sources", "more", "said"),
    [
        ([[], HELD], [], r"sources has \[\], which has no samples"),
        ([["source=jsonl"]], [], r"sources has \['source=jsonl'\], which names no source\.path"),
        ("/data", [], r"sources='/data': give a list of sources"),
        ([HELD], ["source.path=/data"], r"source\.path=/data and sources: give one of them"),
        ([HELD], ["output.splits.val=0.1"], r"output\.splits: a stream has no splits"),
    ],
)
def test_a_stream_of_other_data_than_was_meant(settings: list[str], sources: Any, more: list[str], said: str) -> None:
    """An empty source was the built-in demo, a string was the whole disk, a validation part was trained on."""
    with pytest.raises(ValueError, match=said):
        StreamingPackedDataset([*settings, *more], sources)


@pytest.mark.parametrize("fingerprint", [None, "mended"])
def test_items_of_which_too_much_is_lost_are_named(settings: list[str], fingerprint: str | None) -> None:
    """The error named a file that was gone; mended items were refused without a word of the fingerprint."""
    with pytest.raises(SamplesLost, match=r"the first: .*0: no_assistant_turn") as told:
        LazyPackedDataset(settings, [{"messages": TALK[:1]}, *HELD], fingerprint=fingerprint)
    assert ("kept for fingerprint='mended'" in str(told.value)) == (fingerprint is not None)
    assert ("skipped.jsonl" in str(told.value)) == (fingerprint is not None)


def test_a_source_and_conversations(settings: list[str]) -> None:
    """One of them was not looked at."""
    with pytest.raises(ValueError, match=r"source\.path=/data and conversations: give one of them"):
        LazyPackedDataset([*settings, "source.path=/data"], HELD)


@pytest.mark.parametrize("where", ["in memory", "on disk"])
def test_a_sampler_in_the_place_of_the_other(packs: Any, typed_demo: Path, where: str) -> None:
    """The pair of an epoch and a number was a batch of two packs, one of them in every batch."""
    if where == "on disk":
        packs = PackedDataset(typed_demo / "packed/demo-qwen2_5_vl-neat-8192")
    of_packs: Any = PackSampler(packs, 0, 1)
    with pytest.raises(ValueError, match=r"sampler=…, not batch_sampler=…"):
        next(iter(DataLoader(packs, batch_sampler=of_packs)))
    with pytest.raises(ValueError, match=r"batch_sampler=…, not sampler=…"):
        next(iter(DataLoader(packs, sampler=LengthGroupedSampler(packs.lens(), 2))))


def test_what_a_sampler_can_not_take(packs: LazyPackedDataset) -> None:
    """Each was an AttributeError or a KeyError of some line within."""
    sampler = PackSampler(packs, 0, 1)
    others: Any = [1, 2], [sampler.state_dict(), [{"a": 1}]]
    with pytest.raises(ValueError, match="packs is a list: a LazyPackedDataset"):
        PackSampler(others[0], 0, 1)
    for states in others[1]:
        with pytest.raises(ValueError, match=r"states: a list with what state_dict\(\)"):
            PackSampler(packs, 0, 1, states=states)
    with pytest.raises(ValueError, match="num_packs=3: 0 packs were given out"):
        sampler.state_dict(num_packs=3)
    with pytest.raises(ValueError, match="epoch=-1: from 0 on"):
        packs.set_epoch(-1)

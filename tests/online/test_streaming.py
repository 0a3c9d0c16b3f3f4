"""A stream of packs: every sample where it belongs, and after a restart as if nothing had happened."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_pack.samples.flavors.base import MemberInput
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.skip import Reason, Skip
from energon_pack.streaming import StreamingPackedDataset
from energon_pack.templates.template import Sample
from energon_pack.training.members import seen
from support.samples import picture


class Conversations:
    """Some conversations in memory: words, and of every third one a picture."""

    def __init__(self, name: str, num: int, with_images: bool = False, bad: Sequence[int] = ()):
        self.name, self.num, self.with_images, self.bad = name, num, with_images, bad

    def __len__(self) -> int:
        return self.num

    def sample_id(self, i: int) -> str:
        return f"{self.name}/{i}"

    def look(self, i: int) -> Sample:
        if i in self.bad:
            raise Skip(Reason.UNREADABLE_MEDIA, "torn")
        return seen(self.member(i))

    def member(self, i: int) -> MemberInput:
        images = [LazyImage(picture(28 * (2 + i % 5), 56), f"{i}.png")] if self.with_images and i % 3 == 0 else []
        ask = "<image>" * len(images) + "say it " * (1 + i % 23)
        messages = [{"role": "user", "content": ask}, {"role": "assistant", "content": f"word {i} " * (1 + i % 7)}]
        return MemberInput(self.sample_id(i), messages, images)


@pytest.fixture(scope="module")
def make(demo: tuple[Path, Path], cache: Path) -> Any:
    """A stream of packs of 256 tokens."""

    def made(sources: Sequence[Any], *overrides: str, **options: Any) -> StreamingPackedDataset:
        config = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "executor.num_workers=1"]
        options = {"on_bad_member": "drop", "tokens_per_second": 2.0, **options}
        return StreamingPackedDataset([*config, "packing.max_token_len=256", *overrides], sources, **options)

    return made


def ids(packs: Any) -> list[list[str]]:
    return [[member.sample_id for member in pack.members] for pack in packs]


SOURCES = [Conversations("a", 90), Conversations("b", 40, with_images=True)]


def test_each_sample_is_in_one_pack_of_one_lane(make: Any) -> None:
    """Of two ranks without replacement: what a rank does not see, the other does."""
    lanes = [ids(make(SOURCES, replacement=False, buffer_size=12, rank=rank, world_size=2)) for rank in range(2)]
    assert Counter(name for packs in lanes for pack in packs for name in pack) == dict.fromkeys(
        [f"{source.name}/{i}" for source in SOURCES for i in range(len(source))], 1
    )
    assert all(lanes)


def test_packs_are_full_and_what_they_say(make: Any) -> None:
    dataset = make(SOURCES, buffer_size=30)
    packs = list(islice(dataset, 50))
    lens = [sum(len(member.tokens) for member in pack.members) for pack in packs]
    assert max(lens) <= 256
    assert sum(lens) > 0.97 * 256 * 50
    statistics = dataset.statistics()
    assert statistics["packs"] == 50
    assert statistics["samples"] == sum(len(pack.members) for pack in packs)
    assert statistics["tokens"] == sum(lens)
    assert statistics["fill"] == sum(lens) / 50 / 256
    assert statistics["left_out"] == {}
    batch = dataset.collate(packs[:2])
    assert batch["input_ids"].shape[0] == 2
    assert all(len({"a": 1, "b": 2}.keys() & {name[0] for name in pack}) for pack in ids(packs))


def test_a_stream_goes_on_from_any_pack_as_if_nothing_had_happened(make: Any) -> None:
    """With JSON in between; without what waits, the packs after a restart would be other ones."""
    for replacement in (True, False):
        options = {"replacement": replacement, "buffer_size": 12, "seed": 5}
        whole = ids(islice(make(SOURCES, **options), 40 if replacement else None))
        dataset, again = make(SOURCES, **options), make(SOURCES, **options)
        stream = iter(dataset)
        for number in range(len(whole) - 2):
            again.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
            assert ids(islice(again, 3)) == whole[number : number + 3]
            assert again.statistics() == again.statistics() | {"packs": number + 3}
            next(stream)
        if not replacement:
            assert ids(stream) == whole[-2:], "an end that is planned is in the state, too"
            again.load_state_dict(dataset.state_dict())
            assert list(again) == []


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_loader_of_torchdata_goes_on(make: Any, num_workers: int, world_size: int) -> None:
    """Each rank saves the state of its loader, workers and all; a new one goes on with the same batches."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(rank: int, **more: Any) -> Any:
        options = {"replacement": False, "buffer_size": 12, "rank": rank, "world_size": world_size, **more}
        dataset = make(SOURCES, **options)
        return stateful.StatefulDataLoader(dataset, 1, num_workers=num_workers, collate_fn=dataset.collate)

    def names(batches: Any) -> list[Any]:
        return [batch["sample_ids"] for batch in batches]

    for rank in range(world_size):
        whole = names(loader(rank))
        first = loader(rank)
        before = names(islice(first, 4))
        state = first.state_dict()
        again = loader(rank)
        again.load_state_dict(state)
        assert before + names(again) == whole

"""Whose pixels are whose: what the encoder of packs knows reaches guard, and no model is given it."""

import pickle
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader

from energon_pack.dataset.packing_template import load_template
from energon_pack.trainers.on_disk import PackedDataset
from energon_pack.training import trials
from energon_pack.training.batch import PackedBatch
from energon_pack.training.batch_members import MemberPlaces
from energon_pack.training.encoded import TOLD_MEDIA_LENS, BatchWithMediaLens
from energon_pack.training.guards import guard
from energon_pack.training.media_shares import MediaShares, find_media_lens_of_batch, media_shares
from support.alone import demo_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    TOLD_MEDIA_LENS.clear()


def alone(packs: PackedDataset, number: int) -> list[dict[str, int]]:
    """How many rows of each input each member has by itself."""
    members: Any = packs.members(0, number)
    return [
        {name: len(value) for name, value in packs.encoder.members.encode_alone(one).media.items()} for one in members
    ]


def told(inputs: Any) -> Any:
    return find_media_lens_of_batch(inputs["cu_seq_lens_q"])


def test_a_batch_of_packs_tells_how_much_of_each_input_is_each_member_s(demo_packs: PackedDataset) -> None:
    numbers = [number for number in range(len(demo_packs)) if demo_packs[number].media][:3]
    inputs = demo_packs.collate([demo_packs[number] for number in numbers]).model_inputs()
    each = [one for number in numbers for one in alone(demo_packs, number)]
    assert len({tuple(one.values()) for one in each}) > 2  # members differ, some have none
    names = {name for one in each for name in one}
    assert told(inputs) == {name: [one.get(name, 0) for one in each] for name in names}
    assert {name for name in inputs if "lens" in name} == {"cu_seq_lens_q", "cu_seq_lens_k"}


def test_it_survives_workers_and_copies(demo_packs: PackedDataset) -> None:
    """Trainers make a new mapping of the batch's tensors, which has none of the batch's attributes."""
    (number, *_) = (number for number in range(len(demo_packs)) if demo_packs[number].media)
    batch, numbers = demo_packs.collate([demo_packs[number]]), cast(Any, [number])
    expected = told(batch.model_inputs())
    assert expected
    for way in (
        lambda: PackedBatch({**batch.to("cpu").in_one_buffer().model_inputs()}),
        lambda: PackedBatch({**pickle.loads(pickle.dumps(batch.model_inputs()))}),
        lambda: next(iter(DataLoader(numbers, collate_fn=Model(demo_packs), num_workers=1))),
    ):
        TOLD_MEDIA_LENS.clear()
        assert told(way()) == expected


class Model:
    """Makes a batch as a trainer's worker does."""

    def __init__(self, packs: PackedDataset):
        self.packs = packs

    def __call__(self, numbers: list[int]) -> dict[str, Any]:
        batch = self.packs.collate([self.packs[number] for number in numbers])
        return PackedBatch({**batch})._with_lens_of(batch).model_inputs()


def test_two_batches_that_tell_different_things_tell_nothing() -> None:
    """They have the same boundaries; one that came first must not answer for the other."""
    boundaries = torch.tensor([0, 5, 9])
    for lens in ([1, 2], [1, 2], [2, 1], [1, 2]):
        made = BatchWithMediaLens()
        made.media_lens = (0, 5, 9), {"pixel_values": lens}
        BatchWithMediaLens()._with_lens_of(made)
        known = find_media_lens_of_batch(boundaries)
    assert known == {}
    assert find_media_lens_of_batch(None) == find_media_lens_of_batch(torch.tensor([0, 3])) == {}


def test_what_a_pack_tells_is_not_guessed() -> None:
    """Three images without a token between them look like one: half of the images would be given to each member."""
    ids = torch.tensor([[8, *[4] * 7, 8, 8, 4, 4, 8]])
    members = [MemberPlaces(0, *[torch.arange(*ends)] * 2) for ends in ((0, 9), (9, 13))]
    inputs = {"input_ids": ids, "pixel_values": torch.rand(4, 3, 2, 2), "cu_seq_lens_q": torch.tensor([0, 9, 13])}
    shares = media_shares(inputs, members, (ids == 4).long(), None, {})
    assert shares.ends == {"pixel_values": (0, [0, 2, 4])}
    batch = BatchWithMediaLens()
    batch.media_lens = (0, 9, 13), {"pixel_values": [3, 1]}
    BatchWithMediaLens()._with_lens_of(batch)
    shares = media_shares(inputs, members, (ids == 4).long(), None, {})
    assert shares.ends == {"pixel_values": (0, [0, 3, 4])}


def test_guard_takes_what_packs_tell(
    demo_packs: PackedDataset, demo_folder: Path, demo: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No grid and no run of tokens is looked at."""
    monkeypatch.setattr("energon_pack.training.media_shares._find_ends", lambda *_: pytest.fail("guessed"))
    model = demo_model(load_template(demo_folder, str(demo[1])))
    seen: list[MediaShares] = []

    def noted(*given: Any) -> MediaShares:
        seen.append(media_shares(*given))
        return seen[-1]

    monkeypatch.setattr(trials, "media_shares", noted)
    held = guard(model, demo_packs.encoder)
    (number, *_) = (number for number in range(len(demo_packs)) if demo_packs[number].media)
    model(**demo_packs.collate([demo_packs[number]]).model_inputs(model))
    assert [one.open_names for one in seen] == [frozenset()]
    assert len(held.trials) == 1

"""Hugging Face's own datasets as conversations: run by `tests/online/test_given.py` where they are installed."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from energon_pack.online import prepare as preparing
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.online.streaming import StreamingPackedDataset
from support.packed import conversations, demo_config

NUM = 40


@pytest.fixture(scope="module")
def given(demo: tuple[Path, Path]) -> list[dict[str, Any]]:
    return conversations(demo[0])[:NUM]


def features() -> Any:
    turns = [{"role": datasets.Value("string"), "content": datasets.Value("string")}]
    return datasets.Features({"messages": turns, "images": datasets.List(datasets.Image())})


def packs_of(dataset: Any, demo: tuple[Path, Path], folder: Path) -> LazyPackedDataset:
    return LazyPackedDataset(demo_config(demo, folder, folder, packing__max_token_len=1024, source__path=None), dataset)


def ids(packs: LazyPackedDataset) -> list[list[int]]:
    return [packs[i].members[0].tokens.ids.tolist() for i in range(len(packs))]


@pytest.mark.parametrize("form", ["list", "parts"])
def test_no_image_is_decoded_to_count_tokens(
    given: list[dict[str, Any]], demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Decoding every image of a large dataset takes hours. The packs are those of the same in a list."""
    rows = [{name: row[name] for name in ("messages", "images")} for row in given]
    dataset = datasets.Dataset.from_list(rows, features=features())
    if form == "parts":
        assert isinstance(dataset[0]["images"], list)
    expected = ids(
        LazyPackedDataset(demo_config(demo, tmp_path, tmp_path, packing__max_token_len=1024, source__path=None), rows)
    )

    def decode(*_: Any, **__: Any) -> Any:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(datasets.Image, "decode_example", decode)
    packs = packs_of(dataset, demo, tmp_path)
    assert ids(packs) == expected


def test_rows_of_a_resumed_stream_count_epochs_from_its_own(
    given: list[dict[str, Any]], demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """Accelerate counts them from 0 in each process: the second loop had the state's epoch once more.

    A stream that no state was loaded into keeps the epoch that it has.
    """
    config = demo_config(demo, tmp_path, tmp_path, packing__max_token_len=1024, source__path=None)

    def stream(**states: Any) -> StreamingPackedDataset:
        return StreamingPackedDataset(config, [given], buffer_size=4, replacement=False, **states)

    first = stream()
    first.set_epoch(1)
    assert next(iter(first)).members
    for states, expected in (([first.state_dict()], ["1", "2"]), ([], ["3", "1"])):
        packs = stream(states=states)
        if not states:
            packs.set_epoch(3)
        found: list[str] = []
        rows = packs.as_dataset()
        for epoch in range(2):
            rows.set_epoch(epoch)
            found += {row["pack"].key.partition("/")[0] for row in rows}
        assert found == expected


def test_lengths_are_kept_by_its_fingerprint(
    given: list[dict[str, Any]], demo: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start measures nothing; a dataset that was filtered is another."""
    rows = [{name: row[name] for name in ("messages", "images")} for row in given]
    dataset = datasets.Dataset.from_list(rows, features=features())
    first = packs_of(dataset, demo, tmp_path)

    def again(*_: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(preparing._MeasuredSlices, "__getitem__", again)
    assert len(packs_of(dataset, demo, tmp_path)) == len(first)
    with pytest.raises(AssertionError, match="measured again"):
        packs_of(dataset.select(range(10)), demo, tmp_path)

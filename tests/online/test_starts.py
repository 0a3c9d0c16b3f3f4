"""A second start finds what the first one measured, unless it changed; and what a copy of a dataset may be asked."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from energon_pack.config import Format, PackConfig
from energon_pack.errors import PackError, SamplesLost
from energon_pack.online import prepare as preparing
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.trainers.on_disk import PackedDataset
from energon_pack.trainers.samplers import LengthGroupedSampler, PackSampler
from support.packed import demo_config
from support.running import need_torchvision

pytestmark = pytest.mark.usefixtures("one_thread")
ANSWER = {"role": "assistant", "content": "Red."}


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    need_torchvision()


def asked(number: int) -> dict[str, Any]:
    """A conversation about an image that is a file."""
    return {"messages": [{"role": "user", "content": f"<image>What is {number}?"}, ANSWER], "images": [f"{number}.png"]}


def draw(folder: Path, number: int, size: int = 64) -> None:
    Image.new("RGB", (size, size), "red").save(folder / f"{number}.png")


@pytest.fixture
def config(demo: tuple[Path, Path], tmp_path: Path) -> PackConfig:
    """With a cache of its own, and media in a folder."""
    root = tmp_path / "media"
    root.mkdir()
    for number in range(1, 8):
        draw(root, number)
    return demo_config(
        demo, tmp_path / "cache", tmp_path, packing__max_token_len=256, max_skipped=0.5, source__media_root=str(root),
        source__path=None,
    )  # fmt: skip


def lost(packs: LazyPackedDataset) -> list[str]:
    return [json.loads(line)["sample_id"] for line in packs.skipped.read_text().splitlines()]


@pytest.mark.parametrize("form", ["conversations", "jsonl"])
def test_a_sample_without_its_medium_leaves_the_packs_those_they_are(
    config: PackConfig, tmp_path: Path, form: str
) -> None:
    """It is looked for at each start: were its row written anew, no checkpoint would go on, nor ranks agree."""
    told, kept = [asked(number) for number in range(8)], None
    if form == "jsonl":
        path = tmp_path / "media" / "told.jsonl"
        path.write_text("".join(json.dumps(of) + "\n" for of in told))
        config.source.path, config.source.format = str(path), Format.jsonl
    else:
        kept = "8"
    starts = [LazyPackedDataset(config, told if kept else None, fingerprint=kept) for _ in range(3)]
    assert len(lost(starts[0])) == 1
    assert len({packs.fingerprint for packs in starts}) == 1
    draw(Path(str(config.source.media_root)), 0)
    mended = LazyPackedDataset(config, told if kept else None, fingerprint=kept)
    assert not lost(mended)
    assert mended.fingerprint != starts[0].fingerprint


def test_an_image_that_changed_is_measured_again(
    config: PackConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fingerprint does not cover files; otherwise each start would end because a length differs from the measured
    one.
    """
    told, root = [asked(number) for number in range(1, 8)], Path(str(config.source.media_root))
    first = LazyPackedDataset(config, told, fingerprint="7")
    [first[i] for i in range(len(first))]
    draw(root, 3, size=224)
    again = LazyPackedDataset(config, told, fingerprint="7")
    assert sum(again.lens()) > sum(first.lens())
    [again[i] for i in range(len(again))]
    other = tmp_path / "other"
    other.mkdir()
    for number in range(1, 8):
        draw(other, number, size=112)
    config.source.media_root = str(other)
    elsewhere = LazyPackedDataset(config, told, fingerprint="7")
    [elsewhere[i] for i in range(len(elsewhere))]

    def measured(*_: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(preparing._MeasuredSlices, "__getitem__", measured)
    assert LazyPackedDataset(config, told, fingerprint="7").fingerprint == elsewhere.fingerprint


def test_what_can_not_be_is_refused_before_anything_is_measured(
    config: PackConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-1 would leave out a pack in silence, a split would be of nothing; an unwritable cache ends in a traceback."""
    monkeypatch.setattr(preparing, "measure_user_samples", None)
    for number in (0, -1):
        with pytest.raises(PackError, match=f"max_packs={number}: at least 1"):
            LazyPackedDataset(config, [asked(1)], max_packs=number)
    with pytest.raises(PackError, match="split=dev: one of train, val, test"):
        LazyPackedDataset(config, [asked(1)], split="dev")
    config.cache_dir = str(tmp_path / "file" / "cache")
    (tmp_path / "file").touch()
    with pytest.raises(PackError, match=r"cache_dir=.*can't be written"):
        LazyPackedDataset(config, [asked(1)], fingerprint="1")
    config.source.split = "train"
    with pytest.raises(PackError, match=r"source\.split=train: only for files"):
        LazyPackedDataset(config, [asked(1)], fingerprint="1")


def test_a_copy_says_what_it_lacks(config: PackConfig) -> None:
    """Lengths do not travel: a missing file, or an assertion, would not say what to do."""
    packs = LazyPackedDataset(config, [asked(number) for number in range(1, 8)], fingerprint="7")
    for copied in (pickle.loads(pickle.dumps(packs)), copy.deepcopy(packs)):
        assert copied[0].key == packs[0].key
        with pytest.raises(PackError, match=r"epoch 7: this copy of the dataset .* set_epoch"):
            copied.set_epoch(7)
        with pytest.raises(PackError, match="this copy of the dataset"):
            copied.lens()
    packs.set_epoch(7)
    copied.set_epoch(7)
    assert copied[0].key == packs[0].key
    for number in (0, -2):
        with pytest.raises(ValueError, match=f"micro_batches={number}: at least 1"):
            PackSampler(packs, 0, 1, number)


def test_lengths_of_single_samples_stay_true(config: PackConfig) -> None:
    """Accelerate calls `set_epoch` of dataset and sampler: batches by the lengths of other numbers would not fit."""
    draw(Path(str(config.source.media_root)), 3, size=224)
    config.packing.max_members = 1
    packs = LazyPackedDataset(config, [asked(number) for number in range(1, 8)], fingerprint="7")
    packs.set_epoch(1)
    assert [len(packs[i].members[0].tokens.ids) for i in range(len(packs))] == packs.lens().tolist()


def test_a_start_takes_nothing_of_the_chance_of_a_training(config: PackConfig) -> None:
    """A model that is made after it would begin with other weights than one that is made before."""
    state = torch.get_rng_state()
    LazyPackedDataset(config, [asked(number) for number in range(1, 8)], fingerprint="7")
    assert torch.equal(torch.get_rng_state(), state)


# Users' mistakes with packs made while loading end with one line that tells what to do, never with other data.

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
        ([["source.path=/a", "output.splits.val=0.1"]], [], r"output\.splits: a stream has no splits"),
    ],
)
def test_a_stream_of_other_data_than_was_meant(settings: list[str], sources: Any, more: list[str], said: str) -> None:
    """An empty source was the built-in demo, a string was the whole disk, a validation part was trained on."""
    with pytest.raises(ValueError, match=said):
        StreamingPackedDataset([*settings, *more], sources)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("labels.train_on=last", r"labels\.train_on=all, and sources\[1\] labels\.train_on=last: only source\.\* may"),
        ("packing.max_token_len=300", r"packing\.max_token_len=\d+, and sources\[1\] packing\.max_token_len=300: only"),
        ("media.alpha=white", r"media\.alpha=\w+, and sources\[1\] media\.alpha=white: only"),
        ("model.chat_template_kwargs.a=1", r"model\.chat_template_kwargs\.a=None, and sources\[1\] .*=1: only"),
        (
            "source.control_tokens=skip",
            r"source\.control_tokens=keep, and sources\[1\] .*=skip: .* give source\.control",
        ),
    ],
)
def test_a_setting_of_all_sources_is_not_of_one(settings: list[str], own: str, said: str) -> None:
    """The first source's settings held for every source, and the other sources' settings were ignored, unsaid."""
    for other in (["source.path=/a"], "/a", HELD):
        with pytest.raises(ValueError, match=rf"^sources\[0\] has {said}"):
            StreamingPackedDataset(settings, [other, ["source.path=/b", own]])
    with pytest.raises(ValueError, match=rf"and sources\[1\] {own.partition('=')[0]}="):
        StreamingPackedDataset(settings, [["source.path=/b", own], "/a"])


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

"""Energon packs samples while it reads them, by the settings of a packed dataset: to compare with packs on disk."""

import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.errors import FatalSampleError

from energon_pack.flavors import MultiMixQASample
from energon_pack.loading import train_arguments
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.task_encoder import PackedTaskEncoder
from support.packed import demo_config, json_lines, lengths, packed, prepare, typed
from support.running import need_torchvision

TOKENS = 1024


@pytest.fixture(scope="module")
def source(demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo as Energon reads it unpacked."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("source") / "demo"
    shutil.copytree(demo[0], folder)
    return prepare(folder, typed("MultiMixQASample", "multi_mix_qa"))


@pytest.fixture(scope="module")
def offline(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo packed before."""
    out = tmp_path_factory.mktemp("offline")
    return packed(demo_config(demo, cache, out, packing__max_token_len=TOKENS, max_skipped=1.0))


@pytest.fixture(scope="module")
def encoder(offline: Path, demo: tuple[Path, Path]) -> PackedTaskEncoder:
    return online(offline, demo, packing_buffer_size=24)


def online(offline: Path, demo: tuple[Path, Path], **more: Any) -> PackedTaskEncoder:
    return PackedTaskEncoder(offline, str(demo[1]), **{"on_bad_member": "drop", "tokens_per_second": 2.0, **more})


def loader(source: Path, encoder: PackedTaskEncoder, num_workers: int = 0, **more: Any) -> Any:
    worker = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    return get_savable_loader(get_train_dataset(source, **train_arguments(source, encoder, worker), **more))


def members(batches: Any) -> list[Sequence[str]]:
    return [batch["sample_ids"][0] for batch in batches]


def test_every_sample_of_the_packed_dataset_is_in_a_pack_once(
    source: Path, offline: Path, encoder: PackedTaskEncoder
) -> None:
    """A sample that is lost between Energon's buffers, or left out for another reason than offline, is in no ledger."""
    batches = list(loader(source, encoder, repeat=False))
    found = Counter(name for pack in members(batches) for name in pack)
    assert found == Counter(key for _, key, _ in lengths(offline))
    for batch in batches:
        assert batch["num_tokens"] <= TOKENS
        assert batch["num_dropped"] == 0
    left_out = [line["reason"] for line in json_lines(offline / "skipped.jsonl")]
    assert len(found) + len(left_out) == 320


def test_a_sample_is_encoded_as_in_a_pack_on_disk(
    source: Path, offline: Path, encoder: PackedTaskEncoder, demo: tuple[Path, Path]
) -> None:
    """Else online and offline are not compared, but two kinds of data."""
    disk = online(offline, demo)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(offline, **train_arguments(offline, disk, worker), repeat=False)
    rows: list[dict[str, torch.Tensor]] = []
    for batches in (get_savable_loader(dataset), loader(source, encoder, repeat=False)):
        of_members: dict[str, torch.Tensor] = {}
        for batch in batches:
            starts = batch["cu_seq_lens_q"].tolist()
            for name, start, end in zip(batch["sample_ids"][0], starts, starts[1:], strict=False):
                row = [batch[key][0, start:end] for key in ("input_ids", "labels")]
                of_members[name.rpartition("/")[2]] = torch.stack([*row, *batch["position_ids"][:, 0, start:end]])
        rows.append(of_members)
    assert rows[0].keys() == rows[1].keys()
    assert all(torch.equal(row, rows[1][name]) for name, row in rows[0].items())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_restored_loader_goes_on_with_the_same_packs(
    source: Path, encoder: PackedTaskEncoder, num_workers: int
) -> None:
    """Energon restores what waits by making it again: with any state in the encoder it would be other packs."""
    first = loader(source, encoder, num_workers)
    stream = iter(first)
    before = [next(stream) for _ in range(9)]
    state = first.save_state_rank()
    expected = members(islice(stream, 20))
    again = loader(source, encoder, num_workers)
    again.restore_state_rank(state)
    assert members(islice(iter(again), 20)) == expected
    assert members(before) != expected[:9]
    restored = again.restore_sample(before[4]["__restore_key__"])
    assert torch.equal(restored["input_ids"], before[4]["input_ids"])


def test_nothing_is_decoded_before_a_pack_is_made(encoder: PackedTaskEncoder, demo: tuple[Path, Path]) -> None:
    """A buffer of decoded images is what fills the memory of a worker."""
    from support.samples import picture

    image = LazyImage(picture(56, 56), "x")
    turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A word."}]
    sample = MultiMixQASample(__key__="k", __restore_key__=(), messages=turns, image=[image])
    waiting = encoder.encode_sample(sample)
    assert type(image) is LazyImage
    (chosen,) = encoder.select_samples_to_pack([waiting])
    pack = encoder.pack_selected_samples(chosen)
    assert type(image) is not LazyImage
    assert pack.members[0].num_images == 1
    assert len(pack.members[0].tokens) == waiting.measured.token_len


def test_packs_and_encoders_that_do_not_go_together(
    offline: Path, source: Path, demo: tuple[Path, Path], encoder: PackedTaskEncoder
) -> None:
    """Otherwise packs that were packed again, or unpacked samples, would be trained on without a warning."""
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with pytest.raises(ValueError, match="is packed: packing_buffer_size=24 packs unpacked samples"):
        train_arguments(offline, encoder, worker)
    arguments = train_arguments(source, encoder, worker)
    with pytest.raises(FatalSampleError, match="is a pack: packing_buffer_size packs unpacked samples"):
        next(iter(get_savable_loader(get_train_dataset(offline, **arguments))))
    for left in ("task_encoder", "packing_buffer_size"):
        other = {**arguments, "task_encoder": online(offline, demo), "packing_buffer_size": None}
        other[left] = arguments[left]
        with pytest.raises(ValueError, match=r"PackedTaskEncoder\(packing_buffer_size=.*, and Energon was given"):
            get_train_dataset(source, **other)


def test_a_sample_that_can_not_be_read_ends_the_training_by_default(
    source: Path, offline: Path, demo: tuple[Path, Path]
) -> None:
    """Energon would leave it out in silence."""
    strict = online(offline, demo, packing_buffer_size=24, on_bad_member="raise")
    turns = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A word."}]
    sample = MultiMixQASample(__key__="k", __restore_key__=(), messages=turns, image=[LazyImage(b"torn", "x")])
    with pytest.raises(FatalSampleError, match=r"k: unreadable_media: .*on_bad_member=drop leaves such a sample out"):
        strict.encode_sample(sample)

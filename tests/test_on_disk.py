"""Packs on disk by number: the packs that other readers give, for any loader that wants a map-style dataset."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from energon_pack import PackError, PackSampler
from energon_pack.on_disk import PackedDataset
from energon_pack.task_encoder import inputs_of
from support.alone import pack_demo
from support.packed import train
from support.running import need_torchvision


@pytest.fixture(scope="module")
def folder(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_torchvision()
    return pack_demo(demo, cache, tmp_path_factory.mktemp("on_disk"))


@pytest.fixture(scope="module")
def packs(folder: Path, demo: tuple[Path, Path]) -> PackedDataset:
    return PackedDataset(folder, str(demo[1]))


def test_they_are_the_packs_that_energon_reads(packs: PackedDataset, folder: Path) -> None:
    """Another order, or a pack of another shard under a number, and `length` would be another pack's."""
    theirs = {pack.__key__: [member.sample_id for member in inputs_of(pack)] for pack in train(folder)}
    assert len(packs) == len(theirs)
    for number in range(len(packs)):
        pack = packs[number]
        assert [member.sample_id for member in pack.members] == theirs[pack.key]
        assert [member.sample_id for member in packs.members(0, number)] == theirs[pack.key]
        assert sum(len(member.tokens) for member in pack.members) == packs.lens()[number]


def test_a_worker_puts_small_tensors_into_one_buffer(packs: PackedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would cross to the training process by itself; where nothing crosses, copying them is time for nothing."""
    in_process = packs.collate([packs[0]])
    monkeypatch.setattr("energon_pack.training.pack_encoder.get_worker_info", object)
    in_worker = packs.collate([packs[0]])
    storages = [
        {value.untyped_storage().data_ptr() for _, value in batch._tensors() if 0 < value.nbytes <= 4 << 20}
        for batch in (in_process, in_worker)
    ]
    assert len(storages[0]) > len(storages[1]) == 1
    assert torch.equal(in_process["input_ids"], in_worker["input_ids"])


def test_a_hydra_application_makes_them_by_target(folder: Path, packs: PackedDataset) -> None:
    """`_target_` with `path`, as in its own YAML: another name of the argument would be an error at the start."""
    node = OmegaConf.create({"_target_": "energon_pack.PackedDataset", "path": str(folder), "layout": "thd"})
    made = instantiate(node)
    assert (len(made), made.encoder.layout) == (len(packs), "thd")
    assert made.collate([made[0]])["num_tokens"] == packs.collate([packs[0]])["num_tokens"]


def test_a_copy_in_a_worker_reads_the_same(packs: PackedDataset) -> None:
    copied = pickle.loads(pickle.dumps(packs))
    (batch,) = DataLoader(copied, 2, sampler=[3, 1], collate_fn=copied.collate)
    assert batch["__key__"] == [packs[3].key, packs[1].key]


def test_ranks_share_each_epoch_in_another_order(packs: PackedDataset) -> None:
    """With one rank, too: the packs are the same in each epoch."""
    for ranks in (1, 2):
        first, second = (
            PackSampler(packs, 0, ranks).of_all_ranks(2 * len(packs))[start : start + len(packs)]
            for start in (0, len(packs))
        )
        assert {number for _, number in first} == {number for _, number in second} == {*range(len(packs))}
        assert [number for _, number in first] != [number for _, number in second]


def test_a_shard_that_is_missing_is_named(folder: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """It said that there are other numbers of packs, and not where."""
    lacking = Path(shutil.copytree(folder, tmp_path / "packed"))
    shard = max(lacking.glob("*.tar"))
    shard.unlink()
    with pytest.raises(PackError, match=f"{shard.name} is missing: copy it again from where it is whole"):
        PackedDataset(lacking, str(demo[1]))


def test_a_part_or_a_folder_that_is_not_there_is_named(
    packs: PackedDataset, folder: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(PackError, match=r"split=val: .* has no pack in it"):
        PackedDataset(folder, str(demo[1]), split="val")
    with pytest.raises(FileNotFoundError, match="no dataset that energon_pack packed"):
        PackedDataset(tmp_path)
    with pytest.raises(IndexError, match=f"pack {len(packs)} of {len(packs)}"):
        packs[len(packs)]
    assert torch.equal(packs[-1].members[0].tokens.ids, packs[len(packs) - 1].members[0].tokens.ids)

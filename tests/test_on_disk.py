"""Packs on disk by number: the packs that other readers give, for any loader that wants a map-style dataset."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from energon_pack import PackError, PackSampler
from energon_pack.loading.task_encoder import inputs_of
from energon_pack.trainers.on_disk import PackedDataset
from support.packed import train


def test_they_are_the_packs_that_energon_reads(demo_packs: PackedDataset, demo_folder: Path) -> None:
    """Another order, or a pack of another shard under a number, and `length` would be another pack's."""
    theirs = {pack.__key__: [member.sample_id for member in inputs_of(pack)] for pack in train(demo_folder)}
    assert len(demo_packs) == len(theirs)
    for number in range(len(demo_packs)):
        pack = demo_packs[number]
        assert [member.sample_id for member in pack.members] == theirs[pack.key]
        assert [member.sample_id for member in demo_packs.members(0, number)] == theirs[pack.key]
        assert sum(len(member.tokens) for member in pack.members) == demo_packs.lens()[number]


def test_a_worker_puts_small_tensors_into_one_buffer(
    demo_packs: PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would cross to the training process by itself; where nothing crosses, copying them is time for nothing."""
    in_process = demo_packs.collate([demo_packs[0]])
    monkeypatch.setattr("energon_pack.training.pack_encoder.get_worker_info", object)
    in_worker = demo_packs.collate([demo_packs[0]])
    storages = [
        {value.untyped_storage().data_ptr() for _, value in batch._tensors() if 0 < value.nbytes <= 4 << 20}
        for batch in (in_process, in_worker)
    ]
    assert len(storages[0]) > len(storages[1]) == 1
    assert torch.equal(in_process["input_ids"], in_worker["input_ids"])


def test_a_hydra_application_makes_them_by_target(demo_folder: Path, demo_packs: PackedDataset) -> None:
    """`_target_` with `path`, as in its own YAML: another name of the argument would be an error at the start."""
    node = OmegaConf.create({"_target_": "energon_pack.PackedDataset", "path": str(demo_folder), "layout": "thd"})
    made = instantiate(node)
    assert (len(made), made.encoder.layout) == (len(demo_packs), "thd")
    assert made.collate([made[0]])["num_tokens"] == demo_packs.collate([demo_packs[0]])["num_tokens"]


def test_a_copy_in_a_worker_reads_the_same(demo_packs: PackedDataset) -> None:
    copied = pickle.loads(pickle.dumps(demo_packs))
    (batch,) = DataLoader(copied, 2, sampler=[3, 1], collate_fn=copied.collate)
    assert batch["__key__"] == [demo_packs[3].key, demo_packs[1].key]


def test_ranks_share_each_epoch_in_another_order(demo_packs: PackedDataset) -> None:
    """With one rank, too: the packs are the same in each epoch."""
    for ranks in (1, 2):
        first, second = (
            PackSampler(demo_packs, 0, ranks).of_all_ranks(2 * len(demo_packs))[start : start + len(demo_packs)]
            for start in (0, len(demo_packs))
        )
        assert {number for _, number in first} == {number for _, number in second} == {*range(len(demo_packs))}
        assert [number for _, number in first] != [number for _, number in second]


def test_the_seed_of_the_packing_orders_steps(demo_folder: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """It was 0 for all datasets; a state of the order by seed 0 would give some packs twice."""
    made = [PackedDataset(demo_folder, str(demo[1]))]
    other = Path(shutil.copytree(demo_folder, tmp_path / "packed"))
    manifest = other / ".nv-meta/energon_pack.json"
    content = json.loads(manifest.read_text())
    content["content"]["plan"]["seed"] = 5
    manifest.write_text(json.dumps(content))
    made.append(PackedDataset(other, str(demo[1])))
    assert [packs.config.seed for packs in made] == [0, 5]
    first, second = (PackSampler(packs, 0, 2).of_all_ranks(len(packs)) for packs in made)
    assert first != second
    assert sorted(first) == sorted(second)
    sampler = PackSampler(made[1], 0, 2)
    next(iter(sampler))
    state = sampler.state_dict()
    PackSampler(made[1], 0, 2, states=[state])
    earlier = {
        "position": {**state["position"], "stream": PackSampler(made[0], 0, 2).state_dict()["position"]["stream"]}
    }
    with pytest.raises(ValueError, match="states of another dataset"):
        PackSampler(made[1], 0, 2, states=[earlier])
    content["content"]["plan"] = None
    manifest.write_text(json.dumps(content))
    assert PackedDataset(other, str(demo[1])).config.seed == 0


def test_a_shard_that_is_missing_is_named(demo_folder: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """It said that there are other numbers of packs, and not where."""
    lacking = Path(shutil.copytree(demo_folder, tmp_path / "packed"))
    shard = max(lacking.glob("*.tar"))
    shard.unlink()
    with pytest.raises(PackError, match=f"{shard.name} is missing: copy it again from where it is whole"):
        PackedDataset(lacking, str(demo[1]))


def test_a_part_or_a_folder_that_is_not_there_is_named(
    demo_packs: PackedDataset, demo_folder: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(PackError, match=r"split=val: .* has no pack in it"):
        PackedDataset(demo_folder, str(demo[1]), split="val")
    with pytest.raises(FileNotFoundError, match="no dataset that energon_pack packed"):
        PackedDataset(tmp_path)
    with pytest.raises(IndexError, match=f"pack {len(demo_packs)} of {len(demo_packs)}"):
        demo_packs[len(demo_packs)]
    assert torch.equal(demo_packs[-1].members[0].tokens.ids, demo_packs[len(demo_packs) - 1].members[0].tokens.ids)

"""Several datasets of preference pairs in one training: an order over them, and a blend."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset

from energon_pack import PackedDataset, PackedTaskEncoder, metadataset, order, train_arguments, write_reference_logps
from energon_pack.errors import PackError
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.samples.settings import PreferenceTake
from support.packed import demo_config, packed
from support.pairs import check_whole, write_pairs
from support.running import ROOT, command

NUM_PAIRS = {"first": 8, "second": 12}


@pytest.fixture(scope="module")
def folders(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two datasets whose pairs have the same ids, and other values."""
    folder, made = tmp_path_factory.mktemp("joined"), []
    for name, number in NUM_PAIRS.items():
        (folder / name).mkdir()
        source = write_pairs(folder / name, number)
        words: dict[str, Any] = {"source__take": PreferenceTake.both, "packing__share": SharedBeginnings.prefix}
        run = demo_config(demo, cache, folder, source, packing__max_token_len=600, **words)
        run.output.name = f"of_{name}"
        made.append(packed(run))
    return made


def batches_of(path: Path, number: int, **options: Any) -> list[Any]:
    """The first batches of training on a dataset, an order or a blend."""
    encoder = PackedTaskEncoder(path, **options)
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    arguments = train_arguments(path, encoder, worker)
    dataset = get_train_dataset(path, **arguments, repeat=path.suffix == ".yaml")
    return [*islice(get_savable_loader(dataset), number)]


def counted(packs: PackedDataset, start: float) -> Iterator[tuple[Any, torch.Tensor]]:
    """Each batch of a dataset, with numbers in the place of log-probabilities."""
    for number in range(len(packs)):
        batch = packs.collate([packs[number]])
        end = start + 2 * len(batch["preference_pairs"])
        yield batch, torch.arange(start, end, dtype=torch.float64)
        start = end


def test_an_order_and_a_blend_of_pairs_have_whole_pairs_and_their_reference(
    folders: list[Path], tmp_path: Path
) -> None:
    """In an order, ids begin with the dataset's name; the reference of a member was not found by it."""
    assert order.main([str(tmp_path / "order"), *map(str, folders)]) == 0
    blend = tmp_path / "blend.yaml"
    assert metadataset.main([str(blend), *map(str, folders)]) == 0
    weights = [entry["weight"] for entry in yaml.safe_load(blend.read_text())["splits"]["train"]["blend"]]
    assert weights == [*NUM_PAIRS.values()]  # a pair is one sample
    each = [[*counted(PackedDataset(folder), 100.0 * number)] for number, folder in enumerate(folders, 1)]
    path, expected = tmp_path / "reference.npz", dict[tuple[str, str], float]()
    for batch, values in chain(*each):
        prefix = batch["__key__"][0].partition("_")[0]
        expected |= dict(zip([(prefix, name) for name in batch["sample_ids"][0]], values.tolist(), strict=True))
    assert write_reference_logps(path, chain(*each)) == 2 * sum(NUM_PAIRS.values())
    for joined in (tmp_path / "order", blend):
        batches = batches_of(joined, sum(map(len, each)), reference_logps=str(path))
        rows = [row for batch in batches for row in batch["sample_ids"]]
        assert check_whole(rows)
        if joined != blend:
            named = [f"of_{name}/pairs.jsonl:{n + 1}" for name, number in NUM_PAIRS.items() for n in range(number)]
            assert check_whole(rows) == dict.fromkeys(named, 1)
        for batch in batches:
            assert "labels" in batch
            prefix, names = batch["__key__"][0].partition("_")[0], batch["sample_ids"][0]
            assert batch["reference_logps"].tolist() == [expected[prefix, name.rpartition("/")[2]] for name in names]
            assert batch["preference_pairs"].flatten().tolist() == [*range(len(names))]


def test_pairs_are_joined_with_no_other_samples(folders: list[Path], demo_folder: Path, tmp_path: Path) -> None:
    for tool in (order, metadataset):
        with pytest.raises(PackError, match="different settings"):
            tool.main([str(tmp_path / "out.yaml"), str(folders[0]), str(demo_folder)])


@pytest.mark.slow
def test_a_recipe_writes_the_reference_of_several_datasets(folders: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "reference.npz"
    done = command(ROOT / "recipes" / "reference_logps.py", *folders, path, cwd=tmp_path)
    assert f"{sum(NUM_PAIRS.values())} pairs" in done.stdout, done.stderr
    assert order.main([str(tmp_path / "order"), *map(str, folders)]) == 0
    for batch in batches_of(tmp_path / "order", 100, reference_logps=str(path)):
        assert (batch["reference_logps"] < 0).all()

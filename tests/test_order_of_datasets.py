"""One order over several packed datasets: shares, even steps and other numbers of ranks hold as in one dataset."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_val_dataset

from energon_pack.config import MediaIn, PackConfig, SplitsConfig
from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import PackError
from energon_pack.loading import train_arguments
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.order import main
from energon_pack.pack import pack
from energon_pack.plan.existing_packs import num_draws_by_pass
from energon_pack.templates.settings import LabelsConfig, TrainOn
from support.loaders import Training
from support.packed import demo_config
from support.running import command_here
from support.samples import chat, noise, write_tar

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("text", "seen")


@pytest.fixture(scope="module")
def made(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs of text, and packs of images that refer to their source; both with a part for validation."""
    folder = tmp_path_factory.mktemp("made")
    members = {f"{i}.json": chat("Why? ", "a " * (1 + 37 * i % 200)) for i in range(150)}
    seen: dict[str, bytes] = {}
    for i in range(60):
        seen |= {f"{i}.json": chat("<image>?", "b " * (1 + 17 * i % 60)), f"{i}.png": noise(i, 100)}
    write_tar(folder / "sources/text/a.tar", members)
    write_tar(folder / "sources/seen/a.tar", seen)
    for name in NAMES:
        media = MediaIn.reference if name == "seen" else MediaIn.copy
        run = demo_config(demo, cache, folder / "packed", folder / "sources" / name, packing__max_token_len=512)
        run.output.name, run.output.splits, run.output.media = name, SplitsConfig(val=0.1), media
        run.output.max_shard_packs = 9
        pack(run)
    return folder / "packed"


@pytest.fixture
def given(made: Path) -> list[str]:
    return [str(made / "text=70"), str(made / "seen=30")]


def order_of(folder: Path) -> np.ndarray:
    found: np.ndarray = np.load(folder / ".nv-meta/order.npy")
    return found


def packs_of(made: Path) -> list[tuple[str, ...]]:
    """The samples of each pack of the train splits, under the name of its dataset."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in NAMES:
        shards = yaml_of(made / name)["train"]
        for table in PlanFile(DatasetFolder(made / name)).tables("pack", "shard", "key", "output_shard"):
            for row in table.to_pylist():
                if row["output_shard"] in shards:
                    found.setdefault((name, row["pack"]), []).append(f"{name}/{row['shard']}/{row['key']}")
    return [*map(tuple, found.values())]


def yaml_of(folder: Path) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = yaml.safe_load((folder / ".nv-meta/split.yaml").read_text())["split_parts"]
    return parts


def test_it_is_read_by_other_numbers_of_ranks(
    made: Path, given: list[str], demo: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped with 4 ranks, again with 3, and on with 8: each pack as often as planned, in the order that one rank
    reads; their media come from the sources of their own datasets.
    """
    out = tmp_path / "both"
    assert main([str(out), *given, "--ranks", "4"]) == 0
    assert "asked: 70.00%" in capsys.readouterr().out
    order, packs = order_of(out), packs_of(made)
    num = len(order)
    whole = Training(out, demo[1], 1).read(num)
    assert Counter(whole) == Counter(packs[number] for number in order)
    assert not list(out.rglob("*.tar"))
    found: list[tuple[str, ...]] = []
    states: list[Any] = []
    for ranks, turns in ((4, 3), (3, 5), (8, 2)):
        training = Training(out, demo[1], ranks, states)
        found += training.read(turns)
        states = training.states
    assert found == whole[: len(found)]


def test_it_has_the_shares_and_says_who_reads_it(made: Path, given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "both"
    main([str(out), *given, "--ranks", "2", "--micro-batches", "4", "--epochs", "3"])
    order = order_of(out)
    manifest = json.loads((out / ".nv-meta/energon_pack.json").read_text())
    assert manifest["entries"] == [*NAMES]
    assert manifest["topology"] == {"data_parallel": 2, "workers": 1, "micro_batches": 4}
    trained = {tuple(row["ids"]): row["trained"] for row in trained_of(made)}
    tokens = np.array([trained[ids] for ids in packs_of(made)])
    is_seen = np.array([ids[0].startswith("seen/") for ids in packs_of(made)])
    assert abs(tokens[order][is_seen[order]].sum() / tokens[order].sum() - 0.3) < 0.01
    for epoch in np.array_split(order, 3):
        assert abs(tokens[epoch][is_seen[epoch]].sum() / tokens[epoch].sum() - 0.3) < 0.04


def trained_of(made: Path) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in NAMES:
        columns = PlanFile(DatasetFolder(made / name)).columns("pack", "shard", "key", "num_supervised")
        for packs, shards, keys, nums in columns:
            for pack_, shard, key, num in zip(packs, shards, keys, nums, strict=True):
                row = found.setdefault((name, pack_), {"ids": [], "trained": 0})
                row["ids"].append(f"{name}/{shard}/{key}")
                row["trained"] += num
    return list(found.values())


def test_passes_have_each_pack_once() -> None:
    """2.5 times are three passes, in each of which five sixths of the packs are; of few packs passes have more."""
    entry, trained = np.repeat([0, 1], [60, 40]), np.full(100, 10)
    assert num_draws_by_pass([1, 1], entry, trained, 1).tolist() == [[1] * 100]
    counts = num_draws_by_pass([2.5, 0.5], entry, trained, 1)
    assert counts.shape == (2, 100)  # 3 passes would have fewer than 64 steps each
    counts = num_draws_by_pass([2.5, 0.5], np.repeat(entry, 10), np.repeat(trained, 10), 1)
    assert counts.shape == (3, 1000)
    assert counts.max() == 1
    assert set(counts[:, :600].sum(axis=0).tolist()) == {2, 3}
    assert counts[:, :600].sum() == 1500


def test_validation_has_all_datasets(made: Path, given: list[str], demo: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "both"
    main([str(out), *given])
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    encoder = PackedTaskEncoder(out, str(demo[1]))
    packs = get_val_dataset(out, split_part="val", worker_config=worker, batch_size=1, task_encoder=encoder)
    names = {ids.partition("/")[0] for batch in get_savable_loader(packs) for row in batch["sample_ids"] for ids in row}
    assert names == set(encoder.sources) == set(NAMES)


def test_it_may_move_with_its_datasets(made: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copytree(made / name, tmp_path / "a" / name)
    main([str(tmp_path / "a/both"), *(str(tmp_path / "a" / name) for name in NAMES), "--relative"])
    (tmp_path / "a").rename(tmp_path / "b")
    assert len(Training(tmp_path / "b/both", demo[1], 1).read(4)) == 4


def test_a_dataset_that_was_packed_again_is_named(made: Path, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Its tars have other packs now: numbers would be those of others."""
    for name in NAMES:
        shutil.copytree(made / name, tmp_path / name)
    out = tmp_path / "both"
    main([str(out), *(str(tmp_path / name) for name in NAMES)])
    path = tmp_path / "seen/.nv-meta/energon_pack.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_packs": 1}))
    with pytest.raises(ValueError, match="seen was packed again since: make the order anew"):
        Training(out, demo[1], 1)


def test_energons_own_dealing_is_refused(made: Path, given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "both"
    main([str(out), *given])
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with pytest.raises(ValueError, match="is an order over datasets, which Energon's own dealing does not know"):
        train_arguments(out, DefaultTaskEncoder(), worker)


def test_what_makes_no_sense_is_one_line(
    made: Path, given: list[str], config: Callable[..., PackConfig], tmp_path: Path
) -> None:
    run = config(made.parent / "sources/text", output__name="last", labels=LabelsConfig(TrainOn.last))
    pack(run)
    out, text = str(tmp_path / "out" / "both"), str(made / "text")
    other = str(Path(run.output.dir) / "last")
    wrong = [
        ([out, text, text], "text is named twice: give it once, with a larger weight"),
        ([out, f"{text}=1", str(made / "seen")], "no weight, beside others that have one"),
        ([out, f"{text}=-1"], "the weight -1 is not more than 0"),
        ([out, text, other], "was packed with labels="),
        ([out, text, "--workers", "3", "--micro-batches", "2"], "one has to be a multiple of the other"),
        ([str(made / "text"), text], "text exists; it is no order over datasets"),
        (["s3://bucket/both", text], "an order is a folder of this machine"),
        ([out, str(made)], "is not a dataset that energon_pack packed"),
    ]
    for arguments, said in wrong:
        with pytest.raises(PackError, match=said):
            main(arguments)
    assert not Path(out).exists()
    main([out, *given])
    with pytest.raises(PackError, match=r"both exists; --overwrite replaces it"):
        main([out, *given])
    main([out, *given, "--overwrite"])
    with pytest.raises(PackError, match="is an order itself"):
        main([str(tmp_path / "nested"), out])
    line = command_here("energon_pack.verify", out, cwd=tmp_path).stderr
    assert "is an order over datasets" in line

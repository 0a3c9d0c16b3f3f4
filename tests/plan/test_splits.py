"""Splits: a sample is in the same one whatever else is there, no pack holds samples of two, and Energon reads each."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from megatron.energon import WorkerConfig, get_loader, get_val_dataset

from energon_pack.config import Overlong, PackConfig, SplitsConfig
from energon_pack.config.schema import complete_split_shares
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.plan.splits import assign_samples_to_splits
from energon_pack.verify import Options, verify
from support.packed import demo_config
from support.samples import chat, write_tar

Make = Callable[..., PackConfig]


def ids(folder: Path, split: str) -> list[str]:
    """The samples of a split, through Energon."""
    worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
    packs: Any = get_loader(get_val_dataset(folder, split_part=split, worker_config=worker, batch_size=None))
    return [sample_id for pack in packs for sample_id in pack.sample_ids]


@pytest.mark.parametrize(
    ("given_shares", "shares"),
    [
        ({"train": None, "val": 0.25, "test": 0.0}, (0.75, 0.25, 0.0)),
        ({"train": 0.5, "val": 0.25, "test": 0.25}, (0.5, 0.25, 0.25)),
        ({"val": 1.0}, (0.0, 1.0, 0.0)),
    ],
)
def test_train_is_the_rest(given_shares: dict[str, float | None], shares: tuple[float, ...]) -> None:
    assert complete_split_shares(given_shares) == shares


@pytest.mark.parametrize("bad", [{"val": 1.5}, {"train": 0.9, "val": 0.2}, {"val": -0.1}])
def test_shares_that_do_not_come_to_1(bad: dict[str, float]) -> None:
    with pytest.raises(PackError, match=r"output\.splits"):
        complete_split_shares(bad)


def test_shares_are_about_kept() -> None:
    counts = [0, 0, 0]
    for number in assign_samples_to_splits((f"a/{i:05d}" for i in range(10_000)), (0.8, 0.15, 0.05), seed=3):
        counts[number] += 1
    assert abs(counts[0] - 8000) < 150
    assert abs(counts[1] - 1500) < 150


@given(st.lists(st.text(max_size=8), max_size=20), st.text(max_size=8), st.integers(0, 2**40))
def test_a_sample_stays_where_it_is_when_others_come(keys: list[str], key: str, seed: int) -> None:
    """Otherwise one that was validated on is trained on after data were added."""
    shares = (0.5, 0.3, 0.2)
    (alone,) = assign_samples_to_splits([key], shares, seed)
    assert assign_samples_to_splits([*keys, key], shares, seed)[-1] == alone
    assert list(assign_samples_to_splits([f"x{key}", f"x{key}@2"], shares, seed)[:1]) == list(
        assign_samples_to_splits([f"x{key}@2"], shares, seed)
    )


@pytest.fixture(scope="module")
def packed(
    demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """120 of the demo's samples, a fifth of them for validation, and the figures of packing them."""
    settings: dict[str, Any] = {
        "packing__max_token_len": 2048,
        "output__splits": SplitsConfig(val=0.2),
        "source__limit": 120,
    }
    run = demo_config(demo, cache, tmp_path_factory.mktemp("splits"), **settings)
    return pack(run), Path(run.output.dir) / "packed"


@pytest.fixture
def copy(packed: tuple[dict[str, Any], Path], tmp_path: Path) -> Path:
    """The dataset, to be damaged."""
    return Path(shutil.copytree(packed[1], tmp_path / "packed"))


def test_each_sample_is_in_its_split_and_energon_reads_both(packed: tuple[dict[str, Any], Path]) -> None:
    figures, folder = packed
    train, val = ids(folder, "train"), ids(folder, "val")
    assert len(train) + len(val) == len({*train, *val}) == 120
    assert [figures["by_split"][name]["samples"] for name in ("train", "val")] == [len(train), len(val)]
    assert not assign_samples_to_splits(train, (0.8, 0.2, 0.0), 0).any()
    assert all(assign_samples_to_splits(val, (0.8, 0.2, 0.0), 0) == 1)
    assert not verify(folder, Options(source=[], num_workers=1)).num_defects


def test_verify_finds_shards_in_the_wrong_split(copy: Path) -> None:
    path = copy / ".nv-meta" / "split.yaml"
    value = yaml.safe_load(path.read_text())
    parts = value["split_parts"]
    parts["train"], parts["val"] = parts["val"], parts["train"]
    path.write_text(yaml.safe_dump(value))
    defects = [defect.detail for defect in verify(copy, Options(num_workers=1)).first_defects(20)]
    assert "packed-000000.tar is in split val, and holds samples of train" in defects


def test_verify_counts_each_split(copy: Path) -> None:
    """A blend is weighted by what the manifest counts of a split, and training reads its mask."""
    manifest, report = copy / ".nv-meta" / "energon_pack.json", copy / "report.json"
    changes: list[tuple[Path, Callable[[Any], None]]] = [
        (manifest, lambda value: value["splits"]["val"].update(samples=1)),
        (manifest, lambda value: value.update(mask="dict4d")),
        (report, lambda value: value["by_split"]["val"].update(packs=1)),
    ]
    for path, change in changes:
        whole = path.read_text()
        value = json.loads(whole)
        change(value)
        path.write_text(json.dumps(value))
        changed = ["metadata"] if path == manifest else []  # report.json has the manifest's hash
        assert [*verify(copy, Options(num_workers=1)).num_defects] == [*changed, "totals"]
        path.write_text(whole)
    assert not verify(copy, Options(num_workers=1)).num_defects


def test_parts_of_a_sample_are_all_in_its_split(config: Make, tmp_path: Path) -> None:
    long = chat(*(f"{word} " * 20 for word in ["ask", "tell"] * 6))
    source = write_tar(tmp_path / "source" / "x.tar", {f"{i}.json": long for i in range(20)})
    splits = SplitsConfig(val=0.4)
    run = config(source, packing__max_token_len=256, packing__overlong=Overlong.split_turns, output__splits=splits)
    figures = pack(run)
    assert figures["parts"] > 40
    folder = Path(run.output.dir) / "packed"
    whole = [{sample_id.partition("#")[0] for sample_id in ids(folder, split)} for split in ("train", "val")]
    assert whole[0]
    assert whole[1]
    assert not whole[0] & whole[1]


def test_a_split_without_a_sample_is_an_error(config: Make, tmp_path: Path) -> None:
    source = write_tar(tmp_path / "source" / "x.tar", {"a.json": chat("hi", "ho")})
    with pytest.raises(PackError, match=r"output.splits.val=0.01: of 1 sample none is in it"):
        pack(config(source, output__splits=SplitsConfig(val=0.01)))

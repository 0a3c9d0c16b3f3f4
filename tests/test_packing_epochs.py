"""packing.epochs: each epoch has every sample, in other packs, and its steps are even as those of one epoch are."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.config import Format, MediaIn, Overlong
from energon_pack.config.schema import SplitsConfig
from energon_pack.dataset.files import PlanFile
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.errors import PackError
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.pack import pack
from energon_pack.plan.packs import flops_of_packs, mixture_turn_of_packs
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.settings import PackingConfig
from energon_pack.steps.cost import cost_model_or_default
from energon_pack.steps.evenness import epoch_slowdown
from energon_pack.steps.topology import Topology, reading_order
from support.loaders import Training
from support.marks import slow
from support.packed import Make, files, json_lines, packed
from support.plans import items, packs
from support.running import command_here
from support.samples import chat, picture, write_tar


def write_set(path: Path, num: int, most: int, turns: int = 1) -> Path:
    drawn = random.Random(path.name)
    lines = []
    for number in range(num):
        messages = []
        for _ in range(turns):
            messages += [{"role": "user", "content": f"{path.stem} {number}?"}]
            messages += [{"role": "assistant", "content": " ".join(["word"] * drawn.randint(1, most))}]
        lines.append(json.dumps({"messages": messages}) + "\n")
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(lines))
    return path


def packs_of(folder: Path) -> list[list[str]]:
    """The samples of each pack, copies as the sample they are of, in the order of the packs."""
    found: dict[str, list[str]] = {}
    for names, shards, keys in PlanFile(DatasetFolder(folder)).columns("pack", "shard", "key"):
        for name, shard, key in zip(names, shards, keys, strict=True):
            found.setdefault(name, []).append(f"{shard}:{key.partition('@')[0]}")
    return list(found.values())


def by_epoch(folder: Path) -> list[list[list[str]]]:
    report = json.loads((folder / "report.json").read_text())
    sizes = [epoch["packs"] for epoch in report["turns"]]
    rows = packs_of(folder)
    return [rows[start : start + size] for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False)]


def test_each_epoch_has_every_sample_in_other_packs(config: Make, tmp_path: Path) -> None:
    """A second epoch of the same packs shows each sample among the same others, at the same place in its step."""
    source = write_set(tmp_path / "sets/chat.jsonl", 300, 60)
    run = config(source, source__format=Format.auto, packing__max_token_len=512, packing__epochs=3)
    run.output.splits = SplitsConfig(val=0.1)
    folder = packed(run)
    report = json.loads((folder / "report.json").read_text())
    num_val = report["by_split"]["val"]["samples"]
    assert report["samples_in"] == 3 * (300 - num_val) + num_val == report["samples_packed"]
    epochs = by_epoch(folder)
    wanted = Counter(sample for pack_ in epochs[0] for sample in pack_)
    assert len(wanted) == 300 - num_val
    assert set(wanted.values()) == {1}
    assert all(Counter(sample for pack_ in epoch for sample in pack_) == wanted for epoch in epochs)
    as_sets = [{frozenset(pack_) for pack_ in epoch if len(pack_) > 1} for epoch in epochs]
    assert len(set().union(*as_sets)) > 0.97 * sum(map(len, as_sets))  # of so few samples some meet again by chance
    lines = json_lines(folder / "skipped.jsonl")
    assert lines == []
    verified = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_one_epoch_is_the_first(config: Make, tmp_path: Path) -> None:
    """More epochs go on where fewer end: the first is the same, whatever follows."""
    source = write_set(tmp_path / "sets/chat.jsonl", 100, 60)
    one, two = (packed(config(source, source__format=Format.auto, packing__max_token_len=512, packing__epochs=num,
                              output__name=f"epochs{num}")) for num in (1, 2))  # fmt: skip
    assert packs_of(two)[: len(packs_of(one))] == packs_of(one)
    again = packed(config(source, source__format=Format.auto, packing__max_token_len=512, packing__epochs=2,
                          output__name="again"))  # fmt: skip
    assert files(again) == files(two)


def test_half_of_an_entry_comes_every_other_time(config: Make, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_set(tmp_path / f"sets/{name}.jsonl", 60, 20)
    mix = tmp_path / "sets/mix.yaml"
    mix.write_text(json.dumps({"mixture": [{"path": "a.jsonl", "epochs": 0.5}, {"path": "b.jsonl", "epochs": 1.5}]}))
    folder = packed(config(str(mix), source__format=Format.auto, packing__max_token_len=512, packing__epochs=4))
    had = [Counter(sample for pack_ in epoch for sample in pack_) for epoch in by_epoch(folder)]
    assert [sum(of.values()) for of in had] == [30 + 90] * 4
    halves = [{sample for sample in of if sample.startswith("a/")} for of in had]
    assert halves[0] == halves[2] != halves[1] == halves[3]
    assert not halves[0] & halves[1]
    twice = [{sample for sample, times in of.items() if times == 2} for of in had]
    assert not twice[0] & twice[1]
    assert all(times in (2, 6) for times in sum(had, Counter()).values())
    verified = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("is_mixture", [slow(False), True])
def test_parts_of_a_cut_sample_come_as_often_as_it_does(config: Make, tmp_path: Path, is_mixture: bool) -> None:
    """Only the first copy was cut; the others were left out as too long, and the entry had less than it was to have."""
    source = write_set(tmp_path / "sets/a.jsonl", 12, 60, turns=6)
    write_set(tmp_path / "sets/b.jsonl", 12, 60)
    given, epochs = str(source), 2
    if is_mixture:
        given, epochs = str(tmp_path / "sets/mix.yaml"), 1
        entries = [{"path": "a.jsonl", "epochs": 2}, {"path": "b.jsonl"}]
        Path(given).write_text(json.dumps({"mixture": entries}))
    make: Any = {
        "source__format": Format.auto,
        "packing__max_token_len": 512,
        "packing__overlong": Overlong.split_turns,
    }
    once = pack(config(source, **make, output__name="once"))
    assert once["samples_cut"] > 5
    folder = packed(config(given, **make, packing__epochs=epochs))
    report = json.loads((folder / "report.json").read_text())
    assert report["samples_cut"] == 2 * once["samples_cut"]
    assert report["parts"] == 2 * once["parts"] + (12 if is_mixture else 0)
    verified = command_here("energon_pack.verify", str(folder), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_cut_sample_that_is_not_drawn_has_no_part(config: Make, tmp_path: Path) -> None:
    write_set(tmp_path / "sets/a.jsonl", 12, 60, turns=6)
    mix = tmp_path / "sets/mix.yaml"
    mix.write_text(json.dumps({"mixture": [{"path": "a.jsonl", "max_samples": 4}]}))
    report = pack(config(str(mix), source__format=Format.auto, packing__max_token_len=512,
                         packing__overlong=Overlong.split_turns))  # fmt: skip
    assert (report["samples_packed"], report["skipped_by_reason"]) == (4, {"not_drawn": 8})


def test_an_epoch_of_references_has_no_bytes_of_media(config: Make, tmp_path: Path) -> None:
    parts: dict[str, bytes] = {}
    for number in range(8):
        parts |= {f"{number}.json": chat("<image>?", f"{number}"), f"{number}.png": picture(400, 400, "PNG")}
    write_tar(tmp_path / "tars/a.tar", parts)
    folder = packed(config(tmp_path / "tars", packing__epochs=5, output__media=MediaIn.reference))
    assert sum(map(len, packs_of(folder))) == 40
    assert sum(path.stat().st_size for path in folder.rglob("*.tar")) < 60_000


@pytest.mark.parametrize("topology", [Topology(4, 2, 1), Topology(4, 1, 4), Topology(3, 4, 2)])
def test_steps_are_even_in_every_epoch(topology: Topology) -> None:
    """In the order in which ranks read, epochs follow each other, but for the packs that made no whole step."""
    rng = np.random.default_rng(0)
    lens = np.tile(rng.integers(10, 400, 700), 3)
    epoch = np.repeat(np.arange(3), 700)
    some = replace(items(lens, num_supervised=lens // 2), turn=epoch)
    packing = PackingConfig(max_token_len=1024, topology=topology)
    plan = plan_packs(some, packing)
    assert sorted(item for pack_ in packs(plan) for item in pack_) == list(range(2100))
    assert all(len(set(epoch[pack_].tolist())) == 1 for pack_ in packs(plan))
    read = reading_order(plan.num_packs, topology)
    in_time = mixture_turn_of_packs(some, plan)[read]
    out_of_turn = np.flatnonzero(np.diff(np.maximum.accumulate(in_time) - in_time) != 0)
    assert np.count_nonzero(np.maximum.accumulate(in_time) != in_time) < 2 * topology.unit_size, out_of_turn
    costs = flops_of_packs(some, plan, cost_model_or_default(None))[0][read]
    waits = epoch_slowdown(costs, topology.data_parallel, topology.micro_batches)
    alone = replace(some, turn=None).take(np.flatnonzero(epoch == 0))
    first = plan_packs(alone, packing)
    costs = flops_of_packs(alone, first, cost_model_or_default(None))[0][reading_order(first.num_packs, topology)]
    assert waits < epoch_slowdown(costs, topology.data_parallel, topology.micro_batches) + 0.01


@pytest.mark.parametrize("epochs", [0, 1 << 20])
def test_what_makes_no_sense(epochs: int) -> None:
    with pytest.raises(PackError, match=rf"packing\.epochs={epochs}: from 1 to 10,000"):
        PackingConfig(epochs=epochs).check()


def meta(folder: Path) -> Sequence[str]:
    write_set(folder / "a.jsonl", 3, 9)
    (folder / "meta.json").write_text(json.dumps({"a": {"file_name": "a.jsonl", "sample_ratio": 2}}))
    return [str(folder / "meta.json")]


def test_files_that_are_drawn_already_are_refused(config: Make, tmp_path: Path) -> None:
    """Copies of repeated samples would have the same names as an epoch's."""
    with pytest.raises(PackError, match=r"packing\.epochs=2: .*a\.jsonl has a sample_ratio: a mixture names files"):
        pack(config(*meta(tmp_path / "sets"), source__format=Format.auto, packing__epochs=2))


def test_a_dataset_that_packs_in_training_has_epochs_of_its_own(config: Make, tmp_path: Path) -> None:
    run = config(write_set(tmp_path / "sets/a.jsonl", 3, 9), source__format=Format.auto, packing__epochs=2)
    with pytest.raises(PackError, match=r"packing\.epochs=2 is for packs on disk"):
        LazyPackedDataset(run)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_six_kills_lose_no_pack(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Three epochs of a mixture, stopped at six places and gone on with by 4, 3 and 8 ranks in turn."""
    for name in ("a", "b"):
        write_set(tmp_path / f"sets/{name}.jsonl", 90, 60)
    mix = tmp_path / "sets/mix.yaml"
    mix.write_text(json.dumps({"mixture": [{"path": "a.jsonl", "weight": 30}, {"path": "b.jsonl", "weight": 70}]}))
    run = config(str(mix), source__format=Format.auto, packing__max_token_len=512, packing__epochs=3)
    folder = packed(run)
    planned = Counter(tuple(pack_) for pack_ in packs_of(folder))
    num, found, states = planned.total(), list[tuple[str, ...]](), list[Any]()
    for turn, ranks in enumerate((4, 3, 8, 4, 3, 8, 1)):
        training = Training(folder, demo[1], ranks, states)
        found += training.read(num - len(found) if turn == 6 else num // 7 // ranks)
        states = training.states
    ids = [tuple(name.partition("@")[0] for name in pack_) for pack_ in found]
    assert Counter(ids) == planned
    assert len(found) == num > 80

"""Both sides of a preference pair are in one pack, or in none: a side alone would be trained for nothing."""

import json
import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_pack.config import Overlong, PackConfig
from energon_pack.config.compose import compose_config
from energon_pack.config.stage_settings import StageSettings
from energon_pack.dataset.ledger import ledger_entries
from energon_pack.errors import PackError
from energon_pack.online.stream_packs import OnlinePacks, SampleDraws, StreamCounters
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.plan.epoch_draws import apply_epochs_and_mixture
from energon_pack.plan.existing_packs import exchange_members_for_epoch
from energon_pack.plan.expand import fitting_pairs
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import PackPlan
from energon_pack.plan.plan import find_shared_beginnings, plan_packs
from energon_pack.plan.pool import WaitingPool
from energon_pack.plan.settings import GroupBy, PackingConfig, SharedBeginnings, limits_of
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.progress import Progress
from energon_pack.samples.settings import PreferenceTake
from energon_pack.stages.measuring import Measured, index_source, measure_source, prepare_measuring_method
from energon_pack.stages.places import prepare_places
from energon_pack.steps.position import Position
from energon_pack.steps.topology import Topology
from energon_pack.verify import Options, verify
from energon_pack.verify.pack_checks import check_preference_pairs
from support.packed import demo_config, json_lines, packed
from support.pairs import sides_in_packs, write_pairs
from support.running import command_here

Make = Callable[..., PackConfig]
SIDES = ("chosen", "rejected")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sources of pairs."""
    folders = [tmp_path_factory.mktemp("pairs") for _ in range(2)]
    for folder, number in zip(folders, (40, 25), strict=True):
        write_pairs(folder, number)
    return folders


@pytest.fixture(scope="module")
def all_measured(
    demo: tuple[Path, Path], cache: Path, folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Measured]:
    """Lengths of both, in two splits, with the hashes that sharing needs; and of mixtures by weights and by epochs."""
    names, found = ("one", "other"), {}
    for name, knob in (("plain", {}), ("weights", {"weight": (2, 7)}), ("epochs", {"epochs": (1.5, 2)})):
        paths = [str(folder / "pairs.jsonl") for folder in folders]
        config = demo_config(demo, cache, tmp_path_factory.mktemp(name), paths, packing__share=SharedBeginnings.prefix)
        if knob:
            [(key, values)] = knob.items()
            entries = zip(names, paths, values, strict=True)
            config.source.path = {entry: {"path": path, key: value} for entry, path, value in entries}
        config.source = replace(config.source, take=PreferenceTake.both)
        config.output.splits.val = 0.2
        with LocalExecutor(1) as executor:
            places = prepare_places(config)
            source, workshop = places.source, places.workshop(executor, Progress())
            settings = StageSettings.of(config, source, places.processor)
            method = prepare_measuring_method(settings.method, workshop)
            indexed = index_source(source.shards, False, config.seed, workshop)
            found[name] = measure_source(source, indexed, method, settings.lengths, workshop)
    return found


PACKING = st.builds(
    PackingConfig,
    max_token_len=st.integers(60, 400),
    share=st.sampled_from([SharedBeginnings.none, SharedBeginnings.prefix, SharedBeginnings.media]),
    share_min_tokens=st.sampled_from([1, 64]),
    group_by=st.sampled_from(list(GroupBy)),
    window=st.none() | st.just(1),
    max_images=st.none() | st.integers(1, 4),
    max_members=st.none() | st.integers(2, 7),
    max_attention_cost=st.none() | st.integers(5_000, 60_000),
    epochs=st.integers(1, 3),
    topology=st.sampled_from([Topology(), Topology(data_parallel=2), Topology(data_parallel=2, micro_batches=2)]),
)


@settings(max_examples=80, deadline=None)
@given(
    packing=PACKING, long=st.none() | st.integers(0, 300), seed=st.integers(0, 3),
    name=st.sampled_from(["plain", "weights", "epochs"]), epoch=st.integers(0, 2),
)  # fmt: skip
def test_no_pair_is_torn(
    all_measured: dict[str, Measured], packing: PackingConfig, long: int | None, seed: int, name: str, epoch: int
) -> None:
    """Each draw of a pair is whole in one pack, or in the ledger; no pack is larger than a pack may be.

    In a mixture a pair that fits no pack is not drawn, and is once in the ledger. Later epochs of a lazy dataset have
    the same pairs.
    """
    if long is not None:
        packing = replace(packing, overlong=Overlong.own_pack, hard_limit=packing.max_token_len + long)
    measured = all_measured[name]
    fits = fitting_pairs(measured.lengths, packing)
    items, may = measured.lengths.items, fits & (measured.lengths.items.split[: len(fits)] == 0)
    if len({*items.shard[: len(fits)][may].tolist()}) < 2:
        return  # an entry of a mixture without a sample is refused
    lengths, _ = apply_epochs_and_mixture(measured.lengths, measured.mixture, packing, seed, fits)
    lengths, trees = find_shared_beginnings(lengths, packing)
    plan = plan_packs(lengths.items, packing, seed, trees=trees)
    first = check_plan(lengths, plan, packing)
    left_out = [*ledger_entries(lengths, plan, packing)]
    assert len(first) + len(left_out) == lengths.num_samples
    assert {entry["reason"] for entry in left_out} <= {"overlong", "over_cap", "not_drawn"}
    if measured.mixture is not None:
        assert max(Counter(entry["sample_id"] for entry in left_out).values(), default=1) == 1
        assert not any("@" in entry["sample_id"] for entry in left_out)
    if packing.epochs == 1:  # as a lazy dataset has it
        assert (
            check_plan(lengths, exchange_members_for_epoch(plan, lengths.items, packing, seed, epoch, 2), packing)
            == first
        )


def check_plan(lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> set[int]:
    """Check each pack of a plan; return the numbers of the pairs in it."""
    packs_of = Counter[int]()
    for start, end in zip(plan.starts[:-1], plan.starts[1:], strict=True):
        members = plan.items[start:end]
        whole = lengths.whole_of_part[members - lengths.num_samples]
        assert (whole[::2] == whole[1::2]).all()  # side by side
        assert (np.diff(members)[::2] > 0).all()  # the chosen one first
        packs_of.update(whole[::2].tolist())
        num = int(lengths.items.lens[members].sum())
        assert num <= packing.max_token_len or (len(members) == 2 and num <= packing.sample_token_limit[1])
        assert len({*lengths.items.split[members].tolist()}) == 1
        turn = lengths.items.turn
        assert turn is None or len({*turn[members].tolist()}) == 1
        if packing.max_members is not None:
            assert len(members) <= packing.max_members
        if packing.max_images is not None:
            assert lengths.items.counts["num_images"][members].sum() <= packing.max_images
        if packing.max_attention_cost is not None:
            assert lengths.items.attention_pairs[members].sum() <= packing.max_attention_cost
    assert {*packs_of.values()} <= {1}
    return {*packs_of}


@settings(max_examples=12, deadline=None)
@given(
    packing=PACKING, long=st.none() | st.integers(0, 300), seed=st.integers(0, 3), buffer_size=st.integers(1, 12),
    weights=st.none() | st.tuples(st.integers(1, 5), st.integers(1, 5)), ranks=st.integers(1, 3),
)  # fmt: skip
def test_no_pair_of_a_stream_is_torn(
    stream: StreamingPackedDataset,
    packing: PackingConfig,
    long: int | None,
    seed: int,
    buffer_size: int,
    weights: tuple[int, int] | None,
    ranks: int,
) -> None:
    """Each pair of two sources is one sample that waits: in one pack of one rank, or left out and counted."""
    packing = replace(packing, epochs=1, window=None, topology=Topology())
    if long is not None:
        packing = replace(packing, overlong=Overlong.own_pack, hard_limit=packing.max_token_len + long)
    measurer, seen = copy(stream._measuring), Counter[tuple[int, int]]()
    measurer.packing, counts = packing, StreamCounters()
    for rank in range(ranks):
        positions = [Position("x", ranks=ranks, rank=rank) for _ in stream._datasets]
        draws = SampleDraws([*map(len, stream._datasets)], positions, weights, replacement=False, seed=seed)
        lane = OnlinePacks(
            "x", stream._datasets, draws, measurer, WaitingPool(packing, buffer_size, seed), stream.encoder,
            counts.counters_of_worker(rank), lambda: False,
        )  # fmt: skip
        while True:
            lane._fill_pool()
            if not (waiting := lane._pool.take()):
                break
            seen.update(sample.name[:2] for sample in waiting)
            sums = np.array([sample.costs for sample in waiting]).sum(axis=0)
            limits = np.array([limit for _, limit in limits_of(packing)])
            limits[0] = packing.sample_token_limit[1] if len(waiting) == 1 else limits[0]
            assert (sums <= limits).all()
            for chosen, rejected, *shared in (sample.name[3:] for sample in waiting):
                assert 0 <= shared[0] < min(chosen, rejected)
            assert sums[0] == sum(sum(sample.name[3:5]) - sample.name[5] for sample in waiting)
    left_out = counts.total(packing.max_token_len)["left_out"]
    assert {*seen.values()} <= {1}
    assert seen.total() + sum(left_out.values()) == sum(map(len, stream._datasets))
    assert left_out.keys() <= {"overlong", "over_cap"}


@pytest.fixture(scope="module")
def stream(demo: tuple[Path, Path], cache: Path, folders: list[Path]) -> StreamingPackedDataset:
    words = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "source.take=both"]
    return StreamingPackedDataset(words, [str(folder / "pairs.jsonl") for folder in folders])


def test_pairs_are_packed_whole_and_verified(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """A pair counts once: in samples_in, in the ledger with the tokens of both sides, and in the report."""
    source = write_pairs(tmp_path, 12)
    run = demo_config(
        demo, cache, tmp_path / "out", source, source__take=PreferenceTake.both, packing__max_token_len=300
    )
    folder = packed(replace(run, packing=replace(run.packing, share=SharedBeginnings.prefix)))
    report = json.loads((folder / "report.json").read_text())
    ledger = json_lines(folder / "skipped.jsonl")
    assert report["samples_in"] == 12
    assert (report["pairs"], len(ledger)) == (report["samples_packed"], 12 - report["pairs"])
    assert 0 < len(ledger) < 12
    assert all("both sides together: " in entry["detail"] for entry in ledger)
    for ids in sides_in_packs(folder):
        names = [name.rpartition("+") for name in ids]
        assert [side for *_, side in names] == [*SIDES] * (len(ids) // 2)
        assert [name for name, *_ in names[::2]] == [name for name, *_ in names[1::2]]
    assert json.loads((folder / ".nv-meta" / "energon_pack.json").read_text())["pairs"] is True
    assert not verify(str(folder), Options(source=[str(source)], num_workers=1)).num_defects


@pytest.mark.parametrize(
    "word",
    [
        "packing=thd", "packing.pad_to_multiple_of=8", "packing.overlong=split_turns", "packing.overlong=truncate_text",
        "packing.overlong=split_text", "packing.max_members=1", "labels.expand=turns", "labels.expand=pairs",
        "labels.prompt_weight=0.5", "output.flavor=packed_captioning",
    ],
)  # fmt: skip
def test_settings_that_would_tear_pairs_are_refused(word: str) -> None:
    with pytest.raises(PackError, match=r"source\.take=both with .*: a pair is two whole samples in one pack"):
        compose_config(["+model=qwen2_5_vl", "source.path=x", "source.take=both", word])


def test_both_sides_of_a_pair_are_shown(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """As they are trained: an earlier answer, and a question, are not."""
    source = write_pairs(tmp_path, 2, with_media=False)
    words: list[str | Path] = [
        "--source",
        source,
        "+model=qwen2_5_vl",
        f"model.processor={demo[1]}",
        "source.take=both",
        "1",
    ]
    shown = command_here("energon_pack.inspect", *words, cwd=tmp_path).stdout
    for side, word in (("chosen", "good"), ("rejected", "bad")):
        _, _, of_side = shown.partition(f"pairs.jsonl:2+{side}")
        assert word in of_side
    assert "«It is near." not in shown
    together = re.search(r"both sides together: (\d+) tokens: (\d+) chosen, (\d+) rejected, 0 of them shared", shown)
    assert together is not None, "the limits of a pack are for both"
    total, chosen, rejected = map(int, together.groups())
    assert total == chosen + rejected
    words += ["packing.overlong=drop", f"packing.max_token_len={total - 1}"]
    shown = command_here("energon_pack.inspect", *words, cwd=tmp_path).stdout
    assert f"both sides together: {total} > packing.max_token_len={total - 1}: packing.overlong=drop says" in shown
    words += ["packing.share=prefix", "packing.share_min_tokens=1"]
    shown = command_here("energon_pack.inspect", *words, cwd=tmp_path).stdout
    [(shorter, shared)] = re.findall(r"both sides together: (\d+) tokens: .*, (\d+) of them shared", shown)
    assert int(shorter) + int(shared) == total
    assert int(shared) > 0


def test_verify_names_a_torn_pair() -> None:
    """A plan and packs that agree, and put another side behind the chosen one."""

    def defects(*ids: tuple[str, str]) -> list[str]:
        names = [f"{sample}+{side}" for sample, side in ids]
        rows = [
            SimpleNamespace(sample_name=sample, sample_id=name, cut=SimpleNamespace(part=side))
            for name, (sample, side) in zip(names, ids, strict=True)
        ]
        return [*check_preference_pairs(cast(Any, SimpleNamespace(meta={"sample_ids": names})), cast(Any, rows))]

    whole = [("a", "chosen"), ("a", "rejected"), ("b", "chosen"), ("b", "rejected")]
    assert defects(*whole) == []
    assert defects(*whole[:3]) == ["b+chosen is not followed by the other side of its pair"]
    assert defects(whole[1], whole[0]) == ["a+rejected is not followed by the other side of its pair"]
    assert defects(whole[0], whole[3]) == ["a+chosen is not followed by the other side of its pair"]

"""Both sides of a preference pair are in one pack, or in none: a side alone would be trained for nothing."""

import json
from collections import Counter
from collections.abc import Callable
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
from energon_pack.dataset.skipped_file import ledger_entries
from energon_pack.errors import PackError
from energon_pack.plan.epoch_draws import draw_samples
from energon_pack.plan.plan import plan_packs, share_beginnings
from energon_pack.plan.settings import GroupBy, PackingConfig, Share
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.progress import Progress
from energon_pack.samples.settings import Take
from energon_pack.stages.measuring import Measured, index_source, measure_source, prepare_method
from energon_pack.stages.places import find_places
from energon_pack.steps.topology import Topology
from energon_pack.verify import Options, verify
from energon_pack.verify.pack_checks import check_pairs
from support.packed import demo_config, json_lines, packed
from support.pairs import sides_in_packs, write_pairs
from support.running import command_here

Make = Callable[..., PackConfig]
SIDES = ("chosen", "rejected")


@pytest.fixture(scope="module")
def measured(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Lengths of 60 pairs, with the hashes that sharing needs, in two splits."""
    folder = tmp_path_factory.mktemp("pairs")
    config = demo_config(demo, cache, folder / "out", write_pairs(folder, 60), packing__share=Share.prefix)
    config.source = replace(config.source, take=Take.both)
    config.output.splits.val = 0.2
    with LocalExecutor(1) as executor:
        places = find_places(config)
        source, workshop = places.source, places.workshop(executor, Progress())
        settings = StageSettings.of(config, source, places.processor)
        method = prepare_method(settings.method, workshop)
        indexed = index_source(source.shards, False, config.seed, workshop)
        return measure_source(source, indexed, method, settings.lengths, workshop)


PACKING = st.builds(
    PackingConfig,
    max_token_len=st.integers(60, 400),
    share=st.sampled_from([Share.none, Share.prefix, Share.media]),
    share_min_tokens=st.sampled_from([1, 64]),
    group_by=st.sampled_from(list(GroupBy)),
    window=st.none() | st.just(1),
    max_images=st.none() | st.integers(1, 4),
    max_members=st.none() | st.integers(2, 7),
    max_attention_cost=st.none() | st.integers(5_000, 60_000),
    epochs=st.integers(1, 3),
    topology=st.sampled_from([Topology(), Topology(data_parallel=2), Topology(data_parallel=2, micro_batches=2)]),
)


@settings(max_examples=60, deadline=None)
@given(packing=PACKING, long=st.none() | st.integers(0, 300), seed=st.integers(0, 3))
def test_no_pair_is_torn(measured: Measured, packing: PackingConfig, long: int | None, seed: int) -> None:
    """Each draw of a pair is whole in one pack, or in the ledger; no pack is larger than a pack may be."""
    if long is not None:
        packing = replace(packing, overlong=Overlong.own_pack, hard_limit=packing.max_token_len + long)
    lengths, _ = draw_samples(measured.lengths, None, packing, seed)
    lengths, trees = share_beginnings(lengths, packing)
    plan = plan_packs(lengths.items, packing, seed, trees=trees)
    packs_of = Counter[int]()
    for start, end in zip(plan.starts[:-1], plan.starts[1:], strict=True):
        members = plan.items[start:end]
        whole = lengths.whole_of_part[members - lengths.num_samples]
        assert (whole[::2] == whole[1::2]).all()  # side by side
        assert (np.diff(members)[::2] > 0).all()  # the chosen one first
        packs_of.update(whole[::2].tolist())
        num = int(lengths.items.lens[members].sum())
        assert num <= packing.max_token_len or (len(members) == 2 and num <= packing.longest_sample[1])
        assert len({*lengths.items.split[members].tolist()}) == 1
        turn = lengths.items.turn
        assert turn is None or len({*turn[members].tolist()}) == 1
        if packing.max_members is not None:
            assert len(members) <= packing.max_members
        if packing.max_attention_cost is not None:
            assert lengths.items.squares[members].sum() <= packing.max_attention_cost
    assert set(packs_of.values()) <= {1}
    left_out = [entry["reason"] for entry in ledger_entries(lengths, plan, packing)]
    assert len(packs_of) + len(left_out) == lengths.num_samples
    assert {*left_out} <= {"overlong", "over_cap"}


def test_pairs_are_packed_whole_and_verified(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """A pair counts once: in samples_in, in the ledger with the tokens of both sides, and in the report."""
    source = write_pairs(tmp_path, 12)
    run = demo_config(demo, cache, tmp_path / "out", source, source__take=Take.both, packing__max_token_len=300)
    folder = packed(replace(run, packing=replace(run.packing, share=Share.prefix)))
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


def test_packs_made_while_training_take_no_pairs(demo: tuple[Path, Path], tmp_path: Path) -> None:
    """Automodel's door makes its datasets of lazy and of streaming ones, so it takes none, either."""
    from energon_pack import LazyPackedDataset, StreamingPackedDataset, automodel

    (tmp_path / "source").mkdir()
    words = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"output.dir={tmp_path / 'out'}"]
    words += ["source.take=both", f"source.path={write_pairs(tmp_path / 'source', 3)}"]
    for kind in (
        LazyPackedDataset,
        StreamingPackedDataset,
        lambda words: automodel.dataset(words, mask="positions").packs,
    ):
        with pytest.raises(PackError, match=r"source\.take=both is for packs on disk"):
            kind(words)


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


def test_verify_names_a_torn_pair() -> None:
    """A plan and packs that agree, and put another side behind the chosen one."""

    def defects(*ids: tuple[str, str]) -> list[str]:
        names = [f"{sample}+{side}" for sample, side in ids]
        rows = [
            SimpleNamespace(sample=sample, sample_id=name, cut=SimpleNamespace(part=side))
            for name, (sample, side) in zip(names, ids, strict=True)
        ]
        return [*check_pairs(cast(Any, SimpleNamespace(meta={"sample_ids": names})), cast(Any, rows))]

    whole = [("a", "chosen"), ("a", "rejected"), ("b", "chosen"), ("b", "rejected")]
    assert defects(*whole) == []
    assert defects(*whole[:3]) == ["b+chosen is not followed by the other side of its pair"]
    assert defects(whole[1], whole[0]) == ["a+rejected is not followed by the other side of its pair"]
    assert defects(whole[0], whole[3]) == ["a+chosen is not followed by the other side of its pair"]

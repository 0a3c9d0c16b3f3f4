"""Samples of which nothing is trained: named and left out, whichever door they come through; no pack is made of them.

Four of six packs had no label and no line said so: the loss of such a step is nan.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.config import PackConfig
from energon_pack.errors import PackError, SamplesLost
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.pack import pack
from energon_pack.plan.existing_packs import exchange_members_for_epoch
from energon_pack.plan.packs import LEFT_OUT
from energon_pack.plan.plan import plan_packs
from energon_pack.plan.sample_measures import SampleMeasurer, SampleMeasures
from energon_pack.plan.settings import Overlong, PackingConfig, SharedBeginnings
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.settings import ControlTokens
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import Expand, TrainOn, UntrainedSamplePolicy
from energon_pack.templates.template import Template
from energon_pack.verify import Options, verify
from support.packed import json_lines
from support.plans import items, packs
from support.samples import picture

Make = Callable[..., PackConfig]


def said(answer: str, question: str = "word " * 20, **of_answer: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **of_answer}]
    return {"messages": asked}


#: by what trains nothing in them; each setting of `labels` makes more of them so
NOTHING: dict[str, dict[str, Any]] = {
    "a switch": said("yes", loss=False),
    "a mask": said("yes", masked=True),
    "a factor": said("yes", loss_weight=0),
    "the sample's weight": {**said("yes"), "weight": 0},
    "a setting of its own": {
        **said("yes", question="a"),
        "messages": [*said("a")["messages"], *said("b", loss_scale=0)["messages"]],
        "label_settings": {"train_on": "last"},
    },
    "a thought alone": {
        **said("<think>hm</think>"),
        "label_settings": {"think": "mask", "end_of_turn": False},
    },
    "an empty answer without its end": {**said(""), "label_settings": {"empty": "train", "end_of_turn": False}},
    "a document of weight 0": {"messages": [{"role": "assistant", "content": "word " * 20, "loss_weight": 0}]},
}


def write(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "a.jsonl"


def test_whatever_leaves_nothing_to_train(config: Make, tmp_path: Path) -> None:
    """Each is in the ledger by its name; samples of which something is trained are packed as ever."""
    source = write(tmp_path / "source", *NOTHING.values(), said("yes"), {"text": "yes"}, said("y"))
    run = config(source)
    figures = pack(run)
    folder = Path(run.output.dir) / "packed"
    num = len(NOTHING)
    assert (figures["samples_in"], figures["samples_packed"], figures["skipped_by_reason"]) == (
        num + 3, 3, {"nothing_trained": num},
    )  # fmt: skip
    ledger = json_lines(folder / "skipped.jsonl")
    assert [entry["sample_id"] for entry in ledger] == [f"a.jsonl:{i}" for i in range(1, num + 1)]
    assert {(e["reason"], e["detail"]) for e in ledger} == {("nothing_trained", "none of its tokens is trained")}
    assert not verify(folder, Options(source=[], num_workers=1)).num_defects
    assert "none of their tokens is trained" in (folder / "report.html").read_text()


def test_what_is_measured_as_it_comes_is_left_out_for_the_same(template: Template) -> None:
    """Energon's packing buffer and streams: nothing predicts a first token, so a part of one token trains nothing."""
    measuring = SampleMeasurer(template, PackingConfig(), ControlTokens.keep, drop=True)
    document = [{"role": "document", "content": "a b"}]
    whole, part = (Sample(document, [], None, SampleOptions(token_range=tokens)) for tokens in (None, (1, 2)))
    measured, skip = measuring.measure([whole, part])
    assert isinstance(measured, SampleMeasures)
    assert isinstance(skip, Skip)
    assert str(skip) == "nothing_trained: none of its tokens is trained"


def test_a_medium_that_is_lost_so_is_a_medium_lost(config: Make, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(picture(56, 56, "PNG"))
    source = write(tmp_path / "source", said("yes"), {**said("yes", "<image>", loss=False), "images": ["a.png"]})
    run = config(source)
    run.source.media_root = str(source.parent)
    with pytest.raises(SamplesLost, match="every image sample was skipped"):
        pack(run)


def test_kept_samples_share_packs_with_trained_ones(config: Make, tmp_path: Path) -> None:
    """Never as a whole pack, in no epoch: what fits beside nothing trained is left out."""
    source = write(tmp_path / "source", *[said("yes", loss=False)] * 12, *[said("yes")] * 4)
    run = config(source, labels__untrained=UntrainedSamplePolicy.keep, packing__max_token_len=600)
    lazy = LazyPackedDataset(run)
    report = lazy.report
    assert report is not None
    assert report.samples_packed + report.skipped_by_reason.get("nothing_trained", 0) == 16
    assert report.samples_packed > 4
    for epoch in range(4):
        lazy.set_epoch(epoch)
        trained = [[one.tokens.labels.max() >= 0 for one in lazy[number].members] for number in range(len(lazy))]
        assert all(map(any, trained))
        assert sum(map(len, trained)) == report.samples_packed


def test_a_pack_of_which_nothing_is_trained_is_none() -> None:
    """Two of five, of which two fit into a pack; the others are packed as they would be without them."""
    some = items([6, 6, 6, 6, 6], num_supervised=[0, 0, 3, 0, 2])
    plan = plan_packs(some, PackingConfig(max_token_len=10))
    assert sorted(map(sorted, packs(plan))) == [[2], [4]]
    assert [LEFT_OUT[code] for code in plan.left_out] == [Reason.NOTHING_TRAINED] * 2 + [
        None,
        Reason.NOTHING_TRAINED,
        None,
    ]
    assert plan.lower_bound == 2
    alone = plan_packs(
        items([20], num_supervised=[0]), PackingConfig(max_token_len=10, hard_limit=30, overlong=Overlong.own_pack)
    )
    assert alone.num_packs == 0
    shared = plan_packs(items([4] * 10, num_supervised=[1, 0] * 5), PackingConfig(max_token_len=8))
    for epoch in range(20):
        plan = exchange_members_for_epoch(
            shared, items([4] * 10, num_supervised=[1, 0] * 5), PackingConfig(max_token_len=8), 0, epoch
        )
        assert all(any(np.array([1, 0] * 5)[pack]) for pack in packs(plan))


def test_labels_of_the_run_that_leave_nothing(config: Make, tmp_path: Path) -> None:
    """The same records are trained, or not, by what `labels` says; nothing is measured anew for another choice."""
    talk = {"messages": [*said("a", "b")["messages"], *said("c", "d", loss_scale=0)["messages"]]}
    source = write(tmp_path / "source", talk, said("yes"))
    assert pack(config(source, output__name="all"))["skipped_by_reason"] == {}
    last = config(source, output__name="last", labels__train_on=TrainOn.last)
    assert pack(last)["skipped_by_reason"] == {"nothing_trained": 1}


def test_pairs_of_which_nothing_is_trained_are_counted(config: Make, tmp_path: Path) -> None:
    """`labels.expand=pairs` left them out and counted them nowhere."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(picture(56, 56, "PNG"))
    turns = [
        m
        for i in range(3)
        for m in said(f"{i}", "<image>a" if not i else "b", **({"loss": False} if i == 1 else {}))["messages"]
    ]
    source = write(tmp_path / "source", {"messages": turns, "images": ["a.png"]})
    run = config(source, labels__expand=Expand.pairs)
    run.source.media_root = str(source.parent)
    figures = pack(run)
    assert (figures["samples_packed"], figures["parts"], figures["samples_cut_off"]) == (1, 2, 1)
    (entry,) = json_lines(Path(run.output.dir) / "packed" / "skipped.jsonl")
    assert (entry["reason"], "nothing is trained in the parts" in entry["detail"]) == ("cut_off", True)


def test_trees_have_no_branch_of_which_nothing_is_trained(config: Make, tmp_path: Path) -> None:
    """Its shared beginning would be computed once, and its own tokens for nothing."""
    system = {"role": "system", "content": "word " * 60}
    records = [
        {"messages": [system, *said("yes", f"{i}", **({} if i % 2 else {"loss": False}))["messages"]]} for i in range(6)
    ]
    run = config(
        write(tmp_path / "source", *records), packing__share=SharedBeginnings.prefix, packing__share_min_tokens=8
    )
    figures = pack(run)
    assert figures["skipped_by_reason"] == {"nothing_trained": 3}
    assert figures["shared"]["samples"] == 3


def test_streams_leave_them_out(demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """Counted like all that a stream leaves out; to keep them needs a plan over all samples."""
    source = write(tmp_path / "source", *[said("yes", loss=False)] * 3, *[said("yes")] * 3)
    told = ["+model=qwen2_5_vl", f"model.processor={demo[1]}", f"cache_dir={cache}", "executor.num_workers=1"]
    stream = StreamingPackedDataset(told, [str(source)], replacement=False)
    assert sum(len(one.members) for one in stream) == 3
    assert stream.statistics()["left_out"] == {"nothing_trained": 3}
    with pytest.raises(PackError, match=r"labels\.untrained=keep needs a plan over all samples"):
        StreamingPackedDataset([*told, "labels.untrained=keep"], [str(source)])
    with pytest.raises(PackError, match="none of the samples drawn can be packed: nothing_trained"):
        next(iter(StreamingPackedDataset(told, [str(write(tmp_path / "other", said("yes", loss=False)))])))

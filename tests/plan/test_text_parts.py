"""A long document is packed whole, in parts between its tokens (`packing.overlong=split_text`).

Parts that are tokenized otherwise than their document would train on tokens that the model never sees in its text, and
what is between two parts would be lost: nothing else in a run compares parts with their whole.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.config import Format, Overlong, PackConfig
from energon_pack.errors import SamplesLost
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.pack import pack
from energon_pack.plan.overlong import max_text_member_len, split_tokens_into_parts
from energon_pack.plan.settings import Layout, PackingConfig
from energon_pack.samples.conversation import options_of
from energon_pack.samples.documents import document_of
from energon_pack.samples.skip import Skip
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from energon_pack.training.layout import IGNORE
from energon_pack.training.member_encoder import Encoded
from energon_pack.unpack import unpack
from energon_pack.verify import Options, verify
from support.packed import json_lines, lengths, packed, train
from support.samples import picture

Make = Callable[..., PackConfig]
#: texts of which a piece alone has other tokens: no spaces, spaces alone, characters of several tokens, marks
HARD = (
    "東京タワー" * 40,
    "a" * 500,
    " " * 400 + "x",
    "🙂 naïve\u0301 " * 60,
    "one  two\n\n three\r\n" * 50,
    "<image> " * 80,
)


def test_where_a_document_is_cut() -> None:
    """Four tokens a part; a last part of one token, which would train nothing, takes one from the part before."""
    assert split_tokens_into_parts([(i, i + 1) for i in range(8)], 4) == [0, 4, 8]
    assert split_tokens_into_parts([(i, i + 1) for i in range(9)], 4) == [0, 4, 7, 9]
    assert split_tokens_into_parts([(0, 1), (1, 2), (2, 3), (3, 4), (3, 4), (4, 5)], 4) == [
        0,
        3,
        6,
    ]  # within the fourth character
    assert split_tokens_into_parts([(0, 1)] * 6, 4) == [0, 4, 6]  # a character longer than a part


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(3, 12))
def test_parts_are_all_tokens_and_fit(widths: list[int], most: int) -> None:
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    places = [(end - width, end) for end, width in zip(ends, widths, strict=True)]
    edges = split_tokens_into_parts(places, most)
    assert (edges[0], edges[-1]) == (0, len(places))
    sizes = [end - start for start, end in pairwise(edges)]
    assert max(sizes) <= most
    assert min(sizes) >= min(2, len(places))


def test_a_part_fills_a_pack_up_to_every_limit() -> None:
    assert max_text_member_len(PackingConfig(max_token_len=64, pad_to_multiple_of=8)) == 64
    assert max_text_member_len(PackingConfig(max_token_len=64, max_attention_cost=1000)) == 31  # 31² < 1000 < 32²


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return write(tmp_path / "source" / "d.jsonl", *({"text": text} for text in HARD), {"text": "short"})


def joined(members: list[tuple[str, list[int]]]) -> dict[str, list[int]]:
    """The tokens of each sample: those of its parts, one after another."""
    found: dict[str, list[tuple[int, list[int]]]] = {}
    for name, ids in members:
        sample, _, part = name.partition("#")
        found.setdefault(sample, []).append((int(part.partition("of")[0] or 1), ids))
    return {name: [number for _, ids in sorted(parts) for number in ids] for name, parts in found.items()}


def as_trained(dataset: Path) -> list[Encoded]:
    """Every member as training encodes it, through Energon."""
    encoder = PackedTaskEncoder(dataset).encoder
    packs = [encoder.encode(sample.__key__, inputs_of(sample)) for sample in train(dataset)]
    return [member for one in packs if one is not None for member in one.members]


def test_parts_have_the_tokens_of_their_document(config: Make, documents: Path, template: Template) -> None:
    """Through Energon, and unpacked and packed again: all tokens once, the first of each part without a label."""
    run = config(documents, packing__overlong=Overlong.split_text, packing__max_token_len=64)
    figures = pack(run)
    dataset = Path(run.output.dir) / "packed"
    whole = [template.encode(Sample(document_of(text), [])).ids for text in (*HARD, "short")]
    expected = {f"d.jsonl:{i}": ids for i, ids in enumerate(whole, 1)}
    members = as_trained(dataset)
    assert joined([(one.sample_id, one.tokens.ids.tolist()) for one in members]) == expected
    for one in members:
        assert one.tokens.labels.tolist() == [IGNORE, *one.tokens.ids.tolist()[1:]]
    assert (figures["samples_in"], figures["samples_packed"], figures["samples_cut"]) == (7, 7, len(HARD))
    assert (figures["tokens"], figures["parts"]) == (sum(map(len, whole)), len(members))
    assert (figures["skipped_by_reason"], figures["tokens_left_out"]) == ({}, 0)
    sizes = [size for (_, _, part), (size, *_) in lengths(dataset).items() if part and len(set(part.split("of"))) == 2]
    assert sizes.count(64) > len(sizes) / 2  # all but the last parts, and those that would end within a character
    assert not verify(dataset, Options(source=[], num_workers=1)).num_defects

    again = dataset.with_name("again")
    unpack(dataset, again)
    run.source.path, run.source.format, run.output.name = str(again), Format.auto, "repacked"
    run.measure.verify = 1.0  # the full processor makes the whole text's tokens
    pack(run)
    old, new = (
        [row[:2] for _, row in sorted(lengths(dataset.with_name(name)).items())] for name in ("packed", "repacked")
    )
    assert sorted(old) == sorted(new)
    ids = {tuple(one.tokens.ids.tolist()) for one in members}
    assert {tuple(one.tokens.ids.tolist()) for one in as_trained(dataset.with_name("repacked"))} == ids


def test_parts_of_thd_and_of_packs_made_while_loading(config: Make, documents: Path, template: Template) -> None:
    """A part takes a multiple of 8, and fills a pack; a lazy dataset's members are those of packs on disk."""
    cut = {"packing__overlong": Overlong.split_text, "packing__max_token_len": 64, "packing__layout": Layout.thd}
    run = config(documents, **cut, packing__pad_to_multiple_of=8)
    dataset = packed(run)
    lazy = LazyPackedDataset(run)
    members = [member for number in range(len(lazy)) for member in lazy[number].members]
    found = joined([(one.sample_id, one.tokens.ids.tolist()) for one in members])
    assert found == {
        f"d.jsonl:{i}": template.encode(Sample(document_of(t), [])).ids for i, t in enumerate([*HARD, "short"], 1)
    }
    assert {one.sample_id: len(one.tokens) for one in members} == {
        f"{shard}:{key}" + f"#{part}" * bool(part): size for (shard, key, part), (size, *_) in lengths(dataset).items()
    }


def test_what_split_text_can_not_cut_is_left_out_and_bounded(config: Make, tmp_path: Path) -> None:
    """A chat, and a document with an image: as `drop` leaves them out, but not any number of them."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(picture(56, 56, "PNG"))
    chat = {"messages": [{"role": "user", "content": "word " * 90}, {"role": "assistant", "content": "yes"}]}
    with_image = {"messages": [{"role": "assistant", "content": "<image>" + "word " * 90}], "images": ["a.png"]}
    small = {**with_image, "messages": [{"role": "assistant", "content": "<image>a"}]}
    source = write(tmp_path / "source" / "d.jsonl", {"text": "word " * 900}, chat, with_image, small)
    run = config(source, packing__overlong=Overlong.split_text, packing__max_token_len=64, max_skipped=1.0)
    run.source.media_root = str(source.parent)
    run.packing.max_dropped_tokens = 0.1
    with pytest.raises(
        SamplesLost, match=r"packing.overlong=split_turns where samples have several questions keep more"
    ):
        pack(run)
    ledger = json_lines(Path(run.output.dir) / "packed.skipped.jsonl")
    assert {entry["sample_id"]: entry["reason"] for entry in ledger} == {
        "d.jsonl:2": "overlong",
        "d.jsonl:3": "overlong",
    }


@pytest.mark.parametrize("value", [[1], [2, 2], [-1, 3], ["0", 1], "01", [0, 1.5]])
def test_a_token_range_of_another_form_costs_the_sample(value: Any) -> None:
    with pytest.raises(Skip, match="bad_message: token_range is"):
        options_of({"token_range": value})

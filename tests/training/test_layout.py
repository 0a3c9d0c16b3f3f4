"""How members lie in a sequence: the pictures of the docstring, and what holds for any members."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from energon_pack.training.fixed_shapes import packed_seq_params
from energon_pack.training.layout import IGNORE, Member, RowForm, lay_out_neat_rows, seq_idx
from energon_pack.training.megatron_layouts import choose_pad_multiple, multimodal, one_row_per_member, thd
from energon_pack.training.member_encoder import Encoded
from support.tiny import FAMILIES, alone, make_batch, make_members, make_model


def member(length: int, first: int = 1, num_ignored: int = 1) -> Member:
    ids = torch.arange(first, first + length)
    labels = ids.clone()
    labels[:num_ignored] = IGNORE
    return Member(ids, labels, torch.zeros(length, dtype=torch.long))


THREE = [member(3, 10), member(2, 20), member(4, 30)]


def values(batch: dict[str, Tensor], *names: str) -> list[object]:
    return [batch[name].tolist() for name in names]


def test_neat_as_in_the_picture() -> None:
    batch = lay_out_neat_rows([THREE], RowForm(pad_id=9, width=12))
    x = IGNORE
    assert values(batch, "input_ids", "labels", "position_ids", "doc_ids", "cu_seq_lens_q") == [
        [[10, 11, 12, 20, 21, 30, 31, 32, 33, 9, 9, 9]],
        [[x, 11, 12, x, 21, x, 31, 32, 33, x, x, x]],
        [[0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 1, 2]],
        [[1, 1, 1, 2, 2, 3, 3, 3, 3, 0, 0, 0]],
        [0, 3, 5, 9, 12],
    ]
    assert batch["use_cache"] is False
    assert "attention_mask" not in batch
    assert (batch["max_length_q"], type(batch["max_length_q"])) == (4, int)
    assert seq_idx(batch["cu_seq_lens_q"]).tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3]]


def test_labels_shifted_within_each_member() -> None:
    batch = lay_out_neat_rows([THREE], RowForm(shifted=True))
    assert batch["labels"].tolist() == [[11, 12, IGNORE, 21, IGNORE, 31, 32, 33, IGNORE]]
    assert batch["_packed_seq_ids"].tolist() == [[1, 1, 1, 2, 2, 3, 3, 3, 3]]


def test_thd_as_in_the_picture() -> None:
    x = IGNORE
    batch = thd(THREE, RowForm(multiple=4))
    names = ("input_ids", "labels", "position_ids", "cu_seqlens_q", "cu_seqlens_kv_padded", "padding_mask")
    assert values(batch, *names) == [
        [[10, 11, 12, 0, 20, 21, 0, 0, 30, 31, 32, 33]],
        [[11, 12, x, x, 21, x, x, x, 31, 32, 33, x]],
        [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]],
        [0, 3, 5, 9],
        [0, 4, 8, 12],
        [[False] * 3 + [True, False, False, True, True] + [False] * 4],
    ]
    assert batch["loss_mask"].tolist() == [[1.0, 1.0, 0, 0, 1.0, 0, 0, 0, 1.0, 1.0, 1.0, 0]]


def test_the_fixed_width_of_thd_belongs_to_the_last_member() -> None:
    """5, 7 and 3 tokens, rounded to 4, 24 wide: as Megatron-Bridge's own builder lays them out."""
    batch = thd([member(5), member(7), member(3)], RowForm(multiple=4, width=24))
    assert values(batch, "cu_seqlens_q", "cu_seqlens_q_padded") == [[0, 5, 12, 15], [0, 8, 16, 24]]
    assert (int(batch["max_seqlen_q"]), batch["total_tokens"]) == (8, 24)
    plain = thd([member(5), member(7), member(3)], RowForm())
    assert "cu_seqlens_q_padded" not in plain


def test_rope_rows_go_on_through_a_gap() -> None:
    rope = torch.tensor([[0, 1, 1], [0, 1, 1], [0, 1, 2]])
    of = Member(torch.arange(3), torch.arange(3), torch.tensor([0, 1, 1]), rope)
    assert thd([of, member(1)], RowForm(multiple=4, rope=True))["position_ids"][:, 0].tolist() == [
        [0, 1, 1, 3, 0, 1, 2, 3],
        [0, 1, 1, 3, 0, 1, 2, 3],
        [0, 1, 2, 3, 0, 1, 2, 3],
    ]
    assert lay_out_neat_rows([[of, member(1)]], RowForm(width=6, rope=True))["position_ids"][:, 0].tolist() == [
        [0, 1, 2, 0, 0, 1],
        [0, 1, 1, 0, 0, 1],
        [0, 1, 1, 0, 0, 1],
        [0, 1, 2, 0, 0, 1],
    ]


def test_rows_and_mlm() -> None:
    rows = one_row_per_member(THREE, RowForm(pad_id=7))
    assert rows["input_ids"].tolist() == [[10, 11, 12, 0], [20, 21, 0, 0], [30, 31, 32, 33]]
    with pytest.raises(ValueError, match="ends with token 0"):
        one_row_per_member([member(3, -2)], RowForm())
    batch = multimodal(THREE, RowForm(multiple=4))
    assert batch["labels"].shape == (1, 13)  # its step drops the first
    assert batch["labels"][0, 1:].tolist() == thd(THREE, RowForm(multiple=4))["labels"][0].tolist()
    assert values(batch, "cu_lengths", "max_lengths") == [[[0, 4, 8, 12]], [4]]


def test_members_are_padded_to_what_divides_the_packings_multiple() -> None:
    """A multiple that does not divide it could make a pack longer than it was planned."""
    assert [choose_pad_multiple(multiple, 8) for multiple in (None, 1, 4, 8)] == [8, 1, 4, 8]
    for multiple, both in ((3, 24), (16, 16), (0, 8)):
        with pytest.raises(ValueError, match=f"pad_to_multiple_of={multiple} .* packing.pad_to_multiple_of={both} "):
            choose_pad_multiple(multiple, 8)


def test_a_pack_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens in a row 8 wide"):
        lay_out_neat_rows([THREE], RowForm(width=8))
    with pytest.raises(ValueError, match="12 tokens, members rounded up to 4, in 10"):
        thd(THREE, RowForm(multiple=4, width=10))


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=3), st.integers(0, 5), st.booleans())
def test_neat_holds_every_member_once_and_apart(packs: list[list[int]], room: int, shifted: bool) -> None:
    rows = [[member(n, 1 + 100 * i) for i, n in enumerate(pack)] for pack in packs]
    width = max(map(sum, packs)) + room
    batch = lay_out_neat_rows(rows, RowForm(width=width, shifted=shifted, weights="sample"))
    starts = (batch["position_ids"].flatten() == 0).nonzero().flatten().tolist()
    assert starts == batch["cu_seq_lens_q"][:-1].tolist()
    assert int(batch["cu_seq_lens_q"][-1]) == len(packs) * width
    assert batch["max_length_q"] == int(batch["cu_seq_lens_q"].diff().max())
    for row, members in enumerate(rows):
        for number, one in enumerate(members, 1):
            here = batch["doc_ids"][row] == number
            assert batch["input_ids"][row][here].tolist() == one.ids.tolist()
            labels = batch["labels"][row][here].tolist()
            assert labels == ([*one.labels.tolist()[1:], IGNORE] if shifted else one.labels.tolist())
        tail = batch["doc_ids"][row] == 0
        assert int(tail.sum()) == width - sum(map(len, members))
        assert (batch["labels"][row][tail] == IGNORE).all()
    assert ((batch["loss_weight"] > 0) == (batch["labels"] != IGNORE)).all()


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.sampled_from([1, 2, 4, 8]), st.integers(0, 3))
def test_thd_has_a_slot_for_each_member(lengths: list[int], multiple: int, room: int) -> None:
    members = [member(n, 1 + 100 * i) for i, n in enumerate(lengths)]
    width = sum(-(-n // multiple) * multiple for n in lengths) + room * multiple
    batch = thd(members, RowForm(multiple=multiple, width=width))
    real = batch["cu_seqlens_q"]
    padded: Tensor = batch["cu_seqlens_q_padded" if "cu_seqlens_q_padded" in batch else "cu_seqlens_q"]
    assert real.diff().tolist() == lengths
    assert int(padded[-1]) == batch["total_tokens"] == batch["input_ids"].shape[1] == width
    assert not (padded % multiple).any()
    assert int(batch["max_seqlen_q"]) == int(padded.diff().max())
    for start, one in zip(padded.tolist(), members, strict=False):
        assert batch["input_ids"][0, start : start + len(one)].tolist() == one.ids.tolist()
        assert batch["position_ids"][0, start : start + len(one)].tolist() == list(range(len(one)))
        assert batch["labels"][0, start + len(one) - 1] == IGNORE
    assert int((~batch["padding_mask"]).sum()) == sum(lengths)
    assert not (batch["loss_mask"] * batch["padding_mask"]).any()


# A member of a pack comes out as it would alone: logits, loss and gradients, on transformers' own classes.

CASES = [
    (name, attention)
    for name in FAMILIES
    for attention in ("sdpa", "eager")
    if name != "qwen3_5" and (name, attention) != ("gpt_oss", "sdpa")  # the one needs kernels, the other has no sdpa
]


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def split(logits: torch.Tensor, packs: list[list[Encoded]]) -> list[torch.Tensor]:
    """The logits of each member."""
    found = []
    for row, pack in zip(logits, packs, strict=True):
        lengths = [len(member.tokens) for member in pack]
        found += list(row[: sum(lengths)].split(lengths))
    return found


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_packed_is_alone(name: str, attention: str) -> None:
    """In one row, in two rows of different length, and in rows wider than they need be."""
    model = make_model(name, attention)
    members = make_members(name, model)
    single = [alone(name, model, member) for member in members]
    trained = [int((member.tokens.labels[1:] != IGNORE).sum()) for member in members]
    losses = [out.loss * n for out, n in zip(single, trained, strict=True) if n]
    expected = torch.stack(losses).sum() / sum(trained)
    wanted = gradients(model, expected)
    for packs, width in (([members], None), ([members[:3], members[3:]], None), ([members], 150)):
        batch = make_batch(name, packs, width=width)
        out = model(**batch.model_inputs(model))
        logits = max(
            float((one - of.logits[0]).detach().abs().max())
            for one, of in zip(split(out.logits, packs), single, strict=True)
        )
        loss = float((out.loss - expected).detach().abs())
        found = gradients(model, out.loss)
        assert found.keys() == wanted.keys()
        largest = max(float(grad.abs().max()) for grad in wanted.values())
        grads = max(float((found[key] - wanted[key]).abs().max()) for key in wanted) / max(1.0, largest)
        print(f"{name} {attention} B={len(packs)} S={batch['input_ids'].shape[1]}", end=" ")
        print(f"logits {logits:.1e} loss {loss:.1e} gradients {grads:.1e}")
        assert max(logits, loss, grads) <= 1e-5


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llama"])
def test_shifted_labels_give_the_same_loss(name: str) -> None:
    model = make_model(name)
    members = make_members(name, model)
    with torch.no_grad():
        losses = [model(**make_batch(name, [members], shifted=s).model_inputs()).loss for s in (False, True)]
    assert float((losses[0] - losses[1]).abs()) <= 1e-6


@dataclass
class Old:
    """PackedSeqParams before it knew of gaps."""

    qkv_format: str | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_kv: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None


@dataclass
class New(Old):
    """And of later ones."""

    cu_seqlens_q_padded: Tensor | None = None
    cu_seqlens_kv_padded: Tensor | None = None
    total_tokens: int | None = None
    seq_idx: Tensor | None = None
    pad_between_seqs: bool | None = None


def members() -> list[Member]:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, 60, (n,), generator=generator) for n in (9, 5, 14, 1)]
    return [Member(x, x.clone(), torch.zeros_like(x)) for x in ids]


def test_each_version_gets_the_fields_it_has() -> None:
    plain, gaps = thd(members(), RowForm()), thd(members(), RowForm(multiple=4))
    old = packed_seq_params(plain, Old)
    assert (old.qkv_format, old.max_seqlen_q, old.cu_seqlens_kv.tolist()) == ("thd", 14, [0, 9, 14, 28, 29])
    new = packed_seq_params(gaps, New)
    assert (new.total_tokens, new.pad_between_seqs, new.max_seqlen_q) == (40, True, 16)
    assert new.cu_seqlens_q_padded.tolist() == [0, 12, 20, 36, 40]
    with pytest.raises(ValueError, match="pad_to_multiple_of=1"):
        packed_seq_params(gaps, Old)


def test_physical_boundaries_have_no_gaps_between_them() -> None:
    gaps = thd(members(), RowForm(multiple=4))
    new, old = (packed_seq_params(gaps, make, physical=True) for make in (New, Old))
    assert new.cu_seqlens_q.tolist() == new.cu_seqlens_kv_padded.tolist() == old.cu_seqlens_kv.tolist()
    assert old.cu_seqlens_q.tolist() == [0, 12, 20, 36, 40]
    assert new.pad_between_seqs is False
    plain = thd(members(), RowForm())
    assert packed_seq_params(plain, New, physical=True) == packed_seq_params(plain, New)

"""The fields of PackedSeqParams that each version of megatron-core has; `test_parallel.py` runs the real one."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from energon_pack.training.few_shapes import packed_seq_params
from energon_pack.training.layout import Member, RowForm, thd


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

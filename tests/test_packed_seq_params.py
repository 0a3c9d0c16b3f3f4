"""megatron-core's GPTModel in THD, on a CPU: the packed logits are those of each member alone.

The model's own code runs, rotary embedding by segment included; only the attention kernel, which needs a GPU, is
replaced (`support.gpt`). Without megatron-core a small class with the fields of an older version stands in, for the
fields alone.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.training.few_shapes import packed_seq_params
from energon_pack.training.layout import Member, RowForm, thd
from support.gpt import cpu_for_cuda, tiny_gpt


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


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny GPTModel of megatron-core."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core import parallel_state

    meeting = tmp_path_factory.mktemp("gloo") / "meeting"
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    with cpu_for_cuda():
        model = tiny_gpt()
    yield model
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("form", [RowForm(), RowForm(multiple=4), RowForm(multiple=8, width=64)])
def test_packed_is_alone_in_megatron(gpt: Any, form: RowForm) -> None:
    def run(batch: dict[str, Any]) -> Tensor:
        with torch.no_grad(), cpu_for_cuda():
            out: Tensor = gpt(
                batch["input_ids"], batch["position_ids"], None, packed_seq_params=packed_seq_params(batch)
            )
        return out[0]

    logits = run(thd(members(), form))
    batch = thd(members(), form)
    bounds: Tensor = batch["cu_seqlens_q_padded" if "cu_seqlens_q_padded" in batch else "cu_seqlens_q"]
    differences = [
        float((logits[start : start + len(one)] - run(thd([one], RowForm()))).abs().max())
        for start, one in zip(bounds.tolist(), members(), strict=False)
    ]
    print(f"megatron-core thd multiple={form.multiple}: logits {max(differences):.1e}")
    assert max(differences) <= 1e-5

"""megatron-core's GPTModel in THD, on a CPU: the packed logits are those of each member alone.

The model's own code runs, rotary embedding by segment included; only the attention kernel, which needs a GPU, is
replaced by torch's own attention, segment by segment as PackedSeqParams says. Without megatron-core a small class with
the fields of an older version stands in, for the fields alone.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.packed_seq_params import packed_seq_params
from energon_pack.training.layout import Form, Member, thd


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
    plain, gaps = thd(members(), Form()), thd(members(), Form(multiple=4))
    old = packed_seq_params(plain, Old)
    assert (old.qkv_format, old.max_seqlen_q, old.cu_seqlens_kv.tolist()) == ("thd", 14, [0, 9, 14, 28, 29])
    new = packed_seq_params(gaps, New)
    assert (new.total_tokens, new.pad_between_seqs, new.max_seqlen_q) == (40, True, 16)
    assert new.cu_seqlens_q_padded.tolist() == [0, 12, 20, 36, 40]
    with pytest.raises(ValueError, match="pad_to_multiple_of=1"):
        packed_seq_params(gaps, Old)


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny GPTModel of megatron-core."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    patch = pytest.MonkeyPatch()
    patch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    patch.setattr(tensor_parallel.random.CudaRNGStatesTracker, "fork", lambda *_: nullcontext())
    meeting = tmp_path_factory.mktemp("gloo") / "meeting"
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=0.2,
    )
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = _segments()
    yield GPTModel(config, spec, 64, 128, position_embedding_type="rope").eval()
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    patch.undo()


def _segments() -> Any:
    """A core attention that sees one segment at a time, in the physical bounds; gaps follow a member's own tokens."""
    from torch.nn.functional import scaled_dot_product_attention

    class Segments(torch.nn.Module):
        def __init__(self, config: Any, *_: Any, **__: Any):
            super().__init__()

        def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: Any, packed_seq_params: Any, **__: Any) -> Tensor:
            padded = packed_seq_params.cu_seqlens_q_padded
            bounds = packed_seq_params.cu_seqlens_q if padded is None else padded
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
            out = [
                scaled_dot_product_attention(q[:, rows], k[:, rows], v[:, rows], is_causal=True)
                for rows in (slice(a, b) for a, b in pairwise(bounds.tolist()))
            ]
            return torch.cat(out, 1).transpose(0, 1).flatten(1)

    return Segments


@pytest.mark.parametrize("form", [Form(), Form(multiple=4), Form(multiple=8, width=64)])
def test_packed_is_alone_in_megatron(gpt: Any, form: Form) -> None:
    def run(batch: dict[str, Any]) -> Tensor:
        with torch.no_grad():
            out: Tensor = gpt(
                batch["input_ids"], batch["position_ids"], None, packed_seq_params=packed_seq_params(batch)
            )
        return out[0]

    logits = run(thd(members(), form))
    batch = thd(members(), form)
    bounds: Tensor = batch["cu_seqlens_q_padded" if "cu_seqlens_q_padded" in batch else "cu_seqlens_q"]
    differences = [
        float((logits[start : start + len(one)] - run(thd([one], Form()))).abs().max())
        for start, one in zip(bounds.tolist(), members(), strict=False)
    ]
    print(f"megatron-core thd multiple={form.multiple}: logits {max(differences):.1e}")
    assert max(differences) <= 1e-5

"""Make Megatron-Core's PackedSeqParams from a `thd` batch's boundaries, with the fields that its version has."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

__all__ = ["packed_seq_params"]


def packed_seq_params(batch: Mapping[str, Any], make: Any = None, *, physical: bool = False) -> Any:
    """Return the argument of `GPTModel.forward(packed_seq_params=…)`.

    Args:
        batch: a batch of layout `thd`.
        make: the class to make, by default megatron-core's; it gets the fields that it has.
        physical: count the gap after a member as part of it; the member never sees it. Multi-token prediction needs
            this if members have gaps: megatron-core 0.16.1 shifts its labels between `cu_seqlens_q`, padded or not.

    Raises:
        ValueError: the batch has gaps, and this version has no field for them.
    """
    if make is None:
        from megatron.core.packed_seq_params import PackedSeqParams

        make = PackedSeqParams
    known = {field.name for field in fields(make)}
    is_padded = "cu_seqlens_q_padded" in batch and not physical
    if is_padded and "cu_seqlens_q_padded" not in known:
        raise ValueError(
            "this megatron-core knows no cu_seqlens_q_padded: pack with packing.pad_to_multiple_of=1, or physical=True"
        )
    names = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    values: dict[str, Any] = {name: batch[name] for name in names if name in batch}
    if physical:
        values |= {name: batch.get(f"{name}_padded", batch[name]) for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    values |= {name: int(batch[name]) for name in ("max_seqlen_q", "max_seqlen_kv")}
    values |= {"qkv_format": "thd", "total_tokens": batch["total_tokens"], "pad_between_seqs": is_padded}
    return make(**{name: value for name, value in values.items() if name in known})

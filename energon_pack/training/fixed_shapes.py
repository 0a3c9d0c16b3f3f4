"""Give batches few shapes, rows of few widths and boundaries of one number, and Megatron-Core's PackedSeqParams."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import gcd
from typing import Any

import torch

#: boundaries of members, and the length of the longest one, in both layouts
_BOUNDARY_KEYS = (
    "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded",
)  # fmt: skip
_MAX_LENGTH_KEYS = ("max_length_q", "max_length_k", "max_seqlen_q", "max_seqlen_kv")


def check_padding_options(pad_to: Any, pad_segments: Any) -> None:
    """Raise ValueError for a bad option of `PackEncoder`.

    Args:
        pad_to: `longest`, `max_token_len`, a number of tokens ≥ 1, or a list of such numbers.
        pad_segments: a number ≥ 2, or None.
    """
    widths = [pad_to] if isinstance(pad_to, int) else [] if pad_to in ("longest", "max_token_len") else pad_to
    if isinstance(widths, str) or any(type(width) is not int or width < 1 for width in widths):
        raise ValueError(f"pad_to={pad_to}: longest, max_token_len, a number of tokens, or a list of widths")
    if pad_segments is not None and (type(pad_segments) is not int or pad_segments < 2):
        raise ValueError(f"pad_segments={pad_segments}: 2 or more, for a member and the padding behind it")


def allowed_widths(
    pad_to: str | int | Sequence[int], planned: int, longest: int | None, multiple: int
) -> Sequence[int]:
    """Return the row widths in tokens, ascending, that `pad_to` allows; packs have up to `planned` or `longest`.

    Raises ValueError for a width that is no multiple of `multiple`, as each member's length is, or without room.
    """
    asked = [pad_to] if isinstance(pad_to, int) else [] if isinstance(pad_to, str) else pad_to
    if wrong := next((width for width in asked if width % multiple), None):
        raise ValueError(
            f"pad_to={pad_to}: {wrong} is no multiple of pad_to_multiple_of={multiple}, which members are padded to, so"
            f" the last one would not be: {-(-wrong // multiple) * multiple} is, or pad_to_multiple_of="
            f"{gcd(wrong, multiple)}"
        )
    if isinstance(pad_to, int):
        return range(pad_to, -(-max(planned, longest or 0) // pad_to) * pad_to + 1, pad_to)
    widths = [planned] if isinstance(pad_to, str) else sorted(pad_to)
    if not isinstance(pad_to, str) and (not widths or widths[-1] < planned):
        raise ValueError(f"pad_to={list(pad_to)}: packs have up to {planned} tokens, for which no width has room")
    return widths


def padded_boundaries(batch: Mapping[str, Any], num_segments: int) -> dict[str, Any]:
    """Return boundaries [num_segments + 1], filled up with empty segments, and the row width as the maximum length."""
    width, filled = batch["input_ids"].shape[1], {}
    for name in _BOUNDARY_KEYS:
        if (ends := batch.get(name)) is not None:
            if (missing := num_segments + 1 - len(ends)) < 0:
                raise ValueError(
                    f"{len(ends) - 1} members and paddings, more than pad_segments={num_segments}: pack with"
                    f" packing.max_members={num_segments - 1}, for one pack a batch, or give a larger number"
                )
            filled[name] = torch.cat([ends, ends[-1:].expand(missing)])
    longest = {name: batch[name] for name in _MAX_LENGTH_KEYS if name in batch}
    return filled | {
        name: value.new_tensor(width) if isinstance(value, torch.Tensor) else width for name, value in longest.items()
    }


def packed_seq_params(batch: Mapping[str, Any], make: Any = None, *, physical: bool = False) -> Any:
    """Return the argument of `GPTModel.forward(packed_seq_params=…)`.

    Args:
        batch: a batch of layout `thd`.
        make: the class to make, by default megatron-core's; fields that it lacks are left out.
        physical: count the gap after a member as part of it; the member never sees it. Multi-token prediction needs
            this if members have gaps: megatron-core 0.16.1 shifts its labels between `cu_seqlens_q`, padded or not.
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

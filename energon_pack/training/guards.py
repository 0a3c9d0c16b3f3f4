"""Refuse inputs with which members of a pack would see each other.

Each of these was measured to mix them, and the loss looks normal all the while.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

from torch import Tensor

#: what the kernels of gated delta nets are imported as, and how they are installed
_KERNELS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}


class MixingError(ValueError):
    """Members of a pack would see each other."""


def missing_kernels() -> list[str]:
    """Packages a hybrid model needs to keep members apart, and which are not there."""
    return [name for module, name in _KERNELS.items() if importlib.util.find_spec(module) is None]


def is_hybrid(model: Any) -> bool:
    """Whether a model has layers of linear attention."""
    return "linear_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ())


def refuse_hybrid(num_rows: int) -> None:
    """Hybrid models (gated delta nets) carry a state along the row.

    Raises:
        MixingError: their kernels are missing, without which that state runs through all members, or B > 1.
    """
    missing = missing_kernels()
    if missing:
        raise MixingError(
            "a hybrid model carries its state from member to member without its kernels:"
            f" pip install {' '.join(missing)}"
        )
    if num_rows > 1:
        raise MixingError(f"a hybrid model keeps members apart in one row only, not in {num_rows}: batch_size=1")


def check_inputs(inputs: Mapping[str, Any], attention: str | None = None, is_hybrid: bool = False) -> None:
    """Look at the inputs of a forward of a packed batch.

    Args:
        attention: the model's attention implementation, `sdpa`, `eager`, `flash_attention_2` …
        is_hybrid: the model has layers of linear attention.

    Raises:
        MixingError: says what is wrong with them, and what would be right.
    """
    ids, positions, mask = inputs.get("input_ids"), inputs.get("position_ids"), inputs.get("attention_mask")
    if inputs.get("use_cache") is not False:
        raise MixingError(
            f"use_cache={inputs.get('use_cache')}: a model that builds a cache takes the row for one text;"
            " pass use_cache=False in the call (config.use_cache of a vision-language model is not enough)"
        )
    if positions is None:
        raise MixingError("position_ids are missing: they are what tells members apart")
    if positions.dim() == 3 and positions.shape[0] == 3:
        raise MixingError(
            "position_ids [3, B, S] have no text row: the model needs [4, B, S] to see where members begin"
        )
    has_cu = inputs.get("cu_seq_lens_q") is not None
    if isinstance(mask, Tensor):
        _check_mask(mask, positions)
    if attention and "flash" in attention and ids is not None and ids.shape[0] > 1 and not has_cu:
        raise MixingError(f"{attention} with {ids.shape[0]} rows needs cu_seq_lens_q, cu_seq_lens_k and max_length_q/k")
    if has_cu:
        _check_boundaries(positions, inputs["cu_seq_lens_q"])
    if is_hybrid:
        refuse_hybrid(1 if ids is None else len(ids))
        if inputs.get("seq_idx") is None or not has_cu:
            raise MixingError("a hybrid model needs seq_idx and cu_seq_lens_q to begin anew with each member")


def guard(model: Any) -> Any:
    """Have every forward of a model checked by `check_inputs`; `generate`, which needs a cache, is refused meanwhile.

    Returns:
        The hook's handle; `remove()` ends it.
    """
    attention = getattr(model.config, "_attn_implementation", None)
    hybrid = is_hybrid(model)

    def check(_: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        check_inputs({**dict(zip(("input_ids",), args, strict=False)), **inputs}, attention, hybrid)

    return model.register_forward_pre_hook(check, with_kwargs=True)


def _check_mask(mask: Tensor, positions: Tensor) -> None:
    if mask.dim() == 4 and not mask.is_floating_point():
        raise MixingError(
            "a boolean 4-D mask: eager attention adds it to the scores, and windows are lost; leave it out"
        )
    if mask.dim() == 2 and mask.max() <= 1 and _has_several(mask, positions):
        raise MixingError("a 2-D attention_mask of ones: with it the model takes the row for one text; leave it out")


def _has_several(mask: Tensor, positions: Tensor) -> bool:
    """Whether a row has more than one member where the mask is not 0; of one alone, an indexed mask is ones, too."""
    row = positions[0] if positions.dim() == 3 else positions
    begins = (row == 0).to(mask.device) & (mask != 0)
    return bool((begins.sum(1) > 1).any())


def _check_boundaries(positions: Tensor, cu_seq_lens: Tensor) -> None:
    """The text row starts again exactly where a document begins, so that all attention backends agree."""
    row = (positions[0] if positions.dim() == 3 else positions).flatten()
    begins = (row == 0).nonzero().flatten().to(cu_seq_lens.device)
    if begins.tolist() != cu_seq_lens[:-1].tolist() or int(cu_seq_lens[-1]) != len(row):
        raise MixingError("position_ids do not start again where cu_seq_lens_q says a member begins")

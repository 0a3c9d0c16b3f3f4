"""Masks for models that positions alone do not keep apart, built where the batch is, never in a worker.

A boolean 4-D mask is never made: eager attention would add it to the scores. A 2-D mask of ones neither: it switches
transformers' own recognition of packs off.
"""

import torch
from torch import Tensor


def additive_masks(
    doc_ids: Tensor,
    types: Tensor,
    sliding_window: int | None,
    chunk_size: int | None,
    image_blocks: bool,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Masks for models that take a dict of them, such as Gemma 3 and gpt-oss: 0 where a token is seen, else -inf-like.

    Args:
        doc_ids: [B, S], 0 on the pad tail.
        types: [B, S]: 1 on image tokens.
        sliding_window: of the model's text config.
        chunk_size: `attention_chunk_size` of the model's text config: a token sees its own stretch of so many.
        image_blocks: tokens of one image see each other in both directions.

    Returns:
        full_attention and, with a window or chunks, sliding_attention and chunked_attention: [B, 1, S, S].
    """
    width = doc_ids.shape[1]
    here = torch.arange(width, device=doc_ids.device)
    seen = (here[:, None] >= here[None, :])[None]
    if image_blocks:
        seen = seen | _same_block(types)
    seen = seen & (doc_ids[:, :, None] == doc_ids[:, None, :])
    masks = {"full_attention": seen}
    if sliding_window:
        masks["sliding_attention"] = seen & (here[:, None] - here[None, :] < sliding_window)
    if chunk_size:
        chunk = _positions(doc_ids) // chunk_size
        masks["chunked_attention"] = seen & (chunk[:, :, None] == chunk[:, None, :])
    least = torch.finfo(dtype).min
    return {
        name: torch.where(mask[:, None], torch.zeros((), dtype=dtype, device=mask.device), least).to(dtype)
        for name, mask in masks.items()
    }


def _positions(doc_ids: Tensor) -> Tensor:
    """[B, S]: the place of each token in its member."""
    here = torch.arange(doc_ids.shape[1], device=doc_ids.device).expand(doc_ids.shape)
    begins = torch.nn.functional.pad(doc_ids[:, 1:] != doc_ids[:, :-1], (1, 0), value=True)
    return here - torch.where(begins, here, 0).cummax(1).values


def _same_block(types: Tensor) -> Tensor:
    """[B, S, S]: both tokens are of the same unbroken run of image tokens."""
    is_image = types == 1
    begins = is_image & ~torch.nn.functional.pad(is_image[:, :-1], (1, 0))
    block = torch.where(is_image, begins.cumsum(1), 0)
    return (block[:, :, None] == block[:, None, :]) & is_image[:, :, None]

"""Make masks for models in which positions alone do not keep members apart, by a few facts about the model.

A loader's worker holds these facts, the `ModelOutline`, and no weights; masks are made on the batch's device. A boolean
mask is never made: eager attention would add it to the scores. Nor is a 2-D mask of ones: it switches off transformers'
own recognition of packs.
"""

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from energon_pack.training.forward_inputs import PROVEN_MASKS, takes_rope_rows
from energon_pack.training.layout import IGNORE
from energon_pack.training.model_wrappers import unwrapped


class ImageAttention(Enum):
    """In which layers the tokens of one image attend to each other in both directions."""

    #: in none: they are read as words are
    CAUSAL = auto()
    #: in all layers; in layers with a window, only within it: Gemma 3
    IN_WINDOWS = auto()
    #: only in layers with a window, within it: Gemma 4
    ONLY_IN_WINDOWS = auto()
    #: in all layers, even beyond their window: Gemma 4 unified
    BEYOND_WINDOWS = auto()


def image_attention_of(model: Any) -> ImageAttention:
    """Return how a model's image tokens attend to each other; masks for packs have to keep that."""
    text = model.config.get_text_config()
    if getattr(text, "use_bidirectional_attention", None) == "vision":
        return ImageAttention.BEYOND_WINDOWS if "unified" in text.model_type else ImageAttention.ONLY_IN_WINDOWS
    has_types = "token_type_ids" in inspect.signature(model.forward).parameters
    return ImageAttention.IN_WINDOWS if has_types else ImageAttention.CAUSAL


#: put before the names of tower inputs in a batch: some models have media inputs of the same names
TOWER_PREFIX = "tower_"
#: in the names of inputs that are boundaries, which attention without variable lengths reads on the host
BOUNDARY_MARK = "_cu_"


@dataclass(frozen=True)
class TowerInputsProof:
    """Precomputed inputs of a vision tower that were shown to leave outputs and gradients as they are."""

    #: identifies the tower: see `TowerInputMaker.config_hash`
    config_hash: str
    #: names of the inputs
    names: frozenset[str]
    #: whether boundaries stay on the host, where this attention reads them
    keeps_boundaries_on_host: bool
    #: host reads of a forward over the trial's packs, without the inputs and with them
    num_host_reads: tuple[int, int]


#: by guarded model
PROVEN_TOWERS: weakref.WeakKeyDictionary[Module, TowerInputsProof] = weakref.WeakKeyDictionary()


def tower_inputs_in(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch's precomputed inputs for a vision tower, by the names under which a model takes them."""
    return {name.removeprefix(TOWER_PREFIX): value for name, value in batch.items() if name.startswith(TOWER_PREFIX)}


@dataclass(frozen=True)
class ModelOutline:
    """The facts about a model that `PackedBatch.model_inputs` needs, without its weights."""

    name: str
    #: whether it takes M-RoPE rows as positions
    has_rope_rows: bool
    #: the mask that `guard` found; None: it is not guarded
    proven_mask: str | None
    sliding_window: int | None
    attention_chunk_size: int | None
    image_attention: ImageAttention
    dtype: torch.dtype
    device: torch.device
    #: the precomputed inputs for its vision tower; None: it has none
    tower: TowerInputsProof | None = None

    def on_cpu(self) -> "ModelOutline":
        """Return the outline for a loader's worker, which must not touch a GPU: it makes masks on the CPU."""
        return replace(self, device=torch.device("cpu"))


def outline_of(model: Any) -> ModelOutline:
    """Return the outline of a model, which may be wrapped; an outline is returned unchanged."""
    if isinstance(model, ModelOutline):
        return model
    model = unwrapped(model)
    text = model.config.get_text_config()
    return ModelOutline(
        name=type(model).__name__,
        has_rope_rows=takes_rope_rows(model),
        proven_mask=PROVEN_MASKS.get(model),
        sliding_window=getattr(text, "sliding_window", None),
        attention_chunk_size=getattr(text, "attention_chunk_size", None),
        image_attention=image_attention_of(model),
        dtype=model.dtype,
        device=model.device,
        tower=PROVEN_TOWERS.get(model),
    )


def has_bidirectional_prefix(model_class: Any, config: Any) -> bool:
    """Say whether a class attends in both directions before the answer, as PaliGemma does; it needs mask `prefix4d`."""
    is_both_ways = getattr(config.get_text_config(), "use_bidirectional_attention", None) is True
    return is_both_ways and "token_type_ids" in inspect.signature(model_class.forward).parameters


def mask_from_first_trained_token(doc_ids: Tensor, labels: Tensor) -> Tensor:
    """Return bool [B, S]: true from each member's first trained token on; labels are not shifted."""
    trained = (labels != IGNORE).long()
    first = torch.arange(doc_ids.shape[1], device=doc_ids.device) - _places_in_member(doc_ids)
    so_far = trained.cumsum(1)
    return so_far > (so_far - trained).gather(1, first)


def prefix_attention_mask(doc_ids: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask [B, 1, S, S] of models that attend both ways before the answer; labels not shifted."""
    prefix = ~mask_from_first_trained_token(doc_ids, labels)
    here = torch.arange(doc_ids.shape[1], device=doc_ids.device)
    seen = (here[:, None] >= here) | (prefix[:, :, None] & prefix[:, None, :])
    return _additive(seen & (doc_ids[:, :, None] == doc_ids[:, None, :]), dtype)


def layer_masks_of_packs(doc_ids: Tensor, types: Tensor, outline: ModelOutline) -> dict[str, Tensor]:
    """Return additive masks, by kind of layer, for models that take a dict of them, such as Gemma 3 and gpt-oss.

    Args:
        doc_ids: [B, S], 0 on the pad tail.
        types: [B, S]: 1 on image tokens, 2 on those of videos.

    Returns:
        full_attention and, with a window or chunks, sliding_attention and chunked_attention: [B, 1, S, S], 0 where a
        token is seen, else the least value of the model's dtype.
    """
    here = torch.arange(doc_ids.shape[1], device=doc_ids.device)
    same = doc_ids[:, :, None] == doc_ids[:, None, :]
    causal = (here[:, None] >= here) & same
    return _masks_by_layer_kind(causal, _is_same_image(types) & same, _places_in_member(doc_ids), outline)


class TreeTensors(NamedTuple):
    """The tensors [B, S] of a batch of trees from which its masks are made."""

    tree_end: Tensor
    tree_index: Tensor
    doc_ids: Tensor
    types: Tensor


def tree_masks(rows: TreeTensors, outline: ModelOutline) -> dict[str, Tensor]:
    """Return masks as `layer_masks_of_packs` does, for trees; windows and chunks count tokens within a sample."""
    block = _is_same_image(rows.types, follows_other_member(rows.doc_ids))
    return _masks_by_layer_kind(tree_causal(rows.tree_end), block, rows.tree_index, outline)


def tree_causal(tree_end: Tensor) -> Tensor:
    """Return bool [B, S, S]: true at [b, q, k] if token q sees token k: k is q, or is before it in some sample."""
    here = torch.arange(tree_end.shape[1], device=tree_end.device)
    return (here[:, None] >= here) & (here[:, None] < tree_end[:, None, :])


def _masks_by_layer_kind(causal: Tensor, block: Tensor, index: Tensor, outline: ModelOutline) -> dict[str, Tensor]:
    """Return a mask for each kind of layer, from bool [B, S, S] (is it before, is it in the same image) and places."""
    attention = outline.image_attention
    image = block if attention is not ImageAttention.CAUSAL else torch.zeros_like(block)
    seen = causal if attention is ImageAttention.ONLY_IN_WINDOWS else causal | image
    masks = {"full_attention": seen}
    if window := outline.sliding_window:
        near = index[:, :, None] - index[:, None, :] < window
        near_image = image if attention is ImageAttention.BEYOND_WINDOWS else image & near
        masks["sliding_attention"] = causal & near | near_image
    if outline.attention_chunk_size:
        chunk = index // outline.attention_chunk_size
        masks["chunked_attention"] = seen & (chunk[:, :, None] == chunk[:, None, :])
    return {name: _additive(mask, outline.dtype) for name, mask in masks.items()}


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn bool [B, S, S] into an additive mask [B, 1, S, S]."""
    least = torch.finfo(dtype).min
    return torch.where(seen[:, None], torch.zeros((), dtype=dtype, device=seen.device), least).to(dtype)


def _places_in_member(doc_ids: Tensor) -> Tensor:
    """Return the place [B, S] of each token in its member, from 0."""
    here = torch.arange(doc_ids.shape[1], device=doc_ids.device).expand(doc_ids.shape)
    begins = torch.nn.functional.pad(doc_ids[:, 1:] != doc_ids[:, :-1], (1, 0), value=True)
    return here - torch.where(begins, here, 0).cummax(1).values


def _is_same_image(types: Tensor, cuts: Tensor | None = None) -> Tensor:
    """Return bool [B, S, S]: whether two tokens are in one run of image or video tokens; a run ends before a cut."""
    is_image = (types == 1) | (types == 2)
    begins = is_image & ~torch.nn.functional.pad(is_image[:, :-1], (1, 0))
    if cuts is not None:
        begins |= is_image & cuts
    block = torch.where(is_image, begins.cumsum(1), 0)
    return (block[:, :, None] == block[:, None, :]) & (block > 0)[:, :, None]


def follows_other_member(doc_ids: Tensor) -> Tensor:
    """Return bool [B, S]: whether a token belongs to another member than the token before it."""
    return torch.nn.functional.pad(doc_ids.diff(dim=1) != 0, (1, 0))

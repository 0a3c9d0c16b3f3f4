"""Build a small model of a class, in which a pack of a few tokens shows every effect of a long pack at full size."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from energon_pack.training.encoded import Encoded
from energon_pack.training.forward_inputs import TREE_ATTENTION
from energon_pack.training.model_wrappers import configs_in
from energon_pack.training.probe_batches import plain_logits
from energon_pack.training.restored_model import zero_dropout_and_jitter
from energon_pack.training.shrunk_config import shrink_config

#: tokens: the product of two such sizes (block length × number of blocks) is still less than a member's length
SMALL_LEN = 3
_Model = TypeVar("_Model")
_Answer = TypeVar("_Answer")
#: names that count no tokens: widths, layers, ids, pixels, rates, factors; and limits of positions, which `shrink` sets
_OTHER_SIZES = re.compile(
    r"\w*(dim|head|hidden|intermediate|inner|width|rank|vocab|layer|expert|position_embeddings|scalar)\w*"
    r"|\w*(image|video|audio|patch|crop|resolution|second)\w*|\w*(_id|_ids|_index|seed)|_\w*"
)


@dataclass(frozen=True)
class ConfigSize:
    """A number in a config: where it is stored, its name and its first value."""

    holder: dict[str, Any]
    name: str
    value: int

    def set(self, value: int) -> None:
        """Write a value into the config."""
        self.holder[self.name] = value


def build_with_small_windows(
    config: Any,
    longest: int | None,
    shapes: Callable[[Any], object],
    build: Callable[[Any], _Model],
    logits: Callable[[_Model], Tensor],
) -> _Model:
    """Build a model in which sizes that count text tokens are `SMALL_LEN`: windows, chunks, if a pack can reach them.

    Args:
        config: a config with few and small layers; it is changed.
        longest: tokens of the longest pack; None: packs may be of any length.
        shapes: returns the shapes of the weights that a model of a config has.
        build: builds a model of a config; equal shapes get equal weights.
        logits: runs a text of more than `SMALL_LEN` tokens alone in a model: [L, vocabulary]; raises if it fails.
    """
    model = build(config)
    sizes = [size for size in _possible_token_counts(config) if longest is None or size.value < longest]
    shaped = shapes(config) if sizes else None
    sizes = [size for size in sizes if _answer_while_small([size], lambda: shapes(config) == shaped or None)]
    if not sizes:
        return model
    first = logits(model)[: SMALL_LEN - 1]
    tolerance = (2e-2 if first.dtype.itemsize < 4 else 1e-4) * max(1.0, float(first.abs().max()))

    def alike() -> _Model | None:
        other = build(config)
        return other if torch.allclose(logits(other)[: SMALL_LEN - 1], first, rtol=0, atol=tolerance) else None

    small = _answer_while_small(sizes, alike)
    if small is None:
        sizes = [size for size in sizes if _answer_while_small([size], alike) is not None]
    for size in sizes:
        size.set(SMALL_LEN)
    return build(config) if small is None else small


def _answer_while_small(sizes: list[ConfigSize], question: Callable[[], _Answer | None]) -> _Answer | None:
    """Return the answer of a function while these sizes are small; None: the class refuses such sizes."""
    try:
        for size in sizes:
            size.set(SMALL_LEN)
        return question()
    except Exception:  # foreign code, with a config that may not fit it
        return None
    finally:
        for size in sizes:
            size.set(size.value)


def _possible_token_counts(config: Any) -> Iterator[ConfigSize]:
    """Yield the numbers in the text config and the configs around it; those of a vision tower count no text tokens."""
    text = config.get_text_config()
    for part in {id(part): part for part in (config, *configs_in(text))}.values():
        yield from _sizes_in(vars(part))


def _sizes_in(holder: dict[str, Any]) -> Iterator[ConfigSize]:
    for name, value in list(holder.items()):
        if _OTHER_SIZES.fullmatch(str(name)):
            continue
        if type(value) is int and value > SMALL_LEN:
            yield ConfigSize(holder, name, value)
        elif isinstance(value, dict):
            yield from _sizes_in(value)


#: logits kept for each token: all 150,000 would take gigabytes, and show the same
_NUM_LOGITS = 256
#: noise added to weights that are all equal at first: with these a part does nothing, or the same for all tokens
_WEIGHT_NOISE = 0.1


def build_small_model(
    model_class: Any,
    config: Any,
    attention: str | None = None,
    longest_pack_len: int | None = None,
    members: Sequence[Encoded] = (),
    device: torch.device | str = "cpu",
) -> Any:
    """Build a small model of a class, with random weights; in float32, or bfloat16 for flash attention on a GPU.

    Runs of `members` show which sizes count tokens (windows, chunks) and can be small; without members, these stay.
    """
    small, device = shrink_config(copy.deepcopy(config), longest_pack_len), torch.device(device)
    if not members:
        return _build_model(model_class, small, attention, device)
    return build_with_small_windows(
        small,
        longest_pack_len,
        lambda config: _weight_shapes(model_class, config, attention),
        lambda config: _build_model(model_class, config, attention, device),
        lambda model: _logits(model, members),
    )


def _weight_shapes(make: Any, config: Any, attention: str | None) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = _new_model(make, config, attention)
    return {name: weights.shape for name, weights in model.named_parameters()}


def _logits(model: Any, members: Sequence[Encoded]) -> Tensor:
    """Run every member alone; return the logits [L, vocabulary] of the one with the fewest media."""
    logits = [plain_logits(model, member) for member in sorted(members, key=lambda member: len(member.media))]
    return logits[0]


def _new_model(make: Any, config: Any, attention: str | None) -> Any:
    if attention == TREE_ATTENTION:  # of the text part alone
        model = _new_model(make, config, None)
        from energon_pack.training.tree_inputs import use_tree_attention

        use_tree_attention(model)
        return model
    chosen = {"attn_implementation": attention} if attention else {}
    if hasattr(make, "_from_config"):
        model = make._from_config(copy.deepcopy(config), dtype=torch.float32, **chosen)
        _unset_attention(model.config, config)
        return model
    return make(config)


def _unset_attention(config: Any, full_config: Any) -> None:
    """Remove the attention implementation from those parts of a config that have none in the model's own config.

    `attn_implementation` reaches all parts, a model loaded without it only those that are models: Fun-ASR-Nano's
    adaptor then sees padding.
    """
    chosen = [getattr(part, "_attn_implementation", None) for part in configs_in(full_config)]
    for part, name in zip(configs_in(config), chosen, strict=False):
        if chosen[0] and name is None:
            part._attn_implementation = None


def _build_model(make: Any, config: Any, attention: str | None, device: torch.device) -> Any:
    with torch.random.fork_rng():  # leaves the user's random numbers alone
        torch.manual_seed(0)
        model = _new_model(make, config, attention)
        for parameter in model.parameters():
            _vary_equal_weights(parameter.data)
        for part in model.modules():  # the spread of a row of zeros has no gradient
            if isinstance(part, torch.nn.Embedding) and part.padding_idx is not None:
                _vary_equal_weights(part.weight.data[part.padding_idx])
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, torch.nn.Linear):
        head.weight = torch.nn.Parameter(head.weight[:_NUM_LOGITS])
        head.bias = None if head.bias is None else torch.nn.Parameter(head.bias[:_NUM_LOGITS])
    zero_dropout_and_jitter(model)
    is_half = device.type == "cuda" and attention is not None and "flash" in attention  # flash takes only half
    return model.to(device, torch.bfloat16 if is_half else torch.float32).eval()


def _vary_equal_weights(weights: Tensor) -> None:
    flat = weights.flatten()
    if len(flat) and weights.is_floating_point() and flat[0] == flat[-1] and bool((flat == flat[0]).all()):
        weights += _WEIGHT_NOISE * torch.randn_like(weights)

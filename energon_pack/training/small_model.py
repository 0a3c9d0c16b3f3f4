"""Build a small model of a class, in which a pack of a few tokens shows every effect of a long pack at full size."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from energon_pack.training.as_it_was import silence
from energon_pack.training.encoded import Encoded
from energon_pack.training.inputs import KINDS
from energon_pack.training.made_probe import plain_logits
from energon_pack.training.shrink import shrink
from energon_pack.training.token_sizes import with_small_sizes
from energon_pack.training.wrapped import parts

#: logits kept for each token: all 150,000 would take gigabytes, and show the same
_NUM_LOGITS = 256
#: noise added to weights that are all equal at first: with these a part does nothing, or the same for all tokens
_NOISE = 0.1


def small_model(
    make: Any,
    config: Any,
    attention: str | None = None,
    longest: int | None = None,
    members: Sequence[Encoded] = (),
    device: torch.device | str = "cpu",
) -> Any:
    """Build a small model with random weights, in float32 if its attention supports it: bfloat16 adds rounding.

    Args:
        make: its class.
        config: the full-size config; it is not changed.
        attention: attention implementation; None: the class's own choice.
        longest: tokens of the longest pack; see `shrink`.
        members: members to try it with; sizes that count tokens are made smaller than these. Without any, they stay.
        device: where its kernels run.

    Returns:
        The model in eval(); nothing in it is random in train().
    """
    small, device = shrink(copy.deepcopy(config), longest), torch.device(device)
    if not members:
        return _built(make, small, attention, device)
    return with_small_sizes(
        small,
        longest,
        lambda config: _shapes(make, config, attention),
        lambda config: _built(make, config, attention, device),
        lambda model: _logits(model, members),
    )


def _shapes(make: Any, config: Any, attention: str | None) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = _made(make, config, attention)
    return {name: weights.shape for name, weights in model.named_parameters()}


def _logits(model: Any, members: Sequence[Encoded]) -> Tensor:
    """Run every member, and return the logits of the one with the fewest media."""
    logits = [plain_logits(model, member) for member in sorted(members, key=lambda member: len(member.media))]
    return logits[0]


def _made(make: Any, config: Any, attention: str | None) -> Any:
    if attention in KINDS:  # of the text part alone
        model = _made(make, config, None)
        from energon_pack.training.tree_attention import use_tree_attention

        use_tree_attention(model, KINDS[attention])
        return model
    chosen = {"attn_implementation": attention} if attention else {}
    if hasattr(make, "_from_config"):
        model = make._from_config(copy.deepcopy(config), dtype=torch.float32, **chosen)
        _leave_unset(model.config, config)
        return model
    return make(config)


def _leave_unset(config: Any, own: Any) -> None:
    """Take the attention implementation from parts that have none in the model's own config.

    `attn_implementation` reaches all parts, a model loaded without it only those that are models: Fun-ASR-Nano's
    adaptor then sees padding.
    """
    chosen = [getattr(part, "_attn_implementation", None) for part in parts(own)]
    for part, name in zip(parts(config), chosen, strict=False):
        if chosen[0] and name is None:
            part._attn_implementation = None


def _built(make: Any, config: Any, attention: str | None, device: torch.device) -> Any:
    with torch.random.fork_rng():  # leaves the user's random numbers alone
        torch.manual_seed(0)
        model = _made(make, config, attention)
        for parameter in model.parameters():
            _vary(parameter.data)
        for part in model.modules():  # the spread of a row of zeros has no gradient
            if isinstance(part, torch.nn.Embedding) and part.padding_idx is not None:
                _vary(part.weight.data[part.padding_idx])
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(head, torch.nn.Linear):
        head.weight = torch.nn.Parameter(head.weight[:_NUM_LOGITS])
        head.bias = None if head.bias is None else torch.nn.Parameter(head.bias[:_NUM_LOGITS])
    silence(model)
    is_half = device.type == "cuda" and attention is not None and "flash" in attention  # flash takes only half
    return model.to(device, torch.bfloat16 if is_half else torch.float32).eval()


def _vary(weights: Tensor) -> None:
    flat = weights.flatten()
    if len(flat) and weights.is_floating_point() and flat[0] == flat[-1] and bool((flat == flat[0]).all()):
        weights += _NOISE * torch.randn_like(weights)

"""Does a model keep the members of a pack apart? One member is changed; the others' logits have to stay what they were.

Runs on a CPU in seconds: `shrink` makes a small model of the user's own class, with its own vocabulary and media.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from energon_pack.training.batch import PackedBatch
from energon_pack.training.guards import check_inputs, is_hybrid
from energon_pack.training.layout import Form, neat
from energon_pack.training.members import Encoded
from energon_pack.training.pixels import join

#: sizes of a shrunk model, by the names configs have for them
_SMALL = {
    "num_hidden_layers": 2, "depth": 2, "num_key_value_heads": 2, "intermediate_size": 96,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
_HEADS = 2


@dataclass(frozen=True)
class Finding:
    """What became of the logits when one member was changed."""

    #: largest difference in any other member's logits: 0 where nothing is mixed
    others: float
    #: largest difference in its own
    own: float
    #: largest difference between a member's logits in the pack and in a pack of its own
    alone: float

    @property
    def mixes(self) -> bool:
        """Whether a member's logits depend on the others. Sums in another order differ by about 1e-6 of the logits."""
        return max(self.others, self.alone) > 1e-4 * max(self.own, 1e-3)


def probe(model: Any, members: Sequence[Encoded], mask: str = "positions", changed: int = 0) -> Finding:
    """Run a pack through a model twice, one member changed in between: its words and its pixels.

    Args:
        model: of transformers, or with the same `forward`; evaluated in its present mode.
        members: at least two.
        mask: what keeps members apart: `model.mask`.
        changed: which one.

    Raises:
        MixingError: inputs with which they would surely be mixed.
    """
    before = _logits(model, members, mask)
    other = _changed(members[changed], model.config.get_text_config().vocab_size)
    after = _logits(model, [*members[:changed], other, *members[changed + 1 :]], mask)
    alone = [_logits(model, [member], mask)[0] for member in members]
    differences = _differences(before, after)
    own = differences.pop(changed)
    return Finding(max(differences), own, max(_differences(before, alone)))


def shrink(config: Any) -> Any:
    """A config of the same class with few and small layers; vocabulary, special tokens and patches stay.

    Args:
        config: of transformers; it is changed.
    """
    text = config.get_text_config()
    for part in [text, config, *(getattr(config, name, None) for name in config.sub_configs)]:
        if part is None:
            continue
        for name, value in _SMALL.items():
            if isinstance(getattr(part, name, None), int):
                setattr(part, name, min(value, getattr(part, name)))
        _shrink_width(part, text)
        if vars(part).get("layer_types"):  # in some configs it follows from other settings
            kinds = list(dict.fromkeys(part.layer_types))
            part.layer_types = (kinds * 2)[: max(2, len(kinds))]
            part.num_hidden_layers = len(part.layer_types)
        for name in ("fullatt_block_indexes", "deepstack_visual_indexes"):
            if getattr(part, name, None):
                setattr(part, name, [1])
    return config


def _shrink_width(part: Any, text: Any) -> None:
    """Two heads of the size they had: rotary sections still fit."""
    heads = next((name for name in ("num_attention_heads", "num_heads") if getattr(part, name, None)), None)
    width = next((name for name in ("embed_dim", "hidden_size") if getattr(part, name, None)), None)
    if heads and width and getattr(part, heads) > _HEADS:
        head_dim = getattr(part, "head_dim", None) or getattr(part, width) // getattr(part, heads)
        setattr(part, width, _HEADS * head_dim)
        setattr(part, heads, _HEADS)
    for name in ("out_hidden_size", *(("hidden_size",) if width == "embed_dim" else ())):
        if getattr(part, name, None):
            setattr(part, name, text.hidden_size)


def _logits(model: Any, members: Sequence[Encoded], mask: str) -> list[torch.Tensor]:
    form = Form(rope=members[0].tokens.rope is not None)
    batch = PackedBatch(neat([[member.tokens for member in members]], form) | join(m.media for m in members))
    batch.mask = mask
    inputs = batch.to(model.device).model_inputs(model)
    del inputs["labels"]  # there is no need for a loss
    check_inputs(inputs, getattr(model.config, "_attn_implementation", None), is_hybrid(model))
    with torch.no_grad():
        logits = model(**inputs).logits[0]
    return list(logits.split([len(member.tokens) for member in members]))


def _differences(some: list[torch.Tensor], others: list[torch.Tensor]) -> list[float]:
    return [float((a - b).abs().max()) for a, b in zip(some, others, strict=True)]


def _changed(member: Encoded, vocabulary: int) -> Encoded:
    tokens = member.tokens
    words = 10 + (tokens.ids + 7) % max(1, vocabulary - 10) if vocabulary > 20 else (tokens.ids + 7) % vocabulary
    # Special tokens may steer a model (where images stand): only the last words of the text are others.
    is_word = tokens.types == 0
    is_word[: int(tokens.types.nonzero().max()) + 2 if tokens.types.any() else 0] = False
    pixels = {
        name: value.flip(0) + 0.5 if value.is_floating_point() and name.startswith("pixel_values") else value
        for name, value in member.media.items()
    }
    return replace(member, tokens=replace(tokens, ids=torch.where(is_word, words, tokens.ids)), media=pixels)

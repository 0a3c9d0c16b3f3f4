"""Models of the token ids that some samples have: a few hundred, in the place of 150,000.

Inputs and labels are renumbered for them alone; all else is the processor's.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from energon_pack.training.encoded import IGNORE


class FewIds:
    """A policy and a reference in float32, of other weights, made from the config of a folder."""

    def __init__(self, folder: Path, ids: torch.Tensor):
        import transformers as tf

        config = tf.AutoConfig.from_pretrained(folder)
        nodes = {id(node): node for node in (config, config.get_text_config())}.values()
        named = [(node, name) for node in nodes for name in vars(node) if name.endswith("_token_id")]
        named = [(node, name) for node, name in named if isinstance(getattr(node, name), int)]
        kept = torch.unique(torch.cat([ids, torch.tensor([getattr(node, name) for node, name in named])]))
        self.numbers = torch.full((int(kept.max()) + 1,), -1)
        self.numbers[kept] = torch.arange(len(kept))
        for node, name in named:
            setattr(node, name, int(self.numbers[getattr(node, name)]))
        config.get_text_config().vocab_size = len(kept)
        torch.manual_seed(0)
        has_media = hasattr(config, "vision_config")
        kind: Any = tf.AutoModelForImageTextToText if has_media else tf.AutoModelForCausalLM
        self.policy = kind.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()
        self.reference = deepcopy(self.policy).requires_grad_(False)
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape))

    def to(self, dtype: torch.dtype) -> "FewIds":
        """The same weights in another precision."""
        other = deepcopy(self)
        other.policy.to(dtype)
        other.reference.to(dtype)
        return other

    def renumbered(self, values: torch.Tensor) -> torch.Tensor:
        """The same token ids, or labels, by the numbers of these models."""
        return torch.where(values == IGNORE, values, self.numbers[values.clamp(min=0)])


def cast(inputs: Any, dtype: torch.dtype) -> dict[str, Any]:
    """A model's inputs with all floats in another precision."""
    return {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}

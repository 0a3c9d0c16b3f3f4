"""What is counted of a sample beside its tokens: measuring, cutting and packing while loading ask here."""

from collections.abc import Sequence
from itertools import repeat

from energon_pack.templates.sample import Rendered


def counts_of(rendered: Rendered, kinds: Sequence[str]) -> dict[str, int]:
    """What `caps` are about beside tokens, by column.

    Args:
        kinds: of its media.
    """
    return {"num_visual_tokens": rendered.num_visual_tokens, "num_images": kinds.count("image")}


def weighted_spans(rendered: Rendered, factor: float) -> list[tuple[int, int]]:
    """The supervised characters that count other than 1 in the loss.

    Args:
        factor: of the sample.
    """
    pairs = zip(rendered.spans, rendered.weights or repeat(1.0), strict=False)
    return [span for span, weight in pairs if weight * factor != 1]

"""What is counted of a sample beside its tokens: measuring, cutting and packing while loading ask here."""

from collections.abc import Sequence

from energon_pack.templates.template import Rendered


def counts_of(rendered: Rendered, kinds: Sequence[str]) -> dict[str, int]:
    """What `caps` are about beside tokens, by column.

    Args:
        kinds: of its media.
    """
    return {"num_visual_tokens": rendered.num_visual_tokens, "num_images": kinds.count("image")}

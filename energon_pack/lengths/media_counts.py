"""Count what a sample has besides tokens. Measuring, cutting and packing while loading all use these functions."""

from collections.abc import Sequence

from energon_pack.samples.media.kinds import AUDIO, IMAGE
from energon_pack.templates.sample import Rendered


def media_counts_of(rendered: Rendered, kinds: Sequence[str]) -> dict[str, int]:
    """Count visual tokens, images, sounds … of a sample, by column name; `kinds`: the kind of each medium."""
    return {
        "num_visual_tokens": rendered.num_visual_tokens,
        IMAGE.column: kinds.count(IMAGE.kind),
        "num_audio_tokens": rendered.num_audio_tokens,
        AUDIO.column: kinds.count(AUDIO.kind),
        "clip_frames": rendered.clip_frames,
    }

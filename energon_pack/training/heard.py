"""Tell whether the videos of a member are heard, by its tokens."""

import torch
from torch import Tensor

#: argument of `forward` and of `get_rope_index` that says that videos are heard
HEARD = "use_audio_in_video"
#: tokens of a video and of a sound in `mm_token_type_ids`
_VIDEO, _SOUND = 2, 3


def are_heard(types: Tensor) -> bool:
    """Whether the videos of a member are heard: tokens of sounds then stand right beside tokens of videos.

    Args:
        types: [L], as `mm_token_type_ids` has them.
    """
    pairs = torch.stack([types[:-1], types[1:]]).sort(dim=0).values
    return bool(((pairs[0] == _VIDEO) & (pairs[1] == _SOUND)).any())

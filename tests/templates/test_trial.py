"""The samples that a processor is tried with, and what is said of what came of them."""

from energon_pack.templates.choose import Choice
from energon_pack.templates.identity import UNEVEN
from energon_pack.templates.trial import Trial


def test_videos_of_several_lengths_are_tried_with_enough_frames() -> None:
    """Clips of 11 frames are refused by processors that choose 32, or 2 a second: users' longer ones were, too."""
    [uneven] = [one.sample.media for one in Trial().tries if one.kind == UNEVEN]
    assert len({clip.num_frames for clip in uneven}) == 2
    assert all(clip.num_frames >= 32 and clip.num_frames / clip.fps >= 1 for clip in uneven)


def test_what_is_left_out_is_said_once_in_words() -> None:
    """Samples of videos with images go with the videos: three lines for one reason were said."""
    why = "no such token"
    alone = Choice("kimi", "KimiProcessor", {"image": 50}, {"mixed": "it knows none", "uneven": "none", "video": why})
    assert alone.lines("auto") == [
        "videos of KimiProcessor can't be measured: no such token",
        "media by kimi of KimiProcessor: 50 images as in its full call",
    ]
    several = Choice("internvl", "P", {"image": 50, "video": 5}, {"uneven": "stack expects equal sizes"})
    assert several.lines("auto") == [
        "videos of several lengths in one sample of P can't be measured: stack expects equal sizes",
        "media by internvl of P: 50 images, 5 videos as in its full call",
    ]

"""Facts about a batch by hand-computed cases: places of members, words that may change, and single members."""

from types import SimpleNamespace
from typing import Any

import torch

from energon_pack.training.trial_inputs import MemberSpan, trial_inputs

#: one row: a text of 4 tokens, a picture (9, 9) between two words, a text of 3, padding
IDS = torch.tensor([[11, 12, 13, 14, 15, 9, 9, 16, 17, 18, 2, 0, 0]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0, 1]])
CONFIG = SimpleNamespace(image_token_id=9, eos_token_id=[2], hidden_size=16)
MEDIA = frozenset(("pixel_values",))
MEDIA_NAMES = frozenset(("pixel_values", "image_grid_thw"))


def asked(**more: Any) -> Any:
    return trial_inputs({"input_ids": IDS, "position_ids": POSITIONS, "use_cache": False, **more}, CONFIG, MEDIA)


def test_members_and_words() -> None:
    """Padding is no member; special tokens and image tokens stay, or a model would look for other images."""
    found = asked(labels=IDS, logits_to_keep=1)
    assert found.members == [MemberSpan(0, 0, 4), MemberSpan(0, 4, 8), MemberSpan(0, 8, 11)]
    assert found.changed == [MemberSpan(0, 0, 4)]
    assert not {"labels", "logits_to_keep"} & found.as_is.keys()
    other = found.other_words["input_ids"]
    assert (other != IDS).tolist() == [[True] * 4 + [False] * 9]
    assert set(other.flatten().tolist()) <= set(IDS.flatten().tolist())
    assert [one[1] for one in found.runs] == [[MemberSpan(0, 4, 8), MemberSpan(0, 8, 11)]] * 2
    turned = trial_inputs({"input_ids": IDS[:, 4:], "position_ids": POSITIONS[:, 4:]}, CONFIG, MEDIA)
    assert turned is not None
    assert (turned.other_words["input_ids"] != IDS[:, 4:]).tolist() == [[True, False, False, True] + [False] * 5]


def test_the_last_member_stays_where_there_are_others() -> None:
    """It may see all members before it: with it changed, nothing of that would show."""
    five = torch.arange(10, 20)[None], torch.tensor([[0, 1] * 5])
    found = trial_inputs({"input_ids": five[0], "position_ids": five[1]}, SimpleNamespace(), MEDIA)
    assert found is not None
    assert [one.start for one in found.changed] == [0, 4]


def test_pixels_of_the_first_and_the_last_picture() -> None:
    """They have as many patches as their grids give. What the last ones let through was never looked at."""
    patches, grid = torch.zeros(6, 2), torch.tensor([[1, 2, 2], [1, 1, 2]])
    given = {"input_ids": IDS, "position_ids": POSITIONS, "pixel_values": patches, "image_grid_thw": grid}
    found = trial_inputs(given, SimpleNamespace(), MEDIA_NAMES)
    assert found is not None
    first, last = (one["pixel_values"][:, 0].tolist() for one in found.other_media)
    assert first == [0.5] * 4 + [0.0] * 2
    assert last == [0.0] * 4 + [0.5] * 2


def test_features_of_sounds() -> None:
    """Without them the guard would say nothing of what a model hears."""
    features = torch.zeros(2, 3, 4)
    given = {"input_ids": IDS, "position_ids": POSITIONS, "input_features": features}
    found = trial_inputs(given, SimpleNamespace(), frozenset(("input_features",)))
    assert found is not None
    means = [one["input_features"].mean((1, 2)).tolist() for one in found.other_media]
    assert means == [[0.5, 0.0], [0.0, 0.5]]


def test_what_can_not_be_asked() -> None:
    assert trial_inputs({"input_ids": IDS[:, :4], "position_ids": POSITIONS[:, :4]}, CONFIG, MEDIA) is None
    assert trial_inputs({"input_ids": IDS[:, :4] * 0 + 9, "position_ids": POSITIONS[:, 2:6]}, CONFIG, MEDIA) is None

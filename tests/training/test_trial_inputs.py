"""Facts about a batch by hand-computed cases: places of members, words that may change, and single members."""

from types import SimpleNamespace
from typing import Any

import torch

from energon_pack.training.trial_inputs import Span, trial_inputs

#: one row: a text of 4 tokens, a picture (9, 9) between two words, a text of 3, padding
IDS = torch.tensor([[11, 12, 13, 14, 15, 9, 9, 16, 17, 18, 2, 0, 0]])
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0, 1]])
CONFIG = SimpleNamespace(image_token_id=9, eos_token_id=[2], hidden_size=16)
MEDIA = frozenset(("pixel_values",))


def asked(**more: Any) -> Any:
    return trial_inputs({"input_ids": IDS, "position_ids": POSITIONS, "use_cache": False, **more}, CONFIG, MEDIA)


def test_members_and_words() -> None:
    """Padding is no member; special tokens and image tokens stay, or a model would look for other images."""
    found = asked(labels=IDS, logits_to_keep=1)
    assert found.members == [Span(0, 0, 4), Span(0, 4, 8), Span(0, 8, 11)]
    assert found.changed == [Span(0, 4, 8)]
    assert not {"labels", "logits_to_keep"} & found.as_is.keys()
    other = found.other_words["input_ids"]
    assert (other != IDS).tolist() == [[False] * 4 + [True, False, False, True] + [False] * 5]
    assert set(other.flatten().tolist()) <= set(IDS.flatten().tolist())


def test_one_member_alone_is_of_text() -> None:
    """What has a picture would need its own pixels."""
    span, inputs = asked(pixel_values=torch.ones(1, 3, 2, 2), mm_token_type_ids=(IDS == 9).long()).alone
    assert span == Span(0, 8, 11)
    assert inputs["input_ids"].tolist() == [[17, 18, 2]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1]]
    assert not {"position_ids", "pixel_values"} & inputs.keys()
    assert asked().alone[0] == Span(0, 4, 8)


def test_pixels_of_the_first_picture() -> None:
    """The first picture has as many patches as its grid gives."""
    patches, grid = torch.zeros(6, 2), torch.tensor([[1, 2, 2], [1, 1, 2]])
    config = SimpleNamespace()
    given = {"input_ids": IDS, "position_ids": POSITIONS, "pixel_values": patches, "image_grid_thw": grid}
    found = trial_inputs(given, config, frozenset(("pixel_values", "image_grid_thw")))
    assert found is not None
    assert found.other_pixels is not None
    assert found.other_pixels["pixel_values"].tolist() == [[0.5, 0.5]] * 4 + [[0.0, 0.0]] * 2
    assert found.alone is None  # nothing says which tokens are of pictures


def test_features_of_the_first_sound() -> None:
    """Without them the guard would say nothing of what a model hears."""
    features = torch.zeros(2, 3, 4)
    given = {"input_ids": IDS, "position_ids": POSITIONS, "input_features": features}
    found = trial_inputs(given, SimpleNamespace(), frozenset(("input_features",)))
    assert found is not None
    assert found.other_pixels is not None
    assert found.other_pixels["input_features"].mean((1, 2)).tolist() == [0.5, 0.0]


def test_what_can_not_be_asked() -> None:
    assert trial_inputs({"input_ids": IDS[:, :4], "position_ids": POSITIONS[:, :4]}, CONFIG, MEDIA) is None
    assert trial_inputs({"input_ids": IDS[:, :4] * 0 + 9, "position_ids": POSITIONS[:, 2:6]}, CONFIG, MEDIA) is None

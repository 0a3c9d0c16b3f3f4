"""M-RoPE positions equal those that the models compute, on the meta device without weights."""

import itertools
import random
from typing import Any

import pytest
import torch

from energon_pack.training.rope import RopeRule, rope_positions
from support.tiny import FAMILIES, tf

CLASSES = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel"}


@pytest.mark.parametrize("name", CLASSES)
def test_positions_are_the_models_own(name: str) -> None:
    rng = random.Random(0)
    with torch.device("meta"):
        model: Any = getattr(tf, CLASSES[name])(FAMILIES[name].config())
    for _ in range(30):
        types: list[int] = []
        grids: dict[int, list[list[int]]] = {1: [], 2: []}
        for kind in rng.choices((1, 2), k=rng.randint(0, 4)):
            time = 1 if kind == 1 else rng.randint(1, 5)
            height, width = 2 * rng.randint(1, 5), 2 * rng.randint(1, 5)
            grids[kind].append([time, height, width])
            frames = time if kind == 2 and name == "qwen3_vl" else 1
            for _ in range(frames):
                types += [0] * rng.randint(1, 6) + [kind] * (time // frames * height * width // 4)
        types += [0] * rng.randint(1, 6)
        row = torch.tensor(types)
        given: dict[str, Any] = {
            "image_grid_thw": torch.tensor(grids[1]) if grids[1] else None,
            "video_grid_thw": torch.tensor(grids[2]) if grids[2] else None,
        }
        if name == "qwen2_5_vl" and grids[2]:
            given["second_per_grid_ts"] = torch.tensor([rng.choice((0.5, 1.0, 1.5, 2.3)) for _ in grids[2]])
        theirs, _ = model.get_rope_index(row[None], row[None], **given)
        rope = FAMILIES[name].rope
        assert rope is not None
        assert torch.equal(rope_positions(rope, row, **given), theirs[:, 0])


def test_grids_that_are_not_those_of_the_tokens_are_refused() -> None:
    types = torch.tensor([0, 1, 1, 0])
    for grids, said in (([[1, 4, 4]], "2 visual tokens at 0 for a grid of 1×2×2"), ([[1, 2, 4]] * 2, "more grids")):
        with pytest.raises(ValueError, match=said):
            rope_positions(RopeRule("qwen2_vl"), types, torch.tensor(grids))
    with pytest.raises(ValueError, match="have no grid"):
        rope_positions(RopeRule("qwen2_vl"), types)


def test_a_video_is_not_placed_by_a_guess() -> None:
    """The published models have 2, transformers' class has 4: positions of the other are wrong, and no error."""
    image = {"image_grid_thw": torch.tensor([[1, 2, 2]])}
    clip = {"video_grid_thw": torch.tensor([[2, 2, 2]]), "second_per_grid_ts": torch.tensor([1.0])}
    assert rope_positions(RopeRule("qwen2_5_vl"), torch.tensor([0, 1]), **image).tolist() == [[0, 1]] * 3
    with pytest.raises(ValueError, match=r"depend on tokens_per_second of the model's vision_config"):
        rope_positions(RopeRule("qwen2_5_vl"), torch.tensor([0, 2, 2]), **clip)
    for number in (2, 4):
        rows = rope_positions(RopeRule("qwen2_5_vl", tokens_per_second=number), torch.tensor([0, 2, 2]), **clip)
        assert rows[0].tolist() == [0, 1, 1 + number]


def test_text_counts_on() -> None:
    for kind, length in itertools.product(CLASSES, (1, 5)):
        rows = rope_positions(RopeRule(kind), torch.zeros(length, dtype=torch.long))
        assert rows.tolist() == [list(range(length))] * 3

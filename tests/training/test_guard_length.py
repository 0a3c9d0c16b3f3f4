"""How long a guarded row is, asked of the device only where its width leaves it open."""

import pytest
import torch

from energon_pack.training import guards


def test_members_are_looked_for_in_wide_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward waited for the device to find members that could not be too long."""
    asked: list[object] = []

    def members_of(inputs: object) -> list[object]:
        asked.append(inputs)
        return []

    monkeypatch.setattr(guards, "members_of", members_of)
    inputs = {"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    assert (guards._length_of(inputs, 5), len(asked)) == (3, 0)
    assert (guards._length_of(inputs, 4), len(asked)) == (3, 1)
    far = {"position_ids": torch.tensor([[[0, 1, 2]], [[0, 40, 80]]])}  # M-RoPE of a video counts beyond its tokens
    assert guards._length_of(far, 5) == 81

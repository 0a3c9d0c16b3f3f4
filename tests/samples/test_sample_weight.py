"""A sample with an invalid weight is left out, with its reason."""

from typing import Any

import pytest

from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import sample_weight


@pytest.mark.parametrize("value", [-0.1, -1, "1", [1], 10**400, 1e7, float("nan"), float("inf")])
def test_what_is_no_weight_is_a_bad_message(value: Any) -> None:
    """10**400 is valid JSON, and no float: it ended the run; 1e39 would be infinite as float32."""
    with pytest.raises(Skip) as told:
        sample_weight({"weight": value})
    assert told.value.reason is Reason.BAD_MESSAGE
    assert "the sample's weight is" in told.value.detail


def test_what_is_a_weight() -> None:
    values = [None, 0, 0.5, True, 1_000_000]
    assert [sample_weight({"weight": value}) for value in values] == [1.0, 0.0, 0.5, 1.0, 1_000_000.0]
    assert sample_weight({}) == 1.0

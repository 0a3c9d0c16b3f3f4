"""Words that messages share."""

import pytest

from energon_pack.errors import amount


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 samples"), (1, "1 sample"), (2, "2 samples"), (1009, "1,009 samples")]
)
def test_a_number_agrees_with_its_noun(number: int, said: str) -> None:
    assert amount(number, "sample") == said

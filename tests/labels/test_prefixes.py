"""Our trained tokens of our own conversations, compared with transformers' prefixes.

Without it, only the 60 conversations of the truth are compared.
"""

import pytest

from support.labels.conventions import reason_to_differ
from support.labels.conversations import conversations, weighted
from support.labels.folders import REAL_FOLDERS
from support.labels.prefix import judge_template
from support.running import REAL

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")

#: ChatML with tools, and a template that writes text in parts alone
FEW = ("qwen3_vl", "granite_docling_idefics3")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FEW)) for n in REAL_FOLDERS])
def test_a_turn_is_what_follows_its_prompt(name: str) -> None:
    rows = [*conversations(), *weighted()]
    assert len(rows) >= 140
    judged = judge_template(name, REAL / "processors" / name, rows)
    assert [item for item in judged if not item.is_right and reason_to_differ(item) is None] == []

"""Our trained tokens of our own conversations, compared with what transformers' prefixes tell.

Without it, only the 36 conversations of the truth are compared.
"""

import pytest

from support.labels.conventions import reason_to_differ
from support.labels.conversations import conversations, weighted
from support.labels.folders import REAL_FOLDERS
from support.labels.judged import judge_template
from support.marks import slow
from support.running import REAL

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here")

#: ChatML with tools, and a template that writes text in parts alone
FEW = ("qwen3_vl", "granite_docling_idefics3")


@pytest.mark.parametrize("name", [name if name in FEW else slow(name) for name in REAL_FOLDERS])
def test_a_turn_is_what_follows_its_prompt(name: str) -> None:
    rows = [*conversations(), *weighted()]
    judged = list(judge_template(name, REAL / "processors" / name, rows))
    assert len(judged) == len(rows) > 140
    assert [item for item in judged if not item.is_right and reason_to_differ(item) is None] == []

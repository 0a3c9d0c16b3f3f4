"""A record in a framework's own dialect has the tokens that the framework itself makes of it.

Without it, a dialect is what we took it for: alpaca's input could stand before its instruction, and nobody would see.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.templates.sample import Sample
from support.dialects import CONVERSATIONS, FORMS
from support.labels.folders import build_template
from support.labels.in_environments import run
from support.running import REAL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not REAL.is_dir(), reason="../shared/real is not here"),
]

NAME = "qwen2_5_text"
TEMPLATES = {"trl": "", "swift": "qwen2_5", "llamafactory": "qwen"}
#: forms of `support.dialects` that each framework documents
READ = {
    "trl": ("canonical", "prompt/completion, turns"),
    "swift": (
        "canonical", "sharegpt", "alpaca", "query/response", "prompt/response", "question/response", "ms-swift",
        "conversation",
    ),
    "llamafactory": ("canonical", "sharegpt", "alpaca"),
}  # fmt: skip


@pytest.mark.parametrize("framework", READ)
def test_dialects_have_the_tokens_of_their_framework(framework: str, tmp_path: Path) -> None:
    folder = REAL / "processors" / NAME
    template = build_template(NAME, folder, after_turn=True)
    line_break = template.tokenizer.encode("\n", add_special_tokens=False).ids
    rows: list[tuple[str, Any]] = [
        (form.name, form.written(system, pairs))
        for form in FORMS
        if form.name in READ[framework]
        for system, pairs in CONVERSATIONS
        if framework != "trl" or "system" not in form.written(system, pairs)  # a field that TRL does not read
    ]
    try:
        theirs = run(
            framework, [value for _, value in rows], folder, tmp_path, framework, TEMPLATES[framework],
            script_name="read_rows.py",
        )  # fmt: skip
    except OSError as error:
        pytest.skip(str(error))
    same, other = Counter[str](), []
    for (name, value), ids in zip(rows, theirs, strict=True):
        ours = template.encode(Sample(parse_record(value, ReadSettings()).messages, [])).ids
        if isinstance(ids, list) and without(ids, line_break) == without(ours, line_break):
            same[name] += 1
        else:
            other.append((name, value, ids if isinstance(ids, str) else template.tokenizer.decode(ids)))
    print(framework, dict(same))
    assert other == []
    assert same.keys() == set(READ[framework])


def without(ids: list[int], end: list[int]) -> list[int]:
    """Leave out the line break after the last turn, which some write."""
    return ids[: -len(end)] if ids[-len(end) :] == end else ids

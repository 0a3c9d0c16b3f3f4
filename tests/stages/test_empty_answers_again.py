"""A half-written run of an earlier version has trained empty answers in shards of the same lengths: it is made anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.pack import pack
from energon_pack.plan.note_counts import SampleNoteCounts


def conversation(*answers: str) -> dict[str, Any]:
    turns = [({"role": "user", "content": "q"}, {"role": "assistant", "content": answer}) for answer in answers]
    return {"messages": [turn for both in turns for turn in both]}


@pytest.mark.parametrize(("answers", "is_same"), [(("a", ""), False), (("a", "b"), True)])
def test_another_identity_where_empty_answers_are_not_trained(
    config: Callable[..., PackConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: tuple[str, str],
    is_same: bool,
) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps(conversation(*answers)) + "\n")
    ours = pack(config(str(source), output__name="ours"))["identity"]
    counted = SampleNoteCounts.add

    def as_before(notes: SampleNoteCounts, *args: Any) -> None:
        counted(notes, *args)
        notes.samples["empty_answers"] = 0

    monkeypatch.setattr(SampleNoteCounts, "add", as_before)
    assert (pack(config(str(source), output__name="before"))["identity"] == ours) == is_same

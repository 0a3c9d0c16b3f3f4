"""Fields that settings and meta files rename. A name that is read too late swaps question, answer and system prompt."""

from typing import Any

import pytest

from energon_pack.samples.dialects.rewrite import with_keys_renamed
from energon_pack.samples.settings import Columns, ReadSettings, Roles
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row

ASKED = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TAGS = {"role_tag": "who", "content_tag": "says", "user_tag": "U", "assistant_tag": "A"}
TAGGED = [{"who": "U", "says": "q"}, {"who": "A", "says": "a"}]


@pytest.mark.parametrize(
    ("record", "names", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": "b", "b": "a"}, {"a": 2, "b": 1}),  # they change places
        ({"a": 1, "b": 2, "c": 3}, {"a": "b", "b": "c", "c": "a"}, {"a": 2, "b": 3, "c": 1}),
        ({"a": 1, "b": 2}, {"a": "b"}, {"a": 2}),  # what had our name gives way
        ({"a": 1}, {"a": "b"}, {"a": 1}),  # the record lacks it
        ({"a": 1, "b": 2}, {"a": "a", "c": "a"}, {"a": 1, "b": 2, "c": 1}),  # one field for two names
    ],
)
def test_names_are_read_from_the_untouched_record(
    record: dict[str, int], names: dict[str, str], expected: dict[str, int]
) -> None:
    assert with_keys_renamed(record, names) == expected


def conversation(value: Any, lines: RowSettings | None = None, settings: ReadSettings | None = None) -> Any:
    return parse_row(value, lines or RowSettings("/"), settings or ReadSettings()).messages


def test_a_meta_file_may_swap_names_of_alpaca() -> None:
    record = {"prompt": "You are a lawyer.", "instruction": "Summarise.", "input": "A text.", "output": "Short."}
    columns = {"system": "prompt", "prompt": "instruction", "query": "input", "response": "output"}
    expected = [
        {"role": "system", "content": "You are a lawyer."},
        {"role": "user", "content": "Summarise.\nA text."},
        {"role": "assistant", "content": "Short."},
    ]
    assert conversation(record, RowSettings("/", tuple(sorted(columns.items())))) == expected


@pytest.mark.parametrize("field", ["conversations", "messages", "dialog"])
def test_tags_of_a_meta_file_reach_the_usual_fields_of_turns(field: str) -> None:
    assert conversation({field: TAGGED}, RowSettings("/", (), tuple(TAGS.items()))) == ASKED


def test_tags_reach_the_field_that_a_column_or_the_run_names() -> None:
    tags = tuple(TAGS.items())
    assert conversation({"talk": TAGGED}, RowSettings("/", (("messages", "talk"),), tags)) == ASKED
    assert conversation({"talk": TAGGED}, RowSettings("/", (), tags), ReadSettings(messages_key="talk")) == ASKED


def test_tags_of_roles_alone_leave_other_spellings_as_they_are() -> None:
    tags = (("user_tag", "Kunde"),)
    assert (
        conversation({"messages": [{"role": "Kunde", "content": "q"}, ASKED[1]]}, RowSettings("/", (), tags)) == ASKED
    )
    spoken = [{"from": "Kunde", "value": "q"}, {"from": "gpt", "value": "a"}]
    assert conversation({"conversations": spoken}, RowSettings("/", (), tags)) == ASKED
    assert conversation({"conversations": [{"human": "q", "assistant": "a"}]}, RowSettings("/", (), tags)) == ASKED


@pytest.mark.parametrize("chosen", [TAGGED[1], TAGGED[1:]])
def test_tags_reach_the_answers_of_preference_data(chosen: Any) -> None:
    record = {"conversations": TAGGED[:1], "chosen": chosen, "rejected": {"who": "A", "says": "no"}}
    settings = ReadSettings(take="chosen")  # type: ignore[arg-type]
    assert conversation(record, RowSettings("/", (), tuple(TAGS.items())), settings) == ASKED


def test_a_key_of_a_turn_that_a_column_names_wins_over_one_that_has_our_name() -> None:
    turns = [{"role": "1", "speaker": "U", "content": "q"}, {"role": "2", "speaker": "A", "content": "a"}]
    settings = ReadSettings(columns=Columns(role="speaker"), roles=Roles(user="U", assistant="A"))
    assert conversation({"messages": turns}, settings=settings) == ASKED


def test_a_caption_of_an_image_folder_stays_beside_an_empty_text() -> None:
    record = {"file_name": "a.jpg", "text": "", "caption": "A cat."}
    assert parse_row(record, RowSettings("/"), ReadSettings()).messages[-1]["content"] == "A cat."

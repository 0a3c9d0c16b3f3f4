"""The table of dialects, checked: each record of the page gives the messages that the page shows."""

import json

import pytest

from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.dialects.table import DIALECTS, TURN_FIELDS
from energon_pack.samples.media.kinds import media_kind_by_extension
from energon_pack.samples.settings import Columns, ReadSettings, Roles
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from support.pages import blocks, code, section, table

PAGE = "dialects.md"
ROWS = table(PAGE, "dialect | a record")


def packed(value: object, settings: ReadSettings) -> str:
    record = parse_row(value, RowSettings("/data"), settings)
    messages = match_placeholders_with_media(
        record, [media_kind_by_extension(name) or "" for name in record.listed_media or ()]
    ).messages
    return " · ".join(f"{message['role']}§{message['content']}" for message in messages)


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:30] for row in ROWS])
def test_a_record_of_the_page_is_what_the_page_says(row: list[str]) -> None:
    assert packed(json.loads(row[1].strip("`")), ReadSettings()) == row[2].strip("`").replace("⏎", "\n")


def test_the_page_names_every_dialect_of_the_table() -> None:
    named = " ".join(row[0] for row in ROWS)
    assert set(TURN_FIELDS) <= set(code(named))
    for dialect in DIALECTS:
        both = len(dialect.required_fields) == 2 and "questions" not in dialect.name and "answer" in dialect.name
        assert dialect.name in named or both or dialect.name == "questions and answer"


def test_the_names_of_the_page() -> None:
    columns = Columns(messages="dialog", role="speaker", content="utterance", system="rules")
    settings = ReadSettings(columns=columns, roles=Roles(user="Alice", assistant="Bob"))
    assert packed(json.loads(blocks("json", PAGE)[0]), settings) == "system§s · user§q · assistant§a"
    command = blocks("text", PAGE)[0]
    for node, values in (("columns", vars(columns)), ("roles", vars(settings.roles))):
        assert all(f"source.{node}.{ours}={theirs}" in command for ours, theirs in values.items() if theirs)
        assert set(values) <= set(code(section(PAGE, "Any other names").rpartition("```")[2]))

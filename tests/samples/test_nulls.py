"""Nulls that a table's rows put into a record are no text; those that an author wrote are.

`datasets.to_json` writes each key of any row, and models learnt to call each tool with the arguments of all others.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.samples.conversation import options_of
from energon_pack.samples.raw_record import has_nulls_added_by_table
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.settings import NullPolicy, ReadSettings
from energon_pack.sources.parquet_rows import row_json

Values = dict[str, Any]


def called(name: str, arguments: Values, **parameters: Values) -> Values:
    """A record of a call, and the schema of what is called."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": parameters}}}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": messages, "tools": [tool]}


TIDE = called("tide_at", {"harbour": "Hull"}, harbour={"type": "string"})
COUNT = called("count_to", {"n": 3}, n={"type": "integer", "default": None})
ON_PURPOSE = called("tide_at", {"harbour": None}, harbour={"type": "string", "default": None})


def read(record: Values, nulls: NullPolicy | None = None) -> Record:
    return parse_record(record, ReadSettings(nulls=nulls))


def rendered(record: Record) -> list[Any]:
    """What a template gets of turns and tools: a key of a turn that is null is not there."""
    return [[{k: v for k, v in turn.items() if v is not None} for turn in record.messages], record.tools]


def test_a_record_is_the_same_through_each_door(tmp_path: Path) -> None:
    """JSONL trained `"harbour": null` where Parquet did not."""
    table = pa.Table.from_pylist([TIDE, COUNT])
    pq.write_table(table, tmp_path / "a.parquet")
    for number, (row, whole) in enumerate(zip(table.to_pylist(), (TIDE, COUNT), strict=True)):
        assert None in row["messages"][1]["tool_calls"][0]["function"]["arguments"].values()
        path = str(tmp_path / "a.parquet")
        of_jsonl, of_parquet = read(row), read(json.loads(row_json(path, _version(path), number)))
        assert of_jsonl.drops_nulls
        assert not of_parquet.drops_nulls
        expected = json.loads(json.dumps(whole).replace(', "default": null', ""))  # which no struct can tell
        for found in (of_jsonl, of_parquet):
            assert rendered(found) == [expected["messages"], expected["tools"]]


def _version(path: str) -> str:
    from energon_pack.sources.storage import state_of

    state = state_of(path)
    assert state is not None
    return state.version


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (ON_PURPOSE, False),  # its turns have other keys each: no row of a table
        (ON_PURPOSE | {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, False),
        ({"messages": [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": "b"}]}, False),
        ({"messages": [{"role": role, "content": "a", "name": None} for role in ("user", "assistant")]}, True),
        ({"messages": [{"role": role, "content": None} for role in ("user", "assistant")]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "image": None}]}]}, True),
        ({"tools": TIDE["tools"], "system": None}, False),
        (called("f", {"x": 1}, x={"enum": None}) | {"messages": []}, True),  # no schema has such a value
    ],
)
def test_whose_nulls_they_are(record: Values, expected: bool) -> None:
    assert has_nulls_added_by_table(record) is expected


def test_what_an_author_wrote_stays_unless_the_setting_says_otherwise() -> None:
    def arguments(record: Record) -> Values:
        found: Values = record.messages[1]["tool_calls"][0]["function"]["arguments"]
        return found

    assert arguments(read(ON_PURPOSE)) == {"harbour": None}
    assert arguments(read(ON_PURPOSE, NullPolicy.drop)) == {}
    row = pa.Table.from_pylist([TIDE, COUNT]).to_pylist()[1]
    assert arguments(read(row)) == {"n": 3}
    assert arguments(read(row, NullPolicy.keep)) == {"harbour": None, "n": 3}
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "a"}]
    of_images = {"messages": [{"role": role, "content": parts, "name": None} for role in ("user", "assistant")]}
    assert has_nulls_added_by_table(of_images)
    assert not read(of_images).drops_nulls  # no text has changed
    assert options_of({"chat_template_kwargs": {"a": None, "b": 1}}).chat_template_kwargs == {"b": 1}


@given(
    st.lists(
        st.tuples(st.sampled_from("fgh"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), min_size=1)),
        min_size=1,
        max_size=5,
    )
)
def test_rows_of_any_calls_come_back_as_they_were(calls: list[tuple[str, Values]]) -> None:
    records = [called(name, given, **{key: {"type": "integer"} for key in given}) for name, given in calls]
    for row, record in zip(pa.Table.from_pylist(records).to_pylist(), records, strict=True):
        found, expected = read(row), read(record)
        assert json.dumps(rendered(found), sort_keys=True) == json.dumps(rendered(expected), sort_keys=True)

"""Calls of every spelling become OpenAI's form. One left as text would train a model to write bare JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import STORED_SETTINGS, ReadSettings, ToolForm
from energon_pack.samples.skip import Skip

ASKED: Message = {"role": "user", "content": "Weather in Oslo?"}
ANSWER: Message = {"role": "assistant", "content": "Rain."}


def function(name: str = "weather", arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {**more, "type": "function", "function": {"name": name, "arguments": arguments or {"city": "Oslo"}}}


def called(*calls: dict[str, Any], content: str = "", **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more, "tool_calls": list(calls or [function()])}


def result(text: str, **more: Any) -> Message:
    return {"role": "tool", "content": text, **more}


def turn(role: str, value: Any) -> dict[str, Any]:
    return {"from": role, "value": value}


def parsed(*turns: dict[str, Any], settings: ReadSettings | None = None, **fields: Any) -> list[Message]:
    return parse_record({"messages": [ASKED, *turns, ANSWER], **fields}, settings or ReadSettings()).messages[1:-1]


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
TWO = f'[{CALL}, {{"name": "time", "arguments": "{{\\"zone\\": 1}}"}}]'
TIME = function("time", '{"zone": 1}')
NOW = {"type": "function", "function": {"name": "f", "arguments": {}}}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
IMAGE = {"type": "image"}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        # ShareGPT and LLaMA-Factory
        ([turn("function_call", CALL), turn("observation", "3")], [called(), result("3")]),
        ([turn("function_call", TWO)], [called(function(), TIME)]),
        ([turn("function_call", f"<think>a</think>\n{CALL}")], [called(content="<think>a</think>")]),
        ([turn("function_call", f"I look.\n<tool_call>\n{CALL}\n</tool_call>")], [called(content="I look.")]),
        ([turn("gpt", "I look."), turn("function_call", CALL)], [{**ANSWER, "content": "I look."}, called()]),
        # ms-swift: a call a turn, after the text of the same turn, results in order
        (
            [turn("tool_call", CALL), turn("tool_call", TWO), turn("tool_response", "1"), turn("tool_response", "2")],
            [called(function(), function(), TIME), result("1"), result("2")],
        ),
        ([{**ANSWER, "content": "I look."}, turn("tool_call", CALL)], [called(content="I look.")]),
        (
            [{**ANSWER, "content": "No.", "loss": False}, turn("tool_call", CALL)],  # one is trained, the other is not
            [called(content="No.", part_weights={"content": [[3, {"loss": False}]], "tool_calls": [[1, {}]]})],
        ),
        # Anthropic
        (
            [
                {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": "3"},
                        {"type": "tool_result", "tool_use_id": "t2", "content": [IMAGE, {"type": "text", "text": "4"}]},
                        {"type": "text", "text": "And now?"},
                    ],
                },
            ],
            [
                called(function(id="t1"), content="I look."),
                result("3", tool_call_id="t1"),
                result("<image>4", tool_call_id="t2"),
                {"role": "user", "content": "And now?"},
            ],
        ),
        (
            [{"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, USE]}],
            [called(function(id="t1"), reasoning_content="Hm.")],
        ),
        # LLaMA-Factory v1
        ([{"role": "assistant", "content": [{"type": "tool_call", "value": CALL}]}], [called()]),
        # OpenAI, now and of old
        ([called(function(id="c1"))], [called(function(id="c1"))]),
        ([{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}], [called(NOW)]),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}, "index": 0}]}],
            [called({"function": NOW["function"], "index": 0})],
        ),
        ([{"role": "assistant", "content": None, "function_call": json.loads(CALL)}], [called()]),
        ([{"role": "assistant", "content": "", "tool_calls": json.dumps([function()])}], [called()]),
    ],
)
def test_spellings_of_calls(turns: list[dict[str, Any]], expected: list[Message]) -> None:
    assert parsed(*turns) == expected
    assert parsed(*expected, settings=STORED_SETTINGS) == expected  # packs are read again


@pytest.mark.parametrize(
    "value", ["Let me see.", "[]", "[1]", '{"arguments": {}}', '{"name": 1}', '{"name": "f", "arguments": [1]}', None]
)
def test_what_is_no_call_is_no_text_either(value: Any) -> None:
    """It was trained as an answer: two of the 600 rows of text_toolcall are of this kind."""
    for role in ("function_call", "tool_call"):
        with pytest.raises(Skip, match="bad_message: message 1"):
            parsed(turn(role, value))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [USE]},
        {"role": "assistant", "content": [USE, {"type": "text", "text": "late"}]},  # it would be written first
        {"role": "assistant", "content": [{"type": "thinking", "thinking": None}]},
        {"role": "assistant", "content": "", "tool_calls": "weather()"},
        {"role": "assistant", "content": "", "tool_calls": [1]},
        {**called(), "function_call": {"name": "g"}},
        {"role": "assistant", "content": [USE], "tool_calls": [{"function": {"name": "f"}}]},  # one of both was lost
        {"role": "tool_call", "content": '{"name": "f"}', "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "content": "a", "reasoning": ["b"]},  # it was trained as Python prints it
        {"role": "user", "content": [{"type": "tool_result", "content": {"a": 1}}]},
    ],
)
def test_calls_that_have_no_place(message: dict[str, Any]) -> None:
    with pytest.raises(Skip, match="bad_message: message 1"):
        parsed(message)


SCHEMA = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
OPENAI = {"type": "function", "function": SCHEMA}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [SCHEMA]),
        ("tools", json.dumps([SCHEMA])),
        ("tools", [OPENAI]),
        ("tools", [json.dumps(OPENAI)]),
        ("tools", [{"type": "function", "function": json.dumps(SCHEMA)}]),
        ("tools", [{"type": "function", "function": {**SCHEMA, "parameters": '{"type": "object"}'}}]),
        ("tools", [{**SCHEMA, "parameters": '{"type": "object"}'}]),
        ("functions", [{"name": "weather", "description": "d", "input_schema": '{"type": "object"}'}]),
        ("tools", [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]),
        ("functions", [SCHEMA]),
    ],
)
def test_schemas_of_functions_alone_are_wrapped(field: str, value: Any) -> None:
    """Qwen's template writes each as it is: a model would learn another form of tools than it is served."""
    record = parse_record({"messages": [ASKED, ANSWER], field: value}, ReadSettings())
    assert record.tools == [OPENAI]
    assert parse_record({"messages": record.messages, "tools": record.tools}, STORED_SETTINGS).tools == [OPENAI]


def test_a_text_that_is_no_schema_stays() -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": "{}", "parameters": "a city"}}
    assert parse_record({"messages": [ASKED, ANSWER], "tools": [tool]}, ReadSettings()).tools == [tool]
    properties = {"type": "object", "properties": '{"city": {"type": "string"}}'}
    tool = {"type": "function", "function": {"name": "weather", "parameters": properties}}
    record = parse_record({"messages": [ASKED, ANSWER], "tools": [tool]}, ReadSettings())
    assert record.tools is not None
    assert record.tools[0]["function"]["parameters"]["properties"] == {"city": {"type": "string"}}


def test_calls_as_text_leave_the_tools_out() -> None:
    settings = ReadSettings(tools=ToolForm.text)
    value = {"messages": [ASKED, called(function(), TIME, content="I look."), result("3"), ANSWER], "tools": [OPENAI]}
    record = parse_record(value, settings)
    assert record.messages[1] == {
        "role": "assistant",
        "content": f'I look.\n{CALL}\n{{"name": "time", "arguments": {{"zone": 1}}}}',
    }
    assert (record.tools, record.leaves_out_tools) == (None, True)
    assert parse_record({"messages": [ASKED, ANSWER]}, settings).leaves_out_tools is False


@pytest.mark.parametrize(
    "turn",
    [
        {**ANSWER, "tool_calls": [{"type": "function", "function": " "}]},
        {**ANSWER, "tool_calls": [{"type": "function"}]},  # it was trained as a call of null
        {"role": "system", "content": "s", "tool_calls": 1},
    ],
)
def test_what_is_no_call_is_not_written_as_text(turn: Message) -> None:
    """It ended the run."""
    with pytest.raises(Skip, match="bad_message"):
        parse_record({"messages": [ASKED, turn, ANSWER]}, ReadSettings(tools=ToolForm.text))


def test_results_count_as_the_turn_that_holds_them() -> None:
    """A turn becomes several; the weight of the first ones was lost."""
    content = [{"type": "tool_result", "content": "3"}, {"type": "text", "text": "So?"}]
    record = parse_record({"messages": [{"role": "user", "content": content, "masked": False}, ANSWER]}, ReadSettings())
    assert [(m["role"], m["masked"]) for m in record.messages[:2]] == [("tool", False), ("user", False)]


def test_roles_of_other_tools() -> None:
    for role, ours in (("developer", "developer"), ("model", "assistant"), ("bing", "assistant"), ("ipython", "tool")):
        assert parsed({"role": role, "content": "a"})[0] == {"role": ours, "content": "a"}


def test_a_thought_without_an_answer_is_a_turn() -> None:
    for key in ("reasoning", "thinking", "reasoning_content"):
        thought = {"role": "assistant", "content": "", key: "Hm."}
        assert parsed({**thought, "content": None}) == [thought]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "arguments", "function"]), inner)
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(["function_call", "tool_call", "gpt", "observation", "human"]), json_values)))
def test_what_is_read_is_read_the_same_again(turns: list[tuple[str, Any]]) -> None:
    """Packs store what was read, and verify reads it again."""
    values = [turn(role, json.dumps(value)) for role, value in turns]
    try:
        messages = parsed(*values)
    except Skip:
        return
    assert parsed(*messages, settings=STORED_SETTINGS) == messages

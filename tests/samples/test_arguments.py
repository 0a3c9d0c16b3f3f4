"""A call says all that it has: its arguments are read under every usual name in every spelling, or it is named.

Under another name than `arguments` they were lost, with exit 0: the model was taught to call tools without any.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from energon_pack.samples.raw_record import has_nulls_added_by_table
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import ARGUMENT_KEYS, Message
from energon_pack.samples.settings import ReadSettings, ToolForm
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.template import ChatTemplate

BERGEN = {"harbour": "Bergen"}
Spelling = Callable[[dict[str, Any]], Message]


def turn_of(call: Any, role: str = "tool_call") -> Message:
    return {"role": role, "content": call if isinstance(call, str) else json.dumps(call)}


def answer(**keys: Any) -> Message:
    return {"role": "assistant", "content": "", **keys}


#: the turn for the keys of a call that stand beside its name
SPELLINGS: dict[str, Spelling] = {
    "ShareGPT": lambda keys: {"from": "function_call", "value": json.dumps({"name": "tide_at", **keys})},
    "ms-swift": lambda keys: turn_of({"name": "tide_at", **keys}),
    "list": lambda keys: turn_of([{"name": "tide_at", **keys}]),
    "wrapped": lambda keys: turn_of({"type": "function", "function": {"name": "tide_at", **keys}}),
    "thought": lambda keys: turn_of(f"<think>a</think>{json.dumps({'name': 'tide_at', **keys})}"),
    "tags": lambda keys: turn_of(f"<tool_call>{json.dumps({'name': 'tide_at', **keys})}</tool_call>"),
    "object": lambda keys: {"role": "tool_call", "content": {"name": "tide_at", **keys}},
    "OpenAI": lambda keys: answer(tool_calls=[{"type": "function", "function": {"name": "tide_at", **keys}}]),
    "beside": lambda keys: answer(tool_calls=[{"type": "function", "function": {"name": "tide_at"}, **keys}]),
    "as text": lambda keys: answer(tool_calls=json.dumps([{"function": {"name": "tide_at", **keys}}])),
    "of old": lambda keys: answer(function_call={"name": "tide_at", **keys}),
    "LangChain": lambda keys: answer(tool_calls=[{"name": "tide_at", "id": "c", "type": "tool_call", **keys}]),
    "Anthropic": lambda keys: answer(content=[{"type": "tool_use", "id": "c", "name": "tide_at", **keys}]),
    "LangChain's part": lambda keys: answer(content=[{"type": "tool_call", "id": "c", "name": "tide_at", **keys}]),
    "LLaMA-Factory": lambda keys: answer(
        content=[{"type": "tool_call", "value": json.dumps({"name": "tide_at", **keys})}]
    ),
}
#: spellings in which a call is the text of a turn or a part
TEXTS = ("ShareGPT", "ms-swift", "list", "thought", "tags", "object", "LLaMA-Factory")


def read(turn: Message, **settings: Any) -> Message:
    return parse_record([{"role": "user", "content": "Tide?"}, turn], ReadSettings(**settings)).messages[1]


def arguments(turn: Message) -> Any:
    (call,) = read(turn)["tool_calls"]
    function = call.get("function", call)
    assert function["name"] == "tide_at"
    assert not {*ARGUMENT_KEYS[1:]} & {*call, *function}  # a template that writes all keys would write both
    return function["arguments"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_arguments_under_another_name_are_read(spelling: str) -> None:
    make = SPELLINGS[spelling]
    for key in ARGUMENT_KEYS:
        assert arguments(make({key: BERGEN})) == BERGEN
        assert arguments(make({key: '{"harbour": "Bergen"}'})) == '{"harbour": "Bergen"}'
        assert arguments(make({"arguments": None, key: BERGEN})) == BERGEN  # a table writes all keys
        assert arguments(make({key: {}})) == {}
    assert arguments(make({})) == {}
    assert arguments(make({"index": 0, "status": "completed"})) == {}
    text = read(make({"args": BERGEN}), tools=ToolForm.text)["content"]
    assert text.rpartition("\n")[2] == '{"name": "tide_at", "arguments": {"harbour": "Bergen"}}'


#: as Qwen3-VL's template, and as Qwen3.5's and Nemotron 3's: the first fails without arguments, the second writes none
TEMPLATES = (
    "{{ f.name }}{{ f.arguments | tojson }}",
    "<function={{ f.name }}>{% if f.arguments is defined %}{% for k, v in f.arguments | items %}<parameter={{ k }}>"
    "{{ v }}</parameter>{% endfor %}{% endif %}</function>",
)


@pytest.mark.parametrize("call", TEMPLATES)
def test_a_template_writes_every_spelling_alike(call: str) -> None:
    source = "{% for m in messages %}{% for call in m.tool_calls %}{% set f = call.function or call %}CALL"
    source += "{% endfor %}{% endfor %}"
    template = ChatTemplate(source.replace("CALL", call), {}, [])
    for keys in ({"arguments": BERGEN}, {}):
        usual = read(SPELLINGS["OpenAI"](keys))
        for make in SPELLINGS.values():
            for written in [{key: BERGEN} for key in ARGUMENT_KEYS] if keys else [{}]:
                turn = read(make(written))
                assert template.render([turn | {"content": ""}], None) == template.render([usual], None)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_call_with_two_arguments_is_named(spelling: str) -> None:
    """One of both was lost."""
    make = SPELLINGS[spelling]
    assert arguments(make({"args": BERGEN, "input": BERGEN, "parameters": {}, "action_input": json.dumps(BERGEN)})) == (
        BERGEN
    )
    with pytest.raises(Skip, match=r"bad_message: calls\[\]\..*args is .*Bergen.* and .*input .*Oslo.*two spellings"):
        read(make({"args": BERGEN, "input": {"harbour": "Oslo"}}))
    beside = answer(
        tool_calls=[{"function": {"name": "tide_at", "arguments": BERGEN}, "arguments": {"harbour": "Oslo"}}]
    )
    with pytest.raises(Skip, match=r"calls\[\]\.function\.arguments is .*Bergen.* and arguments .*Oslo"):
        read(beside)


@pytest.mark.parametrize("spelling", [name for name in SPELLINGS if name not in (*TEXTS, "wrapped")])
@pytest.mark.parametrize("value", [BERGEN, '{"harbour": "Bergen"}', [BERGEN]])
def test_a_call_that_hides_an_object_is_named(spelling: str, value: Any) -> None:
    with pytest.raises(Skip, match=r"^bad_message: message 1 calls tide_at with the keys \['kwargs'\]"):
        read(SPELLINGS[spelling]({"kwargs": value}))
    with pytest.raises(Skip, match=r"message 1 calls tide_at with the keys \['kwargs'\]"):
        read(SPELLINGS[spelling]({"arguments": {}, "kwargs": value}))
    assert arguments(SPELLINGS[spelling]({"kwargs": {}})) == {}
    assert arguments(SPELLINGS[spelling]({"arguments": BERGEN, "kwargs": value})) == BERGEN  # and listed as unknown


@pytest.mark.parametrize("spelling", TEXTS)
def test_a_text_that_is_a_call_may_have_its_arguments_as_keys(spelling: str) -> None:
    make = SPELLINGS[spelling]
    flat = {"harbour": "Bergen", "days": None, "near": {"km": 3}}
    assert arguments(make(flat)) == flat
    assert arguments(make({"type": "function", "id": "c", **flat})) == flat
    assert arguments(make({"type": "spring", **flat})) == {**flat, "type": "spring"}
    with pytest.raises(Skip, match=r"calls tide_at with the keys \['kwargs'\]"):
        read(make({"arguments": {}, "kwargs": BERGEN}))
    with pytest.raises(Skip, match=r"calls tide_at with the keys \['harbour', 'status'\]"):  # which of both is one?
        read(make({"harbour": "Bergen", "status": "open"}))
    with pytest.raises(Skip, match=r"calls tide_at with the keys \['weight'\]"):
        read(make({"weight": 1}))


def test_a_call_that_says_all_in_the_usual_way_stays_as_it_is() -> None:
    """Packs keep their bytes."""
    for call in (
        {"name": "tide_at", "arguments": BERGEN},
        {
            "id": "c",
            "type": "function",
            "function": {"arguments": '{"harbour": "Bergen"}', "name": "tide_at"},
            "index": 0,
        },
        {"function": {"name": "tide_at", "arguments": {}, "strict": True}},
    ):
        assert read(answer(tool_calls=[call]))["tool_calls"] == [call]


def test_nulls_of_a_table_and_nulls_that_an_author_means() -> None:
    """A table's nulls would be arguments; an author's would be lost."""

    def calling(*all_arguments: dict[str, Any]) -> dict[str, Any]:
        calls = [{"function": {"name": "f", "args": arguments}, "id": "c"} for arguments in all_arguments]
        return {"messages": [{"role": "user", "content": "q"}, answer(tool_calls=calls)]}

    assert not has_nulls_added_by_table(calling({"unit": None}))
    assert not has_nulls_added_by_table(
        {"messages": [answer(tool_calls=[{"function": {"parameters": {"unit": None}}}])]}
    )
    assert has_nulls_added_by_table(
        {"messages": [answer(tool_calls=[{"function": {"args": {"a": None}}, "parameters": {}, "id": None}])]}
    )

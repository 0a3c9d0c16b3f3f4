"""Records of every form that people keep, each with what it means: `fuzzed` adds keys to them."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.labels.meaning import Meaning, Turn

Row = dict[str, Any]


@dataclass
class Form:
    """A record, what it means, and where keys can be put."""

    name: str
    value: Any
    meaning: Meaning
    #: objects of turns, and the turn of `meaning` that each is
    turns: list[tuple[Row, int]]
    #: objects of content parts, and their kind
    parts: list[tuple[Row, str]]


_ASKED, _SAID = "How high is the tide?", "It stands at 1.4 metres."
_ARGUMENTS = {"harbour": "Bergen", "hours": [1, 2]}
_SCHEMA = {
    "type": "function",
    "function": {"name": "tide_at", "description": "Height.", "parameters": {"type": "object"}},
}


def _chat(*turns: tuple[str, str]) -> Meaning:
    return Meaning([Turn(role, [text]) for role, text in turns])


def _plain(role_key: str, content_key: str, names: dict[str, str], field: str, with_system: bool = False) -> Form:
    turns = [("system", "Be kind.")] * with_system + [
        ("user", _ASKED), ("assistant", "I look it up."), ("user", "And now?"), ("assistant", _SAID),
    ]  # fmt: skip
    rows = [{role_key: names[role], content_key: text} for role, text in turns]
    return Form(field, {field: rows}, _chat(*turns), [(row, i) for i, row in enumerate(rows)], [])


def _openai() -> Form:
    return _plain("role", "content", {"system": "system", "user": "user", "assistant": "assistant"}, "messages", True)


def _bare() -> Form:
    return _plain("role", "content", {"user": "user", "assistant": "assistant"}, "messages")


def _sharegpt() -> Form:
    return _plain("from", "value", {"system": "system", "user": "human", "assistant": "gpt"}, "conversations")


def _called(call_row: list[Row], result_row: Row, roles: str = "role") -> Form:
    said = {"role": "assistant", "content": _SAID} if roles == "role" else {"from": "gpt", "value": _SAID}
    asked = {"role": "user", "content": _ASKED} if roles == "role" else {"from": "human", "value": _ASKED}
    rows = [asked, *call_row, result_row, said]
    meaning = Meaning(
        [Turn("user", [_ASKED]), Turn("assistant", [], calls=[("tide_at", _ARGUMENTS)]), Turn("tool", ["1.4"]),
         Turn("assistant", [_SAID])],
        tools=[_SCHEMA],
    )  # fmt: skip
    field = "messages" if roles == "role" else "conversations"
    return Form("called", {field: rows, "tools": [_SCHEMA]}, meaning, [(row, i) for i, row in enumerate(rows)], [])


def _tool_calls(spelled: bool = False) -> Form:
    arguments: Any = json.dumps(_ARGUMENTS) if spelled else _ARGUMENTS
    call = {"id": "c1", "type": "function", "function": {"name": "tide_at", "arguments": arguments}}
    row = {"role": "assistant", "content": "", "tool_calls": [call]}
    return _called([row], {"role": "tool", "content": "1.4", "tool_call_id": "c1"})


def _tool_strings() -> Form:
    return _tool_calls(spelled=True)


def _function_call() -> Form:
    value = json.dumps({"name": "tide_at", "arguments": _ARGUMENTS})
    return _called([{"from": "function_call", "value": value}], {"from": "observation", "value": "1.4"}, "from")


def _swift_call() -> Form:
    value = json.dumps({"name": "tide_at", "arguments": _ARGUMENTS})
    return _called([{"role": "tool_call", "content": value}], {"role": "tool_response", "content": "1.4"})


def _anthropic() -> Form:
    use = {"type": "tool_use", "id": "c1", "name": "tide_at", "input": _ARGUMENTS}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1.4"}]}
    form = _called([{"role": "assistant", "content": [use]}], result)
    return Form("anthropic", form.value, form.meaning, [form.turns[0], form.turns[1], form.turns[3]], [])


def _text_parts() -> Form:
    parts = [{"type": "text", "text": "How high "}, {"type": "text", "text": "is it?"}]
    answer = [{"type": "text", "text": _SAID}]
    rows = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
    meaning = _chat(("user", "How high is it?"), ("assistant", _SAID))
    placed = [(part, "text") for part in (*parts, *answer)]
    return Form("parts", {"messages": rows}, meaning, [(row, i) for i, row in enumerate(rows)], placed)


def _thought() -> Form:
    rows = [
        {"role": "user", "content": _ASKED},
        {"role": "assistant", "content": _SAID, "reasoning_content": "It rained."},
    ]
    meaning = Meaning([Turn("user", [_ASKED]), Turn("assistant", [_SAID], thought="It rained.")])
    return Form("thought", {"messages": rows}, meaning, [(rows[0], 0)], [])


def _image_field() -> Form:
    rows = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A crane."}]
    meaning = Meaning([Turn("user", ["image", "What is it?"]), Turn("assistant", ["A crane."])])
    return Form("images", {"messages": rows, "images": ["a.png"]}, meaning, [(r, i) for i, r in enumerate(rows)], [])


def _image_answer() -> Form:
    rows = [{"role": "user", "content": "Draw."}, {"role": "assistant", "content": "Here: <image> so."}]
    meaning = Meaning([Turn("user", ["Draw."]), Turn("assistant", ["Here: ", "image", " so."])])
    return Form("drawn", {"messages": rows, "images": ["a.png"]}, meaning, [(r, i) for i, r in enumerate(rows)], [])


def _media_parts(kind: str, file: str) -> Callable[[], Form]:
    def form() -> Form:
        medium: Row = {"type": kind, kind: file}
        asked: Row = {"type": "text", "text": "What is it?"}
        rows: list[Row] = [{"role": "user", "content": [medium, asked]}, {"role": "assistant", "content": "A crane."}]
        meaning = Meaning([Turn("user", [kind, "What is it?"]), Turn("assistant", ["A crane."])])
        turns = [(row, i) for i, row in enumerate(rows)]
        return Form(f"{kind}_part", {"messages": rows}, meaning, turns, [(medium, kind), (asked, "text")])

    return form


def _question() -> Form:
    return Form(
        "question", {"question": _ASKED, "answer": _SAID}, _chat(("user", _ASKED), ("assistant", _SAID)), [], []
    )


FORMS: tuple[Callable[[], Form], ...] = (
    _openai, _bare, _sharegpt, _tool_calls, _tool_strings, _function_call, _swift_call, _anthropic, _text_parts,
    _thought, _image_field, _image_answer, _media_parts("image", "a.png"), _media_parts("video", "v.mp4"), _question,
)  # fmt: skip


def fresh(form: Callable[[], Form]) -> Form:
    """A form that shares nothing with another."""
    return copy.deepcopy(form())

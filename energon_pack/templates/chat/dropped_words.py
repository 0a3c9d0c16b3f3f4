"""Find the words and the tools of a conversation that a chat template does not write.

`DroppedWordFinder` finds words, as here the text of a turn:

    {"role": "assistant", "content": "I ask.", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "y"}}}]}
      words of the turn, in this order:  "I ask."   "f"   "x"   "y"
      the rendered turn:                 <|assistant|><tool_call>{"name": "f", "arguments": {"x": "y"}}
                                         "I ask." is dropped

Each text, thought, name of a call, key and scalar of its arguments has to stand in the rendered turn, behind the one
before it: as it is, or as JSON or Python escape it. White space does not count. Templates may write the groups of a
turn (thought, text, calls) and the keys of an object in another order; then the order in which most words stand counts.

`check_for_left_out_tools` shows the template the same conversation with other names of its tools, which have to stand
in its output: a template may write tools only beside certain turns.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from energon_pack.samples.sample import THOUGHT_KEYS, Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.turns import parse_json_or_none
from energon_pack.templates.chat.labels import Range, ThinkMarks
from energon_pack.templates.chat.text_marks import texts_of
from energon_pack.templates.chat.turns import SpecialTokens
from energon_pack.templates.settings import TemplateDrops

if TYPE_CHECKING:
    from energon_pack.templates.chat.renderer import Renderer


THOUGHT, TEXT, CALL = "thought", "text", "call"
#: the setting that packs samples of which something is dropped
_KEEP_ADVICE = "labels.template_drops=keep packs the rest"
#: characters of dropped words that an error quotes
_MAX_QUOTED = 60


class ExpectedWords(NamedTuple):
    """A piece of a turn that its template has to write: a whole text, or a scalar or key of a call."""

    kind: str  # THOUGHT, TEXT or CALL
    value: Any  # a text, or a scalar of JSON
    message: int


class DroppedWords(NamedTuple):
    """What a template leaves out of a conversation."""

    earlier_thoughts: list[ExpectedWords]  # of answers before the last one
    others: list[ExpectedWords]

    def detail(self, messages: Sequence[Message]) -> str:
        """Describe the first of the other words: whose they are, and the settings that help."""
        kind, value, i = self.others[0]
        quoted = " ".join(str(value).split())
        quoted = quoted if len(quoted) <= _MAX_QUOTED else f"{quoted[:_MAX_QUOTED]}…"
        role = messages[i]["role"]
        advice = ["model.chat_template=FILE gives another"]
        advice += ["source.tools=text writes calls as text"] if kind == CALL else []
        advice += ["or system for it: system_tag of a meta file"] if role == "developer" else []
        words = f"the {kind} {quoted!r} of message {i}, of the role {role}"
        return f"the chat template leaves out {words} ({', '.join(advice)}, {_KEEP_ADVICE})"


NOTHING_DROPPED = DroppedWords([], [])


@dataclass(frozen=True)
class DroppedWordFinder:
    """Finds the words that one chat template drops."""

    think_marks: Sequence[ThinkMarks]  # the marks around thoughts within texts
    special: SpecialTokens  # no words stand in them: `<end_of_turn>` is no call of a function `of`
    has_blocks: bool  # the template has `{% generation %}` blocks, beside which words of a turn may stand, too

    def dropped(
        self, messages: Sequence[Message], text: str, answers: Mapping[int, Range], with_thoughts: bool = True
    ) -> DroppedWords:
        """Find what a rendered conversation lacks.

        Args:
            text: the conversation as the template writes it.
            answers: where the trained turns stand in it, by the index of the message.
            with_thoughts: whether missing thoughts count.
        """
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        dropped = DroppedWords([], [])
        blank = self.special.blanked(text)
        starts = _next_answer_starts(answers, len(messages), len(text))
        gap = cursor = 0  # where the turns before the next of `answers` begin, and where the one before this turn ends
        for i, (message, following) in enumerate(zip(messages, starts, strict=True)):
            is_answer = message["role"] == "assistant"
            words = (
                [*chain(*_words_of_answer(message, i, self.think_marks))] if is_answer else _words_of_turn(message, i)
            )
            where = text if any(self.special.first(str(each.value)) for each in words) else blank
            if i in answers and is_answer:
                start, end = answers[i]
                lost, _ = self._lost_of_answer(message, words, where[start:end])
                if lost and self.has_blocks:
                    lost, _ = self._lost_of_answer(message, words, where[gap:following])
                gap = cursor = end
            elif is_answer:
                lost, length = self._lost_of_answer(message, words, where[cursor:following])
                cursor += length
            else:
                lost, length = _lost_in_order(words, where[cursor:following])
                cursor += length
                if lost:
                    is_anywhere = message["role"] in ("system", "developer")  # it may stand in the last question
                    compact = _compact(where if is_anywhere else where[gap:following])
                    lost = [each for each in lost if not _is_there(each, compact)]
            for each in lost:
                if each.kind != THOUGHT:
                    dropped.others.append(each)
                elif with_thoughts:
                    (dropped.earlier_thoughts if i < last else dropped.others).append(each)
        return dropped

    def _lost_of_answer(
        self, message: Message, words: Sequence[ExpectedWords], text: str
    ) -> tuple[list[ExpectedWords], int]:
        """Return the words of a turn that a text lacks, and where the last one that it has ends."""
        lost, end = _lost_in_order(words, text)
        if not lost:
            return lost, end
        compact = _compact(text)
        if any(_end_of(each, compact, 0, is_compact=True) >= 0 for each in lost):
            orders = (
                chain(*groups)
                for is_sorted, name_last in ((False, False), (True, False), (False, True))
                for groups in permutations(
                    _words_of_answer(message, lost[0].message, self.think_marks, is_sorted, name_last)
                )
            )
            for order in orders:
                fewer, _ = _lost_in_order(order, compact, is_compact=True)
                lost = min(lost, fewer, key=_num_lost)
                if not lost:
                    break
        return lost, end


# -------------------------------------------------------------------------------------------------- words of a turn


def _words_of_answer(
    message: Message, i: int, think_marks: Sequence[ThinkMarks], is_sorted: bool = False, name_last: bool = False
) -> list[list[ExpectedWords]]:
    """Return the words of an assistant's turn in groups: its thought, its text, its calls."""
    thoughts = [message[key] for key in THOUGHT_KEYS if isinstance(message.get(key), str)]
    calls: list[ExpectedWords] = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else {}
        named = [ExpectedWords(CALL, function.get("name"), i)]
        arguments = _parsed_if_json(function.get("arguments"))
        scalars = [
            ExpectedWords(CALL, value, i)
            for value in _keys_and_scalars({} if arguments is None else arguments, is_sorted)
        ]
        calls += [*scalars, *named] if name_last else [*named, *scalars]
    return [
        [ExpectedWords(THOUGHT, thought, i) for thought in dict.fromkeys(thoughts)],
        [piece for text in texts_of([message]) for piece in _split_at_thoughts(text, i, think_marks)],
        calls,
    ]


def _words_of_turn(message: Message, i: int) -> list[ExpectedWords]:
    """Return the texts of a question, a system turn or the result of a tool."""
    return [ExpectedWords(TEXT, text, i) for text in texts_of([message])]


def _split_at_thoughts(text: str, i: int, think_marks: Sequence[ThinkMarks]) -> Iterator[ExpectedWords]:
    """Yield the thoughts in a text, and what stands around them."""
    marks = next((each for each in think_marks if each.closing in text), None)
    cursor = 0
    while marks and (end := text.find(marks.closing, cursor)) >= 0:
        start = text.find(marks.opening, cursor, end)
        if start >= 0:
            yield ExpectedWords(TEXT, text[cursor:start], i)
        yield ExpectedWords(THOUGHT, text[cursor if start < 0 else start + len(marks.opening) : end], i)
        cursor = end + len(marks.closing)
    yield ExpectedWords(TEXT, text[cursor:], i)


def _parsed_if_json(value: Any) -> Any:
    """Return the value of a text that is JSON; any other value stays as it is."""
    parsed = parse_json_or_none(value) if isinstance(value, str) else None
    return value if parsed is None else parsed


def _keys_and_scalars(value: Any, is_sorted: bool = False) -> Iterator[Any]:
    """Yield the keys and scalars of a value of JSON, in the order in which a template writes them."""
    if isinstance(value, dict):
        for key in sorted(value, key=lambda name: str(name).lower()) if is_sorted else value:
            yield key
            yield from _keys_and_scalars(value[key], is_sorted)
    elif isinstance(value, list):
        for item in value:
            yield from _keys_and_scalars(item, is_sorted)
    else:
        yield value


# ---------------------------------------------------------------------------------------------- words in the output


def _next_answer_starts(answers: Mapping[int, Range], num_messages: int, end: int) -> list[int]:
    """Return for each message where the next of `answers` behind it starts; `end`: where there is none."""
    starts = [end] * num_messages
    for i in range(num_messages - 2, -1, -1):
        starts[i] = answers[i + 1][0] if i + 1 in answers else starts[i + 1]
    return starts


def _is_there(words: ExpectedWords, compact: str) -> bool:
    """Say whether a text without white space has these words; of the JSON of an object, all its keys and scalars."""
    if _end_of(words, compact, 0, is_compact=True) >= 0:
        return True
    value = _parsed_if_json(words.value)
    return isinstance(value, (dict, list)) and all(
        _end_of(ExpectedWords(TEXT, scalar, words.message), compact, 0, is_compact=True) >= 0
        for scalar in _keys_and_scalars(value)
    )


def _lost_in_order(
    order: Iterable[ExpectedWords], text: str, is_compact: bool = False
) -> tuple[list[ExpectedWords], int]:
    """Return the words that a text lacks behind the ones before them, and where the last one that it has ends."""
    lost, cursor = [], 0
    for words in order:
        end = _end_of(words, text, cursor, is_compact)
        if end < 0:
            lost.append(words)
        else:
            cursor = end
    return lost, cursor


def _end_of(words: ExpectedWords, text: str, start: int, is_compact: bool = False) -> int:
    """Return where the first of the spellings of some words ends in `text[start:]`; -1: none is there."""
    ends = []
    for form in _spellings(words.value):
        form = _compact(form) if is_compact else form
        position = text.find(form, start)
        if position >= 0:
            ends.append(position + len(form))
    return min(ends, default=-1)


def _spellings(value: Any) -> set[str]:
    """Return how a template may write a scalar of JSON: as it is, stripped, as JSON or Python escape it."""
    if isinstance(value, str):
        core = value.strip()
        if core.isascii() and core.isprintable() and not {*"\"'\\"} & {*core}:
            return {core}
        escaped = json.dumps(core, ensure_ascii=False)[1:-1]
        again = json.dumps(escaped, ensure_ascii=False)[1:-1]
        in_single_quotes = repr(f'{core}"')[1:-2]
        return {core, escaped, again, json.dumps(core)[1:-1], repr(core)[1:-1], in_single_quotes}
    return {str(value), json.dumps(value)} | ({"none"} if value is None else set())


def _num_lost(lost: Sequence[ExpectedWords]) -> tuple[int, int]:
    """Return how much is lost: of an answer and a thought that read alike, the thought is the smaller one."""
    return sum(words.kind != THOUGHT for words in lost), len(lost)


def _compact(text: str) -> str:
    return "".join(text.split())


# ------------------------------------------------------------------------------------------------------------ tools


_PROBE = "energon_pack_probe"


def check_for_left_out_tools(
    template: "Renderer", messages: list[Message], tools: Sequence[Any] | None, template_drops: TemplateDrops
) -> bool:
    """Say whether the template leaves out tools; also True if it refuses the conversation with other names.

    Args:
        template_drops: `labels.template_drops`.

    Raises:
        Skip: `template_drops`, unless these are kept, if it leaves out tools that answers call.
    """
    if not tools:
        return False
    names = [f"{_PROBE}_{number}_" for number in range(len(tools))]
    try:
        text = template.render(messages, [*map(_renamed_tool, tools, names)])
    except Skip:
        text = ""
    is_left_out = any(name not in text for name in names)
    if is_left_out and template_drops is TemplateDrops.skip and any(message.get("tool_calls") for message in messages):
        advice = f"model.chat_template=FILE gives another, source.tools=text writes calls as text, {_KEEP_ADVICE}"
        problem = f"the chat template leaves out tools, whose calls would be trained ({advice})"
        raise Skip(Reason.TEMPLATE_DROPS, problem)
    return is_left_out


def _renamed_tool(tool: Any, name: str) -> Any:
    """Return a tool with another name; what is no object stays as it is, and the template refuses it."""
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    return {**tool, "function": {**function, "name": name}} if isinstance(function, dict) else {**tool, "name": name}

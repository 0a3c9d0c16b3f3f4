"""The same conversations in each dialect, and records whose keys, types and dialects are changed by chance."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from energon_pack.samples.settings import Columns, ReadSettings, Roles

Row = dict[str, Any]
Pairs = list[tuple[str, str]]


def _conversations() -> list[tuple[str, Pairs]]:
    """Twenty conversations: a system prompt, which may be empty, and questions with answers."""
    chance = random.Random(7)
    words = [
        "tide",
        "harbour",
        "line\nbreak",
        "中文",
        "é",
        "<b>",
        "{json}",
        '"quoted"',
        "1.4",
        "\\n",
        "😀",
        "---",
        "# a",
    ]

    def text() -> str:
        return " ".join(chance.choices(words, k=chance.randint(1, 9)))

    return [
        ("Be brief." if number % 3 == 0 else "", [(f"Q{number} {text()}?", text()) for _ in range(1 + number % 4)])
        for number in range(20)
    ]


CONVERSATIONS = _conversations()


def canonical(system: str, pairs: Pairs) -> list[Row]:
    """The messages that each dialect becomes."""
    turns = _said("role", "content", ("user", "assistant"), pairs)
    return [{"role": "system", "content": system}, *turns] if system else turns


def _with_system(value: Row, system: str, key: str = "system") -> Row:
    return {key: system, **value} if system else value


def _entries(asks: str, answers: str, pairs: Pairs) -> list[Row]:
    return [{asks: q, answers: a} for q, a in pairs]


def _said(role_key: str, content_key: str, names: tuple[str, str], pairs: Pairs) -> list[Row]:
    return [{role_key: name, content_key: text} for pair in pairs for name, text in zip(names, pair, strict=True)]


def _alpaca(system: str, pairs: Pairs) -> Row:
    *history, (question, answer) = pairs
    first, _, rest = question.partition("\n")  # the input is what follows the first line break
    value: Row = {"instruction": first, "input": rest, "output": answer, "history": [list(pair) for pair in history]}
    return _with_system(value, system)


def _query(asks: str, answers: str) -> Callable[[str, Pairs], Row]:
    def made(system: str, pairs: Pairs) -> Row:
        *history, (question, answer) = pairs
        return _with_system({asks: question, answers: answer, "history": [list(pair) for pair in history]}, system)

    return made


def _lists(asks: str, answers: str) -> Callable[[str, Pairs], Row]:
    return lambda system, pairs: _with_system({asks: [q for q, _ in pairs], answers: [a for _, a in pairs]}, system)


def _trl(system: str, pairs: Pairs) -> Row:
    turns = canonical(system, pairs)
    return {"prompt": turns[:-1], "completion": turns[-1:]}


def _field(name: str, turns: Callable[[Pairs], list[Row]], system_key: str = "system") -> Callable[[str, Pairs], Row]:
    return lambda system, pairs: _with_system({name: turns(pairs)}, system, system_key)


def _cauldron(pairs: Pairs) -> list[Row]:
    return [{"user": q, "assistant": a, "source": "s"} for q, a in pairs]


def _vqa(system: str, pairs: Pairs) -> list[Row]:
    return [{"question": q, "answers": [a, "another"]} for q, a in pairs]


def _openai(pairs: Pairs) -> list[Row]:
    return _said("role", "content", ("user", "assistant"), pairs)


@dataclass
class Form:
    """A dialect, as records of it are written."""

    name: str
    written: Callable[[str, Pairs], Any]
    settings: ReadSettings = field(default_factory=ReadSettings)
    #: whether a record holds several questions; else the last one alone is compared
    has_turns: bool = True
    #: the row of `DIALECTS`; "": it is read from `messages` and the like
    row: str = ""


FORMS = [
    Form("canonical", _field("messages", _openai)),
    Form("sharegpt", _field("conversations", lambda pairs: _said("from", "value", ("human", "gpt"), pairs))),
    Form("model", _field("messages", lambda pairs: _said("role", "content", ("user", "model"), pairs))),
    Form("bard", _field("messages", lambda pairs: _said("role", "content", ("human", "bard"), pairs))),
    Form("alpaca", _alpaca, row="alpaca"),
    Form("query/response", _query("query", "response"), row="query and response"),
    Form("prompt/response", _query("prompt", "response"), row="prompt and response"),
    Form("question/response", _query("question", "response"), row="question and response"),
    Form("instruction/response", _query("instruction", "response"), row="instruction and response"),
    Form("prompt/completion, turns", _trl, row="prompt and completion"),
    Form(
        "prompt/completion, texts",
        lambda system, pairs: _with_system({"prompt": pairs[-1][0], "completion": pairs[-1][1]}, system),
        has_turns=False,
        row="prompt and completion",
    ),
    *(
        Form(f"{asks}/{answers}", _lists(asks, answers), row=f"{asks} and {answers}")
        for asks in ("question", "questions")
        for answers in ("answer", "answers")
    ),
    *(Form(name, _field(name, _openai), row=name) for name in ("conversation", "dialog", "dialogue", "turns")),
    Form("the_cauldron", _field("texts", _cauldron)),
    Form("ms-swift", _field("conversation", lambda pairs: _entries("human", "assistant", pairs)), row="conversation"),
    Form("pairs in messages", _field("messages", lambda pairs: _entries("user", "gpt", pairs), "system_prompt")),
    Form("a list of question/answers", _vqa),
    Form(
        "speaker/utterance",
        _field("script", lambda pairs: _said("speaker", "utterance", ("Alice", "Bob"), pairs), "rules"),
        ReadSettings(
            columns=Columns(messages="script", role="speaker", content="utterance", system="rules"),
            roles=Roles(user="Alice", assistant="Bob"),
        ),
    ),
    Form(
        "columns",
        lambda system, pairs: _with_system({"q": pairs[-1][0], "a": pairs[-1][1], "messages": None}, system),
        ReadSettings(columns=Columns(prompt="q", response="a")),
        has_turns=False,
    ),
]  # fmt: skip


def expected(form: Form, system: str, pairs: Pairs) -> list[Row]:
    """The messages of a conversation as a form can hold it."""
    if form.name.startswith("a list of"):
        system = ""
    return canonical(system, pairs if form.has_turns else pairs[-1:])


@dataclass
class Changed:
    """A record that was changed, and the messages that it may come to; any of them is right, and so is a skip."""

    value: Any
    settings: ReadSettings
    may_be: list[list[Row]]
    systems: set[str]


#: names of one meaning: a field may be called by any of them; by any other word it means nothing
_SAME = (
    ("question", "query", "prompt", "instruction"),
    ("answer", "response", "completion", "output"),
    ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "texts"),
    ("questions", "question", "mood"),
    ("answers", "answer", "mood"),
    ("system", "system_prompt"),
    ("history", "past"),
    ("input", "context_of_it"),
)
_VALUES: list[Any] = [None, 7, True, [], {}, ["v", "w", "x", "y", "z"], [None], {"a": 1}, [["a", "b", "c"]], [[1, 2]]]


def changed(chance: random.Random) -> Changed:
    """A record of one dialect or of two: keys renamed, values of other types, fields taken away."""
    form = chance.choice(FORMS)
    system, pairs = chance.choice(CONVERSATIONS)
    value = copy.deepcopy(form.written(system, pairs))
    result = Changed(value, form.settings, [expected(form, system, pairs)], {system})
    if isinstance(value, dict):
        for _ in range(chance.choice((0, 1, 1, 2))):
            _change(chance, value)
        if chance.random() < 0.2:
            _mix(chance, result)
    return result


def _change(chance: random.Random, value: Row) -> None:
    if not value:
        return
    key = chance.choice(sorted(value))
    kind = chance.choice(("rename", "type", "drop", "inside"))
    if kind == "rename":
        new = chance.choice(next((names for names in _SAME if key in names), ("mood",)))
        if new not in value and not _is_vqa({**value, new: value[key]}):
            value[new] = value.pop(key)
    elif kind == "type":
        # Two fields with the same list would be questions and answers.
        value[key] = copy.deepcopy(chance.choice([other for other in _VALUES if other not in value.values()]))
    elif kind == "drop":
        del value[key]
    elif isinstance(value[key], list) and value[key]:
        value[key][chance.randrange(len(value[key]))] = copy.deepcopy(chance.choice(_VALUES))


def _mix(chance: random.Random, result: Changed) -> None:
    """Add the fields of another record, which has no field that this one has."""
    form, (system, pairs) = chance.choice(FORMS), chance.choice(CONVERSATIONS)
    theirs = copy.deepcopy(form.written(system, pairs))
    if isinstance(theirs, dict) and result.value.keys().isdisjoint(theirs) and not _is_vqa({**result.value, **theirs}):
        result.value |= theirs
        result.may_be.append(expected(form, system, pairs))
        result.systems.add(system)


def _is_vqa(value: Row) -> bool:
    """Whether a question with its answers is read first, whatever else there is."""
    return isinstance(value.get("question"), str) and bool(value.get("answer") or value.get("answers"))

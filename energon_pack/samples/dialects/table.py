"""Lists the dialects in which a record has its conversation in other fields than `messages`. Pure.

A dialect is recognised by its fields alone: all of them are there, and none is null. `turns_of` reads the one that
fits; two that fit are an error of the sample, never a choice. To add a dialect, add a row to `DIALECTS`.

Questions and answers may also stand in pairs, in place of turns:

{"user": "What is this?", "assistant": "A cat."}      the_cauldron, FineVision, Mantis
{"human": "What is this?", "assistant": "A cat."}     ms-swift
{"question": "What is this?", "answers": ["A cat."]}  lists of VQA
{"prompts": ["What is this?"], "captions": ["A cat."]}
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip

#: fields that hold ordinary turns, or pairs, under other names than `messages`
TURN_FIELDS = ("conversation", "dialog", "dialogue", "turns")


class Dialect(NamedTuple):
    """A way to write a conversation."""

    name: str
    #: the fields by which it is recognised
    needs: tuple[str, ...]
    #: makes turns of these fields' values; raises Skip for values of other types
    turns: Callable[[Mapping[str, Any], "Dialect"], list[Any]]
    #: optional fields that it reads
    reads: tuple[str, ...] = ()
    #: it also is what `source.sample_type=vqa` looks for
    is_vqa: bool = False


def question_and_answer(value: Mapping[str, Any]) -> tuple[list[Message], set[str]] | None:
    """Return the turns of one question with one or several answers, and their fields; None: there is no such question.

    Of several answers the first is taken, and all stay among the sample's fields.
    """
    question = next((key for key in ("question", "context") if isinstance(value.get(key), str)), None)
    answer_key = next((key for key in ("answer", "answers") if value.get(key)), None)
    if not question or not answer_key:
        return None
    answers = value[answer_key] if isinstance(value[answer_key], list) else [value[answer_key]]
    if not isinstance(answers[0], str):
        raise Skip(Reason.BAD_MESSAGE, f"{answer_key} is not text: {answers[0]!r}")
    used = {question} if len(answers) > 1 else {question, answer_key}
    return asked_and_answered(value[question], answers[0]), used


def alpaca(value: Mapping[str, Any], dialect: Dialect) -> list[Message]:
    """Make turns of a question and an answer, after the turns of `history`."""
    asks, answers = dialect.needs
    asked = [_text(value, key, dialect) for key in (asks, "input") if key == asks or key in dialect.reads]
    question = joined_question(asked)
    if not question:
        raise _other(dialect, asks, value[asks])
    history = value.get("history") if "history" in dialect.reads else None
    return [*_history(history, dialect), *asked_and_answered(question, _text(value, answers, dialect))]


def joined_question(texts: list[Any]) -> str:
    """Join an instruction and its input with a line break, as LLaMA-Factory and ms-swift do."""
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def history_turns(history: Any) -> list[Message]:
    """Return the turns of a history of [question, answer]; an entry of another form keeps its place as a turn."""
    return [
        turn(role, text)
        for pair in history or []
        for role, text in zip(("user", "assistant"), pair if isinstance(pair, list) else [pair], strict=False)
    ]


def prompt_and_completion(value: Mapping[str, Any], dialect: Dialect) -> list[Any]:
    """Join a prompt and a completion: both are texts, or both are turns."""
    prompt, completion = value["prompt"], value["completion"]
    if prompt and isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    return asked_and_answered(_text(value, "prompt", dialect), _text(value, "completion", dialect))


def listed_pairs(value: Mapping[str, Any], dialect: Dialect) -> list[Message]:
    """Make a turn of each question and of each answer of two lists of texts of one length."""
    sides = [value[key] for key in dialect.needs]
    for key, side in zip(dialect.needs, sides, strict=True):
        if not isinstance(side, list) or not all(text and isinstance(text, str) for text in side):
            raise _other(dialect, key, side)
    if len(sides[0]) != len(sides[1]):
        asks, answers = dialect.needs
        raise Skip(Reason.BAD_MESSAGE, f"{len(sides[0])} texts in {asks} for {len(sides[1])} in {answers}")
    return [message for pair in zip(*sides, strict=True) for message in asked_and_answered(*pair)]


def turns_as_written(value: Mapping[str, Any], dialect: Dialect) -> list[Any]:
    """Return the turns of a field that holds turns or pairs."""
    turns = value[dialect.needs[0]]
    if not isinstance(turns, list) or not all(isinstance(message, dict) for message in turns):
        raise _other(dialect, dialect.needs[0], turns)
    return turns


def _history(history: Any, dialect: Dialect) -> list[Message]:
    pairs = history or []
    is_pair = isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs
    )
    if not is_pair:
        raise _other(dialect, "history", history)
    return history_turns(pairs)


def _text(value: Mapping[str, Any], key: str, dialect: Dialect) -> str:
    text = value.get(key)
    if not text and key not in dialect.needs:
        return ""
    if not isinstance(text, str) or (not text and key == dialect.needs[1]):
        raise _other(dialect, key, text)
    return text


def _other(dialect: Dialect, key: str, value: Any) -> Skip:
    return Skip(
        Reason.BAD_MESSAGE, f"read as {dialect.name!r}, and its {key} is empty or of another form: {str(value)[:80]!r}"
    )


class Written(NamedTuple):
    """A conversation in other fields."""

    dialect: Dialect
    turns: list[Any]

    def fields(self, value: Mapping[str, Any]) -> set[str]:
        """Return the fields of the record that hold the conversation."""
        return {key for key in (*self.dialect.needs, *self.dialect.reads) if key in value}


DIALECTS = (
    Dialect("alpaca", ("instruction", "output"), alpaca, ("input", "history")),
    Dialect("query and response", ("query", "response"), alpaca, ("history",)),
    Dialect("prompt and completion", ("prompt", "completion"), prompt_and_completion),
    Dialect("prompt and response", ("prompt", "response"), alpaca, ("history",)),
    Dialect("question and response", ("question", "response"), alpaca, ("history",)),
    *(
        Dialect(f"{asks} and {answers}", (asks, answers), listed_pairs, is_vqa=True)
        for asks in ("questions", "question")
        for answers in ("answers", "answer")
    ),
    *(Dialect(field, (field,), turns_as_written) for field in TURN_FIELDS),
)

_ALL_FIELDS = frozenset(key for dialect in DIALECTS for key in (*dialect.needs, *dialect.reads))


def turns_of(value: Mapping[str, Any], only_vqa: bool) -> Written | None:
    """Read the conversation of a record that has none of the fields that are read first; None: no dialect fits."""
    fit = [
        dialect
        for dialect in DIALECTS
        if (dialect.is_vqa or not only_vqa) and all(value.get(key) is not None for key in dialect.needs)
    ]
    if not fit:
        return None
    if len(fit) > 1:
        names = " and as ".join(f"{dialect.name!r}" for dialect in fit)
        decide = "source.messages_key, or source.columns.prompt and source.columns.response, decide"
        raise Skip(Reason.BAD_MESSAGE, f"it can be read as {names}: {decide}")
    dialect = fit[0]
    lists = [key for key in _ALL_FIELDS.difference(dialect.needs, dialect.reads) if key in value]
    if left := sorted(key for key in lists if value[key] and isinstance(value[key], list)):
        what = f"it can be read as {dialect.name!r}, and has a list in {left[0]}, too: source.messages_key decides"
        raise Skip(Reason.BAD_MESSAGE, what)
    return Written(dialect, dialect.turns(value, dialect))


_ASKS = ("user", "human", "question")
_ANSWERS = ("assistant", "gpt", "bot", "answer", "answers")
_SIDES = frozenset((*_ASKS, *_ANSWERS))


def turn(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def asked_and_answered(question: Any, answer: Any) -> list[Message]:
    return [turn("user", question), turn("assistant", answer)]


def turns_of_pair(message: Mapping[str, Any], index: int) -> list[Message] | None:
    """Return the question and the answer of one entry as turns; None: it is no pair.

    Of several answers to one question, the first is taken.
    """
    asks = [key for key in _ASKS if key in message]
    answers = [key for key in _ANSWERS if key in message]
    if len(asks) != 1 or len(answers) != 1:
        return None
    answer = message[answers[0]]
    if answers[0] == "answers" and isinstance(answer, list) and answer:
        answer = answer[0]
    for key, text in ((asks[0], message[asks[0]]), (answers[0], answer)):
        if not isinstance(text, str):
            raise Skip(Reason.BAD_MESSAGE, f"message {index} has a {key} that is no text: {str(text)[:80]}")
    return asked_and_answered(message[asks[0]], answer)


def without_sides(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an entry holds beside its question and its answer."""
    return {key: item for key, item in message.items() if key not in _SIDES}


def prompts_and_captions(value: Mapping[str, Any]) -> list[Message]:
    """Return `prompts` and as many `captions` as turns."""
    sides = []
    for key in ("prompts", "captions"):
        side = value[key] if isinstance(value[key], list) else [value[key]]
        if len(side) == 1 and isinstance(side[0], list):
            side = side[0]
        if not all(isinstance(text, str) for text in side):
            raise Skip(Reason.BAD_MESSAGE, f"{key} are not all text")
        sides.append(side)
    if len(sides[0]) != len(sides[1]):
        raise Skip(Reason.BAD_MESSAGE, f"{len(sides[0])} prompts for {len(sides[1])} captions")
    return [message for p, c in zip(*sides, strict=True) for message in asked_and_answered(p, c)]

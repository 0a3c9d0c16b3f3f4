"""Makes turns of a record whose question and answer stand in fields of their own. Pure.

{"instruction": "Add.", "input": "1 2", "output": "3", "history": [["Hi", "Hello"]]}     alpaca
{"query": "…", "response": "…", "history": [["…", "…"]]}                                 ms-swift
{"prompt": "…" or turns, "completion": "…" or turns}                                     TRL
{"questions": ["…", "…"], "answers": ["…", "…"]}
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.dialects.dialect import Dialect
from energon_pack.samples.dialects.pairs import asked_and_answered, turn
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip


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

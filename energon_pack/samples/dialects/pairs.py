"""Reads questions and answers that stand in pairs, and finds texts beside them that nothing reads. Pure.

These are pairs:

    {"user": "What is this?", "assistant": "A cat."}      the_cauldron, FineVision, Mantis
    {"human": "What is this?", "assistant": "A cat."}     ms-swift
    {"question": "What is this?", "answers": ["A cat."]}  lists of VQA
    {"prompts": ["What is this?"], "captions": ["A cat."]}

These have a text that nothing reads, such as a context, a solution or options:

    {"question": "How many heads?", "context": "CREATE TABLE head …", "answer": "SELECT …"}   a part of the question
    {"question": "x + 1 = 2?", "solution": "We subtract 1 on both sides: …", "answer": "1"}     a longer answer
    {"question": "Which one barks?", "options": ["cat", "dog"], "answer": "B"}                what the answer points at

Each such text costs the sample, by name: without it a question can't be answered, or the lesser answer is trained.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from energon_pack.samples.sample import CONTENT_KEYS, REASONING_KEYS, THOUGHT_KEYS, Message
from energon_pack.samples.skip import Reason, Skip, setting_word, value_of_synonyms
from energon_pack.samples.weights import PART_WEIGHTS, TURN_WEIGHT_KEYS

_QUESTION_KEYS = ("user", "human", "question")
_ANSWER_KEYS = ("assistant", "gpt", "bot", "answer", "answers")
#: what an answer may have beside its text
_KEYS_OF_ANSWER = frozenset((*TURN_WEIGHT_KEYS, PART_WEIGHTS, *THOUGHT_KEYS, "tool_calls", "function_call"))
_PAIR_KEYS = frozenset((*_QUESTION_KEYS, *_ANSWER_KEYS))


def turn(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def question_and_answer_turns(question: Any, answer: Any) -> list[Message]:
    return [turn("user", question), turn("assistant", answer)]


def first_answer(answers: Any) -> Any:
    """Return the first of several answers, or the only one; of `{"answer": …}`, as VQAv2 has each in a list, its text.

    An empty list is returned as it is.
    """
    first = answers[0] if isinstance(answers, list) and answers else answers
    return first["answer"] if first is not answers and isinstance(first, Mapping) and "answer" in first else first


def turns_of_pair(message: Mapping[str, Any], index: int) -> list[Message] | None:
    """Return the question and the answer of one entry as turns; None: it has not one key of each.

    Of several answers to one question, the first is taken. The answer has the entry's weights, thoughts and calls.
    """
    asks = [key for key in _QUESTION_KEYS if key in message]
    answers = [key for key in _ANSWER_KEYS if key in message]
    if len(asks) != 1 or len(answers) != 1:
        return None
    answer = message[answers[0]]
    if answers[0] == "answers" and answer:
        answer = first_answer(answer)
    for key, text in ((asks[0], message[asks[0]]), (answers[0], answer)):
        if not isinstance(text, str):
            raise Skip(Reason.BAD_MESSAGE, f"message {index} has a {key} that is no text: {str(text)[:80]}")
    spelled = {key: message[key] for key in CONTENT_KEYS if isinstance(message.get(key), str | list)}
    answer = value_of_synonyms({answers[0]: answer, **spelled}, (answers[0], *spelled), "messages[].")
    more = {key: item for key, item in message.items() if key in _KEYS_OF_ANSWER and (item or item == 0)}
    question, answered = question_and_answer_turns(message[asks[0]], answer)
    return [question, answered | more]


def without_question_and_answer_keys(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry without the keys of its question and its answer."""
    return {key: item for key, item in entry.items() if key not in _PAIR_KEYS}


def turns_of_prompts_and_captions(record: Mapping[str, Any]) -> list[Message]:
    """Return the turns of a record with `prompts` and as many `captions`: each a text, a list, or a list in a list."""
    sides = []
    for key in ("prompts", "captions"):
        side = record[key] if isinstance(record[key], list) else [record[key]]
        if len(side) == 1 and isinstance(side[0], list):
            side = side[0]
        if not all(isinstance(text, str) for text in side):
            raise Skip(Reason.BAD_MESSAGE, f"{key} are not all text")
        sides.append(side)
    if len(sides[0]) != len(sides[1]):
        raise Skip(Reason.BAD_MESSAGE, f"{len(sides[0])} prompts for {len(sides[1])} captions")
    return [message for p, c in zip(*sides, strict=True) for message in question_and_answer_turns(p, c)]


#: fields that are a part of a question: what is to be done, and with what
_PARTS_OF_QUESTION = ("instruction", "input", "context")
#: how a table says that a question has no context or input
_NOTHING = frozenset(("", "n/a", "none", "null", "nan", "-", "<noinput>"))
#: fields of all options of a question, and of one
OPTIONS_KEYS = ("options", "choices")
_OPTION_KEY = re.compile(r"(?:choice|option)_?[A-Ha-h1-8]|[A-H]")
#: what divides options that are one text, as `['cat', 'dog']` of a table; a key, and the letter before one: `A. cat`
_BETWEEN_OPTIONS = re.compile(r"""(?:'\w*'|"\w*")\s*:|['"\[\]{}\n]|\(?(?<!\w)[A-Za-z]\s?[).:\u3001\uff0e\uff1a-]""")
_WORD = re.compile(r"[a-z0-9_]+|\w")
#: words around an answer for a reward: `<answer>$\boxed{4}$</answer>`
_WORDS_OF_REWARDS = ("answer", "boxed")
_MIN_MORE_CHARS = 20  # of a solution than of the answer in it: `5 metres` is no solution
_BLANKS_AND_PLACEHOLDERS = re.compile(r"<(?:image|video|audio)>|\s+")
#: a few words without a mark say how much is thought, or of which kind: `high`, `causal reasoning`
_KIND_OF_THOUGHT = re.compile(r"[\w\s,/&-]{0,40}")


def refuse_lost_texts(
    record: Mapping[str, Any], read_keys: Sequence[str], unread_keys: Collection[str], is_renamed: bool = False
) -> None:
    """Raise Skip (`bad_message`) if a question and its answer are read without a text that belongs to them.

    Args:
        record: the record.
        read_keys: the fields that are read: the question's, the answer's, and others.
        unread_keys: fields of a conversation with texts that these do not contain.
        is_renamed: settings name the question or the answer already.
    """
    asks, answers = read_keys[:2]
    answer, solution = first_answer(record[answers]), record.get("solution")
    are_texts = isinstance(record[asks], str) and isinstance(record[answers], str)
    can_be_named = are_texts and not is_renamed and not any(map(record.get, read_keys[2:]))

    def skip(what: str, response: str, effect: str) -> Skip:
        names = setting_word("source.columns.prompt", asks), setting_word("source.columns.response", response)
        advice = f"{' '.join(names)} {effect}; " if can_be_named else ""
        return Skip(Reason.BAD_MESSAGE, f"{what}: {advice}source.map can join fields, or leave one out")

    for key in unread_keys:
        if key in _PARTS_OF_QUESTION and not _NOTHING.issuperset(map(str.lower, normalized_texts(record[key]))):
            raise skip(f"{key} stands beside {asks}, and nothing reads it", answers, f"trains without {key}")
    if isinstance(answer, str | int) and isinstance(record[asks], str):
        asked = [record[key] for key in read_keys if key != answers and isinstance(record[key], str)]
        refuse_answer_without_options(record, "\n".join(asked), answer)
    if isinstance(solution, str) and isinstance(answer, str) and len(solution) >= len(answer) + _MIN_MORE_CHARS:
        said = normalized_texts([record[key] for key in read_keys])
        if _words(answer) in _words(solution) and not are_contained(normalized_texts(solution), said):
            effect = f"trains it, and source.columns.response={answers} the other"
            raise skip(f"solution is a longer answer than {answers}", "solution", effect)


def refuse_answer_without_options(record: Mapping[str, Any], question: Any, answer: Any) -> None:
    """Raise Skip (`bad_message`) if an answer is the letter or the number of an option that its question lacks."""
    fields = {key: record[key] for key in OPTIONS_KEYS if record.get(key)} or {
        key: text for key, text in record.items() if _OPTION_KEY.fullmatch(key) and isinstance(text, str)
    }
    said = [word for word in _words(str(answer)).split() if word not in _WORDS_OF_REWARDS] if fields else []
    if len(said) != 1 or not re.fullmatch("[a-z0-9]", said[0]) or not isinstance(question, str):
        return
    number = int(said[0]) if said[0].isdigit() else ord(said[0]) - ord("a") + 1
    options, asked = _words_of_options([*fields.values()]), _words(question)
    if 1 < len(options) >= number and _words(said[0]) not in options and any(text not in asked for text in options):
        detail = f"the answer {str(answer)[:40]!r} points at {', '.join(fields)[:60]}, which nothing reads"
        raise Skip(Reason.BAD_MESSAGE, f"{detail}: source.map can write the options into the question")


def _words_of_options(options: list[Any]) -> list[str]:
    """Return the words of each option, without its letter: of lists, of objects, and of one text for all options."""
    found, waiting = list[str](), [*options]
    while waiting:
        option = waiting.pop()
        if isinstance(option, Mapping):  # `{"A": "cat"}`, or `{"label": ["A"], "text": ["cat"]}`; others are settings
            waiting += [text for key, text in option.items() if len(key) == 1 or key in ("text", *CONTENT_KEYS)]
        elif isinstance(option, list):
            waiting += option
        elif option is not None:
            found += map(_words, _BETWEEN_OPTIONS.split(str(option)))
    return [words for words in found if words.strip()]


def _words(text: str) -> str:
    """Return the words of a text in small letters with a blank around each, to find one text in another."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def top_level_thoughts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the thoughts of a record at its top level, by their keys; `"reasoning": "on"` is none."""
    return {
        key: thought
        for key in REASONING_KEYS
        if isinstance(thought := record.get(key), str) and not _KIND_OF_THOUGHT.fullmatch(thought)
    }


def normalized_texts(turns_or_texts: Any) -> set[str]:
    """Return all texts of turns, pairs or lists, without their blanks and placeholders."""
    texts, waiting = set[str](), [turns_or_texts]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.add(_BLANKS_AND_PLACEHOLDERS.sub("", item))
        elif isinstance(item, Mapping):
            waiting += [item[key] for key in ("content", "value", "text") if key in item] or item.values()
        elif isinstance(item, list):
            waiting += item
    return texts


def are_contained(texts: set[str], others: set[str]) -> bool:
    """Tell whether each text is a part of one of the others."""
    whole = "\0".join(others)
    return all(text in whole for text in texts)

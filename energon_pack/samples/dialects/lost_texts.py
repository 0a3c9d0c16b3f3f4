"""Finds texts beside a question and its answer that the fields which are read do not hold. Pure.

    {"question": "How many heads?", "context": "CREATE TABLE head …", "answer": "SELECT …"}   a part of the question
    {"question": "x + 1 = 2?", "solution": "We subtract 1 on both sides …", "answer": "1"}    a longer answer
    {"question": "Which one barks?", "options": ["cat", "dog"], "answer": "B"}                what the answer points at

Each costs the sample, by name: without them a question can't be answered, or the lesser answer is trained.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from energon_pack.samples.dialects.pairs import first_answer
from energon_pack.samples.hint import setting_word
from energon_pack.samples.sample import REASONING_KEYS
from energon_pack.samples.skip import Reason, Skip

#: fields that are a part of a question: what is to be done, and with what
_PARTS_OF_QUESTION = ("instruction", "input", "context")
#: fields that rewards compare an answer with; one that is longer is an answer itself
_SOLUTION_KEYS = ("solution", "ground_truth")
#: fields of all options of a question, and of one
OPTIONS_KEYS = ("options", "choices")
_OPTION_KEY = re.compile(r"(?:choice|option)_?[A-Ha-h1-8]|[A-H]")
_LABEL = re.compile(r"(?:(?:choice|option)_?)?[A-Ha-h0-9]")
#: keys of the text of an option that is an object
_TEXT_OF_OPTION_KEYS = ("text", "content", "value")
#: an answer that is the letter or the number of an option, and how an option begins with its letter
_POINTER = re.compile(r"[(\[]?([A-Za-z]|\d)[)\].:]*")
_MAX_POINTER_CHARS = 100  # with the marks of rewards
_LETTER_OF_OPTION = re.compile(r"\(?(?<!\w)[A-Za-z]\s?[).:、．：-]\s*")
#: a text in a list that is a text, as a table has it; a key of an object has a colon behind it
_QUOTED = re.compile(r"""(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")(\s*:)?""")
#: what stands around an answer for a reward: `<answer>$\boxed{4}$</answer>`
_MARKS_OF_REWARDS = re.compile(r"</?answer>|\\boxed|[{}$]")
_BLANKS_AND_PLACEHOLDERS = re.compile(r"<(?:image|video|audio)>|\s+")
#: a thought that is one word says how much is thought, or of which kind: `on`, `high`, `multi-hop`
_ONE_WORD = re.compile(r"\s*[A-Za-z0-9_/-]*\s*")
#: how a table says that a question has no context or input
_NOTHING = frozenset(("", "n/a", "na", "none", "null", "nan", "-", "<noinput>", "noinput"))
#: a field for rewards that is longer than a short answer, or than one that it repeats, by more letters is an answer
_MAX_SHORT_ANSWER, _MIN_MORE = 40, 20
_MAP_ADVICE = "source.map can join fields, or leave one out"


def refuse_lost_texts(value: Mapping[str, Any], keys: Sequence[str], unsaid: Collection[str]) -> None:
    """Raise Skip (`bad_message`) if a question and its answer are read without a text that belongs to them.

    Args:
        value: the record.
        keys: the fields that are read: the question's, the answer's, and others.
        unsaid: fields of a conversation with texts that these do not contain.
    """
    asks, answers = keys[:2]
    answer = first_answer(value[answers])
    are_texts = isinstance(value[asks], str) and isinstance(value[answers], str)
    can_be_named = are_texts and not any(map(value.get, keys[2:])) and not thoughts_beside(value)

    def columns(response: str, effect: str) -> str:
        if not can_be_named:
            return _MAP_ADVICE
        names = setting_word("source.columns.prompt", asks), setting_word("source.columns.response", response)
        return f"{' '.join(names)} {effect}; {_MAP_ADVICE}"

    parts = [key for key in _PARTS_OF_QUESTION if key in unsaid]
    if part := next(
        (key for key in parts if not _NOTHING.issuperset(map(str.lower, normalized_texts(value[key])))), None
    ):
        ways = columns(answers, f"trains without {part}")
        raise Skip(Reason.BAD_MESSAGE, f"{part} stands beside {asks}, and nothing reads it: {ways}")
    if isinstance(answer, str | int) and isinstance(value[asks], str):
        asked = [value[key] for key in keys if key != answers and isinstance(value[key], str)]
        refuse_unread_options(value, "\n".join(asked), answer)
    for key in _SOLUTION_KEYS if isinstance(answer, str) else ():
        if isinstance(value.get(key), str) and _is_longer_answer(value[key], answer, value):
            ways = columns(key, f"trains it, and source.columns.response={answers} the other")
            raise Skip(Reason.BAD_MESSAGE, f"{key} is a longer answer than {answers}: {ways}")


def refuse_unread_options(value: Mapping[str, Any], question: Any, answer: Any) -> None:
    """Raise Skip (`bad_message`) if an answer is the letter or the number of an option that its question lacks."""
    fields = {
        key: value[key] for key in OPTIONS_KEYS if isinstance(value.get(key), str | list | dict) and value[key]
    } or {key: text for key, text in value.items() if _OPTION_KEY.fullmatch(key) and isinstance(text, str) and text}
    if not fields or not isinstance(question, str) or len(str(answer)) > _MAX_POINTER_CHARS:
        return
    said = _without_marks(str(answer))
    pointer = _POINTER.fullmatch(said)
    if pointer is None:
        return
    texts = _option_texts([*fields.values()])
    number = int(pointer[1]) if pointer[1].isdigit() else ord(pointer[1].upper()) - ord("A") + 1
    is_one = any(_without_marks(text).lower() in (said.lower(), pointer[1].lower()) for text in texts)
    asked = " ".join(question.split()).lower()
    if len(texts) > 1 and number <= len(texts) and not is_one and not all(_is_written(text, asked) for text in texts):
        detail = f"the answer {said!r} points at {', '.join(fields)[:60]}, which nothing reads"
        raise Skip(Reason.BAD_MESSAGE, f"{detail}: source.map can write the options into the question")


def _option_texts(options: Sequence[Any]) -> list[str]:
    """Return the texts of options: of lists, of objects by their letters, of `{"text": […], "label": […]}`, of cells."""
    texts, waiting = list[str](), [*options]
    only = waiting[0] if len(waiting) == 1 else None
    if isinstance(only, str):  # `"['cat', 'dog']"`, as a table has it, or `"A. cat\nB. dog"`
        found = [one or other for one, other, is_key in _QUOTED.findall(only) if not is_key]
        return (
            found if only.lstrip()[:1] in ("[", "{") else [*filter(None, map(str.strip, _LETTER_OF_OPTION.split(only)))]
        )
    for option in waiting:
        if isinstance(option, Mapping):
            is_labelled = all(map(_LABEL.fullmatch, option))
            waiting += (
                option.values() if is_labelled else [option[key] for key in _TEXT_OF_OPTION_KEYS if key in option]
            )
        elif isinstance(option, list):
            waiting += option
        elif option is not None and str(option).strip():
            texts.append(str(option).strip())
    return texts


def _is_written(option: str, question: str) -> bool:
    """Tell whether a question, in small letters, has the words of an option, whatever letter stands before them."""
    words = " ".join(_LETTER_OF_OPTION.sub("", option, count=1).split()).lower().strip(" .,;。，；(")
    if words not in question:
        return False
    begin, end = (r"(?<!\w)" if words[:1].isascii() else "", r"(?!\w)" if words[-1:].isascii() else "")
    return re.search(begin + re.escape(words) + end, question, re.ASCII) is not None


def _is_longer_answer(text: str, answer: str, value: Mapping[str, Any]) -> bool:
    """Tell whether a field for rewards says more than the answer, and is no list or object as text, nor a thought."""
    if text.lstrip()[:1] in ("[", "{") or are_contained({_spelled(text)}, normalized_texts(thoughts_beside(value))):
        return False
    said, more = _without_marks(answer), _without_marks(text)
    return len(more) > len(said) + _MIN_MORE and (len(said) <= _MAX_SHORT_ANSWER or said in more)


def thoughts_beside(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the thoughts of a record at its top level, by their keys; `"reasoning": "on"` is none."""
    return {
        key: thought
        for key in REASONING_KEYS
        if (thought := value.get(key))
        and any(
            isinstance(text, str) and not _ONE_WORD.fullmatch(text)
            for text in (thought if isinstance(thought, list) else [thought])
        )
    }


def normalized_texts(value: Any) -> set[str]:
    """Return all texts of turns, pairs or lists, without their blanks and placeholders."""
    texts, waiting = set[str](), [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.add(_spelled(item))
        elif isinstance(item, Mapping):
            waiting += [item[key] for key in ("content", "value", "text") if key in item] or item.values()
        elif isinstance(item, list):
            waiting += item
    return texts


def are_contained(texts: set[str], others: set[str]) -> bool:
    """Tell whether each text is a part of one of the others."""
    whole = "\0".join(others)
    return all(text in whole for text in texts)


def _spelled(text: str) -> str:
    return _BLANKS_AND_PLACEHOLDERS.sub("", text)


def _without_marks(text: str) -> str:
    return _MARKS_OF_REWARDS.sub("", _spelled(text))

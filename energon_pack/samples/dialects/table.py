"""Finds the conversation of a record: all fields that may hold it, and the dialects that need several. Pure.

A dialect is recognised by its fields alone: all of them are there, and none is null. Two that fit and say different
things are an error of the sample, never a choice. To add a dialect, add a row to `DIALECTS`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from energon_pack.samples.dialects.pairs import (
    are_contained,
    first_answer,
    normalized_texts,
    question_and_answer_turns,
    refuse_lost_texts,
    top_level_thoughts,
    turn,
    turns_of_prompts_and_captions,
)
from energon_pack.samples.documents import document_of, text_unless_chat
from energon_pack.samples.sample import MESSAGE_KEYS, Message
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.samples.skip import Hint, Reason, Skip, value_of_synonyms
from energon_pack.samples.turns import refuse_lone_message

#: fields that hold ordinary turns, or pairs, under other names than `messages`
TURN_FIELDS = ("conversation", "dialog", "dialogue", "turns")


class Dialect(NamedTuple):
    """One way in which data sets write a conversation: the fields that hold it, and how they become turns."""

    name: str
    #: the fields by which it is recognised
    required_fields: tuple[str, ...]
    #: makes turns of these fields' values; raises Skip for values of other types
    make_turns: Callable[[Mapping[str, Any], "Dialect"], list[Any]]
    #: optional fields that it reads
    optional_fields: tuple[str, ...] = ()
    #: it also is what `source.sample_type=vqa` looks for
    is_vqa: bool = False


def turns_of_instruction(record: Mapping[str, Any], dialect: Dialect) -> list[Message]:
    """Make turns of an instruction (joined with its input) and an answer, after the turns of its `history`."""
    answer = _text_field(record, dialect.required_fields[1], dialect)
    return [*turns_of_question(record, dialect), turn("assistant", answer)]


def turns_of_question(record: Mapping[str, Any], dialect: Dialect) -> list[Message]:
    """Make turns of a `history`, a list of [question, answer], and of an instruction, joined with its input.

    A line break joins these two (LLaMA-Factory, ms-swift); an empty one is left out.

    Raises:
        Skip: `bad_message`: one of them is no text, both are empty, there are two inputs, or the history has another
            form.
    """
    asks, pairs = dialect.required_fields[0], record.get("history") or []
    asked = _text_field(record, asks, dialect)
    inputs = [key for key in dialect.optional_fields if key != "history" and not _repeats_context(record, key, asked)]
    value_of_synonyms(record, inputs)
    texts = [asked, *dict.fromkeys(_text_field(record, key, dialect) for key in inputs)]
    if not any(texts):
        raise _other_form_skip(dialect, asks, record.get(asks))
    is_history = isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs
    )
    if not is_history:
        raise _other_form_skip(dialect, "history", pairs)
    earlier = [message for pair in pairs for message in question_and_answer_turns(*pair)]
    return [*earlier, turn("user", "\n".join(filter(None, texts)))]


def _repeats_context(value: Mapping[str, Any], key: str, asked: str) -> bool:
    """Tell whether an instruction holds the text of its context already, or the context is a number, without a text."""
    return key == "context" and are_contained(normalized_texts(value.get(key)), normalized_texts(asked))


def turns_of_prompt_and_completion(record: Mapping[str, Any], dialect: Dialect) -> list[Any]:
    """Join a prompt and a completion: both are texts, or both are turns."""
    prompt, completion = record["prompt"], record["completion"]
    if prompt and isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    return question_and_answer_turns(_text_field(record, "prompt", dialect), _text_field(record, "completion", dialect))


def turns_of_question_and_answer_lists(record: Mapping[str, Any], dialect: Dialect) -> list[Message]:
    """Make turns of a list of questions and a list of as many answers."""
    sides = [record[key] for key in dialect.required_fields]
    if sides[0] and isinstance(sides[0], str) and not sides[1]:  # one question without an answer
        return question_and_answer_turns(sides[0], _text_field(record, dialect.required_fields[1], dialect))
    for key, side in zip(dialect.required_fields, sides, strict=True):
        is_question = key == dialect.required_fields[0]
        if not isinstance(side, list) or not all(isinstance(text, str) and (text or not is_question) for text in side):
            raise _other_form_skip(dialect, key, side)
    if len(sides[0]) != len(sides[1]):
        asks, answers = dialect.required_fields
        raise Skip(Reason.BAD_MESSAGE, f"{len(sides[0])} texts in {asks} for {len(sides[1])} in {answers}")
    return [message for pair in zip(*sides, strict=True) for message in question_and_answer_turns(*pair)]


def turns_as_written(record: Mapping[str, Any], dialect: Dialect) -> list[Any]:
    """Return the value of a dialect's only field: a list whose entries are already turns or pairs."""
    turns = record[dialect.required_fields[0]]
    if not isinstance(turns, list) or not all(isinstance(message, dict) for message in turns):
        raise _other_form_skip(dialect, dialect.required_fields[0], turns)
    return turns


def _text_field(value: Mapping[str, Any], key: str, dialect: Dialect) -> str:
    text = value.get(key)
    if text is None or (not text and isinstance(text, bool | list | dict) and key in dialect.optional_fields):
        return ""
    if not isinstance(text, str):
        raise _other_form_skip(dialect, key, text)
    return text


def _other_form_skip(dialect: Dialect, key: str, value: Any) -> Skip:
    return Skip(
        Reason.BAD_MESSAGE, f"read as {dialect.name!r}, and its {key} is empty or of another form: {str(value)[:80]!r}"
    )


#: what an instruction is joined with: alpaca's input, which Dolly calls context
_BESIDE_INSTRUCTION = ("input", "context", "history")
DIALECTS = (
    Dialect("alpaca", ("instruction", "output"), turns_of_instruction, _BESIDE_INSTRUCTION),
    Dialect("query and response", ("query", "response"), turns_of_instruction, ("history",)),
    Dialect("prompt and completion", ("prompt", "completion"), turns_of_prompt_and_completion),
    Dialect("prompt and response", ("prompt", "response"), turns_of_instruction, ("history",)),
    Dialect("question and response", ("question", "response"), turns_of_instruction, ("history",)),
    Dialect("instruction and response", ("instruction", "response"), turns_of_instruction, _BESIDE_INSTRUCTION),
    *(
        Dialect(f"{asks} and {answers}", (asks, answers), turns_of_question_and_answer_lists, is_vqa=True)
        for asks in ("questions", "question")
        for answers in ("answers", "answer")
    ),
    *(Dialect(field, (field,), turns_as_written) for field in TURN_FIELDS),
)

#: fields of a conversation, or of a part of one, beside those of turns
_DIALECT_FIELDS = frozenset(key for dialect in DIALECTS for key in (*dialect.required_fields, *dialect.optional_fields))
CONVERSATION_FIELDS = _DIALECT_FIELDS | {*MESSAGE_KEYS, "prompts", "captions", "caption", "context", "text"}
#: lists of these beside a conversation are remarks
_LISTS_BESIDE = {"answers", "context"}
_DECIDING_SETTINGS = "source.sample_type, or source.columns.prompt with source.columns.response,"
_FIELD_ADVICE = (
    "source.messages_key names a field of turns, source.columns.prompt and .response name two of texts; source.map"
    " makes messages of anything else"
)


class ConversationReading(NamedTuple):
    """One way to read a record's conversation, and the fields that hold it."""

    name: str
    keys: Sequence[str]
    make_turns: Callable[[], Any]  # raises Skip for values of other types
    consumed_keys: Sequence[str] | None = None  # fields that the sample does not keep beside its turns; None: all


def possible_readings(record: Mapping[str, Any], settings: ReadSettings) -> Iterator[ConversationReading]:
    """Yield the ways in which a record's fields can be read as a conversation, in the order in which they are tried."""
    kind, auto, own = settings.sample_type, SampleType.auto, settings.messages_key
    if kind is SampleType.document and isinstance(text := record.get(own or "text"), str) and text:
        yield ConversationReading("document", (own or "text",), partial(document_of, text))
    if kind in (auto, SampleType.chat, SampleType.document):
        for key in (own,) if own else MESSAGE_KEYS:
            if record.get(key):
                yield ConversationReading(key, (key,), partial(record.get, key))
        if own:
            return
        if record.get("prompts") and record.get("captions"):
            yield ConversationReading(
                "prompts and captions", ("prompts", "captions"), partial(turns_of_prompts_and_captions, record)
            )
    is_caption, caption = kind in (auto, SampleType.captioning), record.get("caption")
    if is_caption and isinstance(caption, str):
        yield _caption_reading(caption, settings)
    if kind in (auto, SampleType.vqa) and (written := _single_question_reading(record)):
        yield written
    for dialect in DIALECTS if kind in (auto, SampleType.chat, SampleType.vqa) else ():
        if (dialect.is_vqa or kind is not SampleType.vqa) and all(
            record.get(key) is not None for key in dialect.required_fields
        ):
            keys = [key for key in (*dialect.required_fields, *dialect.optional_fields) if key in record]
            yield ConversationReading(dialect.name, keys, partial(dialect.make_turns, record, dialect))
    if kind is auto and isinstance(text := record.get("text"), str) and text.strip():
        yield ConversationReading("text", ("text",), partial(document_of, text))
    if kind in (auto, SampleType.vqa) and (written := _single_question_reading(record, is_answered=False)):
        yield written
    if is_caption and isinstance(caption, list) and isinstance(first_answer(caption), str):  # Flickr30k: the first
        yield _caption_reading(first_answer(caption), settings)


def find_only_fitting_reading(
    record: Mapping[str, Any], settings: ReadSettings
) -> tuple[ConversationReading, dict[str, list[Any]]] | None:
    """Find the reading that gives a record's conversation; None: no reading fits.

    The second value: other fields with texts that this conversation does not contain, each with a list of its value.

    Raises:
        Skip: `bad_message`: the record can be read in another way, too, with other texts.
    """
    ways = possible_readings(record, settings)
    first = next(ways, None)
    if first is None or (first.name == "text" and not text_unless_chat(record)):
        return None
    if first.name == "text":
        refuse_lone_message(record)
    if settings.sample_type is SampleType.document:
        return first, {}
    first = _with_thoughts(record, first)
    columns, beside = settings.columns, sorted(CONVERSATION_FIELDS.intersection(record).difference(first.keys))
    said = normalized_texts([record[key] for key in first.keys]) if beside else set()
    texts = {key: normalized_texts(record[key]) for key in beside}
    unsaid = [key for key in beside if not are_contained(texts[key], said)]
    others = {key for key in unsaid if not are_contained(said, texts[key])}
    if not (settings.messages_key or columns.messages or (columns.prompt and columns.response)):
        if _is_question_and_answer(record, first):
            refuse_lost_texts(record, first.keys, unsaid, bool(columns.prompt or columns.response))
        if others:
            _refuse_second_reading(record, first, ways, others)
    return first, {key: [record[key]] for key in unsaid if key in others or isinstance(record[key], list)}


def _refuse_second_reading(
    value: Mapping[str, Any], first: ConversationReading, ways: Iterator[ConversationReading], others: set[str]
) -> None:
    """Raise Skip (`bad_message`) if a record can be read in another way, too; `others`: fields with other texts."""
    lists = sorted(key for key in others & (_DIALECT_FIELDS - _LISTS_BESIDE) if isinstance(value[key], list))
    for name, keys in (*((way.name, way.keys) for way in ways), *((key, (key,)) for key in lists)):
        is_text = isinstance(value[keys[0]], str)
        is_remark = len(keys) == 1 and is_text != (keys[0] in ("caption", "text"))  # a text, or a list of captions
        if not is_remark and not others.isdisjoint(keys):
            hint = Hint("messages_key", first.keys[0], "decides", "source.map decides")
            is_known = first.name in MESSAGE_KEYS
            what = f"it can be read as {first.name!r} and as {name!r}, which say different things:"
            decides = hint if is_known else f"{_DECIDING_SETTINGS} decides"
            raise Skip(Reason.BAD_MESSAGE, f"{what} {decides}", hint if is_known else None)


def _is_question_and_answer(value: Mapping[str, Any], reading: ConversationReading) -> bool:
    """Tell whether the first two fields of a reading are questions and their answers: texts, not turns."""
    asked = value[reading.keys[0]]
    return len(reading.keys) > 1 and not (isinstance(asked, list) and any(isinstance(item, dict) for item in asked))


def _with_thoughts(value: Mapping[str, Any], reading: ConversationReading) -> ConversationReading:
    """Return a reading of one answer with the thoughts that stand beside it in the record, unless it thinks itself."""
    is_one_answer = len(reading.keys) > 1 and isinstance(value[reading.keys[0]], str)
    if not is_one_answer or not (thoughts := top_level_thoughts(value)):
        return reading
    said = normalized_texts(value[reading.keys[1]])
    unsaid = {key: text for key, text in thoughts.items() if not are_contained(normalized_texts(text), said)}
    if unsaid and any("<think>" in text for text in said):
        return reading

    def turns() -> list[Message]:
        *before, answer = reading.make_turns()
        return [*before, {**answer, **unsaid}]

    consumed = reading.keys if reading.consumed_keys is None else reading.consumed_keys
    return reading._replace(keys=(*reading.keys, *thoughts), make_turns=turns, consumed_keys=(*consumed, *thoughts))


def no_conversation_skip(record: Mapping[str, Any], expected_fields: str) -> Skip:
    """Return the Skip for a record without a conversation; its hint names a field of turns, with several roles if any.

    `expected_fields`: those that were looked for.
    """
    roles = {
        key: {str(turn.get("role", turn.get("from"))) for turn in item if isinstance(turn, dict)}
        for key, item in record.items()
        if isinstance(item, list) and item and isinstance(item[0], dict) and not {"role", "from"}.isdisjoint(item[0])
    }
    named = max(roles, key=lambda key: len(roles[key]) > 1, default=None)
    hint = None if named is None else Hint("messages_key", named, "reads its turns", _FIELD_ADVICE)
    return Skip(Reason.NO_MESSAGES, f"no {expected_fields} among {sorted(record)[:8]} ({hint or _FIELD_ADVICE})", hint)


def _caption_reading(caption: str, settings: ReadSettings) -> ConversationReading:
    asked = question_and_answer_turns(settings.caption_prompt, caption.strip())
    return ConversationReading("caption", ("caption",), lambda: asked)


def _single_question_reading(value: Mapping[str, Any], is_answered: bool = True) -> ConversationReading | None:
    """Read one question with one or several answers; the first answer is taken, and the record keeps a list of them.

    `is_answered`: its answer is no empty text.
    """
    asks = next((key for key in ("question", "context") if isinstance(value.get(key), str) and value[key]), None)
    answers = next(
        (key for key in ("answer", "answers") if (value.get(key) if is_answered else value.get(key) == "")), None
    )
    if not asks or not answers:
        return None
    answer = first_answer(value[answers])
    holds_more = isinstance(value[answers], list) and value[answers] != [answer]

    def turns() -> list[Message]:
        if not isinstance(answer, str):
            raise Skip(Reason.BAD_MESSAGE, f"{answers} is not text: {str(answer)[:80]} (source.map can make it one)")
        return question_and_answer_turns(value[asks], answer)

    return ConversationReading(f"{asks} and {answers}", (asks, answers), turns, (asks,) if holds_more else None)

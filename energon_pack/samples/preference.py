"""Reads preference data: two answers, or one answer with a verdict. Trained unread, bad answers would be learnt. Pure.

{"prompt": …, "chosen": …, "rejected": …}     TRL: texts, lists of turns, whole conversations; LLaMA-Factory: turns
{"instruction": …, "chosen": …, "rejected": …}     LLaMA-Factory: alpaca lines
{"messages": […], "rejected_response": …}     ms-swift, and `rejected_messages`
{"input": {"messages": […]}, "preferred_output": […], "non_preferred_output": […]}     OpenAI
{"messages": […], "label": false}             KTO: TRL, ms-swift, LLaMA-Factory (`kto_tag`)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.samples.dialects.pairs import turn, turns_of_pair, without_question_and_answer_keys
from energon_pack.samples.sample import ARGUMENT_KEYS, CONTENT_KEYS, ROLE_KEYS, THOUGHT_KEYS, Message
from energon_pack.samples.settings import PreferenceTake
from energon_pack.samples.skip import Hint, Reason, Skip, key_of_synonyms, value_of_synonyms
from energon_pack.samples.turns import (
    ANSWER_ROLES,
    CALL_ROLES,
    find_tool_calls_in_turn,
    objects_with_call_keys,
    parse_json_or_none,
)
from energon_pack.samples.weights import PART_WEIGHTS, TURN_WEIGHT_KEYS

_REJECTED_KEYS = frozenset(("rejected_response", "rejected_messages", "rejected_images"))
#: OpenAI's names → ours
_OPENAI_KEYS = {"preferred_output": "chosen", "non_preferred_output": "rejected"}
#: keys that say whether an answer is good: true or false, 1 or 0, or a word; any other value is a remark
LABEL_KEYS = ("label", "kto_tag")
_PROMPT_KEYS = ("prompt", "question")
#: the question of a dialect without turns → its answer
_ANSWER_OF_QUESTION = {"instruction": "output", "query": "response"}
#: the keys of an answer in dialects without turns
_ANSWER_KEYS = ("response", "output", "completion", "answer")
PREFERENCE_KEYS = frozenset(("chosen", "rejected", *_REJECTED_KEYS, *_OPENAI_KEYS, *LABEL_KEYS))


def without_rejected_answer(
    value: Mapping[str, Any], keys: Sequence[str], take: PreferenceTake | None
) -> dict[str, Any]:
    """Return a sample's JSON with the chosen answer only; a sample that is no preference data stays unchanged.

    `keys`: fields that may hold its turns. The turns are written to the first of them if the sample has none.

    Raises:
        Skip: `preference_data` if `take` is None; `not_chosen` if the sample's label calls its answer bad.
    """
    value = _without_openai_names(value, keys[0])
    key = next((key for key in keys if value.get(key)), keys[0])
    has_pair = _has_pair(value)
    rejected = sorted(name for name in _REJECTED_KEYS if value.get(name))
    completed = value.get("prompt") is not None and value.get("completion") is not None
    labels = {name: is_good for name in LABEL_KEYS if (is_good := _is_good(value.get(name))) is not None}
    value_of_synonyms({name: [is_good] for name, is_good in labels.items()}, LABEL_KEYS)
    label = next(iter(labels), None)
    if not (has_pair or rejected or label):
        return dict(value)
    labelled = f"{label}={value[label]}" if label else ""
    detail = "chosen and rejected" if has_pair else next(iter(rejected), labelled)
    if take is None:
        hint = Hint("take", "chosen", "packs the good conversations", "source.map makes a conversation of it")
        raise Skip(Reason.PREFERENCE_DATA, f"{detail}: preference data ({hint})", hint)
    if label and not _is_good(value[label]):
        raise Skip(Reason.NOT_CHOSEN, f"{detail} (source.take=chosen)")
    if has_pair:
        return _side_of_pair(value, key, "chosen")
    rest = {name: item for name, item in value.items() if name not in PREFERENCE_KEYS}
    if label and completed and not value.get(key):
        rest = {name: item for name, item in rest.items() if name not in ("prompt", "completion")}
        return {**rest, key: _with_answer(_prompt_turns(value, key), value["completion"])}
    return rest


def with_rejected_as_chosen(value: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a sample's JSON with its rejected answer in the place of the chosen one, for `without_rejected_answer`.

    Raises:
        Skip: `no_pair`: it has no two answers to one question, or they have other media; `bad_message`: its turns end
            with another answer than the chosen one.
    """
    value = _without_openai_names(value, keys[0])
    key = next((key for key in keys if value.get(key)), keys[0])
    if value.get("rejected_images"):
        raise Skip(Reason.NO_PAIR, "rejected_images: both sides of a pair have the same media")
    if _has_pair(value) and [] not in (value["chosen"], value["rejected"]):
        labels = {name: value[name] for name in LABEL_KEYS if name in value}
        return {**_side_of_pair(value, key, "rejected"), **labels}
    turns, response = value.get("rejected_messages"), value.get("rejected_response")
    if turns:
        return {**value, key: turns}
    answers = next((name for name in _ANSWER_KEYS if value.get(name) is not None), None)
    last = value[key][-1] if value.get(key) and isinstance(value[key], list) else None
    if isinstance(response, str) and isinstance(last, Mapping):
        names = {name: last[name] for name in ("role", "from") if name in last}
        return {**value, key: [*value[key][:-1], {**names, "content" if "role" in names else "value": response}]}
    if isinstance(response, str) and answers and not value.get(key):
        return {**value, answers: response}
    raise not_a_pair_skip("rejected_response is no text for an answer" if "rejected_response" in value else "")


def not_a_pair_skip(detail: str = "") -> Skip:
    """Return the Skip for a sample without two answers to one question, where `source.take=both` asks for these."""
    read = "source.take=both reads chosen and rejected answers to one question"
    return Skip(Reason.NO_PAIR, f"{detail or 'it has no two answers'} ({read})")


def _without_openai_names(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return OpenAI's preference data with our names: the turns of its `input` under `key`; other data unchanged."""
    if value.keys().isdisjoint(_OPENAI_KEYS) or not isinstance(asked := value.get("input"), Mapping):
        return dict(value)
    renamed = {ours: value[name] for name, ours in _OPENAI_KEYS.items() if name in value}
    rest = {name: item for name, item in value.items() if name not in (*_OPENAI_KEYS, "input")}
    inner = {key if name == "messages" else name: item for name, item in asked.items()}
    return {**rest, **inner, "rejected": [], **renamed}


def _has_pair(value: Mapping[str, Any]) -> bool:
    return value.get("chosen") is not None and value.get("rejected") is not None


def _is_good(label: Any) -> bool | None:
    """Tell whether a label calls an answer good; None: the value is neither true nor false."""
    words = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}  # pandas makes floats
    return words.get(str(label).lower())


def _prompt_turns(value: Mapping[str, Any], key: str) -> list[Message]:
    """Return the turns before the answer, from the conversation or from a prompt."""
    if isinstance(value.get(key), list):
        return list(value[key])
    prompt: Any = value_of_synonyms(value, _PROMPT_KEYS) or []
    return prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]


def _side_of_pair(value: Mapping[str, Any], key: str, side: str) -> dict[str, Any]:
    """Return a pair's JSON with one of its answers, `chosen` or `rejected`, after the prompt that both have."""
    rest = {name: item for name, item in value.items() if name not in PREFERENCE_KEYS}
    if not value.get(key) and (asks := next((one for one in _ANSWER_OF_QUESTION if value.get(one)), "")):
        return {**rest, _ANSWER_OF_QUESTION[asks]: value[side]}
    prompt, chosen = _without_repeated_answer(_prompt_turns(value, key), value["chosen"])
    rest = {name: item for name, item in rest.items() if name not in _PROMPT_KEYS}
    return {**rest, key: _with_answer(prompt, chosen if side == "chosen" else value[side])}


def _with_answer(prompt: list[Message], answer: Any) -> list[Any]:
    """Join a prompt and an answer, which is a text, a turn or turns; turns that repeat the prompt stand alone."""
    if _begins_anew(turns := _answer_turns(answer)):
        return turns
    if not prompt and not isinstance(answer, list):
        raise Skip(Reason.BAD_MESSAGE, "the chosen answer has no prompt: fields prompt, question or messages")
    return [*prompt, *turns]


def _answer_turns(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer if isinstance(answer, dict) else turn("assistant", answer)]


def _without_repeated_answer(prompt: list[Message], chosen: Any) -> tuple[list[Message], Any]:
    """Return a prompt without the chosen answer if it ends with it, and that answer, with the thoughts of both.

    Raises Skip if the prompt ends with another answer.
    """
    turns = _answer_turns(chosen)
    if not turns or not prompt or not all(isinstance(message, dict) for message in (*prompt, *turns)):
        return prompt, chosen
    if _begins_anew(turns):
        return prompt[:-1] if [*map(_said, prompt)] == [*map(_said, turns)] else prompt, chosen
    asks_itself = _is_pair(turns[0])
    pair = turns_of_pair(prompt[-1], len(prompt) - 1) if _is_pair(prompt[-1]) and not asks_itself else None
    unpaired = [*prompt[:-1], *pair] if pair else prompt
    before, after = unpaired[: -len(turns)], unpaired[-len(turns) :]
    roles = {*ANSWER_ROLES, *CALL_ROLES}
    if _role(after[0]) in roles and [*map(_said, after)] == [*map(_said, turns)]:
        turns = [*map(_with_thoughts_and_weights, turns, after)]
        return before, turns if isinstance(chosen, list) else turns[0]
    if not asks_itself and {_role(prompt[-1]), _role(turns[0])} <= {*ANSWER_ROLES}:
        detail = f"its turns end with another answer than chosen: {str(prompt[-1])[:80]}"
        raise Skip(Reason.BAD_MESSAGE, f"{detail} (preference data end with a question, or with the chosen answer)")
    return prompt, chosen


def _with_thoughts_and_weights(message: Message, same: Message) -> Message:
    """Return a turn with the thoughts and the weights of a turn that says the same, where it has none of its own."""
    more: Message = {}
    for keys in (THOUGHT_KEYS, (*sorted(TURN_WEIGHT_KEYS), PART_WEIGHTS)):
        if all(message.get(key) is None for key in keys):
            more |= {key: same[key] for key in keys if same.get(key) is not None}
    return {**message, **more}


def _begins_anew(turns: list[Any]) -> bool:
    return turns != [] and _role(turns[0]) in ("system", "user", "human")


def _role(message: Any) -> str:
    """Return the role of a turn; a question with its answer, in one object, is an answer."""
    if _is_pair(message):
        return "assistant"
    return str(message.get(key_of_synonyms(message, ROLE_KEYS), "")) if isinstance(message, dict) else ""


def _is_pair(message: Any) -> bool:
    """Tell whether a turn has no role, and keys of a question or of its answer."""
    is_unnamed = isinstance(message, dict) and message.get(key_of_synonyms(message, ROLE_KEYS)) is None
    return is_unnamed and len(without_question_and_answer_keys(message)) < len(message)


def _said(message: Message) -> tuple[Any, list[Message], Any]:
    """Return the text and the calls of a turn, whichever way they are written; and a pair itself."""
    text = message.get(key_of_synonyms(message, CONTENT_KEYS))
    if isinstance(text, list) and all(isinstance(part, dict) and part.get("type", "text") == "text" for part in text):
        text = "".join(str(part.get(key_of_synonyms(part, ("text", "value")))) for part in text)
    calls = [_called(call) for call, _ in find_tool_calls_in_turn({"content": None, **message, "role": _role(message)})]
    text = text.strip() if isinstance(text, str) else text
    return "" if text is None else text, calls, message if _is_pair(message) else None


def _called(call: Message) -> Message:
    """Return what a call says: its name and arguments, which may be JSON in a string, without its number and type."""
    keys = {key: item for holder in objects_with_call_keys(call) for key, item in holder.items()}
    arguments = keys.get(key_of_synonyms(keys, ARGUMENT_KEYS))
    parsed = parse_json_or_none(arguments) if isinstance(arguments, str) else None
    rest = {key: item for key, item in keys.items() if key not in ("id", "type", "index", "function", *ARGUMENT_KEYS)}
    return {**rest, "arguments": (arguments if parsed is None else parsed) or {}}

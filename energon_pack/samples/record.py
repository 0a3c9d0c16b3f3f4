"""Normalises the JSON of one source sample to messages and the names of its media.

    bytes ──raw_record.load_json──► JSON ──parse_record──► Record ──media_parts──► the parts that are its media

Pure functions. Measuring, writing and training all call them, so a sample means the same in each of the three.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energon_pack.samples.dialects.media_in_text import media_name_in, replace_checked_media_tags
from energon_pack.samples.dialects.pairs import question_and_answer_turns, turns_of_pair, turns_of_prompts_and_captions
from energon_pack.samples.dialects.rewrite import rewrite_record
from energon_pack.samples.dialects.table import find_only_fitting_reading, no_conversation_skip
from energon_pack.samples.documents import DOCUMENT, document_of_answer, is_document
from energon_pack.samples.frames import frame_lists_as_images, video_parts_from_frame_files
from energon_pack.samples.keys import similar_key_hint, unknown_keys, without_synonyms
from energon_pack.samples.media.kinds import KINDS, MEDIA_TYPES, PART_TYPES, VIDEO, media_kind_by_extension
from energon_pack.samples.media.medium import SETTING_KEYS
from energon_pack.samples.media_marks import empty_media_keys_by_kind
from energon_pack.samples.placeholders import flat_content, media_type_of_parts
from energon_pack.samples.preference import PREFERENCE_KEYS, with_rejected_as_chosen, without_rejected_answer
from energon_pack.samples.raw_record import without_nulls_in_tool_calls
from energon_pack.samples.sample import CONTENT_KEYS, MESSAGE_KEYS, REASONING_KEYS, ROLE_KEYS, Message
from energon_pack.samples.settings import Frames, ReadSettings, SampleType, ToolForm
from energon_pack.samples.skip import Reason, Skip, key_of_synonyms, value_of_synonyms
from energon_pack.samples.tool_calls import (
    TOOL_PART_TYPES,
    split_turn_by_content_parts,
    tool_schemas_of,
    with_calls_as_text,
    with_calls_from_content,
    with_tool_calls_as_list,
)
from energon_pack.samples.turns import CALL_ROLES, ROLES, join_tool_call_turns, refuse_wrong_part_weights
from energon_pack.samples.weights import PART_WEIGHTS

_MEDIA_LISTING_KEYS = ("name", "media_files")
_MEDIUM_NAME_KEYS = (*PART_TYPES, "path", "url", "source")  # of a content part
_PART_PREFIX = "content[]."
_KIND_KEYS = ("media", "media_type")
_NOT_KEPT_AS_FIELDS = (*_KIND_KEYS, "tools", "functions")


@dataclass
class Record:
    """One sample's normalised JSON, before its media are opened."""

    #: messages with role (system | developer | user | assistant | tool) and content (text or parts); or one `document`
    messages: list[Message]
    #: tool schemas for the chat template
    tools: list[Any] | None = None
    #: names of the media in the sample's order; None: all media parts, in the tar's order
    listed_media: list[str] | None = None
    #: key and name of media that a line's keys of kinds list, as `("videos", "a.mp4")`; `fields` lack these keys
    listed_by_kind: list[tuple[str, str]] = field(default_factory=list)
    #: one of `MEDIA_TYPES`, as the sample or its content parts declare
    declared: str | None = None
    #: the sample's other fields, unchanged
    fields: dict[str, Any] = field(default_factory=dict)
    #: names of pictures whose places were removed, because they are missing
    removed: list[str] = field(default_factory=list)
    #: unknown keys, as `keys.unknown_keys` names them, and the values of each
    unknown: Mapping[str, list[Any]] = field(default_factory=dict)
    #: by kind the key that lists its media and is empty
    empty_media: Mapping[str, str] = field(default_factory=dict)
    #: whether it is a caption, which says something of a medium
    is_caption: bool = False
    #: whether it is a question that stands in a field of its own
    is_question: bool = False
    #: whether the settings say that it is a raw text
    is_declared_document: bool = False
    #: the question of a raw text that is a caption if it has one medium, and no place for it; None: it is none
    prompt_of_text: str | None = None
    #: whether the settings leave its tools out
    leaves_out_tools: bool = False
    #: whether nulls of a table were taken out of it
    drops_nulls: bool = False
    #: the messages of the rejected side of a pair, of which `messages` are the chosen side; empty: it is no pair
    rejected: list[Message] = field(default_factory=list)


def parse_record(sample_json: Any, settings: ReadSettings) -> Record:
    """Normalise one sample's JSON; a list at the root is a list of messages.

    `dialects.table.possible_readings` says where it looks for these, in which order.
    """
    return parse_rewritten_record(rewrite_record(sample_json, settings), settings)


def parse_rewritten_record(value: Any, settings: ReadSettings, listed: Sequence[str] = ()) -> Record:
    """Normalise JSON that `rewrite_record` has rewritten; `listed`: names of media that the sample lists beside it."""
    if isinstance(value, list):
        value = {settings.messages_key or "messages": value}
    if not isinstance(value, dict):
        raise Skip(Reason.NOT_AN_OBJECT, f"the JSON is a {type(value).__name__}, not an object")
    if settings.takes_rejected:
        value = with_rejected_as_chosen(value, _conversation_fields(settings))
    if not PREFERENCE_KEYS.isdisjoint(value):
        value = without_rejected_answer(value, _conversation_fields(settings), settings.take)
    without = without_nulls_in_tool_calls(value, settings.nulls)
    value = value if without is None else without
    messages, used, other_texts = _find_messages(value, settings)
    unknown = {**unknown_keys(value, [*used]), **other_texts}
    spelled = media_type_of_parts([value[key] for key in used])
    if not messages:
        raise Skip(Reason.NO_MESSAGES, "the conversation is empty")
    system_key = "system" if value.get("system") else "system_prompt"  # ms-swift's
    system, first = value.get(system_key), messages[0]
    if system and not isinstance(system, (str, list)):
        raise Skip(Reason.BAD_MESSAGE, f"{system_key} is no text: {str(system)[:80]}")
    if system and first["role"] == "system" and first["content"] != system:
        detail = f"{system_key} is {str(system)[:60]!r}, and the first turn is another system turn"
        raise Skip(Reason.BAD_MESSAGE, detail)
    if system and first["role"] not in ("system", DOCUMENT):
        messages.insert(0, {"role": "system", "content": _content(system, 0) if isinstance(system, list) else system})
        used.add(system_key)
    is_text = used == {"text"} and settings.sample_type is SampleType.auto and not system
    if settings.sample_type in (SampleType.auto, SampleType.document):
        messages = document_of_answer(messages) or messages
    roles = [message["role"] for message in messages]
    if "assistant" not in roles and DOCUMENT not in roles:
        raise Skip(Reason.NO_ASSISTANT_TURN, f"roles are {roles[:8]}")
    if DOCUMENT in roles and len(roles) > 1:
        raise Skip(Reason.BAD_MESSAGE, f"message {roles.index(DOCUMENT)} has the role {DOCUMENT!r}, and is not alone")
    if settings.sample_type is SampleType.document and not is_document(messages):
        raise Skip(Reason.NO_MESSAGES, f"source.sample_type=document, and roles are {roles[:8]}")
    tools = tool_schemas_of(value.get("tools") or value.get("functions"))
    is_as_text = settings.tools is ToolForm.text
    has_calls = is_as_text and any(message.get("tool_calls") for message in messages)
    if is_as_text:
        messages = [with_calls_as_text(message, index) for index, message in enumerate(messages)]
    if settings.frames is Frames.images:
        messages = frame_lists_as_images(messages)
    messages = replace_checked_media_tags(messages, value, listed)
    if isinstance(names := value.get("patch_positions"), list):
        value = {**value, "patch_positions": list(_flat_items(names))}
    listings = [key for key in _MEDIA_LISTING_KEYS if key in value and _is_listing(value[key])]
    used.update(listings, _NOT_KEPT_AS_FIELDS)
    return Record(
        messages=messages,
        tools=None if is_as_text else tools,
        listed_media=_listed_media(value, listings, messages),
        declared=spelled
        or value_of_synonyms({key: _declared_media_type(value.get(key)) for key in _KIND_KEYS}, _KIND_KEYS),
        fields={key: item for key, item in value.items() if key not in used},
        unknown=unknown,
        empty_media=empty_media_keys_by_kind(value, settings),
        is_caption="caption" in used,
        is_question=not used.isdisjoint(("question", "questions")),
        is_declared_document=settings.sample_type is SampleType.document,
        prompt_of_text=settings.caption_prompt if is_text else None,
        leaves_out_tools=is_as_text and (tools is not None or has_calls),
        drops_nulls=without is not None,
    )


def caption_record(caption: str, settings: ReadSettings) -> Record:
    """Make a conversation of a caption: `settings.caption_prompt` asks, the caption answers."""
    return Record(question_and_answer_turns(settings.caption_prompt, caption.strip()))


def with_use_audio_setting(record: Record, settings: ReadSettings) -> Record:
    """Return a record with the run's `use_audio_in_video` (whether the sound of videos is heard), unless it has one."""
    if settings.use_audio_in_video is None or record.fields.get("use_audio_in_video") is not None:
        return record
    return replace(record, fields={**record.fields, "use_audio_in_video": settings.use_audio_in_video})


def _conversation_fields(settings: ReadSettings) -> tuple[str, ...]:
    """Return the fields that may hold the turns."""
    return (settings.messages_key,) if settings.messages_key else MESSAGE_KEYS


def _find_messages(value: Mapping[str, Any], settings: ReadSettings) -> tuple[list[Message], set[str], dict[str, Any]]:
    """Return the messages of a sample, the keys they came from, and other texts of a conversation that it has."""
    if read := find_only_fitting_reading(value, settings):
        written, other_texts = read
        turns = written.make_turns()
        messages = turns if written.name in ("document", "text") else _normalized_messages(turns)
        return messages, {*(written.keys if written.consumed_keys is None else written.consumed_keys)}, other_texts
    if settings.messages_key:
        detail = f"source.messages_key={settings.messages_key} names no field of it; there are {sorted(value)[:8]}"
        raise Skip(Reason.NO_MESSAGES, detail)
    is_chat = settings.sample_type in (SampleType.auto, SampleType.chat)
    fields = " or ".join(MESSAGE_KEYS) if is_chat else settings.sample_type.value
    raise no_conversation_skip(value, fields)


def _normalized_messages(value: Any) -> list[Message]:
    if isinstance(value, dict) and {"prompts", "captions"} <= value.keys():
        return turns_of_prompts_and_captions(value)
    if not isinstance(value, list):
        meant = f": a text with turns is JSON, and this begins {value[:40]!r}" if isinstance(value, str) else ""
        raise Skip(Reason.BAD_MESSAGE, f"messages are a {type(value).__name__}, not a list{meant}")
    messages: list[Message] = []
    for index, message in enumerate(value):
        for each in _normalized_turns(message, index):
            if PART_WEIGHTS in each:
                refuse_wrong_part_weights(each, index)
            before = messages[-1] if messages else None
            spelled = message.get(key_of_synonyms(message, ROLE_KEYS))
            if "tool_calls" in each and (both := join_tool_call_turns(before, each, spelled)):
                messages[-1] = both
            else:
                messages.append(each)
    return messages


def _normalized_turns(message: Any, index: int) -> list[Message]:
    """Normalise a message to turns with role and content; other keys (loss …) stay; tool results become turns."""
    if not isinstance(message, dict):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} is a {type(message).__name__}, not an object")
    role_key, content_key = (key_of_synonyms(message, keys) for keys in (ROLE_KEYS, CONTENT_KEYS))
    named, content = message.get(role_key), message.get(content_key)
    role = ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        if named is None and (pair := turns_of_pair(message, index)):
            return [pair[0], *_normalized_turns(pair[1], index)]
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has the role {named!r}: {_role_advice(named)}")
    normal = {"role": role, "content": content}
    if len(message) > 2 or content_key not in message:
        if role_key == "role" and ROLES.get(str(message.get("from")), role) != role:
            raise Skip(Reason.BAD_MESSAGE, f"message {index} has the role {named!r} and is from {message['from']!r}")
        message = without_synonyms(message, 1)
        normal |= {k: v for k, v in message.items() if k not in (role_key, content_key, *normal)}
        if role == "assistant":
            normal = with_tool_calls_as_list(normal, index)
        elif strange := next((key for key in ("tool_calls", "function_call") if normal.get(key)), None):
            raise Skip(Reason.BAD_MESSAGE, f"message {index} of the role {named!r} has {strange}")
        for key in REASONING_KEYS:
            if not isinstance(normal.get(key) or "", str):
                raise Skip(Reason.BAD_MESSAGE, f"message {index} has a {key} that is no text: {str(normal[key])[:80]}")
    if named in CALL_ROLES:
        return [with_calls_from_content(normal, index)]
    if isinstance(content, list):
        if any(isinstance(part, dict) and part.get("type") in TOOL_PART_TYPES for part in content):
            return [_with_content(turn, index) for turn in split_turn_by_content_parts(normal, index)]
        return [_with_content(normal, index)]
    is_blank = role == "assistant" and content_key in message  # an empty answer, as `samples.turns` says
    if content is None and (is_blank or normal.get("tool_calls") or any(map(normal.get, REASONING_KEYS))):
        normal["content"] = ""
    elif not isinstance(content, str):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has the content {content!r}")
    return [normal]


def _role_advice(named: Any) -> str:
    """Return advice for a message: the known role that is spelled most like this one, and all known roles."""
    known = [role for role in ROLES if role not in (DOCUMENT, *CALL_ROLES)]
    near = difflib.get_close_matches(str(named).lower(), known, 1)
    which = f"did you mean {near[0]}? " if near else ""
    return f"{which}known are {', '.join(known)}; source.roles.user, .assistant, .system and .tool take others"


def _with_content(turn: Message, index: int) -> Message:
    content = turn["content"]
    if isinstance(content, list):
        return {**turn, "content": _content(content, index)}
    if not isinstance(content, str):
        raise Skip(Reason.BAD_MESSAGE, f"message {index} has the content {str(content)[:80]}")
    return turn


def _content(items: list[Any], index: int) -> str | list[Message]:
    """Normalise content parts, texts and media; return a string if `placeholders.flat_content` can."""
    parts: list[Message] = []
    for item in items:
        kind = item.get("type", "text" if "text" in item else None) if isinstance(item, dict) else None
        kind = PART_TYPES.get(str(kind), str(kind))
        if kind == "text" and isinstance(text := item.get(key_of_synonyms(item, ("text", "value"))), str):
            without_synonyms(item, 2)
            parts.append({"type": "text", "text": text})
        elif kind in KINDS:
            named = value_of_synonyms(
                {key: media_name_in(item.get(key)) for key in _MEDIUM_NAME_KEYS},
                (item["type"], kind, *_MEDIUM_NAME_KEYS),
                _PART_PREFIX,
            )
            settings = {key: item[key] for key in SETTING_KEYS if item.get(key) is not None}
            if kind == VIDEO.kind and isinstance(named, list):
                parts += video_parts_from_frame_files(named, settings)
                continue
            part = {"type": kind, **({"name": named} if isinstance(named, str) else {})}
            parts.append({**part, "settings": settings} if settings else part)
        else:
            meant = similar_key_hint(f"content[].{kind}")
            raise Skip(Reason.BAD_MESSAGE, f"message {index} has a content part {str(item)[:80]}{meant}")
    return flat_content(parts)


def _listed_media(value: Mapping[str, Any], listings: Sequence[str], messages: list[Message]) -> list[str] | None:
    value_of_synonyms(value, listings)
    for key in listings:
        names = list(_flat_items(value[key]))
        if not all(isinstance(name, str) for name in names):
            raise Skip(Reason.MISSING_MEDIA, f"{key} lists something that is not a name: {value[key]!r}")
        return names
    items = [p for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] != "text"]
    names = [item["name"] for item in items if "name" in item]
    if names and len(names) < len(items):
        raise Skip(Reason.MISSING_MEDIA, f"{len(names)} of {len(items)} media in the content are named")
    return names or None


def _is_listing(value: Any) -> bool:
    """Tell whether `name` lists media: any list does, a string only if it looks like a file (unlike "alpaca")."""
    return (
        bool(value)
        if isinstance(value, list)
        else isinstance(value, str) and media_kind_by_extension(value) is not None
    )


def _declared_media_type(value: Any) -> str | None:
    kind = value.lower() if isinstance(value, str) else None
    return kind if kind in MEDIA_TYPES else None


def _flat_items(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += reversed(item)
        else:
            yield item

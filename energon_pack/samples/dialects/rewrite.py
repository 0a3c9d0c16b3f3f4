"""Rewrites a record in the terms of this package, from the cells of a table on. Pure.

A cell of a CSV holds only text, so a row of a table gets its lists first:

    {"question": "q", "answers": "['cat', 'kitty']"} ──with_lists_of_cells──► {"question": "q", "answers": ["cat", …]}

Then any record gets the fields that `parse_record` knows, by `rewrite_record`. It also parses lists under names that
hold nothing else (`messages`, `images` …), which are texts in JSONL, too.
"""

import ast
import json
import re
import warnings
from collections.abc import Mapping
from io import StringIO
from itertools import chain, pairwise
from tokenize import STRING, generate_tokens
from typing import Any

from energon_pack.samples.dialects.media_in_text import INTERLEAVED_FIELDS, with_document_as_messages
from energon_pack.samples.dialects.pairs import question_and_answer_turns, refuse_answer_without_options
from energon_pack.samples.dialects.table import TURN_FIELDS, possible_readings
from energon_pack.samples.keys import without_synonyms
from energon_pack.samples.media.kinds import MEDIA_KEYS, media_kind_by_extension
from energon_pack.samples.raw_record import RECORD_WEIGHT_KEYS, parse_json_or_skip
from energon_pack.samples.sample import CONTENT_KEYS, MESSAGE_KEYS, ROLE_KEYS
from energon_pack.samples.settings import ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip, value_of_synonyms
from energon_pack.samples.turns import ROLES

_RENAMED_FIELDS = ("messages", "prompt", "response", "system", "tools", "images", "videos", "audios", "id")
_RENAMED_ROLES = ("user", "assistant", "system", "tool")
_SHAREGPT_KEYS = {"role": "from", "content": "value"}
#: fields of preference data that hold one turn or several
_ANSWER_FIELDS = ("chosen", "rejected")
_MAX_PYTHON_CHARS = 1 << 20  # of a list as Python writes it, whose syntax tree takes much memory
#: how numpy prints a list of texts: Python reads them as one
_TEXTS_WITHOUT_COMMA = re.compile(r"""['"]\s+['"]""")
#: what `datasets.ImageFolder` calls a column of names of files
FILE_NAME_KEY = re.compile(rf"({'|'.join(MEDIA_KEYS)})_file_names?")
#: marks of turns in a text that a chat was written out to
_WRITTEN_TURNS = re.compile(
    r"<\||\[/?INST\]|<(?:start|end)_of_turn>"
    r"|(?:^|\s)(?:#+ *)?(?:user|human|assistant|question|answer|instruction|response) ?:",
    re.IGNORECASE,
)
#: fields whose list may be written as JSON text, as a cell of a table has it
_LIST_FIELDS = frozenset(
    (*MESSAGE_KEYS, *TURN_FIELDS, *MEDIA_KEYS, *chain(*INTERLEAVED_FIELDS.items()), "rejected_messages")
)


def rewrite_record(record: Any, settings: ReadSettings) -> Any:
    """Rewrite a sample's JSON with the field names of this package.

    Lists that are JSON text are parsed, fields and roles that the settings name are renamed, of keys with the same
    meaning one is kept, and texts that take turns with pictures become one message.
    """
    if isinstance(record, dict):
        record = _with_parsed_lists(record, settings)
    if settings.has_renames:
        record = _rename_fields_and_roles(record, settings)
    record = with_document_as_messages(without_synonyms(record), settings) if isinstance(record, dict) else record
    return _from_image_folder(record) if isinstance(record, dict) and not any(map(record.get, MEDIA_KEYS)) else record


def _with_parsed_lists(value: dict[str, Any], settings: ReadSettings) -> dict[str, Any]:
    columns = settings.columns
    own = None if settings.sample_type is SampleType.document else settings.messages_key  # a document may be any text
    named = (own, columns.messages, columns.images, columns.videos, columns.audios)
    texts = {
        key: text for key, text in value.items() if isinstance(text, str) and (key in _LIST_FIELDS or key in named)
    }
    lists = {key: _parsed_list(text) for key, text in texts.items() if text.lstrip()[:1] == "["}
    return value | {key: parsed for key, parsed in lists.items() if parsed is not None} if lists else value


def _parsed_list(text: str) -> list[Any] | None:
    """Parse a text that is a list, as JSON or as Python writes it (pandas, in a CSV); None: it is another text."""
    parsed = parse_json_or_python(text)
    return parsed if isinstance(parsed, list) else None


def parse_json_or_python(text: str) -> Any:
    """Parse a text that is JSON, or a value as Python writes it; None: it is another text."""
    try:
        return parse_json_or_skip(text, RECORD_WEIGHT_KEYS)
    except Skip:
        return _parsed_python(text)


def _parsed_python(text: str) -> Any:
    if len(text) > _MAX_PYTHON_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes
            value = parse_json_or_skip(json.dumps(ast.literal_eval(text)), RECORD_WEIGHT_KEYS)
    except (Skip, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return None if _TEXTS_WITHOUT_COMMA.search(text) and _joins_texts(text) else value


def _joins_texts(text: str) -> bool:
    """Tell whether two texts of a Python value meet without a comma, so that Python reads them as one."""
    kinds = [token.type for token in generate_tokens(StringIO(text).readline) if token.string.strip()]
    return (STRING, STRING) in pairwise(kinds)


def with_keys_renamed(record: Mapping[str, Any], old_by_new: Mapping[str, str]) -> dict[str, Any]:
    """Return a record or a turn with keys renamed to ours, all read from the untouched one: names may change places.

    A key that has one of our names and is not renamed itself gives way. `old_by_new`: our name → that in the record;
    one that the record lacks changes nothing.
    """
    taken = {name for ours, name in old_by_new.items() if ours != name}
    rest = {key: item for key, item in record.items() if key not in taken or old_by_new.get(key) == key}
    return rest | {ours: record[name] for ours, name in old_by_new.items() if name in record}


def _from_image_folder(value: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of ImageFolder's metadata, as `{file_name, text}` or `{video_file_name, text}`."""
    names = {match[1]: match[0] for match in map(FILE_NAME_KEY.fullmatch, value) if match}
    if media_kind_by_extension(str(value.get("file_name"))):
        names["image"] = "file_name"
    if not names:
        return value
    caption = value_of_synonyms(value, ("text", "caption"))
    value = with_keys_renamed(value, names | {"caption": "text"})
    return {**value, "caption": caption} if "caption" in value else value


def is_rendered_chat(text: str) -> bool:
    """Tell whether a raw text is a chat that was written out, or JSON."""
    is_json = text.lstrip()[:1] in ("[", "{") and parse_json_or_python(text) is not None
    return is_json or _WRITTEN_TURNS.search(text) is not None


def _rename_fields_and_roles(value: Any, settings: ReadSettings) -> Any:
    """Rename the fields and roles that `source.columns` and `source.roles` name to those of this package."""
    if isinstance(value, list):
        value = {settings.messages_key or "messages": value}
    if not isinstance(value, dict):
        return value
    columns = {ours: name for ours in _RENAMED_FIELDS if (name := getattr(settings.columns, ours)) is not None}
    for ours in ("messages", "prompt", "response"):
        if ours in columns and columns[ours] not in value:
            detail = f"source.columns.{ours}={columns[ours]} names no field of it; there are {sorted(value)[:8]}"
            raise Skip(Reason.NO_MESSAGES, detail)
    value = with_keys_renamed(value, columns)
    if {"prompt", "response"} <= columns.keys():
        asked, answered = value.pop("prompt"), value.pop("response")
        if not asked or not (answered or answered == ""):
            ours = "response" if asked else "prompt"
            raise Skip(Reason.BAD_MESSAGE, f"source.columns.{ours}={columns[ours]}: the field is empty")
        refuse_answer_without_options(value, asked, answered)
        return {**value, "messages": question_and_answer_turns(asked, answered)}
    keys = {"role": settings.columns.role, "content": settings.columns.content}
    roles = {name: ours for ours in _RENAMED_ROLES if (name := getattr(settings.roles, ours)) is not None}
    return with_renamed_turn_keys(value, settings, keys, roles)


def with_renamed_turn_keys(
    record: dict[str, Any], settings: ReadSettings, keys: Mapping[str, str | None], roles: Mapping[str, str]
) -> dict[str, Any]:
    """Return a record whose turns, and answers of preference data, have our names of keys and roles.

    Args:
        keys: for `role` and `content` the key in a turn; None: ours, or else ShareGPT's.
        roles: the name of a role in the turns → ours.
    """

    def turn(message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        usual = {ours: ours if ours in message else theirs for ours, theirs in _SHAREGPT_KEYS.items()}
        message = with_keys_renamed(message, {ours: name or usual[ours] for ours, name in keys.items()})
        role = message.get("role")
        return {**message, "role": roles[role]} if isinstance(role, str) and role in roles else message

    fields = (settings.messages_key,) if settings.messages_key else (*MESSAGE_KEYS, *TURN_FIELDS)
    turns = {
        key: [*map(turn, item)] if isinstance(item, list) else turn(item)
        for key, item in record.items()
        if (key in fields and isinstance(item, list)) or (key in _ANSWER_FIELDS and isinstance(item, list | dict))
    }
    return record | turns


#: fields of texts and their answers, of which one may be turns if the other is
_PROMPTED_FIELDS = ("prompt", "completion")
#: fields of several texts
_TEXTS_FIELDS = ("questions", "answers", "prompts", "captions", "caption")
_QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
#: how numpy prints a list of texts, some of which may be missing or left out
_NUMPY_TEXTS = re.compile(rf"\s*\[\s*(?:None\s+)*{_QUOTED}(?:\s+(?:{_QUOTED}|None|\.\.\.))+\s*\]\s*", re.DOTALL)
#: how it prints a list of turns, a key with its text, and what Python can't read in it
_NUMPY_TURNS = re.compile(r"\s*\[\{'(role|from|content|value)': ")
_NUMPY_ITEM = re.compile(r"'(\w+)': '([^']*)'")
_NO_PYTHON = re.compile(r"\}\s+\{|array\(")


def with_cells_parsed_as_lists(row: Any, settings: ReadSettings) -> Any:
    """Return a row of a table with lists in place of its texts that are lists: a cell of a CSV holds only text.

    These are lists of texts, a history, and turns where both sides are turns: a prompt and its completion, or the two
    answers of preference data. A single answer that is another list stays a text, and so does what is not read.

    Raises:
        Skip: `bad_message`: numpy wrote one of these lists, without commas.
    """
    fields = (*_TEXTS_FIELDS, "history", *_PROMPTED_FIELDS, *_ANSWER_FIELDS)
    texts = {key: row[key] for key in fields if isinstance(row.get(key), str)} if isinstance(row, dict) else {}
    cells = {key: parse_json_or_python(text) for key, text in texts.items() if text.lstrip()[:1] in ("[", "{")}
    if not cells:
        return row
    renamed = _rename_fields_and_roles(row, settings) if settings.has_renames else row
    reading = next(possible_readings(renamed, settings), None)
    read = [key for key in cells if reading is None or key in reading.keys]
    values = {key: texts[key] if cell is None else cell for key, cell in cells.items()}
    turns = {key for key in values if _are_turns(values[key], settings)}
    lists = [key for key in read if key in _TEXTS_FIELDS and _are_texts(values[key])]
    lists += [key for key in read if key == "history" and _is_list_of(cells[key], list)]
    if turns.issuperset(_PROMPTED_FIELDS) or all(row.get(key) is not None for key in _ANSWER_FIELDS):
        lists += [key for key in read if key in _PROMPTED_FIELDS and key in turns]
    lists += _ANSWER_FIELDS if turns.issuperset(_ANSWER_FIELDS) else ()
    if unread := next((key for key in lists if cells[key] is None), None):
        advice = "json.dumps(list(…)) writes it with commas"
        raise Skip(Reason.BAD_MESSAGE, f"{unread} is a list as numpy prints it: {texts[unread][:80]} ({advice})")
    asked = {key: [cells[key]] for key in lists if key in _PROMPTED_FIELDS and isinstance(cells[key], dict)}
    return row | {key: cells[key] for key in lists} | asked


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _are_texts(value: Any) -> bool:
    """Tell whether a value is a list of texts, or of objects with an `answer`; a text: if numpy wrote it."""
    if isinstance(value, str):
        return _NUMPY_TEXTS.fullmatch(value) is not None
    return _is_list_of(value, str) or (_is_list_of(value, dict) and all("answer" in item for item in value))


def _are_turns(value: Any, settings: ReadSettings) -> bool:
    """Tell whether a value is a turn or turns: objects with a known role, and a text, parts or calls.

    Of a value that is a text: whether numpy wrote turns.
    """
    role_keys = {*ROLE_KEYS, settings.columns.role}
    content_keys = {*CONTENT_KEYS, "tool_calls", settings.columns.content}
    roles = {*ROLES, *vars(settings.roles).values()} - {None}
    if isinstance(value, str):
        is_whole = _NUMPY_TURNS.match(value) and value.rstrip().endswith("}]") and _NO_PYTHON.search(value)
        return bool(is_whole) and any(key in role_keys and text in roles for key, text in _NUMPY_ITEM.findall(value))
    turns = value if isinstance(value, list) else [value]
    return turns != [] and all(
        isinstance(turn, dict)
        and any(isinstance(turn.get(key), str) and turn[key] in roles for key in role_keys)
        and any(isinstance(turn[key], str | None) or _is_list_of(turn[key], dict) for key in content_keys & turn.keys())
        for turn in turns
    )

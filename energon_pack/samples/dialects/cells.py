"""Reads the cells of a table that hold a list as a text, as each list in a CSV is one. Pure.

    {"question": "q", "answers": "['cat', 'kitty']"} ──with_lists_of_cells──► {"question": "q", "answers": ["cat", …]}

Lists under names that hold nothing else (`messages`, `images` …) are texts in JSONL, too: `rewrite_record` reads them.
"""

import re
from typing import Any

from energon_pack.samples.dialects.rewrite import ANSWER_FIELDS, parsed_text, rename_fields_and_roles
from energon_pack.samples.dialects.table import possible_readings
from energon_pack.samples.roles import ROLES
from energon_pack.samples.sample import CONTENT_KEYS, ROLE_KEYS
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip

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


def with_lists_of_cells(row: Any, settings: ReadSettings) -> Any:
    """Return a row of a table with lists in place of its texts that are lists: a cell of a CSV holds only text.

    These are lists of texts, a history, and turns where both sides are turns: a prompt and its completion, or the two
    answers of preference data. A single answer that is another list stays a text, and so does what is not read.

    Raises:
        Skip: `bad_message`: numpy wrote one of these lists, without commas.
    """
    fields = (*_TEXTS_FIELDS, "history", *_PROMPTED_FIELDS, *ANSWER_FIELDS)
    texts = {key: row[key] for key in fields if isinstance(row.get(key), str)} if isinstance(row, dict) else {}
    cells = {key: parsed_text(text) for key, text in texts.items() if text.lstrip()[:1] in ("[", "{")}
    if not cells:
        return row
    renamed = rename_fields_and_roles(row, settings) if settings.has_renames else row
    reading = next(possible_readings(renamed, settings), None)
    read = [key for key in cells if reading is None or key in reading.keys]
    values = {key: texts[key] if cell is None else cell for key, cell in cells.items()}
    turns = {key for key in values if _are_turns(values[key], settings)}
    lists = [key for key in read if key in _TEXTS_FIELDS and _are_texts(values[key])]
    lists += [key for key in read if key == "history" and _is_list_of(cells[key], list)]
    if turns.issuperset(_PROMPTED_FIELDS) or all(row.get(key) is not None for key in ANSWER_FIELDS):
        lists += [key for key in read if key in _PROMPTED_FIELDS and key in turns]
    lists += ANSWER_FIELDS if turns.issuperset(ANSWER_FIELDS) else ()
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

"""Takes out of a record the nulls that a table put in: a struct has each key of any row, and `to_json` writes them all.

    {"name": "count_to", "arguments": {"harbour": null, "n": 3}}  ──without_null_fields──►  {… "arguments": {"n": 3}}

An author may write null as an argument or a default. `has_nulls_of_table` tells these apart by the record alone, so
that a sample means the same wherever it is read. Pure.
"""

from collections.abc import Mapping
from typing import Any

from energon_pack.samples.sample import ARGUMENT_KEYS
from energon_pack.samples.settings import Nulls
from energon_pack.samples.skip import Reason, Skip

_TOOL_KEYS = ("tools", "functions")
#: keys of turns and parts that hold calls
_CALL_KEYS = ("tool_calls", "function_call", "tool_call", *ARGUMENT_KEYS)
#: keys whose values an author may mean to hold null: arguments of a call, and values in a schema
_KEYS_OF_MEANT_NULLS = frozenset((*ARGUMENT_KEYS, "default", "const", "example", "examples"))


def without_null_fields(value: Any) -> Any:
    """Return a JSON value in which no object has a key whose value is null, at any depth; nulls in lists stay."""
    if isinstance(value, Mapping):
        return {key: without_null_fields(item) for key, item in value.items() if item is not None}
    return list(map(without_null_fields, value)) if isinstance(value, list) else value


def without_nulls_in_tool_calls(record: dict[str, Any], setting: Nulls | None) -> dict[str, Any] | None:
    """Return a record without the nulls in its tools and tool calls; None: the record stays unchanged.

    `setting`: whether to drop or keep nulls; None: drop them if a table put them in.
    """
    lists = {key: value for key, value in record.items() if isinstance(value, list) and _has_null_value(value)}
    if not lists or setting is Nulls.keep:
        return None
    try:
        if setting is None and not has_nulls_of_table(record):
            return None
        changed = {
            key: without_null_fields(value) if key in _TOOL_KEYS else _without_nulls_in_calls(value)
            for key, value in lists.items()
        }
        return None if changed == lists else {**record, **changed}
    except RecursionError:
        raise Skip(Reason.INVALID_JSON, "nested too deeply") from None


def has_nulls_of_table(record: Mapping[str, Any]) -> bool:
    """Say whether the nulls of a record come from a table, which writes one for each key that an object lacks.

    They do if all objects in the same place of the record's lists have the same keys, and a null stands where no author
    writes one.
    """
    lists = {key: value for key, value in record.items() if isinstance(value, list)}
    unusual = (
        _has_unusual_null(value, _KEYS_OF_MEANT_NULLS - {"parameters"} if key in _TOOL_KEYS else _KEYS_OF_MEANT_NULLS)
        for key, value in lists.items()
    )
    return any(unusual) and _have_equal_keys(lists, "", {})


def _without_nulls_in_calls(items: list[Any]) -> list[Any]:
    """Do `without_null_fields` inside the calls of turns and parts; a key of these that is null itself is no text."""
    return [{**item, **_calls_without_nulls(item)} if isinstance(item, dict) else item for item in items]


def _calls_without_nulls(item: dict[str, Any]) -> dict[str, Any]:
    calls = {key: without_null_fields(item[key]) for key in _CALL_KEYS if item.get(key)}
    parts = item.get("content")
    return {**calls, "content": _without_nulls_in_calls(parts)} if isinstance(parts, list) else calls


def _has_null_value(value: list[Any]) -> bool:
    """Say whether a key of an object is null, at any depth."""
    waiting: list[Any] = [value]
    for one in waiting:
        if isinstance(one, dict):
            one = one.values()
            if None in one:
                return True
        waiting += [item for item in one if isinstance(item, (dict, list))]
    return False


def _has_unusual_null(value: Any, meant: frozenset[str]) -> bool:
    """Say whether a null stands where no author writes one; a turn that only calls may have null as its content.

    `meant`: the keys whose values may hold nulls that an author means.
    """
    if isinstance(value, dict):
        items = [(key, item) for key, item in value.items() if key not in meant]
        return any(key != "content" if item is None else _has_unusual_null(item, meant) for key, item in items)
    return isinstance(value, list) and any(_has_unusual_null(item, meant) for item in value)


def _have_equal_keys(value: Any, place: str, keys: dict[str, tuple[str, ...]]) -> bool:
    """Say whether objects in the same place have the same keys in the same order."""
    if isinstance(value, list):
        return all(_have_equal_keys(item, f"{place}/*", keys) for item in value)
    if not isinstance(value, dict):
        return True
    return keys.setdefault(place, tuple(value)) == tuple(value) and all(
        _have_equal_keys(item, f"{place}/{key}", keys) for key, item in value.items()
    )

"""Prepare a record: parse its JSON, take out the nulls that a table put in, and run the user's own step on it.

A table writes a null for each key that an object lacks:

    {"name": "count_to", "arguments": {"harbour": null, "n": 3}}  ──without_null_fields──►  {… "arguments": {"n": 3}}

An author may write null as an argument or a default. `has_nulls_added_by_table` tells these apart by the record alone,
so that a sample means the same wherever it is read.

`source.map` names the user's step, a function or a class:

    JSON object ──map──► JSON object, or None: the sample is left out

A class is made once in each process, without arguments, and its method `record` is the step. Everything that keeps a
result of the step names it with a hash of its file (`tidy:shorten#3f2a91c0d4e5`). So lengths, packs and reports of two
versions of the file never mix, and every process runs the same code.
"""

import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.run.load_by_name import load_named
from energon_pack.samples.sample import ARGUMENT_KEYS
from energon_pack.samples.settings import NullPolicy, ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.weights import TURN_WEIGHT_KEYS

_MAX_UNCHECKED_BRACKETS = 200
_SPARE_LEVELS = 200  # levels of nesting kept free for the pack's own JSON, and for recursive readers


def parse_sample_json(json_bytes: bytes) -> Any:
    """Parse one sample's JSON (UTF-8, or UTF-16/32 by its first bytes).

    NaN and infinite numbers become null: Python writes them, but a strict reader would refuse the sample's whole pack.
    Where a weight stands, such a number becomes its name, a text, which is refused as every other text is.
    """
    try:
        return parse_json_or_skip(json_bytes.decode(json.detect_encoding(json_bytes)), RECORD_WEIGHT_KEYS)
    except UnicodeDecodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None


def parse_json_or_skip(text: str, weight_keys: Sequence[frozenset[str]] = ()) -> Any:
    """Parse JSON from a text, as `parse_sample_json` does; raises Skip: `invalid_json`.

    Args:
        weight_keys: the keys that hold weights: of an object, of those in its lists, and of those in lists of these.
    """
    try:
        try:
            value = _DECODER.decode(text)
        except _NotFinite:
            value = json.loads(text)
            value = _with_finite_numbers(value, weight_keys[1:] if isinstance(value, list) else weight_keys)
        if "\\u" in text or text.count("[") + text.count("{") > _MAX_UNCHECKED_BRACKETS:
            # Only an escape can bring in half a character; a value nested to the limit would not fit into a pack.
            json.dumps(reduce(lambda inner, _: [inner], range(_SPARE_LEVELS), value), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Skip(Reason.INVALID_JSON, f"text is not valid Unicode: {error}") from None
    except RecursionError:
        raise Skip(Reason.INVALID_JSON, "nested too deeply") from None
    except ValueError as error:
        raise Skip(Reason.INVALID_JSON, str(error)) from None
    return value


class _NotFinite(Exception):
    """Raised for NaN or an infinite number."""


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFinite
    return value


def _with_finite_numbers(value: Any, weight_keys: Sequence[frozenset[str]]) -> Any:
    """Return a JSON value without NaN and infinite numbers: their names stand for weights, null for all others."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_with_finite_numbers(item, weight_keys) for item in value]
    if not isinstance(value, dict):
        return value
    here, below = (weight_keys[0], weight_keys[1:]) if weight_keys else (frozenset[str](), ())
    new = {key: _with_finite_numbers(item, below if isinstance(item, list) else ()) for key, item in value.items()}
    weights = {key: value[key] for key in here.intersection(value) if isinstance(value[key], float)}
    return new | {key: json.dumps(weight) for key, weight in weights.items() if not math.isfinite(weight)}


#: of a sample, of its turns, and of their parts and calls
RECORD_WEIGHT_KEYS = (frozenset(("weight",)), TURN_WEIGHT_KEYS, TURN_WEIGHT_KEYS)
_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_finite_float)


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


def without_nulls_in_tool_calls(record: dict[str, Any], nulls: NullPolicy | None) -> dict[str, Any] | None:
    """Return a record without the nulls in its tools and tool calls; None: the record stays unchanged.

    `nulls`: whether to drop or keep nulls; None: drop them if a table put them in.
    """
    lists = {key: value for key, value in record.items() if isinstance(value, list) and _has_null_value(value)}
    if not lists or nulls is NullPolicy.keep:
        return None
    try:
        if nulls is None and not has_nulls_added_by_table(record):
            return None
        changed = {
            key: without_null_fields(value) if key in _TOOL_KEYS else _without_nulls_in_calls(value)
            for key, value in lists.items()
        }
        return None if changed == lists else {**record, **changed}
    except RecursionError:
        raise Skip(Reason.INVALID_JSON, "nested too deeply") from None


def has_nulls_added_by_table(record: Mapping[str, Any]) -> bool:
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


_SETTING_NAME, _HASH_MARK = "source.map", "#"
_RecordMap = Callable[[dict[str, Any]], Any]


def function_name_with_file_hash(function_name: str) -> str:
    """Return `module:function#hash`, with the hash of the function's file; raises PackError if the name has another."""
    step = function_name.partition(_HASH_MARK)[0]
    named = f"{step}{_HASH_MARK}{_load_with_hash(step)[1]}"
    if _HASH_MARK in function_name and function_name != named:
        raise PackError(f"{_SETTING_NAME}={function_name}: the file of {step} has changed since (now {named})")
    return named


def apply_map_function(sample_json: Any, settings: ReadSettings) -> Any:
    """Run the function of `source.map` on a sample's JSON and return its result; the same JSON if none is set.

    A list at the root is passed to the function as an object with the one key `messages`. Raises Skip if the function
    returns None, raises an error, or returns no JSON object.
    """
    if settings.map is None:
        return sample_json
    if isinstance(sample_json, list):
        sample_json = {settings.messages_key or "messages": sample_json}
    if not isinstance(sample_json, dict):
        return sample_json  # the caller refuses a value that is no object
    step, name = _map_function(settings.map), settings.map.partition(_HASH_MARK)[0]
    try:
        record = step(sample_json)
    except Exception as error:  # an error in the user's code
        raise Skip(Reason.MAP_ERROR, f"{name} raised {type(error).__name__}: {error}") from None
    if record is None:
        raise Skip(Reason.LEFT_OUT_BY_MAP, f"{name} returned None")
    if not isinstance(record, dict):
        raise Skip(Reason.MAP_ERROR, f"{name} returned a {type(record).__name__}, not a record or None")
    try:
        text = json.dumps(record)
    except (TypeError, ValueError, RecursionError) as error:
        raise Skip(Reason.MAP_ERROR, f"{name} returned what JSON can't hold: {error}") from None
    return parse_json_or_skip(text, RECORD_WEIGHT_KEYS)


@lru_cache
def _map_function(name: str) -> _RecordMap:
    function_name_with_file_hash(name)
    return _load_with_hash(name.partition(_HASH_MARK)[0])[0]


@lru_cache
def _load_with_hash(name: str) -> tuple[_RecordMap, str]:
    """Load a function; return it with a hash of two files: the named module and the module that defines it."""
    step = load_named(_SETTING_NAME, name)
    if isinstance(step, type):
        step = _record_method(step, name)
    if not callable(step):
        raise PackError(f"{_SETTING_NAME}={name} is a {type(step).__name__}, not a function")
    modules = {name.partition(":")[0], inspect.unwrap(step).__module__}
    try:
        data = [Path(str(sys.modules[module].__file__)).read_bytes() for module in sorted(modules)]
    except (OSError, AttributeError, KeyError) as error:
        raise PackError(
            f"{_SETTING_NAME}={name} has no source to read ({one_line(error)}): put it into a file"
        ) from None
    return step, hashlib.sha256(b"\0".join(data)).hexdigest()[:12]


def _record_method(kind: type, name: str) -> Any:
    """Return the method `record` of a new object of the user's class."""
    if not hasattr(kind, "record"):
        raise PackError(f"{_SETTING_NAME}={name} is a class without a method record(self, record)")
    try:
        return kind().record
    except Exception as error:  # an error in the user's code
        raise PackError(f"{_SETTING_NAME}={name}: {one_line(error)}") from None

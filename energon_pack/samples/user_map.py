"""Runs the user's own step on each record before anything reads it: `source.map=module:function`, or `module:Class`.

    JSON object ──map──► JSON object, or None: the sample is left out

A class is made once in each process, without arguments, and its method `record` is the step.

Everything that keeps a result of the function names it with a hash of its file (`tidy:shorten#3f2a91c0d4e5`). So
lengths, packs and reports of two versions of the file never mix, and every process runs the same code.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from energon_pack.errors import PackError, one_line
from energon_pack.run.load_by_name import load_named
from energon_pack.samples.raw_json import RECORD_WEIGHT_KEYS, parse_json_or_skip
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip

_SETTING_NAME, _HASH_MARK = "source.map", "#"
RecordMap = Callable[[dict[str, Any]], Any]


def name_with_hash(name: str) -> str:
    """Return `module:function#hash`, with the hash of the function's file; raises PackError if `name` has another."""
    step = name.partition(_HASH_MARK)[0]
    named = f"{step}{_HASH_MARK}{_load_with_hash(step)[1]}"
    if _HASH_MARK in name and name != named:
        raise PackError(f"{_SETTING_NAME}={name}: the file of {step} has changed since (now {named})")
    return named


def map_record(value: Any, settings: ReadSettings) -> Any:
    """Run the function of `source.map` on a sample's JSON and return its result; the same JSON if none is set.

    A list at the root is passed to the function as an object with the one key `messages`. Raises Skip if the function
    returns None, raises an error, or returns no JSON object.
    """
    if settings.map is None:
        return value
    if isinstance(value, list):
        value = {settings.messages_key or "messages": value}
    if not isinstance(value, dict):
        return value  # the caller refuses a value that is no object
    step, name = _map_function(settings.map), settings.map.partition(_HASH_MARK)[0]
    try:
        record = step(value)
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
def _map_function(name: str) -> RecordMap:
    name_with_hash(name)
    return _load_with_hash(name.partition(_HASH_MARK)[0])[0]


@lru_cache
def _load_with_hash(name: str) -> tuple[RecordMap, str]:
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

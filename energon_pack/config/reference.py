"""Every setting with its kind, default, values and meaning, as the `#:` lines of its dataclass say it."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from energon_pack.config.schema import PackConfig
from energon_pack.config.validate import unknown_key_hint
from energon_pack.errors import PackError


@dataclass(frozen=True)
class Setting:
    """A setting of the config, as `--help KEY` explains it."""

    key: str
    #: its values, or their type in plain words
    kind: str
    default: str
    meaning: str
    #: the values that have a meaning of their own
    values: Mapping[str, str]

    def lines(self) -> list[str]:
        """Return the lines that `--help KEY` prints."""
        values = [f"    {value}: {meaning}" for value, meaning in self.values.items()]
        return [f"{self.key}={self.default}   ({self.kind})", f"  {self.meaning}", *values]


def all_settings() -> list[Setting]:
    """Return all settings, in the order of the config."""
    return list(_settings_of(PackConfig, ""))


def help_lines(key: str) -> list[str]:
    """Return what `--help KEY` prints for a setting, or for all below a node; raises PackError for an unknown key."""
    chosen = [one for one in all_settings() if f"{one.key}.".startswith(f"{key}.")]
    if not chosen:
        raise PackError(f"--help {key}: unknown key {key}; {unknown_key_hint(key)}")
    return [line for one in chosen for line in one.lines()]


def _settings_of(owner: type, prefix: str) -> Iterator[Setting]:
    hints, meanings = get_type_hints(owner), _meanings(owner)
    for one in fields(owner):
        key, hint = f"{prefix}{one.name}", _without_none(hints[one.name])
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _settings_of(hint, f"{key}.")
        else:
            default = one.default if one.default_factory is MISSING else one.default_factory()
            yield Setting(key, _kind(hint), command_line_text(default), meanings.get(one.name, ""), _values(hint))


def _without_none(hint: Any) -> Any:
    """Return the type of a hint without None."""
    return next((one for one in get_args(hint) if one is not NoneType), hint) if NoneType in get_args(hint) else hint


def _kind(hint: Any) -> str:
    """Return a type in a user's words."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " · ".join(str(one.value) for one in hint)
    words = {str: "text", bool: "true · false", int: "integer", float: "number", dict: "mapping", list: "list"}
    return words.get(get_origin(hint) or hint, "text, list or mapping")


def _values(hint: Any) -> dict[str, str]:
    if not (isinstance(hint, type) and issubclass(hint, Enum)):
        return {}
    meanings = _meanings(hint)
    return {str(one.value): meanings[name] for name, one in hint.__members__.items() if name in meanings}


def command_line_text(value: object) -> str:
    """Return a value as one types it on the command line."""
    if isinstance(value, list):
        return f"[{','.join(map(command_line_text, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value.value if isinstance(value, Enum) else value)


def _meanings(owner: type) -> dict[str, str]:
    """Return the text of the `#:` lines above each field of a class, and of the classes it extends, by field."""
    meanings: dict[str, str] = {}
    for one in owner.__mro__[:-1]:
        waiting: list[str] = []
        for line in inspect.getsource(one).splitlines() if one.__module__.startswith("energon_pack.") else ():
            if (text := line.strip()).startswith("#:"):
                waiting.append(text[2:].strip())
            elif name := re.match(r"(\w+)\s*[:=]", text):
                meanings.setdefault(name[1], " ".join(waiting).replace("None:", "null:"))
                waiting = []
    return {name: meaning for name, meaning in meanings.items() if meaning}

"""Turn a node of the config into JSON and back: for manifests, reports and caches."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_type_hints

Node = TypeVar("Node")


def plain(node: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and of dataclasses in it, by name; an enum becomes its value."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(node))
    return result


def node_of(kind: type[Node], values: Mapping[str, Any]) -> Node:
    """Build the dataclass whose fields have these values: the inverse of `plain`.

    Args:
        values: keys that are no fields are left out; a missing field gets its default.

    Raises:
        ValueError: a value is not one of its enum's.
    """
    types = get_type_hints(kind)
    known = {field.name: values[field.name] for field in fields(kind) if field.name in values}  # type: ignore[arg-type]
    return kind(**{name: _value(types[name], value) for name, value in known.items()})


def _value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return node_of(kind, value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value

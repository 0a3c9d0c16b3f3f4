"""A node of the config as JSON has it, and a node from such JSON: in manifests, reports and caches."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_type_hints

Node = TypeVar("Node")


def plain(node: Any) -> dict[str, Any]:
    """The fields of a dataclass, and of those in it, by name; of an enum its value."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(node))
    return result


def node_of(kind: type[Node], values: Mapping[str, Any]) -> Node:
    """The dataclass whose fields have these values: `plain` the other way round.

    Args:
        values: keys that are no field are left out; a field that is not there has its default.

    Raises:
        ValueError: a value that its enum does not have.
    """
    types = get_type_hints(kind)
    known = {field.name: values[field.name] for field in fields(kind) if field.name in values}  # type: ignore[arg-type]
    return kind(**{name: _value(types[name], value) for name, value in known.items()})


def _value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return node_of(kind, value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value

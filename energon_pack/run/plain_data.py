"""Read JSON and YAML that others wrote: plain values, neither nested nor repeated without bound."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

import yaml

Node = TypeVar("Node")


_MAX_YAML_VALUES = 10_000_000  # of a YAML file, where each alias counts as what it stands for


class NotPlain(ValueError):
    """A text is no JSON or YAML, or is nested or repeated without bound."""


def parse_json(data: str | bytes) -> Any:
    """Parse JSON; raises ValueError if it is none, or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise NotPlain("nested too deeply") from None


def parse_yaml(data: str | bytes, tags: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Parse the first document of a YAML file; return None if there is none.

    Raises:
        NotPlain: it is no YAML, or aliases of lists of aliases would stand for more than `_MAX_YAML_VALUES` values.
    """
    try:
        loader = tags(data)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise NotPlain("nested too deeply, or within itself") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise NotPlain(" ".join(str(error).split())) from None


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values a node stands for, with its aliases; raises NotPlain above `_MAX_YAML_VALUES`."""
    if id(node) not in known:
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        each = (one for item in inner for one in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_count_values(one, known) for one in each)
        if known[id(node)] > _MAX_YAML_VALUES:
            raise NotPlain(f"its aliases stand for more than {_MAX_YAML_VALUES:,} values")
    return known[id(node)]


def plain(node: Any) -> dict[str, Any]:
    """Return a dataclass as nested dicts of its fields, with the values of its enums: fit for JSON."""

    def value(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: value(entry) for key, entry in item.items()}
        return item.value if isinstance(item, Enum) else item

    result: dict[str, Any] = value(asdict(node))
    return result


def dataclass_from_plain(kind: type[Node], values: Mapping[str, Any]) -> Node:
    """Build a dataclass from what `plain` returned; values without a field are left out.

    Raises:
        ValueError: a value is not one of its enum's.
    """
    types = get_type_hints(kind)
    known = {field.name: values[field.name] for field in fields(kind) if field.name in values}  # type: ignore[arg-type]
    return kind(**{name: _field_value(types[name], value) for name, value in known.items()})


def _field_value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return dataclass_from_plain(kind, value)
    # `Enum | None` is no type itself
    enums = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, Enum)]
    return enums[0](value) if enums and value is not None else value

"""How packs of LoongForge and of LLaVA-OneVision-2 hold their members. Pure.

The members' own JSON is in the form of a source, so reading a sample checks it as it checks any other.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.flavors.schema import LIST_TYPE, MEDIA_SCHEMA, NAMES_TYPE, OBJECTS_TYPE, Schema
from energon_pack.samples.sample import MESSAGE_KEYS

Fields = dict[str, Any]
#: a member's JSON as a sample of a source, and the names of its parts in the pack
Member = tuple[Fields, list[str]]

_COLUMN_NAMES = ("images", "patch_positions", "prompts", "captions", "fps", "timestamp_decimal")
_COLUMN_PART = re.compile(r"img\d+_\d+\.")


class PackForm(NamedTuple):
    """A form in which packs are stored: its fields, and the functions that recognize a pack and yield its members."""

    #: our name for the flavour, or another tool with its name for the form
    name: str
    #: the fields of a pack's JSON
    schema: Schema
    #: fields that a pack may lack
    optional_fields: frozenset[str]
    members: Callable[[Fields], Iterator[Member]]
    #: says whether the JSON of a tar's sample, with the names of its parts, is such a pack
    recognizes: Callable[[Fields, Sequence[str]], bool] = lambda value, parts: False


def _member_as_sample(member: Fields, names: list[str]) -> Member:
    """Return a member in the form of a source sample, with `names` as its media, and the same names."""
    fields = {key: item for key, item in member.items() if item is not None and key not in ("media_files", "images")}
    return {**fields, "name": names}, names


def _is_pack_of_chats(value: Fields, parts: Sequence[str]) -> bool:
    members = value.get("messages")
    return (
        isinstance(value.get("media_files"), list)
        and isinstance(members, list)
        and bool(members)
        and all(isinstance(member, dict) and any(map(member.get, MESSAGE_KEYS)) for member in members[:1])
    )


def _chat_members(value: Fields) -> Iterator[Member]:
    for member, names in zip(value["messages"], value["media_files"], strict=True):
        yield _member_as_sample(member, names)


def _is_pack_of_pairs(value: Fields, parts: Sequence[str]) -> bool:
    texts = value.get("texts")
    return isinstance(texts, dict) and {"prompts", "captions"} <= texts.keys() and "media_files" in value


def _pair_members(value: Fields) -> Iterator[Member]:
    prompts, captions = value["texts"]["prompts"], value["texts"]["captions"]
    media = value["media_files"] or [[]] * len(prompts)  # earlier versions name none in a pack of texts
    for prompt, caption, names in zip(prompts, captions, media, strict=True):
        yield _member_as_sample({"prompts": prompt, "captions": caption}, names)


def _is_pack_of_columns(value: Fields, parts: Sequence[str]) -> bool:
    columns = [value.get(name) for name in ("images", "prompts", "captions")]
    if not all(isinstance(column, list) and column and isinstance(column[0], list) for column in columns):
        return False  # several turns of one sample
    return "sample_count" in value or any(map(_COLUMN_PART.match, parts))


def _column_members(value: Fields) -> Iterator[Member]:
    number = len(value["images"])
    rows = zip(*(value.get(name) or [None] * number for name in _COLUMN_NAMES), strict=True)
    for index, (images, arrays, *rest) in enumerate(rows):
        names = [f"img{index}_{i}.jpg" for i in range(len(images))]
        positions = [f"img{index}_{i}.npy" if array else "" for i, array in enumerate(arrays or ())]
        member = dict(zip(_COLUMN_NAMES[2:], rest, strict=True))
        record, _ = _member_as_sample({**member, "patch_positions": positions if any(positions) else None}, names)
        yield record, [*names, *filter(None, positions)]


def _has_caption_per_prompt(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    prompts, captions = value.get("prompts"), value.get("captions")
    return isinstance(prompts, list) and isinstance(captions, list) and len(prompts) == len(captions)


FOREIGN_FORMS: tuple[PackForm, ...] = (
    PackForm(
        "LLaVA-OneVision-2's packed_captioning",
        {
            "images": NAMES_TYPE,
            "prompts": LIST_TYPE,
            "captions": LIST_TYPE,
            "patch_positions": NAMES_TYPE,
            "fps": LIST_TYPE,
            "timestamp_decimal": LIST_TYPE,
        },
        frozenset(("patch_positions", "fps", "timestamp_decimal")),
        _column_members,
        _is_pack_of_columns,
    ),
    PackForm(
        "LoongForge's packed_multi_mix_qa",
        {
            "texts": ("prompts and as many captions", _has_caption_per_prompt),
            "media_files": MEDIA_SCHEMA["media_files"],
        },
        frozenset(),
        _pair_members,
        _is_pack_of_pairs,
    ),
    PackForm(
        "LoongForge's packed_chat_mix",
        {"messages": OBJECTS_TYPE, "media_files": MEDIA_SCHEMA["media_files"]},
        frozenset(),
        _chat_members,
        _is_pack_of_chats,
    ),
)


def recognize_foreign_pack(value: Any, parts: Sequence[str]) -> PackForm | None:
    """Return the form of a pack of another tool, by its JSON and its parts' names; None: it is no such pack."""
    return next((form for form in FOREIGN_FORMS if isinstance(value, dict) and form.recognizes(value, parts)), None)

"""Packs as a source: each member is a sample, whether this package packed it, or LoongForge or LLaVA-OneVision-2.

The members' own JSON is in the form of a source, so reading a sample checks it as it checks any other.

    a pack's JSON ──index──► a row for each member, with the member's media ──raw_of──► the member's own JSON

The key of a sample is that of its pack, with the member's number: `ps_00000012#3`.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from energon_pack.errors import PackError
from energon_pack.run.files import META_FOLDER
from energon_pack.run.untrusted_input import parse_json
from energon_pack.samples.flavors import describe_unreadable_dataset, packed_flavor_or_default
from energon_pack.samples.flavors.base import (
    LIST_TYPE,
    MEDIA_SCHEMA,
    NAMES_TYPE,
    OBJECTS_TYPE,
    PackedFlavor,
    Schema,
    wrong_fields,
)
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.sample import MESSAGE_KEYS, has_references
from energon_pack.samples.single_samples import single_sample_of_member
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources import wds
from energon_pack.sources.sample_ratio import remove_copy_mark
from energon_pack.sources.shard import Shard, TarShard
from energon_pack.sources.source_file import IndexRow, SampleRow, rows_of
from energon_pack.sources.storage import File, folder_of, open_file, path_in, read_whole
from energon_pack.sources.tar import TarScan

Fields = dict[str, Any]
#: a member's JSON as a sample of a source, and the names of its parts in the pack
Member = tuple[Fields, list[str]]

_COLUMN_NAMES = ("images", "patch_positions", "prompts", "captions", "fps", "timestamp_decimal")
_COLUMN_PART = re.compile(r"img\d+_\d+\.")


class _PackForm(NamedTuple):
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


_FOREIGN_FORMS: tuple[_PackForm, ...] = (
    _PackForm(
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
    _PackForm(
        "LoongForge's packed_multi_mix_qa",
        {
            "texts": ("prompts and as many captions", _has_caption_per_prompt),
            "media_files": MEDIA_SCHEMA["media_files"],
        },
        frozenset(),
        _pair_members,
        _is_pack_of_pairs,
    ),
    _PackForm(
        "LoongForge's packed_chat_mix",
        {"messages": OBJECTS_TYPE, "media_files": MEDIA_SCHEMA["media_files"]},
        frozenset(),
        _chat_members,
        _is_pack_of_chats,
    ),
)


def _recognize_foreign_pack(value: Any, parts: Sequence[str]) -> _PackForm | None:
    """Return the form of a pack of another tool, by its JSON and its parts' names; None: it is no such pack."""
    return next((form for form in _FOREIGN_FORMS if isinstance(value, dict) and form.recognizes(value, parts)), None)


_MANIFEST_NAME = f"{META_FOLDER}/energon_pack.json"
_MAX_PROBED = 4  # tars of a folder, and samples of each: the first may be damaged


@dataclass(frozen=True)
class PackShard(TarShard):
    """A tar of packs; each member of a pack is a sample."""

    #: the flavour of the packs, or the name of another tool's form
    flavor_or_tool: str = field(kw_only=True)

    @property
    def identity(self) -> tuple[Any, ...]:
        return *super().identity, self.flavor_or_tool

    @property
    def called(self) -> str:
        return f"packs, each member a sample: {self.flavor_or_tool}"

    def index(self) -> pa.Table:
        table = super().index()
        with self.open() as file:
            rows = [row for pack in rows_of(table, IndexRow) for row in self._member_rows(file, pack)]
        columns = {name: [getattr(row, name) for row in rows] for name in wds.INDEX_SCHEMA.names}
        return pa.table(columns, wds.INDEX_SCHEMA).replace_schema_metadata(table.schema.metadata)

    def _member_rows(self, file: File, pack: IndexRow) -> Iterator[IndexRow]:
        """Yield a row for each member of a pack; of a pack that can't be read, one row with the reason."""
        try:
            if pack.record_part is None:
                raise Skip(Reason(pack.reason), pack.detail or "")
            members = _members_of(file.read(pack.record_offset, pack.record_size), self.flavor_or_tool)
        except Skip as skip:
            yield replace(pack, parts=[], reason=skip.reason.value, detail=skip.detail)
            return
        part_of = {part.name: part for part in pack.parts}
        for number, (_, names) in enumerate(members):
            row = replace(pack, key=f"{pack.key}#{number}", parts=[part_of[name] for name in names if name in part_of])
            lost = next((name for name in names if name not in part_of), None)
            if lost is not None and pack.reason is None:
                row.reason, row.detail = Reason.MISSING_MEDIA.value, f"{lost!r} is not in its pack"
            yield row

    def raw_of(self, file: File, row: SampleRow, lead: int = 0) -> bytes:
        """Return the `lead` bytes before the pack's JSON, then the member's own JSON; Skip: the pack can't be read."""
        raw = super().raw_of(file, row, lead)
        number = int(remove_copy_mark(row.key).rpartition("#")[2])
        return raw[:lead] + _members_of(raw[lead:], self.flavor_or_tool)[number][0]

    def key_in_tar(self, key: str) -> str:
        return remove_copy_mark(key).rpartition("#")[0]


# --------------------------------------------------------------------------------------------------- members of a pack


@lru_cache(8)
def _members_of(raw: bytes, form: str) -> list[tuple[bytes, list[str]]]:
    """Return for each member of a pack its JSON in the form of a source, and the names of its media and arrays.

    `raw`: the JSON of the pack.
    """
    value, packs = parse_sample_json(raw), _pack_form(form)
    if not isinstance(value, dict):
        raise Skip(Reason.NOT_AN_OBJECT, f"the JSON of the pack is a {type(value).__name__}, not an object")
    schema = {name: kind for name, kind in packs.schema.items() if name in value or name not in packs.optional_fields}
    if wrong := next(wrong_fields(value, "", schema), None):
        raise Skip(Reason.BAD_MESSAGE, f"the pack: {wrong}")
    try:
        members = list(packs.members(value))
    except (KeyError, IndexError, ValueError) as error:
        raise Skip(Reason.BAD_MESSAGE, f"the lists of the pack have not an entry for each member: {error}") from None
    if (stated := _stated_num_members(value)) not in (None, len(members)) or not members:
        raise Skip(Reason.BAD_MESSAGE, f"the pack has {len(members)} members, and says that it has {stated}")
    return [(json.dumps(record, ensure_ascii=False).encode(), names) for record, names in members]


def _pack_form(name: str) -> _PackForm:
    """Return the form of packs with this name: that of another tool, or of a flavour of this package."""
    if foreign := next((form for form in _FOREIGN_FORMS if form.name == name), None):
        return foreign
    flavor = packed_flavor_or_default(name)
    return _PackForm(name, flavor.schema, frozenset(flavor.optional), partial(_members_by_flavor, flavor))


def _members_by_flavor(flavor: PackedFlavor, value: dict[str, Any]) -> Iterator[Member]:
    for member, names in zip(flavor.samples(value), flavor.parts(value), strict=True):
        yield single_sample_of_member(flavor, member, names).record, names


def _stated_num_members(value: dict[str, Any]) -> int | None:
    """Return the number of members that the JSON of a pack states; None: it states none."""
    meta = value.get("_meta")
    ids = meta.get("sample_ids") if isinstance(meta, dict) else None
    return len(ids) if isinstance(ids, list) else value.get("sample_count")


# ------------------------------------------------------------------------------------------------- which tars are packs


def convert_tars_of_packs(tars: Sequence[Shard]) -> list[Shard]:
    """Return the same tars; those of packs become `PackShard`s, whose samples are the members of the packs.

    The first samples of a folder's tars tell whether they are packs, and of which form.
    """
    folders: dict[str, list[str]] = {}
    for tar in tars:
        folders.setdefault(folder_of(tar.path), []).append(tar.path)
    forms = {folder: _form_in(folder, paths[:_MAX_PROBED]) for folder, paths in folders.items()}
    of_tars = (forms[folder_of(tar.path)] for tar in tars)
    return [tar if form is None else _pack_shard_of(tar, form) for tar, form in zip(tars, of_tars, strict=True)]


def _pack_shard_of(shard: Shard, form: str) -> PackShard:
    excluded = shard.excluded_keys if isinstance(shard, TarShard) else frozenset[str]()
    return PackShard(shard.name, shard.path, shard.size, shard.version, flavor_or_tool=form, excluded_keys=excluded)


def _form_in(folder: str, tars: list[str]) -> str | None:
    """Return the form of the packs in a folder; None: its tars hold samples."""
    manifest = read_whole(path_in(folder, _MANIFEST_NAME))
    looked = list(chain.from_iterable(map(_first_samples, tars)))
    if manifest is None:
        if any(isinstance(meta := value.get("_meta"), dict) and "fingerprint" in meta for value, _ in looked):
            raise PackError(f"{folder} holds packs of energon_pack, and no {_MANIFEST_NAME}: give the whole dataset")
        return next((form.name for value, parts in looked if (form := _recognize_foreign_pack(value, parts))), None)
    try:
        written = parse_json(manifest)
        why = describe_unreadable_dataset(
            written, oldest_format=1
        )  # the first formats have conversations and media, as all have
    except (ValueError, AttributeError) as error:
        raise PackError(f"{folder}: {_MANIFEST_NAME} can't be read: {error}") from None
    if why is not None:
        raise PackError(f"{folder}: {why}")
    if written.get("pairs"):
        raise PackError(f"{folder} holds preference pairs, no single samples: pack their source again")
    for value, _ in looked:
        if has_references(value):
            raise PackError(f"{folder}: its media lie in its source (output.media=reference): pack that source again")
        if not any(name in value for name in ("messages", "prompts")):
            raise PackError(f"{folder}: its packs hold no messages (output.messages=false): pack its source again")
    return packed_flavor_or_default(written.get("flavor")).name


def _first_samples(tar: str) -> list[tuple[dict[str, Any], list[str]]]:
    """Return the JSON objects of the first samples of a tar, each with the names of the parts before it."""
    samples: list[tuple[dict[str, Any], list[str]]] = []
    keys: dict[str, list[str]] = {}
    try:
        with open_file(tar) as file:
            for name, offset, size in TarScan(file):
                key, _, part = name.rpartition("/")[2].partition(".")
                keys.setdefault(key, []).append(part)
                if len(keys) > _MAX_PROBED:
                    break
                if part == "json" and size >= 0:
                    with suppress(ValueError):
                        value = parse_json(file.read(offset, size))
                        samples += [(value, keys[key])] if isinstance(value, dict) else []
    except OSError:  # indexing says what is wrong
        return []
    return samples

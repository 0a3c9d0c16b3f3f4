"""Find any pack of a dataset by its number or its key, parse its JSON, and read its members.

A pack is found in one of two ways:

    number ──counts of the shards──► shard ──.tar.idx──► the pack's bytes ──► ParsedPack
    key    ──its own number, or the headers of every shard──► the same
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.pack_parts import PackFiles, PackPartReader, group_files_by_pack
from energon_pack.dataset.source_media import ReferencedMediaReader
from energon_pack.errors import PackError, quote
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors import DEFAULT_FLAVOR
from energon_pack.samples.flavors.base import (
    Fields,
    PackedFlavor,
    Schema,
    reference_defects,
    without_references,
    wrong_fields,
)
from energon_pack.samples.frames import load_patch_positions
from energon_pack.samples.member import MemberTokens
from energon_pack.samples.pack_reader import num_shared_media
from energon_pack.samples.pack_tokens import TOKENS_PART, TokensDamaged, members_of, read_tokens
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.sample import Message, Part, Reference, has_references, media_type, references_by_member
from energon_pack.samples.skip import Skip
from energon_pack.sources.referenced_media import MEDIA_AT_ONCE
from energon_pack.sources.tar import TarScan


@dataclass(frozen=True)
class ParsedPack:
    """A pack read from a shard: its files, and the fields of its JSON that have the right type (it may be damaged)."""

    files: PackFiles
    parts: dict[str, Part]
    fields: Fields = field(default_factory=dict)
    meta: Fields = field(default_factory=dict)
    flavor: PackedFlavor = DEFAULT_FLAVOR
    #: parts that lie in the source; `ShardWithReferencedMedia` reads them
    references: list[Reference] = field(default_factory=list)

    @cached_property
    def json_of_members(self) -> list[dict[str, Any]] | None:
        """Return the JSON of each member; None if a field that it needs is missing or damaged."""
        with suppress(KeyError):
            return self.flavor.members(self.fields)
        return None

    @cached_property
    def part_names(self) -> list[list[str]] | None:
        """Return the names of each member's parts, as written; None if the fields that name them are damaged."""
        with suppress(KeyError):
            return self.flavor.parts(self.fields)
        return None

    @property
    def distinct_part_names(self) -> list[str]:
        """Return the names of the parts beside the JSON and the tokens, in order; [] if they are damaged."""
        each = zip(self.part_names or (), self.num_shared_media, strict=True)
        return [name for names, num_shared in each for name in names[num_shared:]]

    @cached_property
    def media_names(self) -> list[list[str]]:
        """Return the names of each member's media: of its parts, without patch positions; [] if they are damaged."""
        return [[name for name in names if not name.endswith(".npy")] for names in self.part_names or ()]

    @property
    def shared_lens(self) -> list[int]:
        """Return for each member how many first tokens it shares with the member before it (`packing.share`)."""
        return list(self.meta.get("shared_lens", ())) or [0] * len(self.meta.get("token_lens", self.media_names))

    @cached_property
    def num_shared_media(self) -> list[int]:
        """Return for each member how many of its first media it shares with the member before it."""
        lens = self.shared_lens
        lens_match = len(lens) == len(self.media_names)
        return list(num_shared_media(self.media_names, lens if lens_match else [0] * len(self.media_names)))

    @cached_property
    def media_kinds(self) -> list[list[str | None]]:
        """Return the kind of each medium in `media_names`, such as `image`; None for a name that is no medium's."""
        return [[self.flavor.kind(name) for name in names] for names in self.media_names]

    def positions_part(self, image_name: str) -> Part | None:
        """Return the part that holds the patch positions of an image; None if the image has none."""
        name = self.flavor.positions_part(image_name)
        return None if name is None else self.parts.get(name)

    def sample_id_of_medium(self, medium_name: str) -> str | None:
        """Return the id of the sample that a medium belongs to; None if the JSON does not tell."""
        samples = zip({**self.fields, **self.meta}.get("sample_ids", ()), self.part_names or (), strict=False)
        return next((str(sample) for sample, names in samples if medium_name in names), None)

    @cached_property
    def sample_ids(self) -> list[str]:
        """Return the sample id of each member; [] if the JSON is damaged."""
        ids: list[str] = self.meta.get("sample_ids", [])
        return ids

    @property
    def media_type(self) -> str:
        """Return the pack's media type, such as `image` or `mix`: from its JSON, else from the kinds of its media."""
        if "media_type" in self.flavor.schema:
            return str(self.fields.get("media_type", "unknown"))
        return media_type([kind for kinds in self.media_kinds for kind in kinds if kind])


def shard_with_referenced_media(file: Bytes, pack: ParsedPack, media: ReferencedMediaReader) -> Bytes:
    """Return a file that holds all parts of a pack at their offsets: the shard `file`, plus media that it refers to."""
    return ShardWithReferencedMedia(file, pack.files.end, pack.references, media) if pack.references else file


def read_written_tokens(file: Bytes, pack: ParsedPack) -> list[MemberTokens]:
    """Read the token ids, trained ranges and media of each member of a pack; raises TokensDamaged if there are none."""
    part = pack.parts.get(TOKENS_PART)
    if part is None or part.size < 0:
        raise TokensDamaged("it has no tokens")
    return members_of(read_tokens(file.read(part.offset, part.size), pack.meta))


def read_messages_of_member(file: Bytes, pack: ParsedPack, member_index: int) -> list[Message]:
    """Return the messages of the member `member_index`; if they lack times of frames, its patch positions give them."""
    positions = [_read_positions(file, pack, name) for name in pack.media_names[member_index]]
    return pack.flavor.messages((pack.json_of_members or [])[member_index], positions)


def _read_positions(file: Bytes, pack: ParsedPack, image: str) -> Any:
    """Read the patch positions of an image; None if it has none."""
    part = pack.positions_part(image)
    return None if part is None else load_patch_positions(file.read(part.offset, part.size), part.name)


def parse_pack(files: PackFiles, raw: bytes | None, flavor: PackedFlavor) -> tuple[ParsedPack, list[str]]:
    """Parse the JSON of a pack (None: it has no JSON); return the pack, and a phrase for each defect of the JSON."""
    parts = {part.name: part for part in files.parts}
    unread = ParsedPack(files, parts, flavor=flavor)
    if raw is None:
        return unread, ["it has no JSON"]
    try:
        value = parse_sample_json(raw)
    except Skip as skip:
        return unread, [f"its JSON can't be read: {skip.detail}"]
    if not isinstance(value, dict):
        return unread, [f"its JSON is a {type(value).__name__}, not an object"]
    references: list[Reference] = []
    if has_references(value):
        if wrong := list(reference_defects(value)):
            return unread, wrong
        references = list({part.name: part for part in chain.from_iterable(references_by_member(value))}.values())
        starts = _offsets_of_appended_media(files.end, references)
        beside = [Part(part.name, start, part.size) for part, start in zip(references, starts, strict=False)]
        files = files._replace(parts=[*files.parts, *beside])
        parts, value = {part.name: part for part in files.parts}, without_references(value, flavor)
    meta = value.get("_meta")
    fields, good_meta = (
        _valid_fields(value, flavor.schema),
        _valid_fields(meta, flavor.meta) if isinstance(meta, dict) else {},
    )
    pack = ParsedPack(files, parts, fields, good_meta, flavor, references)
    absent = set(flavor.optional) - value.keys()
    wrong = list(wrong_fields(value, "", {name: form for name, form in flavor.schema.items() if name not in absent}))
    wrong += wrong_fields(meta, "_meta.", flavor.meta)
    return pack, [*wrong, *_contradictions(pack), *flavor.defects(fields)]


def _valid_fields(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    return {name: value[name] for name, (_, is_it) in schema.items() if name in value and is_it(value[name])}


def _contradictions(pack: ParsedPack) -> Iterator[str]:
    both = {**pack.fields, **pack.meta}
    lens = {name: len(items) for name, items in both.items() if isinstance(items, list)}
    if len(set(lens.values())) > 1:
        yield f"unequal lengths: {', '.join(f'{name} {number}' for name, number in lens.items())}"
    if 0 in lens.values():
        yield "it has no members"
    if pack.meta.get("pack_id", pack.files.key) != pack.files.key:
        yield f"_meta.pack_id is {quote(pack.meta['pack_id'])}"
    if 0 in pack.meta.get("token_lens", ()):
        yield "_meta.token_lens has a 0"
    for member, (ours, in_source) in enumerate(zip(pack.media_names, pack.meta.get("source_parts", ()), strict=False)):
        if len(ours) != len(in_source):
            yield f"member {member} has {len(ours)} media and {len(in_source)} _meta.source_parts"


class ShardWithReferencedMedia:
    """A file made of a shard up to the end of a pack (`end`), and then the media that the pack refers to."""

    def __init__(self, shard: Bytes, end: int, references: Sequence[Reference], media: ReferencedMediaReader):
        self._shard, self._references, self._media = shard, references, media
        self._starts = _offsets_of_appended_media(end, references)
        self.size = self._starts[-1]
        self._last: tuple[int, Bytes] = -1, shard
        self._ahead = -1  # number of the last group of media that were read together

    def read(self, offset: int, size: int) -> bytes:
        """Read at most `size` bytes from an offset; inside a medium, it raises as `DatasetMedia.opened`."""
        if offset < self._starts[0]:
            return self._shard.read(offset, size)
        index = bisect_right(self._starts, offset) - 1
        if index == len(self._references):
            return b""
        if self._last[0] != index:
            if index // MEDIA_AT_ONCE != self._ahead:
                self._ahead = index // MEDIA_AT_ONCE
                self._media.read_ahead(self._references[self._ahead * MEDIA_AT_ONCE :][:MEDIA_AT_ONCE])
            self._last = index, self._media.opened(self._references[index])
        return self._last[1].read(offset - self._starts[index], size)


def _offsets_of_appended_media(end: int, references: Sequence[Reference]) -> list[int]:
    """Return the offset of each medium, if the media follow each other from `end` on, and the end of the last one."""
    return list(accumulate((reference.size for reference in references), initial=end))


_PACK_KEY = re.compile(r"[0-9a-f]{8}_(\d{8,})")  # a key of this package's packs, with its number


@dataclass(frozen=True)
class LocatedPack:
    """A pack that was looked up: its number, its shard, and the file from which its parts are read."""

    number: int  # its place in the order of the plan
    shard: str
    file: Bytes  # its shard, or only the bytes of this pack; its parts' places count in these
    pack: ParsedPack
    defects: list[str]  # of the pack's JSON


class PackLookup(PackPartReader):
    """Finds any pack of a dataset by its number in the order of the plan, or by its key, whichever tool wrote it."""

    def __init__(self, folder: DatasetFolder, flavor: PackedFlavor, shards: DatasetFolder | None = None):
        """List the shards.

        Args:
            flavor: of this package's packs; None: another tool wrote them.
        """
        super().__init__(folder, shards)
        self._flavor = flavor

    def number_of(self, pack_key: str) -> int | None:
        """Return the number of the pack with this key; None: there is none. For another tool's keys, all are read."""
        match = _PACK_KEY.fullmatch(pack_key)
        number = int(match[1]) if match else len(self)
        if number < len(self) and self[number].pack.files.key == pack_key:  # else the key is another dataset's
            return number
        keys = (
            files.key for name in self.shard_counts for files in group_files_by_pack(TarScan(self._open_shard(name)))
        )
        return next((place for place, own_key in enumerate(keys) if own_key == pack_key), None)

    def __getitem__(self, number: int) -> LocatedPack:
        """Read the pack with this number; raises PackError if there is none, or its shard can't be read."""
        name, file, files = self._find(number)
        part = next((part for part in files.parts if part.name == "json" and part.size >= 0), None)
        raw = None if part is None else file.read(part.offset, part.size)
        pack, defects = parse_pack(files, raw, self._flavor)
        return LocatedPack(number, name, shard_with_referenced_media(file, pack, self.media_reader), pack, defects)

    def all(self) -> Iterator[LocatedPack]:
        """Yield all packs in the order of the plan; after one that can't be read, the rest of its shard is left out."""
        number = 0
        for count in self.shard_counts.values():
            with suppress(PackError):
                yield from (self[i] for i in range(number, number + count))
            number += count

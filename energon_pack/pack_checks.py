"""What must be true of one pack. Each function looks at one thing and yields what is wrong with it, a line a defect.

They are asked one after another, whatever those before them found, and take any JSON there can be.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from energon_pack.findings import short
from energon_pack.manifest import FORMAT
from energon_pack.media import video_extension
from energon_pack.packed import PART_OF, PackFiles
from energon_pack.packs import part_names
from energon_pack.record import ReadSettings, load_json, parse_record
from energon_pack.sample import Part, Skip, media_type, place_media
from energon_pack.shards import Member

_KINDS = {"i": "image", "v": "video"}
_NAME = re.compile(r"s(\d{3,})\.([iv])(\d{2,})\.[a-z0-9]+")
_IMAGE_MAGIC = {
    "jpg": re.compile(rb"\xff\xd8\xff"),
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "gif": re.compile(rb"GIF8[79]a"),
    "webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "bmp": re.compile(rb"BM"),
    "tif": re.compile(rb"II\*\0|MM\0\*|II\+\0|MM\0\+"),
    "avif": re.compile(rb"....ftyp(avi[fs]|mif1|msf1)", re.DOTALL),
}


@dataclass(frozen=True)
class Pack:
    """A pack as it was read: its files, and of its JSON the fields that are what they have to be."""

    files: PackFiles
    parts: dict[str, Part]
    fields: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[list[str]]:
        names: list[list[str]] = self.fields.get("media_files", [])
        return names


# ------------------------------------------------------------------------------------------------------- its JSON


def parse(files: PackFiles, raw: bytes | None) -> tuple[Pack, list[str]]:
    """A pack, and what its JSON lacks.

    Args:
        raw: the bytes of its JSON; None where it has none.
    """
    parts = {part.name: part for part in files.parts}
    if raw is None:
        return Pack(files, parts), ["it has no JSON"]
    try:
        value = load_json(raw)
    except Skip as skip:
        return Pack(files, parts), [f"its JSON can't be read: {skip.detail}"]
    if not isinstance(value, dict):
        return Pack(files, parts), [f"its JSON is a {type(value).__name__}, not an object"]
    meta = value.get("_meta")
    pack = Pack(files, parts, _good(value, _FIELDS), _good(meta, _META) if isinstance(meta, dict) else {})
    return pack, [*_wrong(value, pack.fields, "", _FIELDS), *_wrong(meta, pack.meta, "_meta.", _META), *_unequal(pack)]


def _is_list_of(kind: type) -> Any:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_list_of(str), value))


#: field → what it is, and how to tell
_FIELDS: dict[str, tuple[str, Any]] = {
    "messages": ("a list of objects", _is_list_of(dict)),
    "media_files": ("a list of lists of names", _is_names),
    "media_type": ("text, image, video or mix", lambda value: value in ("text", "image", "video", "mix")),
}
_META: dict[str, tuple[str, Any]] = {
    "format": (str(FORMAT), lambda value: type(value) is int and value == FORMAT),
    "pack_id": ("a string", lambda value: isinstance(value, str)),
    "sample_ids": ("a list of strings", _is_list_of(str)),
    "token_lens": ("a list of counts", _is_counts),
    "num_supervised": ("a list of counts", _is_counts),
    "total_token_len": ("a count", _is_count),
    "fingerprint": ("a string", lambda value: isinstance(value, str)),
    "source_parts": ("a list of lists of names", _is_names),
}
_LISTS = ("messages", "media_files", "sample_ids", "token_lens", "num_supervised", "source_parts")


def _good(value: dict[str, Any], schema: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    return {name: value[name] for name, (_, is_it) in schema.items() if name in value and is_it(value[name])}


def _wrong(value: Any, good: Mapping[str, Any], where: str, schema: Mapping[str, tuple[str, Any]]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where.rstrip('.')} is {short(value)}, not an object"
        return
    for name, (wanted, _) in schema.items():
        if name not in good:
            yield f"{where}{name} is {short(value[name])}, not {wanted}" if name in value else f"no {where}{name}"


def _unequal(pack: Pack) -> Iterator[str]:
    both = {**pack.fields, **pack.meta}
    lens = {name: len(both[name]) for name in _LISTS if name in both}
    if len(set(lens.values())) > 1:
        yield f"unequal lengths: {', '.join(f'{name} {number}' for name, number in lens.items())}"
    if 0 in lens.values():
        yield "it has no members"
    if pack.meta.get("pack_id", pack.files.key) != pack.files.key:
        yield f"_meta.pack_id is {short(pack.meta['pack_id'])}"
    if 0 in pack.meta.get("token_lens", ()):
        yield "_meta.token_lens has a 0"
    for member, (ours, theirs) in enumerate(zip(pack.names, pack.meta.get("source_parts", ()), strict=False)):
        if len(ours) != len(theirs):
            yield f"member {member} has {len(ours)} media and {len(theirs)} _meta.source_parts"
    if "media_type" in pack.fields and "media_files" in pack.fields:
        is_type = media_type([kind for names in pack.names for name in names if (kind := kind_of(name))])
        if pack.fields["media_type"] != is_type:
            yield f"media_type is {pack.fields['media_type']}, its media make it {is_type}"


# ------------------------------------------------------------------------------------------------------- its media


def kind_of(name: str) -> str | None:
    """image or video by the name of a part: `s003.i00.jpg`."""
    match = _NAME.fullmatch(name)
    return _KINDS[match[2]] if match else None


def parts(pack: Pack) -> Iterator[str]:
    """Each part is there that the JSON names, and no other; JSON first, the media in the order they are named."""
    there = [part.name for part in pack.files.parts]
    yield from (f"{name} comes {number} times" for name, number in Counter(there).items() if number > 1)
    yield from (f"{part.name} holds no bytes of its own" for part in pack.files.parts if part.size < 0)
    if "media_files" not in pack.fields:
        return
    named = [name for names in pack.names for name in names]
    yield from (f"{name} is named {number} times" for name, number in Counter(named).items() if number > 1)
    yield from (f"{name} is named, but not there" for name in named if name not in pack.parts)
    yield from (f"{name} is there, but not named" for name in pack.parts if name not in named and name != "json")
    if Counter(there) == Counter(["json", *named]) and there != ["json", *named]:
        yield "the parts are not in the order of media_files, after the JSON"
    for member, names in enumerate(pack.names):
        counts = dict.fromkeys(_KINDS, 0)
        for name in names:
            match = _NAME.fullmatch(name)
            if not match or (int(match[1]), int(match[3])) != (member, counts[match[2]]):
                yield f"member {member} has a medium named {short(name)}: out of order, or no name of a pack's part"
                break
            counts[match[2]] += 1


def kind(name: str, head: bytes) -> Iterator[str]:
    """The first bytes of a medium are those of its extension.

    Args:
        head: its first 16 bytes.
    """
    extension = name.rpartition(".")[2]
    found = next((ext for ext, magic in _IMAGE_MAGIC.items() if magic.match(head)), None) or video_extension(head)
    if found != extension and (found or extension in _IMAGE_MAGIC or kind_of(name) == "video"):
        yield f"{name} begins with {head[:8]!r}: {found or 'no medium that is known'}"


def placeholders(pack: Pack) -> Iterator[str]:
    """Conversations are in normal form, and their placeholders are as many and of the kinds of their media."""
    for index, member in enumerate(pack.fields.get("messages", ())):
        messages = member.get("messages")
        try:
            stored = parse_record({"messages": messages}, ReadSettings()).messages
            if stored != messages:
                yield f"member {index}: its messages are not in the form that packing writes"
                continue
            kinds = [kind_of(name) for name in pack.names[index]] if index < len(pack.names) else []
            known = [kind for kind in kinds if kind]
            if len(known) == len(kinds):
                _, order, were_missing = place_media(messages, known)
                if were_missing or order != sorted(order):
                    yield f"member {index}: its placeholders are not in the order of its media"
        except Skip as skip:
            yield f"member {index}: {skip}"


# ------------------------------------------------------------------------------------------------ lengths, the plan


def sums(pack: Pack) -> Iterator[str]:
    if {"total_token_len", "token_lens"} <= pack.meta.keys():
        total, tokens = pack.meta["total_token_len"], sum(pack.meta["token_lens"])
        if total != tokens:
            yield f"total_token_len is {total}, token_lens sum to {tokens}"
    for index, (tokens, trained) in enumerate(
        zip(pack.meta.get("token_lens", ()), pack.meta.get("num_supervised", ()), strict=False)
    ):
        if trained > tokens:
            yield f"member {index} has {tokens} tokens, {trained} of them supervised"


def capacity(pack: Pack, packing: Mapping[str, Any]) -> Iterator[str]:
    """No limit of `packing.*` is passed.

    Args:
        packing: that node of the config.
    """
    lens = pack.meta.get("token_lens", [])
    limit, multiple = packing.get("max_token_len"), packing.get("pad_to_multiple_of")
    if type(multiple) is not int or multiple < 1:
        return  # `metadata` says so
    knob = "max_token_len"
    if packing.get("overlong") == "own_pack" and len(lens) == 1 and type(packing.get("hard_limit")) is int:
        knob, limit = "hard_limit", packing["hard_limit"]
    images = sum(kind_of(name) == "image" for names in pack.names for name in names)
    limited = {
        knob: (sum(-(-length // multiple) * multiple for length in lens), limit),
        "max_images": (images, packing.get("max_images")),
        "max_members": (len(lens), packing.get("max_members")),
        "max_attention_cost": (sum(length**2 for length in lens), packing.get("max_attention_cost")),
    }
    for name, (value, cap) in limited.items():
        if type(cap) is int and value > cap:
            yield f"{value} > packing.{name}={cap}"


def fingerprint(pack: Pack, wanted: Any) -> Iterator[str]:
    found = pack.meta.get("fingerprint", wanted)
    if found != wanted and wanted is not None:
        yield f"fingerprint {short(found)}, the manifest has {short(wanted)}"


def plan(pack: Pack, members: Sequence[Member] | None) -> Iterator[str]:
    """A pack holds what its rows of the plan say."""
    if members is None:
        yield "it is not in the plan"
        return
    names = [
        part_names("packed_multi_mix_qa", index, [part[3:] for part in member.parts])
        for index, member in enumerate(members)
    ]
    wanted: dict[str, list[Any]] = {
        "sample_ids": [member.sample_id for member in members],
        "token_lens": [member.token_len for member in members],
        "num_supervised": [member.num_supervised for member in members],
        "source_parts": [[part[0] for part in member.parts] for member in members],
        "media_files": names,
    }
    found = {**pack.fields, **pack.meta}
    for name, values in wanted.items():
        if name in found and found[name] != values:
            yield f"{name}: {_difference(found[name], values)}"
    for its_names, member in zip(names, members, strict=True):
        for name, (_, _, size, *_) in zip(its_names, member.parts, strict=True):
            if name in pack.parts and pack.parts[name].size != size:
                yield f"{name} has {pack.parts[name].size} bytes, in the plan {size}"


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} members, {len(wanted)} good rows in the plan"
    index = next(i for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)) if ours != theirs)
    return f"member {index} is {short(found[index])}, in the plan {short(wanted[index])}"


def samples_of(pack: Pack, members: Sequence[Member] | None) -> Iterator[tuple[str, str | None]]:
    """`<source shard>/<key>` of each member, and where it is a part of that sample, which (`2of3`).

    The plan tells a part from a sample whose own key looks like one's.
    """
    ids = pack.meta.get("sample_ids", ())
    if members is not None and [member.sample_id for member in members] == ids:
        for member in members:
            yield member.sample, member.cut.part if member.cut else None
        return
    for sample_id in ids:
        sample, mark, part = sample_id.rpartition("#")
        yield (sample, part) if mark and PART_OF.fullmatch(part) else (sample_id, None)

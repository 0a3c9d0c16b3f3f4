"""The tokens of a pack on disk: its columns, and the members that are read from them by numpy alone. The file holds:

    b"EPK3" │ the number of entries of each column, uint32 │ the columns, one behind the other, little-endian

A column without entries has its default everywhere: nothing is shared, all weights are 1, there are no media. Nothing
is compressed, because the bytes of zlib differ between its builds: an id takes 2.25 bytes, 16 bits and a bit in each
plane of the higher bits; an id that comes four times or more in a row, as those of an image do, stands once.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from energon_pack.samples.media.kinds import KIND_BY_LETTER
from energon_pack.samples.member import OPERATIONS, JoinedTokens, MediumInput, MemberTokens, PixelStep

Array = npt.NDArray[Any]

#: Version of the packs (`_meta.format`) and of `energon_pack.json`.
PACK_FORMAT = 3
#: the name of the part: neither webdataset nor Energon decodes it
TOKENS_PART = "tokens"
_MAGIC = b"EPK3"
#: the field of a pack's `_meta` with the CRC-32 of its tokens
CHECKSUM_FIELD = "tokens_crc32"
#: type of each column, by what an entry is of
COLUMN_TYPES = {
    # a member: its tokens; how many of them the member before it has, too; its weight; its media
    "length": "u4", "shared_len": "u4", "factor": "f8", "num_media": "u2",
    # an id: its low 16 bits; the planes of its higher bits; an id that is repeated, by its place, and how often more
    "low": "u2", "high": "u1", "repeated": "u4", "num_more": "u4",
    # a trained span of one weight, in tokens of the pack, within a member
    "start": "u4", "end": "u4", "weight": "f4",
    # a medium: the letter of its kind; images that a video is made of; tokens that hold its features; the size
    # of its picture; steps that change it; samples of a sound
    "kind": "u1", "num_images": "u2", "num_features": "u4", "width": "u4", "height": "u4", "num_steps": "u1",
    "num_samples": "u4",
    # a step: its place among the operations; the size afterwards
    "operation": "u1", "new_width": "u4", "new_height": "u4",
    # a video: its chosen frames, all its frames, frames a second; and a chosen frame
    "num_frames": "u4", "num_in_source": "f8", "fps": "f8", "frame": "u4",
}  # fmt: skip
_STORED_TYPES = {name: np.dtype(kind).newbyteorder("<") for name, kind in COLUMN_TYPES.items()}
_HEADER_BYTES = len(_MAGIC) + 4 * len(COLUMN_TYPES)


class TokensDamaged(ValueError):
    """Raised if the tokens of a pack are damaged, cut, or in another format."""


@dataclass(frozen=True)
class PackTokens:
    """The columns of a pack's tokens, by name: see `COLUMN_TYPES`; an absent column is empty."""

    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        column = self.columns.get(name)
        return np.zeros(0, COLUMN_TYPES[name]) if column is None else column

    def entries(self, column_name: str, num_entries: int, default: float = 0) -> Array:
        """Return the `num_entries` entries of a column; if the column is empty, `num_entries` times its default.

        Raises:
            TokensDamaged: the column has another number of entries.
        """
        column = self[column_name]
        if len(column) not in (0, num_entries):
            raise TokensDamaged(f"{len(column)} entries of {column_name}, and {num_entries} are needed")
        return column if len(column) else np.full(num_entries, default, COLUMN_TYPES[column_name])

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The ids of all members, one behind the other: int64 [tokens]."""
        low, planes = self["low"], self["high"]
        ids, high = low.astype(np.int64), np.zeros(len(low), np.uint16)
        for bit, plane in enumerate(planes.reshape(-1, -(-len(low) // 8)) if len(planes) else ()):
            high |= np.left_shift(np.unpackbits(plane, count=len(low)), bit, dtype=np.uint16)
        ids |= np.left_shift(high, 16, dtype=np.int64)
        if not len(self["repeated"]):
            return ids
        times = np.ones(len(ids), np.int64)
        times[self["repeated"]] += self["num_more"]
        return np.repeat(ids, times)

    def to_bytes(self) -> bytes:
        """Return the bytes of the pack's file `tokens`."""
        columns = [self.columns.get(name, ()) for name in COLUMN_TYPES]
        counts = np.array([*map(len, columns)], "<u4")
        named = zip(columns, COLUMN_TYPES.values(), strict=True)
        data = [np.ascontiguousarray(column, f"<{kind}").tobytes() for column, kind in named if len(column)]
        return b"".join([_MAGIC, counts.tobytes(), *data])

    @classmethod
    def from_bytes(cls, data: bytes) -> "PackTokens":
        """Read the bytes that `to_bytes` made.

        Raises:
            TokensDamaged: the data are cut, too long, or in another format.
        """
        if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEADER_BYTES:
            raise TokensDamaged(f"no tokens of format 3 ({len(data)} bytes that begin with {data[:4]!r}): pack again")
        counts = np.frombuffer(data, "<u4", len(COLUMN_TYPES), len(_MAGIC)).tolist()
        sizes = [count * kind.itemsize for count, kind in zip(counts, _STORED_TYPES.values(), strict=True)]
        if _HEADER_BYTES + sum(sizes) != len(data):
            raise TokensDamaged(
                f"tokens of {_HEADER_BYTES + sum(sizes):,} bytes by their header, and {len(data):,} are there"
            )
        columns, place = {}, _HEADER_BYTES
        for (name, kind), count, size in zip(_STORED_TYPES.items(), counts, sizes, strict=True):
            if count:
                columns[name] = np.frombuffer(data, kind, count, place)
            place += size
        return cls(columns)


def read_tokens(data: bytes, meta: Mapping[str, Any]) -> PackTokens:
    """Read the tokens of a pack, and compare their checksum.

    Args:
        meta: `_meta` of the pack's JSON; without a checksum there, none is compared.

    Raises:
        TokensDamaged: the bytes are not those that were written.
    """
    tokens = PackTokens.from_bytes(data)
    if (checksum := meta.get(CHECKSUM_FIELD)) not in (None, crc32(data)):
        raise TokensDamaged(f"tokens with the checksum {crc32(data)}, and {checksum} when they were written")
    return tokens


def members_of(pack: PackTokens) -> list[MemberTokens]:
    """Return the members of a pack, made from its columns.

    Raises:
        TokensDamaged: its columns contradict each other.
    """
    text = joined_tokens_of_pack(pack)
    with _errors_as_damage():
        return [*_read_members(pack, text)]


def joined_tokens_of_pack(pack: PackTokens) -> JoinedTokens:
    """Return the tokens of a pack without its media, from its columns.

    Raises:
        TokensDamaged: its columns contradict each other.
    """
    with _errors_as_damage():
        lens = pack["length"].astype(np.int64)
        num_ids = len(pack["low"]) + int(pack["num_more"].sum(dtype=np.int64))
        if num_ids == lens.sum():  # else damage might ask for all memory
            num_ids = len(ids := pack.ids)
        if num_ids != lens.sum():
            raise ValueError(f"{num_ids} ids, and members of {lens.sum()}")
        spans = np.stack([pack["start"], pack["end"]], axis=1).astype(np.int64)
        _refuse_wrong_trained_spans(spans, lens)
        numbers = {"weight": len(spans), "factor": len(lens), "shared_len": len(lens)}
        entries = [pack.entries(name, number) if len(pack[name]) else None for name, number in numbers.items()]
        return JoinedTokens(ids, lens, spans, *entries)


def _refuse_wrong_trained_spans(spans: Array, lens: Array) -> None:
    """Raise ValueError unless each span lies in one member, behind its first token, and behind the span before it."""
    ends = np.cumsum(lens)
    members = np.searchsorted(ends, spans[:, 1])  # those in which spans end
    least = np.append(ends - lens, 2**32)[members] + 1
    least[1:] = np.maximum(least[1:], spans[:-1, 1])
    if len(wrong := np.flatnonzero((spans[:, 0] < least) | (spans[:, 1] <= spans[:, 0]))):
        member = members[wrong[0]]
        raise ValueError(
            f"a trained span {f'outside of member {member}' if member < len(lens) else 'behind the last member'}"
        )


@contextmanager
def _errors_as_damage() -> Iterator[None]:
    """Raise TokensDamaged where columns contradict each other."""
    try:
        yield
    except (ValueError, IndexError, KeyError, StopIteration, RuntimeError) as error:
        raise TokensDamaged(f"tokens whose columns contradict each other ({error})") from None


def _read_members(pack: PackTokens, text: JoinedTokens) -> Iterator[MemberTokens]:
    number = len(text.lens)
    starts = [0, *np.cumsum(text.lens).tolist()]
    bounds = [0, *np.searchsorted(text.spans[:, 1], starts[1:], side="right").tolist()]  # of the spans of each member
    weights = pack.entries("weight", len(text.spans), 1).tolist()
    factors, shared = pack.entries("factor", number, 1).tolist(), pack.entries("shared_len", number).tolist()
    media, counts = iter(_media_of_pack(pack)), pack.entries("num_media", number).tolist()
    if sum(counts) != len(pack["kind"]):
        raise ValueError(f"{len(pack['kind'])} media, and members with {sum(counts)}")
    for index, (start, end) in enumerate(pairwise(starts)):
        first, last = bounds[index : index + 2]
        ranges = [(low, high) for low, high in (text.spans[first:last] - start).tolist()]
        its_weights = weights[first:last] if any(weight != 1 for weight in weights[first:last]) else []
        its_media = [*islice(media, counts[index])]
        yield MemberTokens(text.ids[start:end], ranges, its_weights, its_media, factors[index], shared[index])


def _media_of_pack(pack: PackTokens) -> list[MediumInput]:
    number = len(pack["kind"])
    if not number:
        return []
    names = [KIND_BY_LETTER[chr(letter)] for letter in pack["kind"].tolist()]
    steps = iter(
        [
            PixelStep(OPERATIONS[operation], width, height)
            for operation, width, height in zip(
                pack["operation"].tolist(), pack["new_width"].tolist(), pack["new_height"].tolist(), strict=True
            )
        ]
    )
    plain = [pack.entries(name, number).tolist() for name in ("num_images", "num_features", "width", "height")]
    num_steps, num_frames, num_samples = (
        pack.entries(name, number).tolist() for name in ("num_steps", "num_frames", "num_samples")
    )
    entries = {"operation": sum(num_steps), "frame": sum(num_frames), "fps": sum(map(bool, num_frames))}
    if wrong := [name for name, number in entries.items() if len(pack[name]) != number]:
        raise ValueError(f"{len(pack[wrong[0]])} entries of {wrong[0]}, and media with {entries[wrong[0]]}")
    frames, rates = iter(pack["frame"].tolist()), iter(_source_frames_and_fps(pack["num_in_source"], pack["fps"]))
    columns = zip(names, *plain, num_steps, num_frames, num_samples, strict=True)
    return [
        MediumInput(
            kind, images, features, width, height, tuple(islice(steps, own_steps)), tuple(islice(frames, own_frames)),
            *(next(rates) if own_frames else (0.0, 0.0)), samples,
        )
        for kind, images, features, width, height, own_steps, own_frames, samples in columns
    ]  # fmt: skip


def _source_frames_and_fps(num_in_source: Array, fps: Array) -> list[tuple[float, float]]:
    return [*zip(num_in_source.tolist(), fps.tolist(), strict=True)]

"""Checks of the bytes of media: their checksums, and whether they decode. Each yields its defects, a line each."""

import io
from collections.abc import Iterator, Sequence
from zlib import crc32

from energon_pack.dataset.pack_json import ParsedPack
from energon_pack.errors import quote
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.frame_times import load_patch_positions
from energon_pack.samples.media.kinds import KINDS, VIDEO
from energon_pack.samples.media.probe import probe
from energon_pack.samples.media.stream_probe import frame_times
from energon_pack.samples.sample import Part
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens_part import TOKENS_PART

_PIECE_BYTES = 1 << 20  # of a medium, that are read at once


def held_media(pack: ParsedPack) -> list[Part]:
    """Return the parts of a pack that packing copied from the source: all but JSON and tokens, in the tar's order."""
    return [] if pack.references else [part for part in pack.files.parts if part.name not in ("json", TOKENS_PART)]


def check_checksums(file: Bytes, pack: ParsedPack, expected: Sequence[int]) -> Iterator[str]:
    """Compare the media that a pack holds with the checksums of those that were packed, in the pack's order.

    If the tar has more or fewer of them, the JSON says their order.
    """
    parts: list[Part | None] = [*held_media(pack)]
    if len(parts) != len(expected):
        parts = [pack.parts.get(name) for name in pack.distinct_part_names]
    if len(parts) != len(expected):
        yield f"it has {len(parts)} media, {len(expected)} were packed"
        return
    for part, checksum in zip(parts, expected, strict=True):
        if part is not None and part.size >= 0 and _checksum(file, part) != checksum:  # the check `parts` sees others
            yield f"{part.name} has other bytes than those that were packed"


def _checksum(file: Bytes, part: Part) -> int:
    checksum = 0
    for start in range(0, part.size, _PIECE_BYTES):
        checksum = crc32(file.read(part.offset + start, min(_PIECE_BYTES, part.size - start)), checksum)
    return checksum


def check_decoding(file: Bytes, part: Part) -> Iterator[str]:
    """Decode a medium, and yield what fails; of a video, also that it has fewer frames than its header says."""
    try:
        if part.name.endswith(".npy"):
            load_patch_positions(file.read(part.offset, part.size), part.name)
            return
        data = file.read(part.offset, part.size)
        medium = probe(io.BytesIO(data))
        if medium.kind != VIDEO.kind:
            if defect := KINDS[medium.kind].defect(data, medium):
                yield f"{part.name}: {defect}"
        elif (number := len(frame_times(data))) < medium.num_frames:
            yield f"{part.name}: {number} frames decode, its header says {medium.num_frames}"
    except Skip as skip:
        yield f"{part.name}: {skip.detail}"
    except Exception as error:  # damaged pixels make Pillow's plugins raise anything
        yield f"{part.name} does not decode: {quote(str(error) or type(error).__name__)}"

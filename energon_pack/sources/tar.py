"""Find the members of an uncompressed tar by reading only headers; compute headers and lengths of a tar to write.

One read serves many members if they are small, with few calls for each. This is several times as fast as tarfile, which
builds an object for each member. It is also stricter: every header's checksum is checked, and damage is reported where
tarfile would just stop.
"""

import hashlib
import struct
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import adler32

from energon_pack.samples.bytes import Bytes
from energon_pack.sources.other_formats import describe_foreign_format

BLOCK = tarfile.BLOCKSIZE  # headers and contents fill whole blocks
#: size of a member without own bytes: a link, a device, a sparse file
NO_DATA = -1
#: beginning of the damage of a file without any member
NOT_A_TAR = "not a tar file"

_ZERO_BLOCK = bytes(BLOCK)
_unpack_header = struct.Struct("100s 24x 12s 12x 8s c").unpack_from  # name, size, checksum, kind
_REGULAR_TYPES = frozenset((b"0", b"\0", b"7"))
# Links, devices, folders: no blocks follow, whatever their size field says.
_TYPES_WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_FOLDER_TYPE = b"5"
_LONG_NAME, _LONG_LINK = b"L", b"K"  # GNU
_PAX_TYPES, _PAX_GLOBAL = frozenset((b"x", b"X")), b"g"  # X: Solaris
EXTENDED_TYPES = frozenset((_LONG_NAME, _LONG_LINK, *_PAX_TYPES, _PAX_GLOBAL))
MAX_EXTENDED_SIZE = 1 << 20
_PAX_KEYS = frozenset((b"path", b"size", b"GNU.sparse.name"))
MIN_READ_BYTES, _MAX_READ_BYTES = 4 << 10, 256 << 10
_SMALL_MEMBER_BYTES = 8 << 10  # bytes: reading such a member costs no more than a separate read of the next header


@dataclass
class Damage:
    """One damaged place of a tar: its offset in bytes, and what is wrong there."""

    offset: int
    detail: str
    #: name of the member that is not whole; None: no member is cut here
    cut_member: str | None = None
    #: whether at least one member with an unreadable name is lost here
    hides_member: bool = False


@dataclass
class TarScan:
    """Iterates over (name, data offset, size) of a tar's whole members but folders; fills `damage` and `headers`.

    Names and sizes are those of tarfile: of two extended headers of a member the first holds, then the global ones.
    """

    file: Bytes
    #: offset of the first header that is read
    start: int = 0
    #: values of the global extended headers so far
    global_fields: dict[str, str] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    #: hash of all headers in order; it changes with the members, and with their times
    headers: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        if self.file.size == 0:
            self.damage.append(Damage(0, "the file is empty", hides_member=True))
            return
        read, end, update = self.file.read, self.file.size, self.headers.update
        offset: int | None = self.start
        data = self.start  # where the last member's bytes begin
        window, start, length = b"", 0, MIN_READ_BYTES  # bytes read ahead, their offset, how many to ask for
        extended: dict[str, str] = {}  # values of extended headers for the next member
        while offset is not None:
            header = window[offset - start : offset - start + BLOCK]
            if len(header) < BLOCK:  # read on: twice as far if members are small
                length = min(2 * length, _MAX_READ_BYTES) if offset - data <= _SMALL_MEMBER_BYTES else MIN_READ_BYTES
                window, start = read(offset, length), offset
                header = window[:BLOCK]
            if len(header) < BLOCK:
                detail = "cut inside a member's header" if header else "no end-of-archive blocks"
                self.damage.append(
                    _no_tar_damage(header, detail) if offset == 0 else Damage(offset, detail, hides_member=bool(header))
                )
                return
            if header == _ZERO_BLOCK:
                offset = self._next_archive(offset)
                continue
            try:
                name, size, kind = parse_tar_header(header)
                valid = size >= 0
            except ValueError:
                valid = False
            if not valid:
                if offset == 0:
                    self.damage.append(_no_tar_damage(header, NOT_A_TAR))
                    return
                self.damage.append(Damage(offset, "a header's checksum is wrong", hides_member=True))
                offset, extended = self._next_header(offset + BLOCK), {}
                continue

            update(header)
            data = offset + BLOCK
            size = 0 if kind in _TYPES_WITHOUT_DATA else size
            is_extended = kind in EXTENDED_TYPES
            next_header = data + round_up_to_tar_blocks(size)
            if (extended or self.global_fields) and not is_extended:
                fields = self.global_fields | extended
                name = fields.get("path") or name
                size = size if kind in _TYPES_WITHOUT_DATA else int(fields.get("size", size))
                # a global size moves no header, as in tarfile: each member's own header has a size, too
                next_header = data + round_up_to_tar_blocks(size) if "size" in extended else next_header
            if data + size > end or (is_extended and size > MAX_EXTENDED_SIZE):
                cut = None if is_extended else name
                self.damage.append(Damage(data, f"cut {end - data} bytes into {name!r}", cut, hides_member=cut is None))
                return
            offset = next_header
            if is_extended:
                extended = self._extended_fields(kind, read(data, size)) | extended
                continue
            if kind not in _REGULAR_TYPES:
                size = NO_DATA
            if extended:
                if any(key.startswith("GNU.sparse") for key in extended):
                    size = NO_DATA
                name, extended = extended.get("GNU.sparse.name", name), {}
            if kind != _FOLDER_TYPE:
                yield name, data, size

    def _extended_fields(self, kind: bytes, content: bytes) -> dict[str, str]:
        """Return what an extended header says of the next member; those of a global one go to `global_fields`."""
        if kind == _LONG_NAME:
            return {"path": content.partition(b"\0")[0].decode(errors="backslashreplace")}
        fields = _parse_pax(content) if kind in _PAX_TYPES or kind == _PAX_GLOBAL else {}
        if kind == _PAX_GLOBAL:
            self.global_fields |= fields
        return {} if kind == _PAX_GLOBAL else fields

    def _next_archive(self, offset: int) -> int | None:
        """Return the offset at which another archive begins after a zero block; None: only padding follows."""
        start = offset
        while block := self.file.read(offset, 1 << 20):
            if block.strip(b"\0"):
                self.damage.append(Damage(offset, "data after the end of the archive"))
                return self._next_header(start)
            offset += len(block)
        if offset - start <= BLOCK:
            self.damage.append(Damage(offset, "only one of the two end-of-archive blocks"))
        return None

    def _next_header(self, offset: int) -> int | None:
        """Return the offset of the next valid header of a ustar or GNU tar; None: there is none."""
        while len(header := self.file.read(offset, BLOCK)) == BLOCK:
            if header[257:262] == b"ustar":
                with suppress(ValueError):
                    parse_tar_header(header)
                    return offset
            offset += BLOCK
        return None


def _no_tar_damage(head: bytes, detail: str) -> Damage:
    """Return the damage of a file that does not begin like a tar: another format, or a damaged beginning."""
    other = describe_foreign_format(head)
    return Damage(0, f"{NOT_A_TAR} but {other}" if other else detail, hides_member=True)


def round_up_to_tar_blocks(member_bytes: int) -> int:
    """Return the bytes of the whole blocks that a member of `member_bytes` bytes fills."""
    return -(-member_bytes // BLOCK) * BLOCK


def num_tar_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes that files of these sizes take in a tar, with headers and padding, without its end."""
    return sum(BLOCK + round_up_to_tar_blocks(size) for size in sizes)


def parse_tar_header(header: bytes) -> tuple[str, int, bytes]:
    """Return name, size and type flag of a header; an unreadable size is below zero. ValueError: a wrong checksum."""
    name, digits, checksum, kind = _unpack_header(header)
    if adler32(header) & 0xFFFF != _adler32_low(checksum):
        raise ValueError
    name = name.partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    if digits[0] & 0x80:  # too large for octal digits
        size = int.from_bytes(bytes((digits[0] & 0x7F,)) + digits[1:], "big")
    else:
        try:
            size = int(digits.rstrip(b" \0") or b"0", 8)
        except ValueError:
            size = -1
    return name.decode(errors="backslashreplace"), size, kind


def is_tar_header_of(header_block: bytes, name: str, size: int) -> bool:
    """Say whether a block alone is the header of this member; of a name that it has no room for, it shows the size."""
    if len(header_block) < BLOCK:
        return False
    if header_block.startswith(b"%b\0" % name.encode()) and header_block[124:136] == b"%011o\0" % size:
        return True
    try:
        its_name, its_size, _ = parse_tar_header(header_block)
    except ValueError:
        return False
    short = name.isascii() and len(name) <= 100
    return 0 <= its_size == size and (not short or its_name == name)


@lru_cache(maxsize=4096)
def _adler32_low(checksum: bytes) -> int:
    """Return the low half of the Adler-32 of a tar header, computed from the header's checksum field (8 bytes).

    It is 1 + the sum of the header's bytes, modulo 65521; the checksum is that sum with its own field as spaces.
    """
    return (1 + int(checksum.rstrip(b" \0") or b"0", 8) - 8 * ord(" ") + sum(checksum)) % 65521


def _parse_pax(payload: bytes) -> dict[str, str]:
    """Parse the records of a PAX header, b"<length> <key>=<value>\\n", up to the first that is broken."""
    fields = {}
    while payload:
        digits, _, _ = payload[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) < length <= len(payload):
            break
        key, _, value = payload[len(digits) + 1 : length - 1].partition(b"=")
        if key in _PAX_KEYS:  # all others could be without end
            fields[key.decode()] = value.decode(errors="backslashreplace").rstrip("/" if key == b"path" else "")
        elif key.startswith(b"GNU.sparse"):
            fields["GNU.sparse"] = ""
        payload = payload[length:]
    if not fields.get("size", "0").isdecimal():
        del fields["size"]
    return fields

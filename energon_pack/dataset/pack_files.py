"""Find the packs in a shard: neighbouring files with one key."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from energon_pack.run.plain_data import parse_json
from energon_pack.samples.member import MemberInput
from energon_pack.samples.pack_reader import READABLE_FLAVORS, PackMembers
from energon_pack.samples.parts import Parts, ReadMedia
from energon_pack.samples.sample import Part
from energon_pack.sources.storage import File
from energon_pack.sources.tar import BLOCK, TarScan


class PackFiles(NamedTuple):
    """The files of one pack in a shard, and where they lie, in bytes."""

    key: str
    start: int  # place of its first header
    end: int  # place after its last block
    parts: list[Part]  # in the tar's order


def packs_in(scan: TarScan) -> Iterator[PackFiles]:
    """Yield the files of each pack in a shard: neighbouring files with the same key."""
    key, start, end = "", 0, 0
    parts: list[Part] = []
    for name, offset, size in scan:
        its_key, _, part = name.partition(".")
        if parts and its_key != key:
            yield PackFiles(key, start, end, parts)
            start, parts = end, []
        key = its_key
        parts.append(Part(part, offset, size))
        end = offset - -max(size, 0) // BLOCK * BLOCK
    if parts:
        yield PackFiles(key, start, end, parts)


def first_json(file: File) -> Any:
    """Parse the first file of a shard, which is the JSON of its first pack."""
    _, offset, size = next(iter(TarScan(file)))
    return parse_json(file.read(offset, size))


def members_of_pack(parts: Parts, flavor: str, read: ReadMedia) -> Iterable[MemberInput]:
    """Return the members of a pack. `parts`: part name → bytes; `read`: reads media that the pack only refers to."""
    if flavor in READABLE_FLAVORS:
        return PackMembers(parts, read)
    from energon_pack.samples.flavors import load_pack_members, packed_flavor_or_default  # of another package

    return load_pack_members(parts, packed_flavor_or_default(flavor), read)

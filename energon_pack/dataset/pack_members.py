"""Read the members of any pack that training takes."""

from collections.abc import Iterator

from energon_pack.samples.member import MemberInput
from energon_pack.samples.pack_reader import NAMES, pack_members
from energon_pack.samples.parts import Parts, json_of
from energon_pack.samples.references import ReadMedia


def members_in(parts: Parts, flavor: str, read: ReadMedia) -> Iterator[MemberInput]:
    """Yield the members of a pack from its parts, without a sample class.

    Raises:
        UnknownFormat, TokensDamaged, KeyError, TypeError, ValueError: as `pack_members`.
    """
    if flavor in NAMES:
        yield from pack_members(parts, json_of(parts["json"]), read)
        return
    from energon_pack.samples.flavors import flavor_written, inputs_of_pack  # of another package

    yield from inputs_of_pack(parts, flavor_written(flavor), read)

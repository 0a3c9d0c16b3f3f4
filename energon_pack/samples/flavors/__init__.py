"""Lists all flavours. To add one, write its class in a file here and add an entry below."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from energon_pack.errors import PackError
from energon_pack.samples.flavors.base import Flavor, PackedFlavor, with_referenced_parts
from energon_pack.samples.flavors.captioning import PackedCaptioning
from energon_pack.samples.flavors.fit import FIT_RULES
from energon_pack.samples.flavors.multi_mix_qa import MultiMixQA, PackedMultiMixQA, PackedTrees
from energon_pack.samples.member import MemberInput
from energon_pack.samples.pack_reader import (
    describe_unreadable_format,
    read_checked_meta,
    refuse_wrong_len,
    tokens_of_pack,
)
from energon_pack.samples.pack_tokens import PACK_FORMAT, TOKENS_PART, PackTokens, members_of
from energon_pack.samples.sample import Parts, ReadMedia, parse_json_part

UNPACKED_FLAVOR = MultiMixQA()
DEFAULT_FLAVOR = PackedMultiMixQA()
#: Packing writes this flavour in place of `DEFAULT_FLAVOR` if members share their beginnings (`packing.share`).
TREES_FLAVOR = PackedTrees()
#: The flavours that packing writes, by `output.flavor`.
PACKED_FLAVORS: dict[str, PackedFlavor] = {flavor.name: flavor for flavor in (DEFAULT_FLAVOR, PackedCaptioning())}
#: The flavours that loading reads, by the `flavor` of dataset.yaml.
FLAVORS: dict[str, Flavor] = {**PACKED_FLAVORS, TREES_FLAVOR.name: TREES_FLAVOR, UNPACKED_FLAVOR.name: UNPACKED_FLAVOR}


def find_packed_flavor(name: str) -> PackedFlavor | None:
    """Return the flavour of packs with this name, of this package or an installed one; None: there is none."""
    if name in PACKED_FLAVORS or name == TREES_FLAVOR.name:
        return PACKED_FLAVORS.get(name, TREES_FLAVOR)
    from energon_pack.run.load_by_name import load_entry_point  # late: only a package's flavour needs it

    flavor = load_entry_point("flavors", "output.flavor", name)
    if flavor is None:
        return None
    if not (isinstance(flavor, type) and issubclass(flavor, PackedMultiMixQA | PackedCaptioning)):
        raise PackError(f"output.flavor={name}: {flavor} is no class that derives from PackedMultiMixQA")
    if flavor.name != name:
        raise PackError(f"output.flavor={name}: its class has name = {flavor.name!r}, by which packs are read again")
    if unknown := {*flavor.rules} - FIT_RULES.keys():
        raise PackError(
            f"output.flavor={name}: its class has the rules {sorted(unknown)}; there are {', '.join(FIT_RULES)}"
        )
    new_flavor: PackedFlavor = flavor()
    return new_flavor


def packed_flavor_or_default(name: object) -> PackedFlavor:
    """Return the flavour of this name; the default one if it is no text. Raises PackError for an unknown name."""
    flavor = find_packed_flavor(name) if isinstance(name, str) else DEFAULT_FLAVOR
    if flavor is None:
        known = ", ".join([*PACKED_FLAVORS, TREES_FLAVOR.name])
        raise PackError(f"flavor {name!r} is not of {known}: install the package that has it in energon_pack.flavors")
    return flavor


def describe_unreadable_dataset(manifest: Mapping[str, Any], oldest_format: int = PACK_FORMAT) -> str | None:
    """Return why this version can't read a dataset's flavour or format by its energon_pack.json; None: it can.

    `oldest_format`: the oldest format that the caller reads.
    """
    name = manifest.get("flavor")
    if isinstance(name, str) and find_packed_flavor(name) is None:
        return f"it has the flavor {name!r}, which no installed package can read"
    return describe_unreadable_format(manifest, oldest_format)


def load_pack(parts: Parts, flavor: PackedFlavor, read: ReadMedia) -> dict[str, Any]:
    """Make the fields of a flavour's sample class from the parts of a pack; raises Skip as its `load` does.

    `read`: reads media from the source if the pack holds no copies.

    Raises:
        UnknownFormat: another tool, or another version of this package, wrote the pack; or it has no tokens.
    """
    value = parse_json_part(parts["json"])
    meta = read_checked_meta(value, str(parts.get("__key__")))
    tokens_of_pack(parts, meta)
    return {**flavor.load(*with_referenced_parts(parts, value, flavor, read)), TOKENS_PART: parts[TOKENS_PART]}


def load_pack_members(parts: Parts, flavor: PackedFlavor, read: ReadMedia) -> Iterator[MemberInput]:
    """Yield the members of a pack from its parts, without Energon's sample class.

    `read`: reads media from the source if the pack holds no copies. Raises Skip as the flavour's `load` and `inputs`.
    """
    fields = {"__key__": parts["__key__"], **load_pack(parts, flavor, read)}
    yield from members_of_sample(flavor, SimpleNamespace(**fields))


def members_of_sample(flavor: Flavor, sample: Any) -> Iterator[MemberInput]:
    """Yield the members of an Energon sample with the tokens that were written; raises Skip as `inputs` does.

    Raises:
        TokensDamaged: its tokens are cut, or a member has another number of tokens than the JSON says.
        ValueError: there are tokens of more or fewer members.
    """
    data = getattr(sample, TOKENS_PART, None)
    if data is None:  # unpacked
        yield from flavor.inputs(sample)
        return
    for member, tokens in zip(flavor.inputs(sample), members_of(PackTokens.from_bytes(data)), strict=True):
        refuse_wrong_len(member.sample_id, member.token_len, tokens)
        yield replace(member, tokens=tokens)


def flavor_of_sample(sample: Any) -> Flavor | None:
    """Find the flavour of an object by its sample class; None: its class is not in `energon_pack.flavors`."""
    names = [cls.__name__ for cls in type(sample).__mro__ if cls.__module__ == "energon_pack.flavors"]
    return next((flavor for name in names for flavor in FLAVORS.values() if flavor.sample_class == name), None)

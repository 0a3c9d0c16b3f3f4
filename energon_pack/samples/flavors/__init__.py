"""Lists all flavours. To add one, write its class in a file here and add an entry below."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from energon_pack.errors import PackError
from energon_pack.run.by_name import load_entry_point
from energon_pack.samples.flavors.base import Flavor, PackedFlavor
from energon_pack.samples.flavors.captioning import PackedCaptioning
from energon_pack.samples.flavors.fit import RULES
from energon_pack.samples.flavors.multi_mix_qa import MultiMixQA, PackedMultiMixQA, PackedTrees
from energon_pack.samples.flavors.references import all_parts
from energon_pack.samples.member import MemberInput
from energon_pack.samples.pack_reader import meta_of, refuse_other_len, tokens_in, why_other_format
from energon_pack.samples.pack_tokens import members_of
from energon_pack.samples.parts import Parts, ReadMedia, json_of
from energon_pack.samples.tokens_part import TOKENS, PackTokens

UNPACKED = MultiMixQA()
DEFAULT = PackedMultiMixQA()
#: Packing writes this flavour in place of `DEFAULT` if members share their beginnings (`packing.share`).
TREES = PackedTrees()
#: The flavours that packing writes, by `output.flavor`.
PACKED: dict[str, PackedFlavor] = {flavor.name: flavor for flavor in (DEFAULT, PackedCaptioning())}
#: The flavours that loading reads, by the `flavor` of dataset.yaml.
FLAVORS: dict[str, Flavor] = {**PACKED, TREES.name: TREES, UNPACKED.name: UNPACKED}


def packed_flavor(name: str) -> PackedFlavor | None:
    """Return the packs' flavour of this name from this package or an installed one; None: there is none."""
    if name in PACKED or name == TREES.name:
        return PACKED.get(name, TREES)
    flavor = load_entry_point("flavors", "output.flavor", name)
    if flavor is None:
        return None
    if not (isinstance(flavor, type) and issubclass(flavor, PackedMultiMixQA | PackedCaptioning)):
        raise PackError(f"output.flavor={name}: {flavor} is no class that derives from PackedMultiMixQA")
    if flavor.name != name:
        raise PackError(f"output.flavor={name}: its class has name = {flavor.name!r}, by which packs are read again")
    if unknown := {*flavor.rules} - RULES.keys():
        raise PackError(
            f"output.flavor={name}: its class has the rules {sorted(unknown)}; there are {', '.join(RULES)}"
        )
    new_flavor: PackedFlavor = flavor()
    return new_flavor


def flavor_written(name: object) -> PackedFlavor:
    """Return the flavour that a dataset's energon_pack.json names; the default flavour if it names none."""
    flavor = packed_flavor(name) if isinstance(name, str) else DEFAULT
    if flavor is None:
        known = ", ".join([*PACKED, TREES.name])
        raise PackError(f"flavor {name!r} is not of {known}: install the package that has it in energon_pack.flavors")
    return flavor


def why_unknown(manifest: Mapping[str, Any]) -> str | None:
    """Say why this version can't read a dataset with this energon_pack.json; None: it can."""
    name = manifest.get("flavor")
    if isinstance(name, str) and packed_flavor(name) is None:
        return f"it has the flavor {name!r}, which no installed package can read"
    return why_other_format(manifest)


def load_pack(parts: Parts, flavor: PackedFlavor, read: ReadMedia) -> dict[str, Any]:
    """Make the fields of a flavour's sample class from the parts of a pack; raises Skip as its `load` does.

    Raises:
        UnknownFormat: another tool, or another version of this package, wrote the pack; or it has no tokens.
    """
    value = json_of(parts["json"])
    meta = meta_of(value, str(parts.get("__key__")))
    tokens_in(parts, meta)
    return {**flavor.load(*all_parts(parts, value, flavor, read)), TOKENS: parts[TOKENS]}


def inputs_of_pack(parts: Parts, flavor: PackedFlavor, read: ReadMedia) -> Iterator[MemberInput]:
    """Yield the members of a pack from its parts without a sample class; raises Skip as `load` and `inputs` do."""
    fields = {"__key__": parts["__key__"], **load_pack(parts, flavor, read)}
    yield from inputs_of_sample(flavor, SimpleNamespace(**fields))


def inputs_of_sample(flavor: Flavor, sample: Any) -> Iterator[MemberInput]:
    """Yield the members of an Energon sample with the tokens that were written; raises Skip as `inputs` does.

    Raises:
        TokensDamaged: its tokens are cut, or a member has not so many as the JSON says.
        ValueError: there are tokens of more or fewer members.
    """
    data = getattr(sample, TOKENS, None)
    if data is None:  # unpacked
        yield from flavor.inputs(sample)
        return
    for member, tokens in zip(flavor.inputs(sample), members_of(PackTokens.from_bytes(data)), strict=True):
        refuse_other_len(member.sample_id, member.token_len, tokens)
        yield replace(member, tokens=tokens)


def flavor_of_sample(sample: Any) -> Flavor | None:
    """Find the flavour of an object by its sample class; None: its class is not in `energon_pack.flavors`."""
    names = [cls.__name__ for cls in type(sample).__mro__ if cls.__module__ == "energon_pack.flavors"]
    return next((flavor for name in names for flavor in FLAVORS.values() if flavor.sample_class == name), None)

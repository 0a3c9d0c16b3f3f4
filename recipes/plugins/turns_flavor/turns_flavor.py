"""A form of the packs' JSON, in a package of its own: `pip install recipes/plugins/turns_flavor`, and then

    energon-pack +model=qwen2_5_vl output.flavor=packed_turns

The JSON says of each member how many turns it has. Training needs this package, too: dataset.yaml names the flavour.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from energon_pack import PackedMultiMixQA


def is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) for number in value)


class PackedTurns(PackedMultiMixQA):
    """`verify` checks each field by `schema`, and what fields say of each other by `defects`."""

    name = "packed_turns"
    schema: ClassVar[Any] = {**PackedMultiMixQA.schema, "num_turns": ("a list of integers", is_counts)}

    def write(self, conversations: Sequence[Any], meta: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().write(conversations, meta), "num_turns": [len(member.messages) for member in conversations]}

    def defects(self, fields: Mapping[str, Any]) -> Iterator[str]:
        yield from super().defects(fields)
        if {"messages", "num_turns"} <= fields.keys():
            found = [len(member["messages"]) for member in fields["messages"]]
            if found != fields["num_turns"]:
                yield f"num_turns is {fields['num_turns']}, its members have {found}"

"""Packed conversations that share beginnings: `packed_multi_mix_qa`, and how much each shares with the one before it.

    {"messages": […], "media_files": [["s000.i00.jpg"], ["s000.i00.jpg", "s001.i01.png"]],
     "_meta": {"shared_lens": [0, 312], …}}

Each conversation is whole. A medium in the shared beginning is in the pack once, and each member names it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from energon_pack.samples.flavors.base import Fields
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA
from energon_pack.samples.flavors.parts import kind_of
from energon_pack.samples.flavors.schema import COUNTS, META, Schema
from energon_pack.samples.media.kinds import IMAGE, VIDEO
from energon_pack.samples.member import MemberInput, Shared
from energon_pack.samples.pack_reader import num_shared
from energon_pack.samples.parts import Parts


class PackedTrees(PackedMultiMixQA):
    """A pack of conversations; each may begin as the one before it does."""

    name = "packed_trees"
    sample_class = "PackedTreesSample"
    subflavor = "packed_trees"
    meta: ClassVar[Schema] = {**META, "shared_lens": COUNTS}

    def load(self, parts: Parts, value: Fields) -> dict[str, Any]:
        counts = list(num_shared(self.parts(value), value["_meta"]["shared_lens"]))
        kinds = [[kind_of(parts, name) for name in names] for names in value["media_files"]]
        shared = [kinds_of[:num] for kinds_of, num in zip(kinds, counts, strict=True)]
        return {
            **super().load(parts, value),
            "shared_lens": value["_meta"]["shared_lens"],
            "shared_images": [member.count(IMAGE.kind) for member in shared],
            "shared_videos": [member.count(VIDEO.kind) for member in shared],
        }

    def inputs(self, sample: Any) -> Iterator[MemberInput]:
        shared = zip(sample.shared_lens, sample.shared_images, sample.shared_videos, strict=True)
        for member, counts in zip(super().inputs(sample), shared, strict=True):
            yield replace(member, shared=Shared(*counts))

"""A form of `packed_multi_mix_qa` for a sample class that takes one question and one answer from each member.

The JSON is the same. Samples that do not fit into that class are left out, and the data has another sample_loader.py.
"""

from collections.abc import Sequence
from typing import Any

from energon_pack.samples.flavors.captioning import not_alternating
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA
from energon_pack.samples.media.kinds import IMAGE, KINDS, VIDEO
from energon_pack.samples.sample import Message


class PackedQuestions(PackedMultiMixQA):
    """Packs for LoongForge's PackedMultiMixQASample."""

    form = "questions"
    gives = ("images", "videos", "contexts", "answers")

    def does_not_fit(self, messages: Sequence[Message], tools: list[Any] | None, kinds: Sequence[str]) -> str | None:
        what = not_alternating(messages, tools) or ("several questions" if len(messages) > 2 else None)
        other = next((kind for kind in kinds if kind not in (IMAGE.kind, VIDEO.kind)), None)
        what = what or (KINDS[other].noun if other else None)
        return what and f"{what}, and the sample class takes a context and an answer of each member"

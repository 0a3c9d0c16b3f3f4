"""A form of `packed_multi_mix_qa` for a sample class that takes one question and one answer of each member.

The JSON is the same. Samples that do not fit into such a class are left out, and another sample_loader.py lies beside
the data.
"""

from collections.abc import Sequence
from typing import Any

from energon_pack.samples.flavors.captioning import not_alternating
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA
from energon_pack.samples.sample import Message


class PackedQuestions(PackedMultiMixQA):
    """Packs for LoongForge's PackedMultiMixQASample."""

    form = "questions"
    gives = ("images", "videos", "contexts", "answers")

    def does_not_fit(self, messages: Sequence[Message], tools: list[Any] | None, kinds: Sequence[str]) -> str | None:
        what = not_alternating(messages, tools) or ("several questions" if len(messages) > 2 else None)
        what = what or ("a sound" if "audio" in kinds else None)
        return what and f"{what}, and the sample class takes a context and an answer of each member"

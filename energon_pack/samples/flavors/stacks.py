"""Flavours for the sample classes of other stacks, which a sample_loader.py beside the data fills.

The packs are those of the flavour; only what another stack reads as it is meant is in them.
"""

from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.flavors.captioning import PackedCaptioning
from energon_pack.samples.flavors.multi_mix_qa import PackedMultiMixQA


class LoongForgeChats(PackedMultiMixQA):
    """Packs for LoongForge's PackedChatMixSample: conversations, with system turns and tools."""

    rules = ("stacks", "formats")
    gives = ("packed_messages", "packed_images", "packed_videos")


class LoongForgeTurns(PackedMultiMixQA):
    """Packs for LoongForge's PackedMultiMixQASample: the questions and the answers of each member."""

    rules = ("turns", "stacks", "formats")
    gives = ("images", "videos", "contexts", "answers")
    loader = "sample_loader_of_turns"


class LlavaCaptions(PackedCaptioning):
    """Packs for LLaVA-OneVision-2's PackedCaptioningSample."""

    rules = (*PackedCaptioning.rules, "stacks")
    gives = ("images", "prompts", "captions", "patch_positions", "fps", "timestamp_decimal")


#: The first whose fields a class takes is for it.
STACKS: tuple[PackedFlavor, ...] = (LoongForgeChats(), LoongForgeTurns(), LlavaCaptions())

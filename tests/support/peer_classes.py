"""Stand-ins for the sample classes of other stacks, with the fields that these have: no code of theirs is here."""

from typing import Any

from megatron.energon import Sample, edataclass


@edataclass
class TheirCaptioning(Sample):
    """The fields of LLaVA-OneVision-2's packed sample, under its names."""

    images: list[Any]
    prompts: list[Any] | None
    captions: list[Any]
    patch_positions: list[Any] | None = None
    fps: list[Any] | None = None
    timestamp_decimal: list[Any] | None = None


@edataclass
class TheirChatMix(Sample):
    """The fields of LoongForge's packed conversations, under its names."""

    packed_messages: list[Any]
    packed_images: list[Any] | None = None
    packed_videos: list[Any] | None = None
    system: str | None = None


@edataclass
class TheirMixQA(Sample):
    """The fields of LoongForge's packed questions and answers, under its names: all turns of each member."""

    images: list[list[Any]] | None
    videos: list[list[Any]] | None
    contexts: list[list[str]]
    answers: list[list[str]]
    answer_weights: list[Any] | None = None

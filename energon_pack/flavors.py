"""Energon sample types for packed and for unpacked multimodal conversations.

Images are PIL images, upright and RGB, decoded when their pixels are first used. Videos and sounds are the bytes of the
file. If a task encoder sets its own decoder for a crude dataset, media are that decoder's output.
"""

from typing import Any, Optional  # Energon's reader of dataset.yaml wants Optional

from megatron.energon import Sample, edataclass

__all__ = ["MultiMixQASample", "PackedCaptioningSample", "PackedMultiMixQASample", "PackedTreesSample"]


@edataclass
class MultiMixQASample(Sample):
    """One conversation with its media: an unpacked sample."""

    #: role/content messages; each `<image>`, `<video>` or `<audio>` in a content stands for the next of its kind
    messages: list[dict[str, Any]]
    #: its images, in the order of their placeholders
    image: Optional[list[Any]] = None
    #: its videos
    video: Optional[list[Any]] = None
    #: tool schemas for the chat template
    tools: Optional[list[Any]] = None
    #: for each video the indices of its frames, or None where the model chooses
    video_frames: Optional[list[Any]] = None
    #: the sample's own options: `weight`, `chat_template_kwargs`, `media_settings`, `label_settings`
    options: Optional[dict[str, Any]] = None
    #: its sounds
    audio: Optional[list[Any]] = None
    #: media of kinds that packages add, by kind
    others: Optional[dict[str, Any]] = None


@edataclass
class PackedMultiMixQASample(Sample):
    """One pack: n conversations, each with its own media. All lists have n entries, one a member."""

    #: role/content messages of each member
    messages: list[list[dict[str, Any]]]
    #: images of each member, in the order of its placeholders
    images: list[list[Any]]
    #: videos of each member
    videos: list[list[Any]]
    #: tool schemas of each member
    tools: list[Optional[list[Any]]]
    #: text, image, video, audio or mix
    media_type: str
    #: `<source shard>/<key>` of each member
    sample_ids: list[str]
    #: measured tokens of each member
    token_lens: Optional[list[int]] = None
    #: tokens of each member that are trained on
    num_supervised: Optional[list[int]] = None
    #: fingerprint of the tokenizer, chat template and image rules with which lengths were measured
    fingerprint: Optional[str] = None
    #: for each member its own `video_frames`: for each video the indices of its frames, or None
    video_frames: Optional[list[Any]] = None
    #: options of each member: `weight`, `chat_template_kwargs`, `media_settings`, `label_settings`
    options: Optional[list[Any]] = None
    #: sounds of each member
    audios: Optional[list[list[Any]]] = None
    #: media of kinds that packages add, by kind: of each member
    others: Optional[dict[str, Any]] = None
    #: what a model is fed of each member: `samples.pack_tokens` reads it
    tokens: Optional[bytes] = None


@edataclass
class PackedTreesSample(PackedMultiMixQASample):
    """One pack whose members may share their first tokens and media with the member before them (`packing.share`)."""

    #: for each member, how many first tokens it shares with the member before it
    shared_lens: Optional[list[int]] = None
    #: for each member, how many of its images lie in the shared tokens
    shared_images: Optional[list[int]] = None
    #: for each member, how many of its videos lie in the shared tokens
    shared_videos: Optional[list[int]] = None


@edataclass
class PackedCaptioningSample(Sample):
    """One pack in LLaVA-OneVision-2's layout: prompts and captions alternate, a member may have several of each."""

    #: images of each member
    images: list[list[Any]]
    #: user turns of each member
    prompts: list[list[str]]
    #: assistant turns of each member
    captions: list[list[str]]
    #: int array of (t, h, w) per patch for each image of each member, None for an image without
    patch_positions: Optional[list[list[Any]]] = None
    #: frames per second of each member
    fps: Optional[list[Any]] = None
    #: decimals of the timestamps of each member
    timestamp_decimal: Optional[list[Any]] = None
    #: see `PackedMultiMixQASample`
    sample_ids: Optional[list[str]] = None
    token_lens: Optional[list[int]] = None
    num_supervised: Optional[list[int]] = None
    fingerprint: Optional[str] = None
    options: Optional[list[Any]] = None
    tokens: Optional[bytes] = None

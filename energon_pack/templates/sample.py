"""Input and outputs of a template: a sample, its text, its tokens. Plain data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from energon_pack.samples.media.kinds import AUDIO, IMAGE
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import has_frame_lists, media_seen_by_model
from energon_pack.samples.member import NO_OPTIONS, SampleOptions
from energon_pack.samples.placeholders import spells_placeholder, split_content_at_placeholders
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import ControlTokens
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.turns import NO_EMPTY_ANSWERS, EmptyAnswerCount

_EMPTY_DETAIL = "no answer has a text, a thought, a tool call or a medium"


@dataclass(frozen=True)
class Sample:
    """One conversation with its media, ready to be rendered."""

    messages: list[Message]  # as `place_media` returned them
    media: list[Media]  # in the order of their placeholders
    tools: list[Any] | None = None
    options: SampleOptions = NO_OPTIONS


def with_frame_lists_as_videos(sample: Sample) -> Sample:
    """Return the sample with each list of frames as one video, as models see it; raises Skip for text in a list."""
    if not sample.media:
        return sample
    messages, media = frame_lists_as_videos(sample.messages, sample.media)
    return sample if media is sample.media else replace(sample, messages=messages, media=media)


def frame_lists_as_videos(messages: list[Message], media: list[Media]) -> tuple[list[Message], list[Media]]:
    """Return messages and media with each list of frames as one video; raises Skip for text between the frames."""
    if not has_frame_lists(media):
        return messages, media
    seen = list(media_seen_by_model(media))
    kinds = {part.start: medium.kind for medium, part in seen}
    ends = {part.start: part.stop for _, part in seen}
    number = end = 0  # number of the next medium, and the end of its list
    result = []
    for message in split_content_at_placeholders(messages, [medium.kind for medium in media]):
        content = message["content"]
        parts: list[Message] = []
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if part["type"] == "text":
                if number < end:
                    problem = "text stands between the frames of a video (source.frames=images takes them for images)"
                    raise Skip(Reason.PLACEHOLDER_MISMATCH, problem)
                parts.append(part)
                continue
            if number in ends:
                parts.append({**part, "type": kinds[number]})
                end = ends[number]
            number += 1
        is_text = isinstance(content, str) and not spells_placeholder(content)
        result.append({**message, "content": content if is_text else parts})
    return result, [medium for medium, _ in seen]


@dataclass(frozen=True)
class Rendered:
    """The text of a sample, in which media are written as their tokens, and the ranges of its trained characters."""

    text: str
    spans: list[tuple[int, int]]  # supervised characters of `text`
    num_visual_tokens: int  # tokens with features of images and videos
    num_control_tokens: int  # special tokens that the messages spell out
    leaves_out_tools: bool = False  # the chat template does not write its tools
    media: Sequence[tuple[int, int]] = ()  # characters of each medium, in order; a list of frames is one video
    weights: Sequence[float] = ()  # of each span; empty: all are 1
    leaves_out_reasoning: bool = False  # the chat template does not write thoughts of earlier answers
    num_audio_tokens: int = 0  # tokens with features of sounds
    token_range: tuple[int, int] | None = None  # the tokens of `text` that are the sample; None: all
    num_features: Sequence[int] = ()  # tokens that hold features of each medium, in the order of `media`
    leaves_out_words: bool = False  # the chat template does not write other words of it (`labels.template_drops=keep`)
    empty_answers: EmptyAnswerCount = NO_EMPTY_ANSWERS  # those that are not trained because they say nothing
    final_end: str = ""  # the token that `labels.final_end` adds: the chat template does not write it
    clip_frames: int = 0  # frames of each of its clips, if clips of one batch need equally many; else 0

    def media_counts(self, kinds: Sequence[str]) -> dict[str, int]:
        """Count visual tokens, images, sounds … of the sample, by column name; `kinds`: the kind of each medium."""
        return {
            "num_visual_tokens": self.num_visual_tokens,
            IMAGE.column: kinds.count(IMAGE.kind),
            "num_audio_tokens": self.num_audio_tokens,
            AUDIO.column: kinds.count(AUDIO.kind),
            "clip_frames": self.clip_frames,
        }

    def skip_if_left_out(self, control_tokens: ControlTokens) -> None:
        """Raise Skip for a whole sample that the settings leave out: its answers are empty, or it spells tokens."""
        if self.num_control_tokens and control_tokens is ControlTokens.skip:
            raise Skip(Reason.CONTROL_TOKEN, "a message spells a special token (source.control_tokens=keep)")
        if self.empty_answers.are_all:
            raise Skip(Reason.EMPTY_ANSWER, f"{_EMPTY_DETAIL} (labels.empty=train trains its end token)")


@dataclass(frozen=True)
class Tokens:
    """The token ids of a sample, and the ranges of those that are trained."""

    ids: list[int]
    supervised: list[tuple[int, int]]  # ranges of token indices
    weights: Sequence[float] = ()  # of each range; empty: all are 1

    @property
    def num_supervised(self) -> int:
        return sum(end - start for start, end in self.supervised)

"""Turn lists of frames into videos, as the model sees them. Pure."""

from energon_pack.samples.media.asked import has_lists, lists_of_frames
from energon_pack.samples.media.medium import Media
from energon_pack.samples.placeholders import spells_placeholder, split_content
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip


def as_videos(messages: list[Message], media: list[Media]) -> tuple[list[Message], list[Media]]:
    """Return a conversation as the model sees it: each list of frames is one video.

    Args:
        messages: as `place_media` returned them.
        media: in the order of their placeholders.

    Raises:
        Skip: `placeholder_mismatch`: text stands between the frames of a video.
    """
    if not has_lists(media):
        return messages, media
    seen = list(lists_of_frames(media))
    kinds = {part.start: medium.kind for medium, part in seen}
    ends = {part.start: part.stop for _, part in seen}
    number = end = 0  # number of the next medium, and the end of its list
    result = []
    for message in split_content(messages, [medium.kind for medium in media]):
        content = message["content"]
        parts: list[Message] = []
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if part["type"] == "text":
                if number < end:
                    what = "text stands between the frames of a video (source.frames=images takes them for images)"
                    raise Skip(Reason.PLACEHOLDER_MISMATCH, what)
                parts.append(part)
                continue
            if number in ends:
                parts.append({**part, "type": kinds[number]})
                end = ends[number]
            number += 1
        is_text = isinstance(content, str) and not spells_placeholder(content)
        result.append({**message, "content": content if is_text else parts})
    return result, [medium for medium, _ in seen]

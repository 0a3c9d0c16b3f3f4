"""Tokenize members that are in no pack: unpacked samples, and packs of other tools."""

import io
from collections.abc import Sequence
from typing import Any, Protocol

from energon_pack.samples.media.asked import as_asked
from energon_pack.samples.media.kinds import IMAGE
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.probe import probe
from energon_pack.samples.member import MemberInput
from energon_pack.samples.placeholders import split_content
from energon_pack.samples.tokens import LengthError, MemberTokens
from energon_pack.templates.sample import Sample


class MemberTokenizer(Protocol):
    """What tokenizes samples: a `Template`."""

    @property
    def fingerprint(self) -> str: ...

    def member_tokens(self, samples: Sequence[Sample], engine: str = ...) -> list[MemberTokens]: ...


def tokens_of(template: MemberTokenizer, member: MemberInput, engine: str = "auto") -> MemberTokens:
    """Render and tokenize a member that was in no pack.

    Raises:
        LengthError: it has another length than it was measured with.
        OSError, Skip: a medium is missing, or its bytes are no medium; or the member can't be rendered.
    """
    (made,) = template.member_tokens([sample_of(member)], engine)
    if member.token_len is not None and len(made) != member.token_len:
        raise LengthError(
            f"{member.sample_id} has {len(made)} tokens in training, {member.token_len} when it was packed"
            f" (fingerprint {template.fingerprint})"
        )
    return made


def sample_of(member: MemberInput) -> Sample:
    """Return a member in the form that a template renders; media that are not decoded yet are read by their headers."""
    member.refuse_missing()
    files = {kind: own for kind, own in member.media.items() if kind != IMAGE.kind}
    media = {
        IMAGE.kind: iter([getattr(image, "medium", Media(IMAGE.kind, *image.size)) for image in member.images]),
        **{kind: iter([probe(io.BytesIO(data)) for data in own]) for kind, own in files.items()},
    }
    kinds = [kind for kind, own in member.media.items() for _ in own]
    in_order = _order(member.messages, kinds)
    if sorted(in_order) == sorted(kinds):  # else another tool's pack is wrong, and the template says how
        kinds = in_order
    waiting = {kind: iter(own) for kind, own in member.media.items()}
    data = [next(waiting[kind]) for kind in kinds]
    found = [next(media[kind]) for kind in kinds]
    seen_media = as_asked(found, member.video_frames, member.options, lambda index: io.BytesIO(data[index]))
    return Sample(member.messages, seen_media, member.tools, member.options)


def _order(messages: list[dict[str, Any]], kinds: Sequence[str]) -> list[str]:
    """Return the kinds of media in the order of their placeholders."""
    contents = [message["content"] for message in split_content(messages, kinds)]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part["type"] for part in parts if part["type"] != "text"]

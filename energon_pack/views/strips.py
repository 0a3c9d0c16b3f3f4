"""Cut a pack into the pieces of a bar: text, images and videos by member; the rest is padding."""

from itertools import groupby

from energon_pack.pages.svg import Piece
from energon_pack.samples.media.kinds import KINDS
from energon_pack.views.view import MemberView, PackView


def pieces_of(pack: PackView) -> list[Piece]:
    """Return the pieces in order, each with its label; a member that was not measured has none."""
    return [
        piece._replace(is_odd=number % 2 == 1)
        for number, member in enumerate(pack.members)
        for piece in member_pieces(member, f"member {number}")
    ]


def member_pieces(member: MemberView, name: str) -> list[Piece]:
    """Return the pieces of a member: by its tokens, or, without them, its media and then its text."""
    where = f"{name}, {member.sample_id}"
    if member.spans is not None:
        alike = groupby(member.spans, key=lambda span: span.kind if span.kind in KINDS else "text")
        sums, left = [], member.shared_len
        for kind, spans in alike:
            num = sum(span.num_tokens for span in spans)
            sums.append((kind, max(0, num - left)))
            left = max(0, left - num)
    elif member.token_len is None:
        return []
    elif member.num_visual_tokens is None:
        sums = [("unknown" if member.media else "text", member.token_len - member.shared_len)]
    else:
        visual = member.num_visual_tokens - member.num_shared_visual
        sums = [(member.media_type, visual), ("text", member.token_len - member.shared_len - visual)]
    words = {"mix": "images and videos", "unknown": "text and media"}
    return [Piece(kind, size, f"{where}: {words.get(kind, kind)}, {size:,} tokens") for kind, size in sums if size > 0]

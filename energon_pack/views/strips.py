"""The bar of a pack: pieces of text, images and videos by member; the rest is padding."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from energon_pack.pages.html import Html, join
from energon_pack.pages.svg import Piece, legend, strip
from energon_pack.samples.media.kinds import KINDS
from energon_pack.views.view import MemberView, PackView

_MOST_PIECES = 400  # pieces on a page; more would be narrower than a pixel


def pack_strip(pack: PackView) -> Html | None:
    """Draw a pack as a bar, with a key to its colours; a member that was not measured has no piece."""
    pieces = [
        piece._replace(is_odd=number % 2 == 1)
        for number, member in enumerate(pack.members)
        for piece in _member_pieces(member, f"member {number}")
    ]
    if not pieces:
        return None
    used = sum(piece.size for piece in pieces)
    total = max(pack.max_token_len or 0, used)
    kinds = dict.fromkeys([*(piece.kind for piece in pieces), *["padding"] * (total > used)])
    return join((strip(_fewer(pieces), total), legend(kinds)))


def _member_pieces(member: MemberView, name: str) -> list[Piece]:
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


def _fewer(pieces: Sequence[Piece]) -> list[Piece]:
    """Merge neighbours until few enough pieces are left; a merged piece has the kind that most of it is."""
    every = -(-len(pieces) // _MOST_PIECES)
    return list(pieces) if every < 2 else list(_joined(pieces, every))


def _joined(pieces: Sequence[Piece], every: int) -> Iterator[Piece]:
    for start in range(0, len(pieces), every):
        some = pieces[start : start + every]
        most = max(some, key=lambda piece: piece.size)
        size = sum(piece.size for piece in some)
        yield most._replace(size=size, label=f"{most.label}, and {len(some) - 1} more")

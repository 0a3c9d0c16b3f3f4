"""Show a pack, and a sample, as parts of a page: a strip of the members, their pictures, and their text as tokens."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from energon_pack.errors import amount
from energon_pack.pages.html import Html, details, join, picture, table, tag
from energon_pack.pages.svg import Piece, legend, strip
from energon_pack.views.strips import pieces_of
from energon_pack.views.view import Medium, MemberView, PackView, Span, times

_MOST_PIECES = 400  # pieces of a strip; more would be narrower than a pixel
_LEAST_CHARS = 240  # characters of a member's text
_OPEN = 4  # members that are open without a click
_LEAST_SPANS, _CHARS_OF_SPAN = 24, 16  # spans of a member that are shown, and characters that allow one more
_LEAST_SHOWN = 40  # characters of a span
MARKED = (
    "Marked text is what is trained on; ×0.5 behind it is how much each of its tokens counts, where that is not 1. Grey"
    " tokens are the chat template's own."
)


def pack_section(view: PackView, max_chars: int = 12_000, max_members: int = 24) -> Html:
    """Build the section of a pack: a strip of its members, then each of them.

    Args:
        max_chars: of all text that is shown; longer texts lose their middle.
        max_members: members that are shown; of the others, the strip shows the place.
    """
    shown = view.members[:max_members]
    each = max(_LEAST_CHARS, max_chars // max(1, len(shown)))
    blocks = [member_block(member, f"#{number}", each) for number, member in enumerate(shown)]
    rest = len(view.members) - len(shown)
    return tag(
        "div",
        tag("h3", f"Pack {view.number:,} of {view.num_packs:,}: ", tag("code", view.key)),
        tag("p", pack_facts(view), class_="faint"),
        *(tag("p", note, class_="bad") for note in view.notes),
        pack_strip(view),
        tag("p", MARKED, class_="says") if any(member.spans for member in shown) else None,
        *blocks[:_OPEN],
        details(_more(len(blocks) - _OPEN), *blocks[_OPEN:]) if blocks[_OPEN:] else None,
        tag("p", f"and {_more(rest)}", class_="faint") if rest else None,
        class_="pack",
    )


def _more(number: int) -> str:
    return amount(number, "more member")


def pack_facts(view: PackView) -> str:
    """Describe a pack in a line."""
    members = amount(len(view.members), "member")
    facts = [view.media_type, members]
    if (total := view.token_len) is not None:
        of = (
            f" of {view.max_token_len:,} tokens ({total / view.max_token_len:.1%})" if view.max_token_len else " tokens"
        )
        facts.append(f"{total:,}{of}")
        if None not in (trained := [member.num_supervised for member in view.members]):
            share = sum(filter(None, trained))
            facts.append(f"{share:,} trained on ({share / max(1, total):.0%})")
    return " · ".join([*facts, view.shard or "not written yet"])


def pack_strip(view: PackView) -> Html | None:
    """Draw the bar of a pack; None where no length is known."""
    pieces = _fewer(pieces_of(view))
    if not pieces:
        return None
    used = sum(piece.size for piece in pieces)
    total = max(view.max_token_len or 0, used)
    kinds = [piece.kind for piece in pieces] + ["padding"] * (total > used)
    return join((strip(pieces, total), legend(dict.fromkeys(kinds))))


def members_table(members: Sequence[MemberView]) -> Html:
    """Build a table with one row for each member; one that shares its beginning is a branch of the one before."""
    is_shared = any(member.shared_len for member in members)
    rows = [
        (
            tag("code", f"{'└ ' if member.shared_len else ''}#{number} {member.sample_id}"),
            member.media_type,
            *(_count(value) for value in (len(member.turns), member.token_len, member.num_visual_tokens)),
            _count(member.num_supervised),
            *([_count(member.shared_len)] if is_shared else []),
        )
        for number, member in enumerate(members)
    ]
    header = ("member", "medium", "turns", "tokens", "visual", "trained on", *(["shared"] if is_shared else []))
    return table(header, rows, num_words=2)


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def member_block(member: MemberView, name: str, max_chars: int) -> Html:
    """Build the block of a member or a sample: its id, lengths, pictures and text.

    Args:
        max_chars: of its text.
    """
    text = turns_table(member, max_chars) if member.spans is None else tokens_text(member.spans, max_chars)
    return tag(
        "article",
        tag("h4", f"{name} ", tag("code", member.sample_id)),
        tag("p", member_facts(member), class_="faint"),
        tag("p", f"In no pack: {member.refused}", class_="bad") if member.refused else None,
        *(tag("p", note, class_="bad") for note in member.notes),
        pictures(member.media),
        text,
        class_="member",
    )


def member_facts(member: MemberView) -> str:
    """Describe a member in a line."""
    facts = [member.media_type, amount(len(member.turns), "turn")]
    if member.token_len is not None:
        facts.append(f"{member.token_len:,} tokens")
        if member.shared_len:
            facts.append(f"the first {member.shared_len:,} shared with the one before")
        if member.num_visual_tokens:
            facts.append(f"{member.num_visual_tokens:,} visual")
        if member.num_supervised is not None:
            facts.append(
                f"{member.num_supervised:,} trained on ({member.num_supervised / max(1, member.token_len):.0%})"
            )
    if member.weight != 1:
        facts.append(f"the whole sample counts {times(member.weight)}")
    return " · ".join(facts)


def pictures(media: Sequence[Medium]) -> Html | None:
    """Show the media of a member side by side."""
    if not media:
        return None
    return tag("div", *map(_figure, media), class_="pictures")


def _figure(medium: Medium) -> Html:
    seen = f" → {medium.seen}" if medium.seen else ""
    tokens = f", {medium.num_tokens:,} tokens" if medium.num_tokens else ""
    shown = None if medium.data is None else picture(medium.data, "image/webp", str(medium), loading="lazy")
    return tag(
        "figure",
        shown,
        tag("figcaption", tag("code", medium.name), tag("br"), f"{medium}{seen}{tokens}"),
        tag("figcaption", medium.problem, class_="bad") if medium.problem else None,
    )


def tokens_text(spans: Sequence[Span], max_chars: int) -> Html:
    """Show tokens as text: special tokens and media look different, trained text is marked.

    Args:
        max_chars: approximate. Longer texts lose their middle, trained text last; the end is always there.
    """
    most = max(_LEAST_SPANS, max_chars // _CHARS_OF_SPAN)
    end = min(len(spans), most // 4)
    head, tail = (list(spans), []) if len(spans) <= most else (spans[: most - end], spans[-end:])
    rest = sum(span.num_tokens for span in spans[len(head) : len(spans) - len(tail)])
    rooms = iter(_rooms([*head, *tail], max_chars))
    gap = tag("span", f" … {rest:,} tokens … ", class_="faint") if rest else None
    return tag("div", *_marked(head, rooms), gap, *_marked(tail, rooms), class_="tokens")


def _marked(spans: Sequence[Span], rooms: Iterator[int]) -> Iterator[Html]:
    """Yield the spans; trained ones are in marks."""
    for weight, alike in groupby(spans, key=lambda span: span.weight):
        some = list(alike)
        inner = [_token(span, next(rooms)) for span in some]
        yield _trained(inner, sum(span.num_tokens for span in some), weight) if weight else join(inner)


def _rooms(spans: Sequence[Span], max_chars: int) -> list[int]:
    """Return how many characters of each span are shown: three quarters go to trained text, if it needs them."""
    trained, others = ([len(s.text) for s in spans if s.kind == "text" and s.is_trained is of] for of in (True, False))
    of_others = shared_evenly(others, max(max_chars // 4, max_chars - sum(trained)))
    of_trained = shared_evenly(trained, max(max_chars - sum(min(size, of_others) for size in others), 0))
    return [max(_LEAST_SHOWN, of_trained if span.is_trained else of_others) for span in spans]


def shared_evenly(sizes: Sequence[int], room: int) -> int:
    """Return the largest size to which all can be cut so that together they fit into `room`."""
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        if size * (len(ascending) - place) > room:
            return room // (len(ascending) - place)
        room -= size
    return ascending[-1] if ascending else 0


def _trained(inner: Sequence[Html], num_tokens: int, weight: float) -> Html:
    """Mark text that is trained on; show its weight where that is not 1."""
    told = f"trained on: {num_tokens:,} tokens"
    if weight == 1:
        return tag("mark", *inner, title=told)
    chip = tag("span", times(weight), class_="weight")
    return tag("mark", *inner, chip, title=f"{told}, each counts {weight:.6g}", class_="less" if weight < 1 else "more")


def _token(span: Span, room: int) -> Html:
    if span.kind == "text":
        return _gapped(_folded(span.text, room))
    if span.kind == "special":
        return tag("span", span.text, class_="special")
    return tag("span", f"{span.text}, {span.num_tokens:,} tokens", class_=f"medium on-{span.kind}")


def turns_table(member: MemberView, max_chars: int) -> Html | None:
    """Build a table of the messages by role, for a page without a tokenizer."""
    if not member.turns:
        return None
    each = max(80, max_chars // len(member.turns))
    rows = ((turn.role, tag("div", _gapped(_folded(turn.text, each)), class_="tokens")) for turn in member.turns)
    return table(("role", "text"), rows, num_words=2, class_="turns")


def _gapped(text: Sequence[str]) -> Html:
    """Show the head of a text, and its end if the middle was left out."""
    if len(text) == 1:
        return join(text)
    return join((text[0], tag("span", text[1], class_="faint"), text[2]))


def _folded(text: str, most: int) -> list[str]:
    """Return a text, or its head, a note of how much is left out, and its end."""
    if len(text) <= most:
        return [text]
    tail = most // 4
    head = most - tail
    return [text[:head], f" … {len(text) - most:,} characters … ", text[len(text) - tail :]]


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

"""Show a pack, and a sample of a source, in a terminal and on a page."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.text import Text

from energon_pack.errors import amount, escape_unprintable
from energon_pack.report.pages.bars import Piece, draw_colour_legend, draw_segmented_bar
from energon_pack.report.pages.html import Html, Rows, code_cell, details, join, print_table, tag
from energon_pack.report.views.text import (
    MARKS_EXPLAINED,
    DisplayBlock,
    PicturesBlock,
    SentenceBlock,
    Tokens,
    TurnsBlock,
)
from energon_pack.report.views.view import MediumView, MemberView, PackView, Span, weight_text
from energon_pack.run.console import console, say
from energon_pack.samples.media.kinds import KINDS

_MIN_MEMBER_CHARS = 240  # characters of a member's text on a page
_OPEN_MEMBERS = 4  # members that are open without a click
_MEMBERS_LISTED, _MEMBERS_WITH_TEXT, _MAX_TEXT_CHARS = (
    64,
    8,
    1_200,
)  # members that a terminal lists, whose text it shows, characters of a text
_MAX_MEDIA_NAMED = 3  # media that a row of the table names
_MARKS_HINT = " (green, or «so»)"


def pack_section(view: PackView, max_chars: int = 12_000, max_members: int = 24) -> Html:
    """Build the section of a page that shows a pack: its facts, a bar of its members, then each of them.

    Args:
        max_chars: characters of all texts together; longer texts lose their middle.
        max_members: members that are shown; the others are only pieces of the bar.
    """
    shown = view.members[:max_members]
    each = max(_MIN_MEMBER_CHARS, max_chars // max(1, len(shown)))
    members = [
        tag(
            "article",
            tag("h4", f"#{number} ", tag("code", member.sample_id)),
            *(block.to_html() for block in member_blocks(member, each)),
            class_="member",
        )
        for number, member in enumerate(shown)
    ]
    rest = len(view.members) - len(shown)
    return tag(
        "div",
        tag("h3", f"Pack {view.place.number:,} of {view.place.num_packs:,}: ", tag("code", view.key)),
        *(block.to_html() for block in _pack_blocks(view)),
        draw_pack_bar(view),
        tag("p", MARKS_EXPLAINED, class_="says") if any(member.spans for member in shown) else None,
        *members[:_OPEN_MEMBERS],
        details(_more_members(len(members) - _OPEN_MEMBERS), *members[_OPEN_MEMBERS:])
        if members[_OPEN_MEMBERS:]
        else None,
        SentenceBlock(f"and {_more_members(rest)}").to_html() if rest and shown else None,
        class_="pack",
        id=f"pack-{view.place.number}",
    )


def _more_members(number: int) -> str:
    return amount(number, "more member")


def print_pack(view: PackView, full: bool = False) -> None:
    """Print a pack: its facts, a table of its members, and their text; not `full`: only the first members and words."""
    out = console()
    out.print(Text.assemble(f"pack {view.place.number:,} of {view.place.num_packs:,}  ", (view.key, "bold")))
    print_blocks(_pack_blocks(view))
    out.print()
    print_table(members_rows(view.members if full else view.members[:_MEMBERS_LISTED]))
    shown = view.members if full else view.members[:_MEMBERS_WITH_TEXT]
    for number, member in enumerate(shown):
        print_heading(f"#{number} {member.sample_id}")
        print_blocks(member_blocks(member), None if full else _MAX_TEXT_CHARS)
    if rest := len(view.members) - len(shown):
        print_blocks([SentenceBlock(f"… the text of {_more_members(rest)} (--full)")])


def print_blocks(blocks: Iterable[DisplayBlock], max_chars: int | None = None) -> None:
    """Print blocks one below another; `max_chars`: characters of a text, None: all."""
    for block in blocks:
        if drawn := block.to_terminal(max_chars):
            console().print(drawn, soft_wrap=isinstance(block, SentenceBlock))


def print_heading(text: str) -> None:
    """Print the title of what follows."""
    console().print(Text(f"\n{escape_unprintable(text)}", "bold"), soft_wrap=True)


def _pack_blocks(view: PackView) -> list[DisplayBlock]:
    missing = [] if view.holds_text else [SentenceBlock("it holds no conversations (output.messages=false)", "bad")]
    return [SentenceBlock(pack_facts(view)), *missing]


def pack_facts(view: PackView) -> str:
    """Describe a pack in one line: medium, members, tokens, trained tokens, shard."""
    total, most = view.token_len, view.place.max_token_len
    trained = sum(member.num_supervised or 0 for member in view.members)
    facts = [view.media_type, amount(len(view.members), "member")]
    facts.append(f"{total:,} of {most:,} tokens ({total / most:.1%})" if most else f"{total:,} tokens")
    return " · ".join([*facts, f"{trained:,} trained on ({trained / max(1, total):.0%})", view.place.shard])


def members_rows(members: Sequence[MemberView]) -> Rows:
    """Return a table of members; one that shares its beginning with the member before is shown as its branch."""
    columns = {
        "member": [code_cell(f"{'└ ' * bool(m.shared_len)}#{n} {m.sample_id}") for n, m in enumerate(members)],
        "medium": [member.media_type for member in members],
        "media": [_sizes(member.media) for member in members],
        "turns": [f"{len(member.turns):,}" for member in members],
        "tokens": [_count(member.token_len) for member in members],
        "trained": [_count(member.num_supervised) for member in members],
        "visual": [_count(member.num_visual_tokens) for member in members],
        "shared": [f"{member.shared_len:,}" * bool(member.shared_len) for member in members],
    }
    has_media, is_shared = any(member.media for member in members), any(member.shared_len for member in members)
    needs = {"media": has_media, "visual": has_media, "shared": is_shared}
    header = [name for name in columns if needs.get(name, True)]
    return Rows(header, [*zip(*(columns[name] for name in header), strict=True)], num_words=2 + has_media)


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _sizes(media: Sequence[MediumView]) -> str:
    words = []
    for medium in media[:_MAX_MEDIA_NAMED]:
        frames = f" {medium.num_frames:,} frames" if medium.num_frames else ""
        words.append(f"{medium.size}{frames}" if medium.size else "unreadable")
    return ", ".join(words) + (f" +{len(media) - _MAX_MEDIA_NAMED:,}" if len(media) > _MAX_MEDIA_NAMED else "")


def member_blocks(member: MemberView, max_html_chars: int = 0) -> list[DisplayBlock]:
    """Return the blocks that show a member or a sample: its facts, problems, pictures, and its tokens or turns.

    `max_html_chars`: characters of its text in HTML; a terminal has a limit of its own.
    """
    return [
        SentenceBlock(member_facts(member)),
        *([SentenceBlock(f"In no pack: {member.refused}", "bad")] if member.refused else []),
        PicturesBlock(member.media),
        TurnsBlock(member.turns, max_html_chars) if member.spans is None else Tokens(member.spans, max_html_chars),
    ]


def member_facts(member: MemberView) -> str:
    """Describe a member in one line: medium, turns, tokens, trained tokens, weight."""
    facts = [member.media_type, amount(len(member.turns), "turn")]
    if (total := member.token_len) is not None:
        facts.append(f"{total:,} tokens")
        if member.shared_len:
            facts.append(f"the first {member.shared_len:,} shared with the one before")
        if member.num_visual_tokens:
            facts.append(f"{member.num_visual_tokens:,} visual")
        if (trained := member.num_supervised) is not None:
            facts.append(f"{trained:,} trained on ({trained / max(1, total):.0%})")
    if member.weight != 1:
        facts.append(f"the whole sample counts {weight_text(member.weight)}")
    return " · ".join(facts)


def print_sample(view: MemberView, place: str, raw: str, remarks: Iterable[str], full: bool = False) -> None:
    """Print a sample of a source: its JSON as it was read, its turns as they were understood, and its tokens.

    Args:
        place: where it was read.
        raw: its JSON.
        remarks: what is wrong with it.
    """
    most = None if full or view.refused else _MAX_TEXT_CHARS
    print_heading(view.sample_id)
    refused = [f"It would be in no pack: {view.refused}"] if view.refused else []
    print_blocks([SentenceBlock(place), *(SentenceBlock(note, "bad") for note in (*refused, *remarks))])
    parts: dict[str, list[DisplayBlock]] = {"as it was read": [Tokens([Span(raw, "text", 0, 0.0)])]}
    if view.turns:
        parts["as it was understood"] = [TurnsBlock(view.turns), PicturesBlock(view.media)]
    if view.spans is not None:
        facts = f"{_count(view.token_len)} tokens, {_count(view.num_visual_tokens)} visual"
        parts[f"as tokens: {facts}, {_count(view.num_supervised)} trained on{_MARKS_HINT}"] = [Tokens(view.spans)]
    for title, blocks in parts.items():
        print_heading(f"── {title}")
        print_blocks(blocks, most)


def print_commands(command: str, more: Sequence[str]) -> None:
    """Print the commands that may be typed next."""
    say("")
    print_blocks([SentenceBlock(f"next: {command}"), SentenceBlock(f"or:   {', '.join(more)}")])


_MOST_PIECES = 400  # pieces on a page; more would be narrower than a pixel


def draw_pack_bar(pack: PackView) -> Html:
    """Draw a pack as a bar with a piece for each kind of a member's tokens, and a key to the colours."""
    pieces = [
        piece._replace(is_odd=number % 2 == 1)
        for number, member in enumerate(pack.members)
        for piece in _member_pieces(member, f"member {number}")
    ]
    used = sum(piece.size for piece in pieces)
    total = max(pack.place.max_token_len or 0, used)
    kinds = dict.fromkeys([*(piece.kind for piece in pieces), *["padding"] * (total > used)])
    return join((draw_segmented_bar(_merged_to_limit(pieces), total), draw_colour_legend(kinds)))


def _member_pieces(member: MemberView, name: str) -> list[Piece]:
    """Return a member's pieces of the bar: in the order of its tokens, or, if they are not known, media before text."""
    where = f"{name}, {member.sample_id}"
    if member.spans is not None:
        alike = groupby(member.spans, key=lambda span: span.kind if span.kind in KINDS else "text")
        sums, num_shared = [], member.shared_len
        for kind, spans in alike:
            num = sum(span.num_tokens for span in spans)
            sums.append((kind, max(0, num - num_shared)))
            num_shared = max(0, num_shared - num)
    elif member.num_visual_tokens is None:
        sums = [("unknown" if member.media else "text", (member.token_len or 0) - member.shared_len)]
    else:
        visual = member.num_visual_tokens - member.num_shared_visual
        sums = [(member.media_type, visual), ("text", (member.token_len or 0) - member.shared_len - visual)]
    words = {"mix": "images and videos", "unknown": "text and media"}
    return [Piece(kind, size, f"{where}: {words.get(kind, kind)}, {size:,} tokens") for kind, size in sums if size > 0]


def _merged_to_limit(pieces: Sequence[Piece]) -> list[Piece]:
    """Merge neighbouring pieces until at most `_MOST_PIECES` are left; the kind is that of the largest piece."""
    every = -(-len(pieces) // _MOST_PIECES)
    groups = [pieces[start : start + every] for start in range(0, len(pieces), every)]
    sums = [(max(group, key=lambda piece: piece.size), sum(piece.size for piece in group)) for group in groups]
    return [most._replace(size=size, label=f"{most.label} …" if every > 1 else most.label) for most, size in sums]

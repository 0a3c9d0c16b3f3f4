"""Print a pack, and a sample, in a terminal: right at any width, in a pipe and without colours."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from energon_pack.errors import amount, printable
from energon_pack.pages.svg import Piece
from energon_pack.samples.media.kinds import KINDS
from energon_pack.views.strips import member_pieces
from energon_pack.views.view import Medium, MemberView, PackView, Span, times

_COLOURS = {
    "text": "blue",
    **{kind: medium.colour for kind, medium in KINDS.items()},
    "mix": "magenta",
    "unknown": "white",
    "padding": "bright_black",
}
_BLOCK = "█"
_HEIGHT = 84  # lines of a terminal that does not tell its height
_LEAST = 12  # least number of members in the table, and of lines of their text
_AROUND = 20  # lines that are neither of the two
_TURN_LINES = 6


def print_pack(view: PackView, to: Console, full: bool = False) -> None:
    """Print a pack: its facts, a bar of its content, its members, and their text.

    Args:
        full: print all members and all of their text.
    """
    to.print(Text.assemble(f"pack {view.number:,} of {view.num_packs:,}  ", (view.key, "bold")))
    to.print(pack_facts(view))
    print_notes(view.notes, to)
    print_strip(view, to)
    if not view.members:
        return
    to.print()
    height = to.height if to.is_terminal else _HEIGHT
    shown = view.members if full else view.members[: max(_LEAST, height // 3)]
    to.print(members_table(shown, to.width))
    if len(shown) < len(view.members):
        to.print(Text(f"and {len(view.members) - len(shown):,} more members (--full)", "dim"))
    left = None if full else max(_LEAST, height - len(shown) - _AROUND)
    for number, member in enumerate(view.members):
        if left is not None and left <= 0:
            to.print(Text(f"\n… the text of {len(view.members) - number:,} more members (--full)", "dim"))
            return
        to.print()
        to.print(Text.assemble((f"#{number} ", "bold"), (printable(member.sample_id), "bold")), soft_wrap=True)
        used = print_member(member, to, left)
        left = None if left is None else left - used - 2


def pack_facts(view: PackView) -> str:
    """Describe a pack in a line."""
    facts = [view.media_type, amount(len(view.members), "member")]
    total = view.token_len
    if total is not None and view.members:
        of = f" of {view.max_token_len:,}" if view.max_token_len else ""
        facts.append(f"{total:,}{of} tokens" + (f" ({total / view.max_token_len:.1%})" if view.max_token_len else ""))
        trained = [member.num_supervised for member in view.members]
        if None not in trained:
            facts.append(f"{sum(filter(None, trained)):,} trained on")
    return " · ".join([*facts, view.shard or "not written yet"])


def print_next(command: str, others: Sequence[str], to: Console) -> None:
    """Print the commands that may be typed next."""
    to.print()
    to.print(Text(f"next: {command}", "dim"), soft_wrap=True)
    to.print(Text(f"or:   {', '.join(others)}", "dim"))


def print_notes(notes: Iterable[str], to: Console) -> None:
    """Print what is wrong, or can't be told."""
    for note in notes:
        to.print(Text(f"! {printable(note)}", "red"))


def print_strip(view: PackView, to: Console) -> None:
    """Print the bar of a pack, as wide as the terminal, and a key to its colours; print nothing without colours."""
    members = [member_pieces(member, "") for member in view.members]
    used = sum(piece.size for pieces in members for piece in pieces)
    if not used or not _has_colours(to):
        return
    total = max(view.max_token_len or 0, used)
    padding = [[Piece("padding", total - used, "")]] if total > used else []
    columns = list(_columns([*members, *padding], total, to.width))
    dim = (" dim" if number % 2 else "" for _, number in columns)
    to.print(Text.assemble(*((_BLOCK, _COLOURS[kind] + shade) for (kind, _), shade in zip(columns, dim, strict=True))))
    kinds = dict.fromkeys(kind for kind, _ in columns)
    to.print(Text("   ").join(Text.assemble((f"{_BLOCK} {kind}", _COLOURS[kind])) for kind in kinds))


def _has_colours(to: Console) -> bool:
    return to.color_system is not None and not to.no_color


def _columns(members: Sequence[Sequence[Piece]], total: float, width: int) -> Iterator[tuple[str, int]]:
    """Yield what each column of a pack's strip shows: the kind of token in its middle, and the member's number."""
    ends: list[tuple[float, str, int]] = []
    upto = 0.0
    for number, pieces in enumerate(members):
        for piece in pieces:
            upto += piece.size
            ends.append((upto, piece.kind, number))
    at = 0
    for column in range(width):
        middle = (column + 0.5) / width * total
        while at < len(ends) - 1 and ends[at][0] <= middle:
            at += 1
        yield ends[at][1], ends[at][2]


def members_table(members: Sequence[MemberView], width: int) -> Table:
    """Build a table with one row for each member; ids are cut at their beginning, where they are alike.

    A member that shares its beginning with the one before it is a branch below it.
    """
    rows = [
        (
            str(number),
            member.media_type,
            f"{len(member.turns):,}",
            _count(member.token_len),
            _count(member.num_supervised),
            _count(member.num_visual_tokens),
            f"{member.shared_len:,}" if member.shared_len else "",
            _media(member.media, 3 if width >= 110 else 1),
        )
        for number, member in enumerate(members)
    ]
    header = ("#", "medium", "turns", "tokens", "trained", "visual", "shared", "media")
    columns = list(zip(header, *rows, strict=True))
    left_out = set() if any(member.media for member in members) else {5, 7}
    left_out |= set() if any(member.shared_len for member in members) else {6}
    kept = [number for number in range(len(columns)) if number not in left_out]
    columns = [columns[number] for number in kept]
    taken = sum(max(map(len, column)) + 2 for column in columns)
    room = max(12, width - taken)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, column in enumerate((columns[0], ("sample",), *columns[1:])):
        is_text = index == 1 or column[0] in ("medium", "media")
        table.add_column(column[0], justify="left" if is_text else "right", no_wrap=True)
    for member, row in zip(members, rows, strict=True):
        mark = "└ " if member.shared_len else ""
        name = mark + _cut_left(printable(member.sample_id), room - len(mark))
        table.add_row(row[0], name, *(row[number] for number in kept[1:]))
    return table


def print_member(member: MemberView, to: Console, most: int | None) -> int:
    """Print the tokens of a member, or its turns where tokens are not known; return the number of lines.

    Args:
        most: lines to print; None: all.
    """
    num_lines = 0
    if member.shared_len:
        to.print(Text(f"its first {amount(member.shared_len, 'token')} are those of the one before it", "dim"))
    if member.refused:
        to.print(Text(f"in no pack: {printable(member.refused)}", "red"), soft_wrap=True)
    if member.weight != 1:
        to.print(Text(f"the whole sample counts {times(member.weight)}", "bold magenta"))
    print_notes(member.notes, to)
    for medium in member.media:
        if medium.problem:
            to.print(Text(f"! {medium.name}: {printable(medium.problem)}", "red"), soft_wrap=True)
    if member.spans is not None:
        lines, rest = _wrapped(tokens_text(member.spans, to), to, to.width, most)
        for line in lines:
            to.print(line, no_wrap=True, overflow="crop")
        if rest:
            to.print(Text(f"… {rest:,} more characters (--full)", "dim"))
        return len(lines) + 1
    for turn in member.turns:
        lines, rest = _wrapped(_plain(turn.text), to, to.width - 11, None if most is None else _TURN_LINES)
        for number, line in enumerate(lines):
            role = f"{turn.role[:9]:9}  " if number == 0 else " " * 11
            to.print(Text.assemble((role, "cyan"), line), no_wrap=True, overflow="crop")
        if rest:
            to.print(Text(f"{'':11}… {rest:,} more characters", "dim"))
        num_lines += len(lines) + bool(rest)
        if most is not None and num_lines >= most:
            break
    return num_lines


def tokens_text(spans: Sequence[Span], to: Console) -> Text:
    """Return tokens as text: special ones and media dim, trained text green, or between « and ».

    If trained text has a weight other than 1, the weight follows it: `×0.5`.
    """
    has_colours = _has_colours(to)
    text = Text()
    for weight, alike in groupby(spans, key=lambda span: span.weight):
        is_marked = weight > 0 and not has_colours
        text.append("«" * is_marked)
        for span in alike:
            style = {"text": "", "special": "dim", **{kind: _COLOURS[kind] for kind in KINDS}}[span.kind]
            words = _plain(span.text).plain
            if span.kind in KINDS:
                words = f"[{words}, {span.num_tokens:,} tokens]"
            text.append(words, "green" if weight else style)
        text.append("»" * is_marked)
        if weight not in (0, 1):
            text.append(times(weight), "bold magenta")
    return text


def _plain(text: str) -> Text:
    """Return text that a terminal shows unchanged."""
    return Text("\n".join(map(printable, text.expandtabs(4).split("\n"))))


def _wrapped(text: Text, to: Console, width: int, most: int | None) -> tuple[list[Text], int]:
    """Wrap text into lines; return them, and the number of characters that are in none of them.

    Args:
        most: lines to return; None: all.
    """
    width = max(20, width)
    head = text if most is None else text[: 2 * most * width]
    lines = list(head.wrap(to, width))
    while lines and not lines[-1].plain.strip():
        lines.pop()
    shown = lines[:most]
    if len(shown) == len(lines) and len(head) == len(text):
        return shown, 0
    return shown, len(text) - sum(len(line) for line in shown)


def _media(media: Sequence[Medium], most: int) -> str:
    words = []
    for medium in media[:most]:
        frames = f" {medium.num_frames:,} frames" if medium.num_frames else ""
        words.append(f"{medium.size}{frames}" if medium.size else "unreadable")
    return ", ".join(words) + (f" +{len(media) - most:,}" if len(media) > most else "")


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _cut_left(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def print_sample(
    view: MemberView, place: str, raw: str, remarks: Iterable[str], to: Console, full: bool = False
) -> None:
    """Print a sample before it is packed: as it was read, as it was understood, and its tokens.

    Args:
        raw: the JSON of the sample.
        remarks: notes to print.
        full: print all of its text.
    """
    to.print(Text(printable(view.sample_id), "bold"), soft_wrap=True)
    to.print(Text(place, "dim"), soft_wrap=True)
    if view.refused:
        to.print(Text(f"It would be in no pack: {printable(view.refused)}", "red"), soft_wrap=True)
    print_notes([*remarks, *view.notes], to)
    most = None if full else (to.height if to.is_terminal else _HEIGHT) // 3
    _heading("as it was read", to)
    lines, rest = _wrapped(_plain(raw), to, to.width, None if view.refused else most)
    for line in lines:
        to.print(line, no_wrap=True, overflow="crop")
    if rest:
        to.print(Text(f"… {rest:,} more characters (--full)", "dim"))
    if not view.turns:
        return
    _heading("as it was understood", to)
    print_member(replace(view, spans=None, refused=None, notes=[]), to, most)
    for medium in view.media:
        seen = f" → {medium.seen}" if medium.seen else ""
        tokens = f", {medium.num_tokens:,} tokens" if medium.num_tokens else ""
        to.print(f"{'':11}{medium}{seen}{tokens}  {printable(medium.name)}", soft_wrap=True)
    if view.spans is None:
        return
    facts = f"{_count(view.token_len)} tokens, {_count(view.num_visual_tokens)} visual"
    _heading(f"as tokens: {facts}, {_count(view.num_supervised)} trained on (green, or «so»)", to)
    print_member(replace(view, media=[], refused=None, notes=[]), to, most)


def _heading(text: str, to: Console) -> None:
    to.print()
    to.print(Text(f"── {text}", "bold"))

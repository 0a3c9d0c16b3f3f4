"""What a sample says: its tokens, turns, media and JSON, each as a value that a terminal and a page show.

A terminal shows the beginning of long text, and what is trained first where the beginning is not trained; a page leaves
out the middle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from energon_pack.errors import escape_unprintable
from energon_pack.report.pages.html import Html, join, picture, table, tag
from energon_pack.report.views.view import MediumView, Span, Turn, weight_text
from energon_pack.run.console import has_colours
from energon_pack.samples.media.kinds import KINDS

MAX_CHARS = 60_000  # characters of a text on a page of its own
_MIN_SPANS, _CHARS_PER_SPAN = 24, 16  # spans of a member that are shown, and characters that allow one more
_MIN_SPAN_CHARS = 40  # characters of a span
_WORTH_A_CUT = 1.25  # times as long a text is shown whole in a terminal
_COLOURS = {"text": "", "special": "dim", **{kind: medium.colour for kind, medium in KINDS.items()}}
MARKS_EXPLAINED = (
    "Marked text is what is trained on; ×0.5 behind it is how much each of its tokens counts, where that is not 1. Grey"
    " tokens are the chat template's own."
)


class DisplayBlock(Protocol):
    """Something that can be drawn on a page and on a terminal."""

    def to_html(self) -> Html | None:
        """Return it as HTML; None: there is nothing to show."""

    def to_terminal(self, max_chars: int | None) -> RenderableType:
        """Return it for a terminal, long text cut to about `max_chars` characters; None: not cut."""


@dataclass(frozen=True)
class SentenceBlock:
    """A sentence on a line of its own, between pictures and tables.

    Args:
        tone: `faint`, shown grey, or `bad`, shown red: something is wrong.
    """

    text: str
    tone: str = "faint"

    def to_html(self) -> Html:
        return tag("p", self.text, class_=self.tone)

    def to_terminal(self, max_chars: int | None) -> Text:
        is_bad = self.tone == "bad"
        return Text(f"{'! ' * is_bad}{escape_unprintable(self.text)}", "red" if is_bad else "dim")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a sample, shown as text. Special tokens and media look different; trained text is green, or in « ».

    If trained text has a weight other than 1, the weight follows it: `×0.5`.

    Args:
        max_chars: of a page; approximate. Longer texts lose their middle, trained text last; the end is always there.
    """

    spans: Sequence[Span]
    max_chars: int = MAX_CHARS

    def to_html(self) -> Html:
        spans = self.spans
        most = max(_MIN_SPANS, self.max_chars // _CHARS_PER_SPAN)
        end = min(len(spans), most // 4)
        head, tail = (list(spans), []) if len(spans) <= most else (spans[: most - end], spans[-end:])
        rest = sum(span.num_tokens for span in spans[len(head) : len(spans) - len(tail)])
        rooms = iter(_char_limits([*head, *tail], self.max_chars))
        gap = tag("span", f" … {rest:,} tokens … ", class_="faint") if rest else None
        return tag("div", *_marked_spans(head, rooms), gap, *_marked_spans(tail, rooms), class_="tokens")

    def to_terminal(self, max_chars: int | None) -> Text:
        is_coloured, text, first_trained = has_colours(), Text(), None
        for weight, alike in groupby(self.spans, key=lambda span: span.weight):
            marks = ("", "") if is_coloured or not weight else ("«", "»")
            if weight and first_trained is None:
                first_trained = len(text)
            text.append(marks[0])
            for span in alike:
                text.append(_plain(span.as_text).plain, "green" if weight else _COLOURS[span.kind])
            text.append(marks[1])
            if weight not in (0, 1):
                text.append(weight_text(weight), "bold magenta")
        return _shortened(text, max_chars, first_trained or 0)


def _marked_spans(spans: Sequence[Span], rooms: Iterator[int]) -> Iterator[Html]:
    """Yield the spans as HTML; trained ones are marked. `rooms`: how many characters of each span are shown."""
    for weight, alike in groupby(spans, key=lambda span: span.weight):
        group = list(alike)
        inner = [_span_html(span, next(rooms)) for span in group]
        yield _mark_trained(inner, sum(span.num_tokens for span in group), weight) if weight else join(inner)


def _char_limits(spans: Sequence[Span], max_chars: int) -> list[int]:
    """Return how many characters of each span are shown: three quarters go to trained text, if it needs them."""
    trained, others = ([len(s.text) for s in spans if s.kind == "text" and s.is_trained is of] for of in (True, False))
    of_others = find_common_limit(others, max(max_chars // 4, max_chars - sum(trained)))
    of_trained = find_common_limit(trained, max(max_chars - sum(min(size, of_others) for size in others), 0))
    return [max(_MIN_SPAN_CHARS, of_trained if span.is_trained else of_others) for span in spans]


def find_common_limit(sizes: Sequence[int], max_sum: int) -> int:
    """Return the largest limit so that sizes, each cut to it, fit into `max_sum` together."""
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        if size * (len(ascending) - place) > max_sum:
            return max_sum // (len(ascending) - place)
        max_sum -= size
    return ascending[-1] if ascending else 0


def _mark_trained(inner: Sequence[Html], num_tokens: int, weight: float) -> Html:
    """Mark text that is trained on; show its weight where that is not 1."""
    told = f"trained on: {num_tokens:,} tokens"
    if weight == 1:
        return tag("mark", *inner, title=told)
    chip = tag("span", weight_text(weight), class_="weight")
    return tag("mark", *inner, chip, title=f"{told}, each counts {weight:.6g}", class_="less" if weight < 1 else "more")


def _span_html(span: Span, room: int) -> Html:
    if span.kind == "text":
        return _without_middle(span.text, room)
    if span.kind == "special":
        return tag("span", span.text, class_="special")
    return tag("span", span.as_text[1:-1], class_=f"medium on-{span.kind}")


@dataclass(frozen=True)
class TurnsBlock:
    """The messages of a sample as a table of role and text, for samples that are shown without their tokens."""

    turns: Sequence[Turn]
    max_chars: int = MAX_CHARS

    def to_html(self) -> Html | None:
        if not self.turns:
            return None
        each = max(80, self.max_chars // len(self.turns))
        rows = ((turn.role, tag("div", _without_middle(turn.text, each), class_="tokens")) for turn in self.turns)
        return table(("role", "text"), rows, num_words=2, class_="turns")

    def to_terminal(self, most: int | None) -> RenderableType:
        if not self.turns:
            return ""
        lines = Table.grid(padding=(0, 2, 0, 0))
        for turn in self.turns:
            lines.add_row(Text(turn.role, "cyan"), _shortened(_plain(turn.text), most and most // len(self.turns)))
        return lines


@dataclass(frozen=True)
class PicturesBlock:
    """The media of a sample: pictures side by side on a page, a line for each on a terminal."""

    media: Sequence[MediumView]

    def to_html(self) -> Html | None:
        return tag("div", *map(_figure, self.media), class_="pictures") if self.media else None

    def to_terminal(self, max_chars: int | None) -> Text:
        lines = []
        for medium in self.media:
            lines.append(Text(f"{medium.description_as_seen}  {escape_unprintable(medium.name)}", "dim"))
            if medium.problem:
                lines.append(SentenceBlock(f"{medium.name}: {medium.problem}", "bad").to_terminal(max_chars))
        return Text("\n").join(lines)


def _figure(medium: MediumView) -> Html:
    shown = None if medium.data is None else picture(medium.data, "image/webp", str(medium), loading="lazy")
    return tag(
        "figure",
        shown,
        tag("figcaption", tag("code", medium.name), tag("br"), medium.description_as_seen),
        tag("figcaption", medium.problem, class_="bad") if medium.problem else None,
    )


def _without_middle(text: str, most: int) -> Html:
    """Show a text, or its head, a note of how much is left out, and its end."""
    if len(text) <= most:
        return join([text])
    tail = most // 4
    gap = tag("span", f" … {len(text) - most:,} characters … ", class_="faint")
    return join((text[: most - tail], gap, text[len(text) - tail :]))


def _plain(text: str) -> Text:
    """Return text for a terminal, without markup; tabs and control characters are replaced."""
    return Text("\n".join(map(escape_unprintable, text.expandtabs(4).split("\n"))))


def _shortened(text: Text, most: int | None, important: int = 0) -> Text:
    """Cut a text to about `most` characters (None: not at all), with a note of how many are left out, if not few.

    `important`: the place of a character that is shown; what stands far before it is left out, but for the beginning.
    """
    if most is None or len(text) <= _WORTH_A_CUT * most:
        text.rstrip()
        return text
    head, start = most, most
    if important > most // 2:  # a system turn and tools are often longer than all that is shown
        head = most // 4
        start = min(max(head, important - head), len(text) - (most - head))
    end = start + most - head
    left_out = {" … {:,} characters … ": start - head, " … {:,} more characters": len(text) - end}
    notes = [words.format(number) if number else "" for words, number in left_out.items()]
    hint = " (--full)"
    gap, rest = (f"{notes[0]}", f"{notes[1]}{hint}") if notes[1] else (f"{notes[0].rstrip(' …')}{hint} … ", "")
    return Text.assemble(text[:head], (gap, "dim"), text[start:end], (rest, "dim"))

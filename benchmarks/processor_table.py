"""The table of docs/ that says of each processor class of transformers whether its media are counted exactly."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_NONE = "–"
_LONGEST = 180
#: what a line that refuses says of any class
_SAME = (
    re.compile(r"^model\.processor=\S+: "),
    re.compile(r"nothing counts the media of \S+ as its own call does "),
    re.compile(r": are its settings, and .*$"),
)
_KINDS = ("image", "video", "uneven", "mixed")
_SAID = {"image": "images", "video": "videos", "uneven": "videos of several lengths", "mixed": "images and videos"}


def table(rows: Sequence[Row]) -> Iterator[list[str]]:
    """The header, then the cells of each class."""
    yield ["class", "by", "images", "videos", "lengths", "both", "ms an image", "ms a video", "why"]
    for row in sorted(rows, key=lambda row: str(row["name"]).lower()):
        times = [_figure(row["ms"][kind]) if row["ms"].get(kind) else _NONE for kind in _KINDS[:2]]
        cells = [cell(row, kind) for kind in _KINDS]
        yield [row["name"], row["template"] or _NONE, *cells, *times, "; ".join(_reasons(row))]


def cell(row: Row, kind: str) -> str:
    """What was found for a kind of media, as the table has it."""
    needed = {"uneven": ["video"], "mixed": ["image", "video"]}.get(kind, [kind])
    if not set(needed) <= set(row["kinds"]):
        return _NONE
    if row["difference"]:
        return "differs"
    if kind not in row["compared"]:
        return "refused"
    compared, refused = row["compared"][kind]
    return f"{compared} + {refused}" if refused else str(compared)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _reasons(row: Row) -> Iterator[str]:
    """Why a class is refused, in the words of the line that says so, and why shapes were not enough."""
    if row["refused"] or row["difference"]:
        yield f"{'refused' if row['refused'] else 'differs'}: {_short(row['refused'] or row['difference'])}"
    for kind, why in ((kind, why) for kind, why in row["left_out"].items() if kind in _SAID):  # sounds are not tried
        yield f"{_SAID[kind]} refused: {_short(why)}"
    if row["template"] == "pixels":
        yield f"not by shapes: {_short(row['tried'].get('shapes', ''))}"


def _short(text: str) -> str:
    for same in _SAME:
        text = same.sub("", text)
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else plain[:_LONGEST].rsplit(" ", 1)[0] + " …"

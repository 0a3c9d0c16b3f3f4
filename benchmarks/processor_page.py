"""The page of docs/ that says of each processor class of transformers whether its media are counted exactly."""

import importlib.metadata
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from energon_pack.templates.families import ASKED

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

_HEAD = """# Which processors have their media counted exactly

Made by a run, not written. Of every processor class of transformers {transformers} that writes text for images or
videos a small one was made from its own defaults, with a tokenizer that has the special tokens the class asks for;
`+model=auto` chose what counts its media; then samples of noise, and some of one colour or of still frames, went
through `Template.encode` and through the class's full call, and all ids were compared: 200 images of 32 to 1500 pixels
(aspect up to 9), alone and 2 to 4 in a sample, 24 clips of 8 to 60 frames at five frame rates, alone and two in a
sample, and samples with both. None of these sizes is among those that `+model=auto` compares itself when it starts.
torch {torch}, a CPU:

```sh
pip install num2words                                                       # SmolVLM asks for it
python benchmarks/processors.py --results processors.jsonl --save docs/processors.md
```

- **by**: what counts: the rules of a family (`model.template` of its YAML), `shapes`: the class's own call on tensors
  without values, `pixels`: the same with blank images. The first of them that is exact is taken.
- **images**, **videos**, **lengths** (videos of several lengths in one sample), **both** (images and videos in one):
  media that were compared; all ids were the same. `+ n`: samples that the class's own call refuses, and so does
  energon_pack. `refused`: by a line before any sample is measured, with the reason below.
- **ms**: processor time, the median for a sample with one image, or one video, of a size that was not asked for before;
  a core whose other thread was at work: take ratios.

A processor of yours is not proven by this page: its settings differ. `+model=auto` compares yours when it starts, the
audit (`measure.verify`) while it packs.
"""


def page(rows: Sequence[Row], others: Mapping[str, Sequence[Row]]) -> str:
    """The page.

    Args:
        rows: of all classes.
        others: of other versions of transformers.
    """
    rows = sorted(rows, key=lambda row: str(row["name"]).lower())
    versions = {name: importlib.metadata.version(name).split("+")[0] for name in ("transformers", "torch")}
    parts = [_HEAD.format(**versions), _counts(rows), _table(rows), _reasons(rows), _others(rows, others)]
    return "\n".join(part for part in parts if part)


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


def _counts(rows: Sequence[Row]) -> str:
    by = Counter(map(_by, rows))
    compared = [sum(row["compared"].get(kind, (0, 0))[0] for row in rows) for kind in _KINDS]
    exact = [sum(kind in row["compared"] and not row["difference"] for row in rows) for kind in _KINDS]
    asked = [sum(kind in row["kinds"] for row in rows) for kind in _KINDS[:2]]
    different = sum(bool(row["difference"]) for row in rows)
    lines = [
        f"## In numbers\n\n{len(rows)} classes: {by['rules']} by the rules of a family, {by['shapes']} by shapes,"
        f" {by['pixels']} by pixels, {sum(not row['template'] for row in rows)} refused whole.",
        f"\n{exact[0]} of {asked[0]} classes have exact images ({compared[0]:,} compared), {exact[1]} of {asked[1]}"
        f" exact videos ({compared[1] + compared[2]:,} compared), {exact[2]} with several lengths in a sample,"
        f" {exact[3]} with images beside them. Counted, but not as the full call: {different}.",
        "\n| by | ms an image: median, slowest | ms a video: median, slowest |\n|---|---|---|",
    ]
    for name in ("rules", *ASKED):
        of = [row for row in rows if _by(row) == name]
        cells = [_spread([row["ms"][kind] for row in of if row["ms"].get(kind)]) for kind in _KINDS[:2]]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return "\n".join([*lines, ""])


def _by(row: Row) -> str:
    return row["template"] if row["template"] in ("", *ASKED) else "rules"


def _spread(values: Sequence[float]) -> str:
    return f"{_figure(statistics.median(values))}, {_figure(max(values))}" if values else _NONE


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _table(rows: Sequence[Row]) -> str:
    header = ["class", "by", "images", "videos", "lengths", "both", "ms an image", "ms a video"]
    lines = ["## Each class\n", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        times = [_figure(row["ms"][kind]) if row["ms"].get(kind) else _NONE for kind in _KINDS[:2]]
        cells = [f"`{row['name']}`", row["template"] or _NONE, *(cell(row, kind) for kind in _KINDS), *times]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _reasons(rows: Sequence[Row]) -> str:
    """Why some are refused, in the words of the line that says so, and why shapes were not enough for others."""
    lines = ["## Why\n", "| class | what | why |", "|---|---|---|"]
    for row in rows:
        if row["refused"]:
            lines.append(f"| `{row['name']}` | refused | {_short(row['refused'])} |")
        elif row["difference"]:
            lines.append(f"| `{row['name']}` | differs | {_short(row['difference'])} |")
        for kind, why in row["left_out"].items():
            lines.append(f"| `{row['name']}` | {_SAID[kind]} refused | {_short(why)} |")
        if row["template"] == "pixels":
            lines.append(f"| `{row['name']}` | not by shapes | {_short(row['tried'].get('shapes', ''))} |")
    return "\n".join([*lines, ""])


def _others(rows: Sequence[Row], others: Mapping[str, Sequence[Row]]) -> str:
    """How many classes hold in other versions of transformers."""
    if not others:
        return ""
    now = {row["name"]: row for row in rows}
    lines = [
        "## Other versions of transformers\n",
        "The same run with every fourth of the samples (`--every 4`), and nothing changed but the version.\n",
        "| transformers | classes | by rules, shapes, pixels | refused | as above | not as above | differ |",
        "|---|---|---|---|---|---|---|",
    ]
    for version, found in others.items():
        by = Counter(map(_by, found))
        same = {row["name"] for row in found if row["name"] in now and _same(row, now[row["name"]])}
        other = [f"`{row['name']}`" for row in found if row["name"] in now and row["name"] not in same]
        lines.append(
            f"| {version} | {len(found)} | {by['rules']}, {by['shapes']}, {by['pixels']} |"
            f" {sum(not row['template'] for row in found)} | {len(same)} | {', '.join(other) or _NONE} |"
            f" {sum(bool(row['difference']) for row in found)} |"
        )
    return "\n".join([*lines, ""])


def _same(row: Row, now: Row) -> bool:
    """Whether the same is counted by the same."""
    return bool(row["template"] == now["template"]) and all(
        (kind in row["compared"]) == (kind in now["compared"]) for kind in _KINDS
    )


def _short(text: str) -> str:
    for same in _SAME:
        text = same.sub("", text)
    text = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    plain = " ".join(text.split()).replace("|", "/").replace("`", "'").replace("<", "&lt;")
    return plain if len(plain) <= _LONGEST else plain[:_LONGEST].rsplit(" ", 1)[0] + " …"

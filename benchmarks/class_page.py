"""The page of docs/ that says of each class of transformers whether packs of it are exact."""

import importlib.metadata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_BY = {"positions": "positions", "dict4d": "masks", "prefix4d": "masks", "hybrid": "kernels"}
_SHORT = {"eager": "eager", "sdpa": "sdpa", "flex_attention": "flex", "flash_attention_2": "flash (emulated)"}
_NO_FIGURE = "–"
_LONGEST = 110

_HEAD = """# Which classes keep members apart

Made by a run, not written: every class of transformers {transformers} for causal language models and for
image-text-to-text was made small from its own default config and tried on a CPU, in float32, torch {torch}:

```sh
pip install timm scipy                                                      # a few classes are made of them
python benchmarks/classes.py --results classes.jsonl --save docs/classes.md
```

Three members in a pack, in both orders. One is changed, its words and its image: **Δ others** is the largest change in
the logits of any other member. Each is also run alone, in transformers' plain way (the processor's output, a mask of
ones, no `position_ids`): **Δ alone** is the largest difference from that. Both are tried in `eval()` and in `train()`
without dropout. The logits themselves are of the order of 1 to 10. Both figures are the worst of the attention
implementations that are exact; where none is, of the one that came nearest.

Each class has a layer of every kind of attention that its source names, where a model with all of them can be built.
Windows, blocks and other sizes that count tokens are 3, so that members of 9 tokens meet them. Weights that begin all
alike (gates of 0) are varied.

The kernels and one of the attention implementations are stand-ins of this repository, written from the documentation
of what they stand for:

- `flash (emulated)`: `tests/support/emulated_flash.py` in the place of `flash_attn_varlen_func`.
- **kernels**: the reference kernels in `tests/support/reference_kernels`, in the place of causal-conv1d,
  flash-linear-attention and mamba-ssm. Without those packages, `guard` refuses these classes.
- `flex`: PyTorch's own reference of flex_attention, not compiled.

The same classes ran once on an H100, with transformers 5.23.0, torch 2.11.0 and flash-attn 2.8.3 itself, compiled for
heads of at most 128 (`--device cuda`). With sdpa, 266 of 268 verdicts are those of this page; the two others are
`CTRLLMHeadModel` (an assertion of the device) and `DiffusionGemmaForBlockDiffusion` (exact there). With flash-attn 113
classes are exact; logits of text differ by 0 or at most 1e-4 of their variation. Not run with it were 24 classes with
larger heads, Qwen2.5-VL and Gemma among them, 12 with the stand-ins of kernels, which took no bfloat16, and 7 that want
another package.

What the cells say:

- **positions**, **masks**, **kernels**: exact (`positions`; `dict4d`, or PaliGemma's `prefix4d`; `hybrid` in
  `attention_mask` of `PackedTaskEncoder`); the first of them that is exact.
- **refused**: nothing tried here keeps members apart, or the class can't be run on packs: `guard` refuses it, with the
  reason. Packs may be of any length here, which Llama 4's scale of attention is not made for.
- **–**: the class has no such attention implementation, or takes a kernel of its own for it.
- **media**: `yes`: with an image in two of the members, prepared by the class's own image processor. `words`: the class
  sees images, but was tried on words alone, with the reason below.

A model of yours is not proven by this page: its config differs. `guard` proves that one.
"""


def page(rows: Sequence[Row]) -> str:
    """The page.

    Args:
        rows: of all classes and attention implementations that were tried.
    """
    classes: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: str(row["name"]).lower()):
        classes.setdefault(row["name"], {})[row["attention"]] = row
    attentions = [name for name in _SHORT if any(name in by for by in classes.values())]
    versions = {name: importlib.metadata.version(name).split("+")[0] for name in ("transformers", "torch")}
    parts = [_HEAD.format(**versions), _counts(classes, attentions), _table(classes, attentions), _reasons(classes)]
    return "\n".join(parts)


def cell(row: Row | None) -> str:
    """The verdict of a class in one attention implementation, as the table has it."""
    if row is None or row["verdict"] == "none":
        return _NO_FIGURE
    if row["verdict"] == "exact":
        return _BY[row["by"]]
    return str(row["verdict"])


def _counts(classes: Mapping[str, Mapping[str, Row]], attentions: Sequence[str]) -> str:
    kinds = [*dict.fromkeys(_BY.values()), "refused", _NO_FIGURE, "not built"]
    found = {name: Counter(cell(by.get(name)) for by in classes.values()) for name in attentions}
    lines = [
        f"## In numbers\n\n{len(classes)} classes.\n",
        "| | " + " | ".join(_SHORT[name] for name in attentions) + " |",
        "|---|" + "---|" * len(attentions),
    ]
    names = {_NO_FIGURE: "no such attention", **{by: f"exact by {by}" for by in _BY.values()}}
    lines += [
        f"| {names.get(kind, kind)} | " + " | ".join(str(found[name][kind]) for name in attentions) + " |"
        for kind in kinds
    ]
    best = Counter(_best(by) for by in classes.values())
    lines.append(
        f"\n{best['exact']} are exact in at least one, {best['refused']} in none, {best['not built']} were not built."
        " What is not exact, `guard` refuses: it asks the same proof."
    )
    media = Counter(_media(by) for by in classes.values())
    lines.append(
        f"\nOf those that see images, {media['yes']} were tried with images, {media['words']} on words alone.\n"
    )
    return "\n".join(lines)


def _best(by: Mapping[str, Row]) -> str:
    verdicts = {row["verdict"] for row in by.values()}
    return next(verdict for verdict in ("exact", "refused", "not built") if verdict in verdicts)


def _table(classes: Mapping[str, Mapping[str, Row]], attentions: Sequence[str]) -> str:
    header = ["class", "media", *(_SHORT[name] for name in attentions), "Δ others", "Δ alone"]
    lines = ["## Each class\n", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for name, by in classes.items():
        cells = [f"`{name}`", _media(by), *(cell(by.get(attention)) for attention in attentions), *_figures(by)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _media(by: Mapping[str, Row]) -> str:
    row = next(iter(by.values()))
    if not row["sees"] or row["verdict"] == "not built":
        return ""
    return "yes" if row.get("media") else "words"


def _figures(by: Mapping[str, Row]) -> tuple[str, str]:
    tried = [row for row in by.values() if "others" in row]
    exact = [row for row in tried if row["verdict"] == "exact"]
    if not tried:
        return "", ""
    shown = exact or [min(tried, key=lambda row: max(row["others"], row["alone"]))]
    others, alone = (max(float(row[name]) for row in shown) for name in ("others", "alone"))
    return f"{others:.1g}" if others else "0", f"{alone:.1g}"


def _reasons(classes: Mapping[str, Mapping[str, Row]]) -> str:
    """Why some were not built, saw no image, or are refused where figures do not say it."""
    lines = ["## Why\n", "| class | what | why |", "|---|---|---|"]
    for name, by in classes.items():
        said: dict[tuple[str, str], list[str]] = {}
        for attention, row in by.items():
            for what, why in _why(row, any(other["verdict"] == "exact" for other in by.values())):
                said.setdefault((what, why), []).append(_SHORT[attention])
        for (what, why), attentions in said.items():
            is_of_all = what in ("words", "layers not tried") or len(attentions) == len(by)
            where = "" if is_of_all else f" ({', '.join(attentions)})"
            lines.append(f"| `{name}` | {what}{where} | {why} |")
    return "\n".join([*lines, ""])


def _why(row: Row, is_exact_elsewhere: bool) -> Iterator[tuple[str, str]]:
    if row["verdict"] == "not built":
        yield "not built", _short(row["why"])
    elif row.get("no_media"):
        yield "words", _short(row["no_media"])
    if row.get("untried"):
        yield "layers not tried", _short(row["untried"])
    if row["verdict"] != "refused":
        return
    if row["why"]:
        yield "refused", _short(row["why"])
    elif is_exact_elsewhere:
        yield "refused", f"Δ others {row['others']:.1g}, Δ alone {row['alone']:.1g}"
    default = row.get("default", {})
    if default.get("verdict") == "exact":
        yield "with all kinds of layers refused", f"with those of the default config exact by {_BY[default['by']]}"
    words = row.get("words", {})
    if words.get("verdict") == "exact":
        yield "with images refused", f"on words alone exact by {_BY[words['by']]}"


def _short(text: str) -> str:
    plain = text.replace("|", "/").replace("`", "'").replace("<", "&lt;")
    return plain if len(plain) <= _LONGEST else plain[:_LONGEST].rsplit(" ", 1)[0] + " …"

"""The table of docs/ that says of each class of transformers whether packs of it are exact."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_BY = {"positions": "positions", "dict4d": "masks", "prefix4d": "masks", "hybrid": "kernels"}
_SHORT = {"eager": "eager", "sdpa": "sdpa", "flex_attention": "flex", "flash_attention_2": "flash (emulated)"}
_NO_FIGURE = "–"
_LONGEST = 110


def table(rows: Sequence[Row]) -> Iterator[list[str]]:
    """The header, then the cells of each class.

    Args:
        rows: of all classes and attention implementations that were tried.
    """
    classes: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: str(row["name"]).lower()):
        classes.setdefault(row["name"], {})[row["attention"]] = row
    attentions = [name for name in _SHORT if any(name in by for by in classes.values())]
    yield ["class", "media", *(_SHORT[name] for name in attentions), "Δ others", "Δ alone", "why"]
    for name, by in classes.items():
        cells = [cell(by.get(attention)) for attention in attentions]
        yield [name, _media(by), *cells, *_figures(by), "; ".join(_reasons(by))]


def cell(row: Row | None) -> str:
    """The verdict of a class in one attention implementation, as the table has it."""
    if row is None or row["verdict"] == "none":
        return _NO_FIGURE
    if row["verdict"] == "exact":
        return _BY[row["by"]]
    return str(row["verdict"])


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


def _reasons(by: Mapping[str, Row]) -> Iterator[str]:
    """Why a class was not built, saw no image, or is refused where figures do not say it."""
    said: dict[tuple[str, str], list[str]] = {}
    for attention, row in by.items():
        for what, why in _why(row, any(other["verdict"] == "exact" for other in by.values())):
            said.setdefault((what, why), []).append(_SHORT[attention])
    for (what, why), attentions in said.items():
        is_of_all = what in ("words", "layers not tried") or len(attentions) == len(by)
        where = "" if is_of_all else f" ({', '.join(attentions)})"
        yield f"{what}{where}: {why}"


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
    return text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(" ", 1)[0] + " …"

"""Draw the charts of the page: lengths, other pack lengths, packs, and training over time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.errors import amount
from energon_pack.plan.report import STEP_COSTS
from energon_pack.report.figures import Figures
from energon_pack.report.packs import WIDTH, PackFigures
from energon_pack.report.pages.html import Html, clipped, section, table, tag
from energon_pack.report.pages.svg import Mark, curves, histogram, short
from energon_pack.report.printed import length_rows
from energon_pack.report.shapes import Histogram
from energon_pack.report.which_length import does, recommended

_FEW = 4  # up to so many packs are shown in a table, not in a chart


def sample_lengths(figures: Figures) -> Html:
    """Draw how long samples are, by medium."""
    source, most = figures.source, figures.max_token_len
    asks = "How long are samples, and where does the pack length cut?"
    if source.token_len is None:
        return section(asks, tag("p", "No sample was measured."), name="token lengths")
    says = "All samples that were measured, packed or not."
    chart = _bars(source.token_len, "tokens of a sample, log scale", "samples", [Mark(most, f"max_token_len {most:,}")],
                  labelled=source.token_len.octaves)  # fmt: skip
    rows = [
        (
            name,
            _n(of.measured),
            *(_n(of.token_len[rank]) for rank in ("min", "p50", "p90", "p99", "max")),
            _n(of.tokens),
            f"{of.num_supervised / max(1, of.tokens):.1%}",
        )
        for name, of in source.by_medium.items()
        if of.measured
    ]
    header = ("medium", "measured", "shortest", "median", "90 %", "99 %", "longest", "tokens", "of them trained on")
    return section(asks, chart, table(header, rows), says=says, name="token lengths")


def pack_lengths(figures: Figures) -> Html:
    """Draw the share of tokens that other pack lengths would drop, and how full their packs would be."""
    asks, name = "Which packing.max_token_len to take?", "which length"
    tries, chosen = figures.tries, figures.max_token_len
    found = recommended(tries.choices)
    if found is None:
        return section(asks, tag("p", "There is nothing to pack."), name=name)
    best = found.choice
    dropped = [(float(c.max_token_len), 100 * c.dropped_tokens_share) for c in tries.choices]
    fill = [(float(c.max_token_len), 100 * c.fill) for c in tries.choices]
    marks_ = [Mark(chosen, f"this run: {chosen:,}")] if chosen != best.max_token_len else []
    marks_.append(Mark(best.max_token_len, f"recommended: {best.max_token_len:,}"))
    chart = curves({"fill": fill, "dropped": dropped}, "packing.max_token_len", "% filled, % of tokens dropped", marks_,
                   is_log=True, most=100)  # fmt: skip
    own = next((choice for choice in tries.choices if choice.max_token_len == chosen), None)
    said = "this run has it" if best is own else f"this run's {chosen:,} does, too" if own and does(own) else ""
    said = said or f"this run has {chosen:,}"
    verdict = tag(
        "p", "Recommended: ", tag("b", f"packing.max_token_len={best.max_token_len}"), f" ({said}): {found.rule}."
    )
    whole = f"Planned with {tries.num_samples:,} samples" + (
        f", a seeded draw of {tries.of:,}, and scaled" if tries.num_samples < tries.of else ""
    )
    note = tag("p", f"{whole}; samples that are too long are dropped (overlong=drop).", class_="faint")
    words = {chosen: "this run"} if best is not own else {}
    words[best.max_token_len] = "recommended, this run" if best is own else "recommended"
    return section(asks, verdict, length_rows(tries.choices, words).to_html(), chart, note, name=name)


def packs(figures: Figures) -> Html | None:
    """Draw how full packs are, how many members they have, and what they cost."""
    of, report = figures.packs, figures.report
    if of is None or report is None or of.fill is None:
        return None
    says = "Each pack costs a training step about what its tokens and their squares say. Colours: the medium of a pack."
    charts = [
        ("Fill", of.fill, "% of max_token_len"),
        ("Members", of.members, "samples in a pack"),
        ("Visual tokens", of.visual_tokens, "visual tokens in a pack"),
        ("Attention cost", of.attention_cost, "Σ len² of a pack's members"),
    ]
    ranks = ("min", "p50", "p90", "p99", "max")
    rows = [(name, *(_n(of_it[rank]) for rank in ranks)) for name, of_it in of.spreads.items()]
    spreads = table(("of a pack", "least", "median", "90 %", "99 %", "most"), rows)
    drawn = [
        tag("div", tag("h3", name), _bars(shape, x, "packs", height=130, is_half=True))
        for name, shape, x in charts
        if shape and not _is_nothing(shape) and sum(map(sum, shape.counts.values())) >= _FEW
    ]
    charts_ = tag("div", *drawn, class_="pair") if drawn else None
    below = (spreads, _shapes(of), charts_, _cost(report.flops))
    return section("How full are packs, and how even?", *below, says=says, name="packs")


def _shapes(of: PackFigures) -> Html:
    """Say how many shapes batches of one pack have in an epoch."""
    plain, few = of.shapes
    most = of.spreads["members"]["max"] + 1 if of.spreads else 0
    said = f"Batches of one pack have {amount(plain, 'shape')} in an epoch (width, number of members);"
    return tag("p", f"{said} {_n(few)} with pad_to={WIDTH} and pad_segments={most} in training.", class_="faint")


def _is_nothing(shape: Histogram) -> bool:
    """Say whether all values are zero."""
    return shape.edges[0] == 0 and shape.edges[-1] == 1


def _cost(flops: Mapping[str, Any]) -> Html:
    """Draw the cost of all packs."""
    parts = {"weights of the language model": "weights", "its attention": "attention", "vision encoder": "vision"}
    total = sum(flops[key] for key in parts.values())
    shares = ", ".join(f"{name} {flops[key] / (total or 1.0):.1%}" for name, key in parts.items())
    sizes = clipped(flops["source"], 200)
    said = f"One forward pass over all packs is {total:.3g} FLOPs: {shares}. Sizes of the model: {sizes}."
    return tag("p", said, class_="faint")


def over_time(figures: Figures) -> Html | None:
    """Draw the packs that training reads, from the first to the last."""
    of = figures.packs
    if of is None or len(of.stretches) < 2:
        return None
    says = "Every stretch should look like the whole."
    edges = [100 * i / len(of.stretches) for i in range(len(of.stretches) + 1)]
    tokens = {name: [stretch.tokens[name] for stretch in of.stretches] for name in of.stretches[0].tokens}
    middle = [100 * (i + 0.5) / len(of.stretches) for i in range(len(of.stretches))]
    cost = [(at, stretch.cost) for at, stretch in zip(middle, of.stretches, strict=True)]
    trained = [(at, stretch.trained) for at, stretch in zip(middle, of.stretches, strict=True)]
    chart = (
        tag("h3", "Media"),
        histogram(edges, tokens, "% of the epoch", "tokens of a pack", height=120, is_percent=True),
        tag("h3", "Cost and trained tokens of a pack"),
        curves({"cost": cost, "trained": trained}, "% of the epoch", "of the mean pack", height=120, is_percent=True),
    )
    return section("What do ranks see over an epoch?", *chart, *_steps(figures), says=says, name="over time")


def _steps(figures: Figures) -> Iterator[Html]:
    of, steps = figures.packs, figures.report.steps if figures.report else None
    if not of or not steps:
        ranks = "Packs in the order in which they are written; packing.topology tells how many ranks will read them."
        yield tag("p", ranks, class_="faint")
        return
    ordered, without = steps["in_order"], steps["without"]
    if not ordered["steps"]:
        yield tag("p", f"No step is whole: {ordered['left_over']:,} packs are fewer than a step has.")
        return
    yield tag("h3", "Waiting for the slowest rank")
    if len(of.waits.get("planned", [])) > 1:
        num = len(of.waits["planned"])
        lines = {
            name: [(100 * (i + 0.5) / num, value) for i, value in enumerate(values)]
            for name, values in of.waits.items()
        }
        yield curves(lines, "% of the epoch", "% of a rank's time that it waits", height=120, is_percent=True)
    rows = [(what, *(f"{of[name]['epoch']:.3f}" for of in (ordered, without)), f"{ordered[name]['bound']:.3f}",
             f"{ordered[name]['worst']:.3f}") for name, what in STEP_COSTS.items()]  # fmt: skip
    yield table(("time of an epoch, 1 without waiting", "as planned", "without layout", "at least", "worst step"), rows)
    trained = (ordered["trained"]["worst"], without["trained"]["worst"], ordered["trained"]["bound"])
    row = ("off the mean at worst", *(f"{share:.1%}" for share in trained))
    yield table(("trained tokens of a step", "as planned", "without layout", "at least"), [row])
    yield tag("p", f"{ordered['steps']:,} steps of {steps['split']}; packs left over: {ordered['left_over']:,}.")


def _bars(shape: Histogram, x: str, y: str, marks: Sequence[Mark] = (), **how: Any) -> Html:
    return histogram(shape.edges, shape.counts, x, y, marks, **how)


def _n(number: int) -> str:
    return f"{number:,}" if number < 1e7 else short(number)

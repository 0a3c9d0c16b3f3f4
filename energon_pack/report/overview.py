"""Build the top of the page: the main figures, the remarks, and what became of the samples."""

import re
from collections.abc import Iterator, Sequence

from energon_pack.config import PackConfig, plain
from energon_pack.dataset.files import at
from energon_pack.plan.report import Report
from energon_pack.report.figures import Figures
from energon_pack.report.pages.html import Html, clipped, section, table, tag
from energon_pack.report.pages.svg import short
from energon_pack.report.plan_rules import smaller_media
from energon_pack.report.printed import expanded_line, media_rows, shared_line
from energon_pack.report.remark import Grade, Remark
from energon_pack.report.remarks import CHECKED
from energon_pack.report.which_length import does, recommended

_FOLDERS, _NAME, _VALUE = 20, 120, 60  # rows, characters
_LARGE = 10_000_000  # a larger number is shortened
_SETTING = re.compile(r"\b(?:model|media|source|labels|packing|output|measure)\.[a-z_.]*[a-z_]\b(?![=…])")


def cards(figures: Figures) -> Html:
    """Build the cards with the figures that readers ask for first."""
    source, report = figures.source, figures.report
    made = [_card(f"{source.samples:,}", "samples in"), _card(f"{source.measured:,}", "measured")]
    if report:
        share = f"{report.samples_skipped / max(1, report.samples_in):.2%}"
        made = [
            made[0],
            _card(f"{report.samples_packed:,}", "packed"),
            _card(f"{report.samples_skipped:,}", f"skipped, {share}"),
            _card(f"{report.packs:,}", f"packs; {report.packs_lower_bound:,} is the least"),
            _card(f"{report.fill:.2%}", "fill"),
        ]
    what = "packed tokens" if report else "measured tokens"
    tokens, trained = (report.tokens, report.num_supervised) if report else (source.tokens, source.num_supervised)
    shown = (f"{tokens:,}", what) if tokens < _LARGE else (short(tokens), f"{what}: {tokens:,}")
    made += [_card(*shown), _card(f"{trained / max(1, tokens):.1%}", f"of the {what} are trained on")]
    return tag("div", *made, class_="cards")


def _card(number: str, what: str) -> Html:
    return tag("div", tag("b", number), tag("span", what), class_="card")


def verdict(found: Sequence[Remark], is_published: bool) -> Html:
    """Say in one line whether anything is wrong."""
    wrong = [remark for remark in found if remark.grade is Grade.wrong]
    look = [remark for remark in found if remark.grade is Grade.look]
    if wrong:
        others = f", and {len(found) - 1} more to look at" if len(found) > 1 else ""
        return tag("p", tag("b", "Something is wrong: ", class_="bad"), wrong[0].what, others, ".", class_="verdict")
    if look:
        what = "1 thing" if len(look) == 1 else f"{len(look)} things"
        return tag("p", tag("b", f"{what} to look at: "), look[0].what, ".", class_="verdict")
    fine = "nothing looks wrong" if found else "nothing stands out"
    done = f"Packed, and {fine}." if is_published else f"{fine.capitalize()}."
    return tag("p", tag("b", done, class_="good"), class_="verdict")


def length(figures: Figures, found: Sequence[Remark] = ()) -> Html | None:
    """Say in one line which length to take."""
    best, mine = recommended(figures.tries.choices), figures.max_token_len
    if best is None:
        return None
    link = tag("a", "which length", href="#which-length")
    first = "Mend that first, for lengths change with it. As it is: " if any(it.changes_lengths for it in found) else ""
    own = next((choice for choice in figures.tries.choices if choice.max_token_len == mine), None)
    if own and does(own):
        said = f" is right: it drops {own.dropped_tokens_share:.2%} of the tokens and fills {own.fill:.2%} of its packs"
        shorter = "" if own is best.choice else f"; {best.choice.max_token_len:,}, shorter, does as well"
        return tag(
            "p",
            first,
            "this run's " if first else "This run's ",
            tag("b", f"max_token_len={mine:,}"),
            said,
            shorter,
            "; see ",
            link,
            ".",
        )
    smaller = smaller_media(figures) if best.choice.max_token_len > mine else []
    if smaller:
        knobs = ", or ".join(smaller)
        first += (
            f"{'f' if first else 'F'}irst, for a few large media make samples long: {knobs}. With media as they are, "
        )
    taken, what = best.choice, "length to take: " if first else "Length to take: "
    drops = f" (this run: {mine:,}) drops {taken.dropped_tokens_share:.2%} of the tokens and fills {taken.fill:.2%}"
    said = f"{drops} of its packs. It is {best.rule}; see "
    return tag("p", first, what, tag("b", f"max_token_len={taken.max_token_len:,}"), said, link, ".")


def to_look_at(found: Sequence[Remark], config: PackConfig) -> Html:
    """List the remarks, or, where there is none, the rules that were checked.

    Args:
        config: its values are shown beside the settings that a remark names.
    """
    asks, name = "Is anything wrong, and which setting would change it?", "what to look at"
    if not found:
        return section(asks, tag("p", f"Nothing stands out. Looked at: {', '.join(CHECKED)}."), name=name)
    made = [
        tag(
            "li",
            tag("b", remark.grade.value, class_=f"grade {remark.grade.value}"),
            tag(
                "div",
                tag("b", remark.what),
                tag("p", f"{remark.why[0].upper()}{remark.why[1:]}."),
                tag("p", "→ ", _with_values(remark.knob, config), class_="knob"),
            ),
        )
        for remark in found
    ]
    return section(asks, tag("ul", *made, class_="remarks"), name=name)


def _with_values(knob: str, config: PackConfig) -> str:
    """Return the names of settings with their present values."""

    values = plain(config)

    def told(match: re.Match[str]) -> str:
        value = at(values, *match[0].split("."))
        if isinstance(value, dict) or value is None:
            return match[0]
        return f"{match[0]} (now {clipped(str(value), _VALUE)})"

    return _SETTING.sub(told, knob)


def in_and_out(figures: Figures) -> Html:
    """Show what became of the samples, by medium, by split and by folder."""
    return section("What went in, and what came out?", *_in_and_out(figures), name="in and out")


def _in_and_out(figures: Figures) -> Iterator[Html]:
    source, report = figures.source, figures.report
    if report:
        yield media_rows(report).to_html()
        yield from _besides(report)
    else:
        rows = [(name, _n(of.samples), _n(of.measured), _n(of.tokens)) for name, of in source.by_medium.items()]
        yield table(("medium", "samples", "measured", "tokens"), rows)
    if report and report.shared is not None:
        line = shared_line(report.shared, report.tokens)
        yield tag("p", f"{line[0].upper()}{line[1:]}.")
    if report and len(report.by_split) > 1:
        splits = [(name, *map(_n, (of["samples"], of["packs"], of["tokens"]))) for name, of in report.by_split.items()]
        yield table(("split", "samples", "packs", "tokens"), splits)
    if report and report.turns:
        turns = [(f"{number}", *map(_n, of.values())) for number, of in enumerate(report.turns, 1)]
        yield table(("turn", "packs", "samples", "tokens"), turns)
    if report and report.mixture:
        yield table(
            ("mixture", "asked", "share", "each sample", "samples", "tokens", "trained", "fill", "tokens of a sample"),
            [
                (
                    clipped(of["name"], _NAME),
                    "" if of["asked"] is None else f"{of['asked']:.2%}",
                    f"{of['share']:.2%}",
                    f"{of['epochs']:.2f} times",
                    *(_n(of[key]) for key in ("samples", "tokens", "trained")),
                    f"{of['fill']:.2%}",
                    f"p50 {of['token_len']['p50']:,}, p99 {of['token_len']['p99']:,}" if of["token_len"] else "",
                )
                for of in report.mixture
            ],
        )
    folders = figures.origins
    if len(folders) > 1:
        header = ("of the source", "samples", "bad data", "left out by settings", "tokens packed")
        some = [
            (clipped(of.name, _NAME), *map(_n, (of.samples, of.lost, of.left_out, of.tokens)))
            for of in folders[:_FOLDERS]
        ]
        yield table(header, some)
        if len(folders) > _FOLDERS:
            yield tag("p", f"and {len(folders) - _FOLDERS:,} that lost less", class_="faint")


def _besides(report: Report) -> Iterator[Html]:
    """List the samples that were changed on their way: neither packed as they came nor skipped."""
    said = {
        "left out by split, exclude, sample_ratio or limit": report.samples_excluded,
        "drawn again by sample_ratio": report.samples_repeated,
        "cut, and packed as their parts": report.samples_cut,
    }
    if texts := [f"{number:,} {what}" for what, number in said.items() if number]:
        yield tag("p", f"Besides: {'; '.join(texts)}.")
    if report.expanded:
        yield tag("p", f"{expanded_line(report.expanded, report.shared is not None)}.")


def _n(number: int) -> str:
    return f"{number:,}"

"""The page of a run: one file that says which length to take, whether anything is wrong, and what was lost and why."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_pack.config import Stage
from energon_pack.dataset.files import nested_value
from energon_pack.errors import amount
from energon_pack.plan.report import Report, RunFacts
from energon_pack.report import page_details
from energon_pack.report.advice import length_advice, recommend_length
from energon_pack.report.figures import PAD_WIDTH, Figures
from energon_pack.report.pages.bars import draw_histogram, short_number
from energon_pack.report.pages.html import Grade, Html, Remark, clip_text, page, section, table, tag
from energon_pack.report.remarks import CHECKED_RULES
from energon_pack.report.terminal_summary import length_rows, lines_below_media_table, tabulate_samples_by_medium

_MAX_TITLE_CHARS, _MAX_NAME_CHARS, _MAX_VALUE_CHARS = 120, 120, 60  # characters
_MAX_FOLDERS = 20  # rows
_RANK_WORDS = {"min": "least", "p50": "median", "p90": "90 %", "p99": "99 %", "max": "most"}
_SETTING_NAME = re.compile(r"\b(?:model|media|source|labels|packing|output|measure)\.[a-z_.]*[a-z_]\b(?![=…])")


@dataclass(frozen=True)
class PageFacts:
    """What the page of a run shows beside figures: its settings, title, processor, files, and why it failed."""

    settings: Mapping[str, Any]  # all of the run's, by node
    title: str
    processor: str  # folder or hub id
    facts: RunFacts | None = None  # of a finished run
    folder: str | None = None  # the dataset's folder or address; None: there is no dataset
    ledger: str | None = None  # the file that names all skipped samples
    failed: str | None = None  # why nothing is published


def build_run_page(
    figures: Figures,
    about: PageFacts,
    remarks: Sequence[Remark] = (),
    pack_sections: Sequence[Html] = (),
    contact_sheet: Html | None = None,
) -> str:
    """Build the page of a run as one HTML document.

    Args:
        remarks: the remarks on the run, sorted: errors first.
        pack_sections: sections that each show a pack.
        contact_sheet: the section with a few samples; None: there is none.
    """
    title = clip_text(about.title, _MAX_TITLE_CHARS)
    stage, model = about.settings["stage"], about.settings["model"]["name"]
    said = f"stage={stage}, model {model}, processor {about.processor}"
    why = "Nothing is published: " if stage == Stage.all.value else "stage=all would publish nothing: "
    failed = (
        tag("p", tag("b", why, class_="bad"), f"{clip_text(about.failed, 3 * _MAX_TITLE_CHARS)}.")
        if about.failed
        else None
    )
    says = "A few packs. Pictures are as they are stored."
    return page(
        f"{title} · energon_pack",
        tag("h1", title),
        tag("p", clip_text(said, 3 * _MAX_TITLE_CHARS), class_="faint"),
        failed or _verdict(remarks, about.folder is not None),
        _length_advice(figures, remarks),
        section("In and out", *_sample_tables(figures)),
        _remarks_list(remarks, about.settings),
        contact_sheet,
        section("Token lengths", *_sample_lengths(figures)),
        section("Which length", *_length_trials(figures)),
        section("Packs", *_packs(figures.report, figures.batch_shapes))
        if figures.report and figures.batch_shapes
        else None,
        page_details.skipped_section(figures, about.ledger),
        section("A few packs", tag("div", *pack_sections, class_="aside"), says=says) if pack_sections else None,
        page_details.time_section(about.facts) if about.facts else None,
        page_details.settings_section(about.settings, about.facts, about.processor, about.folder),
    )


def _verdict(remarks: Sequence[Remark], is_published: bool) -> Html:
    """Say in one line whether anything is wrong."""
    wrong = [remark for remark in remarks if remark.grade is Grade.wrong]
    not_wrong = [remark for remark in remarks if remark.grade is Grade.look]
    if wrong:
        others = f", and {len(remarks) - 1} more to look at" if len(remarks) > 1 else ""
        return tag("p", tag("b", "Something is wrong: ", class_="bad"), wrong[0].what, others, ".", class_="verdict")
    if not_wrong:
        return tag(
            "p", tag("b", f"{amount(len(not_wrong), 'thing')} to look at: "), not_wrong[0].what, ".", class_="verdict"
        )
    fine = "nothing looks wrong" if remarks else "nothing stands out"
    done = f"Packed, and {fine}." if is_published else f"{fine.capitalize()}."
    return tag("p", tag("b", done, class_="good"), class_="verdict")


def _length_advice(figures: Figures, remarks: Sequence[Remark]) -> Html | None:
    """Say in one line which pack length to take; None: there is nothing to pack."""
    text = length_advice(figures.length_trials.choices, figures.max_token_len)
    first = (
        "Mend that first, for lengths change with it. As it is: " if any(it.changes_lengths for it in remarks) else ""
    )
    return tag("p", f"{first}{text}; see ", tag("a", "which length", href="#which-length"), ".") if text else None


def _remarks_list(found: Sequence[Remark], settings: Mapping[str, Any]) -> Html:
    """List the remarks, each with the present values of the settings that it names; without any, the rules checked."""
    parts = [
        tag(
            "li",
            tag("b", remark.grade.value, class_=f"grade {remark.grade.value}"),
            tag(
                "div",
                tag("b", remark.what),
                tag("p", f"{remark.why[0].upper()}{remark.why[1:]}."),
                tag("p", "→ ", _with_values(remark.knob, settings), class_="knob"),
            ),
        )
        for remark in found
    ]
    nothing = tag("p", f"Nothing stands out. Looked at: {', '.join(CHECKED_RULES)}.")
    return section("What to look at", tag("ul", *parts, class_="remarks") if parts else nothing)


def _with_values(knob: str, values: Mapping[str, Any]) -> str:
    """Add to each name of a setting in a text its present value: `model.max_pixels (now 1000000)`."""

    def told(match: re.Match[str]) -> str:
        value = nested_value(values, *match[0].split("."))
        if isinstance(value, dict) or value is None:
            return match[0]
        return f"{match[0]} (now {clip_text(str(value), _MAX_VALUE_CHARS)})"

    return _SETTING_NAME.sub(told, knob)


def _sample_tables(figures: Figures) -> Iterator[Html]:
    """Yield tables of the samples' fate, by medium and by folder, and the lines of `lines_below_media_table`."""
    source, report = figures.source, figures.report
    if report:
        yield tabulate_samples_by_medium(report).to_html()
        share = f"{report.num_supervised / max(1, report.tokens):.1%}"
        lines = [f"{share} of the packed tokens are trained on", *lines_below_media_table(report)]
        yield tag("ul", *(tag("li", clip_text(line, 3 * _MAX_NAME_CHARS)) for line in lines))
    else:
        rows = [
            (name, _count(of.samples), _count(of.measured), _count(of.tokens)) for name, of in source.by_medium.items()
        ]
        yield table(("medium", "samples", "measured", "tokens"), rows)
    folders = figures.origins
    if len(folders) > 1:
        header = ("of the source", "samples", "bad data", "left out by settings", "tokens packed")
        yield table(
            header,
            [
                (clip_text(of.name, _MAX_NAME_CHARS), *map(_count, (of.samples, of.lost, of.left_out, of.tokens)))
                for of in folders[:_MAX_FOLDERS]
            ],
        )
        if len(folders) > _MAX_FOLDERS:
            yield tag("p", f"and {len(folders) - _MAX_FOLDERS:,} that lost less", class_="faint")


def _sample_lengths(figures: Figures) -> Iterator[Html]:
    """Yield a histogram of the lengths of samples, and a row for each medium."""
    source, most = figures.source, figures.max_token_len
    if source.token_len is None:
        yield tag("p", "No sample was measured.")
        return
    yield tag("p", "All samples that were measured, packed or not.", class_="says")
    yield draw_histogram(source.token_len, "tokens of a sample", "samples", (most, f"max_token_len {most:,}"))
    header = ("medium", "samples", *_RANK_WORDS.values(), "tokens", "trained")
    rows = [
        (
            name,
            _count(counts.measured),
            *(_count(counts.token_len[rank]) for rank in _RANK_WORDS),
            _count(counts.tokens),
            f"{counts.num_supervised / max(1, counts.tokens):.1%}",
        )
        for name, counts in source.by_medium.items()
        if counts.measured
    ]
    yield table(header, rows)


def _length_trials(figures: Figures) -> Iterator[Html]:
    """Yield a table of what other pack lengths would drop, and how full their packs would be."""
    tries, own = figures.length_trials, figures.max_token_len
    best = recommend_length(tries.choices)
    if best is None:
        yield tag("p", "There is nothing to pack.")
        return
    words = {own: "this run", best.choice.max_token_len: "recommended"}
    if own == best.choice.max_token_len:
        words = {own: "recommended, this run"}
    yield length_rows(tries.choices, words).to_html()
    whole = f"Planned with {tries.num_samples:,} samples" + (
        f", a seeded draw of {tries.num_measured:,}, and scaled" if tries.num_samples < tries.num_measured else ""
    )
    yield tag("p", f"{whole}; samples that are too long are dropped (overlong=drop).", class_="faint")


def _packs(report: Report, shapes: tuple[int, int]) -> Iterator[Html]:
    """Yield what packs hold and cost, and how many shapes their batches have."""
    columns = {"members": report.members_per_pack, "visual tokens": report.visual_tokens_per_pack}
    rows = [(name, *(_count(values[rank]) for rank in _RANK_WORDS)) for name, values in columns.items() if values]
    yield table(("of a pack", *_RANK_WORDS.values()), rows)
    attention, flops = report.attention_cost, report.flops
    even = (
        f"{short_number(attention['mean'])} on average, {short_number(attention['max'])} at most" if attention else "0"
    )
    parts = {"weights of the language model": "weights", "its attention": "attention", "vision encoder": "vision"}
    total = sum(flops[key] for key in parts.values())
    shares = ", ".join(f"{name} {flops[key] / (total or 1.0):.1%}" for name, key in parts.items())
    segments = report.members_per_pack.get("max", 0) + 1
    padded = f"{_count(shapes[1])} with pad_to={PAD_WIDTH} and pad_segments={segments} in training"
    lines = (
        f"cost of attention of a pack, the sum of its members' squared lengths: {even}",
        f"one forward pass over all packs: {shares} (sizes of the model: {clip_text(flops['source'], 200)})",
        f"batches of one pack have {amount(shapes[0], 'shape')} in an epoch (width, number of members); {padded}",
    )
    yield tag("ul", *(tag("li", line) for line in lines))


def _count(number: int) -> str:
    return f"{number:,}" if number < 1e7 else short_number(number)

"""Build the page of a sample of a source."""

from collections.abc import Iterator, Sequence

from energon_pack.pages.html import Html, details, page, section, tag
from energon_pack.views.html import MARKED, member_facts, pictures, tokens_text, turns_table
from energon_pack.views.view import MemberView

_MAX_CHARS = 60_000


def sample_page(view: MemberView, place: str, raw: str, whole: str, remarks: Sequence[str]) -> str:
    """Build the page of a sample.

    Args:
        place: of the sample in the source.
        raw: its JSON, shortened.
        whole: its JSON, unshortened.
        remarks: notes to show.
    """
    facts = tag("p", member_facts(view), class_="faint") if view.turns else None
    return page(
        f"Sample {view.sample_id}",
        tag("h1", tag("code", view.sample_id)),
        tag("p", place, class_="faint"),
        facts,
        tag("p", f"It would be in no pack: {view.refused}", class_="bad") if view.refused else None,
        *(tag("p", remark, class_="bad") for remark in (*remarks, *view.notes)),
        *_understood(view),
        section(
            "As it was read",
            tag("pre", _cut(raw)),
            details("all of it", tag("pre", _cut(whole))) if whole != raw else None,
        ),
    )


def _understood(view: MemberView) -> Iterator[Html]:
    """Show the sample as it was understood, as far as that worked."""
    if view.spans is not None:
        yield section("Tokens", tokens_text(view.spans, _MAX_CHARS), says=MARKED)
    if view.turns:
        yield section("The conversation as it was understood", pictures(view.media), turns_table(view, _MAX_CHARS))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… {len(text) - _MAX_CHARS:,} more characters"

"""Rows that we mean to train otherwise than others, each with its reason; `docs/labels.md` has them as a table."""

from dataclasses import dataclass

from support.labels.frameworks import Judged
from support.labels.truth import Verdict


@dataclass(frozen=True)
class Convention:
    """Why rows may differ, and which; what is empty fits all."""

    reason: str
    statuses: tuple[str, ...]
    #: of conversations
    ids: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    #: words of the skip
    words: str = ""


CONVENTIONS = (
    Convention("the template writes no tool calls: a named skip", ("skipped",), words="leaves out tool calls"),
    Convention("a model without images: a named skip", ("skipped",), words="sees no image"),
    Convention("text parts are joined before the template sees them", ("text",), ids=("c21",)),
)


def convention_of(status: str, template: str, conversation: str, detail: str) -> str | None:
    """The reason why a row may differ; None: it may not."""
    for item in CONVENTIONS:
        fits = status in item.statuses and item.words in detail
        if fits and (not item.ids or conversation in item.ids) and (not item.templates or template in item.templates):
            return item.reason
    return None


def reason_to_differ(row: Verdict | Judged) -> str | None:
    """As `convention_of`, of a judged row."""
    template, _, conversation = row.name.partition("/")
    return convention_of(row.status, template, conversation, row.detail)

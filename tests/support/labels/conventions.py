"""Rows of truth that we mean to differ from, each with its reason; `docs/labels.md` has them as a table."""

from support.labels.truth import Verdict

#: reason → (statuses of the verdict, ids of conversations, words of the skip); all three have to fit
CONVENTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "the template writes no tool calls: a named skip": (("skipped",), (), "leaves out tool calls"),
    "text parts are joined before the template sees them": (("text",), ("c21",), ""),
}


def convention_of(verdict: Verdict) -> str | None:
    """The reason why a row may differ; None: it may not."""
    for reason, (statuses, ids, words) in CONVENTIONS.items():
        if verdict.status in statuses and (not ids or verdict.row["id"] in ids) and words in verdict.detail:
            return reason
    return None

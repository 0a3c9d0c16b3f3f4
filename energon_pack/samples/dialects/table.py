"""Lists the dialects in which a record has its conversation in other fields than `messages`. Pure.

A dialect is recognised by its fields alone: all of them are there, and none is null. `turns_of` reads the one that
fits; two that fit are an error of the sample, never a choice. To add a dialect, add a row to `DIALECTS`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from energon_pack.samples.dialects.dialect import Dialect
from energon_pack.samples.dialects.fields import alpaca, listed_pairs, prompt_and_completion, turns_as_written
from energon_pack.samples.skip import Reason, Skip

#: fields that hold ordinary turns, or pairs, under other names than `messages`
TURN_FIELDS = ("conversation", "dialog", "dialogue", "turns")


class Written(NamedTuple):
    """A conversation in other fields."""

    dialect: Dialect
    turns: list[Any]

    def fields(self, value: Mapping[str, Any]) -> set[str]:
        """Return the fields of the record that hold the conversation."""
        return {key for key in (*self.dialect.needs, *self.dialect.reads) if key in value}


DIALECTS = (
    Dialect("alpaca", ("instruction", "output"), alpaca, ("input", "history")),
    Dialect("query and response", ("query", "response"), alpaca, ("history",)),
    Dialect("prompt and completion", ("prompt", "completion"), prompt_and_completion),
    Dialect("prompt and response", ("prompt", "response"), alpaca, ("history",)),
    Dialect("question and response", ("question", "response"), alpaca, ("history",)),
    *(
        Dialect(f"{asks} and {answers}", (asks, answers), listed_pairs, is_vqa=True)
        for asks in ("questions", "question")
        for answers in ("answers", "answer")
    ),
    *(Dialect(field, (field,), turns_as_written) for field in TURN_FIELDS),
)

_ALL_FIELDS = frozenset(key for dialect in DIALECTS for key in (*dialect.needs, *dialect.reads))


def turns_of(value: Mapping[str, Any], only_vqa: bool) -> Written | None:
    """Read the conversation of a record that has none of the fields that are read first; None: no dialect fits.

    Raises:
        Skip: `bad_message` for two dialects that fit, and for a value of another type.
    """
    fit = [
        dialect
        for dialect in DIALECTS
        if (dialect.is_vqa or not only_vqa) and all(value.get(key) is not None for key in dialect.needs)
    ]
    if not fit:
        return None
    if len(fit) > 1:
        names = " and as ".join(f"{dialect.name!r}" for dialect in fit)
        decide = "source.messages_key, or source.columns.prompt and source.columns.response, decide"
        raise Skip(Reason.BAD_MESSAGE, f"it can be read as {names}: {decide}")
    dialect = fit[0]
    lists = [key for key in _ALL_FIELDS.difference(dialect.needs, dialect.reads) if key in value]
    if left := sorted(key for key in lists if value[key] and isinstance(value[key], list)):
        what = f"it can be read as {dialect.name!r}, and has a list in {left[0]}, too: source.messages_key decides"
        raise Skip(Reason.BAD_MESSAGE, what)
    return Written(dialect, dialect.turns(value, dialect))

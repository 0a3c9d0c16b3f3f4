"""Makes one sample of the two sides of a preference pair, and the two members of a pack of one sample. Pure.

    the chosen record, the rejected record ──with_rejected_side──► one record
    its sample ──cuts_of_pair──► two cuts: `chosen` and `rejected`, which fork behind the prompt

The prompt is all before the last answer; only that answer is trained.
"""

from collections.abc import Sequence
from dataclasses import replace

from energon_pack.samples.cut import CHOSEN, REJECTED, Cut
from energon_pack.samples.record import Record
from energon_pack.samples.sample import Message
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.turns import is_empty_answer
from energon_pack.samples.weights import has_weight, sample_weight, turn_weight


def with_rejected_side(chosen: Record, rejected: Record) -> Record:
    """Return the record of a pair: its chosen side, with the messages of its rejected side.

    Raises:
        Skip: `no_pair`: the sides differ before their last answers, in their media or tools, or have weights;
            `empty_answer`: a side says nothing; `equal_answers`: both say the same.
    """
    for side, record in ((CHOSEN, chosen), (REJECTED, rejected)):
        if len(record.messages) < 2 or (role := record.messages[-1]["role"]) != "assistant":
            ends = "has no question" if len(record.messages) < 2 else f"ends with a turn of {role!r}"
            raise Skip(Reason.NO_PAIR, f"the {side} side {ends}, not with an answer to a question")
        if is_empty_answer(record.messages[-1]):
            raise Skip(Reason.EMPTY_ANSWER, f"the {side} answer says nothing")
        if sample_weight(record.fields) != 1 or (
            has_weight(last := record.messages[-1]) and turn_weight(last, True) != 1
        ):
            raise Skip(Reason.NO_PAIR, f"the {side} side has a weight: all pairs count alike")
    both = zip(chosen.messages, rejected.messages, strict=False)
    first = next((index for index, (turn, other) in enumerate(both) if turn != other), None)
    if first is None and len(chosen.messages) == len(rejected.messages):
        raise Skip(Reason.EQUAL_ANSWERS, "both sides have the same answer")
    if len(chosen.messages) != len(rejected.messages) or first != len(chosen.messages) - 1:
        before = (
            f"{len(chosen.messages)} and {len(rejected.messages)} turns" if first is None else f"from turn {first} on"
        )
        raise Skip(Reason.NO_PAIR, f"its sides differ before their last answers: {before}")
    if (chosen.listed_media, chosen.tools) != (rejected.listed_media, rejected.tools):
        raise Skip(Reason.NO_PAIR, "its sides have other media, or other tools")
    return replace(chosen, rejected=rejected.messages)


def cuts_of_pair(messages: Sequence[Message], kinds: Sequence[str]) -> list[Cut]:
    """Return the cuts of a pair's chosen and rejected side; `messages`: of either side, `kinds`: of its media."""
    last, letters = len(messages) - 1, "".join(kind[0] for kind in kinds)
    return [
        Cut(side, 0, last + 1, None, letters, form, last) for side, form in ((CHOSEN, "turns"), (REJECTED, REJECTED))
    ]

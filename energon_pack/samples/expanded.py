"""Says which parts `labels.expand` makes of a conversation. Pure.

turns   user a · ANSWER 1 · user b · ANSWER 2      a 1   |   a (1) b 2           (1): there, and not trained
pairs   image, a · ANSWER 1 · b · ANSWER 2         image a 1   |   image b 2
"""

from collections.abc import Sequence
from itertools import pairwise

from energon_pack.samples.cut import Cut, exchanges, first_question, num_media_before
from energon_pack.samples.sample import Message
from energon_pack.samples.weights import turn_weight


def turns_of(
    messages: Sequence[Message], kinds: Sequence[str], only_last: bool, window: int | None, window_text: str
) -> list[Cut]:
    """Return a part for each trained answer: all up to it; empty: the conversation stays whole.

    A trained turn that is no answer is trained in the part of the next one.

    Args:
        messages: of the whole sample.
        kinds: of its media.
        only_last: `labels.train_on=last`: of the answers, only the last is trained, and those whose keys say so.
        window: images that a part keeps, the last ones; None: all.
        window_text: in place of the others.

    Raises:
        Skip: as `turn_weight`.
    """
    answers = _answers(messages)
    if len(answers) < 2:
        return []
    chosen = {answers[-1]} if only_last else {*answers}
    trained = [i for i, message in enumerate(messages) if turn_weight(message, i in chosen)]
    ends = [i + 1 for i in trained if i in answers or i == trained[-1]]
    before, letters = num_media_before(messages, kinds), "".join(kind[0] for kind in kinds)
    parts = []
    for number, (last, end) in enumerate(pairwise([0, *ends]), 1):
        images = letters[: before[end]].count("i")
        old = max(0, images - window) if window is not None else 0
        text = window_text if old else None
        parts.append(Cut(f"{number}of{len(ends)}", 0, end, None, letters, "turns", last, old, text))
    is_whole = len(parts) == 1 and parts[0].end_turn == len(messages) and not parts[0].first_image
    return [] if is_whole else parts


def pairs_of(messages: Sequence[Message], kinds: Sequence[str]) -> list[Cut]:
    """Return a part for each question with its answer, with the media of the user's first turn.

    Empty: the conversation stays whole, as it has one question, or its first one has no media.

    Args:
        messages: of the whole sample.
        kinds: of its media.
    """
    first, edges, before = first_question(messages), exchanges(messages), num_media_before(messages, kinds)
    if first is None or before[first] == before[first + 1]:
        return []
    edges = [edges[0], *(edge for edge in edges[1:] if edge > first)]  # answers before the first question join its pair
    pairs = [*pairwise(edges)]
    if len(pairs) < 2:
        return []
    letters = "".join(kind[0] for kind in kinds)
    return [Cut(f"{number}of{len(pairs)}", *pair, None, letters, "pairs") for number, pair in enumerate(pairs, 1)]


def _answers(messages: Sequence[Message]) -> list[int]:
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]

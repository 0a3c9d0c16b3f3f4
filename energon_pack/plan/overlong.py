"""Cut samples longer than a pack: conversations between turns (`packing.overlong=split_turns`) or in text
(`truncate_text`), documents between tokens (`split_text`).

Each part of a conversation is one of its own: the system turn, a run of turns, and their media. `split_text` loses no
token of a document, and changes none:

    tokens of the document   <bos> The  cat  sat  on  the  mat  .  <end>          at most 4 a part
    parts                    <bos> The  cat  sat | on  the  mat  . | …

A tokenizer may read a piece of a text otherwise than within the whole text. So each part has as much text around it as
makes its tokens come out alike, and says which tokens of that text it is.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from energon_pack.errors import PackError, amount
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import key_of
from energon_pack.lengths.worker import LengthsRow
from energon_pack.plan.items import Lengths
from energon_pack.plan.packs import LEFT_OUT, PackPlan
from energon_pack.plan.sample_parts import PartsRecipe, WholeSample, make_parts
from energon_pack.plan.settings import CAPPED_COLUMNS, CAPS, Overlong, PackingConfig, exceeded_limits, padded_len
from energon_pack.run.bounded_memory import split_into_blocks
from energon_pack.run.workshop import Workshop
from energon_pack.samples.cut import CUT_TYPE, TEXT_CUT_TYPE, Cut, exchange_bounds
from energon_pack.samples.documents import DOCUMENT, is_document
from energon_pack.samples.media.kinds import MEDIA_TYPES
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.tar import num_tar_bytes
from energon_pack.templates.settings import LabelsConfig

#: Raise this number when the same sample is cut in another way.
_VERSION = 2
#: characters around a part of a document that are tried
_CONTEXT_CHARS = (0, 16, 256, 4096)
_NO_TOKEN_LIMIT = (1 << 31) - 1  # tokens


def refuse_overlong(lengths: Lengths, plan: PackPlan, packing: PackingConfig) -> None:
    """Raise PackError on the first overlong sample."""
    overlong = plan.left_out[: lengths.num_samples] == LEFT_OUT.index(Reason.OVERLONG)
    if num := np.count_nonzero(overlong):
        first = np.flatnonzero(overlong)[:1]
        raise PackError(
            f"{amount(int(num), 'sample')} {'is' if num == 1 else 'are'} longer than"
            f" packing.max_token_len={packing.max_token_len}, first"
            f" {lengths.sample_id(int(first[0]))} with {lengths.find_largest_part_counts(first)['token_len'][0]}"
            " tokens; packing.overlong=drop leaves them out"
        )


def cut_overlong(
    lengths: Lengths, method: Method, packing: PackingConfig, labels: LabelsConfig, workshop: Workshop
) -> Lengths:
    """Cut the samples that are longer than a pack, by the policy `packing.overlong`, and return the new lengths.

    Parts take the place of a sample that was cut; a sample that can't be cut stays whole.
    """
    items = lengths.items
    overlong = lengths.scratch.zeros(lengths.num_samples, np.bool_)
    for block in split_into_blocks(lengths.num_samples):
        overlong[block] = _is_to_be_cut(items.lens[block], items.media[block] == 0, packing)
    has_forms = packing.overlong == Overlong.split_text or (
        packing.overlong == Overlong.truncate_text and not labels.cut_end
    )
    recipe = PartsRecipe(
        "cut",
        key_of(settings_of_cutting(packing), _VERSION, *([] if labels.cut_end else ["open"])),
        partial(_parts, packing=packing, cut_end=labels.cut_end),
        TEXT_CUT_TYPE if has_forms else CUT_TYPE,
        lambda table: _is_to_be_cut(
            table["token_len"].to_numpy(),
            pc.fill_null(pc.equal(table["media_type"], MEDIA_TYPES[0]), False).to_numpy(),
            packing,
        ),
        ("token_len", "media_type"),
    )
    return make_parts(lengths, overlong, recipe, method, workshop)


def settings_of_cutting(packing: PackingConfig) -> dict[str, Any]:
    """Return the settings that decide which samples are cut, and where, as a part of the key of cached parts."""
    return {
        "overlong": packing.overlong,
        "pad_to_multiple_of": packing.pad_to_multiple_of,
        **{cap.name: getattr(packing, cap.name) for cap in CAPS},
    }


def _is_to_be_cut(
    token_len: npt.NDArray[Any], is_text: npt.NDArray[np.bool_], packing: PackingConfig
) -> npt.NDArray[np.bool_]:
    """Say which samples are too long, and may be cut: only text may be cut elsewhere than between turns."""
    is_long = padded_len(token_len.astype(np.int64), packing.pad_to_multiple_of) > packing.max_token_len
    may_be_cut: npt.NDArray[np.bool_] = is_long & (is_text | (packing.overlong == Overlong.split_turns))
    return may_be_cut


def _parts(whole: WholeSample, packing: PackingConfig, cut_end: bool) -> list[LengthsRow]:
    """Return the rows of a sample's parts, and one that counts the tokens in none of them; empty if it can't be cut."""
    is_text = is_document(whole.sample.messages)
    if packing.overlong == Overlong.split_text:
        parts = [*_text_parts(whole, packing)] if is_text else []
    elif packing.overlong == Overlong.split_turns:
        parts = _Conversation(whole, packing).parts()
    else:
        parts = [*islice(_text_parts(whole, packing), 1)] if is_text and not cut_end else []
        parts = parts or _Conversation(whole, packing, cut_end).longest_beginning()
    rows = whole.keep_trained_parts(parts) if parts else []
    is_cut_off = packing.overlong == Overlong.truncate_text and any(row.reason is None for row in rows)
    return [*rows, *([whole.row_of_lost_tokens(whole.row.token_len - rows[0].token_len)] if is_cut_off else [])]


class _Conversation:
    """One overlong sample, and the measured lengths of its parts."""

    def __init__(self, whole: WholeSample, packing: PackingConfig, cut_end: bool = True):
        self._whole, self._packing = whole, packing
        self._messages = whole.sample.messages
        self._form = None if cut_end else "open"

    def parts(self) -> list[LengthsRow]:
        """Cut it between turns; return the rows of its parts, empty if it can't be cut."""
        edges = exchange_bounds(self._messages)
        found_all = []
        begin = 0
        while begin < len(edges) - 1:
            step = _search_largest_fitting(
                lambda n, begin=begin: self._row_if_fitting(edges[begin], edges[begin + n]),  # type: ignore[misc]
                len(edges) - 1 - begin,
            )
            if step is None:
                return []
            begin += step[0]
            found_all.append(step[1])
        return found_all

    def longest_beginning(self) -> list[LengthsRow]:
        """Return the row of the longest beginning that fits: whole exchanges, or the first answer up to a token."""
        edges = exchange_bounds(self._messages)
        whole = _search_largest_fitting(lambda n: self._row_if_fitting(edges[0], edges[n]), len(edges) - 2)
        if whole is not None:
            return [self._untrain_without_last_answer(whole[1])]
        answer = next(i for i, message in enumerate(self._messages) if message["role"] in ("assistant", DOCUMENT))
        text = self._messages[answer]["content"]
        if not isinstance(text, str) or self._messages[answer].get("tool_calls"):
            return []
        ends = self._whole.template.token_ends(text)
        longest = _search_largest_fitting(lambda n: self._row_if_fitting(edges[0], answer + 1, ends[n - 1]), len(ends))
        return [] if longest is None else [self._untrain_without_last_answer(longest[1])]

    def _untrain_without_last_answer(self, row: LengthsRow) -> LengthsRow:
        """Return the row of a beginning: nothing in it is trained where only the last answer is, and it lacks that."""
        last = max((i for i, message in enumerate(self._messages) if message["role"] == "assistant"), default=-1)
        lacks_it = row.cut is not None and row.cut.end_turn <= last
        return replace(row, num_supervised=0) if self._whole.trains_only_last_answer and lacks_it else row

    def _row_if_fitting(self, first: int, end: int, num_characters: int | None = None) -> LengthsRow | None:
        """Return the row of a part; None if it does not fit."""
        cut = Cut(
            "", first, end, num_characters, self._whole.media_kind_letters(), self._form if num_characters else None
        )
        try:
            part, rendered = self._whole.rendered(cut)
        except Skip:  # a template may refuse turns without the turns before them
            return None
        [counts] = self._whole.template.count([rendered], self._whole.engine)
        row = self._whole.row_of_part(cut, part, rendered, *counts)
        return None if exceeded_limits({name: getattr(row, name) for name in CAPPED_COLUMNS}, self._packing) else row


def _search_largest_fitting(measured: Callable[[int], LengthsRow | None], limit: int) -> tuple[int, LengthsRow] | None:
    """Find the largest number from 1 to `limit` for which `measured` returns a row; None: not even 1.

    Doubles the number, then halves the interval: every smaller number must have a row, too.
    """
    best: tuple[int, LengthsRow] | None = None
    step = 1
    too_many = limit + 1
    while (number := (best[0] if best else 0) + step) < too_many:
        row = measured(number)
        if row is None:
            too_many = number
            break
        best, step = (number, row), step * 2
    low = best[0] if best else 0
    too_many = min(too_many, limit + 1)
    while too_many - low > 1:
        middle = (low + too_many) // 2
        row = measured(middle)
        if row is None:
            too_many = middle
        else:
            low, best = middle, (middle, row)
    return best


def _text_parts(whole: WholeSample, packing: PackingConfig) -> Iterator[LengthsRow]:
    """Cut a document into parts of as many tokens as fit a pack; yield the row of lengths of each.

    Yields nothing if a pack holds fewer than two tokens of text.
    """
    text, rendered = whole.sample.messages[0]["content"], whole.template.render(whole.as_sample)
    most = max_text_member_len(packing)
    if most < 2 or not isinstance(text, str):
        return
    [tokens] = whole.template.tokenize([rendered])
    before = rendered.token_range[0] if rendered.token_range else 0
    places = whole.template.token_places(rendered.text)[before : before + len(tokens.ids)]
    begin = rendered.text.index(text)
    for start, end in pairwise(split_tokens_into_parts(places, most)):
        last = places[end - 1][1] - begin if end < len(places) else len(text)
        span = places[start][0] - begin, last
        yield _text_part(whole, text, span, before + start, tokens.ids[start:end])


def max_text_member_len(packing: PackingConfig) -> int:
    """Return how many tokens a member without media may have in a pack, by all limits."""
    none = dict.fromkeys(CAPPED_COLUMNS, 0)
    numbers = range(1, packing.max_token_len + 1)
    return bisect_left(numbers, True, key=lambda n: bool(exceeded_limits({**none, "token_len": n}, packing)))


def split_tokens_into_parts(character_spans: Sequence[tuple[int, int]], max_part_len: int) -> list[int]:
    """Return the index of the first token of each part, and the end; no part begins within a character.

    Args:
        character_spans: for each token, the index of its first character, and of the character after it.
        max_part_len: tokens of a part; the last part has at least two.
    """
    edges = [0]
    while len(character_spans) - edges[-1] > max_part_len:
        end = edges[-1] + max_part_len
        end -= len(character_spans) - end == 1  # the first token of a part trains nothing
        may_end = (i for i in range(end, edges[-1] + 1, -1) if character_spans[i][0] >= character_spans[i - 1][1])
        edges.append(next(may_end, end))
    return [*edges, len(character_spans)]


def _text_part(whole: WholeSample, text: str, span: tuple[int, int], number: int, ids: list[int]) -> LengthsRow:
    """Return the row of lengths of a part: characters `span` of `text`, and the tokens `ids` from `number` on."""
    first, last, start = _context_of_part(whole, text, span, ids) or (0, len(text), number)
    cut = _text_cut(first, last, start, start + len(ids))
    part, rendered = whole.rendered(cut)
    [counts] = whole.template.count([rendered], whole.engine)
    num_bytes = num_tar_bytes([len(text[first:last].encode())])
    return replace(whole.row_of_part(cut, part, rendered, *counts), num_bytes=num_bytes)


def _context_of_part(
    whole: WholeSample, text: str, span: tuple[int, int], ids: list[int]
) -> tuple[int, int, int] | None:
    """Find a short range of characters around a part in which the tokenizer gives the same tokens for it.

    Returns the range's start and end, and the index of the part's first token in it; None: none that is tried does.
    """
    for around in _CONTEXT_CHARS:
        first, last = max(0, span[0] - around), min(len(text), span[1] + around)
        [window] = whole.template.tokenize([whole.rendered(_text_cut(first, last, 0, _NO_TOKEN_LIMIT))[1]])
        start = next(_occurrences(window.ids, ids), None)
        if start is not None and text[first:last].strip():
            return first, last, start
    return None


def _text_cut(first: int, last: int, first_token: int, end_token: int) -> Cut:
    whole = Cut("", 0, 1, last - first, "", "tokens")
    return whole._replace(first_character=first, first_token=first_token, end_token=end_token)


def _occurrences(window: list[int], ids: list[int]) -> Iterator[int]:
    """Yield each index at which the ids of a part begin in the ids of a window."""
    num = len(ids)
    yield from (i for i in range(len(window) - num + 1) if window[i] == ids[0] and window[i : i + num] == ids)

"""Runs of a feature token as one: the same ids and ranges as the tokenizer gives for the whole text, in less time."""

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from energon_pack.templates.tokens.added import AddedTokens, Runs, grow
from energon_pack.templates.tokens.tokenizing import Tokenizing

PAD, OTHER = "<|pad|>", "<|video|>"


def make() -> Tokenizer:
    """Bytes, and a few added tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = [PAD, OTHER, "<|end|>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


TOKENIZER = make()
RUNS = Runs(TOKENIZER, {PAD, OTHER, "no token"})
piece = st.one_of(
    st.text(max_size=4),
    st.sampled_from([PAD, OTHER, "<|end|>", "<|pad", "|>", "é", "日本"]),
    st.integers(2, 30).map(lambda times: PAD * times),
    st.integers(2, 30).map(lambda times: OTHER * times),
)


def test_by_hand() -> None:
    text = f"ab{PAD * 3}c{OTHER * 2}{PAD}"
    squeezed, spans, runs = RUNS.squeeze(text, [(2 + 3 * len(PAD), 3 + 3 * len(PAD))])
    assert squeezed == f"ab{PAD}c{OTHER}{PAD}"
    assert runs == [(9, 2), (19, 1)]
    assert spans == [(9, 10)]
    ids = np.array(TOKENIZER.encode(squeezed).ids)
    grown, ranges = grow(ids, {9: 3, 10: 4, 19: 5}, [(9, 10), (10, 19)], runs)
    assert grown.tolist() == TOKENIZER.encode(text).ids
    assert ranges == [(5, 6), (6, 8)]


@pytest.mark.parametrize("engine", ["tokenizers", "words"])
@settings(max_examples=300)
@given(st.lists(piece, max_size=12), st.data())
def test_as_the_whole_text(engine: str, pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    whole = TOKENIZER.encode(text)
    begins = [begin for begin, _ in whole.offsets]
    ((ids, ranges),) = Tokenizing(TOKENIZER, False, {PAD, OTHER}).located([(text, spans)], engine)
    assert ids.tolist() == whole.ids
    assert ranges == [(bisect_left(begins, start), bisect_left(begins, end)) for start, end in spans]


def test_a_token_that_another_overlaps_or_holds_does_not_stand_alone() -> None:
    added = AddedTokens(["<a>", "<b>", "<b><c>", "x<d", "<e>", "<e", "aba", ">>"])
    assert added.stands_alone("<q>") is False
    assert AddedTokens(["<a>", "<b>"]).stands_alone("<a>")
    assert [token for token in added.all if added.stands_alone(token)] == ["x<d"]
    assert [added.may_go_on(text) for text in ("a <b", "<b><", "a", "b", "")] == [True, True, True, False, False]

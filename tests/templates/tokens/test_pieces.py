"""Long texts are counted a piece at a time, and come to what the whole text comes to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from energon_pack.templates.sample import Rendered
from energon_pack.templates.template import Template
from energon_pack.templates.tokens import words
from energon_pack.templates.tokens.added import AddedTokens
from energon_pack.templates.tokens.words import HOSTILE

LATIN_LONG_S = "\u017f"  # which only the reference can count
texts = st.lists(
    st.sampled_from([*HOSTILE, " b", "word", "\nline", "\n你", " ", "<|im_end|>", LATIN_LONG_S]), max_size=30
)


def test_where_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a space between letters, and behind the end of a line; not within spaces, numbers or signs."""
    monkeypatch.setattr(words, "LONG", 2)
    text = "ab cd  e\nfg 12 h.\n\n你"
    assert [text[start:end] for start, end in words.pieces(text)] == ["ab", " cd  e\n", "fg 12 h.\n\n", "你"]


@given(parts=texts, cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(deadline=None, max_examples=300)
def test_pieces_come_to_the_whole(template: Template, parts: list[str], cuts: list[int]) -> None:
    """A token lost or won at a seam would be a wrong length."""
    text = "".join(parts) + LATIN_LONG_S
    ends = sorted(min(cut, len(text)) for cut in cuts[: len(cuts) // 2 * 2])
    spans = [(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True) if start < end]
    rendered = Rendered(text, spans, 0, 0)
    (tokens,) = template.tokenize([rendered])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "LONG", 3)
        found = template.counter("words")._pieces.count(text, spans)
        assert found is None or found == (len(tokens.ids), tokens.num_supervised)
        assert (found is None) == (len(text) <= 3)
        assert template.count([rendered], "words") == [(len(tokens.ids), tokens.num_supervised)]


@pytest.mark.parametrize(
    ("cutter", "added"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), []),  # a text is one word
        (pre_tokenizers.ByteLevel(add_prefix_space=False), ["<a b>"]),
        (pre_tokenizers.ByteLevel(add_prefix_space=False), ["end"]),
        (None, []),
    ],
)
def test_words_across_seams_are_not_cut(cutter: pre_tokenizers.PreTokenizer | None, added: list[str]) -> None:
    """Its texts are counted whole, whatever that takes."""
    tokenizer = Tokenizer(models.BPE())
    if cutter is not None:
        tokenizer.pre_tokenizer = cutter
    assert words.Pieces(tokenizer, AddedTokens(added)).count("word " * words.LONG, []) is None


def test_a_long_text_is_never_given_whole_to_the_reference(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 MB of JSON took 2.6 GB."""
    monkeypatch.setattr(words, "LONG", 50)
    text = "one two three " * 40 + LATIN_LONG_S
    monkeypatch.setattr(Template, "tokenize", lambda *given: [])
    assert template.count([Rendered(text, [], 0, 0)], "words")[0][0] > 100

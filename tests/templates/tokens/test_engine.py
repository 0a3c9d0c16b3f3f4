"""Counting without making tokens gives the counts of making them, for every engine, text and span; ids that are made by
words are those of the tokenizer.

A count that is one too low overflows a pack in training; the reference is `tokenizers`.
"""

from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from energon_pack.lengths import worker
from energon_pack.lengths.method import Method
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.settings import ReadSettings
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.sample import Rendered, Sample
from energon_pack.templates.template import Template
from energon_pack.templates.tokens import tokenizing
from energon_pack.templates.tokens.engine import TokenEngine, TokenEngineError, find_texts_with_new_characters
from energon_pack.templates.tokens.pieces import (
    HOSTILE_TEXTS,
    AddedTokenFinder,
    TokenRunShortener,
    ascii_pattern,
    expand_runs,
)
from energon_pack.templates.tokens.tokenizing import Tokenizing
from support.marks import slow
from support.models import of_model

ENGINES = ["words", "gigatoken"]

words = st.sampled_from(
    [*HOSTILE_TEXTS, "<|im_start|>", "<|im_end|>", "<|image_pad|>" * 7, "assistant\n", "\n", " ", "x"]
)
texts = st.lists(words | st.text(max_size=12), max_size=12).map("".join)


@st.composite
def texts_with_spans(draw: st.DrawFn) -> Rendered:
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6).map(lambda c: c[: len(c) // 2 * 2])))
    spans = [(start, end) for start, end in zip(cuts[::2], cuts[1::2], strict=True) if start < end]
    return Rendered(text, spans, 0, 0)


def need(engine: str) -> str:
    if engine != "words":
        pytest.importorskip(engine)
    return engine


def reference(template: Template, rendered: list[Rendered]) -> list[tuple[int, int]]:
    return [(len(tokens.ids), tokens.num_supervised) for tokens in template.tokenize(rendered)]


def check_ids(template: Template, rendered: list[Rendered], engine: str = "words") -> int:
    """Compare ids and ranges with the reference's; return for how many texts the engine made them."""
    texts = [(item.text, item.spans) for item in rendered]
    by_engine, expected = (template.located(texts, name) for name in (need(engine), "tokenizers"))
    assert [(ids.tolist(), ranges) for ids, ranges in by_engine] == [(i.tolist(), ranges) for i, ranges in expected]
    positions = [(text, sorted({end for span in spans for end in span})) for text, spans in texts]
    return sum(found is not None for found in template.engine(engine).tokens(positions))


@pytest.mark.parametrize("engine", ENGINES)
@given(rendered=st.lists(texts_with_spans(), max_size=4))
@settings(deadline=None, max_examples=75)
def test_ids_of_each_engine_are_those_of_the_tokenizer(
    template: Template, engine: str, rendered: list[Rendered]
) -> None:
    """Packs hold these ids: a wrong one would be trained, and no length would tell."""
    check_ids(template, rendered, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("processor", "family", "step"),
    [
        ("qwen2_5_vl", "qwen_vl", 31),
        pytest.param("qwen2_5_vl", "qwen_vl", 1, marks=pytest.mark.slow),
        pytest.param("llama3_text", "text", 7, marks=pytest.mark.slow),  # these tokenizers take seconds to build
        pytest.param("kimi_k25", "kimi", 7, marks=pytest.mark.slow),
    ],
)
def test_hostile_texts_of_real_vocabularies(
    real: Path, cache: Path, engine: str, processor: str, family: str, step: int
) -> None:
    """Pairs of them; each text is the first and the last of some, also where not all pairs are tried."""
    template = load_saved_template(prepare_template(of_model(family, real / "processors" / processor), cache))
    pairs = [a + b for a in HOSTILE_TEXTS for b in HOSTILE_TEXTS][::step]
    rendered = [Rendered(text, [(len(text) // 2, len(text))], 0, 0) for text in pairs]
    try:
        assert template.count(rendered, need(engine)) == reference(template, rendered)
        assert check_ids(template, rendered) > len(rendered) / 5 or processor == "kimi_k25"
    except TokenEngineError:
        assert (engine, processor) == ("gigatoken", "kimi_k25")  # it says that it has no such pattern


def test_spaces_before_a_span_depend_on_what_follows(template: Template) -> None:
    """`a   1` is `a`, two spaces, one space, `1`; `a   ` alone has its three spaces in one word."""
    rendered = [Rendered("a   1", [(4, 5)], 0, 0)]
    assert template.count(rendered, "words") == reference(template, rendered)
    assert template.engine("words").tokens([("a   1", [4, 5])]) == [None]


def test_most_conversations_need_no_reference(template: Template) -> None:
    """Else it would be right, and no faster."""
    messages = [
        {"role": "user", "content": "<image>Was ist das? 🙂"},
        {"role": "assistant", "content": "Ein Haus, 一座房子."},
        {"role": "user", "content": " and this\n"},
        {"role": "assistant", "content": "No idea."},
    ]
    placed, _, _ = place_media(messages, ["image"])
    from energon_pack.samples.media.medium import Media

    rendered = template.render(Sample(placed, [Media("image", 280, 280)]))
    assert check_ids(template, [rendered]) == 1


def test_young_characters_are_left_to_the_reference() -> None:
    new = "\u208f"  # a subscript that came with Unicode 16
    assert find_texts_with_new_characters(["a1 é 一 🙂 ,\n", "", f"a{new}", "", f"{new}{new}", "a"]) == {2, 4}


@pytest.mark.parametrize("step", [slow(64), 512])  # characters; 64 of each are tried
def test_old_characters_make_the_same_words_in_every_table(template: Template, step: int) -> None:
    """Where `regex` and the reference disagree on a character, it is a doubtful one."""
    pattern = template.engine("words")._pattern
    cut = Tokenizer.from_str(template._tokenizer.to_str()).pre_tokenizer
    differ = []
    for start in range(0, 0x20000, step):
        characters = [c for c in map(chr, range(start, start + 64)) if not "\ud800" <= c <= "\udfff"]
        young = find_texts_with_new_characters(characters)
        text = "".join(f"a{c}a 1{c}1 .{c}. '{c} {c}\n" for i, c in enumerate(characters) if i not in young)
        ours = [match.span() for match in pattern.finditer(text)]
        if ours != [span for _, span in cut.pre_tokenize_str(text)]:
            differ.append(start)
    assert differ == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (r"[^\p{L}\p{N}]|\p{Lu}+|\p{Ll}+|\p{N}{1,3}|[\p{Lm}\p{M}x]", ["ABC", "def", "123", "4", " "]),
        (r"[\p{Han}]+|[\s\S]", list("ABCdef1234 ")),
        (r"[\p{L}&&[^x]]+|[\s\S]", None),
        (r"\P{L}+|[\s\S]", None),
        (r"\p{P}+|[\s\S]", None),  # ASCII has some
        (r"\s+|\S|\p{L}", list("ABCdef1234 ")),
    ],
)
def test_patterns_for_ascii(source: str, words: list[str] | None) -> None:
    found = ascii_pattern(regex.compile(source, regex.V1))
    assert (found.findall("ABCdef1234 ") if found else None) == words


def with_settings(**settings: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0}, [], **settings.pop("model", {})))
    tokenizer.pre_tokenizer = settings.get("cutter", pre_tokenizers.ByteLevel(add_prefix_space=False))
    if "normalizer" in settings:
        tokenizer.normalizer = settings["normalizer"]
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        with_settings(cutter=pre_tokenizers.Metaspace()),
        with_settings(cutter=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        with_settings(normalizer=normalizers.Lowercase()),
        with_settings(model={"byte_fallback": True}),
        with_settings(model={"dropout": 0.1}),
    ],
)
def test_other_tokenizers_are_left_to_the_reference(tokenizer: Tokenizer) -> None:
    assert TokenEngine(tokenizer).tokens([("a", [])]) == [None]
    with pytest.raises(TokenEngineError, match="byte-level BPE"):
        TokenEngine(tokenizer, "gigatoken")


def test_an_engine_that_counts_otherwise_is_refused(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    from energon_pack.templates.tokens import engine as engines

    other = (np.zeros(2, np.uint32), [2])  # as many ids as the reference makes of "a b", and others
    monkeypatch.setattr(engines, "_gigatoken_encoder", lambda tokenizer: lambda texts: other)
    with pytest.raises(TokenEngineError, match="the reference"):
        TokenEngine(template._tokenizer, "gigatoken")
    monkeypatch.setattr(engines, "_MIN_GIGATOKEN_CHARACTERS", 0)
    engine = TokenEngine(template._tokenizer, "auto")
    for _ in range(2):
        ((ids, _),) = filter(None, engine.tokens([("a b", [])]))
        assert ids.tolist() == template._tokenizer.encode("a b").ids
    assert engine.engine == "words"


def test_few_texts_set_no_engine_up(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take longer than counting a small set by its words, in every process."""
    from energon_pack.templates.tokens import engine as engines

    asked: list[int] = []
    monkeypatch.setattr(engines, "_gigatoken_encoder", asked.append)
    monkeypatch.setattr(engines, "_MIN_GIGATOKEN_CHARACTERS", 1_000_000)
    engine = TokenEngine(template._tokenizer, "auto")
    engine.tokens([("a " * 1000, [])])
    assert not asked
    engine.tokens([("a " * 600_000, [])])
    engine.tokens([("a " * 600_000, [])])
    assert len(asked) == 1


def test_a_job_of_many_texts_begins_with_it(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    from energon_pack.templates.tokens import engine as engines

    asked: list[int] = []
    monkeypatch.setattr(engines, "_gigatoken_encoder", asked.append)
    samples = pa.table({"record_size": [3_000_000, 1_999_999]})
    job = worker.MeasureJob([], samples, Method("", ReadSettings()))
    assert worker._method_with_engine(job).engine == "auto"
    job = replace(job, samples=pa.table({"record_size": [3_000_000, 2_000_000]}))
    engine = TokenEngine(template._tokenizer, worker._method_with_engine(job).engine)
    engine.tokens([("a b", [])])
    assert len(asked) == 1
    for name in ("words", "gigatoken", "tokenizers"):
        named = replace(job, method=replace(job.method, engine=name))
        assert worker._method_with_engine(named) is named.method


# ------------------------------------------------------------------------------- long texts are tokenized in pieces

LATIN_LONG_S = "\u017f"  # which only the reference can count
parts_of_texts = st.sampled_from([*HOSTILE_TEXTS, " b", "word", "\nline", "\n你", " ", "<|im_end|>", LATIN_LONG_S])


def test_where_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a space between letters, and behind the end of a line; not within spaces, numbers or signs."""
    monkeypatch.setattr(tokenizing, "LONG_TEXT_CHARACTERS", 2)
    text = "ab cd  e\nfg 12 h.\n\n你"
    pieces = [text[start:end] for start, end in tokenizing.text_piece_ranges(text)]
    assert pieces == ["ab", " cd  e\n", "fg 12 h.\n\n", "你"]


@given(parts=st.lists(parts_of_texts, max_size=30), cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(deadline=None, max_examples=150)
def test_pieces_come_to_the_whole(template: Template, parts: list[str], cuts: list[int]) -> None:
    """A token lost or won at a seam would be a wrong length."""
    text = "".join(parts) + LATIN_LONG_S
    ends = sorted(min(cut, len(text)) for cut in cuts[: len(cuts) // 2 * 2])
    rendered = [Rendered(text, list(zip(ends[::2], ends[1::2], strict=True)), 0, 0)]
    whole = template.tokenize(rendered)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "LONG_TEXT_CHARACTERS", 3)
        assert template.tokenize(rendered) == whole


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
    """Its texts are tokenized whole, whatever that takes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens(added)
    if cutter is not None:
        tokenizer.pre_tokenizer = cutter
    assert not tokenizing.Tokenizing(tokenizer, False, [])._may_cut_at_seams


def test_a_long_text_is_never_given_whole_to_the_reference(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 MB of JSON took 2.6 GB."""
    monkeypatch.setattr(tokenizing, "LONG_TEXT_CHARACTERS", 50)
    cut: list[tuple[int, int]] = []
    ranges = tokenizing.text_piece_ranges
    monkeypatch.setattr(tokenizing, "text_piece_ranges", lambda text: (cut.extend(ranges(text)), cut)[1])  # type: ignore[func-returns-value]
    text = "one two three " * 40 + LATIN_LONG_S
    assert template.count([Rendered(text, [], 0, 0)], "words")[0][0] > 100
    assert max(end - start for start, end in cut) < 70


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
TOKENIZING = Tokenizing(TOKENIZER, False, {PAD, OTHER})
RUNS = TokenRunShortener(TOKENIZER, {PAD, OTHER, "no token"})
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
    grown, ranges = expand_runs(ids, {9: 3, 10: 4, 19: 5}, [(9, 10), (10, 19)], runs)
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
    ((ids, ranges),) = TOKENIZING.located([(text, spans)], engine)
    assert ids.tolist() == whole.ids
    assert ranges == [(bisect_left(begins, start), bisect_left(begins, end)) for start, end in spans]


def test_a_token_that_another_overlaps_or_holds_does_not_stand_alone() -> None:
    added = AddedTokenFinder(["<a>", "<b>", "<b><c>", "x<d", "<e>", "<e", "aba", ">>"])
    assert added.never_overlaps("<q>") is False
    assert AddedTokenFinder(["<a>", "<b>"]).never_overlaps("<a>")
    assert [token for token in added.all if added.never_overlaps(token)] == ["x<d"]
    assert [added.ends_in_token_start(text) for text in ("a <b", "<b><", "a", "b", "")] == [
        True,
        True,
        True,
        False,
        False,
    ]


@given(st.sets(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=5), st.text("ab<c", max_size=30))
def test_added_tokens_are_found_leftmost_then_longest_as_tokenizers_do(tokens: set[str], text: str) -> None:
    """Else a mark of a trained part, or a medium, would be looked for at another place."""
    added = AddedTokenFinder(tokens)
    assert added.find_all(text) == [(match.start(), match[0]) for match in added.pattern.finditer(text)]

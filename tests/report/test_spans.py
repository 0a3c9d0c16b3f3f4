"""All tokens are shown, each once, and the marked ones are exactly the trained ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from energon_pack.report.views.screens import member_facts
from energon_pack.report.views.text import Tokens
from energon_pack.report.views.view import MemberView, Span, Turn, spans_of, token_decoder_of
from energon_pack.samples.media.medium import Media
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.sample import Message
from energon_pack.templates.build import build
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.marks import slow
from support.models import of_model
from support.weighted import turns

TALK: list[Message] = [
    {"role": "user", "content": "<image>What? 🀄 中文 ünïcode <image>"},
    {"role": "assistant", "content": "Two:  👩‍👩‍👧 emoji,\n\n\ttabs\x00 and <b>markup</b>"},
    {"role": "user", "content": "More"},
    {"role": "assistant", "content": "中"},
]
MEDIA = [Media("image", 300, 200), Media("image", 64, 900)]


def shown(template: Template, sample: Sample) -> list[Span]:
    """Spans whose sums are checked against the tokens of training."""
    (tokens,) = template.member_tokens([sample])
    media = [f"{medium.kind} {medium.width}×{medium.height}" for medium in sample.media]
    spans = spans_of(tokens, token_decoder_of(template), media)
    assert sum(span.num_tokens for span in spans) == len(tokens)
    assert [weight for span in spans for weight in [span.weight] * span.num_tokens] == tokens.token_weights
    assert [span.is_trained for span in spans] == [span.weight > 0 for span in spans]
    return spans


def test_a_sample_is_shown_as_it_is_trained_on(template: Template) -> None:
    messages = [{"role": "user", "content": "<image>hi"}, {"role": "assistant", "content": "ho"}]
    spans = shown(template, Sample(messages, [Media("image", 56, 84)]))
    assert [(span.text, span.kind, span.is_trained) for span in spans] == [
        ("<|im_start|>", "special", False),
        ("user\n", "text", False),
        ("<|vision_start|>", "special", False),
        ("image 56×84", "image", False),
        ("<|vision_end|>", "special", False),
        ("hi", "text", False),
        ("<|im_end|>", "special", False),
        ("\n", "text", False),
        ("<|im_start|>", "special", False),
        ("assistant\n", "text", False),
        ("ho", "text", True),
        ("<|im_end|>", "special", True),
        ("\n", "text", False),
    ]
    assert [span.num_tokens for span in spans if span.kind == "image"] == [6]


@pytest.mark.parametrize(
    ("processor", "family"),
    [
        ("qwen2_5_vl", "qwen_vl"),
        ("qwen3_vl", "qwen3_vl"),
        slow("internvl3_hf", "internvl"),
        slow("granite_docling_idefics3", "shapes"),
        pytest.param("gemma3", "shapes", marks=pytest.mark.slow),
        pytest.param("llava_onevision_qwen2_hf", "llava_onevision", marks=pytest.mark.slow),
        pytest.param("llama3_text", "text", marks=pytest.mark.slow),
        pytest.param("kimi_k25", "kimi", marks=pytest.mark.slow),
    ],
)
def test_no_token_of_a_real_processor_is_lost_or_shown_twice(real: Path, processor: str, family: str) -> None:
    """Characters over several tokens, tokens of the tokenizer's own, images of rows and tiles between two texts."""
    settings = of_model(family, real / "processors" / processor, trust_remote_code=processor == "kimi_k25")
    template = build(settings, real / "processors" / processor)
    media = MEDIA if "image" in template.media_tokens else []
    spans = shown(template, Sample(TALK, media))
    assert [span.text for span in spans if span.kind == "image"] == ["image 300×200", "image 64×900"][: len(media)]
    text = "".join(span.text for span in spans)
    assert "👩‍👩‍👧 emoji,\n\n\ttabs\x00 and <b>markup</b>" in text
    assert text.count("中") == 2


def test_a_video_is_one_span_with_its_times(real: Path) -> None:
    """Qwen3-VL writes times between the frames: as text they would hide what is the user's. The first one is before."""
    template = build(of_model("qwen3_vl", real / "processors" / "qwen3_vl"), real / "processors" / "qwen3_vl")
    messages = [{"role": "user", "content": "See <video>"}, {"role": "assistant", "content": "ok"}]
    spans = shown(template, Sample(messages, [Media("video", 320, 240, "mp4", 80, 10.0)]))
    assert [span.text for span in spans if "seconds" in span.text] == ["<0.2 seconds>"]
    assert [span.kind for span in spans].count("video") == 1


def test_some_tokens_of_a_text_are_shown_without_the_others(template: Template) -> None:
    """A part of a document: what stands around it is in no span, and its first token is not trained."""
    options = SampleOptions(token_range=(2, 5))
    spans = shown(template, Sample([{"role": "document", "content": "abcdefgh"}], [], None, options))
    whole = template.encode(Sample([{"role": "document", "content": "abcdefgh"}], [])).ids
    text = template.tokenizer.decode(whole[2:5])
    assert [(span.text, span.is_trained) for span in spans] == [(text[:1], False), (text[1:], True)]


def test_weights_are_shown_behind_what_they_weigh(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that counts less looks as if it did, and one that is not trained looks like a question."""
    spans = shown(template, Sample(turns(0.5, 0.0, 1.0), []))
    found = {span.text.partition("<")[0]: span.weight for span in spans if span.text.startswith("Say")}
    assert found == {"Say 0": 0.5, "Say 2": 1.0}
    plain = Tokens(spans).to_terminal(None).plain
    assert "assistant\n«Say 0<|im_end|>»×0.5\n" in plain
    assert "assistant\nSay 1<|im_end|>\n" in plain
    assert plain.endswith("assistant\n«Say 2<|im_end|>»")
    monkeypatch.setattr("energon_pack.report.views.text.has_colours", lambda: True)
    assert "Say 0<|im_end|>×0.5\n" in Tokens(spans).to_terminal(None).plain
    page = Tokens(spans, 10_000).to_html()
    assert page.count("<mark") == 2
    assert 'class="less"><' not in page
    assert '<span class="weight">×0.5</span></mark>' in page


def test_the_weight_of_a_sample_is_said_once() -> None:
    view = MemberView("a", "text", 9, 4, 0, [Turn("user", "hi")], spans=[], weight=0.25)
    assert "the whole sample counts ×0.25" in member_facts(view)
    assert "counts" not in member_facts(replace(view, weight=1.0))

"""A raw text is trained as it is: no frame of a chat, no system prompt, and the token that ends a document."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.documents import document_of
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.marks import slow
from support.models import of_model
from support.running import REAL

CAT = "a cat"
IMAGE = Media("image", 56, 84)  # six tokens


def marked(template: Template, sample: Sample) -> str:
    """The text with « and » around what is trained."""
    rendered = template.render(sample)
    text = rendered.text
    for start, end in reversed(rendered.spans):
        text = f"{text[:start]}«{text[start:end]}»{text[end:]}"
    return text


def test_the_whole_text_is_trained_with_its_end(template: Template) -> None:
    """It had a chat frame and Qwen's system prompt, counted and trained."""
    assert marked(template, Sample(document_of(CAT), [])) == "«a cat<|endoftext|>»"
    tokens = template.encode(Sample(document_of(CAT), []))
    assert tokens.supervised == [(1, len(tokens.ids))]  # nothing stands before the first token
    assert template.count([template.render(Sample(document_of(CAT), []))]) == [(len(tokens.ids), len(tokens.ids) - 1)]


def test_media_stand_in_it_as_in_a_question(template: Template) -> None:
    sample = Sample(document_of("See <image>: a cat."), [IMAGE])
    pads = "<|image_pad|>" * 6
    assert template.render(sample).text == f"See <|vision_start|>{pads}<|vision_end|>: a cat.<|endoftext|>"
    assert template.raw_text(sample) == "See <|vision_start|><|image_pad|><|vision_end|>: a cat.<|endoftext|>"
    with pytest.raises(Skip, match="control_token"):
        template.render(Sample(document_of("<|image_pad|>"), []))


@pytest.mark.parametrize(("key", "value", "spans"), [("loss", False, 0), ("loss_scale", 0.5, 1)])
def test_a_weight_of_its_turn_counts(template: Template, key: str, value: Any, spans: int) -> None:
    rendered = template.render(Sample([{**document_of(CAT)[0], key: value}], []))
    assert (len(rendered.spans), list(rendered.weights)) == (spans, [0.5] * spans)


def test_the_end_is_a_setting_in_the_fingerprint(demo: tuple[Path, Path], template: Template) -> None:
    other = build_uncached_template(of_model("qwen_vl", demo[1], document_end="<|im_end|>"))
    none = build_uncached_template(of_model("qwen_vl", demo[1], document_end=""))
    assert marked(other, Sample(document_of(CAT), [])) == "«a cat<|im_end|>»"
    assert marked(none, Sample(document_of(CAT), [])) == "«a cat»"
    assert len({template.fingerprint, other.fingerprint, none.fingerprint}) == 3
    with pytest.raises(PackError, match=r"model\.document_end=<end>: the tokenizer in .* has no such token"):
        build_uncached_template(of_model("qwen_vl", demo[1], document_end="<end>"))


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/real")
@pytest.mark.parametrize(
    ("name", "family", "expected"),
    [
        ("llama3_text", "text", "«a cat<|end_of_text|>»"),  # its end of text ends a turn, too: <|eot_id|>
        slow(
            "gemma3", "shapes", "<bos>«a cat<eos>»"
        ),  # the chat template writes <bos>, and the tokenizer before raw text
        ("kimi_k25", "kimi", "«a cat[EOS]»"),
    ],
)
def test_ends_of_other_models(name: str, family: str, expected: str) -> None:
    template = build_uncached_template(of_model(family, REAL / "processors" / name))
    assert marked(template, Sample(document_of(CAT), [])) == expected


# -------------------------------------------------------------------- what a chat template leaves out of a conversation

_TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}CALLS<|im_end|>\n"
_WRITES = f"{{% for m in messages %}}{{% if m.role in ROLES %}}{_TURN}{{% endif %}}{{% endfor %}}"
_CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
QUESTION, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}
CALLED: list[dict[str, Any]] = [
    QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    ANSWER,
]


@pytest.fixture
def writing(demo: tuple[Path, Path]) -> Callable[..., Template]:
    """Makes a template that writes turns of some roles, and calls."""

    def make(*roles: str, calls: str = _CALLS) -> Template:
        source = _WRITES.replace("ROLES", str(list(roles))).replace("CALLS", calls)
        return build_uncached_template(of_model("text", demo[1], chat_template=source))

    return make


def test_turns_of_a_role_that_a_template_drops_cost_the_sample(writing: Callable[..., Template]) -> None:
    """Qwen's templates write nothing of a developer's turn, and a sample without it was packed."""
    told = Sample([{"role": "developer", "content": "Be brief."}, QUESTION, ANSWER], [])
    assert "Be brief." in writing("developer", "user", "assistant").render(told).text
    with pytest.raises(Skip, match=r"leaves out the text 'Be brief\.' .* role developer \(.*system_tag"):
        writing("user", "assistant").render(told)
    with pytest.raises(Skip, match="leaves out the text '3' of message 2, of the role tool"):
        writing("user", "assistant").render(Sample(CALLED, []))


def test_calls_are_not_trained_without_their_tools(writing: Callable[..., Template]) -> None:
    """Qwen2.5-VL's template left tools out with a note, and a model learnt to call what it never saw."""
    template = writing("user", "assistant", "tool")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert "f{}" in template.render(Sample(CALLED, [])).text
    assert template.render(Sample([QUESTION, ANSWER], [], tools)).leaves_out_tools
    with pytest.raises(Skip, match=r"leaves out tools, whose calls would be trained \(.*source\.tools=text"):
        template.render(Sample(CALLED, [], tools))


def test_a_template_that_writes_ids_needs_them(writing: Callable[..., Template]) -> None:
    """Kimi's writes a call by its id: without one the name of the function was lost."""
    template = writing("user", "assistant", "tool", calls="{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}")
    with pytest.raises(Skip, match="leaves out the call 'f' of message 1"):
        template.render(Sample(CALLED, []))
    with_id = [CALLED[0], {**CALLED[1], "tool_calls": [{"id": "f:0", **CALL}]}, *CALLED[2:]]
    assert "f:0" in template.render(Sample(with_id, [])).text

"""The token that ends a conversation's last answer, where the chat template leaves it to the next turn.

Without it a model that is trained on conversations of one answer is never trained to stop.
"""

from pathlib import Path
from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.samples.member import SampleOptions
from energon_pack.samples.skip import Skip
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import LabelSettings, ModelConfig, TemplateSettings, Think, ToolCalls, TrainOn
from energon_pack.templates.template import Template
from support.processors import write_tokenizer

GLM = """\
{% for m in messages %}{{ '<|observation|>' if m.role == 'tool' else '<|' ~ m.role ~ '|>' }}
{{ m.content }}{% for call in m.tool_calls or [] %}
<call>{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""
CLOSES_CALLS = GLM.replace("{% endfor %}{% endfor %}", "<|close|>{% endfor %}{% endfor %}")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: as Gemma 4's, it ends a call that nothing answers by a token of its own
ENDS_CALLS = CLOSES_CALLS.replace(
    "{% endfor %}{% endfor %}", "{% endfor %}{{ '<|end|>' if loop.last and m.tool_calls }}{% endfor %}"
)
CALL = {"type": "function", "id": "call_0001", "function": {"name": "tide", "arguments": {"at": "Hull"}}}
Q, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALLS = {**A, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "3"}
TOKENS = ["<|user|>", "<|assistant|>", "<|observation|>", "<|im_start|>", "<|im_end|>", "<|close|>", "<|end|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, "", TOKENS, {})
    return folder


def template_of(folder: Path, source: str, **labels: Any) -> Template:
    model = ModelConfig(template="text", processor=str(folder), chat_template=source)
    return build_uncached_template(TemplateSettings(model, labels=LabelSettings(**labels)))


def shown(template: Template, *messages: dict[str, Any], **options: Any) -> str:
    """The text from the first header of an answer, with « and » around what is trained."""
    rendered = template.render(Sample([*messages], [], options=SampleOptions(**options)))
    text = rendered.text
    for start, end in reversed(rendered.spans):
        text = f"{text[:start]}«{text[start:end]}»{text[end:]}"
    return text[text.index("assistant|>\n") + 12 :] if "assistant|>\n" in text else text


def test_the_token_of_the_next_turn_ends_a_last_answer(folder: Path) -> None:
    template = template_of(folder, GLM)
    assert shown(template, Q, A) == "«a<|user|>»"
    assert shown(template, Q, A, Q, A) == "«a<|user|>»\nq<|assistant|>\n«a<|user|>»"
    assert template.encode(Sample([Q, A], [])).ids[-1] == template.token_id("<|user|>")
    assert template.ends_answers


def test_an_observation_follows_a_call(folder: Path) -> None:
    template = template_of(folder, GLM)
    call = 'a<call>tide{"at": "Hull"}'
    assert shown(template, Q, CALLS) == f"«{call}<|observation|>»"
    assert shown(template, Q, CALLS, RESULT, A) == f"«{call}<|observation|>»\n3<|assistant|>\n«a<|user|>»"
    assert shown(template, Q, CALLS, RESULT) == f"«{call}<|observation|>»\n3"  # no answer is last


def test_tokens_that_close_a_call_are_no_end(folder: Path) -> None:
    template = template_of(folder, CLOSES_CALLS)
    assert shown(template, Q, {**CALLS, "tool_calls": [CALL, CALL]}).endswith("<|close|><|observation|>»")


def test_an_answer_that_has_an_end_gets_no_other(folder: Path) -> None:
    """Neither by its template nor because its text spells the token."""
    template = template_of(folder, CHATML)
    assert template.render(Sample([Q, A], [])).text.endswith("a<|im_end|>\n")
    assert template.final_ends == []
    spelled = template_of(folder, GLM)
    assert shown(spelled, Q, {**A, "content": "a<|user|>"}) == "«a<|user|>»"


def test_white_space_before_the_token_is_trained_as_in_turns_before(folder: Path) -> None:
    template = template_of(folder, GLM.replace("{{ m.content }}", "{{ m.content }}{{ '\n' }}"))
    assert shown(template, Q, A, Q, A) == "«a\n<|user|>»\nq\n<|assistant|>\n«a\n<|user|>»"


def test_only_an_answer_that_is_trained_to_its_end_gets_one(folder: Path) -> None:
    plain = template_of(folder, GLM)
    assert shown(plain, Q, {**A, "loss": False}) == "a"
    assert shown(plain, Q, A, Q, {**A, "weight": 0}) == "«a<|user|>»\nq<|assistant|>\na"
    assert shown(template_of(folder, GLM, end_of_turn=False), Q, A) == "«a»"
    last = template_of(folder, GLM, train_on=TrainOn.last)
    assert shown(last, Q, A, Q, A) == "a<|user|>\nq<|assistant|>\n«a<|user|>»"


def test_the_token_has_the_weight_of_its_answer(folder: Path) -> None:
    template = template_of(folder, GLM, prompt_weight=0.25)
    rendered = template.render(Sample([Q, {**A, "loss_scale": 0.5}], []))
    assert [rendered.text[a:b] for a, b in rendered.spans] == ["<|user|>\nq<|assistant|>\n", "a<|user|>"]
    assert rendered.weights == [0.25, 0.5]


def test_a_call_that_is_not_trained_ends_with_a_trained_token(folder: Path) -> None:
    template = template_of(folder, GLM, tool_calls=ToolCalls.mask)
    assert shown(template, Q, CALLS) == '«a»<call>tide{"at": "Hull"}«<|observation|>»'
    weighted = template_of(folder, GLM, tool_calls=ToolCalls.mask, prompt_weight=0.5)
    assert [*weighted.render(Sample([Q, CALLS], [])).weights] == [0.5, 1.0, 1.0]


def test_a_thought_that_is_not_trained_leaves_the_end(folder: Path) -> None:
    template = template_of(folder, GLM, think=Think.mask)
    assert shown(template, Q, {**A, "content": "<think>hm</think>a"}) == "<think>hm</think>«a<|user|>»"


def test_a_token_of_the_users_choice_is_added_whatever_follows(folder: Path) -> None:
    assert shown(template_of(folder, GLM, final_end="</s>"), Q, A) == "«a</s>»"
    assert shown(template_of(folder, CHATML, final_end="</s>"), Q, A).endswith("assistant\n«a<|im_end|>\n</s>»")
    assert shown(template_of(folder, CHATML, final_end="<|im_end|>"), Q, A).endswith("assistant\n«a<|im_end|>»\n")
    assert shown(template_of(folder, GLM, final_end="none"), Q, A) == "«a»"


def test_a_token_that_nobody_knows_is_refused(folder: Path) -> None:
    with pytest.raises(
        PackError, match=r"labels\.final_end=<end>: the tokenizer in model\.processor=.* has no such token"
    ):
        template_of(folder, CHATML, final_end="<end>")
    with pytest.raises(PackError, match=r"labels\.final_end=b: .* may join it to the text before it"):
        template_of(folder, CHATML, final_end="b")
    template = template_of(folder, CHATML)
    assert shown(template, Q, A, labels={"final_end": "</s>"}).endswith("</s>»")  # a sample's own
    for value, problem in (("<end>", "has no such token"), (5, "a text")):
        with pytest.raises(Skip, match=rf"label_settings: labels\.final_end={value}: .*{problem}"):
            shown(template, Q, A, labels={"final_end": value})


@pytest.mark.parametrize(
    ("source", "final_end", "expected"),
    [
        (GLM, "none", False),
        (GLM, "</s>", True),
        (GLM, "auto", True),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "auto", False),
        ("{% for m in messages %}{{ m.content }}{{ '</s>' if not loop.last }}{% endfor %}", "none", False),
        ("{% for m in messages %}{{ m.content }}{{ '</s>' if not loop.last }}{% endfor %}", "auto", True),
        ("{% for m in messages %}{{ m.content }}{{ '</s>' if loop.last }}{% endfor %}", "auto", False),
        (ENDS_CALLS, "auto", True),
        (CHATML, "none", True),
    ],
)
def test_every_answer_is_asked_for_its_end(folder: Path, source: str, final_end: str, expected: bool) -> None:
    """One answer with an end hid all others: the line that a model is never trained to stop was silent."""
    assert template_of(folder, source, final_end=final_end).ends_answers is expected


def test_it_is_part_of_what_lengths_depend_on_only_where_it_is_added(folder: Path) -> None:
    """Else lengths of before would be taken for these, or those of all other models would be measured anew."""
    auto, none, named = (template_of(folder, GLM, final_end=end).identity for end in ("auto", "none", "</s>"))
    assert len({auto.fingerprint, none.fingerprint, named.fingerprint}) == 3
    assert [one.labels.get("final_end") for one in (auto, none, named)] == ["auto", "none", "</s>"]
    plain = template_of(folder, CHATML).identity
    assert "final_end" not in plain.labels
    assert plain.fingerprint == template_of(folder, CHATML, final_end="none").identity.fingerprint

"""A conversation comes out as transformers renders it: names of reasoning, keys that are None, Jinja's own functions.

Training would else learn another text than inference is given.
"""

import datetime
import re
from contextlib import nullcontext
from typing import Any

import jinja2
import pytest

from energon_pack.errors import PackError
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.jinja import environment
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.settings import ModelConfig

QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content is string %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
)
LFM2 = QWEN3.replace("reasoning_content", "thinking")
NONE = re.sub("{% if.*endif %}", "", QWEN3, flags=re.DOTALL)
CALLS = QWEN3.replace("{{ m.content }}", "{% if m.tool_calls is defined %}{{ m.tool_calls | length }}{% endif %}")
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def by_transformers(source: str, messages: list[dict[str, Any]]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    given = [{key: value for key, value in message.items() if value is not None} for message in messages]
    made: Any = render_jinja_template(conversations=[given], chat_template=source)
    return str(made[0][0])


def answered(**keys: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **keys}]


@pytest.mark.parametrize("source", [QWEN3, LFM2, NONE, CALLS])
@pytest.mark.parametrize(
    "keys",
    [
        {"reasoning": "why"},
        {"thinking": "why"},
        {"reasoning_content": "why"},
        {"reasoning": "one", "thinking": "two"},
        {"reasoning_content": None, "reasoning": "why"},
        {"reasoning_content": "", "reasoning": "why"},
        {"tool_calls": None},
        {"thinking": None},
    ],
)
def test_reasoning_has_three_names_and_keys_that_are_none_are_not_there(source: str, keys: dict[str, Any]) -> None:
    """Qwen3's template wrote 22 tokens of a sample that has 163; `is defined` failed on a key that is null."""
    template = ChatTemplate(source, {}, SPECIAL)
    assert template.render(answered(**keys), None) == by_transformers(source, answered(**keys))


def test_reasoning_by_another_name_is_trained() -> None:
    source = QWEN3 + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    marked = ChatTemplate(source, {}, SPECIAL).render_marked(answered(reasoning="why"), None).text
    assert marked.endswith("<|im_start|>assistant\n\ufdd0<think>\nwhy\n</think>\n\nb<|im_end|>\ufdd1\n")


@pytest.mark.parametrize(
    ("source", "keys", "expected"),
    [
        (NONE, {"reasoning": "why"}, True),
        (NONE, {"thinking": "b"}, True),  # the answer is written, and the thought that reads as it is not
        (NONE, {"reasoning": None}, False),
        (NONE, {}, False),
        (QWEN3, {"reasoning": "why"}, False),
        (LFM2, {"reasoning_content": "why"}, False),
        (QWEN3.replace("is string", "and m.tool_calls"), {"reasoning": "why"}, True),
    ],
)
def test_reasoning_that_a_template_writes_nowhere_costs_the_sample(source: str, keys: Any, expected: bool) -> None:
    """Else a set of thoughts is packed without any, and nothing says so."""
    template = ChatTemplate(source + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", {}, SPECIAL)
    with pytest.raises(Skip, match="leaves out the thought") if expected else nullcontext():
        template.render_marked(answered(**keys), None)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson(separators=(',', ':'), sort_keys=True, indent=1, ensure_ascii=True) }}",
        "{{ {'b': 'é<>', 'a': 1} | tojson }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}",
        "{{ dict(a=1, b=2) }}{{ dict.fromkeys('ab', 1) }}{{ dict([('k', 'v')]) | length }}",
        "{% set ns = namespace(a=1) %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ namespace({'c': 3}).c }}",
        "{{ documents is defined }}{{ documents is none }}{{ tools is defined }}{{ strftime_now is defined }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
        "{% generation %}x{% endgeneration %}\n  {% if true %}\n  y\n  {% endif %}\nz",
        "{{ messages[0] is mapping }}{{ messages[0].pop is defined }}{{ 'a' ~ 1 }}{{ messages[0].items() | list }}",
    ],
)
def test_what_a_template_can_see_is_as_there(source: str) -> None:
    assert ChatTemplate(source, {}, SPECIAL).render(answered(), None) == by_transformers(source, answered())


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson(default=3) }}",
        "{% set ns = namespace(_a=1) %}",
        "{% set ns = namespace() %}{% set ns._a = 1 %}",
        "{{ dict.mro() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no') }}",
        "{{ messages[9].content.x }}",
        "{% for m in 1 %}{% endfor %}",
    ],
)
def test_what_is_refused_there_is_refused(source: str) -> None:
    template = ChatTemplate(source, {}, SPECIAL)
    with pytest.raises((jinja2.TemplateError, TypeError)):
        by_transformers(source, answered())
    with pytest.raises(Skip, match=r"^processor_error: "):
        template.render(answered(), None)


def test_a_tool_that_is_no_object_is_refused_as_there() -> None:
    with pytest.raises(Skip, match="a tool is a str"):
        ChatTemplate(QWEN3, {}, SPECIAL).render(answered(), ["f"])


DATED = "Today is {{ strftime_now('%d %b %Y, %H:%M') }}.\n" + QWEN3


def test_the_date_is_that_of_the_setting_whenever_it_is_rendered() -> None:
    """gpt-oss's template was refused with every sample; with today's date, the same source would give other bytes."""
    assert ChatTemplate(DATED, {}, SPECIAL).render(answered(), None).startswith("Today is 26 Jul 2024, 00:00.\n")
    assert ChatTemplate(DATED, {}, SPECIAL, "2025-08-05").render(answered(), None).startswith("Today is 05 Aug 2025")


def test_a_date_of_llama_3_is_the_one_it_falls_back_to() -> None:
    """Its bytes stay as they were without the function."""
    source = (
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}{{ '26 Jul 2024' }}{% endif %}" + QWEN3
    )
    assert ChatTemplate(source, {}, SPECIAL).render(answered(), None).startswith("26 Jul 2024<|im_start|>")


@pytest.mark.parametrize("date", ["2024-02-30", ""])
def test_what_is_no_date_is_refused_by_name(date: str) -> None:
    with pytest.raises(PackError, match=re.escape(f"model.date={date}: no date")):
        ModelConfig(date=date).check()
    with pytest.raises(ValueError):  # noqa: PT011 (Python's own words)
        environment(date)
    assert datetime.date.fromisoformat(ModelConfig().date)


@pytest.mark.parametrize("written", ["{{ messages | random }}", "{{ lipsum() }}"])
def test_what_is_written_by_chance_is_refused(written: str) -> None:
    """Jinja has both; measuring and writing would render other texts, and the same source give other bytes."""
    with pytest.raises((PackError, Skip), match="writes by chance"):
        ChatTemplate(written + QWEN3, {}, SPECIAL).render(answered(), None)

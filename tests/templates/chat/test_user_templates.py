"""Templates of a user's own that look at texts: each conversation comes out as Jinja alone writes it.

Where one rendering serves all conversations of a shape, such a template's own words would be lost in silence: other
tokens than inference has, with lengths that agree with themselves.
"""

from typing import Any

import jinja2
import pytest

from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.guarded_template import TemplateReadsText, compile_template_guarding_texts
from energon_pack.templates.chat.jinja import environment
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.text_marks import with_texts_replaced_by_numbers
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.settings import LabelSettings, TemplateDrops

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\nBODY<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
COPY = "{{ m.content }}"
LONG = "word " * 1600


def when(condition: str) -> str:
    """A template that writes a note before texts of which something holds."""
    return "{% if " + condition + " %}NOTE {% endif %}" + COPY


#: what stands in a turn of ChatML for its text, and a question with which that tells
LOOKING: dict[str, tuple[str, str]] = {
    "equals": (when("m.content == 'PING'"), "PING"),
    "differs": (when("m.content != 'a' and m.content == 'b c'"), "b c"),
    "one of a list": (when("m.content in ['yes', 'no']"), "yes"),
    "key of a dict": ("{{ {'hi': 'Hello!'}.get(m.content, m.content) }}", "hi"),
    "subscript of a dict": (when("{'hi': true}[m.content]"), "hi"),
    "both ends": (when("m.content.startswith('<fr>') and m.content.endswith('</fr>')"), "<fr>42</fr>"),
    "two within": (when("'[THINK]' in m.content and '[/THINK]' in m.content"), "[THINK]hm[/THINK] x"),
    "characters": (when("m.content | rejectattr('type', 'equalto', 'image') | list | length > 30"), "x" * 60),
    "key that a dict is asked for": (when("{m.content: 1}.get('hello')"), "hello"),
    "key of a dict that is defined": (when("{m.content: 1}['hello'] is defined"), "hello"),
    "keys that are equal": (when("{m.content: 1, 'hello': 2} | length == 1"), "hello"),
    "longer": (when("m.content | length > 6000"), LONG),
    "shorter": (when("m.content | length < 3"), "ab"),
    "cut": ("{{ m.content[:6000] }}", LONG),
    "last character": (when("m.content[-1] == '?'"), "why?"),
    "digits": (when("m.content.isdigit()"), "2024"),
    "capitals": (when("m.content.isupper()"), "LOUD"),
    "words": (when("m.content.split() | length > 1500"), LONG),
    "lines": (when("m.content.splitlines() | length > 3"), "a\nb\nc\nd"),
    "counted": (when("m.content.count('q') > 2"), "qqq"),
    "found": (when("m.content.find('needle') > 3"), "hay needle"),
    "greater": (when("m.content > 'x'"), "zebra"),
    "a number": (when("m.content | int > 41"), "42"),
    "a filter": ("{{ m.content | replace('colour', 'color') }}", "the colour"),
    "a method": ("{{ m.content.replace('colour', 'color') }}", "the colour"),
    "a loop over it": ("{% for c in m.content %}{{ c if c != '#' }}{% endfor %}", "a#b"),
    "in a namespace": ("{% set ns = namespace(t=m.content) %}" + when("ns.t == 'PING'"), "PING"),
    "joined before": ("{% set t = 'x' ~ m.content %}" + when("t == 'xPING'"), "PING"),
    "added before": ("{% set t = 'x' + m.content %}" + when("t == 'xPING'"), "PING"),
    "written before": ("{% set t %}{{ m.content }}{% endset %}" + when("t == 'PING'"), "PING"),
    "in a macro": ("{% macro says(t) %}{{ 'NOTE ' if t == 'PING' }}{{ t }}{% endmacro %}{{ says(m.content) }}", "PING"),
    "of a macro": ("{% macro says(t) %}{{ t }}{% endmacro %}" + when("says(m.content) == 'PING'"), "PING"),
    "of another turn": (when("messages[0].content == 'PING'"), "PING"),
    "all texts": (when("'PING' in messages | map(attribute='content') | list"), "PING"),
    "a turn picked": (when("messages | selectattr('content', 'equalto', 'PING') | list"), "PING"),
    "joined by a filter": ("{% set t = [m.content, '!'] | join %}" + when("t == 'PING!'"), "PING"),
    "a whole message": (when("m == {'role': 'user', 'content': 'PING'}"), "PING"),
    "as JSON": ("{{ m.content | tojson }}", 'say "hi"'),
    "formatted": ("{% set t = '%s!' % m.content %}" + when("t == 'PING!'"), "PING"),
    "in a clean text": (when("m.content in 'PING PONG'"), "PING"),
    "a loop that changed": ("{% for x in messages %}{{ 'NOTE' if loop.changed(x.content) }}{% endfor %}" + COPY, "b"),
    "a block": ("{% filter replace('colour', 'color') %}{{ m.content }}{% endfilter %}", "the colour"),
}
#: what looks at roles, kinds and types alone
COPYING = (
    COPY,
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
    "{% set t = m['content'] %}{{ 'says: ' + t + '!' if m.role in ['user', 'tool'] else t }}",
    "{% macro says(t, role='user') %}{{ role ~ ' ' ~ t }}{% endmacro %}{{ says(m.content, role=m.role) }}",
    "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.get('content', '') }}",
    "{{ m.content if m.content is defined and m.content is not none and m.content != none else '' }}",
    "{% if messages[loop.index0 - 1].role != 'tool' and messages | length > 0 %}{{ m.content }}{% endif %}",
    "{% if m.tool_calls and m.content %}{{ raise_exception('calls') }}{% endif %}{{ m.content }}",
)


#: some of these templates rewrite or cut a question, whose words are lost then
KEEP = LabelSettings(template_drops=TemplateDrops.keep)


def conversation(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": "An answer."}]


def by_jinja(source: str, messages: list[dict[str, Any]]) -> str:
    return environment().from_string(source).render(messages=messages, tools=None, add_generation_prompt=False)


@pytest.mark.parametrize("name", LOOKING)
def test_a_template_that_looks_at_texts_is_asked_each_time(name: str) -> None:
    body, question = LOOKING[name]
    source = CHATML.replace("BODY", body)
    template = ChatTemplate(source, {}, SPECIAL)
    assert by_jinja(source, conversation(question)) != by_jinja(source, conversation("a")).replace(
        "<|im_start|>user\na<|im_end|>", f"<|im_start|>user\n{question}<|im_end|>"
    )
    for text in ("a", question):
        if name == "a loop that changed":  # each turn depends on all others: nothing shows which part is an answer
            with pytest.raises(Skip, match="does not show"):
                template.render_marked(conversation(text), None)
            continue
        marked, _, _ = template.render_marked(conversation(text), None, KEEP)
        assert marked.replace(OPEN, "").replace(CLOSE, "") == by_jinja(source, conversation(text))


@pytest.mark.parametrize("name", LOOKING)
def test_it_shows_while_numbers_stand_for_its_texts(name: str) -> None:
    """Without any text that triggers it: what is proved so holds for all texts, not for those that were tried."""
    template = compile_template_guarding_texts(CHATML.replace("BODY", LOOKING[name][0]), "2024-07-26")
    if template is not None:  # a block with a filter can't be watched
        with pytest.raises((TemplateReadsText, jinja2.UndefinedError, TypeError)):
            template.render(messages=with_texts_replaced_by_numbers(conversation("a")), tools=None)


@pytest.mark.parametrize("body", COPYING)
def test_a_template_that_copies_texts_is_asked_once_for_all_of_a_shape(body: str) -> None:
    """A wrong yes costs time: measuring takes several times as long."""
    source = CHATML.replace("BODY", body)
    template = ChatTemplate(source, {}, SPECIAL)
    found = template._skeleton(conversation("a"), ["a", "An answer."], (1,))
    assert found is not None
    marked = found.fill(["b", "c"])
    assert marked.replace(OPEN, "").replace(CLOSE, "") == by_jinja(
        source, [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    )

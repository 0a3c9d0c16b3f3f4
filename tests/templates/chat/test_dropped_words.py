"""Every word of an answer stands in what its template writes, or its sample is named."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.settings import LabelSettings, TemplateDrops, Think

SPECIAL = ["<|user|>", "<|assistant|>", "<|tool|>", "<|system|>", "<|end_of_turn|>"]
HEAD = "{% for m in messages %}<|{{ m.role }}|>"
TAIL = "<|end_of_turn|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CALL = (
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>{% endfor %}"
)
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
ALL = HEAD + THOUGHT + "{{ m.content }}" + CALL + TAIL
CUT = ALL.replace("m.content }}", "m.content.split('</think>')[-1] }}")  # DeepSeek's templates


def call(name: str = "tide_at", **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def asked(*answers: dict[str, Any]) -> list[dict[str, Any]]:
    turns = []
    for answer in answers:
        turns += [{"role": "user", "content": "Tide in Bergen?"}, {"role": "assistant", "content": "", **answer}]
    return turns


def lost(source: str, messages: list[dict[str, Any]], think: Think = Think.train) -> str:
    """What the error says is lost; empty: nothing is."""
    template, kept = ChatTemplate(source, {}, SPECIAL), LabelSettings(think=think, template_drops=TemplateDrops.keep)
    dropped = template.render_marked(messages, None, kept).dropped
    if not dropped.others:
        template.render_marked(messages, None, LabelSettings(think=think))
        return ""
    with pytest.raises(Skip, match="template_drops: ") as skip:
        template.render_marked(messages, None, LabelSettings(think=think))
    return skip.value.detail.partition("leaves out ")[2].partition(", of the role")[0]


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        (ALL, {"content": "I ask.", "tool_calls": [call(harbour="Bergen")]}, ""),
        (CUT, {"content": "<think>\nhm hm\n</think>\n\n1"},
         "the thought 'hm hm' of message 1"),
        (CUT, {"content": "1"}, ""),
        # Llama 3's and gpt-oss': a call takes the place of the text
        (ALL.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}"),
         {"content": "I ask the harbour.", "tool_calls": [call(harbour="Bergen")]},
         "the text 'I ask the harbour.' of message 1"),
        (ALL.replace(CALL, ""), {"content": "I ask.", "tool_calls": [call()]}, "the call 'tide_at' of message 1"),
        (ALL.replace("c.function.arguments | tojson", "'{}'"), {"tool_calls": [call(harbour="Oslo")]},
         "the call 'harbour' of message 1"),
        # the question names the harbour: that is no place of the answer
        (ALL.replace("c.function.arguments | tojson", "c.function.arguments.keys() | list"),
         {"tool_calls": [call(harbour="Bergen")]}, "the call 'Bergen' of message 1"),
        (ALL.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"), {"tool_calls": [call(), call()]},
         "the call 'tide_at' of message 1"),
        (ALL.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"), {"tool_calls": [call("a"), call("of")]},
         "the call 'of' of message 1"),  # `<|end_of_turn|>` is no call
        (ALL.replace(THOUGHT, ""), {"content": "1", "reasoning": "hm"}, "the thought 'hm' of message 1"),
        # other orders, and other spellings of the same words
        (HEAD + CALL + THOUGHT + "{{ m.content }}" + TAIL,
         {"content": "c", "reasoning": "r", "tool_calls": [call()]}, ""),
        (ALL.replace("| tojson", "| dictsort"), {"tool_calls": [call(z="1", a=2)]}, ""),
        (ALL.replace("c.function.arguments | tojson", "c.function.arguments | string"),
         {"tool_calls": [call(text='it\'s "so"\n', yes=True, no=None, number=1e-7)]}, ""),
        (ALL, {"tool_calls": [call(deep={"list": [1, {"é": "ü"}]})]}, ""),
        (ALL.replace("{{ m.content }}", "{{ m.content | trim | replace('\n', ' ') }}"), {"content": " a\n\n b \n"}, ""),
    ],
)  # fmt: skip
def test_the_first_words_that_a_template_drops_are_quoted(source: str, answer: Any, expected: str) -> None:
    """A model is taught to call without arguments, or to answer without the thought that the data were made for."""
    assert lost(source, asked(answer)) == expected


def test_an_earlier_thought_is_counted_and_the_last_one_costs_the_sample() -> None:
    """Qwen3's template drops thoughts before the last question by design; the last answer's are what is trained."""
    only_last = ALL.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")
    messages = asked({"content": "1", "reasoning": "hm one"}, {"content": "2", "reasoning": "hm two"})
    dropped = ChatTemplate(only_last, {}, SPECIAL).render_marked(messages, None).dropped
    assert ([words.value for words in dropped.earlier_thoughts], dropped.others) == (["hm one"], [])
    assert lost(ALL.replace(THOUGHT, ""), messages) == "the thought 'hm two' of message 3"
    assert lost(ALL.replace(THOUGHT, ""), messages, Think.mask) == ""


def test_what_is_kept_is_packed_as_the_template_writes_it() -> None:
    source = ALL.replace("{{ m.content }}", "{{ m.content if not m.tool_calls }}")
    messages = asked({"content": "I ask.", "tool_calls": [call(harbour="Oslo")]})
    text, _, dropped = ChatTemplate(source, {}, SPECIAL).render_marked(
        messages, None, LabelSettings(template_drops=TemplateDrops.keep)
    )
    assert '\ufdd0<call>tide_at{"harbour": "Oslo"}</call><|end_of_turn|>\ufdd1' in text
    assert [words.value for words in dropped.others] == ["I ask."]


def test_an_answer_of_calls_that_are_dropped_is_kept_as_an_empty_one() -> None:
    messages = asked({"content": "I ask.", "tool_calls": [call()]}, {"content": "1.4 m."})
    keep = LabelSettings(template_drops=TemplateDrops.keep)
    text, weights, _ = ChatTemplate(ALL.replace(CALL, ""), {}, SPECIAL).render_marked(messages, None, keep)
    assert text.count("\ufdd0") == len(weights) == 2
    assert "\ufdd0I ask.<|end_of_turn|>\ufdd1" in text


@pytest.mark.parametrize("role", ["system", "tool", "user"])
def test_the_text_of_another_turn_is_looked_for_too(role: str) -> None:
    messages = [{"role": role, "content": '{"tide": 1.4}'}, *asked({"content": "1.4 m."})]
    without = ALL.replace("{% for m in messages %}", "{% for m in messages[1:] %}")
    assert lost(ALL, messages) == ""
    assert lost(without, messages) == "the text '{\"tide\": 1.4}' of message 0"
    parsed = ALL.replace("{{ m.content }}", "{{ m.content | replace('\"', '') | replace('{', '') | replace('}', '') }}")
    assert lost(parsed, messages) == ""  # a template may write an object in another way


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cn"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    arguments=st.dictionaries(st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=6), JSON, max_size=3),
    text=st.text(st.characters(exclude_categories=("Cs", "Cn"))),
    thought=st.text(st.characters(exclude_categories=("Cs", "Cn"))),
    spelled=st.sampled_from(["c.function.arguments | tojson", "c.function.arguments | string"]),
)
def test_no_word_that_is_written_is_called_lost(arguments: Any, text: str, thought: str, spelled: str) -> None:
    """A good sample would be left out, and a set of many such would not be packed at all."""
    function = {"name": "f", "arguments": json.loads(json.dumps(arguments))}
    answer = {"content": text, "reasoning_content": thought, "tool_calls": [{"type": "function", "function": function}]}
    template = ChatTemplate(ALL.replace("c.function.arguments | tojson", spelled), {}, SPECIAL)
    with suppress(Skip):  # a text may spell what hides where an answer ends
        assert not template.render_marked(
            asked(answer), None, LabelSettings(template_drops=TemplateDrops.keep)
        ).dropped.others

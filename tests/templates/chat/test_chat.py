"""What is trained: every token the model has to write itself, and no other, whatever the chat template looks like.

A label too many teaches the model to write its user's turns; one too few, never to end its own.
"""

from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.run import untrusted_input
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.chat import renderer
from energon_pack.templates.chat.dropped_words import check_for_left_out_tools
from energon_pack.templates.chat.renderer import Renderer
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.choose_rules import MediaRulesChoice
from energon_pack.templates.settings import EmptyAnswerPolicy, LabelsConfig, TemplateDrops, TrainOn

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
THINKING = (  # shows the thinking of the last turn alone, as Qwen3's does
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
PARTS_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOOKS_INSIDE = (  # of a text that begins with a capital it makes another turn
    "{% for m in messages %}<|im_start|>{{ m.role }}{{ '!' if m.content[0] == 'A' }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '!' }}\n{% endif %}"
)
BARE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"]


def turns(*texts: str, **last: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(texts)]
    made[-1] |= last
    return made


def trained(source: str, messages: list[dict[str, Any]], last_only: bool = False) -> list[str]:
    template = ChatTemplate(source, {}, SPECIAL)
    labels = LabelsConfig(TrainOn.last if last_only else TrainOn.all, empty=EmptyAnswerPolicy.train)
    marked, _, _ = template.render_marked(messages, None, labels)
    assert marked.replace(OPEN, "").replace(CLOSE, "") == template.render(messages, None)
    return [piece.partition(CLOSE)[0] for piece in marked.split(OPEN)[1:]]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, ["b<|im_end|>", " d \n<|im_end|>"]),
        (GEMMA, ["b<end_of_turn>", "d<end_of_turn>"]),
        (THINKING, ["b<|im_end|>", " d \n<|im_end|>"]),
        (PARTS_ONLY, ["b<|im_end|>", " d \n<|im_end|>"]),
        (BARE, ["b", " d"]),  # no token ends a turn, and white space after it is nobody's
    ],
)
def test_each_answer_and_its_end(source: str, expected: list[str]) -> None:
    assert trained(source, turns("a", "b", "c", " d \n")) == expected


@pytest.mark.parametrize("source", [CHATML, GEMMA])
def test_the_last_answer_alone(source: str) -> None:
    assert len(trained(source, turns("a", "b", "c", "d"), last_only=True)) == 1
    assert trained(source, turns("a", "b", "c", "d", weight=0), last_only=True) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, True),
        (GEMMA, True),
        (PARTS_ONLY, True),
        (BARE, False),
        ("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}", False),  # alpaca's marks
        ("{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' }}{{ m.content }}{% endfor %}", True),
        ("{% for m in messages %}{{ m.content }}</s>{% endfor %}", False),  # this tokenizer has no such token
        ("{{ raise_exception('no') }}", True),
    ],
)
def test_whether_a_token_ends_an_answer(source: str, expected: bool) -> None:
    """Where none does, the model is never trained to stop: a run says so in a line."""
    assert ChatTemplate(source, {}, SPECIAL).ends_answers is expected
    lines = MediaRulesChoice("text", ends_answers=expected).lines("text")
    assert [line.partition(":")[0] for line in lines] == ["the chat template writes no token that ends an answer"] * (
        not expected
    )


def test_reasoning_and_tool_calls_are_the_models_own() -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    called = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><|im_end|>'
    assert trained(CHATML, turns("a", "b", reasoning_content="why")) == ["<think>\nwhy\n</think>\n\nb<|im_end|>"]
    assert trained(CHATML, turns("a", "b", tool_calls=calls)) == ["b" + called]
    assert trained(CHATML, turns("a", "", tool_calls=calls)) == [called]


def test_thinking_that_is_dropped_from_older_turns() -> None:
    """What the prompt writes, `<think>` here, no model has to write itself."""
    thought = "<think>\nhm\n</think>\n\n"
    messages = turns("a", thought + "b", "c", thought + "d")
    assert trained(THINKING, messages) == ["b<|im_end|>", thought.removeprefix("<think>\n") + "d<|im_end|>"]


def test_a_template_that_looks_at_the_text() -> None:
    """Marks would change what it writes; then the turn is what its message adds."""
    assert trained(LOOKS_INSIDE, turns("a", "Answer")) == ["Answer<|im_end|>"]


def test_an_answer_that_spells_the_end_of_a_turn() -> None:
    assert trained(CHATML, turns("a", "b<|im_end|>\n<|im_start|>user\nc", "d", "e"))[-1] == "e<|im_end|>"


def test_labels_that_can_not_be_found_cost_the_sample() -> None:
    source = CHATML.replace("{{ m.content }}", "{{ m.content | length }}")
    with pytest.raises(Skip) as skip:
        trained(source, turns("a", "bb", "c", "d"))
    assert skip.value.reason is Reason.PROCESSOR_ERROR


OLDER_WITHOUT_THINKING = (  # the prompt opens a thought, which turns of the past do not show
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% for call in m.tool_calls %}<tool_call>{{ call.function.name }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


def test_older_turns_that_lack_part_of_the_prompt() -> None:
    calls = [{"function": {"name": "f"}}]
    messages = [*turns("a", "", tool_calls=calls), {"role": "tool", "content": "1"}, *turns("x")[1:]]
    messages += [{"role": "assistant", "content": "b"}]
    assert trained(OLDER_WITHOUT_THINKING, messages) == ["<tool_call>f</tool_call><|im_end|>", "b<|im_end|>"]
    thoughtful = turns("a", "<think>hm</think>\n\nb", "c", " d")
    assert trained(OLDER_WITHOUT_THINKING, thoughtful) == ["b<|im_end|>", " d<|im_end|>"]


def test_calls_that_are_written_by_their_id() -> None:
    source = CHATML.replace("{{ call.function | tojson }}", "{{ call.id }}")
    calls = [{"id": "f:0", "function": {"name": "f", "arguments": {}}}]
    assert trained(source, turns("a", "", tool_calls=calls)) == ["<tool_call>f:0</tool_call><|im_end|>"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [(CHATML, True), (PARTS_ONLY, True), (GEMMA, False), (THINKING, False), (LOOKS_INSIDE, False)],
)
def test_which_templates_are_known_to_copy_texts(source: str, expected: bool) -> None:
    """A wrong yes would write what the template does not; a wrong no costs time."""
    skeleton = ChatTemplate(source, {}, SPECIAL)._skeleton(turns("a", "b"), ["a", "b"], (1,))
    assert (skeleton is not None) is expected


@pytest.mark.parametrize("source", [CHATML, PARTS_ONLY, GEMMA, THINKING])
def test_known_shapes_are_written_as_the_template_writes_them(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template, asked = ChatTemplate(source, {}, SPECIAL), ChatTemplate(source, {}, SPECIAL)
    monkeypatch.setattr(asked, "_skeleton", lambda *_: None)
    for texts in (("a", "b"), ("", " "), ("<|im_start|>assistant\n", "<|im_end|>x"), ("a\ufdd2" + "0\ufdd3", "b")):
        for messages in (turns(*texts), turns(*texts, *texts), [{"role": "system", "content": "s"}, *turns(*texts)]):
            if "\ufdd2" in "".join(texts):  # a skeleton's own mark: no text holds it
                with pytest.raises(Skip):
                    template.render_marked(messages, None)
                continue
            assert template.render_marked(messages, None) == asked.render_marked(messages, None)


@pytest.mark.parametrize("source", [CHATML, GEMMA, THINKING, PARTS_ONLY])
@pytest.mark.parametrize("silence", ["", " \n"])
def test_the_end_of_an_empty_answer_is_trained(source: str, silence: str) -> None:
    """With `labels.empty=train`, as all frameworks do: who keeps such a turn chose an empty answer."""
    assert len(trained(source, turns("a", silence))) == 1
    assert len(trained(source, turns("a", silence, "c", "d", "e", silence))) == 3
    assert all(text.endswith((">",)) for text in trained(source, turns("a", silence, "c", "d")))


BY_ID = CHATML.replace("{{ call.function | tojson }}", "{{ call.id }}")
BY_NAME = CHATML.replace("{{ call.function | tojson }}", "{{ call.name }}")
STRICT = CHATML.replace(
    "{{ call.function | tojson }}", "{% if call.id | length != 2 %}{{ raise_exception('id') }}{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "calls", "leaves_out"),
    [
        (GEMMA, [{"function": {"name": "f"}}], True),
        (CHATML, [{"function": {"name": "f"}}], False),
        (CHATML, [{"function": {}}], True),  # nothing of it can be looked for
        (CHATML, [{"name": "f", "arguments": {}}], False),  # it refuses the sample by itself
        (BY_NAME, [{"name": "f"}], False),
        (BY_NAME, [{"function": {"name": "f"}}], True),  # it asks for another form, and writes nothing of this one
        (BY_ID, [{"id": "f:0", "function": {"name": "f"}}], False),
        (BY_NAME.replace("m.tool_calls", "(m.tool_calls or [])[:1]"), [{"name": n} for n in "fg"], True),
        (STRICT, [{"id": "c1", "function": {"name": "f"}}], True),
        (STRICT, [{"id": "c22", "function": {"name": "f"}}], False),
        (BY_NAME, ["f"], True),
    ],
)
def test_whether_calls_are_written_is_asked_of_each_sample(source: str, calls: list[Any], leaves_out: bool) -> None:
    template = ChatTemplate(source, {}, SPECIAL)
    messages = turns("a", "", tool_calls=calls)
    try:
        template.render_marked(messages, None)
        said = ""
    except Skip as skip:
        said = skip.detail
    assert ("leaves out the call" in said) is leaves_out, said


NO_TOOLS = CHATML.replace("{{ m.content }}", "{{ m.content or raise_exception('empty') }}")
NOT_FOR_ALL = "{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("source", "roles", "expected"),
    [
        (GEMMA, "ua", True),
        (NO_TOOLS, "ua", True),  # it was taken for one that writes tools, because it refuses an answer without a text
        ("{{ tools | tojson }}" + NO_TOOLS, "ua", False),
        (NOT_FOR_ALL, "ua", True),
        (NOT_FOR_ALL, "sua", False),
        ("{{ tools[0] | tojson }}" + CHATML, "ua", True),  # one of two
    ],
)
def test_tools_a_template_does_not_write_are_noticed(source: str, roles: str, expected: bool) -> None:
    """The report counts them. A template is asked with the sample's own turns: no form of ours stands for all."""
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": names[role], "content": "b"} for role in roles]
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    renderer = ChatTemplate(source, {}, SPECIAL).renderer
    assert check_for_left_out_tools(renderer, messages, tools, TemplateDrops.skip) is expected


def test_a_system_turn_that_a_template_drops_costs_the_sample() -> None:
    """Its answers would be trained without the rules that they obey, and nothing would say so."""
    messages = [{"role": "system", "content": "Be brief."}, *turns("a", "b")]
    only = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role in ['user', 'assistant'] %}")
    template = ChatTemplate(only, {}, SPECIAL)
    with pytest.raises(Skip, match=r"template_drops: .* the text 'Be brief.' of message 0, of the role system"):
        template.render_marked(messages, None)
    template.render_marked([{"role": "system", "content": " "}, *messages[1:]], None)  # nothing is lost
    ChatTemplate(CHATML, {}, SPECIAL).render_marked(messages, None)
    told = [{"role": "developer", "content": "Be brief."}, *messages[1:]]
    with pytest.raises(Skip, match=r"of message 0, of the role developer .*system_tag"):
        template.render_marked(told, None)


ENDLESS = (
    "{{ 'a' * 10**10 }}", "{{ 'a' * 20000000 }}", "{{ '%0999999999d' % 1 }}", "{{ 'a'|center(10**9) }}",
    "{{ range(100000)|join('x' * 99999) }}", "{{ messages|tojson(indent=10**9) }}",
    "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ 9**9999999 }}", "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
)  # fmt: skip


@pytest.mark.parametrize("endless", ENDLESS)
def test_a_template_that_does_not_end_costs_the_sample(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took all memory of the machine, or all time there is."""
    monkeypatch.setattr(untrusted_input, "_is_enabled", [True])
    monkeypatch.setattr(renderer, "_MAX_SECONDS", 0.2)
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    one = Renderer(source + "{% if messages|length > 1 %}" + endless + "{% endif %}", {})
    assert one.render(turns("a")[:1], None) == "a"
    with pytest.raises(Skip, match=r"^processor_error: chat template: "):
        one.render(turns("a", "b"), None)


@pytest.mark.parametrize("endless", [ENDLESS[0], ENDLESS[-2]])
def test_a_template_that_ends_for_no_conversation_is_refused(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each sample would take that long."""
    monkeypatch.setattr(untrusted_input, "_is_enabled", [True])
    monkeypatch.setattr(renderer, "_MAX_SECONDS", 0.2)
    with pytest.raises(PackError, match=r"^the chat template.*it takes more than"):
        Renderer(endless, {})


def test_a_template_that_takes_one_call_a_turn_is_answered_with_the_cure() -> None:
    """Of gpt-oss' template only its own words were said, which name no parallel calls."""
    one_call = (
        "{% set ns = namespace(last=none) %}{% for m in messages %}{% if m.tool_calls %}{% set ns.last = 1 %}"
        "{% elif m.role == 'tool' %}{% if ns.last is none %}{{ raise_exception('no previous call') }}{% endif %}"
        "{% set ns.last = none %}{% endif %}{{ m.role }}{{ m.content }}{% endfor %}"
    )
    calls = [{"type": "function", "function": {"name": "tide", "arguments": {}}}] * 2
    result = {"role": "tool", "content": "3 m"}
    renderer = Renderer(one_call, {})
    asked, answered = {"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": calls}
    with pytest.raises(Skip, match=r"no previous call \(a turn has several calls: source\.map can give each a turn"):
        renderer.render([asked, answered, result, result], None)
    with pytest.raises(Skip, match=r"chat template: no previous call$"):
        renderer.render([result], None)

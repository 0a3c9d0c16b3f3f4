"""Turns that are one answer are rendered as one, and each part keeps its own weight.

ms-swift writes a text and its calls as several turns, each with a `loss`. Where these differed, the answer was torn in
two: the model was taught to end its turn before the call.
"""

import json
import re
from itertools import accumulate
from typing import Any

import pytest

from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import STORED_SETTINGS, ReadSettings, ToolForm
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.labels import TrainedSpan
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.settings import LabelSettings, Think, ToolCalls, TrainOn

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|calls|>", "<|call|>", "<|end|>", "<|ended|>", "<|say|>"]
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    '{% for call in m.tool_calls %}{{ "\n" }}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KIMI = (  # tokens of its own around all calls and around each
    "{% for m in messages %}<|im_start|>{{ m.role }}<|say|>{{ m.content }}{% if m.tool_calls %}<|calls|>"
    "{% for call in m.tool_calls %}<|call|>{{ call.function.name }}{{ call.function.arguments | tojson }}<|end|>"
    "{% endfor %}<|ended|>{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|say|>"
    "{% endif %}"
)
AS_LIST = (  # Mistral's: one JSON list of all calls
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %} CALLS: ["
    '{% for call in m.tool_calls %}{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPS = QWEN3.replace("{{ m.content }}", "{{ m.content[:3] if m.role == 'assistant' else m.content }}")
UNTRAINED: dict[str, Any] = {"loss": False}


def said(text: str = "I look.", **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def call(number: int = 1, **more: Any) -> Message:
    return {"role": "tool_call", "content": f'{{"name": "f", "arguments": {{"x": "{number}"}}}}', **more}


def parsed(*turns: Message, settings: ReadSettings | None = None) -> list[Message]:
    record = {"messages": [{"role": "user", "content": "q"}, *turns, {"role": "tool", "content": "r"}, said("Done.")]}
    messages = parse_record(parse_sample_json(json.dumps(record).encode()), settings or ReadSettings()).messages
    assert parse_record({"messages": messages}, STORED_SETTINGS).messages == messages  # packs are read again
    return messages


def spans(
    source: str, *turns: Message, labels: LabelSettings | None = None, **settings: Any
) -> list[tuple[float, str]]:
    """Return the trained spans of the first answer; an answer "Done." follows."""
    template, messages = ChatTemplate(source, {}, SPECIAL), parsed(*turns, settings=ReadSettings(**settings))
    marked, weights, _ = template.render_marked(messages, None, labels or LabelSettings())
    assert marked.replace(OPEN, "").replace(CLOSE, "") == template.render(messages, None)
    texts = [piece.partition(CLOSE)[0] for piece in marked.split(OPEN)[1:]]
    return [(weight, text) for weight, text in zip(weights, texts, strict=True) if "Done." not in text]


CALL = '\n<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>'
OTHER = CALL.replace("1", "2")


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([said(), call()], [(1, f"I look.{CALL}<|im_end|>")]),
        ([said(), call(**UNTRAINED)], [(1, "I look.")]),
        ([said(**UNTRAINED), call()], [(1, f"{CALL}<|im_end|>")]),
        ([call(), call(2, **UNTRAINED)], [(1, CALL)]),
        ([call(**UNTRAINED), call(2)], [(1, f"{OTHER}<|im_end|>")]),
        ([said(), call(**UNTRAINED), call(2)], [(1, "I look."), (1, f"{OTHER}<|im_end|>")]),
        ([said(loss_scale=0.5), call(weight=2), call(2)], [(0.5, "I look."), (2, CALL), (1, f"{OTHER}<|im_end|>")]),
        ([said(), call(loss=True)], [(1, f"I look.{CALL}<|im_end|>")]),
        (
            [said("I look. "), {**call(), "content": f"Now.<tool_call>{call()['content']}</tool_call>", **UNTRAINED}],
            [(1, "I look.")],
        ),
        (
            [said(reasoning_content="A", **UNTRAINED), call(reasoning="B")],
            [(1, "\nB\n</think>\n\n"), (1, f"{CALL}<|im_end|>")],
        ),
        ([said(mask=1), call(**UNTRAINED)], []),
    ],
)
def test_each_part_of_an_answer_keeps_its_weight(turns: list[Message], expected: list[tuple[float, str]]) -> None:
    assert spans(QWEN3, *turns) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (KIMI, ['<|calls|><|call|>f{"x": "1"}<|end|>', '<|call|>f{"x": "2"}<|end|><|ended|><|im_end|>']),
        (
            AS_LIST,
            [' CALLS: [{"name": "f", "arguments": {"x": "1"}}', ', {"name": "f", "arguments": {"x": "2"}}]<|im_end|>'],
        ),
    ],
)
def test_the_text_around_a_call_belongs_to_it(source: str, expected: list[str]) -> None:
    turns = said(loss_scale=0.5), call(), call(2, loss_scale=2)
    assert spans(source, *turns) == [(0.5, "I look."), (1, expected[0]), (2, expected[1])]


def test_two_thoughts_are_one() -> None:
    """The second one was lost."""
    for turns in (
        [said(reasoning_content="A"), call(reasoning_content="B")],
        [said(thinking="A"), call(reasoning="B")],
        [said(reasoning_content="A", reasoning=None), call(reasoning_content="B", loss=None)],
    ):
        assert spans(QWEN3, *turns) == [(1, f"<think>\nA\nB\n</think>\n\nI look.{CALL}<|im_end|>")]
    for plan, joined in ((None, "B"), ("A", "A\nB")):
        assert parsed(said(tool_plan=plan), call(tool_plan="B"))[1]["tool_plan"] == joined
    assert spans(QWEN3, said(reasoning_content=""), call(thinking="B")) == [
        (1, f"<think>\nB\n</think>\n\nI look.{CALL}<|im_end|>")
    ]


def test_settings_of_labels_see_the_whole_turn() -> None:
    """A thought of two parts has its marks in both."""
    turns = said(reasoning_content="A", loss_scale=0.5), call(reasoning_content="B")
    assert spans(QWEN3, *turns) == [
        (0.5, "<think>\nA"), (1, "\nB\n</think>\n\n"), (0.5, "I look."), (1, f"{CALL}<|im_end|>")
    ]  # fmt: skip
    assert spans(QWEN3, *turns, labels=LabelSettings(tool_calls=ToolCalls.mask))[2:] == [
        (0.5, "I look."),
        (1, "<|im_end|>"),
    ]
    assert spans(QWEN3, *turns, labels=LabelSettings(train_on=TrainOn.last)) == []
    told = said(loss=True), call(loss_scale=2)  # `loss: true` trains a turn that `labels.train_on` leaves out
    assert spans(QWEN3, *told, labels=LabelSettings(train_on=TrainOn.last)) == [(1, "I look.")]
    for answer in (turns, (said(reasoning_content="A"), call(reasoning_content="B", **UNTRAINED))):
        labels = LabelSettings(think=Think.mask, after_turn=True)
        trained = after_labels(ChatTemplate(QWEN3, {}, SPECIAL), parsed(*answer), labels)
        assert trained[0] == "I look."
        assert trained[-1] == "Done.<|im_end|>\n"
        assert not any("A" in text or "B" in text or "think" in text for text in trained)


def after_labels(template: ChatTemplate, messages: list[Message], labels: LabelSettings) -> list[str]:
    """Return the trained texts of a conversation once `labels` has cut and widened its spans."""
    marked, weights, _ = template.render_marked(messages, None, labels)
    *pieces, rest = re.split(f"[{OPEN}{CLOSE}]", marked)
    edges = [*accumulate(map(len, pieces))]
    spans = [TrainedSpan(*each) for each in zip(edges[::2], edges[1::2], weights, strict=True)]
    text = "".join([*pieces, rest])
    return [text[start:end] for start, end, _ in template.adjust_spans(text, spans, labels)]


def test_calls_as_text_keep_their_weights() -> None:
    turns = said(loss_scale=0.5), call(**UNTRAINED), call(2)
    texts = [f'\n{{"name": "f", "arguments": {{"x": "{number}"}}}}' for number in (1, 2)]
    assert spans(QWEN3, *turns, tools=ToolForm.text) == [(0.5, "I look."), (1, f"{texts[1]}<|im_end|>")]


def test_a_template_that_does_not_show_the_parts_is_refused() -> None:
    with pytest.raises(Skip, match="processor_error: the chat template changes message 1, whose parts have weights"):
        spans(STRIPS, said(), call(**UNTRAINED))
    with pytest.raises(Skip, match="processor_error: the chat template changes message 1"):  # its calls were trained
        spans(STRIPS, said(), call(), labels=LabelSettings(tool_calls=ToolCalls.mask))


@pytest.mark.parametrize(
    "parts",
    [[], {}, {"content": [[7]]}, {"content": [[0, {}]]}, {"tool_calls": [[2, {}]]}, {"content": [[7, {"a": 1}]]}],
)
def test_weights_of_parts_that_no_pack_has_are_refused(parts: Any) -> None:
    turn = {**said(), "tool_calls": [{"function": {"name": "f", "arguments": {}}}], "part_weights": parts}
    with pytest.raises(Skip, match="bad_message: message 1 has"):
        parsed(turn)
    with pytest.raises(Skip, match="bad_message: message 2 has"):
        parsed(said(), call(part_weights={"content": [[7, {}]]}))

"""What `labels.*` makes of whole turns: thoughts, ends of turns, the text around answers."""

from typing import Any

import pytest

from energon_pack.errors import PackError
from energon_pack.templates.chat.labels import TrainedSpan, cut_ranges_out
from energon_pack.templates.chat.template import ChatTemplate
from energon_pack.templates.chat.turns import CLOSE, OPEN
from energon_pack.templates.settings import LabelsConfig, LabelSettings, Think

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|all|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content is defined %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHANNELS = CHATML.replace("<think>\n", "<|channel>thought\n").replace("\n</think>\n\n", "\n<channel|>")
PROMPT_OPENS = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")


def turns(*answers: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = [[{"role": "user", "content": "q"}, {"role": "assistant", **answer}] for answer in answers]
    return [message for pair in pairs for message in pair]


def trained(source: str, messages: list[dict[str, Any]], labels: LabelsConfig) -> list[str]:
    chat = ChatTemplate(source, {}, SPECIAL)
    if labels.think is Think.drop_history:
        messages = chat.without_earlier_thoughts(messages)
    marked, weights, _ = chat.render_marked(messages, None, labels)
    text, spans = "", []
    for piece in marked.replace(CLOSE, OPEN).split(OPEN):
        spans.append((len(text), len(text) + len(piece)))
        text += piece
    found = [TrainedSpan(*span, weight) for span, weight in zip(spans[1::2], weights, strict=True)]
    return [text[span.start : span.end] for span in chat.adjust_spans(text, found, labels)]


HM = {"content": "b", "reasoning_content": "hm"}
EMPTY = {"content": "b", "reasoning_content": ""}
IN_TEXT = {"content": "<think>hm</think>\n\nb"}


@pytest.mark.parametrize(
    ("source", "answer", "think", "expected"),
    [
        (CHATML, HM, Think.train, ["<think>\nhm\n</think>\n\nb<|im_end|>"]),
        (CHATML, HM, Think.mask, ["b<|im_end|>"]),
        (CHATML, HM, Think.mask_empty, ["<think>\nhm\n</think>\n\nb<|im_end|>"]),
        (CHATML, EMPTY, Think.mask_empty, ["b<|im_end|>"]),
        (CHATML, EMPTY, Think.train, ["<think>\n\n</think>\n\nb<|im_end|>"]),
        (CHATML, IN_TEXT, Think.mask, ["b<|im_end|>"]),  # spelled by the text, as Qwen3's data have it
        (CHANNELS, HM, Think.mask, ["b<|im_end|>"]),  # the template's own marks
        (PROMPT_OPENS, HM, Think.train, ["hm\n</think>\n\nb<|im_end|>"]),
        (PROMPT_OPENS, HM, Think.mask, ["b<|im_end|>"]),
        (CHATML, {"content": "a <think> is a tag"}, Think.mask, ["a <think> is a tag<|im_end|>"]),  # it never ends
    ],
)
def test_thoughts(source: str, answer: dict[str, Any], think: Think, expected: list[str]) -> None:
    """A thought that should not be trained would teach the model to think so; one that should, not to think."""
    assert trained(source, turns(answer), LabelsConfig(think=think)) == expected


def test_thoughts_before_the_last_question_are_left_out() -> None:
    """As inference sees the conversation then."""
    labels = LabelsConfig(think=Think.drop_history)
    expected = ["b<|im_end|>", "b<|im_end|>", "<think>\nhm\n</think>\n\nb<|im_end|>"]
    assert trained(CHATML, turns(HM, IN_TEXT, HM), labels) == expected


def test_a_thought_in_a_content_part_is_left_out() -> None:
    """Content stays a list beside a medium, and where white space meets."""
    parts = [{"type": "text", "text": "Hm.\n<think>hm</think>\n\nb"}, {"type": "image"}]
    silent = ChatTemplate(CHATML, {}, SPECIAL).without_earlier_thoughts(turns({"content": parts}, HM))
    assert silent[1]["content"] == [{"type": "text", "text": "Hm.b"}, {"type": "image"}]


def test_thoughts_that_never_end_take_no_time() -> None:
    """Looked for from each of 100,000 beginnings, the end of one took minutes."""
    text = "<think>" * 100_000
    messages = turns({"content": text}, HM)
    assert ChatTemplate(CHATML, {}, SPECIAL).without_earlier_thoughts(messages)[1]["content"] == text


def test_the_end_of_a_turn() -> None:
    answers = turns({"content": "b"}, {"content": "d "})
    assert trained(CHATML, answers, LabelsConfig(end_of_turn=False)) == ["b", "d "]
    assert trained(CHATML, answers, LabelsConfig(after_turn=True)) == ["b<|im_end|>\n", "d <|im_end|>\n"]
    assert trained(CHATML + "<|all|>", answers, LabelsConfig(after_turn=True))[-1] == "d <|im_end|>\n<|all|>"
    assert trained(CHATML, turns({"content": "b", "loss": False}), LabelsConfig(after_turn=True)) == []


def test_the_text_around_answers_has_a_weight() -> None:
    chat = ChatTemplate(CHATML, {}, SPECIAL)
    text = "<|im_start|>user\nq<|im_end|>\nb"
    spans = chat.adjust_spans(text, [TrainedSpan(29, 30, 1.0)], LabelsConfig(prompt_weight=0.5))
    assert spans == [(0, 29, 0.5), (29, 30, 1.0)]


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1, 1e300])
def test_the_text_around_answers_has_a_weight_that_is_a_number(weight: float) -> None:
    """With an infinite one, the loss was infinite."""
    with pytest.raises(PackError, match=r"labels\.prompt_weight=.*: must be at least 0, at most 1,000,000"):
        LabelSettings(prompt_weight=weight).check()


def test_spans_without_other_ranges() -> None:
    spans = [TrainedSpan(0, 10, 1.0), TrainedSpan(12, 20, 0.5)]
    assert cut_ranges_out(spans, [(2, 4), (8, 14), (19, 30)]) == [(0, 2, 1.0), (4, 8, 1.0), (14, 19, 0.5)]
    assert cut_ranges_out(spans, [(0, 30)]) == []
    assert cut_ranges_out(spans, []) == spans


def test_what_is_masked_by_name_stays_so_where_all_else_has_a_weight() -> None:
    """A turn's own zero, a thought and the end of a turn that `labels` masks: `prompt_weight` trained them."""
    messages = turns({"content": "b", "loss": False}, HM)
    labels = LabelsConfig(think=Think.mask, end_of_turn=False, prompt_weight=0.5)
    expected = [
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
        "\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
        "b",
        "\n",
    ]
    assert trained(CHATML, messages, labels) == expected

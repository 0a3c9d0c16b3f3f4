"""Answers that say nothing. Trained, they teach to end before a word: 30 of 40 samples were «<|im_end|>» alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig
from energon_pack.config.naming import content_settings
from energon_pack.errors import SamplesLost
from energon_pack.online.streaming import StreamingPackedDataset
from energon_pack.pack import pack
from energon_pack.run.untrusted_input import plain
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Message
from energon_pack.samples.settings import Columns, ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.turns import NO_EMPTY_ANSWERS, count_empty_answers, is_empty_answer
from energon_pack.templates.chat.labels import turn_weights
from energon_pack.templates.identity import labels_without_new_defaults
from energon_pack.templates.settings import EmptyAnswerPolicy, Expand, LabelSettings, TrainOn, UntrainedSamplePolicy
from support.packed import json_lines

CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}


def answer(content: Any = "", **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def talk(*answers: Any, **of_each: Any) -> dict[str, Any]:
    turns = [({"role": "user", "content": f"q{n}"}, answer(text, **of_each)) for n, text in enumerate(answers)]
    return {"messages": [turn for both in turns for turn in both]}


@pytest.mark.parametrize(
    "message",
    [
        answer(),
        answer(" \n\t\u00a0\u2003"),
        answer([]),
        answer([{"type": "text", "text": " "}, {"type": "text", "text": ""}]),
        answer("<think>\n\n</think>\n\n"),
        answer(reasoning_content=" ", tool_calls=[]),
        answer(reasoning=None),
        answer(weight=1, loss=True),
        {"role": "document", "content": " "},
    ],
)
def test_an_answer_with_neither_text_nor_thought_nor_call_nor_medium_is_empty(message: Message) -> None:
    assert is_empty_answer(message)


@pytest.mark.parametrize(
    "message",
    [
        answer("0"),
        answer("<image>"),
        answer([{"type": "image"}]),
        answer("<think>\nWell.</think>"),
        answer("<think></think> Yes."),
        answer(thinking="Hm."),
        answer(tool_calls=[CALL]),
        answer(tool_plan="I look it up."),
        {"role": "user", "content": ""},
        {"role": "tool", "content": ""},
    ],
)
def test_an_answer_with_one_of_these_and_other_turns_are_not_empty(message: Message) -> None:
    assert not is_empty_answer(message)


DIALECTS: dict[str, Callable[[str], Any]] = {
    "messages": lambda text: talk(text),
    "a list of turns": lambda text: talk(text)["messages"],
    "conversations": lambda text: {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": text}]},
    "another field of turns": lambda text: {"dialog": talk(text)["messages"]},
    "parts": lambda text: talk([{"type": "text", "text": text}]),
    "pairs": lambda text: {"texts": [{"user": "q", "assistant": text}]},
    "answers of a list": lambda text: [{"question": "q", "answers": [text, "b"]}],
    "alpaca": lambda text: {"instruction": "i", "input": "", "output": text},
    "query and response": lambda text: {"query": "q", "response": text},
    "prompt and response": lambda text: {"prompt": "q", "response": text},
    "question and response": lambda text: {"question": "q", "response": text},
    "prompt and completion": lambda text: {"prompt": "q", "completion": text},
    "lists of questions": lambda text: {"questions": ["q", "r"], "answers": [text, text]},
    "VQA": lambda text: {"question": "q", "answer": text},
    "VQA, answers": lambda text: {"question": "q", "answers": [text, "b"]},
    "VQA, context": lambda text: {"context": "q", "answers": text},
    "prompts and captions": lambda text: {"prompts": ["q"], "captions": [text]},
    "a caption": lambda text: {"caption": text, "images": ["a.jpg"]},
    "an answer alone": lambda text: [answer(text)],
}


@pytest.mark.parametrize("text", ["", " \n"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_reads_an_empty_answer(dialect: str, text: str) -> None:
    """An empty answer of alpaca was bad data; one of `messages` was trained."""
    record = parse_record(DIALECTS[dialect](text), ReadSettings())
    assert count_empty_answers(record.messages).are_all


def test_an_answer_of_null_is_an_empty_one_and_a_question_of_null_is_none() -> None:
    assert count_empty_answers(parse_record(talk(None), ReadSettings()).messages) == (1, True)
    with pytest.raises(Skip, match="message 0 has the content None"):
        parse_record({"messages": [{"role": "user", "content": None}, answer("a")]}, ReadSettings())
    with pytest.raises(Skip, match="message 1 has the content None"):  # its text may stand under another key
        parse_record({"messages": [{"role": "user", "content": "q"}, {"role": "assistant"}]}, ReadSettings())


def test_settings_that_name_the_fields_read_empty_answers_too() -> None:
    named = ReadSettings(columns=Columns(prompt="p", response="r"))
    assert count_empty_answers(parse_record({"p": "q", "r": ""}, named).messages).are_all
    vqa = ReadSettings(sample_type=SampleType.vqa)
    assert count_empty_answers(parse_record({"question": "q", "answer": ""}, vqa).messages).are_all


def test_an_empty_field_beside_an_answer_is_none() -> None:
    record = parse_record({"question": "q", "response": "a", "answer": ""}, ReadSettings())
    assert record.messages[-1] == answer("a")


TALK = talk("a", "", "c")["messages"]


@pytest.mark.parametrize(
    ("labels", "weights"),
    [
        (LabelSettings(), {1: 1.0, 5: 1.0}),
        (LabelSettings(empty=EmptyAnswerPolicy.train), {1: 1.0, 3: 1.0, 5: 1.0}),
        (LabelSettings(train_on=TrainOn.last), {5: 1.0}),
        (LabelSettings(prompt_weight=0.5), {1: 1.0, 3: 0.0, 5: 1.0}),  # its end does not count as a prompt either
    ],
)
def test_empty_answers_have_no_weight(labels: LabelSettings, weights: dict[int, float]) -> None:
    assert turn_weights(TALK, labels) == weights


@pytest.mark.parametrize("own", [{"weight": 1}, {"loss": True}, {"train": True}, {"loss_weight": 2}, {"mask": 0}])
def test_a_weight_of_its_own_trains_no_empty_answer(own: dict[str, Any]) -> None:
    """Data sets write it on every turn."""
    messages = talk("a", "", **own)["messages"]
    assert [*turn_weights(messages, LabelSettings())] == [1]
    assert [*turn_weights(messages, LabelSettings(empty=EmptyAnswerPolicy.train))] == [1, 3]


def test_the_default_changes_no_key_of_a_cache_and_no_name_of_a_dataset(config: Callable[..., PackConfig]) -> None:
    assert "empty" not in labels_without_new_defaults(plain(LabelSettings()))
    assert labels_without_new_defaults(plain(LabelSettings(empty=EmptyAnswerPolicy.train)))["empty"] == "train"
    assert "empty" not in content_settings(plain(config(None)))["labels"]


SAMPLES = {
    "full": talk("a word", "two words"),
    "partly": talk("a word", "", "two words"),
    "empty": talk("", " \n"),
    "own": {**talk("", ""), "label_settings": {"empty": "train"}},
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in SAMPLES.values()))
    return str(path)


def test_a_conversation_is_left_out_if_all_its_answers_are_empty(
    config: Callable[..., PackConfig], source: str, tmp_path: Path
) -> None:
    """By choice, not as bad data: with `max_skipped` 0 it is published."""
    figures = pack(config(source, max_skipped=0.0))
    assert figures["skipped_by_reason"] == {"empty_answer": 1}
    assert figures["samples_with_empty_answers"] == 1
    (line,) = json_lines(tmp_path / "out" / "packed" / "skipped.jsonl")
    assert (line["sample_id"], line["reason"]) == ("s.jsonl:3", "empty_answer")
    assert "labels.empty=train" in line["detail"]


def test_a_setting_trains_them_all(config: Callable[..., PackConfig], source: str) -> None:
    dropped = pack(config(source, output__name="dropped"))
    trained = pack(config(source, output__name="trained", labels__empty=EmptyAnswerPolicy.train))
    assert (dropped["samples_packed"], trained["samples_packed"]) == (3, 4)
    assert trained["samples_with_empty_answers"] == 0
    ends = 3  # an end token after each; and the white space of one
    assert dropped["num_supervised"] + ends < trained["num_supervised"] <= dropped["num_supervised"] + ends + 2


def test_what_trains_nothing_stays_out_though_untrained_samples_are_kept(
    config: Callable[..., PackConfig], source: str
) -> None:
    assert pack(config(source, labels__untrained=UntrainedSamplePolicy.keep))["skipped_by_reason"] == {
        "empty_answer": 1
    }


@pytest.mark.parametrize("how", [Expand.turns, Expand.pairs])
def test_an_empty_answer_makes_no_sample_of_its_own(
    config: Callable[..., PackConfig], source: str, how: Expand
) -> None:
    figures = pack(config(source, labels__expand=how))
    assert figures["skipped_by_reason"] == {"empty_answer": 1}
    if how is Expand.turns:  # two of `full`, two of `partly`, two of `own`
        assert figures["expanded"]["samples"] == 6
        assert figures["samples_cut_off"] == 0


def test_a_source_of_empty_answers_alone_is_not_published(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(talk("")) + "\n")
    with pytest.raises(SamplesLost):
        pack(config(str(path)))


def test_a_stream_leaves_them_out_too(config: Callable[..., PackConfig], source: str) -> None:
    stream = StreamingPackedDataset(config(source), replacement=False)
    assert sum(len(pack.members) for pack in stream) == 3
    assert stream.statistics()["left_out"] == {Reason.EMPTY_ANSWER.value: 1}


def test_no_answer_is_no_empty_one() -> None:
    assert count_empty_answers([{"role": "user", "content": ""}]) == NO_EMPTY_ANSWERS

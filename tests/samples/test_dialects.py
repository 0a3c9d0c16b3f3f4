"""Each dialect comes to the messages that our own form has; what fits two or none is named, never guessed."""

import random
from collections import Counter
from typing import Any

import pytest

from energon_pack.samples.dialects.table import DIALECTS
from energon_pack.samples.media.read_media import read_medium_settings
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.sample import REASONING_KEYS, Message
from energon_pack.samples.settings import PreferenceTake, ReadSettings, SampleType
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from energon_pack.sources.source_file import read_record
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from support.dialects import CONVERSATIONS, FORMS, Changed, Form, changed, expected

AUTO = ReadSettings()


def said_of(value: Any, settings: ReadSettings = AUTO) -> str:
    """The reason for which a record is left out."""
    with pytest.raises(Skip) as skip:
        parse_record(value, settings)
    return str(skip.value)


def texts(record: Record) -> list[str]:
    return [message["content"] for message in record.messages]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_same_conversations_in_each_dialect_are_the_same(form: Form, template: Template) -> None:
    """Most of these were `no_messages` or `bad_message`: their owners could pack nothing."""
    for system, pairs in CONVERSATIONS:
        record = parse_record(form.written(system, pairs), form.settings)
        wanted = expected(form, system, pairs)
        assert record.messages == wanted
        assert record.unknown == {}
        assert template.encode(Sample(record.messages, [])) == template.encode(Sample(wanted, []))


def test_each_row_of_the_table_has_its_conversations() -> None:
    assert {row.name for row in DIALECTS} == {form.row for form in FORMS} - {""}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"instruction": "i", "output": "o", "query": "q", "response": "r"}, "'alpaca' and as 'query and response'"),
        ({"prompt": "p", "response": "r", "completion": "c"}, "'prompt and completion' and as 'prompt and response'"),
        ({"conversation": [{"user": "q", "assistant": "a"}], "prompt": ["x"]}, "'conversation' and as 'prompt'"),
        ({"conversation": [{"user": "q", "assistant": "a"}], "text": "x"}, "'conversation' and as 'text'"),
        (
            {"messages": [{"user": "q", "assistant": "a"}], "conversations": [{"user": "p", "assistant": "b"}]},
            "'messages' and as 'conversations', which say different things: source.messages_key=messages decides",
        ),
        ({"caption": "c", "instruction": "i", "output": "o"}, "'caption' and as 'alpaca'"),
        ({"question": "q", "answer": "a", "response": "r"}, "'question and answer' and as 'question and response'"),
    ],
)
def test_what_fits_two_is_left_out_with_both_names(value: Any, said: str) -> None:
    """One of them was trained, and the other was lost."""
    assert said in said_of(value)
    assert said_of(value).startswith("bad_message")
    assert "source." in said_of(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"instruction": "i", "output": ["o"]}, "read as 'alpaca', and its output is empty or of another form"),
        ({"instruction": "", "input": "", "output": "o"}, "its instruction is empty or of another form"),
        ({"instruction": "i", "output": "o", "history": [["q"]]}, "its history is empty or of another form"),
        ({"instruction": "i", "input": 0, "output": "o"}, "its input is empty or of another form"),
        (
            {"prompt": "p", "completion": [{"role": "assistant", "content": "a"}]},
            "its completion is empty or of another form",
        ),
        ({"question": "q", "answer": 0}, "its answer is empty or of another form: '0'"),
        ({"question": "q", "answers": []}, "its answers is empty or of another form: '[]'"),
        ({"questions": ["a", "b"], "answers": ["c"]}, "2 texts in questions for 1 in answers"),
        ({"conversation": "Hi!"}, "read as 'conversation', and its conversation is empty or of another form"),
        ({"texts": [{"user": "q", "assistant": None}]}, "message 0 has a assistant that is no text"),
        ({"texts": [{"user": "q", "human": "q", "assistant": "a"}]}, "has the role None"),
        ({"texts": [{"user": "q", "assistant": "a", "content": "b"}]}, "two spellings of one thing"),
        ({"texts": [{"user": "q", "assistant": "a", "thinking": 1}]}, "message 0 has a thinking that is no text"),
        ({"instruction": "i", "output": None}, "no_messages"),
        ({"problem": "q", "solution": "a"}, "no_messages"),
    ],
)
def test_values_of_another_type_are_named(value: Any, said: str) -> None:
    assert said in said_of(value)


def test_what_is_read_today_is_read_first() -> None:
    """Another order would change datasets that are packed."""
    both = {"instruction": "i", "output": "o"}
    assert texts(parse_record({"caption": "c", **both}, ReadSettings(sample_type=SampleType.captioning))) == ["", "c"]
    assert texts(parse_record({"text": "## i\n\n## o", **both}, AUTO)) == ["i", "o"]  # as Alpaca has it on the hub
    assert texts(parse_record({"question": "q", "answers": ["a", "b"]}, AUTO)) == ["q", "a"]


@pytest.mark.parametrize("empty", [None, "", False, [], {}])
def test_an_alpaca_line_may_have_an_empty_input(empty: Any) -> None:
    """A table without a text there may hold false; such lines were refused."""
    value = {"instruction": "i", "input": empty, "output": "o"}
    columns = (("prompt", "instruction"), ("query", "input"), ("response", "output"))
    assert texts(parse_record(value, AUTO)) == texts(parse_row(value, RowSettings("", columns), AUTO)) == ["i", "o"]


SAID = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A cat."}]


def asked(**image: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image", **image}, {"type": "text", "text": "q"}]}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"prompt": "What is it?", "completion": "A cat."}, []),  # UltraChat has its first question twice
        ({"conversations": [{"from": "human", "value": "What  is it?"}, {"from": "gpt", "value": "A cat."}]}, []),
        ({"text": "<|user|>What is it?<|assistant|>A cat."}, []),
        ({"prompt": "Look!", "answer": "B"}, ["answer", "prompt"]),
        ({"conversations": [{"from": "human", "value": "Earlier."}, *SAID]}, ["conversations"]),  # it holds more
        ({"history": [], "caption": None}, []),
    ],
)
def test_what_repeats_the_conversation_is_none_of_its_own_and_other_texts_are_named(
    more: dict[str, Any], named: list[str]
) -> None:
    """Other texts beside `messages` were dropped without a word."""
    record = parse_record({"messages": SAID, **more}, AUTO)
    assert [turn["content"] for turn in record.messages] == [turn["content"] for turn in SAID]
    assert sorted(record.unknown) == named


@pytest.mark.parametrize(
    "value",
    [
        {"messages": SAID, "image": "a.jpg", "images": ["b.jpg"]},
        {"messages": SAID, "tools": [{"name": "f"}], "functions": [{"name": "g"}]},
        {"messages": SAID, "system": "a", "system_prompt": "b"},
        {"messages": [{"role": "user", "content": "q", "value": "p"}, SAID[1]]},
        {"messages": [SAID[0], {**SAID[1], "thinking": "a", "reasoning_content": "b"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q", "value": "p"}]}, SAID[1]]},
        {"messages": SAID, "images": [{"path": "a.jpg", "url": "b.jpg"}]},
        {"messages": SAID, "videos": [{"path": "a.mp4", "frame_indices": [0]}], "video_frames": [[1]]},
        {"messages": SAID, "name": ["a.jpg"], "media_files": ["b.jpg"]},
        {"messages": SAID, "media": "image", "media_type": "Video"},
        {"messages": [asked(image="a.jpg", path="b.jpg"), SAID[1]]},
        {"messages": [asked(image="a.jpg", video="b.mp4"), SAID[1]]},
        {"messages": [asked(image={"url": "a.jpg", "path": "b.jpg"}), SAID[1]]},
        {
            "messages": [
                SAID[0],
                {"role": "tool_call", "content": '{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 1}}'},
            ]
        },
        {"messages": SAID, "tools": [{"name": "f", "parameters": {"a": 1}, "input_schema": {"b": 1}}]},
        {"file_name": "a.jpg", "text": "a cat", "caption": "a dog"},
    ],
)
def test_two_spellings_of_one_thing_that_differ_are_an_error(value: dict[str, Any]) -> None:
    """One was trained, the other dropped without a word; media of both were joined in a guessed order."""
    with pytest.raises(Skip, match="two spellings of one thing"):
        parse_row(value, RowSettings("/data"), AUTO)


def test_other_spellings_that_differ_are_an_error() -> None:
    """The frames of a list were taken at one of two rates, the verdict of one of two labels was believed."""
    with pytest.raises(Skip, match=r"fps is '2' and sample_fps '4': two spellings"):
        read_medium_settings({"list_of_frames": 2, "fps": 2, "sample_fps": 4}, {}, "image")
    with pytest.raises(Skip, match=r"label is .* and kto_tag .* two spellings"):
        parse_record({"messages": SAID, "label": True, "kto_tag": 0}, ReadSettings(take=PreferenceTake.chosen))
    with pytest.raises(Skip, match="prompt is 'p' and question 'q': two spellings"):
        parse_record(
            {"prompt": "p", "question": "q", "chosen": "a", "rejected": "b"}, ReadSettings(take=PreferenceTake.chosen)
        )


def test_two_spellings_that_say_the_same_are_one_medium() -> None:
    line = {"messages": SAID, "image": "a.jpg", "images": ["a.jpg"]}
    assert parse_row(line, RowSettings("/data"), AUTO).listed_media == ["a.jpg"]
    part = {"role": "user", "content": [{"type": "image", "image": "/x/a.jpg"}, {"type": "text", "text": "q"}]}
    assert parse_row({"messages": [part, SAID[1]], "images": ["a.jpg"]}, RowSettings("/data"), AUTO).listed_media == [
        "a.jpg"
    ]
    both = {"messages": SAID, "name": ["a.jpg"], "images": [{"path": "x/a.jpg", "image": "x/a.jpg", "url": None}]}
    assert parse_row(both, RowSettings("/data"), AUTO).listed_media == ["x/a.jpg"]
    for other in ({"messages": [part, SAID[1]]}, {"messages": SAID, "name": ["/x/a.jpg"]}):
        with pytest.raises(Skip, match=r"names '/x/a\.jpg', and the sample lists 'b\.jpg'"):
            parse_row({**other, "images": ["b.jpg"]}, RowSettings("/data"), AUTO)


@pytest.mark.parametrize("turn", [{"role": "user", "": "q"}, {"": "user", "content": "q"}])
def test_a_key_without_a_name_says_nothing(turn: dict[str, Any]) -> None:
    """Where a turn lacked a key, "" was asked in its place."""
    with pytest.raises(Skip, match="bad_message"):
        parse_record({"messages": [turn, SAID[1]]}, AUTO)


def test_a_turn_has_one_role() -> None:
    assert "is from 'gpt'" in said_of({"messages": [{"role": "user", "from": "gpt", "content": "q"}, SAID[1]]})
    same = [{"role": "user", "from": "human", "content": "q"}, {**SAID[1], "from": "a name"}]
    assert len(parse_record({"messages": same}, AUTO).messages) == 2


@pytest.mark.parametrize("empty", ["", None, []])
def test_an_empty_spelling_hides_no_full_one(empty: Any) -> None:
    """The question was empty, the answer was lost, or the sample was refused for its role None."""
    asked = {"role": empty, "from": "human", "content": empty, "value": "q"}
    answered = {"role": "assistant", "from": empty, "content": "a", "value": empty}
    in_parts = {"role": "user", "content": [{"type": "text", "text": empty, "value": "q"}]}
    for question in (asked, in_parts):
        record = parse_record({"messages": [question, answered]}, AUTO)
        assert [(turn["role"], turn["content"]) for turn in record.messages] == [("user", "q"), ("assistant", "a")]
        assert record.unknown == {}
    image = {**asked, "value": [{"type": "image", "image": "a.jpg", "mood": 1}, {"type": "text", "text": "q"}]}
    record = parse_record({"messages": [image, answered]}, AUTO)
    assert (record.declared, record.listed_media, record.unknown) == ("image", ["a.jpg"], {"content[].mood": [1]})
    for content in ("a", [{"type": "text", "text": "a"}]):  # the answer was empty
        assert texts(parse_record({"texts": [{"user": "q", "assistant": "", "content": content}]}, AUTO)) == ["q", "a"]


@pytest.mark.parametrize("full", REASONING_KEYS)
def test_an_empty_thought_hides_no_full_one(full: str) -> None:
    """An empty thought was trained, or the sample was left out as one that its template does not write."""
    empty = dict.fromkeys(REASONING_KEYS, "")
    call = {"role": "tool_call", "content": '{"name": "f", "arguments": {}}'}
    part = {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "good"}]}
    for turns in ([{**GOOD, **empty, full: "t"}], [{**GOOD, full: "t"}, {**call, **empty}], [{**part, **empty}]):
        answer = parse_record({"messages": [USER, *turns]}, AUTO).messages[1]
        assert [answer[key] for key in REASONING_KEYS if key in answer] == ["t"]
    for same in ({**GOOD, **empty}, {**GOOD, "reasoning_content": None, "thinking": "t"}):  # null hides nothing
        assert parse_record({"messages": [USER, same]}, AUTO).messages[1] == same


def test_calls_whose_role_stands_beside_an_empty_one_are_joined() -> None:
    """The second call was a turn of its own, and its unknown keys were in no note."""
    call = {
        "role": None,
        "content": None,
        "from": "function_call",
        "value": '{"name": "f", "arguments": {}, "mood": 1}',
    }
    record = parse_record({"messages": [USER, call, call]}, AUTO)
    assert [len(turn.get("tool_calls", ())) for turn in record.messages] == [0, 2]
    assert record.unknown == {"calls[].mood": [1, 1]}


def test_an_entry_with_a_question_and_an_answer_keeps_weights_thoughts_and_calls() -> None:
    """An answer with `weight: 0` was trained; thoughts and calls vanished."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    entries = [
        {"user": "q", "assistant": "a", "weight": 0, "source": "s"},
        {"human": "q", "gpt": "a", "loss": False, "reasoning_content": "", "tool_calls": None},
        {"role": None, "question": "q", "answers": ["a", "b"], "masked": True, "thinking": "t", "tool_calls": []},
        {"user": "q", "bot": "a", "tool_calls": [{"name": "f", "args": {"x": 1}}]},
    ]
    more: list[Message] = [{"weight": 0}, {"loss": False}, {"masked": True, "thinking": "t"}, {"tool_calls": calls}]
    for entry, kept in zip(entries, more, strict=True):
        record = parse_record({"texts": [entry]}, AUTO)
        assert record.messages == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", **kept}]
        assert record.unknown == {}


def test_a_kind_that_is_asked_for_is_the_only_one() -> None:
    value = {"questions": ["q"], "answers": ["a"]}
    assert texts(parse_record(value, ReadSettings(sample_type=SampleType.vqa))) == ["q", "a"]
    alpaca = {"instruction": "i", "output": "o"}
    assert texts(parse_record(alpaca, ReadSettings(sample_type=SampleType.chat))) == ["i", "o"]
    for kind in (SampleType.vqa, SampleType.captioning, SampleType.document):
        assert said_of(alpaca, ReadSettings(sample_type=kind)).startswith("no_messages")
    assert said_of(alpaca, ReadSettings(messages_key="dialog")).startswith("no_messages")


def test_preference_data_in_a_dialect_is_named_and_its_good_side_is_read() -> None:
    value = {"instruction": "i", "input": "", "output": "o", "kto_tag": False}
    assert said_of(value).startswith("preference_data")
    assert said_of(value, ReadSettings(take=PreferenceTake.chosen)).startswith("not_chosen")
    assert texts(parse_record(value | {"kto_tag": True}, ReadSettings(take=PreferenceTake.chosen))) == ["i", "o"]
    for pair in ({"prompt": "p"}, {"conversations": [{"from": "human", "value": "p"}]}):
        assert said_of({**pair, "chosen": "a", "rejected": "b"}).startswith("preference_data: chosen and rejected")


# ------------------------------------------------------------------------------------------------ by chance


def wrong_of(records: list[Changed]) -> tuple[Counter[str], list[str]]:
    """How many records were packed or skipped, and those that were packed otherwise than meant."""
    counts: Counter[str] = Counter()
    wrong = []
    for record in records:
        try:
            messages = parse_record(record.value, record.settings).messages
        except Skip as skip:
            counts[skip.reason.value] += 1
            continue
        counts["packed"] += 1
        if not any(is_part(messages, meant, record.systems) for meant in record.may_be):
            wrong.append(f"{record.value}\n  {messages}")
    return counts, wrong


def is_part(messages: list[Any], meant: list[Any], systems: set[str]) -> bool:
    """Whether messages are those that were meant, or whole turns of them: a field with a part was taken away."""
    if messages[0]["role"] == "system" and messages[0]["content"] in systems:
        messages = messages[1:]
    left = iter([(m["role"], m["content"]) for m in meant])
    return all(any(_same(m, other) for other in left) for m in messages)


def _same(message: Any, meant: tuple[str, str]) -> bool:
    role, text = meant
    if role == "user" and message["role"] == "user":  # a question without its `input`, or the input alone
        return message["content"] in (text, *text.split("\n", 1))
    return (message["role"], message["content"]) == meant


def test_2_000_changed_records_are_what_was_meant_or_left_out() -> None:
    chance = random.Random(0)
    counts, wrong = wrong_of([changed(chance) for _ in range(2000)])
    assert wrong == []
    assert counts["packed"] > 500
    assert counts["bad_message"] > 50
    assert counts["no_messages"] > 50


@pytest.mark.slow
def test_300_000_changed_records_are_what_was_meant_or_left_out() -> None:
    chance = random.Random(1)
    for _ in range(300):
        assert wrong_of([changed(chance) for _ in range(1000)])[1] == []


USER, GOOD, BAD = ({"role": r, "content": t} for r, t in (("user", "q"), ("assistant", "good"), ("assistant", "bad")))
CHAT: list[Message] = [USER, GOOD]
CHOSEN = ReadSettings(take=PreferenceTake.chosen)

PREFERENCES: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": "q", "chosen": "good", "rejected": "bad"},
    "TRL, turns": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "TRL, conversations": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "conversations beside their prompt": {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "the good one twice": {"messages": CHAT, "chosen": CHAT, "rejected": [USER, BAD]},
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": "q"}],
        "chosen": {"from": "gpt", "value": "good"},
        "rejected": {"from": "gpt", "value": "bad"},
    },
    "ms-swift": {"messages": CHAT, "rejected_response": "bad"},
    "ms-swift, messages": {"messages": CHAT, "rejected_messages": [USER, BAD]},
    "KTO": {"messages": CHAT, "label": True},
    "KTO, LLaMA-Factory": {"messages": CHAT, "kto_tag": True},
    "KTO, TRL": {"prompt": [USER], "completion": [GOOD], "label": True},
}


@pytest.mark.parametrize("form", PREFERENCES)
def test_each_form_is_refused_by_name_or_its_good_side_is_taken(form: str) -> None:
    with pytest.raises(Skip, match=r"preference_data: .*source\.take=chosen") as skip:
        parse_record(PREFERENCES[form], ReadSettings())
    assert not skip.value.reason.is_policy  # exit code 3, not a run that lost everything by choice
    record = parse_record(PREFERENCES[form], CHOSEN)
    assert record.messages == CHAT
    assert "bad" not in str(record)


def test_what_is_labelled_false_is_left_out_by_choice() -> None:
    """All six samples of a KTO set were packed, the three rejected answers, too."""
    with pytest.raises(Skip, match="not_chosen: label=False") as skip:
        parse_record({"messages": CHAT, "label": False}, CHOSEN)
    assert skip.value.reason.is_policy


@pytest.mark.parametrize("good", [1.0, "1.0", "True"])
@pytest.mark.parametrize("bad", [0.0, "0.0", "False"])
def test_a_label_is_a_float_where_pandas_made_the_column_one(good: Any, bad: Any) -> None:
    """With one label missing all others are floats: the bad answers were trained."""
    assert parse_record({"messages": CHAT, "label": good}, CHOSEN).messages == CHAT
    for record in ({"messages": CHAT}, {"prompt": "q", "completion": "bad"}):
        with pytest.raises(Skip, match="not_chosen: label="):
            parse_record({**record, "label": bad}, CHOSEN)


@pytest.mark.parametrize("chosen", ["good", " good\n", GOOD, [GOOD]])
@pytest.mark.parametrize("field", ["messages", "prompt"])
def test_a_chosen_answer_that_the_conversation_has_is_trained_once(field: str, chosen: Any) -> None:
    """It was trained twice."""
    record = parse_record({field: CHAT, "chosen": chosen, "rejected": "bad"}, CHOSEN)
    assert [(turn["role"], turn["content"].strip()) for turn in record.messages] == [
        ("user", "q"),
        ("assistant", "good"),
    ]


@pytest.mark.parametrize("last", [{**GOOD, "content": "other"}, {"user": "q", "assistant": "other"}])
def test_turns_that_end_with_another_answer_are_no_prompt(last: Message) -> None:
    """Both answers were trained, although one alone can be right."""
    for settings in (CHOSEN, ReadSettings(take=PreferenceTake.both)):
        with pytest.raises(Skip, match="bad_message: its turns end with another answer than chosen"):
            read_record(
                lambda own: parse_record({"messages": [USER, last], "chosen": "good", "rejected": "bad"}, own), settings
            )


PARTS = [{"type": "text", "text": "good"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]}
EMPTY_SPELLINGS = {"role": None, "from": "gpt", "content": None, "value": "good"}


@pytest.mark.parametrize(
    ("last", "chosen"),
    [
        ({**GOOD, "tool_calls": []}, "good"),
        ({**GOOD, "tool_calls": None}, GOOD),
        ({**GOOD, "content": PARTS}, "good"),
        (GOOD, {**GOOD, "content": PARTS}),
        ({"user": "q", "assistant": "good"}, "good"),
        (EMPTY_SPELLINGS, "good"),
        ({**EMPTY_SPELLINGS, "role": ""}, GOOD),
        ({"role": "assistant", "content": None, "value": "good"}, "good"),
        ({**CALL, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, CALL),
        ({"from": "function_call", "value": '{"name": "f", "arguments": {}}'},) * 2,
    ],
)
def test_the_same_answer_in_another_spelling_is_trained_once(last: Message, chosen: Any) -> None:
    """It was refused as another answer, or was trained twice."""
    record = {"messages": [last] if "user" in last else [USER, last], "chosen": chosen, "rejected": "bad"}
    one = parse_record({"prompt": "q", "chosen": chosen, "rejected": "bad"}, CHOSEN).messages
    assert parse_record(record, CHOSEN).messages == one
    pair = read_record(lambda own: parse_record(record, own), ReadSettings(take=PreferenceTake.both))
    assert (pair.messages, pair.rejected) == (one, [USER, BAD])


@pytest.mark.parametrize("role", [None, ""])
def test_whole_conversations_with_an_empty_role_have_their_prompt_once(role: str | None) -> None:
    asked = {"role": role, "from": "human", "value": "q"}
    record = {"prompt": [asked], "chosen": [asked, GOOD], "rejected": [asked, BAD]}
    assert [turn["content"] for turn in parse_record(record, CHOSEN).messages] == ["q", "good"]


def test_an_answer_keeps_the_thoughts_and_weights_that_the_conversation_has_of_it() -> None:
    """They were lost in silence; what the chosen answer says itself stays."""
    more = {"reasoning_content": "hm", "loss": False}
    for chosen in ("good", GOOD, [GOOD]):
        record = {"messages": [USER, {**GOOD, **more}], "chosen": chosen, "rejected": "bad"}
        assert parse_record(record, CHOSEN).messages == [USER, {**GOOD, **more}]
    own = {**GOOD, "thinking": "oh", "weight": 2}
    twice = {"messages": [USER, {**GOOD, **more}], "chosen": own, "rejected": "bad"}
    assert parse_record(twice, CHOSEN).messages[1:] == [own]


@pytest.mark.parametrize(
    ("turns", "chosen", "before"),
    [
        ([USER, {**GOOD, "content": "step"}, GOOD], [GOOD], [USER, {**GOOD, "content": "step"}]),
        (CHAT, CHAT, [USER]),
        ([USER, {**GOOD, "content": "step"}], [USER, {**GOOD, "content": "step"}, GOOD], None),
    ],
)
def test_both_sides_of_a_pair_have_one_prompt(turns: Any, chosen: Any, before: Any) -> None:
    """Only the chosen answer is looked for: the turn before it was "another answer" on the rejected side."""
    record: dict[str, Any] = {"messages": turns, "chosen": chosen, "rejected": "bad"}
    pair = read_record(lambda own: parse_record(record, own), ReadSettings(take=PreferenceTake.both))
    assert pair.messages == parse_record(record, CHOSEN).messages
    assert pair.rejected == [*(before or turns), BAD]


def test_a_labelled_completion_goes_on_where_its_prompt_ends() -> None:
    """It was "another answer than chosen", in a record that has no `chosen`."""
    record: dict[str, Any] = {"prompt": CHAT, "completion": [{**GOOD, "content": "more"}], "label": True}
    assert texts(parse_record(record, CHOSEN)) == ["q", "good", "more"]


def test_a_chosen_turn_that_is_no_object_is_named() -> None:
    """It ended the run, after an answer that says as little."""
    with pytest.raises(Skip, match="message 2 is a NoneType"):
        parse_record({"messages": [USER, {**GOOD, "content": None}], "chosen": [None], "rejected": "bad"}, CHOSEN)


def test_questions_with_their_answers_go_on_with_such_a_pair() -> None:
    first, last = {"user": "p", "assistant": "o"}, {"user": "q", "assistant": "good"}
    record = {"messages": [first], "chosen": [last], "rejected": [{**last, "assistant": "bad"}]}
    assert texts(parse_record(record, CHOSEN)) == ["p", "o", "q", "good"]
    assert texts(parse_record({**record, "messages": [first, last]}, CHOSEN)) == ["p", "o", "q", "good"]


def test_a_prompt_may_end_with_a_call_whose_result_is_chosen() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {}}]}
    result = {"role": "tool", "content": "1"}
    record = parse_record({"prompt": [USER, call], "chosen": [result, GOOD], "rejected": [result, BAD]}, CHOSEN)
    assert [turn["role"] for turn in record.messages] == ["user", "assistant", "tool", "assistant"]


def test_an_answer_without_its_prompt_is_no_sample() -> None:
    with pytest.raises(Skip, match="bad_message: the chosen answer has no prompt"):
        parse_record({"chosen": "\n\nHuman: q\n\nAssistant: good", "rejected": "x"}, CHOSEN)


@pytest.mark.parametrize("more", [{"label": "cat"}, {"label": 3}, {"label": None}, {"rejected": "x"}, {"chosen": True}])
def test_other_fields_of_those_names_are_fields(more: dict[str, Any]) -> None:
    assert parse_record({"messages": CHAT, **more}, ReadSettings()).fields == more


def test_alpaca_by_a_meta_file() -> None:
    columns = (("prompt", "instruction"), ("query", "input"))
    rows = RowSettings("", (*columns, ("response", "output")))
    value = {"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"}
    assert parse_row(value, RowSettings("", columns), CHOSEN).messages == CHAT
    assert parse_row({**value, "instruction": [USER]}, rows, CHOSEN).messages == CHAT
    earlier = {"instruction": None, "input": "q", "output": "good", "history": [["a", "b"]]}
    assert texts(parse_row(earlier, rows, AUTO)) == ["a", "b", "q", "good"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"input": 5}, "its query is empty or of another form: '5'"),
        ({"input": 0}, "its query is empty or of another form: '0'"),
        ({"input": ["a", "b"]}, "its query is empty or of another form"),
        ({"input": {"x": "a"}}, "its query is empty or of another form"),
        ({"instruction": ""}, "its prompt is empty or of another form: ''"),
        ({"instruction": None}, "its prompt is empty or of another form: 'None'"),
        ({"instruction": 42}, "its prompt is empty or of another form: '42'"),
        ({"instruction": 42, "input": "q", "output": None}, "its prompt is empty or of another form: '42'"),
        ({"history": "[]"}, "its history is empty or of another form"),
        ({"history": '[["q", "a"]]'}, "its history is empty or of another form"),
        ({"history": ["q", "a"]}, "its history is empty or of another form"),
        ({"history": [["q", "a", "b"]]}, "its history is empty or of another form"),
        ({"history": 0.5}, "its history is empty or of another form: '0.5'"),
    ],
)
def test_alpaca_by_a_meta_file_loses_no_text(more: dict[str, Any], said: str) -> None:
    """The answer was trained without its input, after an empty question, or after turns of one letter."""
    columns = {"history": "history", "prompt": "instruction", "query": "input", "response": "output"}
    value = {"instruction": "q", "input": "", "output": "a", **more}
    with pytest.raises(Skip) as skip:
        parse_row(value, RowSettings("", tuple(columns.items())), AUTO)
    assert str(skip.value).startswith("bad_message")
    assert said in str(skip.value)

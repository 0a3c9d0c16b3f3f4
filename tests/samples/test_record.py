"""Which JSON shapes are understood, and as what. A shape read wrongly would train on the wrong text."""

import json
from typing import Any

import pytest

from energon_pack.samples.media_parts import find_media_parts
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.sample import Part
from energon_pack.samples.settings import Columns, ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


@pytest.mark.parametrize(
    "value",
    [
        {"messages": TURNS},
        {"conversations": TURNS},
        {"texts": TURNS},
        TURNS,
        {"texts": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, TURNS[1]]},
        {"texts": {"prompts": ["hi"], "captions": ["hello"]}},
        {"prompts": ["hi"], "captions": ["hello"]},
        {"prompts": [["hi"]], "captions": [["hello"]]},
        {"question": "hi", "answer": "hello"},
        {"context": "hi", "answers": ["hello", "hey"]},
        {"messages": [{"from": "human", "value": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"messages": None, "texts": TURNS},  # an empty field does not hide a full one
    ],
)
def test_shapes_that_mean_the_same(value: object) -> None:
    assert parse_record(value, ReadSettings()).messages == TURNS


@pytest.mark.parametrize("key", ["messages", "conversations", "texts", "turns", "mine"])
def test_a_conversation_may_be_json_in_a_text(key: str) -> None:
    """As a cell of a table has it: "messages are a str, not a list". Media may be listed so, too."""
    own = ReadSettings(messages_key="mine") if key == "mine" else ReadSettings()
    assert parse_record({key: f" {json.dumps(TURNS)}"}, own).messages == TURNS
    renamed = ReadSettings(columns=Columns(messages=key, role="who", images="pics"))
    turns = json.dumps([{"who": turn["role"], "content": turn["content"]} for turn in TURNS])
    line = {key: turns, "pics": '["a.jpg", "b.jpg"]', "videos": "[]"}
    record = parse_row(line, RowSettings("."), renamed)
    assert (record.messages, record.listed_media) == (TURNS, ["a.jpg", "b.jpg"])
    with pytest.raises(Skip, match="bad_message: messages are a str, not a list"):
        parse_record({"messages": "[hi] hello"}, ReadSettings())


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("usr", "message 1 has the role 'usr': did you mean user? known are system, developer, user, assistant, tool"),
        ("Assistant", "message 1 has the role 'Assistant': did you mean assistant? known are system, "),
        ("narrator", "message 1 has the role 'narrator': known are system, developer, user, assistant, tool, human, "),
        (7, "message 1 has the role 7: known are system, developer, user"),
    ],
)
def test_an_unknown_role_names_those_that_are_known(role: object, said: str) -> None:
    with pytest.raises(Skip) as skip:
        parse_record({"messages": [TURNS[0], {"role": role, "content": "a"}, TURNS[1]]}, ReadSettings())
    assert skip.value.detail.startswith(said)
    assert skip.value.detail.endswith("source.roles.user, .assistant, .system and .tool take others")


def test_precedence_of_fields() -> None:
    other = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    value = {"texts": other, "messages": TURNS, "mine": other}
    assert parse_record(value, ReadSettings(messages_key="messages")).messages == TURNS
    assert parse_record(value, ReadSettings(messages_key="mine")).messages == other


@pytest.mark.parametrize("value", [{"messages": TURNS}, {"caption": "a cat"}, {"mine": None, "texts": TURNS}])
def test_a_messages_key_that_is_not_there_is_no_other_field(value: object) -> None:
    """A misspelled one packed whatever else looked like a conversation."""
    with pytest.raises(Skip, match=r"no_messages: source\.messages_key=mine names no field of it"):
        parse_record(value, ReadSettings(messages_key="mine"))
    assert parse_record(TURNS, ReadSettings(messages_key="mine")).messages == TURNS  # nothing but a conversation


def test_fields_of_a_record() -> None:
    """A caption gets the prompt of the settings, a system text is the first message, other fields travel along."""
    record = parse_record({"caption": "a cat"}, ReadSettings(caption_prompt="Describe."))
    assert [m["content"] for m in record.messages] == ["Describe.", "a cat"]
    record = parse_record({"messages": TURNS, "system": "Be brief.", "id": 7}, ReadSettings())
    assert record.messages[0] == {"role": "system", "content": "Be brief."}
    assert record.fields == {"id": 7}
    record = parse_record({"question": "hi", "answers": ["hello", "hey"]}, ReadSettings())
    assert record.fields == {"answers": ["hello", "hey"]}


def test_roles_and_keys_of_messages() -> None:
    turns = [
        {"from": "human", "value": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "weather"}]},
        {"from": "observation", "value": "{}"},
        {"from": "bot", "value": "sunny", "loss": False},
    ]
    messages = parse_record({"messages": turns, "tools": '[{"name": "weather"}]'}, ReadSettings())
    assert [m["role"] for m in messages.messages] == ["user", "assistant", "tool", "assistant"]
    calls = [{"type": "function", "function": {"name": "weather", "arguments": {}}}]
    assert messages.messages[1] == {"role": "assistant", "content": "", "tool_calls": calls}
    assert messages.messages[3]["loss"] is False
    assert messages.tools == [{"type": "function", "function": {"name": "weather"}}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("hi", Reason.NOT_AN_OBJECT),
        ({}, Reason.NO_MESSAGES),
        ({"texts": []}, Reason.NO_MESSAGES),
        ({"texts": "hi"}, Reason.BAD_MESSAGE),
        ({"texts": {"prompts": [], "captions": []}}, Reason.NO_MESSAGES),
        ({"prompts": ["a", "b"], "captions": ["c"]}, Reason.BAD_MESSAGE),
        ({"texts": [TURNS[0]]}, Reason.NO_ASSISTANT_TURN),
        ({"texts": [{"role": "critic", "content": "x"}, TURNS[1]]}, Reason.BAD_MESSAGE),
        ({"texts": [{"role": "user", "content": 42}, TURNS[1]]}, Reason.BAD_MESSAGE),
        ({"texts": [{"role": "user", "content": None}, TURNS[1]]}, Reason.BAD_MESSAGE),
        ({"texts": [{"role": ["user"], "content": "x"}, TURNS[1]]}, Reason.BAD_MESSAGE),
        ({"texts": [{"role": "user", "content": [{"type": "smell"}]}, TURNS[1]]}, Reason.BAD_MESSAGE),
        ({"texts": TURNS, "tools": {"name": "f"}}, Reason.BAD_MESSAGE),
        ({"texts": TURNS, "name": [1]}, Reason.MISSING_MEDIA),
    ],
)
def test_what_is_refused(value: object, reason: Reason) -> None:
    with pytest.raises(Skip) as skip:
        parse_record(value, ReadSettings())
    assert skip.value.reason is reason


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a": 1}{"a": 2}',
        b'{"a": 1}\0\0',
        '{"a": "中"}'.encode("gbk"),
        b'"\\ud83d"',  # half a surrogate pair as an escape
        b'"\xed\xa0\xbd"',  # and as bytes
        b"[" * 100_000,
    ],
)
def test_broken_json_costs_its_own_sample(raw: bytes) -> None:
    with pytest.raises(Skip) as skip:
        parse_sample_json(raw)
    assert skip.value.reason is Reason.INVALID_JSON


def test_numbers_that_json_has_not_become_null_and_encodings_are_known() -> None:
    raw = b'{"a": NaN, "b": [-Infinity, 1e999, 1.5, 7]}'
    assert parse_sample_json(raw) == {"a": None, "b": [None, None, 1.5, 7]}
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        assert parse_sample_json('{"a": "中 😀"}'.encode(encoding)) == {"a": "中 😀"}
        assert parse_sample_json(json.dumps({"a": "😀"}).encode(encoding)) == {"a": "😀"}  # as a pair of escapes


PARTS = [Part("0.jpg", 0, 1), Part("1.png", 1, 1), Part("note", 2, 1)]


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        (None, ["0.jpg", "1.png"]),  # all that look like media, in the tar's order
        (["1.png", "0.jpg"], ["1.png", "0.jpg"]),
        (["dir/k.1.png", "k.0.jpg"], ["1.png", "0.jpg"]),
        (["png"], ["1.png"]),
        (["note"], ["note"]),  # listed, so content decides what it is
        (["0.jpg", "0.jpg"], ["0.jpg", "0.jpg"]),
    ],
)
def test_media_are_found_by_their_names(listed: list[str] | None, chosen: list[str]) -> None:
    record = parse_record({"messages": TURNS, "name": listed}, ReadSettings())
    assert [part.name for part in find_media_parts(record, "dir/k", PARTS)] == chosen


def test_a_name_that_is_no_file_is_a_field() -> None:
    record = parse_record({"messages": TURNS, "name": "alpaca_1"}, ReadSettings())
    assert (record.listed_media, record.fields) == (None, {"name": "alpaca_1"})
    assert parse_record({"messages": TURNS, "name": "jpg"}, ReadSettings()).listed_media == ["jpg"]


def asked(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}, TURNS[1]], **fields}


LINK = [Part("0.jpg", 0, -1)]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"messages": TURNS, "name": ["2.jpg"]}, PARTS),
        ({"messages": TURNS, "name": ["gif"]}, PARTS),
        ({"messages": TURNS, "media": "image"}, []),
        ({"messages": TURNS}, LINK),  # it has no bytes to pack
        ({"messages": TURNS, "name": ["0.jpg"]}, LINK),
        (asked({"type": "image", "image": "1.png"}, {"type": "image"}), PARTS),  # some named and some not: no order
        # a string may speak of `<image>`; a part of that type stands for an image that has to be there
        (asked({"type": "image"}, media="text"), []),
        (asked({"type": "video", "video": ["f0.jpg", "f1.jpg"]}, media="text"), []),
    ],
)
def test_missing_media_are_not_guessed(value: object, parts: list[Part]) -> None:
    with pytest.raises(Skip) as skip:
        find_media_parts(parse_record(value, ReadSettings()), "k", parts)
    assert skip.value.reason is Reason.MISSING_MEDIA


def test_names_in_structured_content_order_the_media() -> None:
    value = asked({"type": "image", "image": "1.png"}, {"type": "image", "image": "0.jpg"})
    assert [part.name for part in find_media_parts(parse_record(value, ReadSettings()), "k", PARTS)] == [
        "1.png",
        "0.jpg",
    ]
    assert find_media_parts(parse_record({"messages": TURNS}, ReadSettings()), "k", []) == []


def test_a_system_prompt_is_not_lost_in_silence() -> None:
    """It was left out, and the answers were trained without it."""
    value = {"system": {"role": "system", "content": "s"}, "messages": [{"role": "assistant", "content": "a"}] * 2}
    with pytest.raises(Skip, match="bad_message: system is no text"):
        parse_record(value, ReadSettings())
    turns = [{"role": "system", "content": "Be kind."}, *TURNS]
    assert parse_record({"messages": turns, "system": "Be kind."}, ReadSettings()).messages[0]["content"] == "Be kind."
    with pytest.raises(Skip, match="another system turn"):
        parse_record({"messages": turns, "system": "Be brief."}, ReadSettings())


def test_reasons_keep_their_places() -> None:
    """A state of a stream has counters in this order: with a reason between two, older ones would count for others."""
    first = "missing_json invalid_json not_an_object no_messages bad_message no_assistant_turn preference_data"
    media = "unsupported_media missing_media unreadable_media media_unread placeholder_mismatch"
    tar = "dotted_key duplicate_key non_adjacent_member control_token processor_error truncated_tar"
    policies = "overlong over_cap nothing_trained cut_off not_in_flavor not_chosen left_out_by_map not_drawn map_error"
    known = f"{first} {media} {tar} {policies}".split()
    assert [reason.value for reason in Reason][: len(known)] == known

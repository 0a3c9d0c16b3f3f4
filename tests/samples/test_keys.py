"""No key of a record is passed over in silence: it is read, harmless, refused by name, or listed."""

from typing import Any

import pytest

from energon_pack.lengths.worker import LengthsRow, set_warnings
from energon_pack.samples.conversation import ReadSample
from energon_pack.samples.keys import _FOREIGN_KEYS, _HARMLESS_KEYS, _KNOWN_KEYS, _READ_KEYS, OPTION_KEYS, unknown_keys
from energon_pack.samples.media.medium import RATE_KEYS, SETTING_KEYS
from energon_pack.samples.preference import PREFERENCE_KEYS
from energon_pack.samples.raw_record import parse_sample_json
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.samples.unread_media import refuse_unread_media
from energon_pack.samples.weights import TURN_WEIGHT_KEYS, sample_weight, turn_weight

ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "a"}]}


def record(
    sample: dict[str, Any], turn: dict[str, Any], part: dict[str, Any], call: dict[str, Any] | None = None
) -> dict[str, Any]:
    answer = {**ANSWER, "content": [{"type": "text", "text": "a", **part}], **turn}
    if call is not None:
        answer["tool_calls"] = [{"type": "function", "function": {"name": "tide_at", "arguments": {}}, **call}]
    return {"messages": [{"role": "user", "content": "q"}, answer], **sample}


def test_each_key_has_one_place() -> None:
    for read, harmless, elsewhere in zip(_READ_KEYS, _HARMLESS_KEYS, _FOREIGN_KEYS, strict=True):
        assert not read & harmless.keys()
        assert not (read | harmless.keys()) & elsewhere.keys()
        assert all(harmless.values())
        assert all(key.meaning for key in elsewhere.values())
    assert {*OPTION_KEYS} <= _READ_KEYS[0]
    assert _READ_KEYS[1] >= TURN_WEIGHT_KEYS


def test_settings_of_media_that_are_read_are_known() -> None:
    """`raw_fps` was read, and listed as a key that nothing reads."""
    assert {*SETTING_KEYS} <= _READ_KEYS[2]
    assert {"fps", *RATE_KEYS} <= _READ_KEYS[0]


def test_unknown_keys_are_named_with_their_place() -> None:
    value = record({"mood": 1, "id": 7}, {"temper": "x", "loss": True}, {"tint": [], "min_pixels": 4})
    found = {"mood": [1], "messages[].temper": ["x"], "content[].tint": [[]]}
    assert parse_record(value, ReadSettings()).unknown == found
    assert unknown_keys({"mood": None, "messages": 3}, ["messages"]) == {}
    assert unknown_keys({"x" * 5000: 1}, []) == {"x" * 60: [1]}


def test_unknown_keys_of_calls_are_named_in_every_spelling() -> None:
    text = '{"name": "tide_at", "arguments": {}, "mood": 1}'
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "mood": 1}, "id": "c"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "args": {"x": 1}, "mood": 1, "index": 0}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": '[{"function": {"name": "f"}, "mood": 1, "status": "done"}]',
        },
        {"role": "assistant", "content": "", "function_call": {"name": "f", "mood": 1}},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}, "mood": 1}]},
        {"role": "assistant", "content": [{"type": "tool_call", "name": "f", "args": {}, "mood": 1}]},
        {"role": "assistant", "content": [{"type": "tool_call", "value": text}]},
        {"role": "tool_call", "content": text},
        {"from": "function_call", "value": f"<tool_call>{text}</tool_call>"},
    ]
    for turn in turns:
        assert parse_record([{"role": "user", "content": "q"}, turn], ReadSettings()).unknown == {"calls[].mood": [1]}


def test_a_file_that_a_call_names_is_no_medium_of_the_sample() -> None:
    call = {"function": {"name": "draw", "arguments": {"size": 3}}, "file": "out.png"}
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    read = parse_record(turns, ReadSettings())
    assert read.unknown == {"calls[].file": ["out.png"]}
    refuse_unread_media(read, [], [], lambda name: "image")


def test_a_sample_reports_its_first_unknown_keys() -> None:
    """Names of people as keys would fill the report."""
    row, names = LengthsRow("a", "", 0, 0, [], [], None, 0, 0, 0), [f"key {number}" for number in range(100)]
    set_warnings(row, ReadSample(b"", [], [], None, {}, [], [], [], False, [], unknown=names), ReadSettings())
    assert row.unknown_keys == names[:8]


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [(place, key, 0.5) for place, keys in enumerate(_FOREIGN_KEYS) for key in keys]
    + [(1, "eot", False), (1, "ipython", True), (2, "train", False)],
)
def test_what_means_something_elsewhere_costs_the_sample(place: int, key: str, value: Any) -> None:
    places: list[dict[str, Any]] = [{}, {}, {}, {}]
    places[place][key] = value
    with pytest.raises(Skip, match=rf"^(bad_message|unsupported_media): .*{key} is"):
        parse_record(record(*places), ReadSettings())


def test_it_may_have_a_value_that_says_nothing() -> None:
    value = record({}, {"eot": True, "ipython": False, "refusal": None}, {"train": True, "weight": 1})
    assert parse_record(value, ReadSettings()).unknown == {}


#: keys of samples, turns and parts that seven tools read: research, November 2026
OF_TOOLS = (
    "messages rejected_messages rejected_response rejected_images positive_messages negative_messages tools label"
    " channel images videos audios objects margin mm_processor_kwargs chat_template_kwargs prompt completion chosen"
    " rejected completion_mask assistant_masks input_ids system kto_tag segments functions parallel_tool_calls weight",
    "role content from value loss loss_scale loss_weight weight train training masked mask loss_mask trainable ipython"
    " eot train_detail message_field_training_detail tool_calls function_call tool_call_id name refusal audio reasoning"
    " thinking reasoning_content",
    "type text value index image video image_url video_url min_pixels max_pixels resized_height resized_width fps"
    " nframes min_frames max_frames video_start video_end sample_fps total_pixels train weight cache_control detail",
    "id type function name arguments index status call_id args input cache_control caller",
)


def test_no_key_of_seven_tools_is_unknown() -> None:
    for place, names in enumerate(OF_TOOLS):
        known = _KNOWN_KEYS[place] | _FOREIGN_KEYS[place].keys() | PREFERENCE_KEYS  # a label that is no label is listed
        assert [name for name in names.split() if name not in known] == []


def test_what_img2dataset_writes_beside_a_caption_is_known() -> None:
    """The best-known tars had a line of keys that nothing reads, in which a misspelt one was not seen."""
    names = "caption url key status error_message width height original_width original_height exif sha256"
    names += (
        " uid md5 NSFW similarity aesthetic watermark_score face_bboxes clip_l14_similarity_score"  # LAION, DataComp
    )
    assert unknown_keys(dict.fromkeys(names.split(), "x"), ["caption"]) == {}


@pytest.mark.parametrize("value", [-0.1, -1, "1", [1], 10**400, 1e7, float("nan"), float("inf")])
def test_what_is_no_weight_is_a_bad_message(value: Any) -> None:
    """10**400 is valid JSON, and no float: it ended the run; 1e39 would be infinite as float32."""
    with pytest.raises(Skip) as told:
        sample_weight({"weight": value})
    assert told.value.reason is Reason.BAD_MESSAGE
    assert "the sample's weight is" in told.value.detail


def weights_of(text: str) -> list[float]:
    """Return the weights of the sample and of its turns."""
    read = parse_record(parse_sample_json(text.encode()), ReadSettings())
    return [sample_weight(read.fields), *(turn_weight(message, True) for message in read.messages)]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "text",
    [
        '{"messages": [TURNS], "weight": NUMBER}',
        '{"text": "a", "weight": NUMBER}',
        *(f'{{"messages": [QUESTION, {{ANSWER, "{key}": NUMBER}}]}}' for key in sorted(TURN_WEIGHT_KEYS)),
        '[QUESTION, {ANSWER, "weight": NUMBER}]',
        '{"conversations": "[QUESTION_, {ANSWER_, \\"loss_scale\\": NUMBER}]"}',
        '{"messages": [QUESTION, {ANSWER, "tool_calls": [{"function": {"name": "f"}, "weight": NUMBER}]}]}',
        '{"messages": [QUESTION, {"role": "assistant", "content": [{"type": "text", "text": "a", "weight": NUMBER}]}]}',
    ],
)
def test_what_is_no_number_is_no_weight(text: str, number: str) -> None:
    """A sample, or a turn, of the weight NaN was trained with the weight 1."""
    question, answer = '{"role": "user", "content": "q"}', '"role": "assistant", "content": "a"'
    text = text.replace("TURNS", f"{question}, {{{answer}}}")
    for name, value in (("QUESTION", question), ("ANSWER", answer)):
        text = text.replace(f"{name}_", value.replace('"', '\\"')).replace(name, value)
    told = number if number != "1e999" else "Infinity"
    with pytest.raises(Skip, match=rf"bad_message: .* is '?{told}"):
        weights_of(text.replace("NUMBER", number))


def test_numbers_that_are_no_weights_stay_null() -> None:
    """A pack with NaN would be refused by a strict reader."""
    text = b'{"weight": 0.5, "meta": {"loss": NaN, "l": [NaN, {"weight": 1e999}]}, "score": Infinity, "rows": [[NaN]]}'
    meta = {"loss": None, "l": [None, {"weight": None}]}
    assert parse_sample_json(text) == {"weight": 0.5, "meta": meta, "score": None, "rows": [[None]]}


def test_what_is_a_weight() -> None:
    values = [None, 0, 0.5, True, 1_000_000]
    assert [sample_weight({"weight": value}) for value in values] == [1.0, 0.0, 0.5, 1.0, 1_000_000.0]
    assert sample_weight({}) == 1.0

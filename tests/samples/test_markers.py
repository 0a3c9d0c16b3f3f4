"""Places of media in another tool's spelling: an image stands where the text has its marker, or the sample is named."""

from typing import Any

import pytest

from energon_pack.samples.conversation import placed_record
from energon_pack.samples.lost_media import kinds_without_medium
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row


def asked(*questions: str) -> list[dict[str, Any]]:
    return [turn for q in questions for turn in ({"role": "user", "content": q}, {"role": "assistant", "content": "a"})]


def placed(text: str, *kinds: str) -> tuple[str, list[int], bool]:
    messages, order, put_in = place_media(asked(text), kinds)
    assert place_media(messages, [kinds[number] for number in order]) == (messages, [*range(len(kinds))], put_in)
    return messages[0]["content"], order, put_in


@pytest.mark.parametrize(
    "marker",
    [
        "<image_1>", "<image 1>", "<image1>", "<image-1>", "<|image_1|>", "<image_0>", "<image_00>", "<ImageHere>",
        "<image_placeholder>", "<IMAGE>", "<|image|>", "<img>", "<Image>", "<image/>",
        "<|vision_start|><|image_pad|><|vision_end|>", "(<image>./</image>)", "<image>./</image>", "<image></image>",
    ],
)  # fmt: skip
def test_one_image_stands_where_its_marker_stands(marker: str) -> None:
    """All stayed as letters, with the image in front."""
    assert placed(f"{marker}\nWhat is it?", "image") == ("<image>\nWhat is it?", [0], False)
    assert placed(f"What is it?\n{marker}", "image") == ("What is it?\n<image>", [0], False)


def test_numbers_say_which_image_stands_where() -> None:
    """Both images went to the front, and the question no longer said which was which."""
    compare = "Compare <image> with <image>."
    assert placed("Compare <image_1> with <image_2>.", "image", "image") == (compare, [0, 1], False)
    assert placed("Compare <|image_2|> with <|image_1|>.", "image", "image") == (compare, [1, 0], False)
    assert placed("<|audio_1|><|image_2|> <|image_1|>", "image", "image", "audio") == (
        "<audio><image> <image>", [2, 1, 0], False,
    )  # fmt: skip
    messages, order, _ = place_media(asked("A: <image 1>", "B: <image 2>"), ["image", "image"])
    assert ([messages[0]["content"], messages[2]["content"]], order) == (["A: <image>", "B: <image>"], [0, 1])


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Compare <image_1> with <image_3>.", ["image", "image"]),
        ("Compare <image_2> with <image_3>.", ["image", "image"]),
        ("What is in <image_1>?", ["image", "image"]),
        ("What is in <image_1>? Look at <image_1>.", ["image"]),
        ("What is in <image_1>? Look at <image 2>.", ["image", "image"]),  # two spellings
        ("<ImageHere>What?", ["image", "image"]),
        ("<image_1>What?", ["image", "audio"]),  # where is the sound?
        ("<image_1>a.png</image_1>What?", ["image"]),
        ("<image>a cat</image>What?", ["image"]),
        ("<audio>a wav</audio>What?", ["audio"]),
    ],
)
def test_markers_that_say_something_else_cost_the_sample(text: str, kinds: list[str]) -> None:
    with pytest.raises(Skip, match=r"placeholder_mismatch: .*<(image|ImageHere|audio)") as skip:
        place_media(asked(text), kinds)
    assert "source.map can write <" in str(skip.value)


@pytest.mark.parametrize(
    "text",
    [
        "Write an <img> tag for this picture.",
        "Which props does <Image> of React take? And <image />?",
        "What does `<image_1>` mean?\n```\n<ImageHere>\n```",
        "Which <Image>tag</Image> is it?",
    ],
)
def test_markup_and_code_are_no_markers(text: str) -> None:
    messages, order, put_in = place_media(asked(text), ["image"])
    assert (messages[0]["content"], order, put_in) == (f"<image>{text}", [0], True)


def test_markers_beside_placeholders_or_without_media_are_text() -> None:
    assert placed("<image><image>Compare <image_1> with <image_2>.", "image", "image")[0].endswith("<image_2>.")
    for text in ("What does <image_1> mean?", "Is (<image>./</image>) MiniCPM's?", "<image></image>", "<ImageHere>"):
        assert place_media(asked(text), [])[0][0]["content"] == text
    assert place_media(asked("<image_1>"), ["video"])[0][0]["content"] == "<video><image_1>"


def test_a_placeholder_of_minicpm_may_have_lost_its_image() -> None:
    assert kinds_without_medium(asked("(<image>./</image>)\nWhat?"), []) == ["image"]
    record = parse_record({"messages": asked("(<image>./</image>)\nWhat?"), "images": []}, ReadSettings())
    with pytest.raises(Skip, match="missing_media: <image> stands in a question, and images is empty"):
        placed_record(record, [])


def test_frames_take_the_whole_place_of_their_video() -> None:
    value = {"messages": asked("(<video>./</video>)\nWhat?"), "videos": [["0.png", "1.png"]]}
    record = parse_row(value, RowSettings("/"), ReadSettings())
    assert placed_record(record, ["image", "image"]).messages[0]["content"] == "<image><image>\nWhat?"


def test_numbers_in_another_order_leave_no_list_of_a_field_behind() -> None:
    """`patch_positions` would have been given to the other image."""
    record = Record(asked("<image_2><image_1>"), fields={"patch_positions": ["0.npy", "1.npy"]})
    with pytest.raises(Skip, match="placeholder_mismatch: the text numbers its media in another order than patch_pos"):
        placed_record(record, ["image", "image"])
    record.messages = asked("<image_1><image_2>")
    assert placed_record(record, ["image", "image"]).order == [0, 1]


def test_100_000_markers_are_read_once_each() -> None:
    with pytest.raises(Skip, match="placeholder_mismatch"):
        place_media(asked("<ImageHere>" * 100_000), ["image"])
    assert place_media(asked("x <img>" * 100_000 + "</x>" * 100_000), ["image"])[2]
    assert place_media(asked("`<img>`" * 100_000), ["image"])[2]


# -------------------------------------------------------------------------------------- a text beside one medium


@pytest.mark.parametrize("key", ["image", "images", "video", "audio"])
def test_a_text_beside_one_medium_is_its_caption(key: str) -> None:
    """Captions under `text` were refused (`placeholder_mismatch`), and no setting read them."""
    record = parse_row({key: "a.bin", "text": " A cat. "}, RowSettings("/"), ReadSettings(caption_prompt="What is it?"))
    kind = key.removesuffix("s")
    placed = placed_record(record, [kind])
    assert [(m["role"], m["content"]) for m in placed.messages] == [
        ("user", f"<{kind}>What is it?"),
        ("assistant", "A cat."),
    ]
    assert placed.record.is_caption


@pytest.mark.parametrize(
    "text",
    [
        '{"question": "q", "chosen": "a", "rejected": "b"}',
        "[{'role': 'user', 'content': 'q'}]",
        "<|im_start|>user\nq<|im_end|>",
        "USER: q ASSISTANT: a",
        "### Human: q\n### Assistant: a",
        "[INST] q [/INST] a",
    ],
)
def test_a_chat_that_was_written_out_is_no_caption(text: str) -> None:
    record = parse_record({"text": text}, ReadSettings())
    with pytest.raises(
        Skip, match=r"placeholder_mismatch: no placeholder and no user turn for 1 image: source.map can"
    ):
        placed_record(record, ["image"])
    assert placed_record(record, []).messages == [{"role": "document", "content": text}]


def test_other_texts_are_documents_as_before() -> None:
    for text, kinds in (("A <image> cat.", ["image"]), ("A page.", [])):
        [message] = placed_record(parse_record({"text": text}, ReadSettings()), kinds).messages
        assert message == {"role": "document", "content": text}
    marked = placed_record(parse_record({"text": "See <image_1> here."}, ReadSettings()), ["image"])
    assert marked.messages == [{"role": "document", "content": "See <image> here."}]
    for value, kinds in (({"text": "Two."}, ["image", "image"]), ({"text": "s", "system": "x"}, ["image"])):
        with pytest.raises(Skip, match="placeholder_mismatch"):
            placed_record(parse_record(value, ReadSettings()), kinds)

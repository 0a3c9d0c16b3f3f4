"""Places of media in another tool's spelling: an image stands where the text has its marker, or the sample is named."""

from typing import Any

import pytest

from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.media_marks import placeholder_kinds_without_media
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
        "<image_1>", "<image 1>", "<image1>", "<Image-1>", "<|image_1|>", "<image_0>", "<image_00>", "<img_1>",
        "<ImageHere>", "<image_placeholder>", "<IMAGE_TOKEN>", "<|image|>",
        "<|begin_of_image|><|image|><|end_of_image|>",
        "<|vision_start|><|image_pad|><|vision_end|>", "(<image>./</image>)", "<image>./</image>",
    ],
)  # fmt: skip
def test_one_image_stands_where_its_marker_stands(marker: str) -> None:
    """The marker stayed as letters, with the image in front."""
    assert placed(f"{marker}\nWhat is it?", "image") == ("<image>\nWhat is it?", [0], False)
    assert placed(f"What is it?\n{marker}", "image") == ("What is it?\n<image>", [0], False)


def test_numbers_say_which_image_stands_where() -> None:
    """Both images went to the front, and the question no longer said which was which."""
    compare = "Compare <image> with <image>."
    assert placed("Compare <image_1> with <image_2>.", "image", "image") == (compare, [0, 1], False)
    assert placed("<|audio_1|><|image_1|> <|image_2|>", "image", "image", "audio") == (
        "<audio><image> <image>", [2, 0, 1], False,
    )  # fmt: skip
    messages, order, _ = place_media(asked("A: <image 1>", "B: <image 2>"), ["image", "image"])
    assert ([messages[0]["content"], messages[2]["content"]], order) == (["A: <image>", "B: <image>"], [0, 1])


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Compare <image_1> with <image_3>.", ["image", "image"]),
        ("Compare <image_2> with <image_1>.", ["image", "image"]),
        ("What is in <image_2>?", ["image", "image"]),
        ("<image_1>\nWhat is in <image_1>?", ["image"]),
        ("<image_1>What?", ["image", "audio"]),
        ("<image_1>\n<ImageHere>", ["image", "image"]),
    ],
)
def test_numbers_that_do_not_count_the_media_in_order_are_names(text: str, kinds: list[str]) -> None:
    """Media would stand where the question speaks of others: they stand in front, and their names are letters."""
    messages, _, put_in = place_media(asked(text), kinds)
    assert (messages[0]["content"], put_in) == ("".join(f"<{kind}>" for kind in kinds) + text, True)


def test_a_name_in_an_answer_is_one_in_its_question() -> None:
    """The answer would speak of an image whose name its question has no more."""
    turns = [{"role": "user", "content": "<image_1>?"}, {"role": "assistant", "content": "<image_1> is red"}]
    assert place_media(turns, ["image"])[0][0]["content"] == "<image><image_1>?"


@pytest.mark.parametrize("answers", [("good", "bad"), ("<image_1> is good", "bad"), ("good", "<image_1> is bad")])
def test_both_sides_of_a_pair_have_their_media_in_one_place(answers: tuple[str, str]) -> None:
    """A name in one answer left the sides with two prompts: `no_pair`."""
    sides = [[{"role": "user", "content": "<image_1>?"}, {"role": "assistant", "content": text}] for text in answers]
    pair = match_placeholders_with_media(Record(sides[0], rejected=sides[1]), ["image"])
    asks = "<image>?" if answers == ("good", "bad") else "<image><image_1>?"
    assert [side[0]["content"] for side in (pair.messages, pair.rejected)] == [asks, asks]


@pytest.mark.parametrize(("text", "kinds"), [("<ImageHere>What?", ["image"] * 2), ("<|image|><|image|>?", ["image"])])
def test_markers_without_numbers_are_as_many_as_the_media(text: str, kinds: list[str]) -> None:
    """A medium would stand at the wrong one of them, as with placeholders."""
    with pytest.raises(Skip, match=r"placeholder_mismatch: \d images? in the text for \d image"):
        place_media(asked(text), kinds)


@pytest.mark.parametrize(
    "text",
    [
        "<img>",
        "Write an <img> tag for this picture.",
        "Explain:\n<IMAGE>\nof this page",
        "Why?\n<Image/>",
        "Which props does <Image> of React take? And <image />?",
        "What does `<image_1>` mean?\n```\n<ImageHere>\n```",
        "Which <image_1>tag</image_1> is it?",
        "<|begin_of_text|>What?",
    ],
)
def test_markup_and_code_are_no_markers(text: str) -> None:
    """A question about HTML would lose the tag that it is about, and the image would stand there."""
    messages, order, put_in = place_media(asked(text), ["image"])
    assert (messages[0]["content"], order, put_in) == (f"<image>{text}", [0], True)


def test_markers_beside_placeholders_or_without_media_are_text() -> None:
    """Samples that are read by their placeholders, or have no media, would lose words."""
    assert placed("<image><image>Compare <image_1> with <image_2>.", "image", "image")[0].endswith("<image_2>.")
    for text in ("What does <image_1> mean?", "Is (<image>./</image>) MiniCPM's?", "<ImageHere>"):
        assert place_media(asked(text), [])[0][0]["content"] == text
    assert place_media(asked("<image_1>"), ["video"])[0][0]["content"] == "<video><image_1>"


def test_a_placeholder_of_minicpm_may_have_lost_its_image() -> None:
    """A question whose image is lost would be trained as text."""
    assert placeholder_kinds_without_media(asked("(<image>./</image>)\nWhat?"), []) == ["image"]
    record = parse_record({"messages": asked("(<image>./</image>)\nWhat?"), "images": []}, ReadSettings())
    with pytest.raises(Skip, match="missing_media: <image> stands in a question, and images is empty"):
        match_placeholders_with_media(record, [])


def test_frames_take_the_whole_place_of_their_video() -> None:
    """The brackets of the marker would stay around the frames."""
    value = {"messages": asked("(<video>./</video>)\nWhat?"), "videos": [["0.png", "1.png"]]}
    record = parse_row(value, RowSettings("/"), ReadSettings())
    assert match_placeholders_with_media(record, ["image", "image"]).messages[0]["content"] == "<image><image>\nWhat?"


def test_100_000_markers_are_read_once_each() -> None:
    """A search that begins anew at each marker would take minutes for one sample."""
    with pytest.raises(Skip, match="placeholder_mismatch"):
        place_media(asked("<ImageHere>" * 100_000), ["image"])
    assert place_media(asked("x <image_1>" * 100_000 + "</x>" * 100_000), ["image"])[2]
    assert place_media(asked("`<image_1>`" * 100_000), ["image"])[2]


# -------------------------------------------------------------------------------------- a text beside one medium


@pytest.mark.parametrize("key", ["image", "images", "video", "audio"])
def test_a_text_beside_one_medium_is_its_caption(key: str) -> None:
    """Captions under `text` were refused (`placeholder_mismatch`), and no setting read them."""
    record = parse_row({key: "a.bin", "text": " A cat. "}, RowSettings("/"), ReadSettings(caption_prompt="What is it?"))
    kind = key.removesuffix("s")
    placed = match_placeholders_with_media(record, [kind])
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
    """A whole chat, with its questions, would be trained as the answer to an image."""
    record = parse_record({"text": text}, ReadSettings())
    with pytest.raises(
        Skip, match=r"placeholder_mismatch: no placeholder and no user turn for 1 image: source.map can"
    ):
        match_placeholders_with_media(record, ["image"])
    assert match_placeholders_with_media(record, []).messages == [{"role": "document", "content": text}]


def test_other_texts_are_documents_as_before() -> None:
    """Documents with pictures would become captions, or samples that are not understood would be guessed at."""
    for text, kinds in (("A <image> cat.", ["image"]), ("A page.", [])):
        [message] = match_placeholders_with_media(parse_record({"text": text}, ReadSettings()), kinds).messages
        assert message == {"role": "document", "content": text}
    marked = match_placeholders_with_media(parse_record({"text": "See <image_1> here."}, ReadSettings()), ["image"])
    assert marked.messages == [{"role": "document", "content": "See <image> here."}]
    for value, kinds in (({"text": "Two."}, ["image", "image"]), ({"text": "s", "system": "x"}, ["image"])):
        with pytest.raises(Skip, match="placeholder_mismatch"):
            match_placeholders_with_media(parse_record(value, ReadSettings()), kinds)

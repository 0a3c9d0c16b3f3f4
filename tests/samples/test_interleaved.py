"""Documents in which texts and pictures take turns: a picture stands where its owner put it, or its place is gone."""

from collections.abc import Collection
from typing import Any

import pytest

from energon_pack.config import PackConfig, plain
from energon_pack.config.naming import content_settings
from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.media_parts import find_document_pictures, is_document_with_named_pictures
from energon_pack.samples.record import Record, parse_record
from energon_pack.samples.settings import MissingMediaPolicy, ReadSettings, SampleType
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row

AUTO = ReadSettings()
REMOVE = ReadSettings(missing_media=MissingMediaPolicy.remove)
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def row(value: Any, settings: ReadSettings = AUTO) -> Record:
    return parse_row(value, RowSettings("/data"), settings)


def document(value: Any, settings: ReadSettings = AUTO, missing: Collection[str] = ()) -> tuple[Any, list[str]]:
    """The text of a document as packs store it, and its pictures; `missing`: pictures that are not there."""

    def find(name: str) -> str:
        if name in missing:
            raise Skip(Reason.MISSING_MEDIA, f"{name!r} is not there")
        return name

    record = row(value, settings)
    if is_document_with_named_pictures(record):
        record, found = find_document_pictures(record, settings.missing_media, find)
        assert found == record.listed_media
    [message] = match_placeholders_with_media(record, ["image"] * len(record.listed_media or ())).messages
    assert message["role"] == "document"
    return message["content"], record.listed_media or []


OBELICS = {
    "texts": [None, "A cat.", None, "A dog.", "Both."],
    "images": ["c.jpg", None, "d.jpg", None, None],
    "metadata": "[null]",
    "general_metadata": "{}",
}
MMC4 = {
    "text_list": ["A cat.", "A dog.", ""],
    "image_info": [
        {"image_name": "d.jpg", "matched_text_index": 1, "matched_sim": 0.3, "raw_url": "http://x/d.jpg"},
        {"image_name": "e.jpg", "matched_text_index": 1, "matched_sim": 0.2, "raw_url": "http://x/e.jpg"},
    ],
    "similarity_matrix": [[0.1, 0.3], [0.1, 0.2]],
    "url": "http://x",
}


@pytest.mark.parametrize(
    ("value", "text", "pictures"),
    [
        (OBELICS, "<image>A cat.<image>A dog.\n\nBoth.", ["c.jpg", "d.jpg"]),
        (MMC4, "A cat. <image><image>A dog.", ["d.jpg", "e.jpg"]),
        ({"texts": ["a", "", None], "images": ["", None, {"bytes": None, "path": "b.jpg"}]}, "a<image>", ["b.jpg"]),
        ({"texts": '["a", null]', "images": '[null, "b.jpg"]'}, "a<image>", ["b.jpg"]),  # a cell of a table
        ({"texts": ["a ", "b", "\nc"], "images": [None, None, None]}, "a b\nc", []),
        ({"texts": ["a", None, "b"], "images": None}, "a\n\nb", []),
        ({"text_list": ["a", None, "b"], "image_info": []}, "a b", []),
        ({"texts": ["a", None, None], "images": [None, "b.jpg", "b.jpg"]}, "a<image><image>", ["b.jpg", "b.jpg"]),
    ],
)
def test_pictures_stand_between_the_texts(value: dict[str, Any], text: str, pictures: list[str]) -> None:
    assert document(value) == (text, pictures)
    assert row(value).unknown == {}


def test_letters_of_a_text_are_no_place_of_a_picture() -> None:
    """A page on HTML spells <image>: joined with the places of pictures, the second would stand in its words."""
    page = {"texts": ["Write <image>.", None, "Done."], "images": [None, "a.jpg", None]}
    content, _ = document(page)
    assert content == [{"type": "text", "text": "Write <image>."}, {"type": "image"}, {"type": "text", "text": "Done."}]
    assert document(page, REMOVE, ["a.jpg"]) == ("Write <image>.\n\nDone.", [])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"texts": ["a", None], "images": [None]}, "bad_message: texts and images are no document: 2 places for texts"),
        ({"texts": ["a", "b"], "images": [None, "b.jpg"]}, "bad_message: .* both have something at place 1"),
        ({"texts": ["a", None], "images": [None, {"path": 3}]}, "bad_message: a picture of a document has no name: 3"),
        ({"texts": [None, " "], "images": ["b.jpg", None]}, "no_messages: the document in texts has no text"),
        ({"text_list": ["a"], "image_info": [{"image_name": "b"}]}, "bad_message: image_info has an image without"),
        (
            {"text_list": ["a"], "image_info": [{"matched_text_index": 1, "image_name": "b"}]},
            "bad_message: image_info has an image without",
        ),
        ({"text_list": ["a"], "image_info": [{"matched_text_index": True}]}, "bad_message: image_info has an image"),
        (
            {"texts": ["a", None, "b"], "images": []},
            "missing_media: a place of texts has no text, and no picture either",
        ),
        ({"texts": ["a", "b"]}, "bad_message: message 0 is a str"),  # turns that lost their roles, perhaps
        (OBELICS | {"messages": TURNS}, "bad_message: it has messages and a document in texts: source.messages_key"),
        (OBELICS | {"question": "q", "answer": "b"}, "bad_message: it can be read as"),
        (OBELICS | {"videos": ["v.mp4"]}, "bad_message: a content part names"),
    ],
)
def test_what_is_no_whole_document_is_named(value: dict[str, Any], said: str) -> None:
    with pytest.raises(Skip, match=said):
        row(value)


def test_settings_that_ask_for_something_else_win() -> None:
    assert row(OBELICS | {"messages": TURNS}, ReadSettings("messages")).messages == TURNS
    assert document(OBELICS | {"messages": TURNS}, ReadSettings("texts"))[1] == ["c.jpg", "d.jpg"]
    assert document(OBELICS, ReadSettings(sample_type=SampleType.document))[1] == ["c.jpg", "d.jpg"]
    with pytest.raises(Skip, match="bad_message: message 0 is a NoneType"):
        row(OBELICS, ReadSettings(sample_type=SampleType.chat))


# --------------------------------------------------------------------------------------- pictures that are missing


@pytest.mark.parametrize(
    ("value", "missing", "text", "pictures"),
    [
        (OBELICS, ["d.jpg"], "<image>A cat.\n\nA dog.\n\nBoth.", ["c.jpg"]),
        (OBELICS, ["c.jpg", "d.jpg"], "A cat.\n\nA dog.\n\nBoth.", []),
        (MMC4, ["d.jpg"], "A cat. <image>A dog.", ["e.jpg"]),
        (MMC4, ["d.jpg", "e.jpg"], "A cat. A dog.", []),
        ({"texts": ["a", None, "b"], "images": [None, None, None]}, [""], "a\n\nb", []),  # a cell that was not loaded
        ({"texts": ["a", None, "b", None], "images": [None, "c", None, "c"]}, ["c"], "a\n\nb", []),
        ({"text_list": ["a"], "image_info": [{"matched_text_index": 0}]}, [""], "a", []),
    ],
)
def test_a_picture_that_is_missing_loses_its_place(
    value: dict[str, Any], missing: list[str], text: str, pictures: list[str]
) -> None:
    assert document(value, REMOVE, missing) == (text, pictures)
    with pytest.raises(Skip, match=r"missing_media: .*source\.missing_media=remove trains the rest"):
        document(value, AUTO, missing)


def test_a_picture_that_can_not_be_read_is_not_missing() -> None:
    """Damaged files would be left out in silence, and so would a folder whose rights are wrong."""

    def find(name: str) -> str:
        raise Skip(Reason.UNREADABLE_MEDIA, "Permission denied")

    with pytest.raises(Skip, match=r"unreadable_media: Permission denied$"):
        find_document_pictures(row(OBELICS, REMOVE), MissingMediaPolicy.remove, find)


def test_pictures_alone_are_no_document_once_they_are_gone() -> None:
    pictures = {"messages": [{"role": "assistant", "content": [{"type": "image", "image": "a.jpg"}]}]}
    assert document(pictures, REMOVE)[1] == ["a.jpg"]
    with pytest.raises(Skip, match="no_messages: it has no text, and its pictures are missing"):
        document(pictures, REMOVE, ["a.jpg"])


def test_a_chat_names_no_picture_in_a_document() -> None:
    """A question about a picture that is missing would be trained."""
    asked = {"role": "user", "content": [{"type": "image", "image": "a.jpg"}, {"type": "text", "text": "q"}]}
    assert not is_document_with_named_pictures(parse_record({"messages": [asked, TURNS[1]]}, REMOVE))
    assert not is_document_with_named_pictures(parse_record({"text": "<image>a", "images": ["a.jpg"]}, REMOVE))


def test_the_default_is_in_no_hash() -> None:
    """Else each length in a cache, and each dataset, would be made again."""
    assert "missing_media" not in AUTO.identity
    assert REMOVE.identity == {**AUTO.identity, "missing_media": "remove"}
    of_config = content_settings(plain(PackConfig()))["source"]
    assert "missing_media" not in of_config

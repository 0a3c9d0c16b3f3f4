"""A text without a chat is one message of role `document`; it takes the place of no other form of a sample."""

from typing import Any

import pytest

from energon_pack.samples.cut import exchange_bounds
from energon_pack.samples.documents import is_document
from energon_pack.samples.flavors import PACKED_FLAVORS
from energon_pack.samples.flavors.fit import contents_forbidden_by_flavor_rules
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import STORED_SETTINGS, ReadSettings, SampleType
from energon_pack.samples.skip import Skip
from energon_pack.samples.weights import turn_weight
from support.samples import read

ANSWER = {"role": "assistant", "content": "<image>a puppy, <image>a kitten"}
DOCUMENT = [{**ANSWER, "role": "document"}]
AS_DOCUMENTS = ReadSettings(sample_type=SampleType.document)


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        ({"text": ANSWER["content"]}, ReadSettings()),
        ({"messages": [ANSWER]}, ReadSettings()),  # ms-swift's pre-training form
        ({"text": ANSWER["content"], "prompt": "an id of a prompt"}, AS_DOCUMENTS),
        ({"messages": [ANSWER]}, AS_DOCUMENTS),
        ({"body": ANSWER["content"]}, ReadSettings("body", SampleType.document)),
        ({"messages": DOCUMENT}, STORED_SETTINGS),
    ],
)
def test_forms_of_a_document(value: dict[str, Any], settings: ReadSettings) -> None:
    assert parse_record(value, settings).messages == DOCUMENT


@pytest.mark.parametrize("text", ["[1, 2, 3]", '[{"a": 1}]', "['a', 'b']"])
def test_a_document_may_be_a_list(text: str) -> None:
    """A JSON file in a corpus of code was taken for turns, and left out."""
    settings = ReadSettings("content", SampleType.document)
    assert parse_record({"content": text}, settings).messages == [{"role": "document", "content": text}]


@pytest.mark.parametrize(
    ("value", "roles"),
    [
        ({"text": "It is a cat.", "caption": "a cat"}, ["user", "assistant"]),
        ({"text": "q: a", "question": "q", "answer": "a"}, ["user", "assistant"]),
        ({"messages": [ANSWER, ANSWER]}, ["assistant", "assistant"]),
        ({"messages": [ANSWER], "system": "Be brief."}, ["system", "assistant"]),
        ({"messages": [{**ANSWER, "reasoning_content": "Hm."}]}, ["assistant"]),
    ],
)
def test_a_chat_stays_one(value: dict[str, Any], roles: list[str]) -> None:
    assert [message["role"] for message in parse_record(value, ReadSettings()).messages] == roles


def test_an_answer_alone_of_a_pack_stays_an_answer() -> None:
    """Packs of `source.sample_type=chat` were read again as documents, and said to be damaged."""
    assert parse_record({"messages": [ANSWER]}, STORED_SETTINGS).messages == [ANSWER]


@pytest.mark.parametrize(
    ("value", "settings", "said"),
    [
        ({"text": "formatted", "instruction": "q", "context": "a"}, ReadSettings(), "no_messages"),
        ({"text": ""}, ReadSettings(), "no_messages"),
        ({"text": "x"}, ReadSettings(sample_type=SampleType.chat), "no_messages"),
        (
            {"messages": [{"role": "user", "content": "q"}, ANSWER]},
            AS_DOCUMENTS,
            "no_messages: source.sample_type=document",
        ),
        ({"messages": [{"role": "user", "content": "q"}, *DOCUMENT]}, ReadSettings(), "and is not alone"),
    ],
)
def test_what_is_no_document(value: dict[str, Any], settings: ReadSettings, said: str) -> None:
    with pytest.raises(Skip, match=said):
        parse_record(value, settings)


@pytest.mark.parametrize(
    "message",
    [
        {"text": "Can you write an intro?", "role": "prompter", "message_id": "m1", "parent_id": None},  # oasst1
        {"text": "Monopsony is …", "role": "assistant", "message_id": "m2", "parent_id": "m1"},
        {"text": "Hi", "from": "human"},
    ],
)
def test_a_message_of_a_conversation_is_no_document(message: dict[str, Any]) -> None:
    """Questions of OpenAssistant were trained, each answer without its question."""
    with pytest.raises(Skip, match=r"bad_message: text has the role '\w+': it is a message, not a conversation"):
        parse_record(message, ReadSettings())
    assert is_document(parse_record(message, AS_DOCUMENTS).messages)
    for other in ({"role": "teacher"}, {"role": "developer"}, {"role": None}, {"role": ["user"]}, {"from": "b@x.org"}):
        assert is_document(parse_record({"text": "A page.", **other}, ReadSettings()).messages)


def test_media_stand_where_the_text_says() -> None:
    assert place_media(DOCUMENT, ["image", "image"])[0] == DOCUMENT
    for kinds in (["image"], ["image", "video"]):
        with pytest.raises(Skip, match="placeholder_mismatch"):
            place_media(DOCUMENT, kinds)
    with pytest.raises(Skip, match="placeholder_mismatch: no placeholder"):  # nobody asks, so nowhere is a place for it
        place_media([{"role": "document", "content": "a puppy"}], ["image"])


def test_a_document_is_one_exchange_trained_by_its_weight_and_no_caption() -> None:
    assert exchange_bounds(DOCUMENT) == [0, 1]
    assert turn_weight(DOCUMENT[0], is_trained=True) == 1
    assert turn_weight({**DOCUMENT[0], "loss_scale": 0.5}, is_trained=True) == 0.5
    answers = contents_forbidden_by_flavor_rules(read(DOCUMENT))
    assert [flavor.unfit(answers) for flavor in PACKED_FLAVORS.values()] == [None, "a document"]

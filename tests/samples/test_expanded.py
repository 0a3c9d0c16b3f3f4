"""What one conversation becomes by `labels.expand`: literal cases, checked by head.

A wrong part would train an answer twice, or not at all, or show an answer what inference would not.
"""

from typing import Any

import pytest

from energon_pack.samples.cut import Cut, cut_by_answer, cut_by_question, media_indices_of_part, messages_of_part
from energon_pack.samples.sample import Message
from energon_pack.samples.weights import turn_weight

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def talk(*texts: str, **keys: Any) -> list[Message]:
    """Turns by the first letter of each text; `t2={"weight": 0}` are keys of the third."""
    return [
        {"role": ROLES[text[0]], "content": text[1:].strip(), **keys.get(f"t{i}", {})} for i, text in enumerate(texts)
    ]


def shown(messages: list[Message], cut: Cut) -> str:
    """A part as text: its turns, those in brackets are answers without a weight."""
    part = messages_of_part(messages, cut)
    texts = [
        f"({m['content']})" if m["role"] == "assistant" and not turn_weight(m, True) else m["content"] for m in part
    ]
    return " | ".join(texts)


def turns(messages: list[Message], images: int = 0, only_last: bool = False, window: int | None = None) -> list[str]:
    cuts = cut_by_answer(messages, ["image"] * images, only_last, window, "[old]")
    assert [cut.part for cut in cuts] == [f"{i + 1}of{len(cuts)}" for i in range(len(cuts))]
    return [shown(messages, cut) for cut in cuts]


def pairs(messages: list[Message], kinds: list[str]) -> list[str]:
    return [shown(messages, cut) for cut in cut_by_question(messages, kinds)]


def test_each_answer_has_all_before_it_and_is_trained_once() -> None:
    messages = talk("s be brief", "u a", "a 1", "u b", "a 2", "t 7", "a 3", "u end")
    assert turns(messages) == [
        "be brief | a | 1",
        "be brief | a | (1) | b | 2",
        "be brief | a | (1) | b | (2) | 7 | 3",
    ]


def test_one_answer_stays_whole() -> None:
    assert turns(talk("u a", "a 1")) == []
    assert turns(talk("u a", "a 1", "u b")) == []
    assert turns([{"role": "document", "content": "text"}]) == []


def test_an_answer_that_is_not_trained_makes_no_sample() -> None:
    messages = talk("u a", "a 1", "u b", "a 2", "u c", "a 3", t1={"loss": False})
    assert turns(messages) == ["a | (1) | b | 2", "a | (1) | b | (2) | c | 3"]
    assert turns(talk("u a", "a 1", "u b", "a 2", t1={"weight": 0})) == []  # the last alone, with all before it
    assert turns(talk("u a", "a 1", "u b", "a 2", t3={"weight": 0})) == ["a | 1"]
    assert turns(messages, only_last=True) == []
    assert turns(talk("u a", "a 1", "u b", "a 2", t1={"loss": True}), only_last=True) == ["a | 1", "a | (1) | b | 2"]


def test_a_question_that_is_trained_is_so_with_the_next_answer_alone() -> None:
    messages = talk("u a", "a 1", "u b", "a 2", t0={"train": True})
    first, second = (messages_of_part(messages, cut) for cut in cut_by_answer(messages, [], False, None, ""))
    assert [turn_weight(message, True) for message in first] == [1, 1]
    assert [turn_weight(message, True) for message in second] == [0, 0, 0, 1]


def test_older_images_become_text() -> None:
    """Two of them are kept: the last two of what stands before each answer."""
    messages = talk("u <image><image> a", "a 1 <image>", "u b <image>", "a 2", "u <image>", "a 3")
    assert turns(messages, 4, window=2) == [
        "<image><image> a | 1 <image>",
        "[old]<image> a | (1 <image>) | b <image> | 2",
        "[old][old] a | (1 <image>) | b <image> | (2) | <image> | 3",
    ]
    cuts = cut_by_answer(messages, ["image"] * 4, False, 2, "[old]")
    assert [media_indices_of_part(messages, cut) for cut in cuts] == [[0, 1], [1, 2], [2, 3]]
    parts = [{"type": "image"}, {"type": "text", "text": "<image>"}, {"type": "image"}]
    (_, last) = cut_by_answer(
        [{"role": "user", "content": parts}, *talk("a 1", "u b", "a 2")], ["image"] * 2, False, 1, ""
    )
    told = messages_of_part([{"role": "user", "content": parts}, *talk("a 1", "u b", "a 2")], last)[0]["content"]
    assert told == [{"type": "text", "text": ""}, *parts[1:]]


def test_no_pair_sees_another() -> None:
    messages = talk("s be brief", "u <image>\nLook. a", "a 1", "u b", "a 2", "t 7", "a 3", "u c", "a 4")
    assert pairs(messages, ["image"]) == [
        "be brief | <image>\nLook. a | 1",
        "be brief | <image>\nb | 2 | 7 | 3",
        "be brief | <image>\nc | 4",
    ]


def test_a_pair_keeps_its_own_media_behind_those_of_the_first() -> None:
    messages = talk("u see <image> and <video>", "a 1", "u b <image>", "a 2", "u c", "a 3")
    kinds = ["image", "video", "image"]
    assert pairs(messages, kinds) == [
        "see <image> and <video> | 1",
        "<image> <video>b <image> | 2",
        "<image> <video>c | 3",
    ]
    assert [media_indices_of_part(messages, cut) for cut in cut_by_question(messages, kinds)] == [
        [0, 1],
        [0, 1, 2],
        [0, 1],
    ]


def test_media_in_parts_stay_parts() -> None:
    asked = [{"type": "text", "text": "<image> is a tag"}, {"type": "image"}]
    messages = [{"role": "user", "content": asked}, *talk("a 1", "u b", "a 2")]
    (_, second) = cut_by_question(messages, ["image"])
    assert messages_of_part(messages, second)[0]["content"] == [{"type": "image"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("messages", "kinds"),
    [
        (talk("u a", "a 1", "u b", "a 2"), []),  # what follows in a talk needs what was said
        (talk("u a", "a 1", "u <image>", "a 2"), ["image"]),
        (talk("u <image>", "a 1"), ["image"]),
        (talk("u <image>", "a 1", "u b"), ["image"]),
        (talk("a 1", "u <image>", "a 2"), ["image"]),
    ],
)
def test_what_is_no_list_of_questions_about_media_stays_whole(messages: list[Message], kinds: list[str]) -> None:
    assert cut_by_question(messages, kinds) == []


def test_a_pair_of_which_nothing_is_trained_is_one_until_its_tokens_are_counted() -> None:
    """`Whole.trained` leaves it out, as any part: its tokens would else be counted nowhere."""
    messages = talk("u <image>a", "a 1", "u b", "a 2", t1={"loss": False})
    assert pairs(messages, ["image"]) == ["<image>a | (1)", "<image>b | 2"]

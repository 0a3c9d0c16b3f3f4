"""Placeholders that stand for nothing: 20 of 20 questions had `<image>` and no image, and were trained as letters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import PackConfig, Stage
from energon_pack.dataset.ledger import why_placeholders_lack_media
from energon_pack.errors import SamplesLost
from energon_pack.pack import pack
from energon_pack.report.remarks import collect_remarks
from energon_pack.samples.conversation import match_placeholders_with_media
from energon_pack.samples.media_marks import placeholder_kinds_without_media
from energon_pack.samples.record import parse_record
from energon_pack.samples.settings import ReadSettings, UnreadMediaPolicy
from energon_pack.samples.skip import Reason, Skip
from energon_pack.sources.jsonl.dialects import RowSettings, parse_row
from support.figures import figures, noted
from support.samples import picture, write_tar


def asked(question: Any, **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "A harbour."}]
    return {**fields, "messages": turns}


EMPTY: list[dict[str, Any]] = [
    {"images": []},
    {"images": [""]},
    {"images": [None]},
    {"images": [[]]},
    {"images": ""},
    {"image": None},
    {"image": ""},
    {"video": None},  # LLaVA-Video writes <image> for a video
    {"media_files": []},
    {"name": []},
    {"audios": [], "images": []},
]


@pytest.mark.parametrize("fields", EMPTY)
def test_a_placeholder_whose_media_key_is_empty_is_a_lost_medium(fields: dict[str, Any]) -> None:
    settings, lines = ReadSettings(), RowSettings("/")
    value = asked("<image>\nWhat is it?", **fields)
    for record in (parse_row(value, lines, settings), parse_record(value, settings)):
        with pytest.raises(Skip, match=r"missing_media: <image> stands in a question, and .* is empty") as skip:
            match_placeholders_with_media(record, [])
        assert (skip.value.reason, skip.value.media_type) == (Reason.MISSING_MEDIA, "image")


def test_a_caption_whose_media_key_is_empty_is_not_trained_alone() -> None:
    """The answer to nothing was trained: rows of image folders whose cell has no name."""
    for value in ({"image": None, "caption": "A cat."}, {"image_file_name": "", "text": "A cat."}):
        record = parse_row(value, RowSettings("/"), ReadSettings(caption_prompt="What is it?"))
        with pytest.raises(Skip, match="missing_media: it is a caption, and image is empty: its medium is lost"):
            match_placeholders_with_media(record, [])
        alone = parse_row(value, RowSettings("/"), ReadSettings(media=UnreadMediaPolicy.ignore))
        assert match_placeholders_with_media(alone, []).messages[-1]["content"] == "A cat."
    match_placeholders_with_media(parse_row({"caption": "A cat."}, RowSettings("/"), ReadSettings()), [])


def test_a_lost_video_beside_an_image_that_is_there() -> None:
    record = parse_record(asked("<image><video>Which?", videos=[]), ReadSettings())
    with pytest.raises(Skip, match="<video> stands in a question, and videos is empty"):
        match_placeholders_with_media(record, ["image"])


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        ("<image>What?", {}),  # no key says that there was one
        ("<video>What?", {"images": []}),
        ("What?", {"images": []}),
        ("What does `<image>` mean?", {"images": []}),
        ("```html\n<image>\n```", {"images": []}),
        ("Why is <video><source></video> black?", {"video": ""}),
        ("What does </image> close?", {"image": None}),
        ("<image>What?", {"name": "alpaca"}),
        ("<image>What?", {"name": ""}),
    ],
)
def test_letters_and_samples_without_an_empty_key_lose_nothing_by_themselves(
    question: str, fields: dict[str, Any]
) -> None:
    assert (
        match_placeholders_with_media(parse_record(asked(question, **fields), ReadSettings()), []).messages[0][
            "content"
        ]
        == question
    )


def test_a_medium_that_is_there_is_not_lost_though_the_key_is_empty() -> None:
    """In a tar the media are parts."""
    record = parse_record(asked("<image>What?", images=[]), ReadSettings())
    assert match_placeholders_with_media(record, ["image"]).order == [0]


def test_ignored_media_are_letters() -> None:
    record = parse_record(asked("<image>What?", images=[]), ReadSettings(media=UnreadMediaPolicy.ignore))
    assert match_placeholders_with_media(record, []).messages[0]["content"] == "<image>What?"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("<image> and <video>", ["image", "video"]),
        ("<image></image> <image>", ["image"]),
        ("<video> <video></video>", ["video"]),
        ("`<image>` <audio>", ["audio"]),
        ("```\n<image>", []),
        ("<Image> <img> < image>", []),
    ],
)
def test_which_tags_ask_for_media(text: str, kinds: list[str]) -> None:
    assert placeholder_kinds_without_media(asked(text)["messages"], []) == kinds
    assert placeholder_kinds_without_media(asked([{"type": "text", "text": text}])["messages"], []) == kinds
    assert placeholder_kinds_without_media(asked(text)["messages"], ["image", "video", "audio"]) == []
    assert placeholder_kinds_without_media([{"role": "assistant", "content": text}], []) == []


def test_100_000_tags_are_read_once_each() -> None:
    assert placeholder_kinds_without_media(asked("<image>" * 100_000)["messages"], []) == ["image"]
    assert placeholder_kinds_without_media(asked("<image>" * 50_000 + "</image>" * 50_000)["messages"], []) == []


# ------------------------------------------------------------------------------------------------- of a whole set


def lines(folder: Path, *samples: dict[str, Any]) -> str:
    path = folder / "s.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return str(path)


IN_VAIN, PLAIN = asked("<image>\nWhat is it?"), asked("What is it?")


def test_a_set_in_which_every_placeholder_stands_for_nothing_is_not_published(
    config: Callable[..., PackConfig], tmp_path: Path
) -> None:
    source = lines(tmp_path, *[IN_VAIN] * 3, *[PLAIN] * 5)
    with pytest.raises(SamplesLost, match=r"every <image> in a question stands for nothing, in 3 of 8 samples") as lost:
        pack(config(source))
    assert "source.media=ignore" in str(lost.value)
    with pytest.raises(SamplesLost, match="every <image> in a question stands for nothing"):
        pack(config(source, stage=Stage.plan))
    assert pack(config(source, source__media=UnreadMediaPolicy.ignore))["samples_packed"] == 8


def test_one_image_makes_the_others_a_remark(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(picture())
    figures_of_run = pack(config(lines(tmp_path, {**IN_VAIN, "images": ["a.jpg"]}, *[IN_VAIN] * 3)))
    assert (figures_of_run["samples_packed"], figures_of_run["samples_with_placeholders_as_text"]) == (4, 3)
    assert figures_of_run["placeholders_as_text"] == {"image": {"samples": 3, "example": "s.jsonl:2"}}


def test_letters_of_a_few_texts_are_published(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """`max_skipped` says how many: a set of chats is not refused for a word."""
    source = lines(tmp_path, IN_VAIN, *[PLAIN] * 4)
    assert pack(config(source, max_skipped=0.2))["samples_with_placeholders_as_text"] == 1


def test_answers_and_code_are_not_counted(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    answered = {"messages": [{"role": "user", "content": "Which tag?"}, {"role": "assistant", "content": "<image>"}]}
    run = pack(config(lines(tmp_path, answered, asked("```\n<video>\n```"))))
    assert (run["samples_packed"], run["samples_with_placeholders_as_text"]) == (2, 0)


def test_a_tar_whose_json_says_that_there_is_no_image(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    members = {
        "a.json": json.dumps(asked("<image>What?", images=[])).encode(),
        "b.json": json.dumps(asked("<image>What?", images=[])).encode(),
        "b.jpg": picture(),
    }
    figures_of_run = pack(config(write_tar(tmp_path / "s.tar", members), max_skipped=0.5))
    assert figures_of_run["skipped_by_reason"] == {"missing_media": 1}


AS_TEXT = {"image": {"samples": 20, "example": "s.jsonl:1"}}


@pytest.mark.parametrize(
    ("by_medium", "samples", "is_refused"),
    [
        ({"text": 20}, 20, True),
        ({"text": 2000, "video": 9}, 2000, False),  # 1 % of them
        ({"text": 1999, "video": 9}, 1999, True),
        ({"text": 20, "image": 1}, 21, False),
        ({"text": 20, "mix": 1}, 21, False),
    ],
)
def test_what_is_refused_is_a_kind_that_no_sample_has(
    by_medium: dict[str, int], samples: int, is_refused: bool
) -> None:
    assert (why_placeholders_lack_media(AS_TEXT, by_medium, samples, 0.01) is not None) == is_refused


@pytest.mark.parametrize(("number", "grade"), [(1001, "wrong"), (1000, "look")])
def test_most_placeholders_in_vain_are_wrong(number: int, grade: str) -> None:
    """The figures have 1,000 samples of images."""
    source = noted(placeholders_as_text=number)
    source["noted"]._names["placeholders_as_text"]["image"] = number
    source["noted"]._examples["placeholders_as_text", "image"] = "s.jsonl:1"
    found = [remark for remark in collect_remarks(figures(source)) if remark.sample == "placeholders_as_text"]
    assert [remark.grade.value for remark in found] == [grade]

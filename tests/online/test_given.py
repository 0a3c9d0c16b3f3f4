"""A user's own conversations, in the forms that datasets have them."""

import base64
import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_pack.errors import PackError
from energon_pack.online.user_dataset import UserSamples
from energon_pack.samples.settings import ReadSettings
from energon_pack.samples.skip import Skip
from support.running import ROOT, environment, run

TURNS = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "Red."}]


def picture(size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.new("RGB", size, "red")


def data(image: Image.Image, format: str = "JPEG", **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **settings)
    return file.getvalue()


def given(*items: Any, root: Path | None = None) -> UserSamples:
    return UserSamples(items, ReadSettings(), str(root) if root else None)


def test_settings_of_media_and_lists_of_frames() -> None:
    """Settings in a content part apply to its medium, and frames in memory are a video, too."""
    image = {"type": "image", "image": picture((400, 300)), "max_pixels": 12_544}
    frames = {"type": "video", "video": [picture(), picture(), picture()], "sample_fps": 1.0}
    source = given({"messages": [{"role": "user", "content": [frames, image]}, TURNS[1]]})
    settings = [medium.settings for medium in source.sample_for_measuring(0).media]
    assert [s and (s.list_of_frames, s.sample_fps, s.max_pixels) for s in settings] == [
        (3, 1.0, None), None, None, (None, None, 12_544),
    ]  # fmt: skip
    assert source.member(0).options.media == (
        {"list_of_frames": 3, "sample_fps": 1.0},
        None,
        None,
        {"max_pixels": 12_544},
    )


def test_media_come_in_any_form(tmp_path: Path) -> None:
    """A dataset is packed without a conversion by the user."""
    (tmp_path / "a.jpg").write_bytes(data(picture()))
    url = {"type": "image_url", "image_url": {"url": "a.jpg"}}
    asked = {"type": "text", "text": "What is it?"}
    forms: list[dict[str, Any]] = [
        {"messages": TURNS, "images": [picture()]},
        {"messages": TURNS, "image": picture()},
        {"messages": TURNS, "images": [data(picture())]},
        {"messages": TURNS, "images": [{"bytes": data(picture()), "path": None}]},
        {"messages": TURNS, "images": [{"bytes": None, "path": "a.jpg"}], "videos": None},
        {"messages": TURNS, "image": "a.jpg"},
        {"conversations": [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "Red."}],
         "image": "a.jpg"},
        {"messages": [{"role": "user", "content": [{"type": "image", "image": picture()}, asked]}, TURNS[1]]},
        {"messages": [{"role": "user", "content": [url, asked]}, TURNS[1]]},
        {"messages": [{"role": "user", "content": [{"type": "image"}, asked]}, TURNS[1]], "images": [picture()]},
    ]  # fmt: skip
    source = given(*forms, root=tmp_path)
    for number in range(len(source)):
        sample = source.sample_for_measuring(number)
        assert [(medium.kind, medium.width, medium.height) for medium in sample.media] == [("image", 40, 30)]
        assert sample.messages == TURNS
        (image,) = source.member(number).images
        assert image.size == (40, 30)
        assert image.convert("RGB").getpixel((5, 5))[0] > 250
    assert "images" in forms[0]  # what is a user's stays as it is


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
def test_an_image_on_its_side_is_turned_before_it_is_counted(format: str) -> None:
    """Tiles of 30 × 40 are others than of 40 × 30: Pillow's image and bytes have to come to the same.

    Pillow turns a TIFF itself: it was measured as turned twice, and training ended there.
    """
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = data(picture(), format, exif=exif.tobytes())
    source = given(
        {"messages": TURNS, "images": [stored]}, {"messages": TURNS, "images": [Image.open(io.BytesIO(stored))]}
    )
    for number in range(2):
        assert (
            source.sample_for_measuring(number).media[0].width,
            source.sample_for_measuring(number).media[0].height,
        ) == (30, 40)
        assert source.member(number).images[0].size == (30, 40)


def test_a_tiff_that_is_cut_costs_its_sample() -> None:
    """Its size is known only when it is decoded, and what Pillow then raises would end the run."""
    stored = data(picture((400, 300)), "TIFF")
    cut = io.BytesIO(stored[: len(stored) // 2])
    with pytest.raises(Skip, match="unreadable_media: not a readable image"):
        given({"messages": TURNS, "images": [Image.open(cut)]}).read(0)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"messages": TURNS, "images": [picture(), picture()]}, "1 image in the text for 2 images"),
        ({"messages": TURNS, "images": ["b.jpg"]}, "missing_media: 'b.jpg' is not there"),
        ({"messages": TURNS, "images": [b"no image"]}, "unreadable_media: no known image"),
        ({"messages": TURNS, "images": [{"pixels": 3}]}, "missing_media: images lists something that is no path"),
        ({"messages": TURNS, "images": [np.zeros((30, 40, 3), np.uint8)]}, "unsupported_media: a medium is a ndarray"),
        ({"messages": TURNS, "image": np.zeros((30, 40, 3), np.uint8)}, "unsupported_media: a medium is a ndarray"),
        ({"messages": TURNS, "image": torch.zeros(3, 30, 40)}, "unsupported_media: a medium is a Tensor"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image": np.zeros((3, 3))}]}, TURNS[1]]},
            "unsupported_media: a medium is a ndarray",
        ),
        ({"messages": TURNS, "images": [None]}, "unsupported_media: a list of media has None"),
        ({"messages": TURNS, "images": [picture(), None]}, "unsupported_media: a list of media has None"),
        ({"messages": TURNS[1:], "videos": [""]}, "unsupported_media: a list of media has None, or an empty name"),
        ({"messages": []}, "no_messages"),
        ("text", "not_an_object"),
        (None, "not_an_object"),
    ],
)
def test_what_can_not_be_packed_says_why(item: Any, said: str) -> None:
    """By the ledger's words: a run over a million goes on. A medium of a form that is not known would leave a text."""
    with pytest.raises(Skip) as caught:
        given(item).sample_for_measuring(0)
    assert said in f"{caught.value.reason.value}: {caught.value.detail}"


def calling(arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "ok"}]
    return {"messages": [{"role": "user", "content": "q"}, *turns, TURNS[1]]}


@pytest.mark.parametrize(
    "item",
    [
        {"messages": [{"role": "user", "content": b"q"}, TURNS[1]]},
        {"messages": [{"role": "user", "content": np.array([1, 2])}, TURNS[1]]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": b"q"}]}, TURNS[1]]},
        {"messages": [{"role": "user", "content": "q"}, {**TURNS[1], "reasoning_content": b"r"}]},
        {"messages": TURNS, "images": [picture()], "system": b"s"},
        {"messages": TURNS, "images": [picture()], "tools": [{"name": "f", "example": b"e"}]},
        {"image": picture(), "caption": b"a puppy"},
        {"prompt": b"q", "completion": b"a"},
        {"instruction": "i", "input": b"j", "output": "a"},
        {"text": b"a document"},
        calling({"b": b"zz"}),
        calling({"image": picture()}),
    ],
)
def test_a_medium_in_the_place_of_a_text_costs_its_sample(item: Any) -> None:
    """Its name in our hands, "\\x000", was packed and trained as the text."""
    with pytest.raises(Skip, match="bad_message: bytes, an image or an array stands where a text belongs"):
        given(item).sample_for_measuring(0)


@pytest.mark.parametrize("data", ["aGVsbG8=", "x,y\n1"])
def test_what_only_looks_like_base64_stays(data: str) -> None:
    """Arguments of a call became "\\x000"; remarks that are no base64 ended the whole run."""
    table = {"data": data, "format": "csv"}
    (call,) = given({**calling(table), "meta": table}).sample_for_measuring(0).messages[1]["tool_calls"]
    assert call["function"]["arguments"] == table


def test_base64_in_memory_is_read_where_a_medium_stands() -> None:
    """Anthropic's images and parts with bytes were refused; base64 that is damaged ended the whole run."""
    source = {"type": "base64", "media_type": "image/jpeg", "data": base64.b64encode(data(picture())).decode()}
    for part in ({"type": "image", "source": source}, {"type": "image", "bytes": data(picture()), "path": None}):
        item = {"messages": [{"role": "user", "content": [part]}, TURNS[1]]}
        assert [(medium.width, medium.height) for medium in given(item).sample_for_measuring(0).media] == [(40, 30)]
    for text in ("x,y\n1", "é"):
        sound = {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}
        with pytest.raises(Skip, match=r"unreadable_media: .* is no base64"):
            given({"messages": [{"role": "user", "content": [sound]}, TURNS[1]]}).sample_for_measuring(0)


def test_a_text_is_no_name_of_a_medium_in_memory() -> None:
    """A path "\\x000" picked the first medium in memory, "\\x001" ended the run; as a text each is trained."""
    texts = [{"role": "user", "content": "\0000"}, TURNS[1]]
    assert given({"messages": texts, "thumbnails": [b"no image"]}).sample_for_measuring(0).messages == texts
    for name in ("\0000", "\0001"):
        with pytest.raises(Skip, match="missing_media"):
            given({"messages": TURNS, "images": [name], "thumbnails": [data(picture())]}).sample_for_measuring(0)
    with pytest.raises(Skip, match="bad_message: a text holds"):
        given({"messages": TURNS, "images": ["\udfff0"], "thumbnails": [data(picture())]}).sample_for_measuring(0)


def test_numbers_under_the_name_of_media_are_fields() -> None:
    """A dataset may count its images under `images`, or have none in a row."""
    asked = [{"role": "user", "content": "How many?"}, TURNS[1]]
    forms: list[dict[str, Any]] = [{"images": 0}, {"images": 2}, {"image": False}, {"images": []}, {"image": ""}]
    for form in forms:
        assert not given({"messages": asked, **form}).sample_for_measuring(0).media


class Raises:
    """A dataset whose sample 1 can't be had."""

    def __init__(self, error: Exception):
        self.error = error

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        if number == 1:
            raise self.error
        return {"messages": TURNS, "images": [picture()]}


@pytest.mark.parametrize("error", [ValueError("boom"), IndexError("boom"), KeyError("boom"), StopIteration("boom")])
def test_what_a_dataset_raises_is_named(error: Exception) -> None:
    """A traceback would not say which sample; an IndexError would end a loop over packs as if they were over."""
    source = UserSamples(Raises(error), ReadSettings())
    assert source.sample_for_measuring(0)
    for read in (source.sample_for_measuring, source.member):
        with pytest.raises(PackError, match=rf"conversations/1: {type(error).__name__}: .*boom"):
            read(1)
    no_dataset: Any = iter([])
    with pytest.raises(PackError, match=r"conversations: TypeError: .* has no len"):
        UserSamples(no_dataset, ReadSettings())


class Formatted:
    """A dataset like Hugging Face's with `set_transform`."""

    def __init__(self) -> None:
        self.format = {"type": "custom"}
        self.features = {"images": dataclasses.make_dataclass("Image", [("decode", bool, True)])()}

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> Any:
        return {"messages": TURNS, "images": [picture()]}


def test_a_transform_gets_the_images_it_was_written_for() -> None:
    """It would be given the bytes of files, and end at the first image."""
    assert UserSamples(Formatted(), ReadSettings()).sample_for_measuring(0).media[0].width == 40


def test_a_list_of_images_is_not_decoded() -> None:
    """A column of lists has the feature of its images inside: each would be decoded, and written anew."""
    image = dataclasses.make_dataclass("Image", [("decode", bool, True)])
    listed = dataclasses.make_dataclass("List", [("feature", Any)])
    casts: dict[str, Any] = {}

    class Cast(Formatted):
        def __init__(self) -> None:
            super().__init__()
            self.format = {"type": "none"}
            self.features = {"images": listed(image()), "texts": listed(None), "image": image()}

        def cast_column(self, name: str, feature: Any) -> "Cast":
            casts[name] = feature
            return self

    UserSamples(Cast(), ReadSettings())
    assert casts == {"images": listed(image(False)), "image": image(False)}


def test_a_limit_takes_the_first_ones() -> None:
    """`source.limit` is for a first try: a stream over all of them would be another one than asked for."""
    items = [{"messages": TURNS[1:]}] * 3
    assert [len(UserSamples(items, ReadSettings(), None, limit)) for limit in (None, 2, 5)] == [3, 2, 3]


@pytest.mark.slow
def test_datasets_of_hugging_face(tmp_path: Path) -> None:
    """`tests/support/with_datasets.py`, with the newest of the package index."""
    python = environment(tmp_path / "venv")
    run(python, "-m", "pip", "install", "datasets", cwd=tmp_path)
    path = ":".join(str(ROOT / name) for name in (".", "recipes", "tests"))
    options = ("-p", "no:cacheprovider", "-W", "ignore", f"--basetemp={tmp_path / 'tests'}", f"--rootdir={ROOT}")
    script = ROOT / "tests" / "support" / "with_datasets.py"
    out = run(
        python, "-m", "pytest", *options, script, "-c", ROOT / "pyproject.toml", cwd=ROOT, PYTHONPATH=path,
        HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert "4 passed" in out

"""A preprocessor's geometry is what it does to pixels, and the processor's rule is asked with the result.

Were they to differ, lengths would be measured of images that training never makes.
"""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.placeholders import place_media
from energon_pack.templates.preparation import Preparation
from energon_pack.templates.preprocess import IMAGE_PREPROCESSORS, image_preprocessor, video_settings
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from energon_pack.templates.template import Template
from support.models import of_model

SETTINGS: dict[str, Any] = {"longest_side": 200, "max_pixels": 20_000, "crop_width": 150, "crop_height": 90}


def preparation(name: str) -> Preparation:
    rules: Any = SimpleNamespace(settings={"factor": 28}, rate=0)
    return Preparation("qwen_vl", MediaConfig(image=name, **SETTINGS), rules)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resize_longest_side", (400, 100), (200, 50)),
        ("resize_longest_side", (100, 50), (100, 50)),  # never grown
        ("resize_max_pixels", (400, 200), (200, 100)),
        ("resize_max_pixels", (100, 200), (100, 200)),
        ("center_crop", (400, 50), (150, 50)),
        ("qwen_vl_utils", (100, 100), (112, 112)),  # 3.57 × 28 rounds to 4 × 28
    ],
)
def test_sizes_to_check_by_head(name: str, size: tuple[int, int], expected: tuple[int, int]) -> None:
    made = image_preprocessor(MediaConfig(image=name, **SETTINGS), 28)
    assert made is not None
    assert made.size(*size) == expected


@pytest.mark.parametrize("name", [name for name, made in IMAGE_PREPROCESSORS.items() if made])
def test_pixels_have_the_size_that_was_measured(name: str) -> None:
    made, prepare = image_preprocessor(MediaConfig(image=name, **SETTINGS), 28), preparation(name).prepare_image
    assert made is not None
    rng = random.Random(0)
    for _ in range(40):
        image = Image.new("RGB", (rng.randint(10, 600), rng.randint(10, 600)))
        assert prepare(image).size == made.size(*image.size)


def test_a_crop_is_the_middle() -> None:
    image = Image.new("RGB", (300, 90), "red")
    image.paste("blue", (75, 0, 225, 90))
    assert preparation("center_crop").prepare_image(image).getcolors() == [(150 * 90, (0, 0, 255))]


def of_demo(demo: tuple[Path, Path], cache: Path, **media: Any) -> Template:
    return load_saved_template(prepare_template(of_model("qwen_vl", demo[1], MediaConfig(**media)), cache))


def num_image_tokens(template: Template, width: int, height: int) -> int:
    placed, _, _ = place_media(
        [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "x"}], ["image"]
    )
    return template.render(Sample(placed, [Media("image", width, height)])).num_visual_tokens


def test_the_processors_rule_sees_what_is_left(demo: tuple[Path, Path], cache: Path) -> None:
    plain = of_demo(demo, cache)
    small = of_demo(demo, cache, image="resize_longest_side", longest_side=56)
    assert num_image_tokens(plain, 280, 280) == 100
    assert num_image_tokens(small, 280, 280) == 4
    assert small.prepare_image(Image.new("RGB", (280, 280))).size == (56, 56)
    assert plain.fingerprint != small.fingerprint


class Strip:
    """Someone else's preprocessor: the top 28 rows."""

    def __init__(self, media: MediaConfig, factor: int):
        self.height = factor

    def size(self, width: int, height: int) -> tuple[int, int]:
        return width, min(height, self.height)

    def apply(self, image: Image.Image) -> Image.Image:
        return image.crop((0, 0, *self.size(*image.size)))


def test_someone_elses_by_name(demo: tuple[Path, Path], cache: Path) -> None:
    strip = of_demo(demo, cache, image="test_preprocess:Strip")
    assert num_image_tokens(strip, 280, 280) == 10
    assert strip.prepare_image(Image.new("RGB", (280, 280))).size == (280, 28)


@pytest.mark.parametrize(
    ("media", "says"),
    [
        ({"image": "resize"}, "there are: default, resize_longest_side"),
        ({"image": "nobody:Knows"}, "nobody"),
        ({"image": "resize_longest_side"}, "needs media.longest_side"),
    ],
)
def test_what_is_wrong_is_named(media: dict[str, Any], says: str) -> None:
    with pytest.raises(PackError, match=says):
        image_preprocessor(MediaConfig(**media), 28)


@pytest.mark.parametrize("media", [{"video": "fps"}, {"video": "uniform", "fps": 2}, {"fps": 2}, {"num_frames": 8}])
def test_frame_settings_that_would_do_nothing_are_refused(media: dict[str, Any]) -> None:
    with pytest.raises(PackError, match="needs media"):
        video_settings(MediaConfig(**media))

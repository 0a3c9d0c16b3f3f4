"""A preprocessor's geometry is what it does to pixels, and the processor's rule is asked with the result.

Were they to differ, lengths would be measured of images that training never makes.
"""

import random
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from PIL import Image

from energon_pack.errors import PackError
from energon_pack.samples.media.medium import Media
from energon_pack.samples.placeholders import place_media
from energon_pack.templates.families.qwen_vl import _FirstToLastFrames, _WholePatchFrames
from energon_pack.templates.families.rules import FrameSampling
from energon_pack.templates.families.tiles import _IntegerSteps
from energon_pack.templates.preparation import MediaPreparation
from energon_pack.templates.preprocess import (
    IMAGE_PREPROCESSORS,
    KEY_READERS,
    check_media_config,
    image_preprocessor,
    refuse_ignored_frame_limits,
    video_settings,
)
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig
from energon_pack.templates.template import Template
from support.models import of_model
from support.running import ROOT

SETTINGS: dict[str, Any] = {"longest_side": 200, "max_pixels": 20_000, "crop_width": 150, "crop_height": 90}


def preparation(name: str) -> MediaPreparation:
    rules: Any = SimpleNamespace(settings={"factor": 28}, rate=0)
    return MediaPreparation("qwen_vl", MediaConfig(image=name, **SETTINGS), rules)


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


@pytest.mark.parametrize(
    ("media", "said"),
    [
        ({"video": "fps"}, "media.video=fps needs media.fps"),
        ({"video": "uniform", "fps": 2}, "media.video=uniform needs media.num_frames"),
        ({"fps": 2.0}, "media.fps=2 needs media.video=fps or qwen_vl_utils, not default: media=fps media.fps=2"),
        ({"num_frames": 8}, "media=uniform media.num_frames=8"),
        ({"max_pixels": 1_003_520}, "media=resize_max_pixels media.max_pixels=1003520"),
        (
            {"image": "center_crop", "crop_width": 9, "crop_height": 9, "longest_side": 9},
            "not center_crop: media=resiz",
        ),
        ({"crop_width": 9}, "media.crop_width=9 needs media.image=center_crop, not default"),
        ({"crop_height": 9, "image": "qwen_vl_utils"}, "media.crop_height=9 needs media.image=center_crop"),
        (
            {"video": "uniform", "num_frames": 8, "fps": 1.0},
            "media.fps=1 needs media.video=fps or qwen_vl_utils, not un",
        ),
        (
            {"video": "qwen_vl_utils", "num_frames": 9},
            "media.num_frames=9 needs media.video=uniform, not qwen_vl_utils",
        ),
        (
            {"video": "qwen_vl_utils", "video_max_pixels": 9},
            "video_max_pixels=9 needs media.video=default or fps or un",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(media: dict[str, Any], said: str) -> None:
    """Images that a user meant to shrink were packed at full size, and nothing said so."""
    with pytest.raises(PackError, match=re.escape(said)):
        check_media_config(MediaConfig(**media))


@pytest.mark.parametrize(
    "media",
    [
        {"image": "test_preprocess:Strip", "max_pixels": 9},  # someone else's may read any key
        {"video": "test_preprocess:Strip", "max_pixels": 9, "num_frames": 3},
        {"video": "qwen_vl_utils", "fps": 1.0, "max_frames": 9},
        {"video": "uniform", "num_frames": 4, "fps": 2.0},  # `media=fps media.video=uniform`: of the group, not set
    ],
)
def test_settings_that_are_read_are_taken(media: dict[str, Any]) -> None:
    check_media_config(MediaConfig(**media))


def test_each_group_of_media_sets_what_its_preprocessor_reads() -> None:
    """The value that a group sets is no user's: another preprocessor may be chosen over it."""
    for file in (ROOT / "conf" / "media").iterdir():
        values = yaml.safe_load(file.read_text())
        check_media_config(MediaConfig(**values))
        read = {
            key: default for key, (_, readers, default) in KEY_READERS.items() if default and readers[0] == file.stem
        }
        assert {key: value for key, value in values.items() if key not in ("image", "video")} == read


@pytest.mark.parametrize(
    ("rule", "media", "is_kept"),
    [
        (FrameSampling, {"video": "fps", "fps": 1.0, "max_frames": 4}, False),  # InternVL's
        (_IntegerSteps, {"video": "fps", "fps": 1.0, "max_frames": 4}, False),  # LLaVA-OneVision's
        (_IntegerSteps, {"video": "fps", "fps": 1.0, "min_frames": 4}, False),
        (_IntegerSteps, {"video": "uniform", "num_frames": 8, "max_frames": 4}, False),
        (FrameSampling, {"max_frames": 4}, False),  # by its own rate
        (FrameSampling, {"video": "fps", "fps": 0.1, "max_frames": 4}, False),
        (FrameSampling, {"video": "fps", "fps": 60.0, "max_frames": 4}, False),
        (FrameSampling, {"video": "uniform", "num_frames": 32, "max_frames": 4}, False),
        (FrameSampling, {"video": "uniform", "num_frames": 999, "max_frames": 4}, False),
        (FrameSampling, {"video": "uniform", "num_frames": 4, "max_frames": 4}, True),
        (_WholePatchFrames, {"video": "fps", "fps": 60.0, "max_frames": 9}, True),
        (_IntegerSteps, {"video": "qwen_vl_utils", "max_frames": 4}, True),  # the preprocessor reads it
        (_WholePatchFrames, {"max_frames": 4}, False),  # Qwen2.5-VL takes all frames, unless media=fps
        (_WholePatchFrames, {"video": "fps", "fps": 1.0, "min_frames": 5, "max_frames": 9}, True),
        (_FirstToLastFrames, {"min_frames": 5, "max_frames": 9}, True),  # Qwen3-VL's
    ],
)
def test_limits_of_frames_that_no_rule_reads_are_refused(rule: Any, media: dict[str, Any], is_kept: bool) -> None:
    """Every frame was packed, although `media.max_frames` was set."""
    config = MediaConfig(**media)
    settings = {"min_frames": 4, "max_frames": 768, **video_settings(config)}
    if rule is _FirstToLastFrames or (rule is FrameSampling and config.video == "default"):
        settings |= {"do_sample_frames": True, "fps": 2}
    frames = rule(settings, 2) if rule is _WholePatchFrames else rule(settings)
    with nullcontext() if is_kept else pytest.raises(PackError, match=r"media.m.._frames=\d does nothing: by media"):
        refuse_ignored_frame_limits(config, frames.choose)

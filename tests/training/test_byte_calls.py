"""Pixels that a processor moves as bytes become the same numbers, bit by bit, as its own call makes."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.prepared import PreparedMedia
from energon_pack.samples.member import MemberInput
from energon_pack.templates.processor import build_uncached_template
from energon_pack.training.byte_calls import BytePixelProcessor, UnknownPixelStepError, _Steps
from energon_pack.training.media_inputs import MediaProcessor
from energon_pack.training.member_encoder import MemberEncoder
from support.marks import slow
from support.models import of_model
from support.running import need_torchvision
from support.samples import picture

#: processor: family, whether each image is a call
FORMS = {
    "qwen2_5_vl": ("qwen_vl", False),
    "qwen3_vl": ("qwen3_vl", False),
    "internvl3_hf": ("internvl", False),
    "llava_onevision_qwen2_hf": ("llava_onevision", True),  # it pads behind its normalization
    "gemma3": ("shapes", False),
    "granite_docling_idefics3": ("shapes", False),
}


def dirty(shape: Sequence[int]) -> torch.Tensor:
    """Memory that another batch was in."""
    return torch.full((*shape,), torch.nan)


def media_processor(real: Path, name: str) -> MediaProcessor:
    need_torchvision()
    rules = build_uncached_template(of_model(FORMS[name][0], real / "processors" / name)).input_rules
    media = MediaProcessor(rules)
    media._byte_calls = BytePixelProcessor(media._call, dirty)
    return media


def images(sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[PreparedMedia]:
    rng = np.random.default_rng(seed)
    noise = [Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)) for width, height in sizes]
    return [PreparedMedia(["image"], [one]) for one in noise]


def assert_same(media: MediaProcessor, members: Sequence[PreparedMedia]) -> None:
    tried = media._tried_media("image")
    made = media._byte_calls(members, tried.joins, tried.needs_no_text, bool(tried.in_bytes))
    own = media._call(members)
    assert made.keys() == own.keys()
    assert [name for name in own if not torch.equal(made[name], own[name])] == []


@pytest.mark.parametrize("name", ["qwen2_5_vl", *map(slow, [*FORMS][1:])])
def test_a_processor_that_moves_bytes_makes_the_same_bits(real: Path, name: str) -> None:
    media = media_processor(real, name)
    assert media._tried_media("image").in_bytes is FORMS[name][1]
    assert_same(media, images([(60, 90), (300, 41), (57, 56)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_two_thousand_sizes_have_the_same_bits(real: Path, name: str) -> None:
    """Torch resizes bytes that lie in another order by another kernel, up and down."""
    media = media_processor(real, name)
    sides = np.exp(np.random.default_rng(1).uniform(np.log(20), np.log(700), (2000, 2))).astype(int).tolist()
    for first in range(0, len(sides), 20):
        assert_same(media, images([(int(width), int(height)) for width, height in sides[first : first + 20]], first))


def test_what_a_processor_refuses_is_its_own_error(real: Path) -> None:
    media = media_processor(real, "qwen2_5_vl")
    with pytest.raises(ValueError, match="absolute aspect ratio must be smaller than 200"):
        media(images([(4, 900)]))


def test_pixels_of_other_modes_go_the_processors_own_way(real: Path) -> None:
    media = media_processor(real, "qwen2_5_vl")
    (tall,) = images([(60, 90)])
    assert_same(media, [PreparedMedia(["image"], [tall.values[0].convert(mode)]) for mode in ("L", "P", "RGBA")])


class Padding:
    """An image processor that puts a black line below its normalized pixels."""

    def rescale_and_normalize(self, pixels: torch.Tensor, *settings: Any) -> torch.Tensor:
        return pixels / 255

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        done = self.rescale_and_normalize(pixels, True, 1 / 255, True, [0.5] * 3, [0.5] * 3)
        return torch.nn.functional.pad(done, (0, 0, 0, 1))


def test_what_is_added_behind_the_normalization_is_seen() -> None:
    """Zeros of a frame are no black pixels: normalized they would be other numbers."""
    steps = _Steps()
    made = steps.copy_keeping_bytes(Padding())(torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    with pytest.raises(UnknownPixelStepError):
        steps.pixel_input_and_scale({"pixel_values": made})


def test_a_picture_of_the_caller_is_not_shared() -> None:
    """A decoded image in RGB needs no copy; the caller's own would change with it."""
    given = Image.open(io.BytesIO(picture(8, 8)))
    lazy = LazyImage(given, "a")
    lazy.load()
    lazy.putpixel((0, 0), (1, 2, 3))
    assert given.getpixel((0, 0)) == Image.open(io.BytesIO(picture(8, 8))).getpixel((0, 0)) != (1, 2, 3)


def test_memory_of_a_batch_before_shows_nowhere(real: Path) -> None:
    """Padding is written, too: what lies in used memory would train a model."""
    need_torchvision()
    encoder = MemberEncoder(build_uncached_template(of_model("qwen_vl", real / "processors/qwen2_5_vl")).input_rules)
    encoder.media_processor._byte_calls = BytePixelProcessor(encoder.media_processor._call, dirty)
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "That."}]
    members = [MemberInput(str(n), turns, [LazyImage(picture(60, 90 + n), "i")], []) for n in range(2)]
    _, media = encoder.encode_together(members, lambda *_: None)
    assert not media["pixel_values"].isnan().any()

"""How the media of members are joined, and that the real processors' media have the tokens they were given."""

from pathlib import Path
from typing import Any

import pytest
import torch

from energon_pack.samples.flavors.base import MemberInput
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.probe import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.processor import load_template
from energon_pack.templates.template import Sample
from energon_pack.training.members import MemberEncoder
from energon_pack.training.pixels import join
from energon_pack.training.rope import Rope
from support.models import of_model
from support.running import need_torchvision
from support.samples import picture, video


def test_patches_follow_each_other() -> None:
    joined = join([{"pixel_values": torch.ones(4, 6), "image_grid_thw": torch.tensor([[1, 2, 2]])}] * 2 + [{}])
    assert joined["pixel_values"].shape == (8, 6)
    assert joined["image_grid_thw"].tolist() == [[1, 2, 2]] * 2


def test_tiles_are_filled_up_where_the_model_counts_them() -> None:
    onevision = [{"pixel_values": torch.ones(1, n, 3, 2, 2), "batch_num_images": torch.tensor([1])} for n in (2, 5)]
    assert join(onevision)["pixel_values"].shape == (2, 5, 3, 2, 2)
    idefics = [
        {"pixel_values": torch.ones(1, n, 3, 4, s), "pixel_attention_mask": torch.ones(1, n, 4, s)}
        for n, s in ((2, 4), (5, 6))
    ]
    assert join(idefics)["pixel_values"].shape == (1, 7, 3, 4, 6)
    assert int(join(idefics)["pixel_attention_mask"].sum()) == 2 * 16 + 5 * 24


def test_images_of_two_sizes_are_framed_where_the_model_knows_theirs() -> None:
    """A batch of two packs of Pixtral's ended the training: each call of its processor frames what it is given."""
    pixtral = [
        {"pixel_values": torch.ones(1, 3, h, w), "image_sizes": torch.tensor([[h, w]])} for h, w in ((4, 8), (6, 2))
    ]
    joined = join(pixtral)
    assert joined["pixel_values"].shape == (2, 3, 6, 8)
    assert joined["pixel_values"][1, :, :, 2:].sum() == 0
    assert joined["image_sizes"].tolist() == [[4, 8], [6, 2]]


def test_patches_lie_side_by_side_or_below_each_other_as_the_model_counts_them() -> None:
    """MiniCPM-V has one row of patches for a batch; LFM2-VL a row for each image, with a mask of as many."""
    minicpm = [{"pixel_values": torch.ones(1, 3, 2, 2 * n), "target_sizes": torch.tensor([[1, n]])} for n in (4, 6)]
    assert join(minicpm)["pixel_values"].shape == (1, 3, 2, 20)
    assert join(minicpm)["target_sizes"].tolist() == [[1, 4], [1, 6]]
    lfm2 = [{"pixel_values": torch.ones(n, 16, 12), "pixel_attention_mask": torch.ones(n, 16)} for n in (1, 2)]
    assert join(lfm2)["pixel_values"].shape == (3, 16, 12)
    assert join(lfm2)["pixel_attention_mask"].shape == (3, 16)


def test_tiles_of_two_sizes_are_an_error() -> None:
    with pytest.raises(ValueError, match="pixel_values of these members can't be joined"):
        join([{"pixel_values": torch.ones(1, 3, 4, 4)}, {"pixel_values": torch.ones(1, 3, 6, 6)}])


def num_patches(media: dict[str, Any], name: str) -> int:
    return int(media[name].prod(1).sum()) // 4 if name in media else 0


@pytest.mark.parametrize(("name", "family"), [("qwen2_5_vl", "qwen_vl"), ("qwen3_vl", "qwen3_vl")])
def test_real_processors_make_a_feature_for_each_token(real: Path, name: str, family: str) -> None:
    need_torchvision()
    template = load_template(of_model(family, real / "processors" / name))
    encoder = MemberEncoder(template, Rope(name, tokens_per_second=2))
    turns = [{"role": "user", "content": "<video> and <image>, what?"}, {"role": "assistant", "content": "That."}]
    for frames in (None, [[0, 3, 9, 20]]):
        member = encoder.encode(MemberInput("k", turns, [LazyImage(picture(300, 200), "i")], [video()], None, frames))
        assert int((member.tokens.types == 1).sum()) == num_patches(member.media, "image_grid_thw")
        assert int((member.tokens.types == 2).sum()) == num_patches(member.media, "video_grid_thw")


def test_a_text_that_spells_a_feature_token_is_refused(real: Path) -> None:
    """Gemma 3 has another token for features than for an image in a text; one too many of them ends a training."""
    template = load_template(of_model("gemma3", real / "processors" / "gemma3"))
    turns = [{"role": "user", "content": "<image_soft_token>?"}, {"role": "assistant", "content": "That."}]
    with pytest.raises(Skip, match="the text spells the media token <image_soft_token>"):
        template.render(Sample(turns, []))
    turns[0]["content"] = "<image>?"
    assert template.render(Sample(turns, [Media("image", 60, 60)])).num_visual_tokens == 256


def test_media_of_both_kinds_keep_their_order(real: Path) -> None:
    """InternVL has one token for both: what comes first in the text comes first in the pixels."""
    need_torchvision()
    template = load_template(of_model("internvl", real / "processors" / "internvl3_hf"))
    turns = [{"role": "user", "content": "<image> and <video> and <image>"}, {"role": "assistant", "content": "That."}]
    images = [LazyImage(picture(900, 500), "a"), LazyImage(picture(300, 300), "b")]
    member = MemberEncoder(template).encode(MemberInput("k", turns, images, [video()], None, [[0, 3, 9]]))
    pixels = member.media["pixel_values"]
    assert int((member.tokens.types > 0).sum()) == 256 * len(pixels)
    assert pixels.shape[2:] == (448, 448)  # its published video settings say 384
    is_teal = [torch.allclose(tile.mean((1, 2)), pixels[0].mean((1, 2)), atol=0.05) for tile in pixels]
    assert is_teal == [True] * (len(pixels) - 4) + [False] * 3 + [True]

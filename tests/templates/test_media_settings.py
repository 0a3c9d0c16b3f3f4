"""What a record says of one medium (qwen_vl_utils' keys) is what the model sees, and what is counted.

Without it `max_pixels` of a picture is ignored: 914 tokens are packed and trained for the 64 that its owner asked for.
"""

import io
import random
from dataclasses import replace
from functools import cache as once
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_pack.samples.conversation import options_of
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import prepare_media_for_processor
from energon_pack.samples.media.read_media import media_seen_by_model, probe, with_requested_settings
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.rules import FrameSampling
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.preparation import MediaPreparation
from energon_pack.templates.processor import load_saved_template, prepare_template
from energon_pack.templates.processor_inputs import full_processor_ids
from energon_pack.templates.sample import Sample
from energon_pack.templates.settings import MediaConfig, TransparentPixelColour
from energon_pack.templates.template import Template
from support.labels.media_meaning import frames_by, size_by
from support.models import of_model
from support.running import REAL, need_torchvision
from support.samples import video

IMAGE, VIDEO = Media("image", 1000, 700), Media("video", 320, 240, "mp4", 300, 10.0)
MODELS = {"qwen2_vl": "qwen_vl", "qwen2_5_vl": "qwen_vl", "qwen3_vl": "qwen3_vl"}


def template_of(processor: Path, cache: Path, family: str = "qwen_vl", **media: Any) -> Template:
    return load_saved_template(prepare_template(of_model(family, processor, MediaConfig(**media)), cache))


@pytest.fixture
def template(demo: tuple[Path, Path], cache: Path) -> Template:
    return template_of(demo[1], cache)


def asked(medium: Media, **settings: Any) -> Media:
    return with_requested_settings([medium], None, options_of({"media_settings": [settings]}))[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_pixels": 50176}, (252, 168)),  # 9 × 6 = 54 squares of 28, of 64
        ({"min_pixels": 2_000_000}, (1708, 1204)),
        ({"resized_height": 100, "resized_width": 300}, (308, 112)),
        ({"max_pixels": 400_000, "min_pixels": 4}, (728, 504)),
    ],
)
def test_pixels_of_an_image(template: Template, settings: dict[str, Any], expected: tuple[int, int]) -> None:
    medium = asked(IMAGE, **settings)
    prepared = template.prepared(medium, 0)
    assert (prepared.width, prepared.height, prepared.settings) == (*expected, None)
    assert template.prepare_image(Image.new("RGB", (1000, 700)), medium.settings).size == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"nframes": 5}, [0, 100, 199, 299]),  # 5 rounds to 4, as Python rounds
        ({"fps": 0.2}, [0, 60, 120, 179, 239, 299]),
        ({"fps": 0.2, "max_frames": 4}, [0, 100, 199, 299]),
        ({"fps": 0.01}, [0, 100, 199, 299]),  # at least 4
        ({"fps": 0.01, "min_frames": 2}, [0, 299]),
        ({"video_start": 1.05, "video_end": 1.99, "nframes": 4}, [11, 14, 16, 19]),
        ({"video_end": 0.25, "nframes": 2}, [0, 2]),
        ({"video_start": 29.75}, [298, 299]),
    ],
)
def test_frames_of_a_video(template: Template, settings: dict[str, Any], expected: list[int]) -> None:
    assert template.choose_frames(asked(VIDEO, **settings)) == expected


def test_a_range_leaves_the_rest_to_the_run(demo: tuple[Path, Path], cache: Path) -> None:
    """`video_start` alone says nothing of how many frames: the run's own choice is made within."""
    run = template_of(demo[1], cache, video="uniform", num_frames=4)
    assert run.choose_frames(asked(VIDEO, video_start=10, video_end=10.75)) == [100, 102, 104, 106]
    assert len(run.choose_frames(asked(VIDEO, fps=1))) == 30
    other = Template(replace(run.spec, media=MediaConfig(video="fps", fps=0.5)), run.rules, run.tokenizer)
    assert len(other.choose_frames(asked(VIDEO, max_frames=10))) == 10
    utils = Template(replace(run.spec, media=MediaConfig(video="qwen_vl_utils")), run.rules, run.tokenizer)
    assert len(utils.choose_frames(asked(VIDEO, video_start=10))) == 40  # 20 seconds


def test_frames_are_resized_for_all_of_them(template: Template) -> None:
    """768 tokens at most, and at most so many pixels for all frames together: two frames share a token."""
    large = asked(Media("video", 1920, 1080, "mp4", 300, 10.0), nframes=100, total_pixels=100 * 50176)
    prepared = template.prepared(large, 100)
    assert (prepared.width, prepared.height) == (420, 224)  # of 105,369 pixels: 1.05 times the least 128 squares
    frames = template.prepare_frames([Image.new("RGB", (1920, 1080))] * 2, large.settings)
    assert {frame.size for frame in frames} == {(1008, 560)}  # two frames have all the room there is
    assert template.prepared(asked(VIDEO, fps=1), 30).width == 320  # a rate leaves pixels to the processor


@pytest.mark.parametrize(
    ("medium", "settings", "said"),
    [
        (IMAGE, {"max_pixels": "many"}, "max_pixels is 'many', no number"),
        (IMAGE, {"max_pixels": 0}, "max_pixels is 0, no number above 0"),
        (IMAGE, {"fps": 2}, "fps of an image: there are min_pixels"),
        (IMAGE, {"detail": "high"}, "detail of an image"),
        (IMAGE, {"resized_height": 56}, "resized_height and resized_width go together"),
        (VIDEO, {"fps": 2, "nframes": 8}, "fps=2 and nframes=8: one of them"),
        (VIDEO, {"sample_fps": 2}, "sample_fps of a video"),
    ],
)
def test_what_says_nothing_is_a_bad_message(medium: Media, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Skip) as skip:
        asked(medium, **settings)
    assert skip.value.reason is Reason.BAD_MESSAGE
    assert said in skip.value.detail


def test_what_can_not_be_followed_is_named(template: Template) -> None:
    for medium, said in (
        (asked(IMAGE, min_pixels=9000, max_pixels=8000), "is 8000, less than its min_pixels of 9000: give both"),
        (asked(VIDEO, nframes=400), "wants 400 frames, the video has 300"),
        (asked(VIDEO, video_start=31), "no two frames of a video of 30.00 seconds"),
    ):
        with pytest.raises(Skip) as skip:
            template.prepared(medium, len(template.choose_frames(medium)) if medium.kind == "video" else 0)
        assert said in skip.value.detail
    with pytest.raises(Skip, match="1 entries for 2 media"):
        with_requested_settings([IMAGE, VIDEO], None, options_of({"media_settings": [None]}))
    with pytest.raises(Skip, match="video_frames lists the frames"):
        with_requested_settings([VIDEO], [[0, 1]], options_of({"media_settings": [{"fps": 1}]}))


def test_settings_of_all_media_are_for_those_they_make_sense_of() -> None:
    """ms-swift's way; the template's own variables stay."""
    options = options_of({"chat_template_kwargs": {"max_pixels": 9000, "fps": 1, "enable_thinking": False}})
    assert options.chat_template_kwargs == {"enable_thinking": False}
    image, video = with_requested_settings([IMAGE, VIDEO], None, options)
    assert (image.settings and (image.settings.max_pixels, image.settings.fps)) == (9000, None)
    assert (video.settings and (video.settings.max_pixels, video.settings.fps)) == (9000, 1)


def test_models_without_squares_of_pixels_refuse_them() -> None:
    """Nothing is ignored: the sample is left out, with the model's name and what to do."""
    rules: Any = SimpleNamespace(settings={}, frames=FrameSampling({}))
    other = MediaPreparation("internvl", MediaConfig(), rules)
    with pytest.raises(Skip, match=r"max_pixels of a medium .* model.template=internvl: take it out") as skip:
        other.prepared(asked(IMAGE, max_pixels=9000), 0)
    assert skip.value.reason is Reason.UNSUPPORTED_MEDIA
    assert other.choose_frames(asked(VIDEO, nframes=2)) == [0, 299]


# ------------------------------------------------------------------- against the full processor, with real pixels


def drawn(rng: random.Random, kind: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    way = rng.random()
    if way < 0.25:
        settings = {"resized_height": rng.randint(30, 500), "resized_width": rng.randint(30, 500)}
    elif way < 0.9:
        low = rng.choice((784, 3136, 20_000, 60_000))
        settings = {"min_pixels": low} if rng.random() < 0.6 else {}
        settings |= {"max_pixels": low + rng.choice((0, 5_000, 80_000, 300_000))} if rng.random() < 0.7 else {}
    if kind == "image":
        return settings
    settings |= {"total_pixels": rng.randint(200_000, 3_000_000)} if rng.random() < 0.3 else {}
    settings |= {"nframes": rng.randint(2, 9)} if rng.random() < 0.4 else {"fps": rng.choice((0.5, 1, 2.0))}
    if "fps" in settings and rng.random() < 0.5:
        settings |= {"min_frames": 2, "max_frames": rng.randint(2, 8)}
    if rng.random() < 0.5:
        settings |= {"video_start": 0.5, "video_end": rng.choice((2.4, 3, 30))}
    return settings


@once
def processor_and_template(name: str, route: str, cache: Path) -> tuple[Any, Template]:
    template = template_of(REAL / "processors" / name, cache, MODELS[name], image=route, video=route)
    return load_full_processor(template.spec.processor), template


def compare(name: str, route: str, cache: Path, num: int, seed: int) -> tuple[int, int]:
    """How many samples were compared with the full processor, and how many are other tokens."""
    processor, template = processor_and_template(name, route, cache)
    factor = 32 if name == "qwen3_vl" else 28
    rng, different, compared = random.Random(f"{name} {seed}"), 0, 0
    while compared < num:
        kinds = [rng.choice(("image", "image", "video")) for _ in range(rng.choice((1, 1, 2)))]
        sizes = [(rng.randint(20, 700), rng.randint(20, 500)) for _ in kinds]
        settings = [drawn(rng, kind) for kind in kinds]
        media = [Media(k, *s, *(("mp4", 40, 10.0) if k == "video" else ())) for k, s in zip(kinds, sizes, strict=True)]
        text = "".join(f"<{kind}> and " for kind in kinds)
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
        options = options_of({"media_settings": settings})
        try:
            sample = Sample(messages, with_requested_settings(media, None, options), None, options)
            ids = template.encode(sample).ids
        except Skip as skip:
            if skip.reason is not Reason.BAD_MESSAGE:  # a least above the most is one, as the package asserts
                raise
            continue
        images, clips, metadata = [], [], []
        for kind, size, own in zip(kinds, sizes, settings, strict=True):
            chosen, total = frames_by(own, 40, 10.0) if kind == "video" else ([], 0)
            made = Image.new("RGB", size_by(own, size, factor, len(chosen), route != "default"), "teal")
            if kind == "image":
                images.append(made)
                continue
            clips.append(np.stack([np.asarray(made)] * len(chosen)))
            metadata.append({"fps": 10.0, "frames_indices": chosen, "total_num_frames": total, "duration": total / 10})
        given: dict[str, Any] = {"images": images, "images_kwargs": {"do_resize": route == "default"}} if images else {}
        if clips:
            given["videos"] = clips
            given["videos_kwargs"] = {
                "do_sample_frames": False, "video_metadata": metadata, "do_resize": route == "default",
            }  # fmt: skip
        different += full_processor_ids(processor, template, sample, given) != ids
        compared += 1
    return compared, different


@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/real")
def test_lengths_are_the_full_processors(cache: Path) -> None:
    need_torchvision()
    assert compare("qwen3_vl", "default", cache, 40, 0) == (40, 0)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/real")
@pytest.mark.parametrize("route", ["default", "qwen_vl_utils"])
@pytest.mark.parametrize("name", MODELS)
def test_lengths_of_many_are_the_full_processors(name: str, route: str, cache: Path) -> None:
    need_torchvision()
    assert compare(name, route, cache, 350, 1) == (350, 0)


def test_the_pixels_of_training_are_those_that_were_counted(template: Template) -> None:
    media = [
        asked(IMAGE, max_pixels=50176),
        asked(Media("video", 320, 240, "mp4", 300, 10.0, (0, 9)), max_pixels=110_000),
    ]
    frames = [Image.new("RGB", (320, 240))] * 300
    clip = media[1]
    prepared = prepare_media_for_processor(
        template.input_rules, template.seen(media[:1]), [Image.new("RGB", (1000, 700))]
    )
    assert [image.size for image in prepared.values] == [(252, 168)]
    shown = template.prepare_frames(frames[:2], clip.settings)
    assert shown[0].size == (template.prepared(clip, 2).width, template.prepared(clip, 2).height) != (320, 240)


# ---------------------------------------------------------------------------- the colours that the processor is given


def image_file(mode: str, colour: Any, orientation: int = 1, **how: Any) -> LazyImage:
    """A PNG of 40×30 pixels in one colour, that its EXIF may turn."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.new(mode, (40, 30), colour).save(file, "PNG", exif=exif, **how)
    return LazyImage(file.getvalue(), "0.png")


def preparation(**media: Any) -> MediaPreparation:
    rules: Any = SimpleNamespace(settings={"factor": 28}, frames=FrameSampling({}), rate=0)
    return MediaPreparation("qwen_vl", MediaConfig(**media), rules)


@pytest.mark.parametrize(
    ("media", "rgba", "la", "paletted"),
    [
        ({}, (200, 0, 0), (9, 9, 9), (7, 8, 9)),  # as in transformers, the colours that are stored there
        ({"alpha": TransparentPixelColour.white}, (255, 255, 255), (255, 255, 255), (255, 255, 255)),
        ({"alpha": TransparentPixelColour.black}, (0, 0, 0), (0, 0, 0), (0, 0, 0)),
        ({"image": "qwen_vl_utils"}, (255, 255, 255), (9, 9, 9), (7, 8, 9)),  # as in that package, RGBA alone
        ({"image": "qwen_vl_utils", "alpha": TransparentPixelColour.black}, (0, 0, 0), (0, 0, 0), (0, 0, 0)),
    ],
)
def test_what_is_behind_transparent_pixels(media: dict[str, Any], rgba: Any, la: Any, paletted: Any) -> None:
    """A drawing without a background was trained on black, and is served on white."""
    prepare = preparation(**media).prepare_image
    palette = Image.new("P", (40, 30), 0)
    palette.putpalette([7, 8, 9])
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=0)
    files = [
        image_file("RGBA", (200, 0, 0, 0)),
        image_file("LA", (9, 0)),
        LazyImage(file.getvalue(), ""),
        image_file("RGB", (1, 2, 3)),
    ]
    assert [prepare(own).getpixel((5, 5)) for own in files] == [rgba, la, paletted, (1, 2, 3)]


def test_packs_of_two_backgrounds_are_not_one_dataset(template: Template) -> None:
    """Their lengths are equal; mixed in one training, one of them would get the other's pixels."""
    white = Template(
        replace(template.spec, media=MediaConfig(alpha=TransparentPixelColour.white)),
        template.rules,
        template.tokenizer,
    )
    assert white.fingerprint != template.fingerprint


@pytest.mark.parametrize(("media", "size"), [({}, (30, 40)), ({"image": "qwen_vl_utils"}, (84, 56))])
def test_the_package_knows_no_orientation(media: dict[str, Any], size: tuple[int, int]) -> None:
    """`media=qwen_vl_utils` turned what the package does not: another grid of as many tokens."""
    prepare, image = preparation(**media), image_file("RGB", "teal", orientation=6)
    assert image.size == (30, 40)
    prepared = prepare.prepared(image.medium, 0)
    assert (prepared.width, prepared.height) == size == prepare.prepare_image(image).size


def test_frames_are_resized_as_torch_resizes() -> None:
    """The package resizes a video as a tensor, and Pillow's pixels are others."""
    need_torchvision()
    from torchvision.transforms import functional

    pixels = np.random.default_rng(0).integers(0, 256, (1, 60, 90, 3), np.uint8)
    (frame,) = preparation(video="qwen_vl_utils").prepare_frames([Image.fromarray(pixels[0])])
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    expected = functional.resize(tensor, frame.size[::-1], functional.InterpolationMode.BICUBIC, antialias=True)
    assert np.array_equal(np.asarray(frame), expected[0].permute(1, 2, 0).numpy())


def test_a_list_of_frames_is_resized_twice() -> None:
    """As in the package: first each frame as an image of tokens twice as wide, then the video."""
    frame = Media("image", 320, 180)
    first = with_requested_settings([frame, frame], None, options_of({"media_settings": [{"list_of_frames": 2}, None]}))
    ((video, _),) = media_seen_by_model(first)
    prepared = preparation(video="qwen_vl_utils").prepared(video, 2)
    assert (prepared.width, prepared.height) == (448, 224)  # once: 448×252


def test_frames_of_another_size_are_named(template: Template) -> None:
    """A film may say in its frames alone that it is turned (H.264 can): its header counted other tokens."""
    data = video(4, 64, 48)
    medium = probe(io.BytesIO(data))
    (clip,) = prepare_media_for_processor(template.input_rules, template.seen([medium]), [data]).values
    assert clip.frames.shape == (4, 48, 64, 3)
    turned = template.seen([replace(medium, width=48, height=64)])
    with pytest.raises(ValueError, match=r"its picture is 64×48, and 48×64 by its header when it was measured"):
        prepare_media_for_processor(template.input_rules, turned, [data])

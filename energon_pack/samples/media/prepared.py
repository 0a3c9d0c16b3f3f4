"""Prepare media for a processor's call, in training and where lengths are verified, and make the call's arguments."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.lazy_image import decode_if_lazy
from energon_pack.samples.media.medium import Media
from energon_pack.samples.member import BY_PACKAGE, CROP, RESIZE_BY_TORCH, MediumInput, PixelStep


class VideoClip(NamedTuple):
    """The frames of a video that a model sees, and the video's sound if it is heard."""

    frames: Any  # uint8 [n, height, width, 3]
    metadata: dict[str, Any]  # for the processor
    sound: Any = None  # float32 [n]


class PreparedMedia(NamedTuple):
    """The media of a sample as a processor's call takes them, in the order of their placeholders."""

    #: the kind of each
    order: Sequence[str] = ()
    #: images, `VideoClip`s, sounds of float32 [n], or what `Medium.decoded` returns
    values: Sequence[Any] = ()

    def of_kind(self, kind: str) -> list[Any]:
        """Return the media of one kind, such as `image`, in their order."""
        return [value for own, value in zip(self.order, self.values, strict=True) if own == kind]

    def first_media(self, number: int) -> "PreparedMedia":
        """Return the first `number` media."""
        return PreparedMedia(self.order[:number], self.values[:number])

    @property
    def kinds(self) -> set[str]:
        """The kinds of media for which a processor makes inputs; a video with a sound also counts as `audio`."""
        is_heard = any(clip.sound is not None for clip in self.of_kind(VIDEO.kind))
        return {*self.order, *([AUDIO.kind] if is_heard else [])}


def join_media(members: Sequence[PreparedMedia]) -> PreparedMedia:
    """Join the media of several members, one member after the other."""
    return PreparedMedia(
        [kind for member in members for kind in member.order], [value for member in members for value in member.values]
    )


def media_arguments_of_processor(
    media: PreparedMedia, call_settings: Mapping[str, Mapping[str, Any]], nests_images: bool = False
) -> dict[str, Any]:
    """Return the keyword arguments of a processor's call for these media; frames of videos are already chosen.

    Args:
        call_settings: settings of the call for each kind of media.
        nests_images: whether the call takes several images as a list in a list.
    """
    arguments = {KINDS[kind].argument: media.of_kind(kind) for kind in dict.fromkeys(media.order)}
    images, clips, sounds = (arguments.get(medium.argument, []) for medium in (IMAGE, VIDEO, AUDIO))
    arguments |= sound_arguments(media.order, [clip.sound for clip in clips], sounds)
    names = {kind: medium.argument for kind, medium in KINDS.items() if medium.argument in arguments}
    set_by = {name: {**copy.deepcopy(call_settings.get(kind, {}))} for kind, name in names.items()}
    if clips:
        arguments[VIDEO.argument] = [clip.frames for clip in clips]
        metadata = [clip.metadata for clip in clips]
        set_by[VIDEO.argument] |= {"do_sample_frames": False, "video_metadata": metadata}
    if nests_images and len(images) > 1:
        arguments[IMAGE.argument] = [images]
    return arguments | {f"{name}_kwargs": values for name, values in set_by.items() if values}


def video_metadata(num_in_source: float, fps: float, frames: Sequence[int]) -> dict[str, Any]:
    """Return a video's metadata for a processor; `frames`: indices of the chosen ones of `num_in_source` frames."""
    duration = num_in_source / fps
    return {"total_num_frames": num_in_source, "fps": fps, "duration": duration, "frames_indices": [*frames]}


def sound_arguments(order: Sequence[str], tracks: Sequence[Any], sounds: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of a call that hold sounds, in the order of their placeholders; empty: there are no sounds.

    Args:
        order: the kind of each placeholder; needed if a video is heard.
        tracks: the sound of each video, or None if the video is not heard; `sounds`: those of no video.
    """
    if all(track is None for track in tracks):
        return {"audio": list(sounds)} if sounds else {}
    videos, alone = enumerate(tracks), ((None, sound) for sound in sounds)
    sounds_in_order = [next(videos if kind == "video" else alone) for kind in order if kind in ("video", "audio")]
    heard = [(number, sound) for number, sound in sounds_in_order if sound is not None]
    return {
        "audio": [sound for _, sound in heard],
        "audio_from_video_indices": [number for number, _ in heard],
        "load_audio_from_video": True,
    }


def prepare_media_for_processor(
    rules: InputRules, media: Sequence[MediumInput], contents: Sequence[Any]
) -> PreparedMedia:
    """Decode and resize the media of a sample for the call of its processor.

    `contents`: Pillow's image for each image or listed frame of a video, and the bytes of each other medium's file.

    Raises:
        ValueError, OSError: a medium can't be decoded, or has another size than when it was packed.
    """
    ends = [*accumulate(len(medium.part_kinds) for medium in media)]
    each = zip(media, [0, *ends], ends, strict=False)
    return PreparedMedia(
        [medium.kind for medium in media], [_prepared(rules, m, contents[start:end]) for m, start, end in each]
    )


def _prepared(rules: InputRules, medium: MediumInput, data: Sequence[Any]) -> Any:
    if medium.kind == IMAGE.kind:
        return _images_after_steps(rules, medium, data)[0]
    if medium.kind != VIDEO.kind:
        known = Media(medium.kind, medium.width, medium.height, num_samples=medium.num_samples, rate=rules.rate)
        return KINDS[medium.kind].decoded(data[0], known, rules.rate)
    from energon_pack.samples.media.streams import decode_frames  # late: images need no reader of videos

    of_list = [data[index] for index in medium.frames] if medium.num_images else None
    frames = _images_after_steps(rules, medium, of_list or decode_frames(data[0], medium.frames))
    sound = Media(AUDIO.kind, num_samples=medium.num_samples, rate=rules.rate)
    heard = AUDIO.decoded(data[0], sound, rules.rate) if medium.num_samples else None
    return make_clip(medium, frames, heard)


def make_clip(video: MediumInput, frames: Sequence[Image.Image], sound: Any = None) -> VideoClip:
    """Join the frames of a video for a processor's call: uint8 [n, height, width, 3], with the video's metadata.

    `sound`: float32 [n]; None: the video's sound is not used.
    """
    total = int(video.num_in_source) if video.num_in_source == int(video.num_in_source) else video.num_in_source
    pixels = np.stack([np.asarray(frame) for frame in frames])
    return VideoClip(pixels, video_metadata(total, video.fps, video.frames), sound)


def _images_after_steps(rules: InputRules, medium: MediumInput, images: Sequence[Any]) -> list[Image.Image]:
    shown = [decode_if_lazy(image, rules.looks[medium.kind]) for image in images]
    if other := next((image.size for image in shown if image.size != (medium.width, medium.height)), None):
        from energon_pack.samples.media.streams import UndecodableError

        expected = f"{medium.width}×{medium.height}"
        raise UndecodableError(
            f"its picture is {other[0]}×{other[1]}, and {expected} by its header when it was measured"
        )
    return apply_medium_steps(rules, medium, shown)


def apply_medium_steps(rules: InputRules, medium: MediumInput, images: Sequence[Image.Image]) -> list[Image.Image]:
    """Apply the steps of a medium (resize, crop …) to its images or frames."""
    return [apply_steps(image, medium.steps, partial(_preprocessed_by_package, rules)) for image in images]


def _preprocessed_by_package(rules: InputRules, image: Image.Image) -> Image.Image:
    """Return an image after the preprocessor of another package; raises PackError if it can't be imported."""
    changed_image: Image.Image = _preprocessor(json.dumps(rules.media)).apply(image)
    return changed_image


@lru_cache(maxsize=1)
def _preprocessor(media: str) -> Any:
    from energon_pack.run.load_by_name import load_entry_point, load_named  # late: only a package's class needs it

    settings = json.loads(media)
    name = settings["image"]
    make: Any = load_named("media.image", name) if ":" in name else load_entry_point("media", "media.image", name)
    return make(SimpleNamespace(**settings), settings["factor"])


def processor_arguments(rules: InputRules, media: PreparedMedia) -> dict[str, Any]:
    """Return the keyword arguments of a processor's call for these media, with the settings of `rules`."""
    return media_arguments_of_processor(media, rules.call_settings, rules.nests_images)


def apply_steps(
    image: Image.Image, steps: Sequence[PixelStep], change: Callable[[Image.Image], Image.Image]
) -> Image.Image:
    """Apply steps (resize, crop …) to an image; `change`: a function for the step of another package's preprocessor."""
    for step in steps:
        size = step.width, step.height
        if step.operation == BY_PACKAGE:
            image = change(image)
        elif step.operation == CROP:
            x, top = (image.width - step.width) // 2, (image.height - step.height) // 2
            image = image.crop((x, top, x + step.width, top + step.height))
        elif step.operation == RESIZE_BY_TORCH:
            image = _resized_by_torch(image, size)
        else:
            image = image.resize(size, Image.Resampling.BICUBIC)
    return image


def _resized_by_torch(frame: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize a frame as qwen_vl_utils does: with torch, whose pixels differ from Pillow's."""
    from torch import from_numpy
    from torch.nn.functional import interpolate

    pixels = from_numpy(np.array(frame)).permute(2, 0, 1)[None].float()
    pixels = interpolate(pixels, size=size[::-1], mode="bicubic", align_corners=False, antialias=True)
    return Image.fromarray(pixels.clamp(0, 255).round()[0].byte().permute(1, 2, 0).numpy())

"""Make the arguments of a processor's call that hold media; stand-ins and real media get the same arguments."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO


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


def media_arguments(
    media: PreparedMedia, settings: Mapping[str, Mapping[str, Any]], nests_images: bool = False
) -> dict[str, Any]:
    """Return the keyword arguments of a processor's call for these media; frames of videos are already chosen.

    Args:
        settings: settings of the call for each kind of media.
        nests_images: whether the call takes several images as a list in a list.
    """
    arguments = {KINDS[kind].argument: media.of_kind(kind) for kind in dict.fromkeys(media.order)}
    images, clips, sounds = (arguments.get(medium.argument, []) for medium in (IMAGE, VIDEO, AUDIO))
    arguments |= sound_arguments(media.order, [clip.sound for clip in clips], sounds)
    names = {kind: medium.argument for kind, medium in KINDS.items() if medium.argument in arguments}
    set_by = {name: {**copy.deepcopy(settings.get(kind, {}))} for kind, name in names.items()}
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

"""Make random media of several sizes, to try processors and models."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.templates.families.arguments import Clip, Prepared, merged, metadata_of
from energon_pack.templates.identity import HEARD
from energon_pack.templates.template import Template

#: (width, height) of each member's images; they differ so that processors cut them into unequal numbers of tiles
_IMAGES = ([(96, 64)], [(300, 700)], [(1000, 600), (120, 80)])
#: number of frames, width and height of each member's video
_CLIPS = ((4, 96, 64), (8, 160, 240), (6, 64, 64))
_FPS = 2.0
#: seconds of each member's sounds
_SOUNDS = ([0.7], [2.3], [1.1, 0.4])


def content(template: Template, medium: Media, seed: int) -> Any:
    """Return random content of a medium for the processor's call; all frames of a video are used."""
    noise = KINDS[medium.kind].noise(medium, np.random.default_rng(seed))
    if medium.kind == IMAGE.kind:
        return template.prepare_image(noise)
    if medium.kind != VIDEO.kind:
        return noise
    frames = template.prepare_frames([*map(Image.fromarray, noise)])
    return Clip(np.stack([np.asarray(frame) for frame in frames]), metadata_of(medium))


def image(width: int, height: int) -> Media:
    return Media(IMAGE.kind, width, height)


def clip(template: Template, num_frames: int, width: int, height: int) -> Media:
    """Return a video; with `media.num_frames` every video has that many frames."""
    number = template.spec.media.num_frames or num_frames
    return Media(VIDEO.kind, width, height, "mp4", number, _FPS, tuple(range(number)))


def sound(template: Template, seconds: float) -> Media:
    """Return a sound at the rate of the processor."""
    return Media(AUDIO.kind, num_samples=round(seconds * template.rules.rate), rate=template.rules.rate)


def one(template: Template, kind: str, seed: int, seconds: float = 1.2) -> tuple[Media, Any]:
    """Return a small medium as the model sees it, and its random content.

    Args:
        kind: of `KINDS`; HEARD: a video that is heard.
        seconds: of a sound; that of a video is longer.
    """
    if kind == HEARD:
        medium, own = one(template, VIDEO.kind, seed)
        track = sound(template, 2.7)
        heard = own._replace(sound=content(template, track, seed))
        return replace(medium, num_samples=track.num_samples, rate=track.rate), heard
    known = {IMAGE.kind: image(96, 64), VIDEO.kind: clip(template, 4, 96, 64), AUDIO.kind: sound(template, seconds)}
    medium = known.get(kind) or KINDS[kind].drawn(np.random.default_rng(seed))
    return medium, content(template, medium, seed)


def members(template: Template, kind: str) -> Iterator[Prepared]:
    """Yield members with media of one kind, in several sizes and numbers."""
    for seed, media in enumerate(_members(template, kind)):
        yield _prepared(template, media, seed)


def twins(template: Template, kind: str) -> Iterator[Prepared]:
    """Yield members with media of one kind and one size."""
    media = _members(template, kind)[0]
    for seed in (7, 8):
        yield _prepared(template, media, seed)


def heard(template: Template) -> Iterator[Prepared]:
    """Yield members with clips that are heard: a clip alone, and a clip behind a sound."""
    for number, (member, seconds) in enumerate(zip(members(template, VIDEO.kind), (1.3, 2.9), strict=False)):
        [own] = member.values
        track = content(template, sound(template, seconds), number)
        with_sound = Prepared(member.order, [own._replace(sound=track)])
        before = _prepared(template, [sound(template, 0.6)], number)
        yield merged([before, with_sound]) if number else with_sound


def _members(template: Template, kind: str) -> list[list[Media]]:
    if kind == IMAGE.kind:
        return [[image(*size) for size in sizes] for sizes in _IMAGES]
    if kind == VIDEO.kind:
        return [[clip(template, *size)] for size in _CLIPS]
    if kind == AUDIO.kind:
        return [[sound(template, seconds) for seconds in lengths] for lengths in _SOUNDS]
    rng = np.random.default_rng(0)
    return [[KINDS[kind].drawn(rng) for _ in range(number)] for number in (1, 1, 2)]


def _prepared(template: Template, media: Sequence[Media], seed: int) -> Prepared:
    return Prepared([medium.kind for medium in media], [content(template, medium, seed) for medium in media])

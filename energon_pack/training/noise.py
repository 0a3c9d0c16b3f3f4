"""Fill the media of a trial with random content."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.arguments import Prepared
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import changed, clip
from energon_pack.samples.tokens import MemberTokens, SeenMedium


def content(rules: InputRules, medium: SeenMedium, seed: int) -> Any:
    """Return random content of a medium for the processor's call."""
    rng = np.random.default_rng(seed)
    size = medium.width, medium.height
    sound = Media(AUDIO.kind, num_samples=medium.num_samples, rate=rules.rate)
    if medium.kind == IMAGE.kind:
        return changed(rules, medium, [IMAGE.noise(Media(IMAGE.kind, *size), rng)])[0]
    if medium.kind == VIDEO.kind:
        frames = VIDEO.noise(Media(VIDEO.kind, *size, num_frames=len(medium.frames)), rng)
        heard = AUDIO.noise(sound, rng) if medium.num_samples else None
        return clip(medium, changed(rules, medium, [*map(Image.fromarray, frames)]), heard)
    if medium.kind == AUDIO.kind:
        return AUDIO.noise(sound, rng)
    return KINDS[medium.kind].noise(Media(medium.kind, *size, num_samples=medium.num_samples, rate=rules.rate), rng)


def filled(rules: InputRules, member: MemberTokens, seed: int) -> Prepared:
    """Return the media of a member with random content."""
    return Prepared([medium.kind for medium in member.media], [content(rules, one, seed) for one in member.media])


def members(rules: InputRules, purpose: str, kind: str) -> Iterator[Prepared]:
    """Yield the media of the trial's members of a purpose and a kind."""
    yield from (filled(rules, one, seed) for seed, one in enumerate(tokens_of(rules, purpose, kind)))


def tokens_of(rules: InputRules, purpose: str, kind: str) -> list[MemberTokens]:
    """Return the trial's members of a purpose and a kind."""
    return [one.tokens for one in rules.trial if (one.purpose, one.kind) == (purpose, kind)]

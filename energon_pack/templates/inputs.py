"""Say how tokens and media become a model's inputs, and make the members of a trial.

They are short conversations and media of several sizes, whose content training draws at random. A processor is tried
with the media, before its calls for many members are joined; a model is tried with the members.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from energon_pack.run.plain_data import plain
from energon_pack.run.user_cache import version_of
from energon_pack.samples.input_rules import (
    BLANK_IMAGE,
    MODEL_PROBE,
    SAME_SIZE,
    SEVERAL_SIZES,
    VIDEOS_WITH_SOUND,
    InputRules,
    Trial,
)
from energon_pack.samples.media.asked import as_asked
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.probe import probe
from energon_pack.samples.member import MemberInput
from energon_pack.samples.placeholders import split_content
from energon_pack.samples.skip import Skip
from energon_pack.samples.tokens import LengthError, MemberTokens
from energon_pack.templates.families import ASKED
from energon_pack.templates.sample import Sample

#: a `Template`, whose module imports this one
Template = Any

#: (width, height) of each member's images; they differ so that processors cut them into unequal numbers of tiles
_IMAGES = ([(96, 64)], [(300, 700)], [(1000, 600), (120, 80)])
#: number of frames, width and height of each member's video
_CLIPS = ((4, 96, 64), (8, 160, 240), (6, 64, 64))
_FPS = 2.0
#: seconds of each member's sounds
_SOUNDS = ([0.7], [2.3], [1.1, 0.4])
#: seconds of the sound of a member for a model, of a second one, which pads the first, and of a video's
_SHORT, _LONG = 1.2, 2.7

#: texts by which tokenizers are compared
_TEXTS = (
    "The 3 quick foxes jump over 12,345.67 lazy dogs.",
    "def f(x):\n\treturn {'a': x}  # ☃",
    "你好世界 Größe €",
)


def input_rules_of(template: Template) -> InputRules:
    """Return what training needs of a template."""
    spec, rules = template.spec, template.rules
    names = rules.holders
    known = dict.fromkeys([*template.special, *spec.processor.tokens.values(), *names.values()])
    ids = {text: number for text in known if (number := template.token_id(text)) is not None}
    types = [(medium.token_type, ids.get(names[kind])) for kind, medium in KINDS.items() if kind in names]
    return InputRules(
        folder=spec.processor.folder,
        transformers=version_of("transformers"),
        kwargs=spec.processor.kwargs,
        tokens=spec.processor.tokens,
        token_ids=ids,
        num_ids=template.vocabulary_size,
        settings={
            IMAGE.kind: spec.processor.image,
            VIDEO.kind: spec.processor.video,
            AUDIO.kind: spec.processor.audio,
        },
        media_tokens=template.media_tokens,
        types=types,
        placeholders={kind: rules.placeholder(kind) for kind in rules.media_tokens},
        call_settings=rules.call_settings(spec.processor),
        nests_images=rules.nests_images,
        hears_videos=rules.hears_videos,
        rate=rules.rate,
        is_asked=spec.family in ASKED,
        looks=template.looks,
        media={**plain(spec.media), "factor": template.factor},
        trial=trial_of(template),
        texts=[(text, template.ids_of(text)) for text in _TEXTS],
        tokenize=partial(tokens_of, template),
    )


def trial_of(template: Template) -> list[Trial]:
    """Return small made-up members on which the inputs of media are tried, for each kind that a template takes."""
    kinds = [kind for kind in KINDS if kind in template.media_tokens]
    trial = [*_probes(template, kinds)]
    for kind in kinds:
        sizes = _sizes(template, kind)
        for media in sizes:
            trial += _of_media(template, SEVERAL_SIZES, kind, media)
        trial += _of_media(template, SAME_SIZE, kind, sizes[0]) * 2
    if template.rules.hears_videos:
        first, second = (_clip(template, *size) for size in _CLIPS[:2])
        for media in ([_heard(template, first, 1.3)], [_sound(template, 0.6), _heard(template, second, 2.9)]):
            trial += _of_media(template, VIDEOS_WITH_SOUND, VIDEOS_WITH_SOUND, media)
    if IMAGE.kind in kinds:
        trial += _of_media(template, BLANK_IMAGE, IMAGE.kind, [Media(IMAGE.kind, 64, 64)])
    return trial


def _probes(template: Template, kinds: Sequence[str]) -> Iterator[Trial]:
    """Yield members for a model: of text, and with a medium of each kind."""
    each: list[tuple[str, list[Media]]] = [("", [])]
    for kind in kinds:
        each.append((kind, _sizes(template, kind)[0] if kind != AUDIO.kind else [_sound(template, _SHORT)]))
    each += [(AUDIO.kind, [_sound(template, _LONG)])] * (AUDIO.kind in kinds)
    if template.rules.hears_videos:
        each.append((VIDEOS_WITH_SOUND, [_heard(template, _clip(template, *_CLIPS[0]), _LONG)]))
    for number, (kind, media) in enumerate([*each, ("", [])]):
        named = VIDEO.kind if kind == VIDEOS_WITH_SOUND else kind
        asked = f"{f'<{named}>' if named else ''} What is number {number}?"
        answered = f"A {named or 'word'}, {number} of 9."
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        with suppress(Skip):  # training can't use such media, either
            yield Trial(MODEL_PROBE, kind, *template.member_tokens([Sample(messages, media)]))


def _of_media(template: Template, purpose: str, kind: str, media: Sequence[Media]) -> list[Trial]:
    """Return the member of these media; none where the rules of media refuse a size."""
    try:
        seen = template.seen(media, template.num_features(media))
    except Skip:
        return []
    return [Trial(purpose, kind, MemberTokens(np.zeros(0, np.int64), [], media=seen))]


def _sizes(template: Template, kind: str) -> list[list[Media]]:
    """Return media of one kind, in several sizes and numbers."""
    if kind == IMAGE.kind:
        return [[Media(kind, *size) for size in sizes] for sizes in _IMAGES]
    if kind == VIDEO.kind:
        return [[_clip(template, *size)] for size in _CLIPS]
    if kind == AUDIO.kind:
        return [[_sound(template, seconds) for seconds in lengths] for lengths in _SOUNDS]
    rng = np.random.default_rng(0)
    return [[KINDS[kind].drawn(rng) for _ in range(number)] for number in (1, 1, 2)]


def _clip(template: Template, num_frames: int, width: int, height: int) -> Media:
    """Return a video; with `media.num_frames` every video has that many frames."""
    number = template.spec.media.num_frames or num_frames
    return Media(VIDEO.kind, width, height, "mp4", number, _FPS, tuple(range(number)))


def _sound(template: Template, seconds: float) -> Media:
    rate = template.rules.rate
    return Media(AUDIO.kind, num_samples=round(seconds * rate), rate=rate)


def _heard(template: Template, video: Media, seconds: float) -> Media:
    sound = _sound(template, seconds)
    return replace(video, num_samples=sound.num_samples, rate=sound.rate)


# ------------------------------------------- members that are in no pack: unpacked samples, and packs of other tools


def tokens_of(template: Template, member: MemberInput, engine: str = "auto") -> MemberTokens:
    """Render and tokenize a member that was in no pack.

    Raises:
        LengthError: it has another length than it was measured with.
        OSError, Skip: a medium is missing, or its bytes are no medium; or the member can't be rendered.
    """
    tokens: MemberTokens
    (tokens,) = template.member_tokens([sample_of(member)], engine)
    if member.token_len is not None and len(tokens) != member.token_len:
        raise LengthError(
            f"{member.sample_id} has {len(tokens)} tokens in training, {member.token_len} when it was packed"
            f" (fingerprint {template.fingerprint})"
        )
    return tokens


def sample_of(member: MemberInput) -> Sample:
    """Return a member in the form that a template renders; media that are not decoded yet are read by their headers."""
    member.refuse_missing()
    files = {kind: each for kind, each in member.media.items() if kind != IMAGE.kind}
    media = {
        IMAGE.kind: iter([getattr(image, "medium", Media(IMAGE.kind, *image.size)) for image in member.images]),
        **{kind: iter([probe(io.BytesIO(data)) for data in each]) for kind, each in files.items()},
    }
    kinds = [kind for kind, each in member.media.items() for _ in each]
    in_order = _order(member.messages, kinds)
    if sorted(in_order) == sorted(kinds):  # else another tool's pack is wrong, and the template says how
        kinds = in_order
    waiting = {kind: iter(each) for kind, each in member.media.items()}
    data = [next(waiting[kind]) for kind in kinds]
    in_sample = [next(media[kind]) for kind in kinds]
    seen_media = as_asked(in_sample, member.video_frames, member.options, lambda index: io.BytesIO(data[index]))
    return Sample(member.messages, seen_media, member.tools, member.options)


def _order(messages: list[dict[str, Any]], kinds: Sequence[str]) -> list[str]:
    """Return the kinds of media in the order of their placeholders."""
    contents = [message["content"] for message in split_content(messages, kinds)]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part["type"] for part in parts if part["type"] != "text"]

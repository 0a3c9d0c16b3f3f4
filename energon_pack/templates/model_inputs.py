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

from energon_pack.run.packages import version_of
from energon_pack.run.untrusted_input import plain
from energon_pack.samples.input_rules import (
    BLANK_IMAGE,
    MODEL_PROBE,
    SAME_SIZE,
    SEVERAL_SIZES,
    VIDEOS_WITH_SOUND,
    InputRules,
    TrialMember,
)
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.read_media import probe, with_requested_settings
from energon_pack.samples.member import LengthChangedError, MemberInput, MemberTokens
from energon_pack.samples.placeholders import split_content_at_placeholders
from energon_pack.samples.skip import Skip
from energon_pack.templates.families import ASKING_FAMILIES
from energon_pack.templates.sample import Sample

#: a `Template`, whose module imports this one
Template = Any

#: (width, height) of each member's images; they differ so that processors cut them into unequal numbers of tiles
_IMAGE_SIZES = ([(96, 64)], [(300, 700)], [(1000, 600), (120, 80)])
#: number of frames, width and height of each member's video
_VIDEO_SIZES = ((4, 96, 64), (8, 160, 240), (6, 64, 64))
_VIDEO_FPS = 2.0
#: seconds of each member's sounds
_SOUND_SECONDS = ([0.7], [2.3], [1.1, 0.4])
#: seconds of the sound of a member for a model, of a second one, which pads the first, and of a video's
_SHORT_SOUND, _LONG_SOUND = 1.2, 2.7

#: texts by which tokenizers are compared
_TOKENIZER_PROBES = (
    "The 3 quick foxes jump over 12,345.67 lazy dogs.",
    "def f(x):\n\treturn {'a': x}  # ☃",
    "你好世界 Größe €",
)


def input_rules_of(template: Template) -> InputRules:
    """Return the plain rules by which training makes a model's inputs; only `tokenize` needs the template."""
    spec, rules = template.spec, template.rules
    names = rules.feature_tokens_by_kind
    known = dict.fromkeys([*template.special_tokens, *spec.processor.tokens.values(), *names.values()])
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
        is_asked=spec.family in ASKING_FAMILIES,
        looks=template.looks,
        media={**plain(spec.media), "factor": template.factor},
        trial=trial_members(template),
        texts=[(text, template.ids_of(text)) for text in _TOKENIZER_PROBES],
        tokenize=partial(tokenize_foreign_member, template),
    )


def trial_members(template: Template) -> list[TrialMember]:
    """Return made-up members with each kind of media that a template takes, to try a processor or a model with."""
    kinds = [kind for kind in KINDS if kind in template.media_tokens]
    trial = [*_model_trial_members(template, kinds)]
    for kind in kinds:
        sizes = _media_lists(template, kind)
        for media in sizes:
            trial += _media_members(template, SEVERAL_SIZES, kind, media)
        trial += _media_members(template, SAME_SIZE, kind, sizes[0]) * 2
    if template.rules.hears_videos:
        first, second = (_video(template, *size) for size in _VIDEO_SIZES[:2])
        for media in ([_with_sound(template, first, 1.3)], [_sound(template, 0.6), _with_sound(template, second, 2.9)]):
            trial += _media_members(template, VIDEOS_WITH_SOUND, VIDEOS_WITH_SOUND, media)
    if IMAGE.kind in kinds:
        trial += _media_members(template, BLANK_IMAGE, IMAGE.kind, [Media(IMAGE.kind, 64, 64)])
    return trial


def _model_trial_members(template: Template, kinds: Sequence[str]) -> Iterator[TrialMember]:
    """Yield members to try a model with: two of text, and others with a medium of each kind."""
    each: list[tuple[str, list[Media]]] = [("", [])]
    for kind in kinds:
        each.append((kind, _media_lists(template, kind)[0] if kind != AUDIO.kind else [_sound(template, _SHORT_SOUND)]))
    each += [(AUDIO.kind, [_sound(template, _LONG_SOUND)])] * (AUDIO.kind in kinds)
    if template.rules.hears_videos:
        each.append((VIDEOS_WITH_SOUND, [_with_sound(template, _video(template, *_VIDEO_SIZES[0]), _LONG_SOUND)]))
    for number, (kind, media) in enumerate([*each, ("", [])]):
        named = VIDEO.kind if kind == VIDEOS_WITH_SOUND else kind
        asked = f"{f'<{named}>' if named else ''} What is number {number}?"
        answered = f"A {named or 'word'}, {number} of 9."
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        with suppress(Skip):  # training can't use such media, either
            yield TrialMember(MODEL_PROBE, kind, *template.member_tokens([Sample(messages, media)]))


def _media_members(template: Template, purpose: str, kind: str, media: Sequence[Media]) -> list[TrialMember]:
    """Return a member that only has these media, without text; none if the rules of media refuse a size."""
    try:
        seen = template.seen(media, template.num_features(media))
    except Skip:
        return []
    return [TrialMember(purpose, kind, MemberTokens(np.zeros(0, np.int64), [], media=seen))]


def _media_lists(template: Template, kind: str) -> list[list[Media]]:
    """Return lists of media of one kind, each for one member, in several sizes and numbers."""
    if kind == IMAGE.kind:
        return [[Media(kind, *size) for size in sizes] for sizes in _IMAGE_SIZES]
    if kind == VIDEO.kind:
        return [[_video(template, *size)] for size in _VIDEO_SIZES]
    if kind == AUDIO.kind:
        return [[_sound(template, seconds) for seconds in lengths] for lengths in _SOUND_SECONDS]
    rng = np.random.default_rng(0)
    return [[KINDS[kind].drawn(rng) for _ in range(number)] for number in (1, 1, 2)]


def _video(template: Template, num_frames: int, width: int, height: int) -> Media:
    """Return a video with all its frames chosen; with `media.num_frames` every video has that many."""
    number = template.spec.media.num_frames or num_frames
    return Media(VIDEO.kind, width, height, "mp4", number, _VIDEO_FPS, tuple(range(number)))


def _sound(template: Template, seconds: float) -> Media:
    rate = template.rules.rate
    return Media(AUDIO.kind, num_samples=round(seconds * rate), rate=rate)


def _with_sound(template: Template, video: Media, seconds: float) -> Media:
    sound = _sound(template, seconds)
    return replace(video, num_samples=sound.num_samples, rate=sound.rate)


# ------------------------------------------- members that are in no pack: unpacked samples, and packs of other tools


def tokenize_foreign_member(template: Template, member: MemberInput, engine: str = "auto") -> MemberTokens:
    """Render and tokenize a member that comes from no pack, such as an unpacked sample or another tool's pack.

    Raises:
        LengthChangedError: it has another length than it was measured with.
        OSError, Skip: a medium is missing, or its bytes are no medium; or the member can't be rendered.
    """
    tokens: MemberTokens
    (tokens,) = template.member_tokens([sample_of(member)], engine)
    if member.token_len is not None and len(tokens) != member.token_len:
        raise LengthChangedError(
            f"{member.sample_id} has {len(tokens)} tokens in training, {member.token_len} when it was packed"
            f" (fingerprint {template.fingerprint})"
        )
    return tokens


def sample_of(member: MemberInput) -> Sample:
    """Return a member as a sample that a template can render; the headers of media that are not decoded are read."""
    member.refuse_missing()
    files = {kind: each for kind, each in member.media.items() if kind != IMAGE.kind}
    media = {
        IMAGE.kind: iter([getattr(image, "medium", Media(IMAGE.kind, *image.size)) for image in member.images]),
        **{kind: iter([probe(io.BytesIO(data)) for data in each]) for kind, each in files.items()},
    }
    kinds = [kind for kind, each in member.media.items() for _ in each]
    in_order = _kinds_in_order(member.messages, kinds)
    if sorted(in_order) == sorted(kinds):  # else another tool's pack is wrong, and the template says how
        kinds = in_order
    waiting = {kind: iter(each) for kind, each in member.media.items()}
    data = [next(waiting[kind]) for kind in kinds]
    in_sample = [next(media[kind]) for kind in kinds]
    seen_media = with_requested_settings(
        in_sample, member.video_frames, member.options, lambda index: io.BytesIO(data[index])
    )
    return Sample(member.messages, seen_media, member.tools, member.options)


def _kinds_in_order(messages: list[dict[str, Any]], kinds: Sequence[str]) -> list[str]:
    """Return the kinds of a conversation's media in the order of their placeholders."""
    contents = [message["content"] for message in split_content_at_placeholders(messages, kinds)]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part["type"] for part in parts if part["type"] != "text"]

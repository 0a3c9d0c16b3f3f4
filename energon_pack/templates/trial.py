"""Compare a template with its full processor on random samples, before any real sample is measured."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from energon_pack.errors import one_line
from energon_pack.samples.media.kinds import ADDED_KINDS, AUDIO, IMAGE, KINDS, VIDEO, describe
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia, VideoClip, media_arguments_of_processor
from energon_pack.samples.media.read_media import video_metadata_of
from energon_pack.samples.member import MediumInput
from energon_pack.samples.placeholders import place_media
from energon_pack.samples.skip import Skip
from energon_pack.templates.chat.renderer import EXAMPLE_TOOL
from energon_pack.templates.families import ASKING_FAMILIES
from energon_pack.templates.full_processor import load_full_processor, quiet_transformers
from energon_pack.templates.identity import HEARD_VIDEOS, MIXED_MEDIA, UNEVEN_VIDEOS
from energon_pack.templates.processor_inputs import full_processor_ids, remove_final_end_token
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template

#: the media of each sample: none; 50 images in total; 5 clips in total; both; sounds alone, and with both; clips whose
#: sound is heard
_MEDIA_KINDS: list[tuple[str, ...]] = [
    (),
    *[("image",)] * 20,
    *[("image",) * 2] * 6,
    *[("image",) * 3] * 2,
    *[("image",) * 4] * 3,
    *[("video",)] * 3,
    ("video",) * 2,
    (UNEVEN_VIDEOS, "video", "video"),
    ("image", "video"),
    ("video", "image", "image"),
    *[("audio",)] * 10,
    *[("audio",) * 2] * 4,
    ("audio", "image"),
    ("image", "audio", "audio"),
    ("audio", "video"),
    ("video", "audio", "image"),
    *[(HEARD_VIDEOS,)] * 3,
    (HEARD_VIDEOS, HEARD_VIDEOS),
    ("audio", HEARD_VIDEOS, "image"),
    *[kinds for kind, _ in ADDED_KINDS for kinds in (*[(kind,)] * 10, *[(kind,) * 2] * 4, (kind, "image", kind))],
]
#: a larger medium is drawn anew with this chance: the full processor takes 30 ms for a large one
_MAX_USUAL_PIXELS, _REDRAW_CHANCE = 100_000, 0.85
_STILL_SHARE = 0.25  # share of samples with one colour or still frames: shows a count that depends on pixels
#: of videos that few samples have, beside other media or of several lengths: enough for processors that choose 32, and
#: at 2 a second, so that none of these kinds is refused by chance
_LONG_NUM_FRAMES = (36, 60)
_PROBE_MESSAGES = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "Noise, I think."}]


@dataclass
class TrialOutcome:
    """The result of comparing the tokens of a template and of the full processor for the random samples of one kind."""

    num_compared: int = 0  # compared media; for texts, samples
    num_refused: int = 0  # media that the full processor itself refuses
    difference: str = ""  # the first difference; empty: none
    refusal: str = ""  # the first error of the full processor
    is_accepted: bool = False  # the full processor takes at least one of these samples

    @property
    def is_exact(self) -> bool:
        return self.num_compared > 0 and not self.difference


@dataclass(frozen=True)
class TrialSample:
    """A random sample of a trial; its media are noise."""

    sample: Sample
    seed: int
    is_still: bool  # one colour, or silence: the same everywhere and in all frames

    def noise(self) -> list[Any]:
        """Return for each medium its random content: an image, the frames of a video, or the samples of a sound."""
        rng = np.random.default_rng(self.seed)
        noise = [KINDS[medium.kind].noise(medium, rng) for medium in self.sample.media]
        return [*map(_uniform_medium, noise)] if self.is_still else noise

    @property
    def kind(self) -> str:
        kinds = {medium.kind for medium in self.sample.media} or {"text"}
        if any(medium.is_heard for medium in self.sample.media):
            return HEARD_VIDEOS
        if len(kinds) > 1:
            return MIXED_MEDIA
        is_uneven = VIDEO.kind in kinds and len({medium.num_frames for medium in self.sample.media}) > 1
        return UNEVEN_VIDEOS if is_uneven else kinds.pop()


class ProcessorTrial:
    """Random samples, for which the tokens of templates are compared with those of full processors."""

    def __init__(self, seed: int = 0, lists: Sequence[Sequence[str]] = _MEDIA_KINDS):
        """Draw the samples.

        Args:
            lists: for each sample, the kinds of its media; its videos have equal lengths, unless UNEVEN comes first.
        """
        rng = np.random.default_rng(seed)
        self.samples = [self._draw_sample(kinds, rng, seed) for seed, kinds in enumerate(lists)]
        self.samples.append(TrialSample(Sample(_PROBE_MESSAGES, [], [EXAMPLE_TOOL]), len(lists), is_still=True))
        self._expected: dict[str, list[int] | str] = {}

    @quiet_transformers()
    def outcomes(self, template: Template) -> dict[str, TrialOutcome]:
        """Compare a template with its full processor; return an outcome for each kind of samples (`text`: no media).

        Raises:
            ImportError: the full processor needs a package that is not here.
            Exception: any error of its class on its files.
        """
        full = load_full_processor(template.spec.processor)
        heard = [HEARD_VIDEOS] if template.rules.hears_videos else []
        outcomes = {kind: TrialOutcome() for kind in ("text", *find_sample_kinds(template.media_tokens), *heard)}
        for number, one in enumerate(self.samples):
            outcome = outcomes.get(one.kind)
            has_other = any(medium.kind not in template.rules.media_tokens for medium in one.sample.media)
            if outcome is not None and not outcome.difference and not has_other:
                self._compare_sample(full, template, number, outcome)
        return outcomes

    def _compare_sample(self, full: Any, template: Template, number: int, outcome: TrialOutcome) -> None:
        one = self.samples[number]
        truth = self._expected_tokens(full, template, number)
        outcome.is_accepted |= not isinstance(truth, str)
        result: list[int] | str
        try:
            rendered = template.render(one.sample)
            (tokens,) = template.tokens_of([one.sample], [rendered])
            result = remove_final_end_token(template, rendered, tokens.ids.tolist())
        except Skip as skip:
            result = skip.detail
        if isinstance(truth, str) and isinstance(result, list) and template.spec.family in ASKING_FAMILIES:
            truth = _ids_with_chosen_frames(full, template, one) or truth
        are_both = isinstance(truth, str) and isinstance(result, str)
        if isinstance(truth, str) and (are_both or not one.sample.media):  # for a text, training asks the tokenizer
            is_new = isinstance(result, str) and result not in truth and truth[:80] not in result
            outcome.num_refused += 1
            outcome.refusal = outcome.refusal or (f"{result}; its own call says {truth}" if is_new else truth)
            return
        media = ", ".join(map(describe, one.sample.media)) or "a text"
        if isinstance(truth, str) or result != truth:
            outcome.difference = f"of {media} it makes {token_difference(result, truth)}"
            return
        if features := feature_difference(template, tokens.media, truth):
            outcome.difference = f"of {media} it counts {features}"
            return
        outcome.num_compared += max(len(one.sample.media), 1)

    def _expected_tokens(self, full: Any, template: Template, number: int) -> list[int] | str:
        """Return the tokens that the full processor makes of a sample; a text: the error that it raises."""
        settings = template.rules.call_settings(template.spec.processor)
        key = json.dumps([number, settings], sort_keys=True, default=str)
        if key not in self._expected:
            one = self.samples[number]
            try:
                self._expected[key] = full_processor_ids(full, template, one.sample, _media_arguments(template, one))
            except ImportError:
                raise
            except Exception as error:  # any class of any processor may be behind it
                self._expected[key] = one_line(error, 160)
        return self._expected[key]

    def _draw_sample(self, kinds: Sequence[str], rng: np.random.Generator, seed: int) -> TrialSample:
        is_uneven, kinds = UNEVEN_VIDEOS in kinds, [kind for kind in kinds if kind != UNEVEN_VIDEOS]
        media = [_draw_medium(kind, rng, is_long=is_uneven or len({*kinds}) > 1) for kind in kinds]
        if not is_uneven:
            last = next((medium for medium in reversed(media) if medium.num_frames), None)
            media = [
                replace(m, num_frames=last.num_frames, fps=last.fps) if last and m.num_frames else m for m in media
            ]
        kinds = [medium.kind for medium in media]
        content = " and ".join(f"{number} <{kind}>" for number, kind in enumerate(kinds, 1)) + " What is it?"
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "Noise, I think."}]
        placed, _, _ = place_media(messages, kinds)
        return TrialSample(Sample(placed, media), seed, is_still=rng.random() < _STILL_SHARE)


def _uniform_medium(noise: Any) -> Any:
    """Return a medium of the same size with one colour or value everywhere."""
    values = np.asarray(noise)
    first = values.reshape(-1, 3)[0] if values.dtype == np.uint8 else values.flat[0]
    still = np.broadcast_to(first, values.shape)
    return Image.fromarray(np.ascontiguousarray(still)) if isinstance(noise, Image.Image) else still


def find_sample_kinds(media_kinds: Iterable[str]) -> set[str]:
    """Return these kinds of media, with MIXED_MEDIA if they are several, and UNEVEN_VIDEOS if videos are among them."""
    kinds = {*media_kinds}
    return kinds | ({MIXED_MEDIA} if len(kinds) > 1 else set()) | ({UNEVEN_VIDEOS} if VIDEO.kind in kinds else set())


def _draw_medium(kind: str, rng: np.random.Generator, is_long: bool) -> Media:
    if kind == HEARD_VIDEOS:
        heard = AUDIO.drawn(rng)
        return replace(_draw_medium(VIDEO.kind, rng, is_long), num_samples=heard.num_samples, rate=heard.rate)
    while True:
        medium = VIDEO.drawn(rng, _LONG_NUM_FRAMES) if is_long and kind == VIDEO.kind else KINDS[kind].drawn(rng)
        num_pixels = medium.width * medium.height * max(medium.num_frames, 1)
        if num_pixels <= _MAX_USUAL_PIXELS or is_long or rng.random() > _REDRAW_CHANCE:
            return medium


def _ids_with_chosen_frames(full: Any, template: Template, one: TrialSample) -> list[int]:
    """Return the processor's tokens for frames that it chose in a call before, as in training; empty if that fails."""
    try:
        return full_processor_ids(full, template, one.sample, _media_arguments(template, one, chooses=True))
    except Exception:  # any class of any processor may be behind it
        return []


def _media_arguments(template: Template, one: TrialSample, chooses: bool = False) -> dict[str, Any]:
    """Return the media arguments of the full processor's call.

    Args:
        chooses: whether frames are chosen before the call; else the call chooses, unless `media.video` does.
    """
    chooses = chooses or template.prepares_frames
    values: list[Any] = []
    for medium, pixels in zip(one.sample.media, one.noise(), strict=True):
        if medium.kind == IMAGE.kind:
            values.append(template.prepare_image(pixels))
        elif medium.kind == VIDEO.kind:
            values.append(_clip_argument(template, medium, pixels, chooses))
        else:
            size = template.prepared(medium, 0)
            values.append(np.resize(pixels, size.num_samples) if size != medium else pixels)
    prepared = PreparedMedia([medium.kind for medium in one.sample.media], values)
    settings = template.rules.call_settings(template.spec.processor)
    arguments = media_arguments_of_processor(prepared, settings, template.rules.nests_images)
    if prepared.of_kind(VIDEO.kind) and not chooses:
        del arguments["videos_kwargs"]["do_sample_frames"]
        arguments["videos_kwargs"] |= template.spec.processor.changed.get(VIDEO.kind, {})
    return arguments


def _clip_argument(template: Template, video: Media, pixels: Any, chooses: bool) -> VideoClip:
    frames = template.choose_frames(video) if chooses else range(video.num_frames)
    prepared = template.prepare_frames([Image.fromarray(pixels[index]) for index in frames])
    sound = None
    if video.is_heard:
        size = AUDIO.prepared(video, template.rules.rate)
        sound = AUDIO.noise(size, np.random.default_rng(0))
    return VideoClip(
        np.stack([np.asarray(frame) for frame in prepared]),
        video_metadata_of(video, frames if chooses else None),
        sound,
    )


def feature_difference(template: Template, media: Iterable[MediumInput], ids: Sequence[int]) -> str:
    """Say how the number of features of media differs from that of their tokens in `ids`; empty: it does not."""
    media, num_waiting = [*media], Counter(ids)
    num_features = dict.fromkeys(template.feature_ids.values(), 0)  # by token; kinds may share one
    for medium in media:
        num_features[template.feature_ids[medium.kind]] += medium.num_features
    if any(medium.kind == VIDEO.kind and medium.num_samples for medium in media):  # no medium counts those of its sound
        del num_features[template.feature_ids[AUDIO.kind]]
    for token, number in num_features.items():
        if number != num_waiting[token]:
            return f"{number} features of media, and {num_waiting[token]} tokens wait for them"
    return ""


def token_difference(result: list[int] | str, truth: list[int] | str) -> str:
    """Say how a template's ids (`result`) differ from the processor's (`truth`); a text in place of ids is an error."""
    numbers = [f"nothing ({value})" if isinstance(value, str) else f"{len(value)} tokens" for value in (result, truth)]
    if isinstance(result, list) and isinstance(truth, list) and len(result) == len(truth):
        first = next(index for index, pair in enumerate(zip(result, truth, strict=True)) if pair[0] != pair[1])
        return f"token {result[first]} in place {first}, the full processor {truth[first]}"
    return f"{numbers[0]}, the full processor {numbers[1]}"

"""Rules for any transformers processor: run the processor's own call on tensors that have shapes but no values.

Nothing is decoded or resized, so a medium costs a millisecond. This does not work for a processor that looks at
values, or that takes no tensors: `BlankImageRules` gives it blank images.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from energon_pack.errors import PackError, one_line
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO, describe
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia, VideoClip, media_arguments_of_processor
from energon_pack.samples.media.read_media import video_metadata_of
from energon_pack.samples.skip import Reason, Skip
from energon_pack.templates.families.asked_processor import ProcessorProbe
from energon_pack.templates.families.rules import FRAME_KEYS, FrameSampling, MediaRules, ProcessorSettings
from energon_pack.templates.families.sound_steps import LengthRangeCache
from energon_pack.templates.families.stand_ins import BlankMedia, ShapeOnlyMedia
from energon_pack.templates.full_processor import load_full_processor, quiet_transformers
from energon_pack.templates.pixels import processor_part

_MAX_CACHED_ANSWERS = 100_000  # lists of sizes whose answers are kept
_NUM_COMPARED_MEDIA = 32  # media in one call
_NUM_TEST_FRAMES = 24  # frames of a test video
#: the text of each medium and how many of its tokens hold features; the texts that the call writes at beginning and end
_Answers = tuple[list[tuple[str, int]], tuple[str, str]]


class ShapeRules(MediaRules):
    """Counts media of any other processor: runs its own call on tensors that have shapes and no values."""

    _blanks: BlankMedia = ShapeOnlyMedia()

    def __init__(self, processor: ProcessorSettings):
        """Load the processor, and find the token that it takes for each kind of media; raises PackError."""
        try:
            full = load_full_processor(processor)
        except Exception as error:  # any class of any processor may be behind it
            raise PackError(f"model.processor={processor.folder} can't be loaded: {one_line(error)}") from None
        self.processor = full
        self.name = type(full).__name__
        changed = {kind: dict(processor.changed.get(kind, {})) for kind in KINDS}
        video = {"return_metadata": True}  # some classes read it when they write times
        chosen = {name: value for name, value in changed[VIDEO.kind].items() if name not in FRAME_KEYS}
        extractor = processor_part(full, AUDIO.kind)
        self.rate = 0 if extractor is None else extractor.sampling_rate
        self._call_settings = {
            **changed,
            AUDIO.kind: {**changed[AUDIO.kind], "sampling_rate": self.rate},
            VIDEO.kind: {**video, **chosen},
            "sampling": {**video, **changed[VIDEO.kind]},
        }
        self.settings = {
            "class": self.name,
            "image": processor.image,
            "video": processor.video,
            "processor": processor.processor,
            **({"audio": processor.audio} if processor.audio else {}),
            **processor.others,
        }
        self._asked = ProcessorProbe(full, self._blanks, self._call_settings)
        self.frames = _FramesOfProcessor(self)
        self._chat_texts = processor.written
        self.media_tokens, self.feature_tokens, self.reason_by_kind = self._find_tokens()
        if not self.media_tokens:
            why = "; ".join(f"{kind}: {reason}" for kind, reason in self.reason_by_kind.items()) or "it sees none"
            raise PackError(f"{self.name} can't be asked what stands for media ({why})")
        self.nests_images = self._asked.nests_images = self._wants_nested_images()
        self.hears_videos = self._hears_videos()
        if self.hears_videos and changed[VIDEO.kind].get("fps"):  # it places sounds among the frames by this rate
            self._call_settings[VIDEO.kind]["fps"] = changed[VIDEO.kind]["fps"]
        self._cached_ask = lru_cache(_MAX_CACHED_ANSWERS)(self._ask)
        self._is_independent: dict[str, bool] = {}  # by kind

    def refuse_unusable_settings(self) -> None:
        """Raise PackError if the processor does not follow `media.fps` or `media.num_frames`."""
        sampling = self._call_settings["sampling"]
        name = next((name for name in ("num_frames", "fps") if sampling.get(name)), None)
        if name is None or VIDEO.kind not in self.media_tokens:
            return
        fps = sampling["fps"] or 1.0
        number = sampling["num_frames"] or _NUM_TEST_FRAMES
        number = min(max(number, sampling.get("min_frames") or 1), sampling.get("max_frames") or number)
        rate = 10 * fps if name == "fps" else 4.0  # at this length an own rule would choose other frames
        video = Media(VIDEO.kind, 320, 240, "mp4", (10 if name == "fps" else 13) * number, rate)
        try:
            chosen = len(self.ask_processor_for_frames(video))
        except Skip as skip:
            raise PackError(f"media.{name}={sampling[name]}: {skip.detail}") from None
        if abs(chosen - number) > 1:
            raise PackError(
                f"media.{name}={sampling[name]}: {self.name} chooses {chosen} of {video.num_frames} frames at"
                f" {video.fps:g} a second by a rule of its own, not {number}: media=default"
            )

    def needs_equal_frame_counts(self) -> bool:
        return self._stacks_clips

    @cached_property
    def _stacks_clips(self) -> bool:
        """Whether clips of one batch need equally many frames: the pixels' inner dimensions follow their number.

        Pixels that come with a mask of theirs are padded when they are joined (`training.joining`).
        """
        if VIDEO.kind not in self.media_tokens:
            return False
        try:
            (first, second) = map(self._pixel_shapes, (8, 12))
        except Exception:  # any class of any processor may be behind it; then training says what can't be joined
            return False
        return first != second and not any("pixel" in name and "mask" in name for name in first)

    def _pixel_shapes(self, num_frames: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes, without the first dimension, of the inputs that the call makes of a clip, but of ids."""
        video = replace(VIDEO.example, width=64, height=64, num_frames=num_frames)
        clip = VideoClip(VIDEO.blank(video), video_metadata_of(video, range(num_frames)), None)
        arguments = media_arguments_of_processor(
            PreparedMedia([VIDEO.kind], [clip]), self._call_settings, nests_images=False
        )
        made = self.processor(text=[self.placeholder(VIDEO.kind)], return_tensors="pt", **arguments)
        return {name: tuple(value.shape[1:]) for name, value in made.items() if value.ndim > 2}

    def call_settings(self, processor: ProcessorSettings) -> dict[str, dict[str, Any]]:
        return self._call_settings

    def expand_all(self, media: Sequence[Media], frame_indices: Sequence[Sequence[int]]) -> list[tuple[str, int]]:
        return self._answers_for(media, frame_indices)[0] if media else []

    def surrounding_texts(self, media: Sequence[Media], frames: Sequence[Sequence[int]]) -> tuple[str, str]:
        return self._answers_for(media, frames)[1] if media else self._texts_without_media

    def _answers_for(self, media: Sequence[Media], frames: Sequence[Sequence[int]]) -> _Answers:
        chosen = tuple(map(tuple, frames))
        kinds = {medium.kind for medium in media} | {"sound" for medium in media if medium.is_heard}
        if len(media) > 1 and len(kinds) == 1 and self._are_independent(*kinds):
            each = [self._answers_for([medium], [indices]) for medium, indices in zip(media, chosen, strict=True)]
            return [answer for answers, _ in each for answer in answers], each[-1][1]
        try:
            if len(media) == 1 and kinds == {AUDIO.kind}:  # lengths differ, so it would fill the memory to keep each
                return self._sound_answers(media[0].num_samples)
            return self._cached_ask(tuple(media), chosen)
        except Exception as error:  # the processor refuses the sample
            raise Skip(
                Reason.UNREADABLE_MEDIA, f"{self.name} refuses {_describe_sizes(media)}: {one_line(error)}"
            ) from None

    @cached_property
    def _sound_answers(self) -> LengthRangeCache[_Answers]:
        """The answers for one sound alone, by its number of samples."""

        def ask(num_samples: int) -> _Answers:
            return self._ask((Media(AUDIO.kind, num_samples=num_samples, rate=self.rate),), ((),))

        return LengthRangeCache(ask, lambda answers: len(answers[0][0][0]))

    def _are_independent(self, kind: str) -> bool:
        """Say whether other media of its kind leave a medium's text as it is; asked once for each kind."""
        if kind not in self._is_independent:
            rng = np.random.default_rng(0)
            number = _NUM_COMPARED_MEDIA if kind == IMAGE.kind else _NUM_COMPARED_MEDIA // 4
            media = [KINDS[kind].drawn(rng) for _ in range(number)]
            frames = [tuple(range(medium.num_frames)) for medium in media]
            try:
                together, around = self._ask(tuple(media), tuple(frames))
                alone = [self._ask((medium,), (indices,)) for medium, indices in zip(media, frames, strict=True)]
                self._is_independent[kind] = alone == [([answer], around) for answer in together]
            except Exception:  # any class of any processor may be behind it; then it is asked for each sample
                self._is_independent[kind] = False
        return self._is_independent[kind]

    def expand(self, medium: Media, frame_indices: Sequence[int]) -> tuple[str, int]:
        return self.expand_all([medium], [frame_indices])[0]

    def placeholder(self, kind: str) -> str:
        return self._asked.placeholder(kind, self.media_tokens[kind])

    def _wants_nested_images(self) -> bool:
        """Say whether the call takes two images of one text only as a nested list."""
        images = (IMAGE.example,) * 2
        for nests in (False, True):
            self._asked.nests_images = nests
            try:
                self._ask(images, ((), ()))
            except Exception:  # any class of any processor may be behind it
                continue
            return nests
        return False

    def _hears_videos(self) -> bool:
        """Say whether the call writes sound tokens for a video that has its sound."""
        if not {VIDEO.kind, AUDIO.kind} <= self.feature_tokens.keys():
            return False
        heard = replace(VIDEO.example, num_samples=AUDIO.example.num_samples, rate=self.rate)
        try:
            ((text, _),), _ = self._ask((heard,), (tuple(range(4)),))
        except Exception as error:  # any class of any processor may be behind it
            self.why_no_sound = f": its call refuses one, {one_line(error)}"
            return False
        return self.feature_tokens[AUDIO.kind] in text

    def ask_processor_for_frames(self, video: Media) -> list[int]:
        """Return the indices of the frames that the processor chooses from a video; raises Skip if it refuses."""
        try:
            return self._asked.frames(self.media_tokens[VIDEO.kind], video)
        except Exception as error:  # the processor refuses the sample
            video_size = f"{video.num_frames} frames at {video.fps:g} a second"
            raise Skip(Reason.UNREADABLE_MEDIA, f"{self.name} refuses {video_size}: {one_line(error)}") from None

    def _ask(self, media: tuple[Media, ...], frames: tuple[tuple[int, ...], ...]) -> _Answers:
        texts, around = self._asked.texts(self.media_tokens, media, frames)
        features = (self.feature_tokens[medium.kind] for medium in media)
        return [(text, text.count(one)) for text, one in zip(texts, features, strict=True)], around

    @cached_property
    def _texts_without_media(self) -> tuple[str, str]:
        """Return the texts that the call adds before and after a text without media; empty if it refuses one."""
        try:
            return self._asked.texts(self.media_tokens, [], [])[1]
        except Exception:  # any class of any processor may be behind it; then training asks only the tokenizer
            return "", ""

    @quiet_transformers()
    def _find_tokens(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Return by kind the token that the call replaces, and the one that holds features; or why there is none."""
        tokens: dict[str, str] = {}
        features: dict[str, str] = {}
        why_not: dict[str, str] = {}
        special = [str(one) for one in self.processor.tokenizer.added_tokens_decoder.values() if one.special]
        for kind, medium in KINDS.items():
            if processor_part(self.processor, kind) is None and not hasattr(self.processor, medium.parts[0]):
                continue
            answer = self._find_token(kind, medium.example)
            if isinstance(answer, str) and self._asked.use_edge_tokens(kind):
                answer = self._find_token(kind, medium.example)
            if isinstance(answer, str):
                why_not[kind] = answer
                continue
            token, text = answer
            if feature := _most_frequent_token(self.processor.tokenizer, text):
                tokens[kind], features[kind] = token, feature
                self.mark_tokens = [*self.mark_tokens, *(one for one in special if one in text)]
            else:
                why_not[kind] = f"the tokenizer does not know {getattr(self.processor, f'{kind}_token', None) or token}"
        return tokens, features, why_not

    def _find_token(self, kind: str, medium: Media) -> tuple[str, str] | str:
        """Return the token that the call replaces, and the text in its place; or only the reason why there is none."""
        why_not = ""
        for token in dict.fromkeys(
            (*_candidate_placeholders(self.processor, kind), *filter(None, [self._chat_texts.get(kind)]))
        ):
            try:
                (text,), _ = self._asked.texts({kind: token}, [medium], [range(4) if kind == VIDEO.kind else ()])
            except Exception as error:  # any class of any processor may be behind it
                why_not = why_not or one_line(error)
                continue
            if text and (text != token or getattr(self.processor, f"{kind}_token", None) == token):
                return token, text
        return why_not or "it has no token for one"


class BlankImageRules(ShapeRules):
    """Counts media of a processor that refuses tensors without values: runs its own call on blank images."""

    _blanks = BlankMedia()


class _FramesOfProcessor(FrameSampling):
    """Chooses frames by asking the processor which it would choose."""

    def __init__(self, rules: ShapeRules):
        super().__init__({})
        self._ask = lru_cache(_MAX_CACHED_ANSWERS)(rules.ask_processor_for_frames)

    def choose(self, video: Media) -> list[int]:
        return self._ask(video)


def _describe_sizes(media: Iterable[Media]) -> str:
    media = [*media]
    if any(medium.num_samples or not medium.width for medium in media):
        return ", ".join(map(describe, media))
    return f"{', '.join(KINDS[medium.kind].size(medium) for medium in media)} pixels"


def _candidate_placeholders(full: Any, kind: str) -> list[str]:
    """Return the tokens that may stand for a medium in a chat, the most likely first."""
    names = [f"{kind}_token", *(["boi_token"] if kind == IMAGE.kind else []), f"start_of_{kind}_token"]
    names += sorted(name for name in vars(full) if name.endswith("_token") and kind in name)
    tokens = [getattr(full, name, None) for name in dict.fromkeys(names)]
    return [token for token in dict.fromkeys(tokens) if isinstance(token, str) and token]


def _most_frequent_token(tokenizer: Any, text: str) -> str | None:
    """Return the most frequent token in the text of a medium, the one that holds features; None: it is no added token.

    A class's own lists (`image_token_ids`) name tokens for beginnings, ends and rows, too.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    token = tokenizer.added_tokens_decoder.get(max(ids, key=ids.count)) if ids else None
    return None if token is None else str(token)

"""Ask a transformers processor which text it writes for media: run its call, and stop it before the tokenizer."""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from energon_pack.run.packages import patched
from energon_pack.samples.media.kinds import AUDIO, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia, VideoClip, media_arguments_of_processor
from energon_pack.samples.media.read_media import video_metadata_of
from energon_pack.templates.families.stand_ins import BlankMedia
from energon_pack.templates.pixels import processor_part

_SEPARATOR = "\ue000"  # a private-use character: no chat, and no processor, writes it
_CALL_LOCK = threading.Lock()  # all callers share a processor, which is changed during a call


class ProcessorProbe:
    """Runs a processor's call with stand-ins for media, and stops it at the tokenizer to read the text that it made."""

    def __init__(self, processor: Any, make: BlankMedia, settings: Mapping[str, dict[str, Any]]):
        self._processor = processor
        self._blanks = make
        self._settings = settings
        self.nests_images = False  # whether several images of a text are a nested list
        self._sees_all_frames = False  # whether the call sees all frames; known after the first video
        self._edge_tokens: dict[str, tuple[str, str]] = {}
        merge = getattr(processor, "_merge_kwargs", None)  # a remote class may have none
        self._cached_merge = {} if merge is None else {"_merge_kwargs": _with_cache(merge)}
        self._extractor = processor_part(processor, AUDIO.kind)
        self._extractor_methods = dict(make.extractor_methods(self._extractor)) if self._extractor is not None else {}

    def texts(
        self, tokens: Mapping[str, str], media: Sequence[Media], frames: Sequence[Sequence[int]]
    ) -> tuple[list[str], tuple[str, str]]:
        """Return the text that the call writes for each medium of a sample, and the texts at its beginning and end.

        Args:
            tokens: by kind, the text that the chat template writes for one medium.
            media: the sample's media, in the order of their placeholders.
            frames: for each medium, the indices of the frames that the model sees.
        """
        around = [self._edge_tokens.get(medium.kind, ("", "")) for medium in media]
        asked = [self.placeholder(medium.kind, tokens[medium.kind]) for medium in media]
        text = _SEPARATOR + "".join(one + _SEPARATOR for one in asked)
        values = [self._media_argument(medium, chosen) for medium, chosen in zip(media, frames, strict=True)]
        prepared = PreparedMedia([medium.kind for medium in media], values)
        arguments = media_arguments_of_processor(prepared, self._settings, self.nests_images)
        first, *written = self._written_text([text], arguments).split(_SEPARATOR)
        if len(written) != len(media) + 1:
            raise NotImplementedError("what it writes for media is not where their placeholders are")
        return [_text_between(one, *edges) for one, edges in zip(written, around, strict=False)], (first, written[-1])

    def _media_argument(self, medium: Media, frames: Sequence[int]) -> Any:
        value = self._blanks.stand_in(medium, len(frames))
        if medium.kind != VIDEO.kind:
            return value
        sound = AUDIO.blank(medium) if medium.is_heard else None
        return VideoClip(value, video_metadata_of(medium, frames), sound)

    def placeholder(self, kind: str, token: str) -> str:
        """Return the text that marks a medium in the text of the call; `token`: the chat template's text for it."""
        before, after = self._edge_tokens.get(kind, ("", ""))
        return before + token + after

    def use_edge_tokens(self, kind: str) -> bool:
        """Put the processor's start and end tokens around placeholders of a kind from now on; False: it has none."""
        edges = [getattr(self._processor, f"{kind}_{edge}_token", None) for edge in ("start", "end")]
        first, last = (token if isinstance(token, str) else "" for token in edges)
        if not first or not last or kind in self._edge_tokens:
            return False
        self._edge_tokens[kind] = first, last
        return True

    def frames(self, token: str, video: Media) -> list[int]:
        """Return the indices of the frames that the processor chooses; `token`: the chat template's text for videos."""
        if self._sees_all_frames:
            return list(range(video.num_frames))
        arguments = {
            "videos": [self._blanks.stand_in(video, video.num_frames)],
            "videos_kwargs": {
                **copy.deepcopy(self._settings["sampling"]),
                "video_metadata": [video_metadata_of(video)],
            },
        }
        sampler = self._processor.video_processor
        choose = sampler.sample_frames

        def chosen(*args: Any, **kwargs: Any) -> Any:
            raise _AnswerFound([int(index) for index in choose(*args, **kwargs)])

        with _CALL_LOCK, patched(sampler, sample_frames=chosen), self._stand_in_tokenizer(), self._blanks.context():
            try:
                self._processor(text=[_SEPARATOR + token + _SEPARATOR], return_tensors="pt", **arguments)
            except _AnswerFound as answered:
                if isinstance(answered.value, list):
                    return answered.value
        self._sees_all_frames = True
        return list(range(video.num_frames))

    def _written_text(self, text: list[str], arguments: dict[str, Any]) -> str:
        with (
            _CALL_LOCK,
            self._stand_in_tokenizer(),
            self._blanks.context(),
            patched(self._extractor, **self._extractor_methods),
        ):
            try:
                self._processor(text=text, return_tensors="pt", **arguments)
            except _AnswerFound as answered:
                return str(answered.value)
        raise NotImplementedError("its call hands the tokenizer no text")

    def _stand_in_tokenizer(self) -> AbstractContextManager[None]:
        return patched(self._processor, tokenizer=_TokenizerStandIn(self._processor.tokenizer), **self._cached_merge)


class _AnswerFound(Exception):
    """Ends a processor's call by an exception that carries the text, or the indices of frames, that was asked for."""

    def __init__(self, value: "str | list[int]"):
        super().__init__()
        self.value = value


class _TokenizerStandIn:
    """Stands in for a processor's tokenizer: when called, it ends the processor's call with the text that it got."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __call__(self, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        _raise_if_text(text)
        return self._tokenizer(text, *args, **kwargs)

    def encode(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        """Also end the call: some remote classes call this method instead."""
        _raise_if_text(text)
        return self._tokenizer.encode(text, *args, **kwargs)


def _raise_if_text(text: Any) -> None:
    first = text[0] if isinstance(text, (list, tuple)) and text else text
    if isinstance(first, str) and _SEPARATOR in first:
        raise _AnswerFound(first)


def _text_between(text: str, before: str, after: str) -> str:
    if not (text.startswith(before) and text.endswith(after)):
        raise NotImplementedError(f"it writes something else than {before} and {after} around a placeholder")
    return text[len(before) : len(text) - len(after)]


def _with_cache(merge: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return `merge`, which merges a processor's settings, with a cache: merging takes as long as a call on shapes."""
    known: dict[str, dict[str, Any]] = {}

    def merged(*args: Any, **kwargs: Any) -> dict[str, Any]:
        if "videos_kwargs" in kwargs:  # each call has other metadata
            return merge(*args, **kwargs)
        key = repr({name: value for name, value in kwargs.items() if name != "tokenizer_init_kwargs"})
        if key not in known:
            known[key] = merge(*args, **kwargs)
        return {name: dict(value) if isinstance(value, dict) else value for name, value in known[key].items()}

    return merged

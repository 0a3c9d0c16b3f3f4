"""Gives Voxtral's processor a call that takes texts with sounds; its own takes sounds only in `apply_chat_template`.

`apply_chat_template` uses mistral-common, which pads a sound to whole windows of 30 seconds, and writes `[BEGIN_AUDIO]`
and 12.5 `[AUDIO]` for each second.
"""

from collections.abc import Sequence
from typing import Any

import torch

_NAME = "VoxtralProcessor"
_BEGIN = "[BEGIN_AUDIO]"
_FRAMES = 8  # frames of the spectrogram for one token


def with_call(processor: Any) -> Any:
    """Return a processor whose call takes sounds; a processor of another model is returned unchanged."""
    if type(processor).__name__ == _NAME:
        processor.__class__ = _hearing(type(processor))
    return processor


def _hearing(own: Any) -> Any:
    from transformers import BatchFeature, ProcessorMixin

    class Hearing(own):
        apply_chat_template = ProcessorMixin.apply_chat_template

        def __call__(self, text: str | Sequence[str], audio: Sequence[Any] | None = None, **kwargs: Any) -> Any:
            texts, features = [text] if isinstance(text, str) else list(text), []
            settings = self._merge_kwargs(**kwargs)
            of_sounds = dict(settings["audio_kwargs"])
            window = of_sounds.pop("max_source_positions")
            for sound in audio or ():
                features.append(self._retrieve_input_features([sound], window, **of_sounds))
            runs = [self.audio_token * (len(windows) * window // _FRAMES) for windows in features]
            made = self.tokenizer(_with_runs(texts, self.audio_token, runs), **settings["text_kwargs"])
            sounds = {"input_features": torch.cat(features)} if features else {}
            return BatchFeature({**made, **sounds}, tensor_type=settings["text_kwargs"].get("return_tensors"))

    Hearing.__name__ = Hearing.__qualname__ = _NAME
    return Hearing


def _with_runs(texts: Sequence[str], token: str, runs: Sequence[str]) -> list[str]:
    """Return texts in which the tokens of its features replace the token of each sound.

    Raises:
        ValueError: there are more tokens of sounds than sounds, or fewer.
    """
    pieces = [text.split(token) for text in texts]
    if (number := sum(map(len, pieces)) - len(pieces)) != len(runs):
        raise ValueError(f"{number} times {token} in the texts, and {len(runs)} sounds")
    waiting = iter(runs)
    return [first + "".join(_BEGIN + next(waiting) + piece for piece in rest) for first, *rest in pieces]

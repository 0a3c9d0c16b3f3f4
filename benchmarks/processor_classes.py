"""A small processor of each class of transformers that writes text for media, from its own defaults.

    python benchmarks/processor_classes.py                          # which can be made, and why not
    python benchmarks/processor_classes.py --save FOLDER Qwen2VLProcessor LlavaProcessor

A folder holds what `AutoProcessor.from_pretrained` wants: the settings of the class, a tokenizer of a few hundred
tokens with the special ones that the class asks for, and a chat template of a line.
"""

import argparse
import importlib
import inspect
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from processor_settings import AROUND, IMAGE, PARTS, PROCESSOR, VIDEO
from processor_tokens import Wanted, learn, tf, tokenizer

KINDS = ("image", "video")
#: sizes that bring up the tokens of tiles, rows and columns
_SIZES = ((64, 64), (640, 480), (480, 640), (1500, 300), (300, 1500), (1500, 1500), (1500, 700))
_CLIPS = ((8, 320, 240, 2.0), (40, 240, 320, 25.0))  # frames, width, height, frames a second


@dataclass(frozen=True)
class Found:
    """A class, and the kinds of media it writes text for."""

    name: str
    kinds: tuple[str, ...]


def processor_classes() -> list[Found]:
    """Those with a tokenizer that say themselves what stands for an image or a video."""
    found = []
    for name in sorted(set(_names("processing").values())):
        made = getattr(tf, name)
        try:
            parts = made.get_attributes()
        except ImportError:  # a library that is not there: speech and music
            continue
        kinds = tuple(kind for kind in KINDS if _expands(made, kind) and f"{kind}_processor" in parts)
        if kinds and "tokenizer" in parts:
            found.append(Found(name, kinds))
    return found


def _expands(made: Any, kind: str) -> bool:
    method = f"replace_{kind}_token"
    return getattr(made, method, None) is not getattr(tf.ProcessorMixin, method, None)


@dataclass(frozen=True)
class Built:
    """A processor, and by kind of media what it raises where a user's message with one is given to it."""

    processor: Any
    refuses: dict[str, str]


def build(name: str) -> Built:
    """A processor of a class.

    Raises:
        Exception: what the class raises where it can't be made of its defaults.
    """
    made = getattr(tf, name)
    kinds = next(one.kinds for one in processor_classes() if one.name == name)
    wanted = Wanted()

    def make(tokens: Any) -> Any:
        parts = {part: tokens if part == "tokenizer" else _part(name, part) for part in made.get_attributes()}
        processor = made(**parts, **PROCESSOR.get(name, {}))
        processor.chat_template = tokens.chat_template = _chat_template(processor)  # not every class saves its own
        return processor

    failed = learn(wanted, make)
    if failed is not None:
        raise failed
    refuses = {}
    for kind in kinds:

        def use(tokens: Any, kind: str = kind) -> None:
            _try(make(tokens), kind)

        failed = learn(wanted, use)
        if failed is not None:
            refuses[kind] = said(failed)
    return Built(make(tokenizer(wanted)), refuses)


def save_dummy(name: str, folder: Path) -> None:
    """Write a folder that `AutoProcessor.from_pretrained` loads.

    Raises:
        Exception: as `build`.
    """
    build(name).processor.save_pretrained(folder)


def _try(processor: Any, kind: str) -> None:
    """Call a processor with a user's message with a medium, at several sizes.

    Raises:
        Exception: what it raises where it takes none of the sizes.
    """
    failed = []
    tries = [*_clips(processor)] if kind == "video" else [{"images": [Image.new("RGB", size)]} for size in _SIZES]
    message = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": "What is this?"}]}
    text = processor.tokenizer.apply_chat_template([message], tokenize=False)
    for given in tries:
        try:
            processor(text=[text], **given, return_tensors="pt")
        except Exception as error:  # any class of any processor may be behind it
            failed.append(error)
    if len(failed) == len(tries):
        raise failed[0]


def _clips(processor: Any) -> Iterator[dict[str, Any]]:
    for frames, width, height, fps in _CLIPS:
        metadata = {"total_num_frames": frames, "fps": fps, "duration": frames / fps}
        own = {
            "do_sample_frames": False,
            "do_resize": processor.video_processor.do_resize,  # some classes do not resize unless they are told
            "return_metadata": True,
            "video_metadata": [{**metadata, "frames_indices": list(range(frames))}],
        }
        yield {"videos": [np.zeros((frames, height, width, 3), np.uint8)], "videos_kwargs": own}


def said(error: Exception) -> str:
    """An error as a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"


def _part(name: str, part: str) -> Any:
    """A part of a processor, with the settings of its class."""
    kind = _TABLES[part][0]
    settings = {"image_processing": IMAGE, "video_processing": VIDEO}.get(kind, {}).get(name, {})
    if (name, part) in PARTS:
        return getattr(tf, PARTS[name, part])(**settings)
    for model_type, own in _names("processing").items():
        known = _names(kind).get(model_type) if own == name else None
        if known is not None:
            return getattr(tf, _one(known))(**settings)
    raise LookupError(f"transformers names no {part} for it")


def _one(known: Any) -> str:
    """The class that the auto classes take first, of the forms that tables of several versions have."""
    names = list(known.values()) if isinstance(known, dict) else [known] if isinstance(known, str) else [*known][::-1]
    return str(next(name for name in names if name))


_TABLES = {
    "processor": ("processing", "PROCESSOR_MAPPING_NAMES"),
    "image_processor": ("image_processing", "IMAGE_PROCESSOR_MAPPING_NAMES"),
    "video_processor": ("video_processing", "VIDEO_PROCESSOR_MAPPING_NAMES"),
    "feature_extractor": ("feature_extraction", "FEATURE_EXTRACTOR_MAPPING_NAMES"),
    "audio_processor": ("feature_extraction", "FEATURE_EXTRACTOR_MAPPING_NAMES"),
}


@cache
def _names(kind: str) -> dict[str, Any]:
    """By type of model, the names of its classes."""
    table = next(table for known, table in _TABLES.values() if known == kind)
    return dict(getattr(importlib.import_module(f"transformers.models.auto.{kind}_auto"), table))


def _chat_template(processor: Any) -> str:
    """Return the class's own template if its module has one; else write roles as words, and what its call replaces."""
    if own := getattr(importlib.import_module(type(processor).__module__), "DEFAULT_CHAT_TEMPLATE", ""):
        return str(own)  # SmolVLM's call takes it for each conversation with a video, whatever the processor has
    cases = ""
    for kind in KINDS:
        token = getattr(processor, f"{kind}_placeholder_token", None) or getattr(processor, f"{kind}_token", None)
        around = AROUND.get((type(processor).__name__, kind), "{}")
        if token:
            cases += f"{{% {'elif' if cases else 'if'} part.type == '{kind}' %}}{around.format(token)}"
    return (
        "{% for message in messages %}{{ message.role + ': ' }}"
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        + cases
        + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )


def quiet() -> None:
    """Silence transformers."""
    warnings.filterwarnings("ignore")
    tf.logging.set_verbosity_error()


def main() -> None:
    parser = argparse.ArgumentParser(description=inspect.getdoc(importlib.import_module(__name__)))
    parser.add_argument("--save", type=Path, help="write each into a folder of its name there")
    parser.add_argument("only", nargs="*", help="names of classes; all, where none is given")
    arguments = parser.parse_args()
    quiet()
    num_built = 0
    every = [one for one in processor_classes() if one.name in arguments.only or not arguments.only]
    for one in every:
        start = time.perf_counter()
        try:
            built = build(one.name)
            if arguments.save:
                built.processor.save_pretrained(arguments.save / one.name)
            told = "; ".join(f"refuses {kind}s: {why}" for kind, why in built.refuses.items()) or "built"
            num_built += 1
        except Exception as error:  # foreign code
            told = f"not built: {said(error)}"
        print(f"{one.name:40} {'+'.join(one.kinds):12} {time.perf_counter() - start:5.1f} s  {told}", flush=True)
    print(f"{num_built} of {len(every)} built")


if __name__ == "__main__":
    main()

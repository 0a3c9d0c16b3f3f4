"""Say what training makes of media: the settings of a loaded processor, and the inputs that it makes of made-up media.

A dataset keeps a hash of the settings and figures of the inputs in its inputs.json, so that another processor or
another transformers is noticed before any pack is trained. The figures are whole numbers that do not depend on the
machine: means over many pixels differ by a millionth of their range between kinds of CPUs, single pixels by more.
"""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from energon_pack.samples.input_rules import SEVERAL_SIZES, InputRules
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import PreparedMedia, apply_medium_steps, make_clip, processor_arguments
from energon_pack.samples.member import MediumInput
from energon_pack.templates.full_processor import quiet_transformers


def parts_by_kind(processor: Any) -> dict[str, Any]:
    """Return by kind of media the parts that a processor has."""
    return {kind: part for kind in KINDS if (part := processor_part(processor, kind)) is not None}


def processor_part(processor: Any, kind: str) -> Any:
    """Return the part of a processor for a kind of media, such as the image processor; None: it has no such part."""
    medium = KINDS[kind]
    held = (getattr(processor, name, None) for name in medium.parts)
    return next((part for part in held if part is not None and medium.is_part(part)), None)


Array = npt.NDArray[Any]

#: settings that say where and in which form a call computes, and names
_NO_PIXELS = (
    "auto_map", "chat_template", "device", "disable_grouping", "feature_extractor_type", "image_processor_type",
    "input_data_format", "processor_class", "return_metadata", "return_tensors", "video_metadata",
    "video_processor_type",
)  # fmt: skip
#: outputs of a processor that are no inputs of media
_TEXT_OUTPUTS = (
    "input_ids", "attention_mask", "labels", "mm_token_type_ids", "token_type_ids", "num_patches", "num_crops",
    "video_metadata",
)  # fmt: skip
#: so many numbers are kept as they are; of more whole numbers a hash is kept, and of more others means
_FEW = 64
#: parts of an input of which means are kept
_NUM_BLOCKS = 8
_MEANS_IN_RANGE = 512  # a mean is kept in units of at most this part of its range, at least half of it
_ODD_FPS = 5.0  # frames a second of made-up videos: no processor takes it for a rate that is not given
_SHOWN = 80  # characters of a value in a message


# -------------------------------------------------------------------------------------- settings of a loaded processor


def media_settings(processor: Any, rules: InputRules) -> dict[str, Any]:
    """Return by name all settings by which a loaded processor makes inputs of media, whatever file they came from.

    `rules`: the rules of a dataset; they hold the settings of the processor's call.
    """
    values: dict[str, Any] = {
        "processor": _own_settings(processor),
        **{kind: _part_settings(part) for kind, part in parts_by_kind(processor).items()},
        "call": rules.call_settings,
        "look": {kind: look._asdict() for kind, look in rules.looks.items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(values, default=_json_value))
    return {name: value for name, value in flat_values(plain).items() if value is not None}


def part_classes(processor: Any) -> dict[str, str]:
    """Return by kind of media the class of a loaded processor's part: one that works with PIL rounds in another way."""
    return {kind: _class_name(part) for kind, part in parts_by_kind(processor).items()}


def _own_settings(processor: Any) -> dict[str, Any]:
    """Return a processor's class, its inputs, and its own settings that are numbers, texts or flags."""
    names = {name for name in _parameters(type(processor)) if name not in _NO_PIXELS}
    own = {name: getattr(processor, name, None) for name in sorted(names)}
    plain = {name: value for name, value in own.items() if isinstance(value, (bool, int, float, str))}
    try:
        inputs = sorted({*processor.model_input_names} - {*_TEXT_OUTPUTS})
    except Exception:  # a property of any class
        inputs = []
    return {"class": _class_name(processor), "inputs": inputs, **plain}


def _part_settings(part: Any) -> dict[str, Any]:
    """Return the class of a processor's part, and the settings that this class knows."""
    known = known_settings(part)
    settings = {name: value for name, value in part.to_dict().items() if name not in _NO_PIXELS}
    return {"class": _class_name(part), **{name: settings[name] for name in settings if not known or name in known}}


def known_settings(part: Any) -> set[str]:
    """Return the names of the settings that the class of a processor, or of its part, says it has."""
    return {*getattr(getattr(part, "valid_kwargs", None), "__annotations__", ()), *_parameters(type(part))}


def _parameters(make: type) -> set[str]:
    """Return the names of the arguments of a class and of its bases."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    inits = [base.__init__ for base in make.__mro__ if "__init__" in vars(base) and base is not object]  # type: ignore[misc]
    each = [parameter for init in inits for parameter in [*inspect.signature(init).parameters.values()][1:]]
    return {parameter.name for parameter in each if parameter.kind in kinds}


def _class_name(value: Any) -> str:
    return type(value).__name__.removesuffix("Fast")  # the same class in transformers 5


def _json_value(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def flat_values(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested objects: {"a": {"b": 1}} becomes {"a.b": 1}."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        key: leaf for inner in value for key, leaf in flat_values(value[inner], f"{name}.{inner}".lstrip(".")).items()
    }


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Hash the settings of `media_settings`; one that is off counts like one that is not there."""
    used = {name: value for name, value in settings.items() if value is not False}
    return sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]


def different_setting(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the name of the first setting in which two processors differ, and both values; None: they are alike."""
    for name in sorted(first.keys() | second.keys(), key=lambda name: (not name.endswith("class"), name)):
        values = first.get(name), second.get(name)
        if values[0] != values[1] and any(value not in (None, False) for value in values):
            one, other = ("not set" if value is None else str(value)[:_SHOWN] for value in values)
            return name, one, other
    return None


# ------------------------------------------------------------------------------------------ inputs of made-up media


def measure_trial_inputs(processor: Any, rules: InputRules) -> dict[str, dict[str, Any]]:
    """Return by kind of media figures of the inputs that a processor makes of the trial's media, as JSON values.

    Media that its call refuses are left out.
    """
    by_kind = {kind: _inputs_of_kind(processor, rules, kind) for kind in rules.media_tokens}
    return {
        kind: {name: _array_figures(value) for name, value in inputs.items()}
        for kind, inputs in by_kind.items()
        if inputs
    }


def describe_inputs_changed_since_packing(processor: Any, rules: InputRules) -> str:
    """Say the first difference between the inputs that a processor makes here and those that a dataset kept.

    Names, shapes and whole numbers have to be the same. A small input may differ by a millionth; of a large one the
    means are kept, which may differ by 1/255 of its range. The class that made it has to be the same: single pixels of
    another one differ by up to 2/255, of which means show nothing. An empty text says that nothing differs.
    """
    classes = part_classes(processor)
    for kind, name in rules.classes.items():
        if kind in rules.media_tokens and classes.get(kind) != name:
            return f"{KINDS[kind].nouns} are prepared by {classes.get(kind, 'no class')}, and were by {name}"
    for kind, kept in rules.made.items():
        nouns, here = KINDS[kind].nouns, _inputs_of_kind(processor, rules, kind)
        for name in sorted(kept.keys() | here.keys()):
            if name not in here or name not in kept:
                return f"it makes {'' if name in here else 'no '}{name} of {nouns}"
            if why := _difference(kept[name], here[name]):
                return f"{name} of {nouns} has {why}"
    return ""


def describe_figure_difference(first_figures: Mapping[str, Any], second_figures: Mapping[str, Any]) -> str:
    """Say the first input in which the figures that two datasets kept differ; empty: there is none."""
    for kind in first_figures.keys() & second_figures.keys():
        for name in sorted(first_figures[kind].keys() | second_figures[kind].keys()):
            if _are_apart(first_figures[kind].get(name), second_figures[kind].get(name)):
                return f"{name} of {KINDS[kind].nouns}"
    return ""


@quiet_transformers()
def _inputs_of_kind(processor: Any, rules: InputRules, kind: str) -> dict[str, Array]:
    """Return the inputs that a processor makes of the trial's first media of a kind; none: it refuses them."""
    tried = (trial.tokens.media for trial in rules.trial if (trial.purpose, trial.kind) == (SEVERAL_SIZES, kind))
    if not (sizes := next(tried, None)):
        return {}
    media = PreparedMedia([kind] * len(sizes), [_pattern(rules, one) for one in sizes])
    text = rules.placeholders[kind] * len(sizes) + ("." if kind == AUDIO.kind else "")
    try:
        output = processor(text=[text], return_tensors="pt", **processor_arguments(rules, media))
    except Exception:  # any class of any processor may be behind it
        return {}
    shape = np.shape(output["input_ids"])
    arrays = {name: _array(output[name]) for name in output if name not in _TEXT_OUTPUTS}
    return {
        name: value
        for name, value in arrays.items()
        if value.dtype.kind in "biuf" and (value.dtype.kind == "f" or value.shape != shape)
    }


def _array(value: Any) -> Array:
    """Return an output as an array: one list of numbers, if it is a list of several."""
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":  # of Llama 4; numpy has no such type
        value = value.float()
    if isinstance(value, (list, tuple)) and any(hasattr(one, "numpy") for one in value):
        return np.concatenate([np.asarray(one).ravel() for one in value])
    try:
        return np.asarray(value)
    except ValueError:  # lists of unequal lengths
        return np.asarray(json.dumps(value, default=str))


def _array_figures(value: Array) -> dict[str, Any]:
    """Return figures of an input: its shape, and its numbers, their hash, or their means."""
    shape = list(value.shape)
    if not _is_measured(value):
        return {"shape": shape, "numbers": _numbers_or_hash(value)}
    if value.size <= _FEW:
        return {"shape": shape, "millionths": np.rint(value.astype(float).ravel() * 1e6).astype(int).tolist()}
    means, extent = _block_means_and_range(value)
    exponent = math.frexp(extent * 1.3)[1]  # usual ranges (1, 2, 255) lie in the middle of two powers of 2
    units = np.rint(means * _MEANS_IN_RANGE / 2.0**exponent).astype(int)
    return {"shape": shape, "exponent": exponent, "means": units.tolist()}


def _difference(kept: Mapping[str, Any], here: Array) -> str:
    """Say how an input differs from the figures that were kept of it; empty: it does not."""
    if kept["shape"] != list(here.shape):
        return f"the shape {list(here.shape)}, and had {kept['shape']}"
    if "numbers" in kept:
        now, before = _numbers_or_hash(here), kept["numbers"]
        is_same = now == before and bool(np.all(here == np.rint(here)))  # as floats they are the same, too
        return "" if is_same else f"the numbers {str(now)[:_SHOWN]}, and had {str(before)[:_SHOWN]}"
    if "millionths" in kept:
        numbers, before, most = here.astype(float).ravel(), np.array(kept["millionths"]) / 1e6, 1e-6
    else:
        numbers, extent = _block_means_and_range(here)
        before, most = np.array(kept["means"]) * 2.0 ** kept["exponent"] / _MEANS_IN_RANGE, extent / 255
    apart = np.flatnonzero(~(np.abs(numbers - before) <= most * (1 + 1e-9)))
    return f"{numbers[apart[0]]:.6g}, and had {before[apart[0]]:.6g}" if len(apart) else ""


def _are_apart(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    if first is None or second is None or first.keys() != second.keys():
        return True
    name = next((name for name in ("means", "millionths") if name in first), None)
    if name is None or first["shape"] != second["shape"]:
        return first != second
    apart = np.abs(np.subtract(first[name], second[name])).max(initial=0)
    return bool(apart > (2 if name == "means" else 1) or first.get("exponent") != second.get("exponent"))


def _is_measured(value: Array) -> bool:
    """Say whether numbers are measured, as pixels are, and not counted."""
    return value.dtype.kind == "f" or (value.dtype == np.uint8 and value.size > _FEW)


def _block_means_and_range(value: Array) -> tuple[Array, float]:
    """Return the mean of each block of an input, then each block's mean distance from it; and the range of all."""
    blocks = np.array_split(value.astype(np.float32, copy=False).ravel(), _NUM_BLOCKS)
    means = [float(block.mean(dtype=np.float64)) for block in blocks]
    spreads = [
        float(np.abs(block - np.float32(mean)).mean(dtype=np.float64))
        for block, mean in zip(blocks, means, strict=True)
    ]
    return np.array(means + spreads), float(value.max()) - float(value.min())


def _numbers_or_hash(value: Array) -> list[int] | str:
    """Return whole numbers, or a hash of many."""
    numbers = value.astype("<i8").ravel()
    listed: list[int] = numbers.tolist()
    return listed if len(listed) <= _FEW else sha256(numbers.tobytes()).hexdigest()[:16]


def _pattern(rules: InputRules, medium: MediumInput) -> Any:
    """Return a medium of this kind and size with a content that every machine makes alike."""
    if medium.kind == IMAGE.kind:
        return apply_medium_steps(rules, medium, [_picture(medium.width, medium.height, 0)])[0]
    if medium.kind == VIDEO.kind:
        frames = [_picture(medium.width, medium.height, number) for number in range(len(medium.frames))]
        return make_clip(replace(medium, fps=_ODD_FPS), apply_medium_steps(rules, medium, frames))
    size = Media(medium.kind, medium.width, medium.height, num_samples=medium.num_samples, rate=rules.rate)
    if medium.kind != AUDIO.kind:
        return KINDS[medium.kind].noise(size, np.random.default_rng(0))
    times = np.arange(medium.num_samples)
    return ((times * times * 3 + times * 7) % 97 / 97 - 0.5).astype(np.float32)


def _picture(width: int, height: int, number: int) -> Image.Image:
    """Return a picture that is brighter to the right in red, to the bottom in green, and with `number` in blue; with a
    fine pattern, which another way to resize it blurs in another way.
    """
    x, y = np.arange(width)[None], np.arange(height)[:, None]
    slopes: Sequence[Array] = (x * 127 // width + 0 * y, y * 127 // height + 0 * x, 0 * x + 0 * y + number * 11 % 128)
    fine = (x * x * 3 + y * y * 5 + x * y * 7 + number * 13) % 129
    return Image.fromarray(np.stack([slope + fine for slope in slopes], axis=2).astype(np.uint8))

"""Call a model's processor with only the media of members."""

import copy
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import (
    PreparedMedia,
    apply_medium_steps,
    join_media,
    make_clip,
    processor_arguments,
)
from energon_pack.samples.member import MediumInput, MemberTokens
from energon_pack.templates.full_processor import load_full_processor, load_image_processor_alone, quiet_transformers
from energon_pack.training.joining import JoinError

#: maps the token ids of texts to one value for each token
TokenFunction = Callable[[list[list[int]]], Any]

#: outputs of a processor that are no media inputs: outputs for the text, and counts of an image processor
_NOT_MEDIA = frozenset(
    ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "num_patches", "num_crops", "video_metadata")
)
#: outputs for each token that packs do not use: packs make their own labels
_UNUSED_OUTPUTS = frozenset(("labels",))


class MediaProcessorCaller:
    """Calls a model's processor for media alone; loads it at the first call.

    Args:
        token_outputs: outputs for each token, as far as another process knows.
        images: `pickled_image_processor` of another process.
    """

    def __init__(self, rules: InputRules, token_outputs: Collection[str] = (), images: bytes = b""):
        self._rules, self._pickled_image_processor = rules, images
        self.token_outputs = {*token_outputs}

    def __call__(self, members: Sequence[PreparedMedia], as_rows: bool = False) -> dict[str, Tensor]:
        """Return the media inputs, by name, of some members in one text; `as_rows`: in a text for each member."""
        every = join_media(members)
        arguments = processor_arguments(self._rules, every)
        processor, alone = self._processors
        if alone is not None:
            if other := next(
                (KINDS[kind].nouns for kind in reversed(KINDS) if every.of_kind(kind) and kind != IMAGE.kind), ""
            ):
                raise ImportError(f"training on {other} needs torchvision: pip install 'energon-pack[train]'")
            return _tensors(alone(every.of_kind(IMAGE.kind), return_tensors="pt", **arguments.get("images_kwargs", {})))
        placeholders = self._rules.placeholders
        if as_rows and self._rules.nests_images and every.of_kind(IMAGE.kind):
            arguments[IMAGE.argument] = [images for part in members if (images := part.of_kind(IMAGE.kind))]
        tail = "." if every.of_kind(AUDIO.kind) else ""  # else a mask of frames, one a token, looks like tokens
        texts = ["".join(placeholders[k] for k in part.order) + tail for part in (members if as_rows else [every])]
        padding: dict[str, Any] = {"padding": True} if as_rows else {}
        if AUDIO.argument in arguments:  # else padding would reach sounds, too
            padding = {"text_kwargs": padding}
        output = processor(text=texts, return_tensors="pt", **padding, **arguments)
        tensors, shape = _tensors(output), output["input_ids"].shape
        whole = {name: value for name, value in tensors.items() if not value.is_floating_point()}
        self.token_outputs |= {name for name, value in whole.items() if value.shape == shape}
        return {name: value for name, value in tensors.items() if name not in self.token_outputs}

    def images(self, members: Sequence[PreparedMedia], output_names: Collection[str]) -> dict[str, Tensor]:
        """Process only images, by the image processor without any text; return its outputs in `output_names`."""
        arguments = processor_arguments(self._rules, join_media(members))
        images = join_media(members).of_kind(IMAGE.kind)
        output = self._image_processor(images, return_tensors="pt", **arguments.get("images_kwargs", {}))
        return _tensors({name: value for name, value in output.items() if name in output_names})

    def changed(self, change: Callable[[Any], Any], only_images: bool) -> "MediaProcessorCaller":
        """Return the same calls of a changed processor, or of its part for images; `change` makes it."""
        calls = copy.copy(self)
        if only_images:
            vars(calls)["_image_processor"] = change(self._image_processor)
        else:
            processor, alone = self._processors
            vars(calls)["_processors"] = processor and change(processor), alone and change(alone)
        return calls

    @property
    def pickled_image_processor(self) -> bytes:
        """The image processor, pickled: another process imports less for it than for the whole; empty: it can't be."""
        with suppress(Exception):  # its code may have no name by which it is imported
            return pickle.dumps(self._image_processor)
        return b""

    def per_token_functions(self) -> dict[str, TokenFunction]:
        """Return by name functions that make a model's special inputs with one value per token, from token ids."""
        processor, _ = self._processors
        functions = {name: getattr(processor, f"create_{name}", None) for name in self.token_outputs - _UNUSED_OUTPUTS}
        if lost := sorted(name for name, make in functions.items() if make is None):
            raise JoinError(f"{self.name} gives {', '.join(lost)} for each token, for which packs have no place")
        return {name: make for name, make in functions.items() if make is not None}

    def token_types(self, ids: list[int]) -> list[int] | None:
        """Return for each token 0 (text) or the number of its kind of media; None: the processor can't tell by ids."""
        if not self._knows_types:
            return None
        types: list[int] = self._processors[0].create_mm_token_type_ids([ids])[0]
        return types

    @cached_property
    def _knows_types(self) -> bool:
        try:
            self._processors[0].create_mm_token_type_ids([[0]])
        except (AttributeError, TypeError):  # a remote class, or a class that needs more than ids
            return False
        return True

    @property
    def kinds(self) -> list[str]:
        """The kinds of media that this machine can process: only images without torchvision."""
        makes = [*KINDS] if self._processors[1] is None else [IMAGE.kind]
        return [kind for kind in makes if kind in self._rules.media_tokens]

    @property
    def name(self) -> str:
        """The processor's class name."""
        processor, alone = self._processors
        return type(processor or alone).__name__

    @cached_property
    def _image_processor(self) -> Any:
        """The image processor."""
        if self._pickled_image_processor:
            with quiet_transformers(), suppress(Exception):  # the whole processor has it, too
                return pickle.loads(self._pickled_image_processor)
        processor, alone = self._processors
        return alone or processor.image_processor

    @cached_property
    def _processors(self) -> tuple[Any, Any]:
        """The processor and None; or None and its image processor, if the processor can't be imported."""
        try:
            return load_full_processor(self._rules), None
        except ImportError:
            return None, load_image_processor_alone(self._rules)


def _tensors(output: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the media inputs among a processor's outputs, as tensors."""
    return {name: _tensor(value) for name, value in output.items() if name not in _NOT_MEDIA}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return torch.cat(list(value))
    return torch.as_tensor(value, dtype=torch.float32 if isinstance(value[0], float) else None)


def _random_medium(rules: InputRules, medium: MediumInput, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    size = medium.width, medium.height
    sound = Media(AUDIO.kind, num_samples=medium.num_samples, rate=rules.rate)
    if medium.kind == IMAGE.kind:
        return apply_medium_steps(rules, medium, [IMAGE.noise(Media(IMAGE.kind, *size), rng)])[0]
    if medium.kind == VIDEO.kind:
        frames = VIDEO.noise(Media(VIDEO.kind, *size, num_frames=len(medium.frames)), rng)
        heard = AUDIO.noise(sound, rng) if medium.num_samples else None
        return make_clip(medium, apply_medium_steps(rules, medium, [*map(Image.fromarray, frames)]), heard)
    if medium.kind == AUDIO.kind:
        return AUDIO.noise(sound, rng)
    return KINDS[medium.kind].noise(Media(medium.kind, *size, num_samples=medium.num_samples, rate=rules.rate), rng)


def random_media(rules: InputRules, member: MemberTokens, seed: int) -> PreparedMedia:
    """Return random media of the kinds and sizes that a member's media have."""
    media = [_random_medium(rules, one, seed) for one in member.media]
    return PreparedMedia([medium.kind for medium in member.media], media)


def trial_media(rules: InputRules, purpose: str, kind: str) -> Iterator[PreparedMedia]:
    """Yield random media for the trial's members with this purpose (`SIZES`, `TWINS` …) and kind of media."""
    yield from (random_media(rules, one, seed) for seed, one in enumerate(trial_members(rules, purpose, kind)))


def trial_members(rules: InputRules, purpose: str, kind: str) -> list[MemberTokens]:
    """Return the trial's members with this purpose (`SIZES`, `TWINS` …) and kind of media."""
    return [one.tokens for one in rules.trial if (one.purpose, one.kind) == (purpose, kind)]

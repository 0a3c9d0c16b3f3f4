"""Call a model's processor with only the media of members."""

import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from energon_pack.samples.input_rules import InputRules
from energon_pack.samples.media.arguments import Prepared, merged
from energon_pack.samples.media.kinds import AUDIO, IMAGE, KINDS, VIDEO
from energon_pack.samples.media.medium import Media
from energon_pack.samples.media.prepared import changed, clip, media_inputs
from energon_pack.samples.tokens import MemberTokens, SeenMedium
from energon_pack.templates.full import full_processor, quiet_transformers
from energon_pack.training.joining import JoinError

#: parameters of glibc's mallopt(3): the most large blocks that are mapped; map blocks from this size on; return the
#: heap's end above this
_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1
_LARGE, _KEPT = 256 << 20, 512 << 20
#: the process in which this was done
_kept_in = [0]


def keep_pages_in_worker() -> None:
    """Keep pages from now on, if this process is a loader's worker; in a user's own process nothing changes.

    Blocks of 256 MB and more are still returned: one a pack costs little, and the worker would hold the most there ever
    were. Another allocator than glibc's is left alone.
    """
    if _kept_in[0] == os.getpid() or get_worker_info() is None:
        return
    _kept_in[0] = os.getpid()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_MMAP_THRESHOLD, _LARGE):  # an older glibc takes 32 MB at most
            mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _KEPT)


#: maps the token ids of texts to one value for each token
TokenRow = Callable[[list[list[int]]], Any]

#: outputs of a processor that are no media inputs: outputs for the text, and counts of an image processor
_NOT_MEDIA = frozenset(
    ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "num_patches", "num_crops", "video_metadata")
)
#: outputs for each token that packs do not use: packs make their own labels
_UNUSED = frozenset(("labels",))


class Calls:
    """A processor; loaded when it is first called."""

    def __init__(self, rules: InputRules):
        self._rules = rules
        self._of_tokens: set[str] = set()

    def __call__(self, members: Sequence[Prepared], as_rows: bool = False) -> dict[str, Tensor]:
        """Process the media of some members in one text that holds all of them."""
        every = merged(members)
        arguments = media_inputs(self._rules, every)
        processor, alone = self._loaded
        if alone is not None:
            if other := next(
                (KINDS[kind].nouns for kind in reversed(KINDS) if every.of(kind) and kind != IMAGE.kind), ""
            ):
                raise ImportError(f"training on {other} needs torchvision: pip install 'energon-pack[train]'")
            return _tensors(alone(every.of(IMAGE.kind), return_tensors="pt", **arguments.get("images_kwargs", {})))
        placeholders = self._rules.placeholders
        if as_rows and self._rules.nests_images and every.of(IMAGE.kind):
            arguments[IMAGE.argument] = [images for part in members if (images := part.of(IMAGE.kind))]
        tail = "." if every.of(AUDIO.kind) else ""  # else a mask of frames, one a token, looks like an input of tokens
        texts = [
            "".join(placeholders[kind] for kind in part.order) + tail for part in (members if as_rows else [every])
        ]
        padding: dict[str, Any] = {"padding": True} if as_rows else {}
        if AUDIO.argument in arguments:  # else padding would reach sounds, too
            padding = {"text_kwargs": padding}
        output = processor(text=texts, return_tensors="pt", **padding, **arguments)
        tensors, shape = _tensors(output), output["input_ids"].shape
        whole = {name: value for name, value in tensors.items() if not value.is_floating_point()}
        self._of_tokens |= {name for name, value in whole.items() if value.shape == shape}
        return {name: value for name, value in tensors.items() if name not in self._of_tokens}

    def images(self, members: Sequence[Prepared], names: Collection[str]) -> dict[str, Tensor]:
        """Process images with the image processor alone, without any text."""
        arguments = media_inputs(self._rules, merged(members))
        images = merged(members).of(IMAGE.kind)
        processor, alone = self._loaded
        output = (alone or processor.image_processor)(images, return_tensors="pt", **arguments.get("images_kwargs", {}))
        return _tensors({name: value for name, value in output.items() if name in names})

    def of_tokens(self) -> dict[str, TokenRow]:
        """Return functions that make, from a member's tokens, inputs that only this model has for each token."""
        processor, _ = self._loaded
        functions = {name: getattr(processor, f"create_{name}", None) for name in self._of_tokens - _UNUSED}
        if lost := sorted(name for name, make in functions.items() if make is None):
            raise JoinError(f"{self.name} gives {', '.join(lost)} for each token, for which packs have no place")
        return {name: make for name, make in functions.items() if make is not None}

    def token_types(self, ids: list[int]) -> list[int] | None:
        """Return 0 or the number of its kind of media for each token; None: the processor does not tell by ids."""
        if not self._knows_types:
            return None
        types: list[int] = self._loaded[0].create_mm_token_type_ids([ids])[0]
        return types

    @cached_property
    def _knows_types(self) -> bool:
        try:
            self._loaded[0].create_mm_token_type_ids([[0]])
        except (AttributeError, TypeError):  # a remote class, or a class that needs more than ids
            return False
        return True

    @property
    def kinds(self) -> list[str]:
        """The kinds of media that can be processed on this machine."""
        makes = [*KINDS] if self._loaded[1] is None else [IMAGE.kind]
        return [kind for kind in makes if kind in self._rules.media_tokens]

    @property
    def name(self) -> str:
        """The class of the processor."""
        processor, alone = self._loaded
        return type(processor or alone).__name__

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """Return the processor and None; without the torchvision that it needs, None and its image processor."""
        try:
            return full_processor(self._rules), None
        except ImportError:
            from transformers import AutoImageProcessor

            with quiet_transformers():
                alone = AutoImageProcessor.from_pretrained(self._rules.folder, backend="pil", **self._rules.kwargs)
            return None, alone


def _tensors(output: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the media inputs among a processor's outputs, as tensors."""
    return {name: _tensor(value) for name, value in output.items() if name not in _NOT_MEDIA}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return torch.cat(list(value))
    return torch.as_tensor(value, dtype=torch.float32 if isinstance(value[0], float) else None)


def _noise(rules: InputRules, medium: SeenMedium, seed: int) -> Any:
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


def filled_with_noise(rules: InputRules, member: MemberTokens, seed: int) -> Prepared:
    """Return the media of a member with random content."""
    return Prepared([medium.kind for medium in member.media], [_noise(rules, one, seed) for one in member.media])


def noisy_members(rules: InputRules, purpose: str, kind: str) -> Iterator[Prepared]:
    """Yield the media of the trial's members of a purpose and a kind."""
    yield from (filled_with_noise(rules, one, seed) for seed, one in enumerate(members_of_trial(rules, purpose, kind)))


def members_of_trial(rules: InputRules, purpose: str, kind: str) -> list[MemberTokens]:
    """Return the trial's members of a purpose and a kind."""
    return [one.tokens for one in rules.trial if (one.purpose, one.kind) == (purpose, kind)]

"""One call of a model's processor for media alone."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.full import full_processor
from energon_pack.templates.processor_inputs import Clip, media_inputs
from energon_pack.templates.quiet import errors_only
from energon_pack.templates.template import Template
from energon_pack.training.joining import JoinError

#: from the ids of texts to a value for each
TokenRow = Callable[[list[list[int]]], Any]

#: what a processor gives beside a model's media: the text's, and what an image processor alone counts for its own use
_NOT_MEDIA = frozenset(
    ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "num_patches", "num_crops", "video_metadata")
)
#: of what processors give for each token: packs have labels of their own
_UNUSED = frozenset(("labels",))


@dataclass(frozen=True)
class Given:
    """The media of a member."""

    #: prepared, in the order of their placeholders
    images: Sequence[Image.Image] = ()
    #: likewise
    clips: Sequence[Clip] = ()
    #: `image` or `video` for each placeholder
    order: Sequence[str] = ()


class Calls:
    """The processor of a template; loaded when it is first called."""

    def __init__(self, template: Template):
        self._template = template
        self._of_tokens: set[str] = set()

    def __call__(self, members: Sequence[Given], as_rows: bool = False) -> dict[str, Tensor]:
        """The media of some members, in a text with all of them.

        Args:
            as_rows: in a text each.

        Raises:
            ImportError: videos without torchvision.
            Exception: whatever the processor makes of them.
        """
        every = merged(members)
        given = media_inputs(self._template, every.images, every.clips)
        processor, alone = self._loaded
        if alone is not None:
            if every.clips:
                raise ImportError("training on videos needs torchvision: pip install 'energon-pack[train]'")
            return _tensors(alone(every.images, return_tensors="pt", **given["images_kwargs"]))
        placeholder = self._template.rules.placeholder
        if as_rows and self._template.rules.nests_images and every.images:
            given["images"] = [list(part.images) for part in members if part.images]
        texts = ["".join(placeholder(kind) for kind in part.order) for part in (members if as_rows else [every])]
        made = processor(text=texts, return_tensors="pt", **{"padding": True} if as_rows else {}, **given)
        found, shape = _tensors(made), made["input_ids"].shape
        self._of_tokens |= {name for name, value in found.items() if _is_of_tokens(value, shape)}
        return {name: value for name, value in found.items() if name not in self._of_tokens}

    def images(self, members: Sequence[Given], names: Collection[str]) -> dict[str, Tensor]:
        """What the image processor alone makes of images, without any text."""
        images = merged(members).images
        given = media_inputs(self._template, images, [])
        processor, alone = self._loaded
        made = (alone or processor.image_processor)(images, return_tensors="pt", **given["images_kwargs"])
        return _tensors({name: value for name, value in made.items() if name in names})

    def of_tokens(self) -> dict[str, TokenRow]:
        """Inputs with a value for each token, beside those of all models: what makes them of a member's tokens.

        Raises:
            JoinError: nothing does.
        """
        processor, _ = self._loaded
        made = {name: getattr(processor, f"create_{name}", None) for name in self._of_tokens - _UNUSED}
        if lost := sorted(name for name, make in made.items() if make is None):
            raise JoinError(f"{self.name} gives {', '.join(lost)} for each token, for which packs have no place")
        return {name: make for name, make in made.items() if make is not None}

    @property
    def kinds(self) -> list[str]:
        """Of media that can be made here."""
        makes = ["image", "video"] if self._loaded[1] is None else ["image"]
        return [kind for kind in makes if kind in self._template.media_tokens]

    @property
    def name(self) -> str:
        """The class of the processor."""
        processor, alone = self._loaded
        return type(processor or alone).__name__

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """The whole processor; where it needs a torchvision that is not there, None and the image processor alone."""
        processor = self._template.spec.processor
        try:
            return full_processor(processor), None
        except ImportError:
            return None, _image_processor(processor)


@errors_only()
def _image_processor(processor: ProcessorSettings) -> Any:
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(processor.folder, backend="pil", **processor.kwargs)


def merged(members: Sequence[Given]) -> Given:
    """The media of several members as of one."""
    return Given(
        [image for member in members for image in member.images],
        [clip for member in members for clip in member.clips],
        [kind for member in members for kind in member.order],
    )


def _tensors(made: Mapping[str, Any]) -> dict[str, Tensor]:
    """Of what a processor made, the media."""
    return {name: _tensor(value) for name, value in made.items() if name not in _NOT_MEDIA}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return torch.cat(list(value))
    return torch.as_tensor(value, dtype=torch.float32 if isinstance(value[0], float) else None)


def _is_of_tokens(value: Tensor, shape: torch.Size) -> bool:
    return value.shape == shape and not value.is_floating_point()

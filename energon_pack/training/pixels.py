"""Images and video frames → the tensors a model takes, by the model's own processor, and joining those of members."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad as pad_tensor

from energon_pack.templates.processor_inputs import Clip, media_inputs
from energon_pack.templates.quiet import errors_only
from energon_pack.templates.template import Template

#: what a processor gives beside a model's media: the text's, and counts for its own use
_NOT_MEDIA = frozenset(
    ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "num_patches", "num_crops", "video_metadata")
)
#: joined along the first dimension, which runs over patches, tiles or media
_JOINED = frozenset(
    (
        "pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes", "batch_num_images",
        "pixel_values_videos", "video_grid_thw", "second_per_grid_ts",
        "pixel_mask", "high_res_pixel_values", "pixel_values_images", "image_position_ids", "image_grid_hw",
        "image_merge_sizes", "spatial_shapes", "target_sizes", "num_local_patches", "pixel_values_local",
    )
)  # fmt: skip
#: of these one image may have more tiles or pixels than the next, in models that know how many are real
_PADDED = frozenset(("pixel_values", "pixel_attention_mask"))

#: a model's media by the names its `forward` has for them
MEDIA_KEYS = _JOINED


class Pixels:
    """The processor of a template, for media alone; loaded when the first medium comes."""

    def __init__(self, template: Template):
        self._template = template

    def __call__(self, images: Sequence[Image.Image], clips: Sequence[Clip], order: Sequence[str]) -> dict[str, Tensor]:
        """The media inputs of one member.

        Args:
            images: prepared, in the order of their placeholders.
            clips: likewise.
            order: `image` or `video` for each placeholder.

        Raises:
            NotImplementedError: the processor gives something that no rule here joins.
            ImportError: videos without torchvision.
        """
        if not images and not clips:
            return {}
        given = media_inputs(self._template, images, clips)
        processor, alone = self._loaded
        if alone is not None and clips:
            raise ImportError("training on videos needs torchvision: pip install 'energon-pack[train]'")
        if alone is None and not clips and "image_grid_thw" in processor.image_processor.model_input_names:
            alone = processor.image_processor  # the processor of Qwen-VL adds nothing but texts
        if alone is not None:
            made = alone(given["images"], return_tensors="pt", **given["images_kwargs"])
        else:
            text = "".join(self._template.rules.media_tokens[kind] for kind in order)
            made = processor(text=[text], return_tensors="pt", **given)
        media = {name: _tensor(value) for name, value in made.items() if name not in _NOT_MEDIA}
        unknown = media.keys() - _JOINED
        if unknown:
            raise NotImplementedError(
                f"{type(processor or alone).__name__} gives {', '.join(sorted(unknown))}: no rule joins it"
            )
        return media

    @cached_property
    @errors_only()
    def _loaded(self) -> tuple[Any, Any]:
        """The whole processor; where it needs a torchvision that is not there, None and the image processor alone."""
        from transformers import AutoImageProcessor, AutoProcessor

        folder, kwargs = self._template.spec.processor.folder, self._template.spec.processor.kwargs
        try:
            return AutoProcessor.from_pretrained(folder, **kwargs), None
        except ImportError:
            return None, AutoImageProcessor.from_pretrained(folder, backend="pil", **kwargs)


def join(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The media of several members as one model input each, in their order.

    Raises:
        ValueError: sizes that can't be joined.
    """
    found: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, []).append(value)
    # Idefics3 has one row of tiles for a whole text: [1, tiles, ...]. LLaVA-NeXT and LLaVA-OneVision have one of tiles
    # for each image, Pixtral has each image in the frame of the largest.
    dim = 0
    if "target_sizes" in found:  # MiniCPM-V has the patches of all images side by side: [1, channels, side, width]
        dim = 3
    elif any(mask.dim() == 4 for mask in found.get("pixel_attention_mask", ())):
        dim = 1
    may_grow = bool(found.keys() & {"pixel_attention_mask", "batch_num_images", "image_sizes"})
    return {
        name: _join(name, values, dim, may_grow) if name in _PADDED else _join(name, values, 0, False)
        for name, values in found.items()
    }


def _join(name: str, values: list[Tensor], dim: int, may_grow: bool) -> Tensor:
    if len(values) == 1:
        return values[0]
    if may_grow:
        sizes = [max(value.shape[i] for value in values) for i in range(values[0].dim())]
        values = [_grown(value, sizes, dim) for value in values]
    try:
        return torch.cat(values, dim)
    except RuntimeError as error:
        raise ValueError(f"{name} of these members can't be joined: {error}") from None


def _grown(value: Tensor, sizes: Sequence[int], dim: int) -> Tensor:
    missing = [0 if i == dim else size - have for i, (size, have) in enumerate(zip(sizes, value.shape, strict=True))]
    if not any(missing):
        return value
    grown: Tensor = pad_tensor(value, [n for amount in reversed(missing) for n in (0, amount)])
    return grown


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return torch.cat(list(value))
    return torch.as_tensor(value, dtype=torch.float32 if isinstance(value[0], float) else None)

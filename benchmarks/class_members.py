"""Members for any class: random words, and images as its own processor prepares them."""

import importlib
import inspect
import re
from typing import Any

import torch
from class_models import Named, tf
from class_rows import BESIDE, LIKE, PROCESSORS
from PIL import Image
from torch import Tensor

from energon_pack.training.batch import tensors_in
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.model_wrappers import configs_in

FIRST_WORD = 128
_FENCES = (
    ("vision_start_token_id", "vision_end_token_id"),
    ("image_start_token_id", "image_end_token_id"),
    ("boi_token_id", "eoi_token_id"),
)


def members(one: Named, model: Any, with_media: bool) -> list[Encoded]:
    """Three: two with an image each, where there are media, and one without."""
    generator = torch.Generator().manual_seed(0)
    every = "pixel_values" in (takes := inspect.signature(model.forward).parameters) and (
        takes["pixel_values"].default is inspect.Parameter.empty
    )
    found = []
    for number, length in enumerate((9, 14, 6)):
        media = media_of(one, model, number) if with_media and (every or number != 2) else {}
        found.append(_member(model, number, length, media, generator))
    return found


def _member(model: Any, number: int, length: int, media: dict[str, Tensor], generator: torch.Generator) -> Encoded:
    config = model.config
    vocabulary = config.get_text_config(decoder=True).vocab_size
    words = torch.randint(min(FIRST_WORD, vocabulary // 2), vocabulary, (length,), generator=generator)
    ids, types = words, torch.zeros_like(words)
    before = 3 + 2 * number  # not the same in each: masks that look in a wrong place have to show
    if media:
        image = image_token(config)
        first, last = _fence(config)
        run = [] if image is None else [*first, *[image] * num_tokens(model, media), *last]
        middle = torch.tensor(run, dtype=torch.long)
        ids = torch.cat([words[:before], middle, words[before:]])
        seen = (middle == (-1 if image is None else image)).long()
        types = torch.cat([types[:before], seen, types[before:]])
    labels = ids.clone()
    labels[: len(ids) - len(words) + before] = IGNORE  # up to the answer
    return Encoded(str(number), Member(ids, labels, types, rope_rows(model, ids, types, media)), media)


def image_token(config: Any) -> int | None:
    """The id that stands for a piece of an image; None: its images have no place in the text."""
    for part in configs_in(config):
        for name in ("image_token_id", "image_token_index", "im_patch_id"):
            if isinstance(getattr(part, name, None), int):
                return int(getattr(part, name))
    return None


def _fence(config: Any) -> tuple[list[int], list[int]]:
    for first, last in _FENCES:
        if isinstance(getattr(config, first, None), int) and isinstance(getattr(config, last, None), int):
            return [getattr(config, first)], [getattr(config, last)]
    return [], []


def media_of(one: Named, model: Any, seed: int) -> dict[str, Tensor]:
    """What the class's own image processor makes of a random image, as far as the model takes it."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (64, 96, 3), generator=generator, dtype=torch.uint8).numpy()
    made = image_processor(one, model.config)(images=[Image.fromarray(image)], return_tensors="pt")
    made = {"pixel_values": made[None]} if isinstance(made, Tensor) else made
    takes = {name for method in (model.forward, *_methods(model, "get_image_features")) for name in _names(method)}
    media = {name: torch.as_tensor(value) for name, value in made.items() if name in takes - {"attention_mask"}}
    media |= {name: torch.tensor(value) for name, value in BESIDE.get(one.model_type, {}).items()}
    return {name: value.float() if value.is_floating_point() else value for name, value in media.items()}


def _methods(model: Any, name: str) -> list[Any]:
    return [getattr(module, name) for module in model.modules() if hasattr(module, name)]


def _names(method: Any) -> set[str]:
    return set(inspect.signature(method).parameters)


def image_processor(one: Named, config: Any) -> Any:
    """The image processor of a class, with the sizes of patches and images that its config has."""
    auto = importlib.import_module("transformers.models.auto.auto_mappings")
    whole = auto.PROCESSOR_MAPPING_NAMES.get(one.model_type, "none")
    kinds = [
        LIKE.get(one.model_type, one.model_type),
        *(kind for kind, name in auto.PROCESSOR_MAPPING_NAMES.items() if name == whole),
    ]
    kinds += [part.model_type for part in configs_in(config) if part is not config]
    classes = next(
        (auto.IMAGE_PROCESSOR_MAPPING_NAMES[k] for k in kinds if k in auto.IMAGE_PROCESSOR_MAPPING_NAMES), None
    )
    if classes is None:
        raise LookupError("no image processor")
    make = getattr(tf, classes.get("torchvision") or classes["pil"])
    return make(**_sizes(make(), config) | PROCESSORS.get(one.model_type, {}))


def _sizes(processor: Any, config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    vision = getattr(config, "vision_config", None) or config
    for name, names in {
        "patch_size": ("patch_size",),
        "temporal_patch_size": ("temporal_patch_size",),
        "merge_size": ("merge_size", "spatial_merge_size"),
    }.items():
        value = next((v for n in names if isinstance(v := getattr(vision, n, None), int)), None)
        if value is not None and isinstance(getattr(processor, name, None), int):
            found[name] = value
    if getattr(config, "image_grid_pinpoints", None) and hasattr(processor, "image_grid_pinpoints"):
        found["image_grid_pinpoints"] = config.image_grid_pinpoints
    size = getattr(vision, "image_size", None)
    size = size[0] if isinstance(size, (list, tuple)) else size
    square = {"height": size, "width": size}
    if isinstance(size, int) and "height" in (getattr(processor, "size", None) or ()):
        found["size"] = square
    if isinstance(size, int) and getattr(processor, "crop_size", None):
        found |= {"size": {"shortest_edge": size}, "crop_size": square}
    return found


def num_tokens(model: Any, media: dict[str, Tensor]) -> int:
    """How many tokens the model makes of media."""
    methods = _methods(model, "get_image_features")
    if not methods:
        return 1  # the text reads its images elsewhere
    takes = {name for method in methods for name in _names(method)}
    with torch.no_grad():
        made = methods[0](**{name: value for name, value in media.items() if name in takes}, return_dict=True)
    count = sum(tensor[..., 0].numel() for tensor in tensors_in(getattr(made, "pooler_output", made)))
    return count or _claimed(model, media)


def _claimed(model: Any, media: dict[str, Tensor]) -> int:
    """How many tokens the model says it misses."""
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor([[FIRST_WORD]]), **media)
    except ValueError as error:
        found = re.search(r"tokens: 0, features: (\d+)", str(error))
        if found:
            return int(found[1])
        raise
    return 0


def rope_rows(model: Any, ids: Tensor, types: Tensor, media: dict[str, Tensor]) -> Tensor | None:
    """Rows of M-RoPE of a member alone, by the model's own method."""
    method = next(iter(_methods(model, "get_rope_index")), None)
    if method is None:
        return None
    given = {"input_ids": ids[None], "mm_token_type_ids": types[None], "attention_mask": torch.ones_like(ids)[None]}
    rows = method(**{name: value for name, value in {**given, **media}.items() if name in _names(method)})
    of_all: Tensor = rows[0] if isinstance(rows, tuple) else rows
    return of_all[:, 0]

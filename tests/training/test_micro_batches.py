"""Packs with media, cut into the micro-batches of a pipeline: each has its own rows, and its own images and videos."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_tiny import tiny_model

from energon_pack.config import PackConfig, Rope
from energon_pack.flavors import MultiMixQASample
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.training.batch import PackedBatch
from energon_pack.training.member_encoder import Encoded
from support.packed import packed, train
from support.running import need_torchvision
from support.samples import picture, video


def micro_batches(batch: PackedBatch, num_rows: int) -> list[dict[str, Any]]:
    """Cut as NeMo Automodel cuts them for its pipelines (nemo_automodel's chunk_vlm_media): so many rows, the media
    that `n_images_per_sample` and `n_videos_per_sample` give those rows, and the patches that these have.
    """
    inputs, found = batch.model_inputs(), []
    place = {"image": 0, "video": 0, "pixel_values": 0, "pixel_values_videos": 0}
    for first in range(0, len(batch["input_ids"]), num_rows):
        rows = slice(first, first + num_rows)
        part: dict[str, Any] = {"use_cache": False, "position_ids": inputs["position_ids"][:, rows]}
        part |= {name: inputs[name][rows] for name in ("input_ids", "mm_token_type_ids")}
        for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            media = slice(place[kind], place[kind] + int(batch[f"n_{kind}s_per_sample"][rows].sum()))
            grids = inputs.get(f"{kind}_grid_thw", torch.zeros(0, 3, dtype=torch.long))[media]
            patches = slice(place[pixels], place[pixels] + int(grids.prod(1).sum()))
            if len(grids):
                part |= {f"{kind}_grid_thw": grids, pixels: inputs[pixels][patches]}
            place |= {kind: media.stop, pixels: patches.stop}
        found.append(part)
    return found


def own_logits(row: Tensor, members: list[Encoded]) -> list[Tensor]:
    lengths = [len(member.tokens) for member in members]
    return list(row[: sum(lengths)].split(lengths))


def alone(model: Any, member: Encoded) -> Tensor:
    """With nothing of ours: the model's own positions."""
    tokens = member.tokens
    mask = torch.ones_like(tokens.ids[None])
    inputs = {"input_ids": tokens.ids[None], "mm_token_type_ids": tokens.types[None], "attention_mask": mask}
    logits: Tensor = model(**inputs, **member.media, use_cache=False).logits[0]
    return logits


def test_micro_batches_give_what_each_member_gives_alone(
    config: Callable[..., PackConfig], demo: tuple[Path, Path]
) -> None:
    """Packs of images, of a video and an image, and of text; all of one width, as pipelines want them."""
    need_torchvision()
    dataset = packed(config(model__rope=Rope.qwen2_5_vl, source__limit=40, packing__max_token_len=700))
    encoder = PackedTaskEncoder(dataset, str(demo[1]), pad_to="max_token_len", tokens_per_second=2)
    packs = list(train(dataset))
    with_media = [pack for pack in packs if pack.media_type == "image"][:2]
    text = next(pack for pack in packs if pack.media_type == "text")
    turns = [{"role": "user", "content": "<image><video>Which?"}, {"role": "assistant", "content": "both"}]
    media = {"image": [LazyImage(picture(90, 60), "x")], "video": [video()]}
    both = MultiMixQASample(__key__="k", __restore_key__=(), messages=turns, **media)
    chosen = [with_media[0], both, text, with_media[1]]
    model = tiny_model(encoder, "eager")
    batch = encoder.batch([encoder.encode_sample(pack) for pack in chosen])
    assert batch["n_images_per_sample"][1:3].tolist() == [1, 0]
    assert batch["n_videos_per_sample"].tolist() == [0, 1, 0, 0]
    members = [[encoder.members.encode(member) for member in inputs_of(pack)] for pack in chosen]
    with torch.no_grad():
        single = [alone(model, member) for pack in members for member in pack]
        for num_rows in (1, 2, 4):
            rows = [row for part in micro_batches(batch, num_rows) for row in model(**part).logits]
            made = [of for row, pack in zip(rows, members, strict=True) for of in own_logits(row, pack)]
            largest = max(float((a - b).abs().max()) for a, b in zip(made, single, strict=True))
            print(f"micro-batches of {num_rows} rows of {batch['input_ids'].shape[1]}: logits {largest:.1e}")
            assert largest <= 1e-5
        batch["n_images_per_sample"] = batch["n_images_per_sample"].roll(1)
        with pytest.raises(ValueError, match="do not match"):
            [model(**part) for part in micro_batches(batch, 1)]

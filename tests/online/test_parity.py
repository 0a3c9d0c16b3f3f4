"""On packs made while loading, a model's outputs for each member equal its outputs for the member alone."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from train_tiny import tiny_model

from energon_pack.config import Mask, PackConfig, Rope
from energon_pack.lazy import LazyPackedDataset
from energon_pack.streaming import StreamingPackedDataset
from energon_pack.training.guards import guard
from energon_pack.training.inputs import MixingError
from support.packed import demo_config
from support.running import need_torchvision

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def config(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> PackConfig:
    need_torchvision()
    settings: dict[str, Any] = {"model__rope": Rope.qwen2_5_vl, "packing__max_token_len": 1024, "source__limit": 60}
    return demo_config(demo, cache, tmp_path_factory.mktemp("parity"), **settings)


@pytest.mark.parametrize("make", [LazyPackedDataset, StreamingPackedDataset])
def test_members_have_the_logits_they_have_alone(
    config: PackConfig, make: Callable[[PackConfig], LazyPackedDataset | StreamingPackedDataset]
) -> None:
    """Samples that see each other would train on wrong contexts, while the loss looks normal."""
    packs: Any = make(config)
    model, unguarded = (tiny_model(packs.encoder).eval() for _ in range(2))  # of one seed
    guard(model, packs.encoder)
    given = [packs[i] for i in range(4)] if make is LazyPackedDataset else list(islice(packs, 4))
    assert any(pack.media for pack in given)
    assert all(len(pack.members) > 1 for pack in given)
    for first in (0, 2):
        rows = given[first : first + 2]
        with torch.no_grad():
            logits = model(**packs.collate(rows).model_inputs(model)).logits
            for row, pack in zip(logits, rows, strict=True):
                start, media = 0, dict(pack.media)
                for member in pack.members:
                    own = {}
                    if member.num_images:
                        num = member.num_images
                        own["image_grid_thw"], media["image_grid_thw"] = (
                            media["image_grid_thw"][:num], media["image_grid_thw"][num:],
                        )  # fmt: skip
                        patches = int(own["image_grid_thw"].prod(dim=1).sum())
                        own["pixel_values"], media["pixel_values"] = (
                            media["pixel_values"][:patches], media["pixel_values"][patches:],
                        )  # fmt: skip
                    ids = member.tokens.ids[None]
                    given_alone = {"input_ids": ids, "mm_token_type_ids": member.tokens.types[None], **own}
                    alone = unguarded(**given_alone, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
                    assert (row[start : start + len(alone)] - alone).abs().max() < 1e-5
                    start += len(alone)


@pytest.mark.parametrize("make", [LazyPackedDataset, StreamingPackedDataset])
def test_a_hybrid_model_without_its_kernels_is_refused(config: PackConfig, make: Callable[[PackConfig], Any]) -> None:
    """Qwen3.5 carries a state from member to member where its kernels are missing."""
    config.model.mask, mask = Mask.hybrid, config.model.mask
    try:
        with pytest.raises(MixingError, match="kernels"):
            make(config)
    finally:
        config.model.mask = mask

"""Datasets that earlier trees packed are read and trained from for ever.

`kept/texts`, `images` and `trees` were packed once by cb9837ef (format 3) from invented samples with the demo's
processor; `older` is `images` as 48d8bb9b packed it (format 1). Their files never change. `expected.json` has what
cb9837ef made of them; after a change that is meant, `PYTHONPATH=.:tests python tests/dataset/test_kept_datasets.py`
writes it anew.
"""

import json
from typing import Any

import pytest
import torch

from energon_pack import PackedDataset, PackedTaskEncoder, weighted_loss
from support.alone import demo_model
from support.packed import train
from support.running import ROOT, need_torchvision

_KEPT = ROOT / "tests" / "dataset" / "kept"
_EXPECTED = _KEPT / "expected.json"
_NAMES = ("images", "texts", "trees")
#: one step of a pixel of 8 bits, in the units of the demo's image processor
_PIXEL_STEP = 1 / 255 / 0.26


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    need_torchvision()


def made_of(batch: Any) -> dict[str, Any]:
    """What must never change in the batch of a pack; of pixels, their number and the first of every 40th patch."""
    whole = {name: batch[name].tolist() for name in ("input_ids", "labels", "position_ids")}
    whole["sample_ids"] = batch["sample_ids"]
    whole["loss_weight"] = batch["loss_weight"].tolist() if "loss_weight" in batch else None
    pixels = batch.get("pixel_values")
    if pixels is None:
        return whole
    return {
        **whole,
        "image_grid_thw": batch["image_grid_thw"].tolist(),
        "pixel_values": [round(value, 4) for value in pixels[::40, 0].tolist()],
    }


def batches(name: str) -> list[Any]:
    packs = PackedDataset(_KEPT / name)
    return [packs.collate([packs[number]]) for number in range(len(packs))]


@pytest.mark.parametrize("name", _NAMES)
def test_an_earlier_dataset_gives_the_batches_that_it_gave(name: str) -> None:
    """Their owners would train other tokens, labels, weights, positions or pixels than they packed."""
    expected = json.loads(_EXPECTED.read_text())[name]
    made = [made_of(batch) for batch in batches(name)]
    for pack, before in zip(made, expected, strict=True):
        pixels, pixels_before = pack.pop("pixel_values", []), before.pop("pixel_values", [])
        assert pack == before
        assert pixels == pytest.approx(pixels_before, abs=_PIXEL_STEP)


@pytest.mark.parametrize("name", _NAMES)
def test_an_earlier_dataset_trains_a_model_through_energon(name: str) -> None:
    encoder = PackedTaskEncoder(_KEPT / name)
    model = demo_model(encoder.rules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    num_packs = 0
    for _ in range(3):
        for sample in train(_KEPT / name):
            batch = encoder.batch([encoder.encode_sample(sample)])
            loss = weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            num_packs += 1
            assert torch.isfinite(loss)
    assert num_packs == 3 * len(json.loads(_EXPECTED.read_text())[name])


def test_a_dataset_of_format_1_is_refused_by_name() -> None:
    """It has no tokens: what would be trained is what today's template makes of it, not what was packed."""
    with pytest.raises(ValueError, match="it has the format 1, without the tokens of its packs, which 3 has"):
        PackedDataset(_KEPT / "older")


if __name__ == "__main__":
    _EXPECTED.write_text(json.dumps({name: list(map(made_of, batches(name))) for name in _NAMES}) + "\n")

"""Costs of samples from a model's config, compared with hand-computed ones and transformers' numbers of weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_pack.steps.cost import CostModel, cost_model_from_config, cost_model_or_default
from support.running import need_torchvision

TEXT = {
    "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 10, "num_attention_heads": 4,
    "num_key_value_heads": 1, "vocab_size": 100,
}  # fmt: skip
VISION = {"hidden_size": 4, "num_hidden_layers": 3, "intermediate_size": 5, "patch_size": 2}


def test_a_token_costs_two_flops_a_weight() -> None:
    """Attention 8·2·(4+4+1+1) = 160 and MLP 3·8·10 = 240 weights a layer, 800 of the vocabulary."""
    model = cost_model_from_config(TEXT, "text")
    assert model.lm_token == 2 * (2 * (160 + 240) + 800)
    assert model.lm_square == 2 * 2 * 8  # two products 2·len²·8 in two layers, half of each masked
    assert model.lm_flops(np.array([0, 1, 10])).tolist() == [0, 3200 + 32, 32000 + 3200]
    assert model.vision_flops(np.array([5]), np.array([1])).tolist() == [0]


def test_heads_that_a_config_leaves_out_are_as_wide_as_the_model() -> None:
    """Gemma 3 is published without them: weights by default would be those of a model of another size."""
    text = {name: value for name, value in TEXT.items() if name not in ("num_attention_heads", "num_key_value_heads")}
    model = cost_model_from_config(text, "text")
    assert (model.lm_token, model.lm_square) == (2 * (2 * (4 * 8 * 8 + 240) + 800), 2 * 2 * 8)


def test_layers_of_a_window_see_no_further() -> None:
    """With whole len² a long sample would seem dearer than it is, in all models with sliding windows."""
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}
    model = cost_model_from_config(TEXT | kinds, "text")
    assert (model.lm_square, model.lm_window, model.window) == (16, 16, 4)
    assert model.lm_flops(np.array([3, 10])).tolist() == [9600 + 32 * 9, 32000 + 16 * 100 + 16 * (100 - 36)]


def test_only_experts_that_are_taken_cost() -> None:
    """Of four experts two are taken, one is shared, and the router has 4·8; the first layer is dense."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 3, "n_shared_experts": 1}
    model = cost_model_from_config(TEXT | experts | {"first_k_dense_replace": 1}, "text")
    assert model.lm_token == 2 * (2 * 160 + 240 + 3 * (3 * 8 * 3) + 4 * 8 + 800)


def test_a_visual_token_costs_all_its_patches() -> None:
    """Weights a layer: 4·16 + 2·4·5 = 104; four patches a token, whose projector has (16 + 8)·8 weights."""
    model = cost_model_from_config({"text_config": TEXT, "vision_config": VISION | {"spatial_merge_size": 2}}, "both")
    assert model.vision_token == 4 * 2 * 3 * 104 + 2 * 24 * 8
    assert model.vision_square == 3 * 4 * 4 * 4**2  # 4·width of each pair of patches, 16 pairs of patches a pair
    one, two, none = model.vision_flops(np.array([6, 6, 0]), np.array([1, 2, 0])).tolist()
    assert one == 6 * model.vision_token + 36 * model.vision_square
    assert two == 6 * model.vision_token + 2 * 9 * model.vision_square
    assert none == 0


def test_tiles_of_one_size_do_not_attend_each_other() -> None:
    """An image of 13 tiles would cost 13 times the attention that it has."""
    config = {"text_config": TEXT, "vision_config": VISION | {"image_size": [8, 8]}, "downsample_ratio": 0.5}
    model = cost_model_from_config(config, "tiles")
    assert model.tile == 4
    assert model.vision_flops(np.array([52]), np.array([1])) == 13 * model.vision_flops(np.array([4]), np.array([1]))


def test_windows_of_the_encoder_are_linear() -> None:
    """One layer of three sees the image, the others a window of 2 × 2 patches each."""
    windows = {"spatial_merge_size": 2, "window_size": 4, "fullatt_block_indexes": [2]}
    whole = cost_model_from_config({"text_config": TEXT, "vision_config": VISION | {"spatial_merge_size": 2}}, "whole")
    model = cost_model_from_config({"text_config": TEXT, "vision_config": VISION | windows}, "windows")
    assert model.vision_square * 3 == whole.vision_square
    assert model.vision_token - whole.vision_token == 4 * 2 * (4 * 4 * 4)


def test_a_video_costs_its_frames() -> None:
    """As one image a video of 100 frames would cost 100 times the attention that it has."""
    model = cost_model_from_config({"text_config": TEXT, "vision_config": VISION | {"spatial_merge_size": 2}}, "both")
    assert model.vision_flops(np.array([2560]), np.array([0])) == 10 * model.vision_flops(
        np.array([256]), np.array([1])
    )


@pytest.mark.parametrize("text", [None, "{", '{"model_type": "llama", "vocab_size": 5}', '["no object"]'])
def test_a_config_that_does_not_say_all_gives_weights_by_default(text: str | None, tmp_path: Path) -> None:
    """A dataset must be packed for any processor, and what its steps are measured by is said."""
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    model = cost_model_or_default(tmp_path)
    assert model.lm_token == pytest.approx(2 * 7.07e9, rel=0.01)  # Qwen2-7B without embeddings
    assert model.source.endswith("28 layers × 3584 and a vision encoder of 32 × 1280, 4 patches a token")
    assert ("no config.json" in model.source) == (text is None)
    assert cost_model_or_default(None).lm_token == model.lm_token


@pytest.mark.parametrize("wrong", [0, [], -5, "x", float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["num_attention_heads", "sliding_window", "patch_size"])
def test_sizes_that_are_none_cost_something_all_the_same(name: str, wrong: Any, tmp_path: Path) -> None:
    """Packing ended with a traceback after all was measured, or the manifest had no JSON in it."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    text: dict[str, Any] = {**TEXT, **kinds}
    vision: dict[str, Any] = {**VISION, "spatial_merge_size": 2, "image_size": 8}
    (vision if name in vision else text)[name] = wrong
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "vision_config": vision}))
    model = cost_model_or_default(tmp_path)
    json.dumps(model.to_json(), allow_nan=False)
    costs = (model.lm_flops(np.array([1, 100_000])), model.vision_flops(np.array([1, 100_000]), np.array([1, 1])))
    assert np.min(costs) > 0


def test_a_cost_model_is_kept() -> None:
    """`order` reads it from the dataset."""
    model = cost_model_or_default(None)
    assert CostModel.from_json(json.loads(json.dumps(model.to_json()))) == model


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "granite_docling_idefics3"])
def test_configs_as_they_are_published(name: str, real: Path) -> None:
    """Keys that a family has under another name must not end in weights by default."""
    model = cost_model_or_default(real / "processors" / name)
    assert model.source.endswith("config.json")
    sizes = {"qwen2_5_vl": 7.07e9, "qwen3_vl": 7.57e9, "granite_docling_idefics3": 0.164e9}
    assert model.lm_token == pytest.approx(2 * sizes[name], rel=0.01)


FAMILIES = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "internvl", "gemma3", "llava_onevision", "llava", "mistral3",
    "glm4v", "idefics3",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_the_model(family: str) -> None:
    """FLOPs of a token are twice the weights of transformers' own model, built without memory."""
    need_torchvision()
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        whole = AutoModelForImageTextToText.from_config(config)
    made: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    model = cost_model_from_config(made, family)
    text = getattr(whole.model, "language_model", None) or whole.model.text_model
    num = sum(weight.numel() for weight in text.parameters()) - text.get_input_embeddings().weight.numel()
    assert model.lm_token == pytest.approx(2 * (num + whole.get_output_embeddings().weight.numel()), rel=0.02)

    tower = getattr(whole.model, "visual", None) or getattr(whole.model, "vision_tower", None)
    tower = whole.model.vision_model if tower is None else tower
    layers = next(part for name, part in tower.named_modules() if name.split(".")[-1] in ("blocks", "layers", "layer"))
    vision, hidden = made["vision_config"], made["text_config"]["hidden_size"]
    width, full = vision.get("embed_dim") or vision["hidden_size"], vision.get("fullatt_block_indexes")
    merged = (model.vision_square / (4 * width * len(full or layers))) ** 0.5
    of_layers = 2 * merged * sum(weight.numel() for weight in layers.parameters())
    projector = 2 * hidden * (merged * width + hidden)
    windows = merged * 4 * width * 64 * (len(layers) - len(full)) if full else 0
    assert model.vision_token == pytest.approx(of_layers + projector + windows, rel=0.02)

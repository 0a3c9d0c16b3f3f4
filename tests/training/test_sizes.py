"""A config made small keeps what a model of it is about: a layer of each kind, and sizes that fit each other."""

from typing import Any

import pytest
import torch

from energon_pack.training.sizes import shrink_sizes
from support.tiny import tf

#: a class, and where the kinds of its layers stand
KINDS = {
    "JambaForCausalLM": "layers_block_type",  # by a period of 8
    "Gemma3ForCausalLM": "layer_types",
    "Gemma3nForCausalLM": "layer_types",  # the last of them share keys
    "Qwen3NextForCausalLM": "layer_types",
    "MiniMaxForCausalLM": "layer_types",
}
#: their parts are as wide as each other, or some times as wide
JOINED = [
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "MiniMaxM3SparseForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "InternVLForConditionalGeneration",
]


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_of_each_kind_stays(name: str) -> None:
    config = getattr(tf, name).config_class()
    kinds = set(getattr(config, KINDS[name]))
    shrink_sizes(config)
    assert set(getattr(config, KINDS[name])) == kinds
    assert len(getattr(config, KINDS[name])) == config.num_hidden_layers <= 8


def test_lists_of_layers_are_cut_together() -> None:
    """The third of each list is of the same layer."""
    config = tf.LlamaConfig(
        num_hidden_layers=6, vocab_size=8, no_rope=[1, 1, 1, 0, 1, 1], kinds=["a", "b", "a", "a", "b", "a"], marked=[4]
    )
    config.marked_layers = [3, 5]
    shrink_sizes(config)
    assert config.num_hidden_layers == 3
    assert config.no_rope == [1, 1, 0]
    assert config.kinds == ["a", "b", "a"]
    assert config.marked_layers == [2]


def test_what_is_as_wide_as_the_model_stays_so() -> None:
    config = tf.LlamaConfig(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=16384)
    shrink_sizes(config)
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (256, 2, 128)
    assert config.intermediate_size == 1024
    assert config.num_key_value_heads == 1


def test_heads_that_do_not_divide_the_width_stay_whole() -> None:
    """Twenty heads in 2048 of width: they are made as few as divides both."""
    config = tf.LlamaConfig(hidden_size=2560, num_attention_heads=20, num_key_value_heads=4, head_dim=128)
    shrink_sizes(config)
    assert config.num_attention_heads % config.num_key_value_heads == 0
    assert (config.num_attention_heads, config.hidden_size) == (2, 256)


@pytest.mark.parametrize("name", JOINED)
def test_parts_fit_each_other(name: str) -> None:
    """An image's features are as wide as the text's."""
    config: Any = getattr(tf, name).config_class()
    shrink_sizes(config)
    with torch.device("meta"):
        model = getattr(tf, name)._from_config(config)
    vocabulary = config.get_text_config().vocab_size
    assert sum(weight.numel() for weight in model.parameters() if vocabulary not in weight.shape) < 3e7

"""A config made small keeps what a model of it is about: a layer of each kind, and sizes that fit each other."""

from typing import Any

import pytest
import torch

from energon_pack.training.shrink import shrink_sizes
from support.tiny import tf

#: a class, and where the kinds of its layers stand
KINDS = {
    "JambaForCausalLM": "layers_block_type",  # by a period of 8
    "Gemma3ForCausalLM": "layer_types",
    "Gemma3nForCausalLM": "layer_types",  # the last of them share keys
    "Qwen3NextForCausalLM": "layer_types",
    "MiniMaxForCausalLM": "layer_types",
}
#: sizes that are the text's width, or some times that
JOINED = {
    "Qwen2VLConfig": {"vision_config.hidden_size": 1},
    "Qwen2_5_VLConfig": {"vision_config.out_hidden_size": 1},
    "Qwen3VLConfig": {"vision_config.out_hidden_size": 1},
    "MiniMaxM3VLConfig": {"projector_hidden_size": 1, "merged_hidden_size": 4},
    "InklingConfig": {"vision_config.text_hidden_size": 1},
}


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


def test_keys_have_a_number_of_heads_that_divides_that_of_queries() -> None:
    """40 heads in a width of 2048 become 5, which the 2 that are left of 20 do not divide."""
    config = tf.Qwen3Config(hidden_size=2048, num_attention_heads=40, num_key_value_heads=20, head_dim=64)
    shrink_sizes(config)
    assert (config.num_attention_heads, config.num_key_value_heads, config.hidden_size) == (5, 1, 256)


def test_layers_that_share_keys_stay_behind_those_that_have_some() -> None:
    """Gemma 3n counts its kinds of layers anew when a model is made, and refuses any that only share."""
    config = tf.Gemma3nTextConfig()
    shrink_sizes(config)
    assert config.num_kv_shared_layers == 2
    with torch.device("meta"):
        tf.Gemma3nForCausalLM._from_config(config)


@pytest.mark.parametrize("name", JOINED)
def test_parts_fit_each_other(name: str) -> None:
    config = getattr(tf, name)()
    text = config.get_text_config()
    before = text.hidden_size
    shrink_sizes(config)
    assert text.hidden_size < before
    for path, times in JOINED[name].items():
        value: Any = config
        for step in path.split("."):
            value = getattr(value, step)
        assert value == times * text.hidden_size, path

"""A config made small keeps what a model of it is about: a layer of each kind, and sizes that fit each other."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.proof import try_masks
from energon_pack.training.shrunk_config import shrink_layers_and_widths
from energon_pack.training.small_model import SMALL_LEN, build_small_model
from support.tiny import TEXT, MadeEncoder, make_batch, text_members, tf

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
    shrink_layers_and_widths(config)
    assert set(getattr(config, KINDS[name])) == kinds
    assert len(getattr(config, KINDS[name])) == config.num_hidden_layers <= 8


def test_lists_of_layers_are_cut_together() -> None:
    """The third of each list is of the same layer."""
    config = tf.LlamaConfig(
        num_hidden_layers=6, vocab_size=8, no_rope=[1, 1, 1, 0, 1, 1], kinds=["a", "b", "a", "a", "b", "a"], marked=[4]
    )
    config.marked_layers = [3, 5]
    shrink_layers_and_widths(config)
    assert config.num_hidden_layers == 3
    assert config.no_rope == [1, 1, 0]
    assert config.kinds == ["a", "b", "a"]
    assert config.marked_layers == [2]


def test_what_is_as_wide_as_the_model_stays_so() -> None:
    config = tf.LlamaConfig(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=16384)
    shrink_layers_and_widths(config)
    assert (config.hidden_size, config.num_attention_heads, config.head_dim) == (256, 2, 128)
    assert config.intermediate_size == 1024
    assert config.num_key_value_heads == 1


def test_keys_have_a_number_of_heads_that_divides_that_of_queries() -> None:
    """40 heads in a width of 2048 become 5, which the 2 that are left of 20 do not divide."""
    config = tf.Qwen3Config(hidden_size=2048, num_attention_heads=40, num_key_value_heads=20, head_dim=64)
    shrink_layers_and_widths(config)
    assert (config.num_attention_heads, config.num_key_value_heads, config.hidden_size) == (5, 1, 256)


def test_layers_that_share_keys_stay_behind_those_that_have_some() -> None:
    """Gemma 3n counts its kinds of layers anew when a model is made, and refuses any that only share."""
    config = tf.Gemma3nTextConfig()
    shrink_layers_and_widths(config)
    assert config.num_kv_shared_layers == 2
    with torch.device("meta"):
        tf.Gemma3nForCausalLM._from_config(config)


@pytest.mark.parametrize("name", JOINED)
def test_parts_fit_each_other(name: str) -> None:
    config = getattr(tf, name)()
    text = config.get_text_config()
    before = text.hidden_size
    shrink_layers_and_widths(config)
    assert text.hidden_size < before
    for path, times in JOINED[name].items():
        value: Any = config
        for step in path.split("."):
            value = getattr(value, step)
        assert value == times * text.hidden_size, path


def test_projectors_are_narrow_whatever_their_width() -> None:
    """As wide as checkpoints have them, they made `guard()` take four times as long."""
    config = tf.Cohere2VisionConfig()
    shrink_layers_and_widths(config)
    assert config.alignment_intermediate_size == 96
    config = tf.Gemma4UnifiedConfig(vision_config={}, audio_config={})
    shrink_layers_and_widths(config)
    assert config.vision_config.mm_embed_dim == config.vision_config.output_proj_dims == 256
    with torch.device("meta"):
        tf.Gemma4UnifiedForConditionalGeneration._from_config(config)


# Sizes that count tokens are found by their effect, and made small in the probed copy.

#: a class, more of its config, and what counts tokens in it
SIZES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "none": ("LlamaForCausalLM", {}, set()),
    "window": ("MistralForCausalLM", {"sliding_window": 4096}, {"sliding_window"}),
    "window by another name": (
        "GPTNeoForCausalLM",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        {"window_size"},
    ),
    "no scale of all scores": (
        "Gemma2ForCausalLM",
        {"head_dim": 8, "query_pre_attn_scalar": 256, "sliding_window": 4096},
        {"sliding_window"},
    ),
}


def small_config(name: str, longest: int | None = None, **more: Any) -> Any:
    make = getattr(tf, name)
    return build_small_model(make, make.config_class(**{**TEXT, **more}), "eager", longest, text_members(64)).config


@pytest.mark.parametrize("case", SIZES)
def test_what_counts_tokens_is_found(case: str) -> None:
    """A list of names would miss the next class's."""
    name, more, expected = SIZES[case]
    config = small_config(name, **more)
    before = vars(getattr(tf, name).config_class(**{**TEXT, **more}))
    changed = {key for key, value in vars(config).items() if value == SMALL_LEN != before.get(key)}
    assert changed == expected


def sparse(**more: Any) -> Any:
    """MiniMax M3 with the sparse layers of its own, which count blocks of 128 along the row."""
    layers: Mapping[str, Any] = {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "dense"],
    }
    heads = {"head_dim": 8, "index_head_dim": 8, "index_n_heads": 2, "rotary_dim": 4, "dense_intermediate_size": 48}
    return tf.MiniMaxM3VLForCausalLM.config_class(**{**TEXT, **heads, **layers, **more})


@pytest.mark.parametrize(("longest", "is_exact"), [(None, False), (4096, False), (128, True)])
def test_what_begins_beyond_the_members_of_a_probe_is_tried(longest: int | None, is_exact: bool) -> None:
    """It was accepted, and the second member of a pack of 315 tokens was off by 2.5."""
    tried = try_masks(tf.MiniMaxM3VLForCausalLM, sparse(), text_members(64), longest=longest)
    assert tried[-1].is_exact == is_exact, str(tried[-1])


def test_a_row_longer_than_the_packs_that_were_tried_is_refused() -> None:
    """Blocks are counted along the row: the third of 20 members of 60 tokens was off by 2.4, and nothing said so."""
    model = tf.MiniMaxM3VLForCausalLM(sparse()).eval()
    members = text_members(64)
    guard(model, MadeEncoder(text_members(64), max_token_len=128))
    model(**make_batch("llama", [members], width=150).model_inputs(model))  # its padding is no part of a pack
    with pytest.raises(MixingError, match=r"a row of 232 tokens: .* in packs of 128 tokens at most"):
        model(**make_batch("llama", [members * 8]).model_inputs(model))


def test_sizes_that_no_pack_reaches_stay() -> None:
    """Of packs of 128 tokens a window of 4,096 hides nothing."""
    assert small_config("MistralForCausalLM", 128, sliding_window=4096).sliding_window == 4096
    assert small_config("MistralForCausalLM", 8192, sliding_window=4096).sliding_window == SMALL_LEN


def test_many_heads_of_an_indexer_stay() -> None:
    """Two leave many keys with a score of exactly 0, and which of them are picked depends on their place."""
    config = tf.DeepseekV32Config(
        **{**TEXT, "num_attention_heads": 16, "hidden_size": 64, "num_key_value_heads": 16}, index_n_heads=32,
        index_head_dim=8, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=2,
    )  # fmt: skip
    tried = try_masks(tf.DeepseekV32ForCausalLM, config, text_members(64), "positions", "eager")
    assert tried[-1].is_exact, str(tried[-1])


def test_they_are_looked_for_where_the_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, flash attention and the kernels of hybrids run nothing: each such class would be refused on a GPU."""
    seen = []

    def logits(model: Any, member: Any) -> Any:
        seen.append(model.device.type)
        return torch.zeros(9, 2)

    monkeypatch.setattr("energon_pack.training.small_model.plain_logits", logits)
    config = tf.MistralConfig(**TEXT, sliding_window=4096)
    build_small_model(tf.MistralForCausalLM, config, "sdpa", None, text_members(64), "meta")
    assert set(seen) == {"meta"}

"""Sizes that count tokens are found by their effect, and made small in the probed copy."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.proof import prove
from energon_pack.training.small_model import SMALL, small_model
from support.tiny import TEXT, MadeEncoder, make_batch, text_members, tf

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
    return small_model(make, make.config_class(**{**TEXT, **more}), "eager", longest, text_members(64)).config


@pytest.mark.parametrize("case", SIZES)
def test_what_counts_tokens_is_found(case: str) -> None:
    """A list of names would miss the next class's."""
    name, more, expected = SIZES[case]
    config = small_config(name, **more)
    before = vars(getattr(tf, name).config_class(**{**TEXT, **more}))
    changed = {key for key, value in vars(config).items() if value == SMALL != before.get(key)}
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
    tried = prove(tf.MiniMaxM3VLForCausalLM, sparse(), text_members(64), longest=longest)
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
    assert small_config("MistralForCausalLM", 8192, sliding_window=4096).sliding_window == SMALL


def test_many_heads_of_an_indexer_stay() -> None:
    """Two leave many keys with a score of exactly 0, and which of them are picked depends on their place."""
    config = tf.DeepseekV32Config(
        **{**TEXT, "num_attention_heads": 16, "hidden_size": 64, "num_key_value_heads": 16}, index_n_heads=32,
        index_head_dim=8, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=2,
    )  # fmt: skip
    tried = prove(tf.DeepseekV32ForCausalLM, config, text_members(64), "positions", "eager")
    assert tried[-1].is_exact, str(tried[-1])


def test_they_are_looked_for_where_the_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, flash attention and the kernels of hybrids run nothing: each such class would be refused on a GPU."""
    seen = []

    def logits(model: Any, member: Any) -> Any:
        seen.append(model.device.type)
        return torch.zeros(9, 2)

    monkeypatch.setattr("energon_pack.training.small_model.plain_logits", logits)
    config = tf.MistralConfig(**TEXT, sliding_window=4096)
    small_model(tf.MistralForCausalLM, config, "sdpa", None, text_members(64), "meta")
    assert set(seen) == {"meta"}

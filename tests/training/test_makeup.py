"""The subject of a proof: the code that a model runs now, and every kind of its layers."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.proof import kinds_of, prove, replaced_in
from energon_pack.training.small_model import small_model
from support.tiny import TEXT, MadeEncoder, make_batch, make_model, text_members, tf

masking_utils, modeling_qwen2 = tf.masking_utils, tf.models.qwen2.modeling_qwen2
Replace = Callable[[pytest.MonkeyPatch], None]


def a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = modeling_qwen2.Qwen2Model.forward

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, **keywords: Any) -> Any:
        return forward(self, *args, **{**keywords, "position_ids": None})

    monkeypatch.setattr(modeling_qwen2.Qwen2Model, "forward", wrapped)


def a_helper_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None)


def an_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **keywords: Any) -> Any:
        return tf.integrations.sdpa_attention.sdpa_attention_forward(module, query, key, value, None, **keywords)

    monkeypatch.setitem(tf.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", unmasked)


@pytest.mark.parametrize("replaced", [a_decorator, a_helper_of_transformers, an_attention])
def test_replaced_code_is_proved_as_it_runs(replaced: Replace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these makes members of Qwen2 see each other; an earlier proof of the class says nothing of it."""
    text = MadeEncoder(text_members(64))
    guard(model := make_model("qwen2"), text).remove()
    replaced(monkeypatch)
    with pytest.raises(MixingError, match="is not shown to keep members of packs apart"):
        guard(model, text)


def test_what_was_replaced_in_one_model_is_tried_with_its_first_batch() -> None:
    """No copy has it: the model itself is tried, or is refused."""
    model = make_model("qwen2")
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *args, **keywords: forward(*args, **{**keywords, "attention_mask": None})
    with pytest.raises(MixingError, match=r"the forward of model\.layers\.1\.self_attn was replaced"):
        guard(model, first_batch=False)
    guard(model, trust="Qwen2ForCausalLM", first_batch=False).remove()
    guard(model)
    with pytest.raises(MixingError, match="mixes the members of its first batch"):
        model(**make_batch("qwen2", [text_members(64)]).model_inputs())


def test_a_wrapped_forward_is_that_of_its_class() -> None:
    """torch.compile and Accelerate's mixed precision wrap it."""
    model = make_model("qwen2")
    model.forward = torch.compile(model.forward, backend="eager")
    model.model.forward = functools.wraps(model.model.forward)(lambda *args, **keywords: None)
    assert not replaced_in(model)


def test_a_layer_that_a_small_copy_has_not_is_not_shown() -> None:
    """The last of ten layers carries a state: with four such, members differ by 2.3. Its copy has the first."""
    config = tf.BambaConfig(vocab_size=64, num_hidden_layers=10, attn_layer_indices=list(range(9)))
    with torch.device("meta"):
        kinds = kinds_of(tf.BambaForCausalLM(config))
    tried = prove(tf.BambaForCausalLM, config, text_members(64), kinds=kinds)
    assert not any(one.is_exact for one in tried)
    lost = kinds_of(make_model("qwen2")) | {"Qwen2Memory"}
    tried = prove(tf.Qwen2ForCausalLM, tf.Qwen2Config(**TEXT), text_members(64), kinds=lost)
    assert "a small copy of it has no Qwen2Memory" in str(tried[-1])
    assert prove(tf.Qwen2ForCausalLM, tf.Qwen2Config(**TEXT), text_members(64), kinds=lost - {"Qwen2Memory"})[
        -1
    ].is_exact


def test_layers_that_share_what_others_hold_are_in_the_copy() -> None:
    config = tf.Gemma4TextConfig(vocab_size=64, vocab_size_per_layer_input=64, num_kv_shared_layers=4)
    with torch.device("meta"):
        kinds = kinds_of(tf.Gemma4ForCausalLM(config))
    assert "Gemma4TextAttention with is_kv_shared_layer=True" in kinds
    assert kinds <= kinds_of(small_model(tf.Gemma4ForCausalLM, config))

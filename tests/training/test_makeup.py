"""What a proof is of: the code that a model runs now, and every kind of its layers."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import masking_utils
from transformers.integrations import sdpa_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2 import modeling_qwen2

from energon_pack.training.guards import guard
from energon_pack.training.inputs import MixingError
from energon_pack.training.makeup import code_of, kinds_of, replaced_in
from energon_pack.training.proof import prove
from support.tiny import TEXT, make_model, text_members, tf

Replace = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def without_mask(sees_mask: int) -> Any:
    """Two of these differ in a constant alone."""
    body = f"return old(self, *args, **(keywords if {sees_mask} else bare(keywords)))"
    source = f"def forward(self, *args, **keywords):\n    {body}"
    names: dict[str, Any] = {
        "old": modeling_qwen2.Qwen2Attention.forward,
        "bare": lambda keywords: {**keywords, "attention_mask": None},
    }
    exec(source, names)
    return names["forward"]


def a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = modeling_qwen2.Qwen2Model.forward

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, **keywords: Any) -> Any:
        return forward(self, *args, **{**keywords, "position_ids": None})

    monkeypatch.setattr(modeling_qwen2.Qwen2Model, "forward", wrapped)


def a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_qwen2.Qwen2Attention, "forward", without_mask(0))


def a_helper_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None)


def an_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **keywords: Any) -> Any:
        return sdpa_attention.sdpa_attention_forward(module, query, key, value, None, **keywords)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", unmasked)


@pytest.mark.parametrize("name", ["qwen2", "internvl"])
@pytest.mark.parametrize("replaced", [a_decorator, a_constant, a_helper_of_transformers, an_attention])
def test_a_kept_proof_is_not_that_of_replaced_code(
    name: str, replaced: Replace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these makes members of Qwen2 see each other; its proof was kept before, and taken for them all."""
    if replaced is a_constant:
        monkeypatch.setattr(modeling_qwen2.Qwen2Attention, "forward", without_mask(1))
    model = make_model(name)
    text = Text()
    guard(model, text).remove()
    before = code_of(model)
    assert before == code_of(make_model(name))
    replaced(monkeypatch)
    assert code_of(model) != before
    with pytest.raises(MixingError, match="is not shown to keep members of packs apart"):
        guard(model, text)


class Text:
    """An encoder of texts."""

    mask, max_token_len = "positions", None

    def probe_members(self) -> Any:
        return text_members(64)


def test_what_was_replaced_in_one_model_is_refused() -> None:
    model = make_model("qwen2")
    attention = model.model.layers[1].self_attn
    attention.forward = functools.partial(without_mask(0), attention)
    with pytest.raises(MixingError, match=r"the forward of model\.layers\.1\.self_attn was replaced"):
        guard(model)
    guard(model, trust="Qwen2ForCausalLM").remove()


def test_a_wrapped_forward_is_that_of_its_class() -> None:
    """torch.compile and Accelerate's mixed precision wrap it."""
    model = make_model("qwen2")
    model.forward = torch.compile(model.forward, backend="eager")
    model.model.forward = functools.wraps(model.model.forward)(lambda *args, **keywords: None)
    assert not replaced_in(model)


def test_a_layer_that_a_small_copy_has_not_is_not_shown() -> None:
    kinds = kinds_of(tf.Qwen2ForCausalLM(tf.Qwen2Config(**TEXT)))
    assert prove(tf.Qwen2ForCausalLM, tf.Qwen2Config(**TEXT), text_members(64), kinds=kinds)[-1].is_exact
    other = tf.Qwen2Config(**TEXT, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    tried = prove(tf.Qwen2ForCausalLM, other, text_members(64), kinds=kinds | {"Qwen2Memory()"})
    assert "a small copy of it has no Qwen2Memory()" in str(tried[-1])
    assert not tried[-1].is_exact

"""Inputs that mix members are refused; each is shown to mix them."""

from typing import Any

import pytest
import torch

from energon_pack.training import guards
from energon_pack.training.guards import MixingError, check_inputs, guard
from energon_pack.training.probe import probe, shrink
from support.tiny import FAMILIES, make_batch, make_members, make_model, text_members, tf


def bad_inputs(inputs: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """What trainers do to a batch → what is said of it."""
    width = inputs["input_ids"].shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()[None, None]
    no_cache = {name: value for name, value in inputs.items() if name != "use_cache"}
    return {
        "cache": (no_cache, "use_cache=None"),
        "ones": ({**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}, "2-D attention_mask of ones"),
        "boolean": ({**inputs, "attention_mask": causal}, "boolean 4-D mask"),
        "no text row": ({**inputs, "position_ids": inputs["position_ids"][1:]}, "no text row"),
        "no positions": ({**inputs, "position_ids": None}, "position_ids are missing"),
    }


@pytest.mark.parametrize("case", ["cache", "ones", "boolean", "no text row", "no positions"])
def test_what_mixes_members_is_refused(case: str) -> None:
    model = make_model("qwen2_5_vl")
    batch = make_batch("qwen2_5_vl", [make_members("qwen2_5_vl", model)])
    good = batch.model_inputs()
    check_inputs(good, "sdpa")
    bad, said = bad_inputs(good)[case]
    with torch.no_grad():
        difference = (model(**bad).logits - model(**good).logits).abs().max()
    assert difference > 0.1, "this would not have mixed members"
    handle = guard(model)
    with pytest.raises(MixingError, match=said):
        model(**bad)
    model(**good)
    handle.remove()


def test_flash_attention_of_several_rows_needs_boundaries() -> None:
    model = make_model("llama")
    members = make_members("llama", model)
    good = make_batch("llama", [members[:2], members[2:]]).model_inputs()
    check_inputs(good, "flash_attention_2")
    bad = {name: value for name, value in good.items() if name != "cu_seq_lens_q"}
    check_inputs(bad, "sdpa")
    with pytest.raises(MixingError, match="flash_attention_2 with 2 rows"):
        check_inputs(bad, "flash_attention_2")


def test_boundaries_and_positions_have_to_agree() -> None:
    model = make_model("llama")
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    with pytest.raises(MixingError, match="do not start again"):
        check_inputs({**inputs, "position_ids": inputs["position_ids"] + 1})


def test_an_indexed_mask_of_one_member_is_no_mask_of_ones() -> None:
    model = make_model("llama")
    members = make_members("llama", model)
    for packs, is_good in (([members[:1]], True), ([members[:1], members[2:3]], True), ([members[:2]], False)):
        batch = make_batch("llama", packs, width=60)
        ones = (batch["doc_ids"] > 0).int()
        if is_good:
            check_inputs({**batch.model_inputs(), "attention_mask": batch["doc_ids"]})
            check_inputs({**batch.model_inputs(), "attention_mask": ones})
        else:
            with pytest.raises(MixingError, match="mask of ones"):
                check_inputs({**batch.model_inputs(), "attention_mask": ones})


def test_a_hybrid_model_is_refused_without_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("qwen3_5")
    inputs = make_batch("qwen3_5", [text_members(64)]).model_inputs()
    guard(model)
    monkeypatch.setattr(guards, "missing_kernels", lambda: ["flash-linear-attention"])
    with pytest.raises(MixingError, match="pip install flash-linear-attention"):
        model(**inputs)
    monkeypatch.setattr(guards, "missing_kernels", list)
    with pytest.raises(MixingError, match="needs seq_idx"):
        model(**inputs)
    with pytest.raises(MixingError, match="one row only, not in 2"):
        guards.refuse_hybrid(2)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3_5"])
def test_a_change_in_one_member_leaves_the_others_bit_identical(name: str) -> None:
    model = make_model(name, "eager")
    members = make_members(name, model)
    for changed in (0, 1):
        found = probe(model, members, FAMILIES[name].mask, changed)
        assert found.others == 0
        assert found.own > 0.1
        assert not found.mixes


def test_the_probe_finds_a_model_that_mixes() -> None:
    """gpt-oss does not hand positions to its mask: without masks of its own, later members see earlier ones."""
    model = make_model("gpt_oss", "eager")
    members = make_members("gpt_oss", model)
    assert probe(model, members, "positions").mixes
    assert not probe(model, members, "dict4d").mixes


def test_layers_whose_kinds_cannot_be_set_are_made_few() -> None:
    """Mamba's config works them out; assigning to them raised."""
    assert shrink(tf.MambaConfig()).num_hidden_layers == 2


def test_a_class_of_full_size_is_probed_small() -> None:
    config = tf.Qwen2_5_VLConfig()
    config.text_config.vocab_size = 1000
    model = tf.AutoModelForImageTextToText.from_config(shrink(config))
    assert sum(p.numel() for p in model.parameters()) < 1e7
    assert not probe(model, text_members(1000)).mixes

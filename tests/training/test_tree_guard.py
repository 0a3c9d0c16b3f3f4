"""`guard` lets a model train on trees after a test of its class with trees, and then looks at each batch of them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from energon_pack.templates.template import Template
from energon_pack.training.batch import PackedBatch, weighted_loss
from energon_pack.training.encoded import TrainingPack
from energon_pack.training.guards import Guard, MixingError, guard
from energon_pack.training.layout import RowForm
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.pack_encoder import PackEncoder
from energon_pack.training.probe_batches import ProbeTree
from energon_pack.training.tree_inputs import use_tree_attention
from energon_pack.training.tree_rows import lay_out_neat_trees
from support.alone import demo_model
from support.running import need_torchvision
from support.tiny import FAMILIES, MadeEncoder, make_members, make_model, text_members
from support.trees import conversations, tiny_tree, with_shares

MADE: dict[str, Any] = {"layout": "neat", "mask": "positions", "max_token_len": 4096, "pad_to_multiple_of": 1}
MADE |= {"content": {"model": {"rope": "qwen2_5_vl"}, "packing": {"share": "media"}}}


class Texts:
    """An encoder of packs of text with trees, for a tiny family."""

    mask, max_token_len = "positions", None

    def __init__(self, name: str, model: Any):
        self._name, self._model = name, model
        self.mask = FAMILIES[name].mask

    def probe_members(self) -> list[Encoded]:
        return [member for member in make_members(self._name, self._model) if len(member.tokens) > 2]

    def probe_tree(self, members: Sequence[Encoded]) -> ProbeTree:
        return tiny_tree(self._name, self._model)


def tree_of(name: str, model: Any) -> PackedBatch:
    tokens = [one.tokens for one in tiny_tree(name, model).samples]
    batch = PackedBatch(lay_out_neat_trees([tokens, tokens[:4]], RowForm()))
    batch.mask = FAMILIES[name].mask
    return batch


@pytest.fixture(scope="module")
def encoder(template: Template) -> PackEncoder:
    need_torchvision()
    return PackEncoder(MADE, template.input_rules, tokens_per_second=2, loss_weight="sample")


@pytest.fixture(scope="module")
def pack(encoder: PackEncoder) -> TrainingPack:
    found = encoder.encode("p", with_shares(encoder.members, conversations()))
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["varlen", "sdpa"])
def test_a_model_is_tried_with_trees_and_with_its_first_tree(
    how: str, encoder: PackEncoder, pack: TrainingPack, template: Template
) -> None:
    """Members of a real processor; a guarded model trains on packs and on trees by turns."""
    model = demo_model(template)
    if how == "varlen":
        use_tree_attention(model)
    guarded = guard(model, encoder)
    assert guarded.trees is not None
    assert guarded.trees.is_exact
    assert guarded.trees.finding is not None
    print(guarded.trees)
    batch = encoder.batch([pack, pack])
    loss = weighted_loss(model(**batch.model_inputs(model)).logits, batch)
    loss.backward()
    (trial,) = guarded.trials
    print(trial)
    assert trial.is_conclusive
    assert trial.change is not None
    assert trial.change.others_change == 0.0
    assert trial.finding is not None
    assert max(trial.finding.differences) < 1e-4
    plain = encoder.encode("q", conversations())
    assert plain is not None
    assert torch.isfinite(model(**encoder.batch([plain]).model_inputs(model, labels=False)).logits).all()


def test_trees_are_refused_where_the_class_was_not_tried_with_any() -> None:
    model = make_model("llama")
    guard(model)
    with pytest.raises(MixingError, match="inputs with mask=prefix4d, and LlamaForCausalLM was shown with mask="):
        model(**tree_of("llama", model).model_inputs(model, labels=False))
    model = make_model("gpt_oss", "eager")
    guard(model)
    with pytest.raises(MixingError, match="a batch of trees, and GptOssForCausalLM was not tried with any"):
        model(**tree_of("gpt_oss", model).model_inputs(model, labels=False))


def test_inputs_of_trees_that_mix_are_refused() -> None:
    """Each of them trains with a loss that looks normal."""
    model = make_model("llama")
    batch = tree_of("llama", model)
    good = batch.model_inputs(model, labels=False)
    mask = good["attention_mask"].clone()
    first = int((batch["doc_ids"][0] == 4).nonzero()[0])
    mask[0, 0, first, first - 1] = 0
    for inputs, says in (
        ({**good, "attention_mask": None}, "position_ids jump to .*, as at a branch of a tree, and there is no mask"),
        ({**good, "attention_mask": mask}, f"lets token {first} see the branch before it"),
        ({**good, "tree_plan": tree_plan()}, "a tree_plan, and attention is sdpa, which does not read it"),
    ):
        guarded = guarded_for_trees("llama", model)
        with pytest.raises(MixingError, match=says):
            model(**inputs)
        guarded.remove()


def tree_plan() -> Any:
    model = make_model("llama")
    use_tree_attention(model)
    return tree_of("llama", model).model_inputs(model)["tree_plan"]


def guarded_for_trees(name: str, model: Any) -> Guard:
    return guard(model, Texts(name, model))


def test_a_class_that_is_not_exact_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here its masks are those of one text; the plan of this package does not need them."""

    def causal(end: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(end), end.shape[1], end.shape[1], dtype=torch.bool).tril()

    monkeypatch.setattr("energon_pack.training.masks.tree_causal", causal)
    monkeypatch.setattr("energon_pack.training.proof.check_inputs", lambda *_: None)
    model = make_model("qwen3")
    with pytest.raises(
        MixingError, match="Qwen3ForCausalLM is not shown to train on trees as on their samples"
    ) as info:
        guarded_for_trees("qwen3", model)
    assert "use_tree_attention(model) keeps them apart" in str(info.value)
    guarded = guard(model, Texts("qwen3", model), trust="Qwen3ForCausalLM")
    assert guarded.trees is not None
    assert not guarded.trees.is_exact


def test_an_encoder_without_trees_tries_none() -> None:
    assert guard(make_model("llama"), MadeEncoder(text_members(64))).trees is None

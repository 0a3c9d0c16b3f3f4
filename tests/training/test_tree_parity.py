"""A sample of a tree comes out as it would alone: logits, loss and gradients, on transformers' own classes.

Alone means: with nothing of ours, the model's own positions and masks. `-s` prints the largest differences, which are
docs/tables/trees.csv. The trees have media in the root and in a branch, a fork in a fork, a fork right before a
trained answer, two equal samples, one that ends inside others, and weights.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.training import tree_inputs as attentions
from energon_pack.training.batch import PackedBatch, source_losses, total_weight, weighted_loss
from energon_pack.training.forward_inputs import MixingError, takes_rope_rows
from energon_pack.training.joining import join
from energon_pack.training.layout import IGNORE, RowForm, loss_weights
from energon_pack.training.probe_batches import ProbeTree, probe_of_tree
from energon_pack.training.proof import try_small_model
from energon_pack.training.tree_inputs import use_tree_attention
from energon_pack.training.tree_rows import lay_out_neat_trees, refuse_invalid_trees, token_places
from support.emulated_flash import flash_attn_varlen_func
from support.marks import slow
from support.tiny import alone, make_model
from support.trees import tiny_tree

CLASSES = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3", "llama", "mistral", "internvl", "llava_onevision", "gemma3",
    "idefics3", "glm4v", "gpt_oss",
)  # fmt: skip
#: images that are seen in both directions have masks alone
NOT = {("gpt_oss", "sdpa"), ("gemma3", "gathered")}
QUICK = {("qwen2_5_vl", "gathered"), ("mistral", "sdpa")}
CASES = [
    (name, how) if (name, how) in QUICK else slow(name, how)
    for name in CLASSES
    for how in ("eager", "sdpa", "gathered")
    if (name, how) not in NOT
]


def model_of(name: str, how: str) -> Any:
    if how in ("eager", "sdpa"):
        return make_model(name, how)
    model = make_model(name, "eager" if name == "gpt_oss" else "sdpa")
    use_tree_attention(model)
    return model


def batch_of(model: Any, tree: ProbeTree, **form: Any) -> PackedBatch:
    """Two rows: all of the trees, and the first samples alone, so that a tail is padded."""
    tokens = [one.tokens for one in tree.samples]
    refuse_invalid_trees(tokens, [one.sample_id for one in tree.samples])
    rows = [tokens, tokens[:3]]
    batch = PackedBatch(lay_out_neat_trees(rows, RowForm(rope=takes_rope_rows(model), **form)))
    return PackedBatch(batch | join([*tree.added_media, *tree.added_media[:3]]))


@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_tree_is_its_samples_alone(name: str, how: str) -> None:
    model, plain = model_of(name, how), make_model(name, "eager" if "eager" in how or name == "gpt_oss" else "sdpa")
    tree = tiny_tree(name, model)
    samples = [*tree.samples, *tree.samples[:3]]
    single = [alone(name, plain, one).logits[0] for one in samples]
    batch = batch_of(model, tree)
    logits = model(**batch.model_inputs(model, labels=False)).logits
    rows = [(0, place) for place in places_of(tree, len(tree.samples))] + [(1, place) for place in places_of(tree, 3)]
    far = max(
        float((logits[row, place] - one).detach().abs().max()) for (row, place), one in zip(rows, single, strict=True)
    )
    loss_far = gradients_far = 0.0
    for kind in ("token", "sample", "sqrt"):
        weighted = batch_of(model, tree, weights=kind)
        loss = weighted_loss(logits, weighted)
        weights = [loss_weights(one.tokens, kind) for one in samples]
        total = sum(float(one.sum()) for one in weights)
        assert float(total_weight(weighted)) == pytest.approx(total, rel=1e-5)
        losses = [
            (cross_entropy(own[:-1], one.tokens.ids[1:], reduction="none") * weight[1:]).sum()
            for own, one, weight in zip(single, samples, weights, strict=True)
        ]
        expected = torch.stack(losses).sum() / total
        loss_far = max(loss_far, float(((loss - expected).abs() / expected).detach()))
        wanted, found = gradients(plain, expected), gradients(model, loss)
        assert found.keys() == wanted.keys()
        largest = max(float(one.abs().max()) for one in wanted.values())
        far_of = max(float((found[key] - wanted[key]).abs().max()) for key in wanted) / largest
        gradients_far = max(gradients_far, far_of)
    print(f"| {name} | {how} | {far:.1e} | {loss_far:.1e} | {gradients_far:.1e} |")
    assert max(far, loss_far, gradients_far) <= 1e-5


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a loss whose graph is used again."""
    model.zero_grad()
    loss.backward(retain_graph=True)
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def places_of(tree: ProbeTree, num: int) -> list[Tensor]:
    tokens = [one.tokens for one in tree.samples[:num]]
    return token_places([len(one) for one in tokens], [one.shared_len for one in tokens])


@pytest.mark.parametrize("shifted", [False, True])
def test_losses_of_a_tree_are_the_weighted_sums(shifted: bool) -> None:
    """`source_losses` by the entry that brings a token; with labels shifted before the model, too."""
    model = make_model("llama")
    tree = tiny_tree("llama", model)
    tokens = [one.tokens for one in tree.samples]
    other = [replace(one, shared_len=0, ids=one.ids.flip(0)) for one in tokens[:1]]
    other = [replace(one, labels=one.ids.clone()) for one in other]
    other[0].labels[0] = IGNORE
    batch = PackedBatch(lay_out_neat_trees([[*tokens, *other]], RowForm(weights="sample", shifted=shifted)))
    batch["sample_ids"] = [[*(f"x/{i}" for i in range(len(tokens))), "y/0"]]
    with torch.no_grad():
        logits = model(**batch.model_inputs(model, labels=False)).logits
        sums = source_losses(logits, batch, ["x", "y"])
        rows = places_of(tree, len(tokens))
        expected = 0.0
        for one, place in zip(tokens, rows, strict=True):
            each = cross_entropy(logits[0, place[:-1]], one.ids[1:], reduction="none")
            expected += float((each * loss_weights(one, "sample")[1:]).sum())
    assert float(sums[0, 0]) == pytest.approx(expected, rel=1e-5)
    assert float(sums[1, 1]) == pytest.approx(1.0)
    assert float(sums[1].sum()) == pytest.approx(float(total_weight(batch)))
    assert float(weighted_loss(logits, batch)) == pytest.approx(float(sums[0].sum() / sums[1].sum()), rel=1e-5)


def test_labels_are_left_out_where_shared_tokens_are_trained() -> None:
    """Handed to the model's own loss they would count once, and not for each sample."""
    model = make_model("llama")
    inputs = batch_of(model, tiny_tree("llama", model)).model_inputs(model)
    assert "labels" not in inputs
    assert not {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q"} & inputs.keys()


# ------------------------------------------------------------------------------------------------------------ faults


def wider_ends(rows: Any, form: RowForm) -> Any:
    """A branch sees its sibling."""
    batch = lay_out_neat_trees(rows, form)
    batch["tree_end"] = batch["tree_end"].clone()
    batch["tree_end"][batch["doc_ids"] > 0] = batch["tree_end"].amax()
    return batch


def off_by_one(rows: Any, form: RowForm) -> Any:
    """Positions of M-RoPE in branches are one more."""
    batch = lay_out_neat_trees(rows, form)
    batch["position_ids"] = batch["position_ids"].clone()
    batch["position_ids"][1:] += (batch["doc_ids"] > 1).long()
    return batch


def by_row(rows: Any, form: RowForm) -> Any:
    """Windows go by the place in the row."""
    batch = lay_out_neat_trees(rows, form)
    batch["tree_index"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["tree_index"])
    return batch


def of_the_tree(rows: Any, form: RowForm) -> Any:
    """The number of trained tokens is the tree's, not the sample's."""
    batch = lay_out_neat_trees(rows, replace(form, weights="token"))
    batch["loss_weight"] = batch["loss_weight"] / (batch["labels"] != IGNORE).sum()
    return batch


FAULTS = [(wider_ends, "llama"), (off_by_one, "qwen2_5_vl"), (by_row, "mistral"), (of_the_tree, "llama")]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
def test_the_test_of_a_class_finds_each_fault(fault: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By loss and by gradients: what looks at the inputs alone is switched off."""
    model = make_model(name)
    tree = tiny_tree(name, model)
    assert not try_small_model(model, tree).mixes
    monkeypatch.setattr("energon_pack.training.tree_rows.lay_out_neat_trees", fault)
    monkeypatch.setattr("energon_pack.training.proof.check_inputs", lambda *_: None)
    finding = try_small_model(model, tree)
    print(fault.__name__, finding)
    assert finding.mixes
    assert min(finding.loss_difference or 0, finding.gradient_difference or 0) > 10 * finding.tolerance
    assert fault is not of_the_tree or finding.output_difference < 1e-5


@pytest.mark.parametrize("how", ["sdpa", "varlen"])
def test_a_fork_right_before_an_answer_shows_in_loss_and_gradients_alone(how: str) -> None:
    """The row before the branch is its sibling's, and logits are equal: who compares these sees nothing."""
    model = model_of("llama", how)
    tree = tiny_tree("llama", model)
    late = tree.samples[2]
    late = replace(late, tokens=replace(late.tokens, shared_len=late.tokens.shared_len + 1))
    wrong = ProbeTree([*tree.samples[:2], late, *tree.samples[3:]], tree.added_media)
    finding = try_small_model(model, wrong)
    print(finding)
    assert finding.mixes
    assert finding.output_difference < 1e-5
    assert min(finding.loss_difference or 0, finding.gradient_difference or 0) > 10 * finding.tolerance
    with pytest.raises(ValueError, match=r"trains its token .* with which a branch begins"):
        refuse_invalid_trees([one.tokens for one in wrong.samples], ["s"] * len(wrong.samples))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_kernel_of_flash_attention_gets_what_it_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its documentation in plain torch: queries, keys and boundaries of each stretch, aligned at their ends."""
    model = make_model(name)
    use_tree_attention(model)
    batch = batch_of(model, tiny_tree(name, model))
    with torch.no_grad():
        expected = model(**batch.model_inputs(model, labels=False)).logits
        called = []

        def kernel(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
            called.append(settings["window_size"])
            return flash_attn_varlen_func(q, k, v, **settings)

        monkeypatch.setattr(attentions, "_flash_kernel_for", lambda *_: kernel)
        found = model(**batch.model_inputs(model, labels=False)).logits
    assert called == [(7, 0) if name == "mistral" else (-1, -1)] * 2
    assert float((found - expected).abs().max()) < 1e-5


# ----------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("qwen3_5", {}, "has layers of linear_attention: a branch would go on from its sibling"),
        ("llama", {"_attn_implementation": "flash_attention_2"}, r"takes no tree: use_tree_attention\(model\)"),
        ("gpt_oss", {"output_router_logits": True}, "adds a loss of its router"),
    ],
)
def test_models_without_trees_are_refused_by_name(name: str, change: dict[str, Any], says: str) -> None:
    model = make_model(name, "eager")
    tree = tiny_tree("llama", make_model("llama"))
    for key, value in change.items():
        setattr(model.config.get_text_config(), key, value)
    with pytest.raises(MixingError, match=says):
        probe_of_tree(model, tree).batch.model_inputs(model)


def test_parts_that_carry_a_state_or_predict_further_are_refused_by_name() -> None:
    class ShortConv(torch.nn.Identity):
        """As in LFM2."""

    model = make_model("llama")
    batch = probe_of_tree(model, tiny_tree("llama", model)).batch
    model.model.layers[0].conv = ShortConv()
    with pytest.raises(MixingError, match="LlamaForCausalLM has a ShortConv, which carries a state along the row"):
        batch.model_inputs(model)
    del model.model.layers[0].conv
    model.mtp = torch.nn.Identity()
    with pytest.raises(MixingError, match=r"LlamaForCausalLM predicts more than the next token \(mtp\)"):
        batch.model_inputs(model)
    with pytest.raises(ValueError, match=r"a batch of trees needs masks or a plan of its own: model_inputs\(model\)"):
        batch.model_inputs()


def test_images_seen_in_both_directions_have_masks_alone() -> None:
    model = make_model("gemma3")
    batch = probe_of_tree(model, tiny_tree("gemma3", model)).batch
    use_tree_attention(model)
    with pytest.raises(MixingError, match="sees images in both directions, for which energon_pack_tree has no place"):
        batch.model_inputs(model)

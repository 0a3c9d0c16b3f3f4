"""Weights of samples and of their turns: where they stand in a batch, and that the loss is theirs.

The picture, by head. Of a's 4 tokens the last 3 are trained: two of a turn with weight 0.5, one with 2. Of b's 3
the last two are trained, and its sample has the factor 0.25.

    token     a:  0  0.5  0.5  2        b:  0  0.25   0.25
    sample    a:  0  1/6  1/6  2/3      b:  0  0.125  0.125     s·w/Σw: a sums to 1, b to 0.25
    sqrt      a:  each by √3            b:  each of token's by √2
"""

import logging
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack.samples.member import MemberInput, SampleOptions
from energon_pack.templates.sample import Sample
from energon_pack.templates.template import Template
from energon_pack.templates.tokens.pieces import ranges_without_first_token
from energon_pack.training import batch as batches
from energon_pack.training.batch import PackedBatch, source_losses, total_weight, weighted_loss
from energon_pack.training.encoded import BadPack, TrainingPack
from energon_pack.training.layout import IGNORE, Member, RowForm, lay_out_neat_rows, loss_weights
from energon_pack.training.megatron_layouts import one_row_per_member, thd
from energon_pack.training.member_encoder import Encoded, MemberEncoder
from energon_pack.training.refusals import refuse_weights
from support.tiny import alone, make_batch, make_members, make_model
from support.weighted import turns

KINDS = (None, "token", "sample", "sqrt")


def member(length: int, weights: list[float] | None = None, factor: float = 1.0) -> Member:
    """All but the first token are trained."""
    ids = torch.arange(1, length + 1)
    labels = ids.clone()
    labels[0] = IGNORE
    of_tokens = None if weights is None else torch.tensor(weights)
    return Member(ids, labels, torch.zeros_like(ids), weights=of_tokens, factor=factor)


A, B, PLAIN = member(4, [1.0, 0.5, 0.5, 2.0]), member(3, factor=0.25), member(2)


# ------------------------------------------------------------------------------------------------------ in a batch


@pytest.mark.parametrize(
    ("kind", "a", "b"),
    [
        (None, [0, 0.5, 0.5, 2], [0, 0.25, 0.25]),
        ("token", [0, 0.5, 0.5, 2], [0, 0.25, 0.25]),
        ("sample", [0, 1 / 6, 1 / 6, 2 / 3], [0, 0.125, 0.125]),
        ("sqrt", [0, *(w / math.sqrt(3) for w in (0.5, 0.5, 2))], [0, *[0.25 / math.sqrt(2)] * 2]),
    ],
)
def test_weights_stand_beside_their_tokens_in_each_layout(kind: str | None, a: list[float], b: list[float]) -> None:
    """A weight beside another token would train a turn as its neighbour was meant."""
    form = RowForm(weights=kind, width=9, multiple=1)
    batch = lay_out_neat_rows([[A, B], [PLAIN]], form)
    rest = [0.0, 1.0, *[0.0] * 7]  # one trained token counts 1 in each of them
    assert batch["loss_weight"].tolist() == [pytest.approx([*a, *b, 0, 0]), pytest.approx(rest)]
    assert batch["is_weighted"] is True
    shifted = [*a[1:], 0, *b[1:], 0]
    assert lay_out_neat_rows([[A, B]], RowForm(weights=kind, shifted=True))["loss_weight"][0].tolist() == pytest.approx(
        shifted
    )
    assert thd([A, B], RowForm(weights=kind))["loss_mask"][0].tolist() == pytest.approx(shifted)
    gaps = [*a[1:], 0, *b[1:], 0, 0]
    assert thd([A, B], RowForm(weights=kind, multiple=4))["loss_mask"][0].tolist() == pytest.approx(gaps)
    rows = one_row_per_member([A, B], RowForm(weights=kind))["loss_mask"]
    assert rows.tolist() == [pytest.approx([*a[1:], 0]), pytest.approx([*b[1:], 0, 0])]


def test_a_batch_without_weights_is_as_before() -> None:
    """Without any and unasked for there is no key; asked for, token's are all 1 and leave the model its own loss."""
    assert not {"loss_weight", "is_weighted"} & lay_out_neat_rows([[PLAIN]], RowForm()).keys()
    assert lay_out_neat_rows([[PLAIN]], RowForm(weights="token"))["is_weighted"] is False
    assert lay_out_neat_rows([[member(2)]], RowForm(weights="sample"))["is_weighted"] is False  # 1/1
    assert lay_out_neat_rows([[member(3)]], RowForm(weights="sample"))["is_weighted"] is True


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(0, 400), st.sampled_from(["token", "sample", "sqrt"]))
@example(267, 0, "sqrt")  # torch rounds this root otherwise than Python
def test_without_weights_each_token_counts_exactly_as_it_did(length: int, num_untrained: int, kind: str) -> None:
    """Bit by bit 1, 1/n and 1/√n: trainings go on with the losses they had."""
    labels = torch.arange(length)
    labels[:num_untrained] = IGNORE
    trained = labels != IGNORE
    power = {"token": 0.0, "sample": 1.0, "sqrt": 0.5}[kind]
    before = trained.float() / trained.sum().clamp(min=1).float() ** power
    assert torch.equal(loss_weights(Member(labels, labels, labels), kind), before)
    ones = Member(labels, labels, labels, weights=torch.ones(length), factor=1.0)
    assert torch.equal(loss_weights(ones, kind), before)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.01, 0.5, 1.0, 1.5, 100.0]), min_size=1, max_size=9), st.sampled_from([0.125, 1.0, 3.0])
)
def test_what_the_weights_of_a_sample_come_to(weights: list[float], factor: float) -> None:
    """Σ over a sample: s·Σw, s, s·√Σw. A clamp at 1 would make samples of small weights count less than their s."""
    of = member(len(weights) + 1, [1.0, *weights], factor)
    for kind, total in (("token", sum(weights)), ("sample", 1.0), ("sqrt", math.sqrt(sum(weights)))):
        assert float(loss_weights(of, kind).sum()) == pytest.approx(factor * total, rel=1e-5)
    assert float(loss_weights(member(1, [3.0], factor), "sample").sum()) == 0  # nothing is trained


# ------------------------------------------------------------------------------------------- the model's own loss


@pytest.mark.parametrize("shifted", [False, True])
def test_a_models_own_loss_is_not_taken_for_the_weighted_one(shifted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """`loss_weight=sample` was ignored by `model(**inputs).loss` without a word."""
    batches._warn_of_missing_loss.cache_clear()
    model = make_model("llama")
    members = make_members("llama", model)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for kind in ("sample", "sqrt"):
            batch = make_batch("llama", [members], weights=kind, shifted=shifted)
            inputs = batch.model_inputs(model)
            assert not {"labels", "shift_labels"} & inputs.keys()
            out = model(**inputs)
            assert out.loss is None
            assert "loss" not in out  # by which transformers' Trainer refuses it
            assert torch.isfinite(weighted_loss(out.logits, batch))
    assert [record.message.partition(":")[0] for record in caplog.records] == ["batches with weights"]


def test_labels_are_left_out_where_they_are_not_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """Recipes make the loss themselves: a model's own beside it would cost its time, and nothing has to be said."""
    batches._warn_of_missing_loss.cache_clear()
    model = make_model("llama")
    members = make_members("llama", model)
    for form in ({}, {"weights": "token"}):
        batch = make_batch("llama", [members], **form)
        assert "labels" in batch.model_inputs(model)
        assert not {"labels", "shift_labels"} & batch.model_inputs(model, labels=False).keys()
    shifted = make_batch("llama", [members], shifted=True)
    assert {"labels", "shift_labels"} <= shifted.model_inputs(model).keys()
    assert not {"labels", "shift_labels"} & shifted.model_inputs(model, labels=False).keys()
    make_batch("llama", [members], weights="sample").model_inputs(model, labels=False)
    assert not caplog.records


# -------------------------------------------------------------------------------------------- packed is as alone


def weighted(members: list[Encoded], seed: int = 0) -> list[Encoded]:
    """The same with float weights of stretches of tokens, and factors; one has neither."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number, of in enumerate(members):
        tokens = of.tokens
        turns = torch.rand(4, generator=generator) * 3 + 0.05
        weights = None if number == 2 else turns[torch.arange(len(tokens)) * 4 // len(tokens)]
        factor = (0.5, 1.0, 1.0, 2.5, 1.0)[number]
        replaced = Member(tokens.ids, tokens.labels, tokens.types, tokens.rope, tokens.rows, weights, factor)
        found.append(Encoded(of.sample_id, replaced, of.media, of.num_images, of.num_videos, of.joins))
    return found


def sums_alone(name: str, model: Any, of: Encoded, kind: str | None) -> tuple[Tensor, float]:
    """Σ w·ce of one member run by itself, and Σ w, from the definition and with nothing of ours."""
    labels = of.tokens.labels
    logits = alone(name, model, of).logits[0]
    losses = cross_entropy(logits[:-1], labels[1:], ignore_index=IGNORE, reduction="none")
    trained = [float(w) for w, label in zip(_weights(of), labels.tolist(), strict=True) if label != IGNORE]
    divisor = sum(trained) ** {"sample": 1.0, "sqrt": 0.5}.get(kind or "token", 0.0) if trained else 1.0
    each = [0.0 if t == IGNORE else w * of.tokens.factor / divisor for w, t in zip(_weights(of), labels, strict=True)]
    return (losses * torch.tensor(each[1:])).sum(), sum(each)


def _weights(of: Encoded) -> list[float]:
    return [1.0] * len(of.tokens) if of.tokens.weights is None else of.tokens.weights.tolist()


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llama"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_is_alone_with_weights(name: str, kind: str | None) -> None:
    """Loss and gradients of packs with float weights are Σ w·ce / Σ w of their members, each run by itself.

    In one row, in two rows, and as two batches of one step of which one has no weights; labels shifted and not.
    """
    model = make_model(name)
    members = weighted(make_members(name, model))
    sums, totals = zip(*(sums_alone(name, model, of, kind) for of in members), strict=True)
    expected = torch.stack(sums).sum() / sum(totals)
    wanted = gradients(model, expected)
    largest = max(1.0, *(float(grad.abs().max()) for grad in wanted.values()))
    for steps, shifted in (
        ([[members]], False),
        ([[members[:3], members[3:]]], True),
        ([[[members[0], members[1], *members[3:]]], [[members[2]]]], False),
    ):
        made = [make_batch(name, packs, weights=kind, shifted=shifted, width=150) for packs in steps]
        total = torch.stack([total_weight(batch) for batch in made]).sum()
        assert float(total) == pytest.approx(sum(totals), rel=1e-6)
        losses = [weighted_loss(model(**b.model_inputs(model, labels=False)).logits, b, total) for b in made]
        loss = torch.stack(losses).sum()
        found = gradients(model, loss)
        grads = max(float((found[key] - wanted[key]).abs().max()) for key in wanted) / largest
        print(f"{name} {kind} loss {float((loss - expected).detach().abs()):.1e} gradients {grads:.1e}")
        assert max(float((loss - expected).detach().abs()), grads) <= 1e-5


# ----------------------------------------------------------------------------------------------- from the template


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.5, 1.0, 2.0])), max_size=6))
def test_ranges_and_weights_stay_aligned(pieces: list[tuple[int, int, float]]) -> None:
    """For any ranges in a row, with and without tokens: every trained token has the weight of its range."""
    upto, ranges = 0, []
    of_token: dict[int, float] = {}
    for gap, length, weight in pieces:
        start = upto + gap
        upto = start + length
        ranges.append((start, upto))
        of_token |= {token: weight for token in range(start, upto) if token}
    kept, weights = ranges_without_first_token(ranges, [weight for _, _, weight in pieces])
    assert len(weights) in (0, len(kept))
    found = {t: w for (a, b), w in zip(kept, weights or [1.0] * len(kept), strict=True) for t in range(a, b)}
    assert found == of_token


def test_a_member_has_the_weights_of_its_turns_and_sample(template: Template) -> None:
    """Labels, weights and the factor of a member lie beside one another; a sample without any has none."""
    encoder, messages = MemberEncoder(template.input_rules), turns(0.5, 0.0, 2.0)
    of = encoder.encode_alone(MemberInput("a", messages, options=SampleOptions(weight=0.25))).tokens
    first, second = template.encode(Sample(messages, [])).supervised
    assert [i for i, label in enumerate(of.labels.tolist()) if label != IGNORE] == [*range(*first), *range(*second)]
    assert of.weights is not None
    assert of.weights[slice(*first)].tolist() == [0.5] * (first[1] - first[0])
    assert of.weights[slice(*second)].tolist() == [2.0] * (second[1] - second[0])
    assert of.factor == 0.25
    without = encoder.encode_alone(MemberInput("b", turns(1.0))).tokens
    assert (without.weights, without.factor, without.is_weighted) == (None, 1.0, False)


def test_a_sample_of_weight_0_trains_nothing(template: Template) -> None:
    """Its tokens are counted as untrained, and its labels say so in every layout, that of Megatron-LM too."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    sample = Sample(messages, [], options=SampleOptions(weight=0.0))
    assert template.encode(sample).num_supervised == 0
    assert template.count([template.render(sample)])[0][1] == 0
    of = (
        MemberEncoder(template.input_rules)
        .encode_alone(MemberInput("a", messages, options=SampleOptions(weight=0.0)))
        .tokens
    )
    assert (of.labels == IGNORE).all()
    weighted = Sample(turns(0.5, 2.0), [], options=SampleOptions(weight=0.0))  # it ended the training
    assert template.encode(weighted).num_supervised == 0


# ------------------------------------------------------------------------------------- where there is no place


def test_what_has_no_place_for_weights_refuses_them_by_name() -> None:
    """Megatron-LM's example and Automodel make the loss of labels alone: weights would be lost in silence."""
    pack = TrainingPack("p", [Encoded("plain", PLAIN), Encoded("half", B)], {}, [])
    with pytest.raises(BadPack, match=r"half in p: .* layout=mlm has no place for it; layout=thd"):
        refuse_weights([pack], "layout=mlm", "layout=thd and rows have")
    refuse_weights([TrainingPack("p", [Encoded("plain", PLAIN)], {}, [])], "layout=mlm", "")
    assert isinstance(PackedBatch(lay_out_neat_rows([[B]], RowForm())), dict)


# The losses of the entries of a mixture add up to the loss of the step, over batches and ranks.

NAMES = ["charts", "chat", "nobody's"]


def batch(weights: bool, shifted: bool, seed: int = 0) -> dict[str, object]:
    """Two rows: the first with two members of one entry and one of another, the second with padding."""
    labels = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(seed))
    labels[0, 4], labels[1, 6:] = IGNORE, IGNORE
    made: dict[str, object] = {
        "labels": labels,
        "doc_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 3, 3, 3], [1, 1, 1, 2, 2, 2, 0, 0, 0]]),
        "sample_ids": [["charts/a.tar/1", "charts/a.tar/2@2", "chat/b.jsonl:7"], ["chat/b.jsonl:9", "charts/a.tar/3"]],
    }
    if weights:
        made["loss_weight"] = torch.rand(2, 9, generator=torch.Generator().manual_seed(seed + 1)) * (labels != IGNORE)
    if shifted:
        made["_packed_seq_ids"] = made["doc_ids"]
    return made


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_the_losses_of_entries_add_up_to_that_of_the_step(weights: bool, shifted: bool) -> None:
    """Two batches are one step, as two ranks would be."""
    batches = [batch(weights, shifted, seed) for seed in (0, 5)]
    logits = [torch.randn(2, 9, 11, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4)]
    sums = sum((source_losses(*pair, NAMES) for pair in zip(logits, batches, strict=True)), torch.zeros(2, 3))
    total = sums[1].sum()
    if shifted:
        assert float(total) == pytest.approx(float(sum(total_weight(each) for each in batches)), rel=1e-6)
    whole = sum(weighted_loss(*pair, total=total) for pair in zip(logits, batches, strict=True))
    assert float(sums[0].sum() / total) == pytest.approx(float(whole), rel=1e-6)
    assert sums[:, 2].tolist() == [0, 0]


def test_the_loss_of_an_entry_is_that_of_its_members_alone() -> None:
    """Of the second row, the first member is of chat: three tokens, of which the first predicts nothing."""
    made, logits = batch(False, False), torch.randn(2, 9, 11, generator=torch.Generator().manual_seed(1))
    alone = torch.nn.functional.cross_entropy(logits[1, :2], made["labels"][1, 1:3], reduction="sum")  # type: ignore[index]
    alone += torch.nn.functional.cross_entropy(logits[0, 5:8], made["labels"][0, 6:9], reduction="sum")  # type: ignore[index]
    sums = source_losses(logits, made, NAMES)
    assert float(sums[0, 1]) == pytest.approx(float(alone), rel=1e-6)
    assert float(sums[1, 1]) == 5


def test_without_entries_all_samples_are_one() -> None:
    made, logits = batch(True, False), torch.randn(2, 9, 11, generator=torch.Generator().manual_seed(1))
    sums = source_losses(logits, made, [])
    assert sums.shape == (2, 1)
    assert float(sums[0] / sums[1]) == pytest.approx(float(weighted_loss(logits, made)), rel=1e-6)


def test_a_sample_of_another_dataset_is_named() -> None:
    with pytest.raises(ValueError, match=r"charts/a\.tar/1: its entry 'charts' is none of chat, other"):
        source_losses(torch.zeros(2, 9, 11), batch(False, False), ["chat", "other"])

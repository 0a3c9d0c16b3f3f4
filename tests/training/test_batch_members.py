"""Batches of any collator: where their members lie, and that a guard proves the model with them."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.training.batch_members import find_member_boundaries
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from support.tiny import make_batch, make_members, make_model

#: two rows of 8 tokens: members of 3 and 4 and a pad; of 2, 3 and 3
IDS = torch.tensor([[11, 12, 13, 21, 22, 23, 24, 0], [31, 32, 41, 42, 43, 51, 52, 53]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0], [0, 1, 0, 1, 2, 0, 1, 2]])
NUMBERS = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 3, 3]])
BOUNDARIES = torch.tensor([0, 3, 7, 8, 10, 13, 16])
GIVEN = [[3, 4], [2, 3, 3]]
PLACES = [(0, 0, 3), (0, 3, 7), (1, 0, 2), (1, 2, 5), (1, 5, 8)]
M_ROPE = POSITIONS.expand(3, 2, 8)


@pytest.mark.parametrize(
    "inputs",
    [
        {"position_ids": POSITIONS},
        {"position_ids": POSITIONS, "attention_mask": (IDS != 0).long()},
        {"position_ids": M_ROPE},
        {"position_ids": POSITIONS.expand(4, 2, 8)},
        {"attention_mask": NUMBERS},
        {"seq_idx": NUMBERS},
        {"cu_seq_lens_q": BOUNDARIES, "cu_seq_lens_k": BOUNDARIES},
        {"cu_seqlens": BOUNDARIES, "position_ids": POSITIONS, "attention_mask": NUMBERS},
        {"attention_mask": torch.ones(2, 1, 8, 8), "position_ids": POSITIONS},
    ],
)
def test_each_input_says_the_same_members(inputs: dict[str, Tensor]) -> None:
    spans = find_member_boundaries({"input_ids": IDS, **inputs}).spans
    assert [(one.row, one.start, one.end) for one in spans] == PLACES


def test_members_are_given_where_no_input_says_them() -> None:
    spans = find_member_boundaries({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, GIVEN).spans
    assert [(one.row, one.start, one.end) for one in spans] == PLACES


def test_padding_on_the_left_is_no_member() -> None:
    """transformers gives masked tokens the position 1."""
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    inputs = {"input_ids": IDS[:1, :5], "attention_mask": mask, "position_ids": torch.tensor([[1, 1, 0, 1, 2]])}
    assert [(one.start, one.end) for one in find_member_boundaries(inputs).spans] == [(2, 5)]


def test_boundaries_may_take_padding_to_the_last_member() -> None:
    inputs = {"input_ids": IDS[:1], "cu_seq_lens_q": torch.tensor([0, 3, 8]), "position_ids": POSITIONS[:1]}
    assert [(one.start, one.end) for one in find_member_boundaries(inputs).spans] == [(0, 3), (3, 7)]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, r"says nowhere what its members are \(input_ids\)"),
        (
            {"attention_mask": (IDS != 0).long(), "labels": IDS},
            r"says nowhere .* \(attention_mask, input_ids, labels\)",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 3, 8, 10, 13, 16]), "position_ids": torch.arange(8).expand(2, 8)},
            "cu_seq_lens_q and position_ids contradict each other: members begin at 0, 3, 1:0, 1:2, 1:5 by"
            " cu_seq_lens_q, at 0, 1:0 by position_ids",
        ),
        (
            {"position_ids": POSITIONS, "attention_mask": NUMBERS.roll(1, 1)},
            "position_ids and attention_mask contradict each other",
        ),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 7])}, "cu_seq_lens_q leaves 8 of 8 tokens of row 1 in no member"),
        ({"cu_seq_lens_q": torch.tensor([3, 7, 16])}, r"cu_seq_lens_q is \[3, 7, 16\] for 16 tokens"),
        ({"position_ids": torch.tensor([0, 1, 2, 7, 8, 9, 10, 11])}, "position_ids jump from 2 to 7"),
        ({"position_ids": POSITIONS[:, :4]}, r"position_ids \[2, 4\] for input_ids \[2, 8\]"),
        (
            {"position_ids": POSITIONS, "attention_mask": (IDS != 22).long()},
            "holes in the member from token 3 of row 0",
        ),
        ({"input_ids": None, "position_ids": POSITIONS}, r"without input_ids \[B, S\] or inputs_embeds"),
        ({"input_ids": None, "inputs_embeds": torch.ones(1, 4, 8)}, r"says nowhere .* \(inputs_embeds\)"),
    ],
)
def test_what_says_no_members_or_says_two_things_is_refused(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(MixingError, match=said):
        find_member_boundaries({"input_ids": IDS, **inputs})


@pytest.mark.parametrize("given", [[[3, 4]], [[3, 4], [2, 3, 4]], [[3, 4], [2, 3, 0]]])
def test_lengths_that_do_not_fit_are_refused(given: list[list[int]]) -> None:
    with pytest.raises(MixingError, match=r"members=.* for input_ids \[2, 8\]: a list of lengths for each row"):
        find_member_boundaries({"input_ids": IDS}, given)
    with pytest.raises(MixingError, match="members= leaves 3 of 8 tokens of row 1 in no member"):
        find_member_boundaries({"input_ids": IDS}, [[3, 4], [2, 3]])
    with pytest.raises(MixingError, match="members= and position_ids contradict each other"):
        find_member_boundaries({"input_ids": IDS, "position_ids": POSITIONS}, [[2, 5], [2, 3, 3]])


# ------------------------------------------------------------------------------------------------------ with a model


def collated(**more: Any) -> dict[str, Any]:
    """As TRL's padding-free collator, and the keyword that TRL's trainer adds."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(10, 64, (1, 30), generator=generator)
    positions = torch.cat([torch.arange(length) for length in (9, 14, 7)])[None]
    labels = torch.where(positions == 0, -100, ids)
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "use_cache": False, **more}


def without(batch: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in names}


GOOD = collated()
CU = torch.tensor([0, 9, 23, 30])
SHIFTED = torch.nn.functional.pad(GOOD["labels"][:, 1:], (0, 1), value=-100)


@pytest.mark.parametrize(
    "batch",
    [
        GOOD,
        collated(shift_labels=SHIFTED),
        collated(cu_seq_lens_q=CU, cu_seq_lens_k=CU, max_length_q=14, max_length_k=14),
        collated(num_items_in_batch=torch.tensor(27)),
        without(GOOD, "labels"),
        {**GOOD, "input_ids": GOOD["input_ids"].int(), "return_dict": False},
    ],
)
def test_a_batch_that_keeps_members_apart_passes(batch: dict[str, Any]) -> None:
    """Outputs, loss and gradients of each member are its own: the model is run with the batch, no class is listed."""
    model = make_model("llama")
    held = guard(model, batches=[batch])
    (trial,) = held.trials
    assert not trial.mixes
    assert trial.is_conclusive
    assert trial.finding is not None
    assert max(trial.finding.differences) < 1e-4
    assert trial.finding.loss_difference is not None
    for _ in range(2):
        model(**batch)
    assert len(held.trials) == 2  # a cache of masks or angles shows in the second one
    model(**{**batch, "use_cache": False, "output_hidden_states": True})  # other code
    assert len(held.trials) == 3
    with pytest.raises(MixingError, match=r"mixes the members of a batch: .* does not heed; a 2-D attention_mask"):
        model(**{**batch, "attention_mask": torch.ones_like(batch["input_ids"])})
    with pytest.raises(MixingError, match="says nowhere what its members are"):
        model(**without(batch, "position_ids", "cu_seq_lens_q", "cu_seq_lens_k"))
    held.remove()
    model(**without(batch, "position_ids"))


def test_a_batch_of_embeddings_is_tried() -> None:
    """Boundaries alone were a KeyError, and a table that is trained could not be tried."""
    model = make_model("llama")
    batch = without(GOOD, "input_ids") | {"inputs_embeds": model.get_input_embeddings()(GOOD["input_ids"])}
    assert not guard(model, batches=[batch]).trials[0].mixes
    bounded = without(batch, "position_ids") | {"cu_seq_lens_q": CU}
    assert find_member_boundaries(bounded).input_names == "cu_seq_lens_q"
    with pytest.raises(MixingError, match="mixes the members of batch 0"):
        guard(model, batches=[bounded])


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (without(GOOD, "use_cache"), "use_cache=None"),
        (collated(attention_mask=torch.ones(1, 30)), "a 2-D attention_mask of ones"),
        (
            collated(attention_mask=torch.repeat_interleave(torch.tensor([1, 2, 3]), CU.diff())[None]),
            "attention_mask, ",
        ),
        (without(collated(cu_seq_lens_q=CU, cu_seq_lens_k=CU), "position_ids"), "position_ids are missing"),
    ],
)
def test_a_batch_that_lets_members_see_each_other_is_refused(batch: dict[str, Any], said: str) -> None:
    """Each was trained by transformers without a word, with a loss that looks normal."""
    with pytest.raises(
        MixingError, match=rf"mixes the members of batch 0: .*\(LlamaAttention\)\. Members are told by.*{said}"
    ):
        guard(make_model("llama"), batches=[batch])


def test_given_members_show_a_batch_that_says_none(caplog: pytest.LogCaptureFixture) -> None:
    """Positions that were dropped leave nothing to read: the lengths that its user gives show that it leaks."""
    model, dropped = make_model("llama"), without(GOOD, "position_ids")
    with pytest.raises(MixingError, match="says nowhere"):
        guard(model, batches=[dropped])
    with pytest.raises(MixingError, match="mixes the members of batch 0"):
        guard(model, batches=[dropped], members=[[[9, 14, 7]]])
    mask = torch.block_diag(*(torch.ones(n, n).tril() for n in (9, 14, 7)))[None, None]
    masked = {**GOOD, "attention_mask": torch.where(mask > 0, 0.0, -1e9)}
    with caplog.at_level(logging.WARNING):
        guard(model, batches=[masked], members=[[[9, 14, 7]]])
    assert "is tried with these batches alone" in caplog.text


@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -5.0])
def test_a_later_mask_with_other_values_is_tried(hidden: float) -> None:
    """Its name and shape are the same: a mask that is causal in the whole row trained for 16 batches without a word."""
    model = make_model("llama")
    apart = torch.block_diag(*(torch.ones(n, n).tril() for n in (9, 14, 7)))[None, None]
    held = guard(model, batches=[{**GOOD, "attention_mask": torch.where(apart > 0, 0.0, -1e9)}])
    for _ in range(2):
        model(**{**GOOD, "attention_mask": torch.where(apart > 0, 0.0, -1e9)})
    assert len(held.trials) == 2
    seen = apart if hidden == -5.0 else torch.ones(1, 1, 30, 30).tril()
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model(**{**GOOD, "attention_mask": torch.where(seen > 0, 0.0, hidden)})


def test_a_later_switch_is_another_kind() -> None:
    """With a cache, transformers looks for no members in position_ids."""
    model = make_model("llama")
    guard(model, batches=[GOOD])
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model(**{**GOOD, "use_cache": True})
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model.generate(GOOD["input_ids"], position_ids=GOOD["position_ids"], max_new_tokens=1)
    model.generate(GOOD["input_ids"][:, :9], max_new_tokens=1)  # a row is one text


@pytest.mark.parametrize(
    ("batches", "members", "said"),
    [
        (GOOD, None, r"batches= is a list of batches, .*: batches=\[batch\]"),
        (["abc"], None, "each a mapping of inputs"),
        ([{**GOOD, "labels": GOOD["labels"].numpy()}], None, "batch 0: labels: no tensors"),
        ([GOOD], [[9, 14, 7]], "a list for each row, of lengths"),
        ([GOOD], [[["nine", "14"]]], "a list for each row, of lengths"),
        (
            [without(GOOD, "position_ids")],
            [[[9, 14, 6]]],
            r"labels train 1 tokens that are in no member \(row 0, token 29\)",
        ),
    ],
)
def test_wrong_arguments_are_named(batches: Any, members: Any, said: str) -> None:
    """A batch without its list is the likeliest slip; a member that is too short left a trained token to nobody."""
    with pytest.raises(ValueError, match=said):
        guard(make_model("llama"), batches=batches, members=members)


def test_labels_that_train_the_first_token_of_a_member_are_refused() -> None:
    """The model shifts labels in the row: the last token of a member would learn the first one of the next."""
    model = make_model("llama")
    with pytest.raises(MixingError, match=r"the first token of 2 of 3 members \(row 0, token 9\)"):
        guard(model, batches=[collated(labels=GOOD["input_ids"])])
    with pytest.raises(MixingError, match=r"the first token of 3 of 3 members \(row 0, token 8\)"):
        guard(model, batches=[collated(shift_labels=GOOD["input_ids"])])


def test_labels_of_some_tokens_alone_are_refused() -> None:
    """ms-swift cuts labels to the logits that it keeps: by their places they would be read as another member's."""
    with pytest.raises(MixingError, match=r"labels \[1, 20\] for input_ids \[1, 30\]: those of some tokens alone"):
        guard(make_model("llama"), batches=[collated(labels=GOOD["labels"][:, 10:], logits_to_keep=20)])


def test_batches_that_show_nothing_are_refused() -> None:
    model = make_model("llama")
    one = collated(position_ids=torch.arange(30)[None])
    with pytest.raises(MixingError, match="no row of these batches has two members, by position_ids"):
        guard(model, batches=[one])
    guard(model, batches=[one, GOOD])
    with pytest.raises(MixingError, match="no label of this batch trains a member"):
        guard(model, batches=[collated(labels=torch.full((1, 30), -100))])
    with pytest.raises(ValueError, match="0 batches"):
        guard(model, batches=[])
    with pytest.raises(ValueError, match="1 batches, and members= of 2"):
        guard(model, batches=[GOOD], members=[[], []])
    with pytest.raises(ValueError, match="takes no encoder, trust or first_batch"):
        guard(model, batches=[GOOD], trust="LlamaForCausalLM")


def test_media_are_those_of_the_members_that_are_given() -> None:
    """Whose an image is, `members=` says, or its grid with the numbers of its tokens."""
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    inputs = make_batch("qwen2_5_vl", [members]).model_inputs(model)
    own = [{"tokens": len(one.tokens), **{name: len(value) for name, value in one.media.items()}} for one in members]
    for given in ([[own]], None):
        (trial,) = guard(model, batches=[inputs], members=given).trials
        assert trial.change is not None
        assert trial.change.changed_inputs == "words and media"
        assert not trial.mixes
    with pytest.raises(MixingError, match="mixes the members of batch 0"):  # no row of text: one text to transformers
        guard(model, batches=[{**inputs, "position_ids": inputs["position_ids"][1:]}], members=[[own]])

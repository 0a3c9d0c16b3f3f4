"""Trees by hand-computed cases: the rows of members that share beginnings, and what is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack import PackedTaskEncoder, guard, total_weight, use_tree_attention, weighted_loss
from energon_pack.config import Rope
from energon_pack.loading.task_encoder import inputs_of
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.training.encoded import Members
from energon_pack.training.layout import IGNORE, Member, RowForm, lay_out_neat_rows, loss_weights
from energon_pack.training.tree_rows import lay_out_neat_trees, merge_members, refuse_invalid_trees
from support.alone import demo_model
from support.marks import first_of
from support.packed import demo_config, packed, train
from support.running import need_torchvision
from support.samples import chat, noise, write_tar


def member(ids: list[int], trained: list[int], shared: int = 0, factor: float = 1.0) -> Member:
    """The tokens at these places are trained."""
    row = torch.tensor(ids)
    labels = torch.full_like(row, IGNORE)
    labels[trained] = row[trained]
    return Member(row, labels, torch.zeros_like(row), shared_len=shared, factor=factor)


def three() -> list[Member]:
    """The samples of the picture in trees.py; 10 + the place stands for r, 20 for a, 30 for b, 40 for c."""
    return [
        member([10, 11, 12, 23, 24], [2, 4]),
        member([10, 11, 12, 33, 34, 35], [2, 4, 5], 3, factor=2.0),
        member([10, 11, 12, 33, 44], [2], 4),
    ]


def seen(batch: dict[str, Tensor], row: int = 0) -> Tensor:
    """bool [S, S] by `tree_end`."""
    here = torch.arange(batch["tree_end"].shape[1])
    return (here[:, None] >= here) & (here[:, None] < batch["tree_end"][row])


def test_the_picture_of_a_tree() -> None:
    batch = lay_out_neat_trees([three()], RowForm(width=12))
    x = IGNORE
    assert batch["input_ids"].tolist() == [[10, 11, 12, 23, 24, 33, 34, 35, 44, 0, 0, 0]]
    assert batch["labels"].tolist() == [[x, x, 12, x, 24, x, 34, 35, x, x, x, x]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 3, 4, 5, 4, 0, 1, 2]]
    assert batch["tree_index"].tolist() == batch["position_ids"].tolist()
    assert batch["tree_end"].tolist() == [[9, 9, 9, 5, 5, 9, 8, 8, 9, 12, 12, 12]]
    assert batch["doc_ids"].tolist() == [[1, 1, 1, 1, 1, 2, 2, 2, 3, 0, 0, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 5, 8, 9, 12]
    assert batch["cu_seq_lens_k"].tolist() == [0, 5, 11, 16, 19]
    assert batch["k_index"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 0, 1, 2, 5, 8, 9, 10, 11]
    assert (batch["max_length_q"], batch["max_length_k"]) == (5, 6)
    assert batch["loss_weight"].tolist() == [[0, 0, 4, 0, 1, 0, 2, 2, 0, 0, 0, 0]]  # 1 + 2 + 1 train the root's token
    assert batch["is_weighted"] is True


def test_a_token_counts_by_each_samples_own_trained_tokens() -> None:
    batch = lay_out_neat_trees([three()], RowForm(weights="sample"))
    expected = [0, 0, 1 / 2 + 2 / 3 + 1, 0, 1 / 2, 0, 2 / 3, 2 / 3, 0]
    assert batch["loss_weight"][0].tolist() == pytest.approx(expected)
    total = sum(float(loss_weights(one, "sqrt").sum()) for one in three())
    assert float(lay_out_neat_trees([three()], RowForm(weights="sqrt"))["loss_weight"].sum()) == pytest.approx(total)


def test_shifted_labels_never_cross_into_a_branch() -> None:
    batch = lay_out_neat_trees([three()], RowForm(width=12, shifted=True))
    x = IGNORE
    assert batch["labels"].tolist() == [[x, 12, x, 24, x, 34, 35, x, x, x, x, x]]
    assert batch["loss_weight"].tolist() == [[0, 4, 0, 1, 0, 2, 2, 0, 0, 0, 0, 0]]


def test_equal_samples_and_ones_that_end_inside_others_bring_nothing_or_go_on() -> None:
    short, long = member([1, 2, 3], [2]), member([1, 2, 3, 4, 5], [2, 4], 3)
    twin = member([1, 2, 3, 4, 5], [2, 4], 5)
    batch = lay_out_neat_trees([[short, long, twin], [member([7, 8], [1])]], RowForm())
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5], [7, 8, 0, 0, 0]]
    assert batch["tree_end"].tolist() == [[5] * 5, [2, 2, 5, 5, 5]]
    assert batch["doc_ids"].tolist() == [[1, 1, 1, 2, 2], [1, 1, 0, 0, 0]]
    assert batch["loss_weight"].tolist() == [[0, 0, 3, 0, 2], [0, 1, 0, 0, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 7, 10]
    assert batch["k_index"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_three_rows_of_positions_go_on_from_the_fork() -> None:
    rows = torch.tensor([[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]])
    some = Member(torch.arange(4), torch.full((4,), IGNORE), torch.tensor([0, 1, 1, 0]), rows)
    other = Member(torch.arange(4), torch.full((4,), IGNORE), torch.tensor([0, 1, 1, 0]), rows, shared_len=3)
    batch = lay_out_neat_trees([[some, other]], RowForm(rope=True, width=6))
    assert batch["position_ids"][:, 0].tolist() == [
        [0, 1, 2, 3, 3, 0], [0, 1, 1, 3, 3, 0], [0, 1, 1, 3, 3, 0], [0, 1, 2, 3, 3, 0],
    ]  # fmt: skip
    assert batch["mm_token_type_ids"].tolist() == [[0, 1, 1, 0, 0, 0]]


def test_members_that_share_nothing_are_as_neat_lays_them_out() -> None:
    plain = [member([1, 2, 3], [1, 2]), member([4, 5], [1])]
    assert not Members.of(plain).is_tree
    some, other = (
        lay_out_neat_rows([plain], RowForm(weights="sample", width=7)),
        lay_out_neat_trees([plain], RowForm(weights="sample", width=7)),
    )
    for name, value in some.items():
        same = torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        assert same, name


A, B, C = three()


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"b": B, "c": C}, "b shares 3 tokens with a member before it, and is the first"),
        ({"a": A, "c": C}, "the 4 tokens that c shares with a differ in their ids"),
        ({"a": A, "b": member([10, 11, 12, 33, 34], [3], 3)}, "b trains its token 3, with which a branch begins"),
        ({"a": A, "b": B, "c": member([10, 11, 12, 33, 44], [3], 4)}, "c trains its token 3, with which a branch"),
        ({"a": A, "b": member([10, 11], [], 3)}, "b shares 3 tokens with a, of 5 and 2"),
    ],
)
def test_what_is_not_shared_is_refused_with_both_names(members: dict[str, Member], says: str) -> None:
    refuse_invalid_trees([A, B, C], ["a", "b", "c"])
    with pytest.raises(ValueError, match=says):
        refuse_invalid_trees([*members.values()], [*members])


def test_positions_of_shared_tokens_have_to_agree() -> None:
    rows = torch.arange(4).expand(3, -1)
    some = Member(torch.arange(4), torch.full((4,), IGNORE), torch.zeros(4), rows)
    other = Member(torch.arange(4), torch.full((4,), IGNORE), torch.zeros(4), rows + 1, shared_len=2)
    with pytest.raises(ValueError, match="differ in their positions"):
        refuse_invalid_trees([some, other], ["a", "b"])
    assert merge_members([some]).tokens.rope is not None


# Packs that share beginnings, written and read by Energon: a step on them is a step on their samples alone.


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of four questions each, one of them with a second image; a trajectory; a chat of its own."""
    tar: dict[str, bytes] = {}
    for number in range(8):
        more = number == 5
        tar[f"q{number}.json"] = chat(f"<image>What is {number}?", "It is one.", f"And {'<image>' * more}?", "Two.")
        tar[f"q{number}.0.png" if more else f"q{number}.png"] = noise(number % 2, 112)
        tar |= {f"q{number}.1.png": noise(7, 84)} if more else {}
    long = "one two three four five six seven eight nine ten " * 2
    tar["t1.json"] = chat(long, "yes")
    tar["t2.json"] = chat(long, "yes", "And then?", "no")
    tar["t3.json"] = chat("alone", "yes")
    source = tmp_path_factory.mktemp("trees")
    write_tar(source / "a.tar", tar)
    settings: dict[str, Any] = {"packing__share": SharedBeginnings.prefix, "packing__share_min_tokens": 20}
    settings |= {"packing__max_token_len": 1024, "model__rope": Rope.qwen2_5_vl}
    return packed(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), source, **settings))


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("how", first_of(["varlen", "sdpa"]))
def test_a_step_on_packs_with_trees_is_a_step_on_their_samples(
    how: str, dataset: Path, demo: tuple[Path, Path]
) -> None:
    need_torchvision()
    encoder = PackedTaskEncoder(dataset, str(demo[1]), loss_weight="sqrt", tokens_per_second=2)
    model = demo_model(encoder.rules)
    plain = copy.deepcopy(model)
    if how == "varlen":
        use_tree_attention(model)
    guarded = guard(model, encoder)
    assert guarded.trees is not None
    inputs = [list(inputs_of(pack)) for pack in train(dataset)]
    batches = [encoder.batch([encoder.encode_sample(pack)]) for pack in train(dataset)]
    members = [encoder.members.encode_alone(one) for pack in inputs for one in pack]
    assert len({one.sample_id for one in members}) == 11
    own = sum(batch["num_tokens"] for batch in batches)
    whole = sum(len(one.tokens) for one in members)
    assert own < 0.8 * whole
    assert sum(int(batch["n_images_per_sample"].sum()) for batch in batches) == 3
    total = torch.stack([total_weight(batch) for batch in batches]).sum()
    losses = [weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch, total) for batch in batches]
    expected = []
    for one in members:
        given = {"input_ids": one.tokens.ids[None], "mm_token_type_ids": one.tokens.types[None], **one.media}
        logits = plain(**given, attention_mask=torch.ones_like(one.tokens.ids[None]), use_cache=False).logits[0, :-1]
        each = cross_entropy(logits, one.tokens.ids[1:], reduction="none")
        expected.append((each * loss_weights(one.tokens, "sqrt")[1:]).sum() / total)
    loss, loss_alone = torch.stack(losses).sum(), torch.stack(expected).sum()
    assert float(loss.detach()) == pytest.approx(float(loss_alone.detach()), rel=1e-5)
    found, wanted = gradients(model, loss), gradients(plain, loss_alone)
    largest = max(float(one.abs().max()) for one in wanted.values())
    far = max(float((found[name] - wanted[name]).abs().max()) for name in wanted) / largest
    print(f"{whole} → {own} tokens, gradients {far:.1e}")
    assert far <= 1e-5

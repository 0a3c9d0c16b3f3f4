"""Trees by hand-computed cases: the rows of members that share beginnings, and what is refused."""

import pytest
import torch
from torch import Tensor

from energon_pack.training.layout import IGNORE, Member, RowForm, has_trees, loss_weights, neat
from energon_pack.training.tree_rows import merge, neat_trees, refuse_unlike


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
    batch = neat_trees([three()], RowForm(width=12))
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
    batch = neat_trees([three()], RowForm(weights="sample"))
    expected = [0, 0, 1 / 2 + 2 / 3 + 1, 0, 1 / 2, 0, 2 / 3, 2 / 3, 0]
    assert batch["loss_weight"][0].tolist() == pytest.approx(expected)
    total = sum(float(loss_weights(one, "sqrt").sum()) for one in three())
    assert float(neat_trees([three()], RowForm(weights="sqrt"))["loss_weight"].sum()) == pytest.approx(total)


def test_shifted_labels_never_cross_into_a_branch() -> None:
    batch = neat_trees([three()], RowForm(width=12, shifted=True))
    x = IGNORE
    assert batch["labels"].tolist() == [[x, 12, x, 24, x, 34, 35, x, x, x, x, x]]
    assert batch["loss_weight"].tolist() == [[0, 4, 0, 1, 0, 2, 2, 0, 0, 0, 0, 0]]


def test_equal_samples_and_ones_that_end_inside_others_bring_nothing_or_go_on() -> None:
    short, long = member([1, 2, 3], [2]), member([1, 2, 3, 4, 5], [2, 4], 3)
    twin = member([1, 2, 3, 4, 5], [2, 4], 5)
    batch = neat_trees([[short, long, twin], [member([7, 8], [1])]], RowForm())
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
    batch = neat_trees([[some, other]], RowForm(rope=True, width=6))
    assert batch["position_ids"][:, 0].tolist() == [
        [0, 1, 2, 3, 3, 0], [0, 1, 1, 3, 3, 0], [0, 1, 1, 3, 3, 0], [0, 1, 2, 3, 3, 0],
    ]  # fmt: skip
    assert batch["mm_token_type_ids"].tolist() == [[0, 1, 1, 0, 0, 0]]


def test_members_that_share_nothing_are_as_neat_lays_them_out() -> None:
    plain = [member([1, 2, 3], [1, 2]), member([4, 5], [1])]
    assert not has_trees([plain])
    some, other = (
        neat([plain], RowForm(weights="sample", width=7)),
        neat_trees([plain], RowForm(weights="sample", width=7)),
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
    refuse_unlike([A, B, C], ["a", "b", "c"])
    with pytest.raises(ValueError, match=says):
        refuse_unlike([*members.values()], [*members])


def test_positions_of_shared_tokens_have_to_agree() -> None:
    rows = torch.arange(4).expand(3, -1)
    some = Member(torch.arange(4), torch.full((4,), IGNORE), torch.zeros(4), rows)
    other = Member(torch.arange(4), torch.full((4,), IGNORE), torch.zeros(4), rows + 1, shared_len=2)
    with pytest.raises(ValueError, match="differ in their positions"):
        refuse_unlike([some, other], ["a", "b"])
    assert merge([some]).row.rope is not None

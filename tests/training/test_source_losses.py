"""The losses of the entries of a mixture add up to the loss of the step, over batches and ranks."""

import pytest
import torch

from energon_pack.training.batch import source_losses, total_weight, weighted_loss
from energon_pack.training.layout import IGNORE

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


# ------------------------------------------------------------------------------------------------- over real ranks

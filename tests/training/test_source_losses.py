"""The losses of the entries of a mixture add up to the loss of the step, over batches and ranks."""

import json
from itertools import islice
from pathlib import Path
from zlib import crc32

import pytest
import torch
import torch.distributed as dist
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from torch.multiprocessing.spawn import spawn

from energon_pack.loading import train_arguments
from energon_pack.steps.topology import Topology
from energon_pack.task_encoder import PackedTaskEncoder
from energon_pack.training.batch import source_losses, total_weight, weighted_loss
from energon_pack.training.layout import IGNORE
from support.packed import Make, packed

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

WEIGHTS = ("token", "sample", "sqrt")


def rank_of_training(rank: int, ranks: int, folder: str, processor: str, meeting: str, results: str) -> None:
    """Train nothing, but reduce the losses of eight packs of all ranks, by each kind of weight."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    found: dict[str, list[float]] = {}
    for weight in WEIGHTS:
        encoder = PackedTaskEncoder(folder, processor, loss_weight=weight)
        worker = WorkerConfig(rank=rank, world_size=ranks, num_workers=0)
        packs = get_train_dataset(folder, **train_arguments(folder, encoder, worker))
        batches = list(islice(get_savable_loader(packs), 8 // ranks))
        total = torch.stack([total_weight(each) for each in batches]).sum()
        dist.all_reduce(total)
        sums, whole = torch.zeros(2, len(encoder.sources), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        for each in batches:
            seed = torch.Generator().manual_seed(crc32(each["__key__"][0].encode()))
            logits = torch.randn(*each["labels"].shape, encoder.rules.num_ids, generator=seed)
            sums += source_losses(logits, each, encoder.sources)
            whole += weighted_loss(logits, each, total).double()
        for tensor in (sums, whole):
            dist.all_reduce(tensor)
        found[weight] = [float(whole), float(sums[0].sum() / total), *(sums[0] / sums[1]).tolist()]
    if rank == 0:
        Path(results).write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.slow
def test_they_add_up_over_ranks(config: Make, demo: tuple[Path, Path], tmp_path: Path) -> None:
    """One, two and four processes over gloo: the sum is the loss of the step to 1e-6, and each entry's loss is the same
    whoever had its packs.
    """
    for name, most in (("long", 60), ("short", 9), ("few", 30)):
        lines = [{"messages": [{"role": "user", "content": f"{name}?"},
                               {"role": "assistant", "content": "word " * (1 + number % most)}]}
                 for number in range(40)]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mix = tmp_path / "mix.yaml"
    mix.write_text(json.dumps({"mixture": [{"path": f"{name}.jsonl"} for name in ("long", "short", "few")]}))
    topology = Topology(4)  # whoever reads, the first packs are the same
    folder = packed(config(str(mix), source__format="auto", packing__max_token_len=400, packing__topology=topology))
    of_ranks = []
    for ranks in (1, 2, 4):
        results, meeting = tmp_path / f"{ranks}.json", tmp_path / f"meet{ranks}"
        arguments = (ranks, str(folder), str(demo[1]), str(meeting), str(results))
        spawn(rank_of_training, arguments, nprocs=ranks)
        of_ranks.append(json.loads(results.read_text()))
    for found in of_ranks:
        for weight in WEIGHTS:
            whole, summed, *entries = found[weight]
            assert summed == pytest.approx(whole, rel=1e-6)
            assert entries == pytest.approx(of_ranks[0][weight][2:], rel=1e-6)

"""The loss of packs over ranks and accumulated batches is that of the same samples unpacked, one forward for each.

The recipe itself runs in ranks that talk through gloo, and says for each step which samples each of them had.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from train_tiny import tiny_model

from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.training.batch import total_weight, weighted_loss
from energon_pack.training.layout import IGNORE
from support.alone import losses_alone, members_of, pack_demo
from support.packed import train
from support.running import ROOT, command, need_torchvision
from support.tiny import make_batch, make_members, make_model


@dataclass(frozen=True)
class Run:
    """One run of the recipe."""

    parallel: str = "ddp"
    weight: str = "token"
    accumulate: int = 2
    #: ranks whose batches train nothing
    muted: tuple[int, ...] = ()
    steps: int = 2


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs of the demo, with a damaged image in each shard that has images."""
    need_torchvision()
    folder = pack_demo(demo, cache, tmp_path_factory.mktemp("identity"))
    for tar in folder.glob("*.tar"):
        data = bytearray(tar.read_bytes())
        at = data.find(b"\x89PNG")
        if at >= 0:
            data[at + 60 : at + 100] = bytes(40)
            tar.write_bytes(bytes(data))
    return folder


def differences(dataset: Path, processor: Path, folder: Path, num_ranks: int, runs: list[Run]) -> list[float]:
    """The largest difference of a step's loss from the samples alone, of each run; `-s` prints them."""
    common = [str(dataset), "--processor", str(processor), "--num-workers", "0", "--on-bad-member", "drop"]
    lists = []
    for number, run in enumerate(runs):
        own = ["--parallel", run.parallel, "--loss-weight", run.weight, "--accumulate", str(run.accumulate)]
        own += ["--max-steps", str(run.steps), "--ids", str(folder / f"run{number}")]
        lists.append((run.muted, [*common, *own]))
    path = ":".join(str(ROOT / name) for name in (".", "recipes", "tests"))
    script = ROOT / "tests" / "support" / "ranks.py"
    done = command(script, "train_ddp", str(num_ranks), json.dumps(lists), cwd=folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr

    encoder = PackedTaskEncoder(dataset, str(processor))
    packs = [set(pack.sample_ids) for pack in train(dataset)]
    found = []
    for number, run in enumerate(runs):
        notes = [
            [json.loads(line) for line in (folder / f"run{number}.{rank}").read_text().splitlines()]
            for rank in range(num_ranks)
        ]
        rows = [[row for rank in notes for row in rank[step]["ids"]] for step in range(run.steps)]
        assert [len(step) for step in rows] == [num_ranks * run.accumulate] * run.steps
        whole = [len(next(pack for pack in packs if row[0] in pack)) for step in rows for row in step]
        assert sum(whole) > sum(len(row) for step in rows for row in step)  # some members were dropped
        trained = [
            [
                name
                for rank in range(num_ranks)
                if rank not in run.muted
                for row in notes[rank][step]["ids"]
                for name in row
            ]
            for step in range(run.steps)
        ]
        members = members_of(dataset, encoder, [name for step in trained for name in step])
        model = tiny_model(encoder)
        expected = losses_alone(model, torch.optim.AdamW(model.parameters(), 2e-3), members, trained, run.weight)
        losses = [[note["loss"] for note in rank] for rank in notes]
        assert losses == [losses[0]] * num_ranks
        found.append(max(abs(one - other) for one, other in zip(losses[0], expected, strict=True)))
        print(f"{num_ranks} ranks {run}: {found[-1]:.1e} of {expected[0]:.3f}")
    return found


@pytest.mark.slow
def test_the_loss_of_two_ranks_is_that_of_their_samples_alone(
    dataset: Path, demo: tuple[Path, Path], tmp_path: Path
) -> None:
    """The second step shows that gradients are those, too. Members were dropped; in one run a rank trains nothing."""
    torch.set_num_threads(1)
    runs = [Run("fsdp", "sample", 1), Run("ddp", "sqrt", 2, muted=(1,), steps=1)]
    assert max(differences(dataset, demo[1], tmp_path, 2, runs)) <= 1e-6


@pytest.mark.parametrize("kind", [None, "token", "sample", "sqrt"])
@pytest.mark.parametrize("shifted", [False, True])
def test_losses_of_batches_add_up_to_that_of_one(kind: str | None, shifted: bool) -> None:
    """Members without a trained token add nothing to the loss, and no NaN to the gradients."""
    model = make_model("llama")
    members = make_members("llama", model)
    batches = [make_batch("llama", [part], weights=kind, shifted=shifted) for part in (members[:2], members[2:])]
    nothing = [
        replace(member, tokens=replace(member.tokens, labels=member.tokens.labels * 0 + IGNORE)) for member in members
    ]
    batches.append(make_batch("llama", [nothing], weights=kind, shifted=shifted))
    total = torch.stack([total_weight(batch) for batch in batches]).sum()
    losses = [weighted_loss(model(**batch.model_inputs()).logits, batch, total) for batch in batches]
    whole = make_batch("llama", [members], weights=kind, shifted=shifted)
    expected = weighted_loss(model(**whole.model_inputs()).logits, whole)
    assert sum(loss.item() for loss in losses) == pytest.approx(expected.item(), abs=1e-6)
    for given in (total, total_weight(batches[2]), None):
        loss = weighted_loss(model(**batches[2].model_inputs()).logits, batches[2], given)
        model.zero_grad()
        loss.backward()
        assert loss.item() == 0.0
        assert all(not parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_the_loss_of_more_ranks(dataset: Path, demo: tuple[Path, Path], tmp_path: Path, num_ranks: int) -> None:
    runs = [Run(parallel, weight) for parallel in ("ddp", "fsdp") for weight in ("token", "sample", "sqrt")]
    runs += [Run(parallel, muted=tuple(range(num_ranks - 1))) for parallel in ("ddp", "fsdp")]
    assert max(differences(dataset, demo[1], tmp_path, num_ranks, runs)) <= 1e-6

"""Batches of preference pairs: their keys and losses, and every door to an SFT loss, which refuses them."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from energon_pack import (
    PackedDataset,
    PackedTaskEncoder,
    check_trainer,
    guard,
    member_logps,
    num_pairs,
    preference_loss,
    source_losses,
    total_weight,
    use_tree_attention,
    webdataset,
    weighted_loss,
)
from energon_pack.dataset.manifest import read_manifest, refuse_other_manifests
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.plan.settings import SharedBeginnings
from energon_pack.samples.settings import PreferenceTake
from energon_pack.training.encoded import IGNORE, BadPack
from energon_pack.training.preference import pairs_in, write_reference_logps
from energon_pack.unpack import unpack
from support.alone import demo_model, members_of
from support.packed import demo_config, packed
from support.pairs import write_pairs

pytestmark = pytest.mark.usefixtures("one_thread")
NUM_PAIRS = 8
KINDS = ("sigmoid", "ipo", "hinge")
SFT = "preference pairs, whose rejected answers no SFT loss may see"


@pytest.fixture(scope="module")
def folders(
    demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[SharedBeginnings, Path]:
    """Pairs of texts, several turns, one and two images, packed with and without shared prompts."""
    folder, made = tmp_path_factory.mktemp("preference"), {}
    source = write_pairs(folder, NUM_PAIRS)
    for share in (SharedBeginnings.none, SharedBeginnings.prefix):
        run = demo_config(
            demo, cache, folder / share.value, source, source__take=PreferenceTake.both, packing__share=share
        )
        run.packing.max_token_len, run.packing.share_min_tokens = 700, 1
        made[share] = packed(run)
    return made


@pytest.fixture(scope="module", params=[SharedBeginnings.none, SharedBeginnings.prefix], ids=["whole", "shared"])
def packs(
    request: pytest.FixtureRequest, folders: dict[SharedBeginnings, Path], demo: tuple[Path, Path]
) -> PackedDataset:
    return PackedDataset(folders[request.param], str(demo[1]))


def wide(inputs: dict[str, Any]) -> dict[str, Any]:
    floats = {name: value.double() for name, value in inputs.items() if getattr(value, "dtype", None) == torch.float32}
    return {**inputs, **floats}


def test_pairs_are_numbered_over_all_rows() -> None:
    assert pairs_in([["a+chosen", "a+rejected"], ["b+chosen", "b+rejected"]]).tolist() == [[0, 1], [2, 3]]
    for row in (["a+chosen"], ["a+rejected", "a+chosen"], ["a+chosen", "b+rejected"], ["a", "b"]):
        with pytest.raises(BadPack, match="no side of a preference pair"):
            pairs_in([row])


def test_logps_and_losses_to_check_by_head() -> None:
    """Two rows of one pair each; of four equally likely tokens, each trained one has log p = -log 4."""
    x = IGNORE
    batch: dict[str, Any] = {
        "labels": torch.tensor([[x, 1, 2, x, 3, x], [x, x, 1, x, 2, 3]]),
        "doc_ids": torch.tensor([[1, 1, 1, 2, 2, 0], [1, 1, 1, 2, 2, 2]]),
        "sample_ids": [["a+chosen", "a+rejected"], ["b+chosen", "b+rejected"]],
        "preference_pairs": torch.tensor([[0, 1], [2, 3]]),
    }
    logps = member_logps(torch.zeros(2, 6, 4), batch)
    assert logps.tolist() == pytest.approx([-math.log(4) * n for n in (2, 1, 1, 2)])
    assert logps.dtype == torch.float64
    assert num_pairs(batch) == 2
    policy, reference = torch.tensor([2.0, -1, 0, 0]).double(), torch.tensor([0.0, 0, 1, 0]).double()
    # log ratios 2, -1 and -1, 0: margins 3 and -1; by trained tokens 2/2 + 1/1 = 2, and -1/1 - 0/2 = -1
    expected = {
        "sigmoid": (math.log1p(math.exp(-1.5)) + math.log1p(math.exp(0.5))) / 2,
        "hinge": (0 + 1.5) / 2,
        "ipo": ((2 - 1) ** 2 + (-1 - 1) ** 2) / 2,
    }
    for kind, value in expected.items():
        assert float(preference_loss(policy, reference, batch, 0.5, kind)) == pytest.approx(value)
        of_step = preference_loss(policy, reference, batch, 0.5, kind, torch.tensor(8.0))
        assert float(of_step) == pytest.approx(value / 4)
    with pytest.raises(ValueError, match=r"kind=kto, beta=0\.1: a kind is sigmoid, hinge, ipo"):
        preference_loss(policy, reference, batch, kind="kto")
    with pytest.raises(ValueError, match="beta=0: a kind is"):
        preference_loss(policy, reference, batch, beta=0)


def logps_alone(model: Any, member: Any) -> torch.Tensor:
    """The sum of the trained tokens of a sample alone, by transformers, in its own way."""
    inputs = {"input_ids": member.tokens.ids[None], "mm_token_type_ids": member.tokens.types[None], **member.media}
    logits = model(**wide(inputs), attention_mask=torch.ones_like(inputs["input_ids"]), use_cache=False).logits[0, :-1]
    return -torch.nn.functional.cross_entropy(logits, member.tokens.labels[1:], ignore_index=IGNORE, reduction="sum")


def test_packs_have_the_loss_and_gradients_of_pairs_alone(
    packs: PackedDataset, folders: dict[SharedBeginnings, Path], demo: tuple[Path, Path]
) -> None:
    """In float64, whatever shares a row: a pair that sees another, or a prompt that counts once, would differ."""
    policy, reference = (demo_model(packs.encoder.rules).double() for _ in range(2))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.05)
    use_tree_attention(policy)
    use_tree_attention(reference)
    starts = range(0, len(packs), 2)
    batches = [packs.collate([packs[n] for n in range(start, len(packs))[:2]]) for start in starts]
    total = torch.stack([num_pairs(batch) for batch in batches]).sum()
    assert total == NUM_PAIRS
    logps = [of_both(policy, reference, partial(logps_of_batch, batch)) for batch in batches]
    encoder = PackedTaskEncoder(folders[SharedBeginnings.none], str(demo[1]))
    ids = [sample_id for batch in batches for row in batch["sample_ids"] for sample_id in row]
    members = members_of(folders[SharedBeginnings.none], encoder, ids)
    alone = of_both(policy, reference, lambda model: torch.stack([logps_alone(model, members[name]) for name in ids]))
    counts = torch.tensor([int((members[name].tokens.labels != IGNORE).sum()) for name in ids])
    parameters = [*policy.parameters()]
    for kind in KINDS:
        parts = [preference_loss(*both, batch, 0.1, kind, total) for both, batch in zip(logps, batches, strict=True)]
        loss, expected = torch.stack(parts).sum(), plain_loss(alone[0] - alone[1], counts, kind)
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-7)
        ours, theirs = (torch.autograd.grad(value, parameters, retain_graph=True) for value in (loss, expected))
        largest = max(float(gradient.abs().max()) for gradient in theirs)
        assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) <= 1e-6 * largest


def of_both(policy: Any, reference: Any, logps: Callable[[Any], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        before = logps(reference)
    return logps(policy), before


def logps_of_batch(batch: Any, model: Any) -> torch.Tensor:
    return member_logps(model(**wide(batch.model_inputs(model))).logits, batch)


def plain_loss(ratios: torch.Tensor, counts: torch.Tensor, kind: str) -> torch.Tensor:
    """The loss of pairs, one behind the other, as its papers write it; β is 0.1."""
    if kind == "ipo":
        ratios = ratios / counts
    margin = ratios[::2] - ratios[1::2]
    each = {
        "sigmoid": -torch.log(torch.sigmoid(0.1 * margin)),
        "hinge": torch.clamp(1 - 0.1 * margin, min=0),
        "ipo": (margin - 5) ** 2,
    }
    return each[kind].mean()


def test_guard_proves_a_model_for_pairs(packs: PackedDataset) -> None:
    """Its class, and with its first batch the model itself, in trees or in whole samples."""
    model = demo_model(packs.encoder.rules)
    use_tree_attention(model)
    guarded = guard(model, packs.encoder)
    assert (guarded.trees is not None) == packs.encoder.has_trees
    batch = packs.collate([packs[0]])
    logits = model(**batch.model_inputs(model)).logits
    reference = member_logps(logits.detach(), batch)
    loss = preference_loss(member_logps(logits, batch), reference, batch)
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert len(guarded.trials) == 1


def test_no_sft_loss_sees_a_rejected_answer(
    packs: PackedDataset, folders: dict[SharedBeginnings, Path], tmp_path: Path
) -> None:
    """Each is one line that says what to do; a batch's inputs have no labels, by which a model would make its loss."""
    folder = str(folders[SharedBeginnings.prefix if packs.encoder.has_trees else SharedBeginnings.none])
    batch, model = packs.collate([packs[0]]), demo_model(packs.encoder.rules)
    logits = torch.zeros(*batch["input_ids"].shape, 2)
    inputs = batch.model_inputs(model)
    assert "labels" not in inputs
    assert model(**inputs).loss is None
    doors: dict[str, Callable[[], Any]] = {
        "weighted_loss": lambda: weighted_loss(logits, batch),
        "source_losses": lambda: source_losses(logits, batch, []),
        "total_weight": lambda: total_weight(batch),
        "thd": lambda: PackedTaskEncoder(folder, layout="thd"),
        "rows": lambda: PackedTaskEncoder(folder, layout="rows"),
        "mlm": lambda: PackedDataset(folder, layout="mlm"),
        "labels": lambda: PackedDataset(folder, labels="shifted"),
        "loss_weight": lambda: PackedDataset(folder, loss_weight="sample"),
        "collator": lambda: packs.collator(model),
        "weighted collator": lambda: packs.collator(model, weights=True),
        "loss_func": packs.loss_func,
        "check_trainer": lambda: check_trainer(fake_trainer(packs.pair_collator())),
    }
    for name, door in doors.items():
        with pytest.raises(ValueError, match=SFT) as refused:
            door()
        assert "\n" not in str(refused.value), name
    with pytest.raises(PackError, match="not by webdataset"):
        webdataset.packs(folder)
    with pytest.raises(PackError, match="rejected answers"):
        unpack(folder, tmp_path / "single")


def fake_trainer(collate: Any) -> Any:
    """A trainer with a loader, and no more than `check_trainer` asks of it before it sees the collator."""
    loader = SimpleNamespace(collate_fn=collate)
    accelerator = SimpleNamespace(num_processes=1)
    return SimpleNamespace(args=SimpleNamespace(), accelerator=accelerator, get_train_dataloader=lambda: loader)


def test_packs_of_pairs_are_no_source_and_blend_with_no_other_packs(
    folders: dict[SharedBeginnings, Path], demo_folder: Path, demo: tuple[Path, Path], cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(PackError, match="holds preference pairs, no single samples"):
        pack(demo_config(demo, cache, tmp_path, folders[SharedBeginnings.none]))
    manifests: dict[str | Path, dict[str, Any]] = {
        "pairs": read_manifest(folders[SharedBeginnings.none]),
        "sft": read_manifest(demo_folder),
    }
    manifests["sft"] |= {name: manifests["pairs"][name] for name in ("fingerprint", "mask", "layout")}
    with pytest.raises(PackError, match="different settings: the pairs True, and the pairs None"):
        refuse_other_manifests(manifests)


def test_reference_logps_are_read_by_dataset_and_member(packs: PackedDataset, tmp_path: Path) -> None:
    """A reference model runs once: each batch then has its values, whatever members are in it."""
    batches = [packs.collate([packs[n]]) for n in range(len(packs))]
    path, values = tmp_path / "reference.npz", []
    for number, batch in enumerate(batches):
        values.append(100.0 * number + torch.arange(2.0 * len(batch["preference_pairs"]), dtype=torch.float64))
    assert write_reference_logps(path, zip(batches, values, strict=True)) == 2 * NUM_PAIRS
    again = PackedDataset(packs._files.folder.path, reference_logps=str(path))
    for number, expected in enumerate(values):
        assert torch.equal(again.collate([again[number]])["reference_logps"], expected)
    write_reference_logps(path, zip(batches[1:], values[1:], strict=True))
    again = PackedDataset(packs._files.folder.path, reference_logps=str(path))
    missing = r"has no reference_logps of \w+/pairs\.jsonl:\d+\+chosen: write_reference_logps writes"
    with pytest.raises(BadPack, match=missing):
        again.collate([again[0]])


def test_only_pairs_have_a_reference(demo_folder: Path, tmp_path: Path) -> None:
    assert write_reference_logps(tmp_path / "reference.npz", []) == 0
    with pytest.raises(ValueError, match="the packs hold no preference pairs"):
        PackedDataset(demo_folder, reference_logps=str(tmp_path / "reference.npz"))
    with pytest.raises(ValueError, match="this batch has no preference pairs"):
        member_logps(torch.zeros(1, 2, 3), {"labels": np.zeros((1, 2)), "sample_ids": [["a"]]})

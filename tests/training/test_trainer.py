"""Batches under transformers.Trainer and Accelerate: unchanged, or refused with the setting to change.

The slow tests run in an environment of their own, with the newest Accelerate of the package index.
"""

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import packed_data
import pytest
import torch
from megatron.energon import WorkerConfig
from torch.utils.data import DataLoader
from train_tiny import tiny_model

from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.training.batch import PackedBatch
from energon_pack.training.layout import RowForm
from energon_pack.training.megatron_layouts import thd
from support.alone import losses_alone, members_of, pack_demo
from support.running import ROOT, command, environment, need_torchvision, run
from support.tiny import make_batch, make_members, make_model, tf


def rebuilt(batch: Any, change: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Any:
    """A mapping made anew with each tensor changed, as trainers do."""
    if isinstance(batch, Mapping):
        kind: Any = type(batch)
        return kind({name: rebuilt(value, change) for name, value in batch.items()})
    return change(batch) if isinstance(batch, torch.Tensor) else batch


def one_of(batch: PackedBatch) -> Any:
    """A dataset of this batch alone."""
    return [batch]


@pytest.mark.parametrize(
    "way",
    [
        rebuilt,
        copy.copy,
        copy.deepcopy,
        lambda batch: pickle.loads(pickle.dumps(batch)),
        lambda batch: batch.to("cpu"),
        lambda batch: next(iter(DataLoader(one_of(batch), batch_size=None))),
        lambda batch: next(iter(DataLoader(one_of(batch), collate_fn=lambda rows: rows[0]))),
    ],
)
def test_a_batch_that_is_made_anew_keeps_its_masks(way: Callable[[PackedBatch], PackedBatch]) -> None:
    """Without them, its members would see each other, and nothing would say so."""
    model = make_model("gemma3")
    batch = make_batch("gemma3", [make_members("gemma3", model)])
    other = way(batch)
    assert isinstance(other, PackedBatch)
    assert other.mask == "dict4d"
    expected, found = batch.model_inputs(model), other.model_inputs(model)
    assert expected.keys() == found.keys()
    for name, mask in expected["attention_mask"].items():
        assert torch.equal(mask, found["attention_mask"][name])


@pytest.mark.parametrize(
    ("num_rows", "start", "end"), [(1, 0, 0), (1, 0, 1), (1, 1, 2), (2, 0, 1), (2, 0, 2), (2, 1, 2)]
)
@pytest.mark.parametrize("layout", ["neat", "thd", "model_inputs"])
def test_a_batch_that_is_cut_is_refused(num_rows: int, start: int, end: int, layout: str) -> None:
    """Accelerate takes the rows of a rank of each tensor, of boundaries and M-RoPE rows as well."""
    if layout == "thd":  # one row, whatever is in it
        num_rows, start, end = 1, min(start, 1), min(end, 1)
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)[: 3 * num_rows]
    batch = make_batch("qwen2_5_vl", [members[:3], members[3:]][:num_rows])
    if layout == "thd":
        batch = PackedBatch(thd([member.tokens for member in members], RowForm()))
    given = batch.model_inputs() if layout == "model_inputs" else batch
    with pytest.raises(ValueError, match=r"dispatch_batches.*get_train_dataloader"):
        rebuilt(given, lambda tensor: tensor[start:end] if tensor.dim() else tensor)


def test_warnings_of_transformers_are_not_lost(dataset: Path, demo: tuple[Path, Path]) -> None:
    """A checkpoint of which nothing was found is one: the encoder had turned them off for the whole training."""
    verbosity = tf.logging.get_verbosity()
    tf.logging.set_verbosity_warning()
    encoder = PackedTaskEncoder(dataset, str(demo[1]), dummy_image=True)
    assert encoder.members.blank_image_inputs()
    assert tf.logging.get_verbosity() == tf.logging.WARNING
    tf.logging.set_verbosity(verbosity)


# ------------------------------------------------------------------------------------------------ with Accelerate


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_torchvision()
    return pack_demo(demo, cache, tmp_path_factory.mktemp("trainer"))


@pytest.fixture(scope="module")
def accelerated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs the Python of an environment with Accelerate and Datasets. Needs the package index."""
    folder = tmp_path_factory.mktemp("accelerate")
    python = environment(folder / "venv")
    run(python, "-m", "pip", "install", "--no-deps", "accelerate", cwd=folder)
    run(python, "-m", "pip", "install", "datasets", cwd=folder)
    path = ":".join(str(ROOT / name) for name in (".", "recipes", "tests"))

    def command(*arguments: str | Path, cwd: Path) -> str:
        return run(
            python, "-W", "ignore", *arguments, cwd=cwd, PYTHONPATH=path, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"
        )

    return command


def trained(
    accelerated: Callable[..., str], folder: Path, num_ranks: int, runs: list[list[str | Path]], steps: int
) -> list[float]:
    """The losses of the last run, of steps from the first."""
    lists: list[Any] = [([], list(map(str, arguments))) for arguments in runs]
    script = ROOT / "tests" / "support" / "ranks.py"
    accelerated(script, "train_trainer", str(num_ranks), json.dumps(lists), cwd=folder)
    state = json.loads((folder / "out" / f"checkpoint-{steps}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def samples(dataset: Path, processor: Path, num_ranks: int, steps: int, accumulate: int) -> list[list[str]]:
    """The samples of each step, of all ranks."""
    found: list[list[str]] = [[] for _ in range(steps)]
    for rank in range(num_ranks):
        worker = WorkerConfig(rank=rank, world_size=num_ranks, num_workers=0)
        stream = iter(packed_data.train_loader(dataset, PackedTaskEncoder(dataset, str(processor)), worker))
        for step in found:
            step += [name for batch in islice(stream, accumulate) for row in batch["sample_ids"] for name in row]
    return found


@pytest.mark.slow
def test_the_recipe_starts_in_a_process_of_its_own(tmp_path: Path) -> None:
    """It asks for transformers.Trainer first of all, which a CUDA build of torchvision beside a CPU torch stopped."""
    result = command(ROOT / "recipes" / "train_trainer.py", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: train_trainer.py ")


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "weight", "steps"), [(1, "token", 30), (2, "sample", 5)])
def test_losses_of_the_trainer_are_those_of_the_samples_alone(
    dataset: Path,
    demo: tuple[Path, Path],
    tmp_path: Path,
    accelerated: Callable[..., str],
    num_ranks: int,
    weight: str,
    steps: int,
) -> None:
    """With accumulation, and going on from a checkpoint in the middle."""
    common: list[str | Path] = [dataset, "--processor", demo[1], "--lr", "1e-3", "--loss-weight", weight]
    common += ["--output", "out", "--accumulate", "2"]
    half = [*common, "--max-steps", str(steps // 2), "--save-every", str(steps // 2)]
    rest = [*common, "--max-steps", str(steps), "--resume", f"out/checkpoint-{steps // 2}"]
    losses = trained(accelerated, tmp_path, num_ranks, [half, rest], steps)
    ids = samples(dataset, demo[1], num_ranks, steps, accumulate=2)
    encoder = PackedTaskEncoder(dataset, str(demo[1]))
    members = members_of(dataset, encoder, [name for step in ids for name in step])
    model = tiny_model(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.0)
    expected = losses_alone(model, optimizer, members, ids, weight)
    assert len(losses) == steps
    largest = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
    print(f"{num_ranks} ranks, {steps} steps, {weight}: {largest:.1e}, from {expected[0]:.3f} to {expected[-1]:.3f}")
    assert largest <= 1e-5


@pytest.mark.slow
def test_what_accelerate_does_to_a_batch(accelerated: Callable[..., str], tmp_path: Path) -> None:
    """`tests/support/with_accelerate.py`, in that environment."""
    options = ("-p", "no:cacheprovider", "-W", "ignore", f"--basetemp={tmp_path / 'tests'}", f"--rootdir={ROOT}")
    out = accelerated("-m", "pytest", *options, ROOT / "tests" / "support" / "with_accelerate.py", cwd=ROOT)
    assert "passed" in out
    assert "skipped" not in out

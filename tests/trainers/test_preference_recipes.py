"""Packed preference pairs train as TRL's own DPOTrainer trains the same ids, on one rank, on two, and after a stop."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_pack.config import Rope
from energon_pack.plan.settings import GroupBy, SharedBeginnings
from energon_pack.samples.settings import PreferenceTake
from energon_pack.steps.topology import Topology
from support.packed import demo_config, packed
from support.pairs import CLASSES, PairsOfClass, pack_pairs_of, write_pairs
from support.running import ROOT, command, need_torchvision
from support.trainers.stacks import STACKS, run

pytestmark = pytest.mark.slow
NUM_PAIRS = 44


@pytest.fixture(scope="module")
def model(demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2.5-VL with the demo's processor."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("model") / "model"
    done = command(ROOT / "recipes" / "tiny_folder.py", demo[1], folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def sets(model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[SharedBeginnings, Path]:
    """Pairs of texts, several turns, thoughts, images and videos, with and without shared prompts."""
    folder, made = tmp_path_factory.mktemp("pairs"), {}
    (folder / "source").mkdir()
    source = write_pairs(folder / "source", NUM_PAIRS, num_videos=4, thinks=True)
    for share in (SharedBeginnings.prefix, SharedBeginnings.none):
        settings: dict[str, Any] = {
            "source__take": PreferenceTake.both,
            "packing__share": share,
            "model__rope": Rope.qwen2_5_vl,
        }
        settings |= {"packing__max_token_len": 1024, "packing__share_min_tokens": 1}
        settings |= {"packing__group_by": GroupBy.none, "packing__topology": Topology(data_parallel=2)}
        made[share] = packed(demo_config((source, model), cache, folder / share.value, source, **settings))
    return made


@pytest.fixture(scope="module")
def packs_of(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PairsOfClass]:
    """Packs of a model class, made once."""
    return functools.cache(lambda name: pack_pairs_of(name, NUM_PAIRS, real, tmp_path_factory.mktemp(name)))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "hinge"])
def test_packs_have_the_loss_and_gradients_of_trl(
    name: str, kind: str, packs_of: Callable[[str], PairsOfClass], tmp_path: Path
) -> None:
    """In float64 they are equal; in float32 no farther from that than TRL is.

    A loss is no number of float32 nearer than its last bit, and the lengths of two differences, each the sum of random
    roundings, differ by some percent: 0.76 to 1.07 times TRL's were seen.
    """
    made = packs_of(name)
    words = [made.datasets["shared"], made.datasets["whole"], made.model, kind]
    try:
        found = run(STACKS["trl"], "dpo_identity.py", words, tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    print(json.dumps(found))
    assert found["pairs"] == NUM_PAIRS
    assert found["tokens"]["shared"] < found["tokens"]["whole"] < found["tokens"]["TRL, padded"]
    ways = found["kinds"][kind]
    _, theirs, _, their_gradients = ways["TRL float32"]
    for way in ("shared", "whole"):
        _, *far = ways[f"{way} float64"]
        assert max(far) <= 1e-6, way
        _, loss, _, gradients = ways[f"{way} float32"]
        assert loss <= max(theirs, 2**-24), way
        assert gradients <= 1.1 * their_gradients, way


def trained(words: list[Any], ranks: int, folder: Path, name: str) -> list[tuple[float, list[str]]]:
    """The loss of each step of the recipe, and the pairs of all its ranks."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    recipe = ROOT / "recipes" / "train_preference.py"
    every = [*launch, recipe, *words, "--num-workers", 0, "--ids", folder / name]
    done = subprocess.run(
        [sys.executable, *map(str, every)], cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    notes = [
        [json.loads(line) for line in Path(f"{folder / name}.{rank}").read_text().splitlines()] for rank in range(ranks)
    ]
    return [
        (own[0]["loss"], sorted(one for note in own for row in note["ids"] for one in row))
        for own in zip(*notes, strict=True)
    ]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "first"), [("sigmoid", 0.693147), ("ipo", 25), ("hinge", 1)])
def test_ranks_with_unequal_pairs_train_alike_and_go_on_on_others(
    model: Path, sets: dict[SharedBeginnings, Path], tmp_path: Path, kind: str, first: float
) -> None:
    """One rank with two packs a step, two ranks with one each, and one rank that goes on after two."""
    folder, reference = sets[SharedBeginnings.prefix], tmp_path / "reference.npz"
    own: list[str | Path] = ["--model", model, "--device", "cpu"]
    done = command(ROOT / "recipes" / "reference_logps.py", folder, reference, *own, cwd=ROOT)
    assert f"{NUM_PAIRS} pairs" in done.stdout, done.stderr
    words = [folder, reference, *own, "--lr", 2e-3, "--max-steps", 4, "--loss", kind]
    one = trained([*words, "--accumulate", 2], 1, tmp_path, "one")
    two = trained([*words, "--save", tmp_path / "saved", "--save-every", 2], 2, tmp_path, "two")
    notes = [Path(f"{tmp_path / 'two'}.{rank}").read_text().splitlines() for rank in range(2)]
    counts = [[sum(map(len, json.loads(line)["ids"])) for line in lines] for lines in notes]
    assert counts[0] != counts[1]
    for step, ((loss, ids), (other, others)) in enumerate(zip(one, two, strict=True), 1):
        assert ids == others, step
        assert loss == pytest.approx(other, rel=1e-5), step
    assert one[0][0] == pytest.approx(first, rel=1e-5)
    assert one[-1][0] < one[0][0]
    (tmp_path / "saved" / "step_00000004").rename(tmp_path / "later")
    again = trained([*words, "--accumulate", 2, "--save", tmp_path / "saved", "--resume"], 1, tmp_path, "again")
    assert [ids for _, ids in again] == [ids for _, ids in two[2:]]
    assert [loss for loss, _ in again] == pytest.approx([loss for loss, _ in two[2:]], rel=1e-5)


def test_a_trainer_of_trl_trains_on_packs(model: Path, sets: dict[SharedBeginnings, Path], tmp_path: Path) -> None:
    """Its first step has the loss of a policy that is the reference, over all pairs of the step: log 2."""
    folder, reference = sets[SharedBeginnings.prefix], tmp_path / "reference.npz"
    words: list[str | Path] = [folder, reference, "--model", model, "--device", "cpu"]
    done = command(ROOT / "recipes" / "reference_logps.py", *words, cwd=tmp_path)
    assert f"{NUM_PAIRS} pairs" in done.stdout, done.stderr
    own: list[Any] = [ROOT / "recipes" / "trainers" / "with_trl_dpo.py", folder, model, reference]
    own += ["--gradient_accumulation_steps", 2, "--use_cpu", "true", "--bf16", "false", "--report_to", "none"]
    own += ["--logging_steps", 1, "--learning_rate", 2e-3, "--lr_scheduler_type", "constant"]
    try:
        losses = run(STACKS["trl"], "dpo_recipe.py", own, tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    print(losses)
    assert losses[0] == pytest.approx(0.693147, abs=1e-4)
    assert min(losses) < losses[0]

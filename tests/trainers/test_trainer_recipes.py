"""Recipes with each trainer's own code: every step has the loss of its samples alone, before a stop and after it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.running import need_torchvision
from support.trainers.sets import TrainedOn, media, texts
from support.trainers.stacks import STACKS, run

pytestmark = pytest.mark.slow

STEPS = 20


@pytest.fixture(scope="module", params=[media, texts], ids=["media", "texts"])
def made(
    request: pytest.FixtureRequest, demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainedOn:
    need_torchvision()
    made: TrainedOn = request.param(demo, cache, tmp_path_factory.mktemp("trainers"))
    return made


def train(name: str, made: TrainedOn, folder: Path, ranks: int, **settings: Any) -> list[float]:
    """Train the steps of a recipe; their losses, each of which is that of its samples alone."""
    stack = STACKS[name]
    words = stack.words(made.packs, made.model, folder, {"max_steps": STEPS, "save_steps": STEPS // 2} | settings)
    try:
        noted = run(stack, "watched.py", words, folder, ranks)
    except OSError as error:
        pytest.skip(str(error))
    pairs = list(zip(noted["losses"], noted["expected"], strict=True))
    largest = max(abs(loss - expected) for loss, expected in pairs)
    print(f"{name}, {ranks} ranks, {len(pairs)} steps: {largest:.1e}; {noted['checks']}")
    assert largest <= 1e-5
    assert pairs[-1][0] < pairs[0][0]
    assert all(line.startswith("✓") and "in the order of as_dataset" in line for line in noted["checks"])
    losses: list[float] = noted["losses"]
    return losses


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", STACKS)
def test_steps_have_the_loss_of_their_samples_and_go_on_where_they_stopped(
    made: TrainedOn, tmp_path: Path, name: str, ranks: int
) -> None:
    whole = train(name, made, tmp_path, ranks)
    assert len(whole) == STEPS
    checkpoint = str(tmp_path / "out" / f"checkpoint-{STEPS // 2}")
    settings: dict[str, Any] = {"resume_from_checkpoint": checkpoint}
    if STACKS[name].model:
        settings[STACKS[name].model] = checkpoint
    rest = train(name, made, tmp_path, ranks, **settings)
    assert rest == pytest.approx(whole[STEPS // 2 :], abs=1e-6)


def test_the_tiny_model_is_in_float32(made: TrainedOn) -> None:
    """In bfloat16 no difference below 1e-2 would show."""
    assert json.loads((made.model / "config.json").read_text())["dtype"] == str(torch.float32).removeprefix("torch.")

"""Recipes with each trainer's own code: every step has the loss of its samples alone, before a stop and after it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from support.running import need_torchvision
from support.trainers.sets import TrainedOn, lazy_settings, media, texts
from support.trainers.stacks import STACKS, run

pytestmark = pytest.mark.slow

STEPS = 20
MAKERS = {"media": media, "texts": texts}


@pytest.fixture(scope="module", params=MAKERS)
def made(
    request: pytest.FixtureRequest, demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> TrainedOn:
    need_torchvision()
    return MAKERS[request.param](demo, cache, tmp_path_factory.mktemp("trainers"))


def train(name: str, made: TrainedOn, folder: Path, ranks: int, hooks: str = "", **settings: Any) -> list[float]:
    """Train the steps of a recipe; their losses, each of which is that of its samples alone.

    Args:
        hooks: what is done to the recipe first, by its name in `support/trainers/hooks.py`.
    """
    own = {"max_steps": STEPS, "save_steps": STEPS // 2} | ({"ddp_backend": "gloo"} if ranks > 1 else {})
    words = STACKS[name].words(made.packs, made.model, folder, own | settings)
    more = {"HOOKS": hooks, "LAZY": lazy_settings(made), "WATCH_WEIGHT": "sample" if hooks == "by_sample" else ""}
    try:
        noted = run(STACKS[name], "watched.py", words, folder, ranks, **more)
    except OSError as error:
        pytest.skip(str(error))
    pairs = list(zip(noted["losses"], noted["expected"], strict=True))
    largest = max(abs(loss - expected) for loss, expected in pairs)
    print(f"{name} {hooks}, {ranks} ranks, {len(pairs)} steps: {largest:.1e}; {noted['checks']}")
    assert largest <= 1e-5
    assert pairs[-1][0] < pairs[0][0]
    order = "a stream for" if hooks == "stream" else "in the order of as_dataset"
    assert all(line.startswith("✓") and order in line for line in noted["checks"])
    losses: list[float] = noted["losses"]
    return losses


def train_twice(name: str, made: TrainedOn, folder: Path, ranks: int, hooks: str = "") -> None:
    """Train, and once more from the checkpoint in the middle."""
    whole = train(name, made, folder, ranks, hooks)
    assert len(whole) == STEPS
    checkpoint = str(folder / "out" / f"checkpoint-{STEPS // 2}")
    for file in made.model.glob("preprocessor_config.json"):  # axolotl saves none
        shutil.copy(file, checkpoint)
    model = {STACKS[name].model: checkpoint} if STACKS[name].model else {}
    rest = train(name, made, folder, ranks, hooks, resume_from_checkpoint=checkpoint, **model)
    assert rest == pytest.approx(whole[STEPS // 2 :], abs=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", STACKS)
def test_steps_have_the_loss_of_their_samples_and_go_on_where_they_stopped(
    made: TrainedOn, tmp_path: Path, name: str, ranks: int
) -> None:
    train_twice(name, made, tmp_path, ranks)


@pytest.mark.parametrize("made", ["texts"], indirect=True)
@pytest.mark.parametrize("hooks", ["lazy", "stream"])
def test_packs_made_while_loading_go_on_where_they_stopped(made: TrainedOn, tmp_path: Path, hooks: str) -> None:
    """TRL takes Hugging Face's datasets alone; of a stream each rank reads its own packs, and skips what it had."""
    train_twice("trl", made, tmp_path, 2, hooks)


@pytest.mark.parametrize("made", ["media"], indirect=True)
@pytest.mark.parametrize("name", STACKS)
def test_steps_have_the_mean_of_their_samples_losses(made: TrainedOn, tmp_path: Path, name: str) -> None:
    """`weighted(trainer)`, with `loss_weight="sample"`, in two ranks."""
    train(name, made, tmp_path, 2, "by_sample", max_steps=6)


@pytest.mark.parametrize("made", ["texts"], indirect=True)
def test_fsdp2_has_the_loss_of_the_samples(made: TrainedOn, tmp_path: Path) -> None:
    sharding = {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"],
        "cpu_ram_efficient_loading": False,
    }
    train("trainer", made, tmp_path, 2, fsdp="full_shard auto_wrap", fsdp_config=sharding, save_strategy="no")


def test_the_tiny_model_is_in_float32(made: TrainedOn) -> None:
    """In bfloat16 no difference below 1e-2 would show."""
    assert json.loads((made.model / "config.json").read_text())["dtype"] == str(torch.float32).removeprefix("torch.")

"""Wrong ways into each trainer's real code: each is refused, or noticed, before training, in one line."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.running import ROOT, need_torchvision
from support.trainers.environments import python_of
from support.trainers.sets import TrainedOn, lazy_settings, media
from support.trainers.stacks import RECIPES, STACKS, Settings

pytestmark = pytest.mark.slow

#: what is imported once, before each way forks
MODULES = {
    "trl": "trl",
    "trainer": "transformers",
    "swift": "swift.pipelines.train.sft",
    "llamafactory": "llamafactory.train.tuner",
    "axolotl": "axolotl.train",
}
ALL = tuple(STACKS)
RIGHT = "^✓ "
SHUFFLED = "^✓ .*shuffled by the trainer"


@dataclass(frozen=True)
class Way:
    """A way into some trainers, and what is said to it."""

    said: str
    settings: Settings = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    ranks: int = 1
    stacks: tuple[str, ...] = ALL


def but(*names: str) -> tuple[str, ...]:
    return tuple(name for name in ALL if name not in names)


TWO_A_BATCH = {"per_device_train_batch_size": 2}
ACCELERATE = but("swift")  # its loaders are its own
WAYS: dict[str, Way] = {
    "as the recipe": Way(RIGHT),
    "no positions": Way("position_ids are missing", hooks=("no_positions",)),
    "a 2-D mask": Way("a 2-D attention_mask of ones", hooks=("mask_2d",)),
    "the trainer's collator": Way("batches are made by .*data_collator=packs.collator", hooks=("their_collator",)),
    "remove_unused_columns": Way(
        "columns away that name packs", {"remove_unused_columns": True}, stacks=("trl", "trainer")
    ),
    "no denominator": Way("the mean of the packs' means", hooks=("no_denominator",), stacks=but("swift")),
    "label smoothing": Way("the loss is smoothed", {"label_smoothing_factor": 0.1}),
    "tokenised again": Way("nothing to tokenise", hooks=("retokenises",), stacks=but("trl", "swift")),
    "tokenised again by TRL": Way("nothing to tokenise", {"dataset_kwargs": {"max_length": 0}}, stacks=("trl",)),
    "dispatch_batches": Way(
        "cuts each tensor", {"accelerator_config": {"dispatch_batches": True}}, ranks=2, stacks=ACCELERATE
    ),
    "two a batch, two workers": Way(RIGHT, {**TWO_A_BATCH, "dataloader_num_workers": 2}, stacks=but("axolotl")),
    "a sampler that knows ranks": Way(
        "40 of 80 packs reach no rank", hooks=("distributed_sampler",), ranks=2, stacks=ACCELERATE
    ),
    "PackSampler": Way(
        "deals its share once more", hooks=("pack_sampler",), ranks=2, stacks=("trainer", "llamafactory")
    ),
    "ranks apart": Way("average_tokens_across_devices=True", {"average_tokens_across_devices": False}, ranks=2),
    "packs made while loading": Way(RIGHT, hooks=("lazy",), ranks=2, stacks=but("axolotl")),
    "epochs over rows of one": Way(
        "^✓ .*as_dataset\\(epochs=3\\)", {"max_steps": -1, "num_train_epochs": 3}, stacks=but("axolotl")
    ),
}


@pytest.fixture(scope="module")
def made(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedOn:
    need_torchvision()
    return media(demo, cache, tmp_path_factory.mktemp("ways"))


def say(name: str, ways: dict[str, Way], made: TrainedOn, folder: Path) -> dict[str, str]:
    """What each way is told in a stack's environment."""
    stack = STACKS[name]
    try:
        python = python_of(stack.environment)
    except OSError as error:
        pytest.skip(str(error))
    given: dict[str, Any] = {}
    for number, (key, way) in enumerate(ways.items()):
        own = folder / str(number)
        own.mkdir()
        settings = {"max_steps": 20} | ({"ddp_backend": "gloo"} if way.ranks > 1 else {}) | way.settings
        words = [str(word) for word in stack.words(made.packs, made.model, own, settings)]
        given[key] = {"words": words, "folder": str(own), "ranks": way.ranks, "hooks": way.hooks}
    (folder / "ways.json").write_text(json.dumps(given))
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    variables |= {"HOME": str(folder), "PYTHONPATH": f"{ROOT}:{RECIPES}:{ROOT / 'tests'}", "LAZY": lazy_settings(made)}
    script = ROOT / "tests" / "support" / "trainers" / "tried.py"
    command = [python, "-W", "ignore", script, folder / "said.json", MODULES[name], folder / "ways.json"]
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=variables, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, str] = json.loads((folder / "said.json").read_text())
    return said


@pytest.mark.parametrize("name", STACKS)
def test_each_way_is_told_what_it_loses(made: TrainedOn, tmp_path: Path, name: str) -> None:
    ways = {key: way for key, way in WAYS.items() if name in way.stacks}
    said = say(name, ways, made, tmp_path)
    print("\n".join(f"{name}, {key}: {line}" for key, line in said.items()))
    wrong = {key: said[key] for key, way in ways.items() if not re.search(way.said, said[key])}
    assert not wrong

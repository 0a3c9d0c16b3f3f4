"""`guard(model, batches=…)` over batches that trainers make themselves: which set-ups let samples see each other.

Each trainer runs its own packing and collator on its own samples. What it passes to the model is what the guard tries;
then it trains a step, guarded. flash-attention is emulated: see `emulated_flash.py`.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from support.running import need_torchvision
from support.trainers.sets import TrainedOn, media, texts
from support.trainers.stacks import said_to
from support.trainers.theirs import Way, words_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NOWHERE = "says nowhere what its members are"
MASK = r"mixes the members of batch 0: .* a 2-D attention_mask of ones"
PACKING = {"packing": True}
NEAT = {"neat_packing": True}
SAMPLE = {"sample_packing": True}
FOUR = {"padding_free": True, "per_device_train_batch_size": 4}
WAYS: dict[str, dict[str, Way]] = {
    "trl": {
        "packing": Way("trl", PACKING),
        "packing, flash": Way("trl", PACKING, flash=True),
        "padding_free": Way("trl", {**FOUR, "max_length": None}),
        "packing_strategy=wrapped": Way("trl", {**PACKING, "packing_strategy": "wrapped"}, said=NOWHERE),
        "packing, a 2-D mask": Way("trl", PACKING, ("add_mask",), MASK),
        "packing, a 2-D mask, flash": Way("trl", PACKING, ("add_mask",), flash=True),
        "packing, no positions": Way("trl", PACKING, ("drop_positions",), "mixes the .* position_ids are missing"),
        "packing, input_ids and labels alone": Way("trl", PACKING, ("drop_layout",), NOWHERE),
        "packing, M-RoPE": Way("trl", PACKING, said="mixes the members of batch 0", images=True),
        "packing, M-RoPE, flash": Way("trl", PACKING, images=True, flash=True),
    },
    "swift": {
        "packing, flash": Way("swift", PACKING, flash=True),
        "padding_free, flash": Way("swift", FOUR, flash=True),
        "packing": Way("swift", PACKING, said='ValueError: The "packing" feature requires a flash attention'),
        "packing, use_logits_to_keep": Way(
            "swift", {**PACKING, "use_logits_to_keep": True}, said="those of some tokens alone", flash=True
        ),
        "packing, a 2-D mask, flash": Way("swift", PACKING, ("add_mask",), flash=True),
        "packing, no positions, flash": Way("swift", PACKING, ("drop_positions",), NOWHERE, flash=True),
        "packing, M-RoPE, flash": Way("swift", PACKING, images=True, flash=True),
    },
    "llamafactory": {
        "neat_packing": Way("llamafactory", NEAT),
        "packing": Way("llamafactory", PACKING, said=MASK),
        "neat_packing, a 2-D mask": Way("llamafactory", NEAT, ("add_mask",), MASK),
        "neat_packing, no positions": Way("llamafactory", NEAT, ("drop_positions",), NOWHERE),
        "neat_packing, M-RoPE": Way("llamafactory", NEAT, said="can't be tried", images=True),
    },
    "axolotl": {
        "sample_packing": Way("axolotl", SAMPLE),
        "sample_packing, flash": Way("axolotl", SAMPLE, flash=True),
        "batch_flattening, flash": Way("axolotl", {"batch_flattening": True, "micro_batch_size": 4}, flash=True),
        "sample_packing, a 2-D mask": Way("axolotl", SAMPLE, ("add_mask",), MASK),
        "sample_packing, no positions": Way("axolotl", SAMPLE, ("drop_positions",), NOWHERE),
        "sample_packing, M-RoPE": Way("axolotl", SAMPLE, said="mixes the members of batch 0", images=True),
    },
}


@pytest.fixture(scope="module")
def of_texts(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedOn:
    return texts(demo, cache, tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def of_media(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedOn:
    need_torchvision()
    return media(demo, cache, tmp_path_factory.mktemp("media"))


@pytest.mark.parametrize("name", WAYS)
def test_their_own_batches(of_texts: TrainedOn, of_media: TrainedOn, tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {}
    for number, (key, way) in enumerate(WAYS[name].items()):
        folder = tmp_path / str(number)
        words = words_of(way, (of_media if way.images else of_texts).model, folder)
        hooks = [*way.hooks, "guard_their_batches", *(["emulate_flash"] if way.flash else [])]
        own = {"words": words, "folder": str(folder), "ranks": 1, "hooks": hooks}
        given[key] = {**own, "hooks_of": "support.trainers.their_hooks"}
    try:
        said = said_to(name, given, tmp_path, ACCELERATE_USE_CPU="true", MODELSCOPE_CACHE=str(tmp_path))
    except OSError as error:
        pytest.skip(str(error))
    print("\n".join(f"{name}, {key}: {line}" for key, line in said.items()))
    assert not {key: said[key] for key, way in WAYS[name].items() if not re.search(way.said, said[key])}

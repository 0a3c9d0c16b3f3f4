"""Wrong ways into each trainer's real code: each is refused, or noticed, before training, in one line."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.running import need_torchvision
from support.trainers.sets import TrainedOn, lazy_settings, media
from support.trainers.stacks import STACKS, Settings, said_to

pytestmark = pytest.mark.slow

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


ACCELERATE = but("swift")  # its loaders are its own
DISPATCHED = {"accelerator_config": {"dispatch_batches": True}}
SPLIT = {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 2}
EPOCHS = {"max_steps": -1, "num_train_epochs": 3}
BY_LENGTH = {"train_sampling_strategy": "group_by_length"}
#: what a pack would be cut to if a trainer cut rows
SHORT = {"trl": "max_length", "swift": "max_length", "llamafactory": "cutoff_len", "axolotl": "sequence_len"}

WAYS: dict[str, Way] = {
    "as the recipe": Way(RIGHT),
    "no positions": Way("position_ids are missing", hooks=("no_positions",)),
    "a 2-D mask": Way("a 2-D attention_mask of ones", hooks=("mask_2d",)),
    "the trainer's collator": Way(r"batches are made by .*data_collator=packs\.collator", hooks=("their_collator",)),
    "remove_unused_columns": Way(
        "that name packs", {"remove_unused_columns": True}, stacks=but("swift", "llamafactory")
    ),
    "remove_unused_columns, unheard": Way(RIGHT, {"remove_unused_columns": True}, stacks=("swift", "llamafactory")),
    "no denominator": Way("the mean of the packs' means", hooks=("no_denominator",), stacks=but("swift")),
    "label smoothing": Way("the loss is smoothed", {"label_smoothing_factor": 0.1}, stacks=but("axolotl")),
    "tokenised again": Way("nothing to tokenise", hooks=("retokenises",), stacks=but("trl")),
    "tokenised again, by TRL": Way("nothing to tokenise", {"dataset_kwargs": {"max_length": 0}}, stacks=("trl",)),
    **{f"{knob} of {name}": Way(RIGHT, {knob: 100}, stacks=(name,)) for name, knob in SHORT.items()},
    "dispatch_batches": Way("cuts each tensor", DISPATCHED, ranks=2, stacks=ACCELERATE),
    "split_batches": Way(RIGHT, SPLIT, ranks=2, stacks=("trl", "trainer")),
    "group_by_length": Way(SHUFFLED, BY_LENGTH, stacks=("trl", "trainer")),
    "group_by_length of ms-swift": Way(
        SHUFFLED, {"group_by_length": True, "train_dataloader_shuffle": True}, stacks=("swift",)
    ),
    "a sampler that knows ranks": Way("reach no rank", hooks=("distributed_sampler",), ranks=2, stacks=ACCELERATE),
    "PackSampler": Way("deals its share", hooks=("pack_sampler",), ranks=2, stacks=("trainer", "llamafactory")),
    "ranks apart": Way("devices=True", {"average_tokens_across_devices": False}, ranks=2, stacks=("trl", "trainer")),
    "packs made while loading": Way(RIGHT, hooks=("lazy",), ranks=2, stacks=but("axolotl")),
    "a LazyPackedDataset itself": Way(RIGHT, hooks=("lazy", "packs_as_they_are"), stacks=("trainer", "llamafactory")),
    "a LazyPackedDataset itself, in ms-swift": Way(
        "set_epoch never arrives", hooks=("lazy", "packs_as_they_are"), stacks=("swift",)
    ),
    "a stream": Way("cuts each tensor", hooks=("stream",), ranks=2, stacks=("trainer",)),
    "a stream in TRL": Way("a stream for 2 ranks", hooks=("stream",), ranks=2, stacks=("trl",)),
    "a stream in ms-swift": Way("its own share alone", hooks=("stream",), ranks=2, stacks=("swift",)),
    "epochs over rows of one": Way(r"^✓ .*as_dataset\(epochs=3\)", EPOCHS, stacks=but("axolotl")),
    "packing of TRL": Way("collator is not supported", {"packing": True}, stacks=("trl",)),
    "packing of ms-swift": Way("requires a flash attention", {"packing": True}, stacks=("swift",)),
    "packing of LLaMA-Factory": Way(RIGHT, {"packing": True, "neat_packing": True}, stacks=("llamafactory",)),
    "use_asft_loss": Way("gets no positions", {"use_asft_loss": True}, stacks=("llamafactory",)),
    "use_dft_loss": Way("takes the place", {"use_dft_loss": True}, stacks=("llamafactory",)),
}


@pytest.fixture(scope="module")
def made(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedOn:
    need_torchvision()
    return media(demo, cache, tmp_path_factory.mktemp("ways"))


def say(name: str, ways: dict[str, Way], made: TrainedOn, folder: Path) -> dict[str, str]:
    """What each way is told in a stack's environment."""
    given: dict[str, Any] = {}
    for number, (key, way) in enumerate(ways.items()):
        own = folder / str(number)
        own.mkdir()
        settings = {"max_steps": 20} | ({"ddp_backend": "gloo"} if way.ranks > 1 else {}) | way.settings
        words = [str(word) for word in STACKS[name].words(made.packs, made.model, own, settings)]
        given[key] = {"words": words, "folder": str(own), "ranks": way.ranks, "hooks": way.hooks}
    try:
        return said_to(name, given, folder, LAZY=lazy_settings(made))
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", STACKS)
def test_each_way_is_told_what_it_loses(made: TrainedOn, tmp_path: Path, name: str) -> None:
    ways = {key: way for key, way in WAYS.items() if name in way.stacks}
    said = say(name, ways, made, tmp_path)
    print("\n".join(f"{name}, {key}: {line}" for key, line in said.items()))
    wrong = {key: said[key] for key, way in ways.items() if not re.search(way.said, said[key])}
    assert not wrong

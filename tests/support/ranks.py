"""Runs of a recipe by several ranks of one machine: `python ranks.py RECIPE NUM_RANKS RUNS`, RUNS being a JSON list.

Each run is the ranks that train nothing, and the recipe's arguments: `[[1], ["packed", "--accumulate", "2"]]`.
Everything is imported once and the ranks are forked: eight of them start as fast as one.
"""

import importlib
import json
import os
import sys
import warnings
from typing import Any
from unittest import mock

import torch

from energon_pack.loading.task_encoder import EncodedPack, PackedTaskEncoder
from energon_pack.templates.full_processor import prepare_torchvision
from energon_pack.training.batch import PackedBatch
from energon_pack.training.layout import IGNORE
from support.ports import free_ports


class Muted(PackedTaskEncoder):
    """Batches that train nothing."""

    def batch(self, samples: list[EncodedPack]) -> PackedBatch:
        batch: PackedBatch = super().batch(samples)
        batch["labels"] = torch.full_like(batch["labels"], IGNORE)
        batch["loss_weight"] = torch.zeros_like(batch["loss_weight"])
        return batch


def run(recipe: Any, runs: list[tuple[list[int], list[str]]], rank: int, num_ranks: int, ports: list[int]) -> None:
    """All runs of one rank."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    for (muted, arguments), port in zip(runs, ports, strict=True):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        encoder = Muted if rank in muted else PackedTaskEncoder
        with mock.patch.object(sys, "argv", ["", *arguments]), mock.patch.object(recipe, "PackedTaskEncoder", encoder):
            recipe.main()


def main() -> None:
    warnings.filterwarnings("ignore")
    prepare_torchvision()
    recipe, num_ranks, runs = importlib.import_module(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    assert hasattr(importlib.import_module("transformers"), "Qwen2_5_VLForConditionalGeneration")  # imports it
    ports = free_ports(len(runs))
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if child == 0:
            run(recipe, runs, rank, num_ranks, ports)
            return
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


if __name__ == "__main__":
    main()

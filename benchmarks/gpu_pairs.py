"""Preference pairs on a GPU: `python benchmarks/gpu_pairs.py`, padded, in packs, and in packs with shared prompts.

A Qwen3-VL of 2B's size, random weights, runs DPO's loss forward and backward over the same 64 pairs in each way,
without an optimizer. Tokens are those of both sides, prompts counted twice, so that rates compare. `--dry`: on a CPU.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from gpu_model import REAL, Padded, config_of, demo_records, make_model, sources_of, wait_for
from megatron.energon import WorkerConfig
from pairs import forms, pairs_of
from rich.console import Console
from rich.table import Table
from timing import at_least, at_most

from energon_pack import PackedDataset, PackedTaskEncoder, guard, member_logps, preference_loss, use_tree_attention
from energon_pack.config.compose import compose_config
from energon_pack.pack import pack
from energon_pack.training.batch import PackedBatch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from packed_data import train_loader

#: the first is what others are compared with
WAYS = ("padded, a row a side", "packed, whole pairs", "packed, shared prompts")
NUM_PAIRS = 64
#: of a padded forward
MAX_PLACES = 8192


def demo_pairs(folder: Path) -> list[dict[str, Any]]:
    """The demo's first questions and answers; rejected is the answer of another."""
    asked = [one for one in demo_records(folder) if one["messages"][0]["role"] == "user"]
    texts = [[turn["content"] for turn in one["messages"][:2]] for one in asked]
    return [
        {"images": one["images"], "asked": ask, "chosen": answer, "rejected": other}
        for one, (ask, answer), (_, other) in zip(asked, texts, texts[1:] + texts[:1], strict=True)
        if answer != other
    ]


def make_pairs(folder: Path, real: Path | None, length: int) -> tuple[list[Path], str]:
    """Packs of the pairs, whole and with shared prompts; and their processor."""
    _, processor = sources_of(folder, real, "qwen3_vl")
    every = pairs_of(real) if real else demo_pairs(folder)
    (folder / "lines").mkdir()
    media = (real / "data" / "image_mathv").absolute() if real else folder
    lines = forms(every[:: -(-len(every) // NUM_PAIRS)], media, folder / "lines")["here"]
    words = ["+model=qwen3_vl", f"model.processor={processor}", f"source.path={lines}", "source.take=both"]
    words += [f"output.dir={folder}", f"packing.max_token_len={length}", "executor.num_workers=1"]
    for share in ("none", "prefix"):
        pack(compose_config([*words, f"packing.share={share}", f"output.name={share}"]))
    return [folder / "none", folder / "prefix"], processor


def batches_of(dataset: Path, encoder: PackedTaskEncoder, processor: str) -> list[PackedBatch]:
    """Every pack once, each as the pieces that go through a model."""
    stream = iter(train_loader(dataset, encoder, WorkerConfig(rank=0, world_size=1, num_workers=0)))
    every = islice(stream, len(PackedDataset(dataset, processor)))
    found = [piece for batch in every for piece in batch.get("pieces", [batch])]
    for piece in found:
        piece.setdefault("preference_pairs", torch.arange(sum(map(len, piece["sample_ids"]))).view(-1, 2))
    return found


def run(model: Any, batches: Sequence[PackedBatch]) -> tuple[float, float]:
    """Seconds of a forward and backward of all batches, and the mean loss of their pairs."""
    total = torch.tensor(float(sum(len(batch["preference_pairs"]) for batch in batches)))
    wait_for(model.device)
    start, summed = time.perf_counter(), 0.0
    for batch in batches:
        moved = batch.to(model.device)
        logps = member_logps(model(**moved.model_inputs(model)).logits, moved)
        loss = preference_loss(logps, torch.zeros_like(logps), moved, total=total)
        loss.backward()
        summed += float(loss.detach())
    wait_for(model.device)
    return time.perf_counter() - start, summed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="a tiny model on a CPU, and the demo's pairs")
    is_dry = parser.parse_args().dry
    device, dtype = (torch.device("cpu"), torch.float32) if is_dry else (torch.device("cuda"), torch.bfloat16)
    plain = "flash_attention_2" if find_spec("flash_attn") and not is_dry else "sdpa"
    real = REAL if REAL.is_dir() and not is_dry else None
    table = Table(
        "preference pairs", "attention", "tokens/s", "places", "loss", "beside padded: goal, holds", "loss, holds"
    )
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stdout(sys.stderr):
            (whole, shared), processor = make_pairs(Path(folder), real, 1024 if is_dry else 4096)
        for way, kind, dataset in zip(WAYS, (Padded, *[PackedTaskEncoder] * 2), (whole, whole, shared), strict=True):
            encoder = kind(dataset, processor, layout="neat")
            if isinstance(encoder, Padded):  # a row alone is no pair: two rows are
                encoder.max_places, encoder.together, encoder.encoder.pairs = MAX_PLACES, 2, None
            attention = "sdpa" if dataset == shared else plain
            model = make_model(config_of("tiny" if is_dry else "full", encoder), attention, dtype, device, False)
            if dataset == shared:
                use_tree_attention(model)
            guard(model, encoder, trust=type(model).__name__)
            batches = batches_of(dataset, encoder, processor)
            run(model, batches[:2])  # no measure: kernels are chosen
            seconds, loss = run(model, batches)
            if way == WAYS[0]:
                first, tokens = (seconds, loss), sum(int((batch["doc_ids"] > 0).sum()) for batch in batches)
            goal = "no goal on a CPU" if is_dry else at_least(first[0] / seconds, 1, "×")
            apart = abs(loss - first[1]) / first[1]
            beside = (f"{first[0] / seconds:.2f}×: {goal}", f"{apart:.1e} {at_most(apart, 1e-4 if is_dry else 1e-2)}")
            places = sum(batch["input_ids"].numel() for batch in batches)
            cells = f"{tokens / seconds:,.0f}", f"{places:,}", f"{loss:.4f}", *(beside if way != WAYS[0] else ())
            table.add_row(way, "trees" if dataset == shared else attention, *cells)
            del model
    print(f"{tokens:,} tokens of {'the real sets' if real else 'the demo'}, {dtype}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()

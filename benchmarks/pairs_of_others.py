"""Batches of preference pairs by trainers' own code: `python benchmarks/pairs_of_others.py trl|swift MODEL PAIRS LEN`.

To be run in an environment that has TRL, or ms-swift; `benchmarks/pairs.py` does. PAIRS are lines as TRL reads them, or
as ms-swift does; MODEL is a folder with a tiny model and a published processor, LEN the length of ms-swift's packs.
One line of JSON is printed for each batch: `sequences`, the tokens of each that attends to itself alone, padding
counted; `padding`, the tokens of it; `grids`, of each image that is computed; `pairs`.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "USE_HF": "1"}

from energon_pack import prepare_torchvision

prepare_torchvision()  # before transformers is imported

PAIRS_OF_A_BATCH = 4
#: TRL cuts longer sides, unless it is told otherwise; `cut` counts the pairs
DEFAULT_LENGTH = 1024


def by_trl(model: str, pairs: str, _: int) -> Iterator[dict[str, Any]]:
    """Batches of DPOTrainer's own loader: its dataset, its collator, its order."""
    from datasets import Dataset, Image, Sequence
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from trl import DPOConfig, DPOTrainer

    rows = [json.loads(line) for line in Path(pairs).read_text().splitlines()]
    dataset = Dataset.from_list(rows).cast_column("images", Sequence(Image()))
    settings: dict[str, Any] = {"report_to": "none", "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    size = {"per_device_train_batch_size": PAIRS_OF_A_BATCH, "max_length": None, "dataloader_drop_last": False}
    trainer = DPOTrainer(
        AutoModelForImageTextToText.from_pretrained(model),
        args=DPOConfig("out", **settings, **size),
        train_dataset=dataset,
        processing_class=AutoProcessor.from_pretrained(model),
    )
    for batch in trainer.get_train_dataloader():
        mask = batch["attention_mask"]
        yield {
            "sequences": [mask.shape[1]] * len(mask), "padding": int((mask == 0).sum()), "pairs": len(mask) // 2,
            "grids": batch["image_grid_thw"].tolist() if "image_grid_thw" in batch else [],
            "cut": int((mask.sum(1) > DEFAULT_LENGTH).view(2, -1).any(0).sum()),
        }  # fmt: skip


def by_swift(model: str, pairs: str, length: int) -> Iterator[dict[str, Any]]:
    """Packs of ms-swift's own DPO: its template, its packing, its collator; no model is loaded."""
    from swift.pipelines.train.rlhf import SwiftRLHF

    class WithoutModel(SwiftRLHF):
        def _prepare_model_tokenizer(self) -> None:
            self.model, self.processor = self.args.get_model_processor(load_model=False)

    words: dict[str, Any] = {
        "rlhf_type": "dpo", "model": model, "model_type": "qwen2_5_vl", "template": "qwen2_5_vl", "dataset": pairs,
        "packing": "true", "packing_length": length, "max_length": length, "attn_impl": "flash_attn",
        "torch_dtype": "float32", "use_cpu": "true", "split_dataset_ratio": 0, "check_model": "false",
        "output_dir": "out", "dataset_num_proc": 1, "report_to": "none", "lazy_tokenize": "false",
    }  # fmt: skip
    pipeline = WithoutModel([word for name, value in words.items() for word in (f"--{name}", str(value))])
    packs, _ = pipeline._prepare_dataset()
    for number in range(len(packs)):
        batch = pipeline.template.data_collator([packs[number]])
        positions = batch["text_position_ids"] if "text_position_ids" in batch else batch["position_ids"]
        starts = (positions.flatten() == 0).nonzero().flatten().tolist()
        ends = [*starts[1:], positions.shape[-1]]
        grids = batch.get("image_grid_thw")
        yield {
            "sequences": [end - start for start, end in zip(starts, ends, strict=True)], "padding": 0,
            "pairs": len(starts) // 2, "grids": [] if grids is None else grids.tolist(),
        }  # fmt: skip


if __name__ == "__main__":
    kind, model, pairs, length = sys.argv[1:5]
    for batch in {"trl": by_trl, "swift": by_swift}[kind](model, pairs, int(length)):
        print(json.dumps(batch), flush=True)

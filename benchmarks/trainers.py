"""A trainer's own way with samples beside packs, on one CPU: `python benchmarks/trainers.py PACKED MODEL`.

PACKED is a folder of packs, and MODEL a folder with a model of transformers and its processor. TRL has to be installed.
Each way trains one step of TRL's SFTTrainer in float32 that has every sample once, so all ways have the same loss:

- padded: each sample of a batch is a row, padded to the longest; in random order ("by chance"), and grouped by length;
- packed by TRL (models of text only): `packing=True`, TRL's own packs of the same tokens;
- our packs.

Tokens count samples, not padding. Seconds are CPU seconds, include reading and decoding, and are the least of
`--repeats`. The time of `check_trainer`, in which `guard` tries the first batch, has its own column; no other has it.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_pack import PackedDataset, check_trainer, guard, prepare_torchvision
from energon_pack.samples.member import MemberInput

prepare_torchvision()

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

OURS = "our packs"
SETTINGS: dict[str, Any] = {
    "bf16": False,
    "use_cpu": True,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 1,
    "max_length": 100_000,
}


@dataclass(frozen=True)
class Way:
    """One way to give samples to the trainer."""

    name: str
    make: Callable[[], Any]


@dataclass(frozen=True)
class Figures:
    """The figures of one way."""

    loss: float
    num_batches: int
    places: int
    seconds: float
    #: CPU seconds of `check_trainer`, in which `guard` tries the first batch
    checked: float


class Samples:
    """The samples of some packs, each by itself."""

    def __init__(self, packs: PackedDataset, num_packs: int):
        self.packs = packs
        self.rows = packs.as_dataset().select(range(min(num_packs, len(packs))))
        read = [member for number in self.rows["pack"] for member in packs.members(0, number)]
        self.members = [member for member in read if isinstance(member, MemberInput)]
        tokens = [packs.encoder.members.encode_alone(member).tokens for member in self.members]
        self.lens = [len(one) for one in tokens]
        self.texts = {
            "input_ids": [one.ids.tolist() for one in tokens],
            "labels": [one.labels.tolist() for one in tokens],
        }

    def padded(self, rows: list[dict[str, int]]) -> dict[str, Any]:
        """Return a batch as a trainer's own collator makes it: rows padded to the longest, with a mask."""
        encoded = [self.packs.encoder.members.encode_alone(self.members[row["sample"]]) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        ids = [one.tokens.ids for one in encoded]
        media: dict[str, list[torch.Tensor]] = {}
        for one in encoded:
            for name, value in one.media.items():
                media.setdefault(name, []).append(value)
        return {
            "input_ids": pad(ids, batch_first=True),
            "attention_mask": pad([torch.ones_like(one) for one in ids], batch_first=True),
            "labels": pad([one.tokens.labels for one in encoded], batch_first=True, padding_value=-100),
            "mm_token_type_ids": pad([one.tokens.types for one in encoded], batch_first=True),
            **{name: torch.cat(values) for name, values in media.items()},
        }


def model_of(folder: str) -> Any:
    has_images = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    return (AutoModelForImageTextToText if has_images else AutoModelForCausalLM).from_pretrained(folder)


def trainer_of(folder: str, out: str, dataset: Any, num_batches: int, collator: Any = None, **settings: Any) -> Any:
    if not isinstance(dataset, Dataset) or "input_ids" not in dataset.column_names:
        settings |= {"dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False}
    args = SFTConfig(out, gradient_accumulation_steps=num_batches, **SETTINGS | settings)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = SFTTrainer(
        model_of(folder), args, train_dataset=dataset, data_collator=collator, processing_class=tokenizer
    )
    trainer.model_accepts_loss_kwargs = True  # else the mean of the batches' means
    return trainer


def ways(folder: str, out: str, samples: Samples, rows_of_batch: int) -> list[Way]:
    packs, num = samples.packs, len(samples.lens)
    has_images = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    batches = -(-num // rows_of_batch)
    numbers = Dataset.from_dict({"sample": [*range(num)], "length": samples.lens})
    texts = Dataset.from_dict(samples.texts) if not has_images else None

    def padded(order: str) -> Any:
        more = {"per_device_train_batch_size": rows_of_batch, "train_sampling_strategy": order}
        if has_images:
            return trainer_of(folder, out, numbers, batches, samples.padded, **more)
        return trainer_of(folder, out, texts, batches, **more)

    def packed_by_trl() -> Any:
        more = {"packing": True, "max_length": 1024, "per_device_train_batch_size": 1}
        num_packs = len(trainer_of(folder, out, texts, 1, **more).train_dataset)
        return trainer_of(folder, out, texts, num_packs, **more)

    def ours() -> Any:
        trainer = trainer_of(
            folder, out, samples.rows, len(samples.rows), lambda rows: rows,
            per_device_train_batch_size=1, train_sampling_strategy="sequential",
        )  # fmt: skip
        guard(trainer.model, packs.encoder)
        trainer.data_collator = packs.collator(trainer.model)
        return trainer

    found = [
        Way("padded, by chance", lambda: padded("random")),
        Way("padded, grouped", lambda: padded("group_by_length")),
    ]
    if not has_images:
        found.append(Way("packed by TRL", packed_by_trl))
    return [*found, Way(OURS, ours)]


def run(way: Way) -> Figures:
    """Train one step of all samples, after one batch from which nothing is learned."""
    trainer = way.make()
    batches = [*trainer.get_train_dataloader()]
    places = sum(batch["input_ids"].numel() for batch in batches)
    begun = time.process_time()
    if way.name == OURS:
        check_trainer(trainer)  # guard tries the first batch in it
    else:
        with torch.no_grad():  # a first forward makes whatever is made only once
            trainer.model(**{name: value for name, value in batches[0].items() if name != "labels"})
    checked = time.process_time() - begun
    begun = time.process_time()
    trainer.train()
    taken = time.process_time() - begun
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Figures(loss, len(batches), places, taken, checked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path)
    parser.add_argument("model")
    parser.add_argument("--packs", type=int, default=24, help="so many of them (24)")
    parser.add_argument("--rows", type=int, default=4, help="samples of a padded batch (4)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", default="/tmp/out_of_trainers", help="TRL's folder, in which nothing is kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    samples = Samples(PackedDataset(given.packed, given.model), given.packs)
    num_tokens = sum(samples.lens)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "way",
        "batches",
        "padding",
        "CPU seconds",
        "batches a second",
        "tokens a second",
        "check_trainer",
        "loss",
    ):
        table.add_column(name, justify="left" if name == "way" else "right")
    ways_of = ways(given.model, given.out, samples, given.rows)
    found: dict[str, list[Figures]] = {way.name: [] for way in ways_of}
    for _ in range(given.repeats):  # all ways in turn
        for way in ways_of:
            found[way.name].append(run(way))
    for name, several in found.items():
        best = min(several, key=lambda one: one.seconds)
        table.add_row(
            name, str(best.num_batches), f"{1 - num_tokens / best.places:.1%}", f"{best.seconds:.1f}",
            f"{best.num_batches / best.seconds:.2f}", f"{num_tokens / best.seconds:,.0f}",
            f"{best.checked:.1f} s" if name == OURS else "", f"{best.loss:.6f}",
        )  # fmt: skip
    print(f"{len(samples.lens)} samples, {num_tokens:,} tokens")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()

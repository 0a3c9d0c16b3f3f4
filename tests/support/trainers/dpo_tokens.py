"""What TRL's DPOTrainer makes of pairs by its own code, and what a dataset of ours has of the same pairs.

    python dpo_tokens.py OUT WHOLE MODEL PAIRS KWARGS SHORT

WHOLE is packed of PAIRS, lines with `prompt`, `chosen`, `rejected` and `images`; KWARGS, JSON, are for the processor.
OUT gets for each form of content, of each member of WHOLE: the ids, and which of them are trained, by TRL and here.
Pairs are given to TRL as they are in the file; with each place of an image as a part of a turn's content; and these
with `max_length` SHORT.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from PIL import Image

from energon_pack import PackedDataset, prepare_torchvision
from energon_pack.samples.member import MemberInput
from energon_pack.training.encoded import IGNORE

prepare_torchvision()  # before TRL imports transformers

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402

Row = dict[str, Any]
Tokens = dict[str, Any]
SIDES = ("chosen", "rejected")


def in_parts(content: str) -> list[Row]:
    parts = [part for part in re.split("(<image>)", content) if part]
    return [{"type": "image"} if part == "<image>" else {"type": "text", "text": part} for part in parts]


def rows_of(path: Path, has_images: bool, as_parts: bool) -> list[Row]:
    """The lines as TRL takes them; `number` counts them from 1."""
    rows = []
    for number, line in enumerate(map(json.loads, path.read_text().splitlines()), 1):
        turns = {name: line[name] for name in ("prompt", *SIDES)}
        if as_parts:
            turns = {name: [{**one, "content": in_parts(one["content"])} for one in turns[name]] for name in turns}
        rows.append({**turns, "number": number} | ({"images": line.get("images", [])} if has_images else {}))
    return rows


def trainer_of(name: str, rows: list[Row], kwargs: Row, folder: Path, **more: Any) -> DPOTrainer:
    """TRL's own trainer of a tiny model, with its own collator for this dataset."""
    has_images = hasattr(AutoConfig.from_pretrained(name), "vision_config")
    kind: Any = AutoModelForImageTextToText if has_images else AutoModelForCausalLM
    args = DPOConfig(str(folder), report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, **more)
    processor = AutoProcessor.from_pretrained(name, **kwargs)
    dataset = Dataset.from_list(rows[:1] if has_images else rows)  # rows with images reach its collator as they are
    return DPOTrainer(kind.from_pretrained(name), args=args, train_dataset=dataset, processing_class=processor)


def by_trl(trainer: DPOTrainer, row: Row, folder: Path) -> list[Tokens]:
    """Both sides of one pair, from a batch of this pair alone."""
    pair = dict(row)
    if "images" in row:
        pair["images"] = [Image.open(folder / name).convert("RGB") for name in row["images"]]
    batch = trainer.data_collator([pair])
    columns = zip(*(batch[name] for name in ("input_ids", "attention_mask", "completion_mask")), strict=True)
    return [
        {"ids": ids[mask.bool()].tolist(), "trained": trained[mask.bool()].tolist()} for ids, mask, trained in columns
    ]


def ours(packs: PackedDataset) -> dict[str, Tokens]:
    found = {}
    for number in range(len(packs)):
        for member in packs.members(0, number):
            assert isinstance(member, MemberInput)
            tokens = packs.encoder.members.encode_alone(member).tokens
            found[member.sample_id] = {"ids": tokens.ids.tolist(), "trained": (tokens.labels != IGNORE).long().tolist()}
    return found


def main() -> None:
    out, whole, name, pairs, kwargs, short = sys.argv[1:7]
    torch.set_num_threads(1)
    packs = PackedDataset(whole, name, attention_mask="positions")
    has_images, folder = hasattr(AutoConfig.from_pretrained(name), "vision_config"), Path(pairs).parent
    here = ours(packs)
    found: dict[str, dict[str, Any]] = {}
    cut = {"max_length": int(short)}
    for form, as_parts, more in (("file", False, {}), ("parts", has_images, {}), ("short", has_images, cut)):
        rows = rows_of(Path(pairs), has_images, as_parts)
        trainer = trainer_of(name, rows, json.loads(kwargs), Path(out).parent, **more)
        found[form] = {}
        for row in rows if has_images else trainer.train_dataset:
            for side, tokens in zip(SIDES, by_trl(trainer, row, folder), strict=True):
                member = f"{Path(pairs).name}:{row['number']}+{side}"
                found[form][member] = {"TRL": tokens, "here": here[member]}
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

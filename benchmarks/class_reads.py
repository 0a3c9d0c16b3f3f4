"""How often does the host read tensors in a forward of each class that sees, and what of it do batches spare it?

    python benchmarks/class_reads.py --results reads.jsonl --save docs/tables/reads.csv
    python benchmarks/class_reads.py --device cuda --only Qwen2_5_VLForConditionalGeneration

Each class of `benchmarks/classes.py` that takes images is made small and runs over a pack of 22 images, as it is and
with the values that a worker makes for its tower. On a GPU PyTorch itself reports the reads. Results are lines of JSON;
what is in the file is not run again.
"""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from class_members import members
from class_models import Named, config_of, named, tf
from classes import quiet, said
from gpu_exact import true_fp32
from gpu_stalls import reads_in

from energon_pack.training.masks import BOUNDARY_MARK, tower_inputs_in
from energon_pack.training.probe_batches import probe_of_rows
from energon_pack.training.small_model import build_small_model
from energon_pack.training.tower import logits_and_gradients, tower_input_maker_of, try_tower_inputs

NUM_IMAGES = 22
Row = dict[str, Any]


def row_of(one: Named, device: str) -> Row:
    """Reads of a forward without and with the values, and how far outputs and gradients are apart."""
    make = getattr(tf, one.name)
    row: Row = {"name": one.name}
    try:
        config = config_of(one)
        try:
            model = build_small_model(make, config, "sdpa", device=device)
        except ValueError:  # it has no such attention
            model = build_small_model(make, config, "eager", device=device)
        given = [member for member in members(one, model.cpu(), True) if member.media]
        if not given:
            return {**row, "why": "its image processor gives nothing that the model takes"}
        batch = probe_of_rows(model, [(given * NUM_IMAGES)[:NUM_IMAGES]], "positions").batch
        model = model.to(device)
        inputs = batch.to(device).model_inputs(model, labels=False)
        row["plain"] = dict(reads_in(model, inputs))
        tower = tower_input_maker_of(model)
        if tower is None:
            return row
        values = tower_inputs_in(tower(batch))
        own = try_tower_inputs(model, tower, given, "positions", torch.device(device))
        if own is None:
            return {**row, "why": "its tower takes none"}
        kept = {name: value for name, value in values.items() if BOUNDARY_MARK in name and own.keeps_boundaries_on_host}
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) and k not in kept else v for k, v in values.items()}
        row |= {"values": sorted(values), "reads": dict(reads_in(model, {**inputs, **moved}, kept.values()))}
        pairs = [
            *zip(logits_and_gradients(model, inputs), logits_and_gradients(model, {**inputs, **moved}), strict=True)
        ]
        row["outputs"] = _apart(*pairs[0])
        row["gradients"] = max(_apart(*pair) for pair in pairs[1:])
    except Exception as error:  # foreign code
        row["why"] = said(error)
    return row


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-30))


def table(rows: Mapping[str, Row]) -> Iterator[list[str]]:
    """The header, then the cells of each class."""
    yield [
        "class",
        "reads",
        "spared by the values",
        "left with them",
        "Δ outputs",
        "Δ gradients",
        "left at, or why not",
    ]
    for name, row in sorted(rows.items()):
        if "plain" not in row:
            yield [name, *[""] * 5, f"not run: {row['why'][:80]}"]
            continue
        plain: Counter[str] = Counter(row["plain"])
        left: Counter[str] = Counter(row.get("reads", row["plain"]))
        places = ", ".join(f"{place.removeprefix('modeling_')} ×{number}" for place, number in left.most_common(5))
        spared = [str((plain - left).total()), str(left.total())] if "reads" in row else ["–", "–"]
        apart = [f"{row[kind]:.0e}" if "outputs" in row else "" for kind in ("outputs", "gradients")]
        yield [name, str(plain.total()), *spared, *apart, row.get("why", "")[:60] or places]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of classes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--results", type=Path, default=Path("reads.jsonl"), help="lines of JSON, read and added to")
    parser.add_argument("--save", type=Path, help="write the table there")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    rows = {row["name"]: row for row in map(json.loads, lines)}
    for one in named():
        if one.sees and one.name not in rows and (not options.only or one.name in options.only):
            with true_fp32():
                rows[one.name] = row_of(one, options.device)
            with options.results.open("a") as file:
                file.write(json.dumps(rows[one.name]) + "\n")
            print(*table({one.name: rows[one.name]}), sep="\n", flush=True)
    if options.save:
        with options.save.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table(rows))


if __name__ == "__main__":
    quiet()
    main()

"""Does the guard accept each class of transformers that keeps members apart, as a model that is trained?

    python benchmarks/guarded_classes.py --results guarded.jsonl                      # all; hours
    python benchmarks/guarded_classes.py --sees image --settings float32 --results guarded.jsonl
    python benchmarks/guarded_classes.py --results guarded.jsonl --sum                # what is there, counted

Each class is made small, guarded, and given two batches of packs in train(), with a backward, in each setting of
SETTINGS; adapters need peft. docs/tables/classes.csv says which classes are exact; one that is, and is refused all the
same, is a false refusal. Results are lines of JSON; what is in the file is not run again.
"""

import argparse
import csv
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from class_models import VOCABULARY, Named, config_of, named, tf
from classes import Row, every_layer, in_child, members_of, quiet, said

from energon_pack.training import small_model as small_models
from energon_pack.training.batch import PackedBatch
from energon_pack.training.forward_inputs import MixingError, takes_rope_rows
from energon_pack.training.guards import guard
from energon_pack.training.layout import RowForm, lay_out_neat_rows
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.probe_batches import add_media, put_twins_in_rows
from energon_pack.training.small_model import build_small_model
from support.tiny import MadeEncoder

TABLE = Path(__file__).parents[1] / "docs" / "tables" / "classes.csv"
#: how the model is trained: in which type, with which adapter, with checkpoints of either kind, with a frozen tower
SETTINGS = ("float32", "autocast", "bfloat16", "lora", "ia3", "checkpoints", "reentrant", "frozen")
ATTENTIONS = ("sdpa", "eager")
TOWER = re.compile(r"vis(ion|ual)|vit|image_encoder|patch_embed")
WORDS = re.compile(r"language_model|lm_head|text_model|mlp1|projector|merger|connector|aligner")
small_models._NUM_LOGITS = VOCABULARY  # a loss of labels needs all


def rows_of(one: Named, settings: Sequence[str], attention: str) -> Iterator[Row]:
    """What the guard says of a class, in each setting."""
    make = getattr(tf, one.name)
    for setting in settings:
        row: Row = {"name": one.name, "sees": one.sees, "attention": attention, "type": setting}
        try:
            config, _ = every_layer(make, config_of(one))
            given, _ = members_of(one, build_small_model(make, config, "eager"))
            model = as_set(build_small_model(make, config, attention), setting)
        except Exception as error:  # foreign code
            yield {**row, "verdict": "not built", "why": said(error)}
            continue
        yield row | tried(model, given, setting)


def as_set(model: Any, setting: str) -> Any:
    """The model as a setting trains it.

    Raises:
        ValueError: there is no tower to freeze.
    """
    if setting == "bfloat16":
        return model.to(torch.bfloat16)
    if setting in ("lora", "ia3"):
        return adapted(model, setting)
    if setting in ("checkpoints", "reentrant"):
        model.gradient_checkpointing_enable({"use_reentrant": setting == "reentrant"})
    if setting == "reentrant":
        model.enable_input_require_grads()  # a reentrant checkpoint whose inputs have no gradient has none
    if setting == "frozen":
        tower = [p for name, p in model.named_parameters() if TOWER.search(name) and not WORDS.search(name)]
        if not tower:
            raise ValueError(f"no parameter of {type(model).__name__} has a name of a tower")
        for parameter in tower:
            parameter.requires_grad_(False)
    return model


def adapted(model: Any, kind: str) -> Any:
    """The model with adapters of peft at each linear layer but the head, with values of their own."""
    peft: Any = import_module("peft")
    head = model.get_output_embeddings()
    linear = {name for name, part in model.named_modules() if type(part) is torch.nn.Linear and part is not head}
    if kind == "lora":
        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=linear, init_lora_weights=False))
    last = {name for name in linear if name.rpartition(".")[2] in ("down_proj", "fc2", "w2", "linear_2")}
    config = peft.IA3Config(target_modules=linear, feedforward_modules=last, init_ia3_weights=False)
    model = peft.get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if "ia3_" in name:  # drawn about 0 otherwise, and they are factors
            torch.nn.init.uniform_(parameter.data, 0.5, 1.5)
    return model


def tried(model: Any, given: list[Encoded], setting: str) -> Row:
    """Guard a model, and train two batches of these members."""
    for part in model.modules():
        part.train(not isinstance(part, torch.nn.modules.batchnorm._BatchNorm))
    try:
        held = guard(model, MadeEncoder(given, "auto"))
    except MixingError as error:
        return {"verdict": "refused by its class", "why": str(error)[:300]}
    mask = held.proofs[-1].mask
    found: Row = {"media": sorted(given[0].media), "by": mask}
    try:
        for members in (given, given[::-1]):
            with torch.autocast("cpu", torch.bfloat16) if setting == "autocast" else nullcontext():
                model(**inputs_of(model, members, mask)).loss.backward()
            model.zero_grad()
    except MixingError as error:
        return found | {"verdict": "refused by its trial", "why": str(error)[:600]}
    except Exception as error:  # foreign code
        return found | {"verdict": "error", "why": said(error)}
    finally:
        held.remove()
    findings = [one.finding for one in held.trials if one.finding]
    worst = [max(share) for share in zip(*(one.differences for one in findings), strict=True)]
    is_tried = len(findings) == 2 and all(one.is_conclusive for one in held.trials)
    return found | {"verdict": "accepted" if is_tried else "not compared", "why": "", "worst": worst}


def inputs_of(model: Any, members: list[Encoded], mask: str) -> dict[str, Any]:
    """Two rows of members, or one where hybrids take one, as a model takes them."""
    rows = put_twins_in_rows(members, mask)
    batch = PackedBatch(
        lay_out_neat_rows([[one.tokens for one in row] for row in rows], RowForm(rope=takes_rope_rows(model)))
    )
    every = [one for row in rows for one in row]
    dtype = model.dtype
    media = [{k: v.to(dtype) if v.is_floating_point() else v for k, v in one.media.items()} for one in every]
    add_media(batch, every, media)
    batch.mask = mask
    return batch.model_inputs(model)


def exact_by_table() -> dict[tuple[str, str], bool]:
    """Whether a class is exact with an attention implementation, by name of both."""
    with TABLE.open() as file:
        return {
            (row["class"], name): row[name] in ("positions", "masks", "kernels")
            for row in csv.DictReader(file)
            for name in ATTENTIONS
        }


def show(rows: Sequence[Row]) -> None:
    exact = exact_by_table()
    counts = Counter(
        (
            "images" if row["sees"] else "text",
            row["attention"],
            row["type"],
            "exact" if exact.get((row["name"], row["attention"])) else "not exact",
            row["verdict"],
        )
        for row in rows
    )
    for key, number in sorted(counts.items()):
        print(f"{number:4} {' · '.join(key)}")
    for row in rows:
        if exact.get((row["name"], row["attention"])) and row["verdict"] != "accepted":
            print(f"{row['name']} {row['attention']} {row['type']}: {row['verdict']}: {row['why'][:300]}")
    worst = {
        setting: [
            max(all_of)
            for all_of in zip(*(r["worst"] for r in rows if r["type"] == setting and r.get("worst")), strict=True)
        ]
        for setting in SETTINGS
    }
    for setting, shares in worst.items():
        print(f"{setting}: outputs, loss, gradients / 2.5, size / 0.8: {' '.join(f'{one:.1e}' for one in shares)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of classes")
    parser.add_argument("--sees", choices=("image", "text"))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--results", type=Path, default=Path("guarded.jsonl"), help="lines of JSON, read and added to")
    parser.add_argument("--sum", action="store_true", help="count what is in the file")
    options = parser.parse_args()
    path: Path = options.results
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if options.sum:
        show(rows)
        return
    known = {(row["name"], row["attention"], row["type"]) for row in rows}
    every = [one for one in named() if not options.only or one.name in options.only]
    random.Random(0).shuffle(every)
    exact = exact_by_table()
    every.sort(key=lambda one: not exact.get((one.name, "sdpa")))  # those that can be refused falsely come first
    for one in every:
        for attention in options.attention if options.sees in (None, "image" if one.sees else "text") else ():
            missing = [setting for setting in options.settings if (one.name, attention, setting) not in known]
            find = partial(rows_of, attention=attention)
            for row in in_child(one, missing, "cpu", find, "type") if missing else ():
                full = {"sees": one.sees, "attention": attention, **row}
                with path.open("a") as lines:
                    lines.write(json.dumps(full) + "\n")
                print(one.name, attention, full.get("type"), full["verdict"], full["why"][:200], flush=True)


if __name__ == "__main__":
    quiet()
    main()

"""What packs of preference pairs save on real images: `python benchmarks/pairs.py REAL [--length 8192]`.

REAL has real processors and samples (`../shared/real`). Pairs are questions of MATH-Vision with their images and of
alpaca without; the chosen answer is the one that is there, the rejected one that of another question. The same pairs
are made batches of by this package, by ms-swift's packed DPO and by TRL's DPOTrainer, each by its own code in its
environment (`--environments`, made by tests/support/environments.py). All is arithmetic over these batches:
tokens that a model computes, padding counted; images; FLOPs of a Qwen2.5-VL-7B's forward pass.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from energon_pack import PackedDataset
from energon_pack.config.compose import compose_config
from energon_pack.pack import pack
from energon_pack.steps.cost import CostModel, cost_model_or_default
from energon_pack.training.encoded import EncodedMembers

HERE = Path(__file__).resolve().parent
MERGED = 4  # patches of an image in a token
Row = dict[str, Any]


def pairs_of(real: Path) -> list[Row]:
    """150 questions with images and 50 without, each with its answer and that of another."""
    files = (real / "jsonl" / f"{name}.jsonl" for name in ("image_mathv", "text_alpaca"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    seen, read = lines[0][:150], [line for line in lines[1] if len(line.get("prompts") or ()) == 1][:50]
    groups = [[(line["images"], line["prompts"][0], line["captions"][0]) for line in group] for group in (seen, read)]
    return [
        {"images": images, "asked": asked, "chosen": answer, "rejected": group[(7 * number + 3) % len(group)][2]}
        for group in groups
        for number, (images, asked, answer) in enumerate(group)
    ]


def parts(text: str) -> list[Row]:
    found: list[Row] = []
    for number, piece in enumerate(text.split("<image>")):
        found += [{"type": "image", "text": None}] * bool(number) + ([{"type": "text", "text": piece}] if piece else [])
    return found


def write(path: Path, rows: Iterable[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def forms(pairs: list[Row], media: Path, folder: Path) -> dict[str, Path]:
    """The pairs as each of the three reads them."""
    lines: dict[str, list[Row]] = {"here": [], "trl": [], "swift": []}
    for pair in pairs:
        images = [str(media / name) for name in pair["images"]]
        answers = {side: pair[side] for side in ("chosen", "rejected")}
        lines["here"].append({"prompt": pair["asked"], "images": images, **answers})
        turns = [{"role": "user", "content": pair["asked"]}, {"role": "assistant", "content": pair["chosen"]}]
        lines["swift"].append({"messages": turns, "rejected_response": pair["rejected"], "images": images})
        of_trl = {side: [{"role": "assistant", "content": parts(text)}] for side, text in answers.items()}
        prompt = [{"role": "user", "content": parts(pair["asked"])}]
        lines["trl"].append({"prompt": prompt, "images": images, **of_trl})
    return {name: write(folder / f"{name}.jsonl", rows) for name, rows in lines.items()}


def row_of(name: str, batches: list[Row], cost: CostModel) -> Row:
    """The sums over batches, as `pairs_of_others.py` prints them; `shared`: tokens of each sequence that are free."""
    lens = np.array([length for batch in batches for length in batch["sequences"]])
    shared = np.array([length for batch in batches for length in batch.get("shared", [0] * len(batch["sequences"]))])
    visual = np.array([np.prod(grid) // MERGED for batch in batches for grid in batch["grids"]])
    flops = cost.lm_flops(lens, shared).sum() + cost.vision_flops(visual, np.ones_like(visual)).sum()
    return {
        "name": name, "batches": len(batches), "tokens": int((lens - shared).sum()), "images": len(visual),
        "flops": float(flops), "pairs": sum(batch["pairs"] for batch in batches),
        "padding": sum(batch.get("padding", 0) for batch in batches), "cut": sum(b.get("cut", 0) for b in batches),
    }  # fmt: skip


def ours(model: Path, pairs: Path, length: int, share: str) -> list[Row]:
    """Our packs in the form of `pairs_of_others.py`."""
    words = ["+model=qwen2_5_vl", f"model.processor={model}", f"source.path={pairs}", "source.take=both"]
    words += [f"output.dir={model.parent}", f"output.name={share}", f"packing.max_token_len={length}"]
    pack(compose_config([*words, f"packing.share={share}", "packing.group_by=none", "executor.num_workers=1"]))
    packs, batches = PackedDataset(model.parent / share, str(model)), []
    for number in range(len(packs)):
        encoded = packs[number]
        batch, columns = packs.collate([encoded]), EncodedMembers.of(encoded.members).tokens
        shared = [0] * len(columns) if columns.shared_lens is None else columns.shared_lens.tolist()
        assert batch["num_tokens"] == columns.num_tokens_in_row
        grids = batch["image_grid_thw"].tolist() if "image_grid_thw" in batch else []
        of_pack = {"sequences": columns.lens.tolist(), "shared": shared, "grids": grids}
        batches.append(of_pack | {"pairs": len(batch["preference_pairs"])})
    return batches


def theirs(kind: str, environments: Path, model: Path, pairs: Path, length: int) -> list[Row]:
    python = environments / kind / "bin" / "python"
    words = [python, "-W", "ignore", HERE / "pairs_of_others.py", kind, model, pairs, length]
    done = subprocess.run([*map(str, words)], cwd=model.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"sequences"')]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", type=Path)
    parser.add_argument("--length", type=int, default=8192, help="tokens of a pack, here and of ms-swift (8192)")
    parser.add_argument("--environments", type=Path, default=Path("/tmp/energon_pack_environments"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        processor = options.real / "processors" / "qwen2_5_vl"
        subprocess.run([sys.executable, HERE.parent / "recipes" / "tiny_folder.py", processor, model], check=True)
        pairs = pairs_of(options.real)
        (folder / "source").mkdir()
        files = forms(pairs, (options.real / "data" / "image_mathv").absolute(), folder / "source")
        cost, length = cost_model_or_default(None), options.length
        rows = [
            row_of("packing.share=prefix", ours(model, files["here"], length, "prefix"), cost),
            row_of("packing.share=none", ours(model, files["here"], length, "none"), cost),
            row_of("ms-swift, packed", theirs("swift", options.environments, model, files["swift"], length), cost),
            row_of("TRL, 4 pairs padded", theirs("trl", options.environments, model, files["trl"], length), cost),
        ]
    columns = ("", "batches", "tokens", "of these padding", "images", "PFLOPs", "pairs beyond TRL's max_length")
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|")
    for row in rows:
        tokens, flops = (f" ({row[key] / rows[0][key]:.2f} ×)" for key in ("tokens", "flops"))
        print(f"| {row['name']} | {row['batches']} | {row['tokens']:,}{tokens} | {row['padding']:,} | {row['images']}"
              f" | {row['flops'] / 1e15:.2f}{flops} | {row['cut'] or ''} |")  # fmt: skip
        assert row["pairs"] == len(pairs), row


if __name__ == "__main__":
    main()

"""Do two checkouts make the same batches of the same packs? Run before and after a change that should not:

    git worktree add /tmp/before REV
    python benchmarks/same_batches.py /tmp/before            # packs once, then hashes batches of both
    python benchmarks/same_batches.py /tmp/before --only text weights

Packs real samples of ../shared/real, where they are, and made ones with weights and with shared beginnings. Every entry
of every batch is hashed: of the map-style dataset in each layout and with each option, with and without a worker, of
Energon, of webdataset, of lazy packs and of a stream. Prints each batch that differs. Exit code 1 where any does.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
REAL = HERE.parent / "shared" / "real"
#: options of the encoder, by what a case calls them
OPTIONS: dict[str, dict[str, Any]] = {
    "neat": {"layout": "neat"},
    "neat, shifted": {"layout": "neat", "labels": "shifted", "loss_weight": "sample"},
    "neat, wide": {"layout": "neat", "pad_to": "max_token_len", "pad_segments": 999, "loss_weight": "sqrt"},
    "neat, dropped": {"layout": "neat", "on_bad_member": "drop", "dummy_image": True},
    "thd": {"layout": "thd"},
    "thd, rope": {"layout": "thd", "rope_rows": True, "pad_to": "max_token_len", "loss_weight": "sample"},
    "rows": {"layout": "rows"},
    "mlm": {"layout": "mlm"},
}
#: processors of the real folder, by the model's YAML
PROCESSORS = {
    "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl", "internvl3": "internvl3_hf", "gemma3": "gemma3",
    "llava_onevision": "llava_onevision_qwen2_hf", "kimi_k2_5": "kimi_k25",
}  # fmt: skip
MOST_PACKS = 6

Hashes = dict[str, str]


def made_rows(kind: str) -> Iterator[dict[str, Any]]:
    """Yield conversations with weights of samples and turns, or with beginnings that several share."""
    rng = random.Random(0)
    for number in range(400):
        words = " ".join(
            rng.choices(["one", "two", "three", "four", "five", "six", "seven", "eight"], k=rng.randint(3, 60))
        )
        if kind == "weights":
            answers = [{"role": "assistant", "content": words, "weight": rng.choice([0, 0.3, 1, 1.7])} for _ in "ab"]
            asked = [{"role": "user", "content": f"Say {number}."}, {"role": "user", "content": "And then?"}]
            turns = [asked[0], answers[0], asked[1], answers[1]]
            yield {"messages": turns, **({"weight": rng.choice([0.25, 1.1])} if number % 2 else {})}
        else:
            tale = {"role": "user", "content": f"Tell a long tale of the number {number // 5}, and then another. " * 9}
            yield {"messages": [tale, {"role": "assistant", "content": f"{number % 5} {words}"}]}


def datasets(folder: Path) -> dict[str, list[str]]:
    """Return the overrides of each packed dataset, by its name; writes the made ones."""
    overrides: dict[str, list[str]] = {}
    processor = [f"model.processor={REAL}/processors/qwen2_5_vl"] if REAL.is_dir() else []
    qwen = ["+model=qwen2_5_vl", *processor]
    for kind in ("weights", "trees"):
        file = folder / "sources" / kind / "rows.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():  # a new one has another identity, and lazy packs other keys
            file.write_text("".join(json.dumps(row) + "\n" for row in made_rows(kind)))
        share = ["packing.share=prefix"] if kind == "trees" else []
        overrides[kind] = [*qwen, "source=jsonl", f"source.path={file}", "packing.max_token_len=2048", *share]
    if not REAL.is_dir():
        return overrides
    wds = {name: f"{REAL}/wds/{name}" for name in sorted(os.listdir(REAL / "wds"))}
    overrides["text"] = [*qwen, f"source.path=[{','.join(path for name, path in wds.items() if 'text' in name)}]"]
    mixed = [f"source.path=[{wds['text_alpaca']},{wds['image_demo']}]", "packing.group_by=none", "source.limit=250"]
    for model, files in PROCESSORS.items():
        chosen = [f"+model={model}", f"model.processor={REAL}/processors/{files}"]
        overrides[f"mixed {model}"] = [*chosen, *mixed, "packing.max_token_len=4096"]
    video = [f"source.path={wds['video_demo']}", "media=uniform", "packing.max_token_len=4096"]
    overrides["video"] = [*qwen, *video]
    return overrides


def pack(name: str, overrides: list[str], folder: Path) -> None:
    """Pack with this checkout."""
    places = [f"output.dir={folder}", f"output.name={name.replace(' ', '_')}", f"cache_dir={folder}/.cache"]
    more = ["measure.verify=0", "max_skipped=1", "packing.max_dropped_tokens=1"]
    command = [sys.executable, "-m", "energon_pack", *overrides, *places, *more]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-600:]}")


def hash_of(value: Any) -> str:
    """Return a hash of a batch's entry: type, shape and bytes of tensors, the text of all else."""
    import torch

    if isinstance(value, torch.Tensor):
        data = value.contiguous().flatten().view(torch.uint8) if value.numel() else value
        return f"{value.dtype} {list(value.shape)} {hashlib.sha1(data.numpy().tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return str({name: hash_of(item) for name, item in value.items()})
    if hasattr(value, "normalized_for_model"):
        return hash_of(vars(value))
    return f"{type(value).__name__} {value!r}"


def hash_batches(name: str, make: Callable[[], Iterable[Any]], hashes: Hashes, most: int = MOST_PACKS) -> None:
    """Hash the first batches; an error counts as what it says."""
    try:
        for number, batch in enumerate(islice(make(), most)):
            for key, value in batch.items():
                if key not in ("__restore_key__", "positions"):
                    hashes[f"{name} #{number} {key}"] = hash_of(value)
    except Exception as error:
        hashes[f"{name} error"] = f"{type(error).__name__}: {str(error).splitlines()[-1]}"


def hash_dataset(folder: Path, name: str, overrides: list[str]) -> Hashes:
    """Hash batches of all doors to one dataset, of the checkout that is first on the path."""
    import webdataset
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset
    from torch.utils.data import DataLoader

    import energon_pack as tree

    path, hashes = folder / name.replace(" ", "_"), Hashes()
    for what, options in OPTIONS.items():
        for num_workers in (0, 1) if what in ("neat", "thd") else (0,):

            def numbered(options: dict[str, Any] = options, num_workers: int = num_workers, size: int = 1) -> Any:
                packs = tree.PackedDataset(path, **options)
                return DataLoader(packs, collate_fn=packs.collate, num_workers=num_workers, batch_size=size)

            hash_batches(f"{name}, {what}, {num_workers} workers", numbered, hashes)
        if "neat" in what:
            hash_batches(f"{name}, {what}, two", partial(numbered, num_workers=0, size=2), hashes, 3)

    def of_energon() -> Any:
        worker = WorkerConfig(rank=0, world_size=1, num_workers=0)
        given = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        encoder = tree.PackedTaskEncoder(path, layout="neat")
        return get_loader(get_train_dataset(path, worker_config=worker, task_encoder=encoder, **given))

    def of_webdataset() -> Any:
        stage = tree.packs(path, layout="thd")
        shards = webdataset.WebDataset(tree.shard_urls(path), shardshuffle=False)
        return DataLoader(shards.compose(stage), batch_size=1, collate_fn=stage.collate)

    def lazy(layout: str) -> Any:
        packs = tree.LazyPackedDataset([*overrides, f"cache_dir={folder}/.lazy", "max_skipped=1"], layout=layout)
        return DataLoader(packs, batch_size=1, collate_fn=packs.collate)

    def stream() -> Any:
        packs = tree.StreamingPackedDataset([*overrides, f"cache_dir={folder}/.lazy"], layout="neat")
        return DataLoader(packs, batch_size=1, collate_fn=packs.collate)

    hash_batches(f"{name}, energon", of_energon, hashes)
    hash_batches(f"{name}, webdataset", of_webdataset, hashes)
    if name != "trees":
        hash_batches(f"{name}, stream", stream, hashes, 3)
    for layout in ("neat", "thd"):
        hash_batches(f"{name}, lazy {layout}", partial(lazy, layout), hashes, 3)
    return hashes


def hash_in_tree(tree: Path, folder: Path, name: str, overrides: list[str]) -> Hashes:
    """Hash batches by a checkout, in a process of its own."""
    asked = json.dumps([str(folder), name, overrides])
    environment = {**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, str(tree), "--hash", asked]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{tree}: {name}: {done.stderr[-900:]}")
    hashes: Hashes = json.loads(done.stdout.splitlines()[-1])
    return hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--only", nargs="+", default=[], help="only datasets whose name has one of these words")
    parser.add_argument("--folder", type=Path, help="keeps packs and the hashes of the other checkout here")
    parser.add_argument("--hash", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hash:
        folder, name, overrides = json.loads(arguments.hash)
        hashes = hash_dataset(Path(folder), name, overrides)
        print(json.dumps(hashes))
        return
    num_wrong = num_same = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(exist_ok=True)
        for name, overrides in datasets(folder).items():
            if arguments.only and not any(word in name for word in arguments.only):
                continue
            kept = folder / f"{name}.json"
            if not kept.exists():
                pack(name, overrides, folder)
                kept.write_text(json.dumps(hash_in_tree(arguments.before.resolve(), folder, name, overrides)))
            before, after = json.loads(kept.read_text()), hash_in_tree(HERE, folder, name, overrides)
            wrong = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
            for key in wrong[:20]:
                print(f"{key}\n  before {before.get(key, '')[:300]}\n  after  {after.get(key, '')[:300]}")
            errors = sum(key.endswith(" error") for key in after)
            print(f"{name}: {len(before)} entries, {len(wrong)} differ, {errors} errors", flush=True)
            num_wrong, num_same = num_wrong + len(wrong), num_same + len(before) - len(wrong)
    print(f"{num_same} entries are the same, {num_wrong} differ")
    raise SystemExit(bool(num_wrong))


if __name__ == "__main__":
    main()

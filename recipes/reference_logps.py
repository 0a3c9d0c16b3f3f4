"""Write the log-probabilities that a reference model gives to both sides of each preference pair, once, to a file.

    python recipes/reference_logps.py packed/pairs reference.npz --model FOLDER --device cuda --dtype bfloat16

Datasets of a blend, or of an order over several, are named one behind the other, before the file.

`PackedTaskEncoder(…, reference_logps="reference.npz")`, and `PackedDataset`, then have its values in each batch. They
stand there by dataset and member: any order of packs, any number of ranks and any part of the dataset reads them. A
member without one is an error. Without `--model` it runs the tiny random Qwen2.5-VL of train_tiny.py.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from packed_data import parts
from train_tiny import model_of

from energon_pack import (
    PackedBatch,
    PackedDataset,
    guard,
    member_logps,
    use_tree_attention,
    write_reference_logps,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+", help="folders that were packed with source.take=both")
    parser.add_argument("out", type=Path, help="the file to write (.npz)")
    parser.add_argument("--model", help="folder or hub id of a model of transformers; default: tiny and random")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the model")
    arguments = parser.parse_args()
    splits = [PackedDataset(folder, split=split) for folder in arguments.datasets for split in sorted(parts(folder))]
    encoder = splits[0].encoder
    model = model_of(arguments.model, encoder).to(arguments.device, getattr(torch, arguments.dtype)).eval()
    use_tree_attention(model)
    guard(model, encoder)

    def measured() -> Iterator[tuple[PackedBatch, torch.Tensor]]:
        for packs in splits:
            for number in range(len(packs)):
                batch = packs.collate([packs[number]]).to(arguments.device)
                yield batch, member_logps(model(**batch.model_inputs(model)).logits, batch)

    with torch.no_grad():
        number = write_reference_logps(arguments.out, measured())
    print(f"{number // 2} pairs, by {arguments.model or 'a tiny random model (no --model)'}: {arguments.out}")


if __name__ == "__main__":
    main()

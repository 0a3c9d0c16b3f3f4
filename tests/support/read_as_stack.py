"""Reads packed folders by another stack's own loader and encoder, inside an environment with its code.

    PYTHONPATH=CHECKOUT:MEGATRON python read_as_stack.py loongforge|llava PROCESSOR CHAT_TEMPLATE OUT.json FOLDER …

OUT.json has for each folder `read`: pack → tokens and trained tokens of each member, and `lost`: pack → why. Only what
needs a GPU's packages, and reads no data, is replaced: the package `train` is entered without its `__init__`, which
imports all models, and `models` names none, for the choices of an argument.
"""

import functools
import importlib
import json
import os
import sys
import types
from argparse import ArgumentParser
from itertools import pairwise
from pathlib import Path
from typing import Any

#: what Megatron's own parser, and both stacks' validators, would set
MEGATRON = {
    "rank": 0, "seq_length": 100_000, "micro_batch_size": 1, "num_workers": 0, "load": None, "training_phase": "sft",
    "make_vocab_size_divisible_by": 128, "tensor_model_parallel_size": 1, "context_parallel_size": 1,
    "sequence_parallel": False, "model_family": "qwen2_5_vl", "packing_buffer_size": None, "packing_batch_size": None,
}  # fmt: skip
#: of each stack: its package, where its arguments are, groups of them, and what sets up its tokenizer
STACKS = {
    "loongforge": ("loongforge", "tokenizer sft training multimodal video", "loongforge"),
    "llava": ("aiak_training_llm", "tokenizer sft training multimodal video", "aiak"),
}


def main(stack: str, processor: str, chat_template: str, out: str, *folders: str) -> None:
    package, groups, prefix = STACKS[stack]
    utils = importlib.import_module(f"{package}.utils")  # before its data: they import each other
    train, models = types.ModuleType(f"{package}.train"), types.ModuleType(f"{package}.models")
    train.__path__ = [str(Path(utils.__file__ or "").parents[1] / "train")]
    models.__dict__["__getattr__"] = lambda name: lambda *names: []
    sys.modules |= {train.__name__: train, models.__name__: models}
    arguments = importlib.import_module(f"{package}.train.arguments")
    parser = ArgumentParser(conflict_handler="resolve")
    for group in groups.split():
        if add := getattr(arguments, f"_add_extra_{group}_args", None):
            parser = add(parser)
    tokenizer = ["--tokenizer-type", "HFTokenizer", "--hf-tokenizer-path", processor, "--use-fast-tokenizer"]
    args = parser.parse_args([*tokenizer, "--chat-template", chat_template])
    for name, value in {**MEGATRON, "image_resolution": 1_000_000}.items():  # by default both shrink larger images
        setattr(args, name, value)
    importlib.import_module("megatron.training.global_vars").set_args(args)
    alone(Path(out).absolute().parent)
    getattr(importlib.import_module(f"{package}.utils.global_vars"), f"set_{prefix}_extra_global_vars")(args)
    provider = importlib.import_module(f"{package}.data.multimodal.dataloader_provider")
    results = {}
    for folder in folders:
        args.data_path = [folder]
        results[folder] = read(provider, encoder_of(package, args), packs_of(folder))
    Path(out).write_text(json.dumps(results))


def alone(folder: Path) -> None:
    """Make the groups of Megatron's parallel state, of this process alone; a file in the folder is theirs."""
    import torch
    from megatron.core import parallel_state

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()


def encoder_of(package: str, args: Any) -> Any:
    data = importlib.import_module(f"{package}.data.multimodal")
    if hasattr(data, "build_task_encoder"):
        return data.build_task_encoder(args)
    return importlib.import_module(f"{package}.data.multimodal.qwen2vl_task_encoder").Qwen2VLTaskEncoder(args)


def packs_of(folder: str) -> int:
    info: dict[str, Any] = json.loads((Path(folder) / ".nv-meta" / ".info.json").read_text())
    return sum(info["shard_counts"].values())


class Watch:
    """What was read and lost; ends the reading, which repeats for ever, once each pack came."""

    def __init__(self, num_packs: int) -> None:
        self.num_packs, self.num_lost = num_packs, 0
        self.read: dict[str, list[list[int]]] = {}
        self.why_lost: dict[str, str] = {}

    def lose(self, error: Exception, key: Any) -> None:
        """Both stacks print such an error, and Energon goes on with the next sample."""
        self.num_lost += 1
        self.why_lost.setdefault(str(key or self.num_lost), f"{type(error).__name__}: {error}"[:300])
        if self.is_all or self.num_lost > 3 * self.num_packs:
            raise KeyboardInterrupt

    @property
    def is_all(self) -> bool:
        return len(self.read) + len(self.why_lost) >= self.num_packs

    def watched(self, encode: Any) -> Any:
        @functools.wraps(encode)
        def call(sample: Any) -> Any:
            try:
                yield from encode(sample)
            except Exception as error:
                self.lose(error, sample.__key__)
                raise

        return call


def read(provider: Any, encoder: Any, num_packs: int) -> dict[str, Any]:
    from megatron import energon

    watch = Watch(num_packs)
    provider.print_error_handler, encoder.encode_sample = watch.lose, watch.watched(encoder.encode_sample)
    try:
        for batch in energon.get_loader(provider.get_train_dataset(encoder)):
            ends, labels = batch["cu_lengths"][0].tolist(), batch["labels"][0]
            members = [[b - a, int((labels[a:b] != -100).sum())] for a, b in pairwise(ends)]
            watch.read[batch["__key__"][0].split("/")[-1].split(".")[0]] = members
            if watch.is_all:
                break
    except KeyboardInterrupt:
        pass
    return {"read": watch.read, "lost": watch.why_lost}


if __name__ == "__main__":
    os.environ |= {
        "OFFLINE_PACKING_BMR": "1",
        "OFFLINE_PACKED_DATA": "1",
    }  # LLaVA-OneVision-2: members are conversations
    main(*sys.argv[1:])

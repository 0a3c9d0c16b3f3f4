"""Trainers with their own samples, packing and collators: nothing of ours, as those use them who never pack here."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.samples import WORDS
from support.trainers.stacks import options

Settings = dict[str, Any]
_LEN = 512
_TRL = """
import json, sys
import datasets, transformers, trl
model, data, words = sys.argv[1:]
words = json.loads(words)
kind = transformers.AutoModelForImageTextToText if words.pop("images") else transformers.AutoModelForCausalLM
made = kind.from_pretrained(model, attn_implementation=words.pop("attention"))
rows = datasets.load_dataset("json", data_files=data, split="train")
tokenizer = transformers.AutoTokenizer.from_pretrained(model)
trl.SFTTrainer(made, args=trl.SFTConfig(**words), train_dataset=rows, processing_class=tokenizer).train()
"""
_LLAMA_FACTORY = """
import sys
from llamafactory.train.tuner import run_exp
import yaml
run_exp(yaml.safe_load(open(sys.argv[1])))
"""
_SWIFT = """
import sys
from swift.pipelines import sft_main
sft_main(sys.argv[1:])
"""
_AXOLOTL = """
if __name__ == "__main__":  # its datasets start processes that read this file
    import sys
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.cli.train import do_train
    cfg = load_cfg(sys.argv[1])
    cfg.device_map = {"": "cpu"}
    do_train(cfg, TrainerCliArgs())
"""
_OF_TRAINER = {
    "max_steps": 1, "per_device_train_batch_size": 1, "report_to": "none", "output_dir": "out", "use_cpu": True,
    "bf16": False, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1,
}  # fmt: skip


def write_chats(folder: Path) -> Path:
    """Twelve chats of some 60 to 200 tokens."""
    chats = [
        {"messages": [{"role": "user", "content": f"Say {i}."}, {"role": "assistant", "content": WORDS[: 40 + 10 * i]}]}
        for i in range(12)
    ]
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    return path


@dataclass(frozen=True)
class Way:
    """One set-up of a trainer."""

    trainer: str
    settings: Settings = field(default_factory=dict)
    #: functions of `their_hooks.py` that are called first
    hooks: tuple[str, ...] = ()
    #: what the guard says
    said: str = "^kept apart"
    #: a Qwen2.5-VL, which has M-RoPE, with its texts
    images: bool = False
    flash: bool = False


def words_of(way: Way, model: Path, folder: Path) -> list[str]:
    """Write the program and its settings; return the words that run it."""
    folder.mkdir(parents=True, exist_ok=True)
    make: Callable[[Way, Path, Path, Path], tuple[str, list[str]]] = _MAKERS[way.trainer]
    program, words = make(way, model, write_chats(folder), folder)
    (folder / "program.py").write_text(program)
    return [str(folder / "program.py"), *words]


def _trl(way: Way, model: Path, chats: Path, folder: Path) -> tuple[str, list[str]]:
    attention = "flash_attention_2" if way.flash else "sdpa"
    own = {"max_length": _LEN, "images": way.images, "attention": attention, "gradient_checkpointing": False}
    return _TRL, [str(model), str(chats), json.dumps(_OF_TRAINER | own | way.settings)]


def _llama_factory(way: Way, model: Path, chats: Path, folder: Path) -> tuple[str, list[str]]:
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    info = {"file_name": chats.name, "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": tags}
    (folder / "dataset_info.json").write_text(json.dumps({"chats": info}))
    own: Settings = {
        "stage": "sft", "do_train": True, "finetuning_type": "full", "model_name_or_path": str(model),
        "template": "qwen2_vl" if way.images else "qwen3", "dataset": "chats", "dataset_dir": str(folder),
        "cutoff_len": _LEN, "flash_attn": "fa2" if way.flash else "sdpa", "disable_gradient_checkpointing": True,
        "overwrite_cache": True,
    }  # fmt: skip
    (folder / "train.yaml").write_text(yaml.safe_dump(_OF_TRAINER | own | way.settings))
    return _LLAMA_FACTORY, ["train.yaml"]


def _swift(way: Way, model: Path, chats: Path, folder: Path) -> tuple[str, list[str]]:
    kind = "qwen2_5_vl" if way.images else "qwen3"
    own: Settings = {
        "model": model, "model_type": kind, "template": kind, "dataset": chats, "max_length": _LEN,
        "tuner_type": "full", "torch_dtype": "float32", "attn_impl": "flash_attn" if way.flash else "sdpa",
        "check_model": False, "dataloader_num_workers": 0, "add_version": False, "split_dataset_ratio": 0,
        "gradient_checkpointing": False, "load_from_cache_file": False, "use_logits_to_keep": False,
        "output_dir": folder / "out",
    }  # fmt: skip
    return _SWIFT, options(_OF_TRAINER | own | way.settings)


def _axolotl(way: Way, model: Path, chats: Path, folder: Path) -> tuple[str, list[str]]:
    own: Settings = {
        "base_model": str(model), "datasets": [{"path": str(chats), "ds_type": "json", "type": "chat_template"}],
        "sequence_len": _LEN, "micro_batch_size": 1, "gradient_accumulation_steps": 1, "max_steps": 1,
        "optimizer": "adamw_torch", "learning_rate": 1e-4, "bf16": False, "fp16": False, "tf32": False,
        "attn_implementation": "flash_attention_2" if way.flash else "sdpa", "gradient_checkpointing": False,
        "val_set_size": 0, "dataloader_num_workers": 0, "device": "cpu", "output_dir": "out", "dataset_processes": 1,
        "save_strategy": "no", "pad_to_sequence_len": True,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(own | way.settings))
    return _AXOLOTL, ["config.yaml"]


_MAKERS = {"trl": _trl, "llamafactory": _llama_factory, "swift": _swift, "axolotl": _axolotl}

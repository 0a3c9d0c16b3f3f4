"""How each trainer's recipe is run: its environment, its file, its words or its YAML."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from support.environments import python_of
from support.running import ROOT

RECIPES = ROOT / "recipes" / "trainers"
Settings = dict[str, Any]

#: settings that every recipe is given
COMMON: Settings = {"gradient_accumulation_steps": 2, "learning_rate": 2e-3, "logging_steps": 1}
_OF_TRAINER = {**COMMON, "lr_scheduler_type": "constant", "report_to": "none", "output_dir": "out"}
#: one rank may train on a GPU where there is one; each step is compared with a plain copy on the CPU
ON_GPU = torch.cuda.is_available()
_CPU = {"use_cpu": not ON_GPU, "bf16": False, "disable_tqdm": True}
_OF_SWIFT = {
    "tuner_type": "full", "torch_dtype": "float32", "attn_impl": "sdpa", "check_model": False,
    "dataloader_num_workers": 0, "add_version": False, "use_cpu": not ON_GPU,
}  # fmt: skip
_OF_LLAMA_FACTORY = {
    "do_train": True, "finetuning_type": "full", "per_device_train_batch_size": 1, "flash_attn": "sdpa",
    "disable_gradient_checkpointing": True, "overwrite_output_dir": True, "ddp_find_unused_parameters": True,
}  # fmt: skip
_OF_AXOLOTL = {
    "plugins": ["axolotl_packs.Packs"], "skip_prepare_dataset": True, "remove_unused_columns": False,
    "curriculum_sampling": True, "sample_packing": False, "sequence_len": 1024, "micro_batch_size": 1,
    "lr_scheduler": "constant", "optimizer": "adamw_torch", "bf16": False, "fp16": False, "tf32": False,
    "attn_implementation": "sdpa", "gradient_checkpointing": False, "val_set_size": 0, "dataloader_num_workers": 0,
    "use_tensorboard": False, "device": "cpu", "output_dir": "out",
    "ddp_find_unused_parameters": True,
}  # fmt: skip
_AXOLOTL = """
import sys
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train
cfg = load_cfg(sys.argv[1])
cfg.device_map = {"": "cpu"}  # with ranks it names each rank's GPU
do_train(cfg, TrainerCliArgs())
"""


def has_images(model: Path) -> bool:
    return "vision_config" in json.loads((model / "config.json").read_text())


def options(settings: Settings) -> list[str]:
    """Words of a command."""
    return [
        word
        for name, value in settings.items()
        for word in (f"--{name}", json.dumps(value) if isinstance(value, dict | bool) else str(value))
    ]


def _of_trainer(recipe: str) -> Callable[[Path, Path, Path, Settings], list[Any]]:
    def words(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
        return [RECIPES / recipe, packs, model, *options(_OF_TRAINER | _CPU | settings)]

    return words


def _of_swift(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    kind = "qwen2_5_vl" if has_images(model) else "qwen3"
    own: Settings = {"model": model, "model_type": kind, "template": kind, "output_dir": folder / "out"}
    if has_images(model):
        own |= {"freeze_vit": False, "freeze_aligner": False}
    return [RECIPES / "with_ms_swift.py", packs, *options(_OF_TRAINER | _OF_SWIFT | own | settings)]


def _of_llama_factory(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    own: Settings = {"model_name_or_path": str(model), "template": "qwen3"}
    if has_images(model):
        own |= {"template": "qwen2_vl", "freeze_vision_tower": False, "freeze_multi_modal_projector": False}
    (folder / "train.yaml").write_text(yaml.safe_dump(_OF_TRAINER | _CPU | _OF_LLAMA_FACTORY | own | settings))
    return [RECIPES / "with_llama_factory.py", packs, "train.yaml"]


def _of_axolotl(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    own: Settings = {"base_model": str(model), "datasets": [{"path": str(packs), "type": "chat_template"}]}
    if has_images(model):
        own["processor_type"] = "AutoProcessor"
    (folder / "config.yaml").write_text(yaml.safe_dump(COMMON | _OF_AXOLOTL | own | settings))
    (folder / "run_axolotl.py").write_text(_AXOLOTL)
    return [folder / "run_axolotl.py", "config.yaml"]


@dataclass(frozen=True)
class Stack:
    """A trainer."""

    environment: str
    #: packs, model, folder to run in, settings → a script and its words
    words: Callable[[Path, Path, Path, Settings], list[Any]]
    #: settings that name the model and the checkpoint where it goes on
    model: str = ""
    #: environment variables; WATCH is for watched.py
    variables: tuple[tuple[str, str], ...] = ()


STACKS: dict[str, Stack] = {
    "trl": Stack("trl", _of_trainer("with_trl.py")),
    "trainer": Stack("trl", _of_trainer("with_trainer.py")),
    "swift": Stack("swift", _of_swift, "model"),
    "llamafactory": Stack("llamafactory", _of_llama_factory, "model_name_or_path", (("WATCH", "positions"),)),
    "axolotl": Stack("axolotl", _of_axolotl, "base_model", (("WATCH", "positions"), ("ACCELERATE_USE_CPU", "true"))),
}


#: what is imported once, before each way forks
MODULES = {
    "trl": "trl",
    "trainer": "transformers",
    "swift": "swift.pipelines.train.sft",
    "llamafactory": "llamafactory.train.tuner",
    "axolotl": "axolotl.train",
}


def said_to(name: str, ways: dict[str, Any], folder: Path, **more: str) -> dict[str, str]:
    """What each way into a trainer is told in its environment, by `tried.py`."""
    (folder / "ways.json").write_text(json.dumps(ways))
    said: dict[str, str] = _noted(STACKS[name], "tried.py", [MODULES[name], folder / "ways.json"], folder, [], more)
    return said


def run(stack: Stack, script: str, words: list[Any], folder: Path, ranks: int = 1, **more: str) -> Any:
    """What a script of this folder notes, in the stack's environment."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return _noted(stack, script, words, folder, launch, more)


def _noted(stack: Stack, script: str, words: list[Any], folder: Path, launch: list[str], more: dict[str, str]) -> Any:
    """Run a script that writes JSON into its first argument; return it.

    Raises:
        OSError: the environment can't be made.
    """
    out = folder / "noted.json"
    out.unlink(missing_ok=True)
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    variables |= {"HOME": str(folder), "PYTHONPATH": f"{ROOT}:{RECIPES}:{ROOT / 'tests'}", **dict(stack.variables)}
    path = ROOT / "tests" / "support" / "trainers" / script
    command = list(map(str, [python_of(stack.environment), "-W", "ignore", *launch, path, out, *words]))
    done = subprocess.run(command, cwd=folder, env=variables | more, capture_output=True, text=True, timeout=1800)
    (folder / "log").write_text(done.stdout + done.stderr)
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    assert done.returncode == 0, "\n".join([*errors[:8], done.stderr[-2000:]])
    return json.loads(out.read_text())

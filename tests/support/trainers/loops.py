"""How the recipes of trainers with loops of their own are run: for `stacks.run`, with `watched_NAME.py`."""

import json
from pathlib import Path
from typing import Any

import yaml

from support.trainers.environments import python_of
from support.trainers.stacks import RECIPES, Settings, Stack

#: torchrun's variables, for one rank without it
_ONE_RANK = (
    ("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "0"),
)  # fmt: skip
_TITAN = "from torchtitan.train import main\nmain()\n"
_OF_VERL = {
    "data.num_workers": 0, "data.max_token_len_per_gpu": 1024, "trainer.total_epochs": 3, "trainer.logger": "[console]",
    "trainer.default_local_dir": "out", "trainer.device": "cpu", "optim.lr": 2e-3, "engine.strategy": "fsdp2",
    "engine.use_torch_compile": False, "model.enable_gradient_checkpointing": False, "hydra.run.dir": ".",
    "+model.override_config.attn_implementation": "sdpa", "+engine.mixed_precision.param_dtype": "fp32",
}  # fmt: skip
_OF_TITAN = {
    "training.seq_len": 1024, "training.local_batch_size": 1, "training.mixed_precision_param": "float32",
    "debug.seed": 0, "optimizer.param-groups.0.optimizer-kwargs.lr": 2e-3, "metrics.log_freq": 1,
    "parallelism.spmd_backend": "partial_dtensor",
}  # fmt: skip
_OF_TUNE: Settings = {
    "output_dir": "out", "resume_from_checkpoint": False, "seed": 0, "shuffle": False, "batch_size": 1, "device": "cpu",
    "gradient_accumulation_steps": 2, "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-3},
    "optimizer_in_bwd": False, "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "dtype": "fp32", "enable_activation_checkpointing": False, "enable_activation_offloading": False,
    "clip_grad_norm": None, "compile": False, "log_every_n_steps": 1, "log_peak_memory_stats": False,
    "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "out"},
}  # fmt: skip


def _of_lightning(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    words = {"accumulate": 2, "learning_rate": 2e-3, "accelerator": "cpu"} | settings
    return [RECIPES / "with_lightning.py", packs, model, *(f"--{name}={value}" for name, value in words.items())]


def _of_verl(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    words = {"data.train_files": packs, "model.path": model} | _OF_VERL | settings
    return [RECIPES / "with_verl.py", *(f"{name}={value}" for name, value in words.items())]


def _of_titan(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    (folder / "run_torchtitan.py").write_text(_TITAN)
    words = {"module": "torchtitan_packs", "config": "packs", "hf_assets_path": model, "dataloader.dataset_path": packs}
    words |= _OF_TITAN | settings
    flags = ["--training.disable_cuda_graphs", "--checkpoint.enable"]
    return [folder / "run_torchtitan.py", *flags, *(f"--{name}={value}" for name, value in words.items())]


def _of_tune(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    sizes = json.loads((model / "config.json").read_text())
    names = {
        "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads", "embed_dim": "hidden_size", "intermediate_dim": "intermediate_size",
    }  # fmt: skip
    own: Settings = {
        "model": {"_component_": "torchtune.models.qwen2.qwen2", "max_seq_len": 1024, "norm_eps": 1e-6}
        | {"rope_base": 10000.0, **{name: sizes[theirs] for name, theirs in names.items()}},
        "tokenizer": {"_component_": "torchtune.models.qwen2_5.qwen2_5_tokenizer", "path": str(model / "vocab.json")}
        | {"merges_file": str(model / "merges.txt")},
        "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "model_type": "QWEN2"}
        | {"checkpoint_dir": str(model), "checkpoint_files": ["model.safetensors"], "output_dir": "out"}
        | {"recipe_checkpoint": None},
        "dataset": {"_component_": "torchtune_packs.Packs", "dataset": str(packs), "processor": str(model)}
        | {"packed": True},
    }
    recipe, words = settings.pop("recipe"), settings.pop("words", [])
    (folder / "config.yaml").write_text(yaml.safe_dump(_OF_TUNE | own | settings))
    (site,) = python_of("torchtune").parent.parent.glob("lib/python*/site-packages")
    return [site / "recipes" / f"{recipe}.py", "--config", "config.yaml", *words]


LOOPS: dict[str, Stack] = {
    "lightning": Stack("lightning", _of_lightning),
    "verl": Stack("verl", _of_verl, variables=(*_ONE_RANK, ("WATCH", "positions"))),
    "torchtitan": Stack("torchtitan", _of_titan, variables=_ONE_RANK),
    "torchtune": Stack("torchtune", _of_tune),
}

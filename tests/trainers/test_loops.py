"""Recipes of trainers with loops of their own: every step has the loss of its samples alone, stopped or not.

verl and torchtitan ask for a GPU; `watched_verl.py` and `watched_torchtitan.py` say what they are given in its place.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from energon_pack.config import Rope
from energon_pack.plan.settings import GroupBy
from energon_pack.trainers.on_disk import PackedDataset
from support.environments import python_of
from support.packed import demo_config, packed
from support.running import need_torchvision
from support.trainers.sets import TrainedOn, media, texts
from support.trainers.stacks import ON_GPU, RECIPES, Settings, Stack, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

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
    **({} if ON_GPU else {"parallelism.spmd_backend": "partial_dtensor"}),
}  # fmt: skip
_OF_TUNE: Settings = {
    "output_dir": "out", "resume_from_checkpoint": False, "seed": 0, "shuffle": False, "batch_size": 1,
    "device": "cuda" if ON_GPU else "cpu",
    "gradient_accumulation_steps": 2, "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-3},
    "optimizer_in_bwd": False, "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "dtype": "fp32", "enable_activation_checkpointing": False, "enable_activation_offloading": False,
    "clip_grad_norm": None, "compile": False, "log_every_n_steps": 1, "log_peak_memory_stats": False,
    "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "out"},
}  # fmt: skip


def _of_lightning(packs: Path, model: Path, folder: Path, settings: Settings) -> list[Any]:
    words = {"accumulate": 2, "learning_rate": 2e-3, "accelerator": "gpu" if ON_GPU else "cpu"} | settings
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

STEPS = 20


@pytest.fixture(scope="module")
def of_media(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedOn:
    need_torchvision()
    return media(demo, cache, tmp_path_factory.mktemp("media"))


@pytest.fixture(scope="module")
def of_texts(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedOn:
    need_torchvision()
    return texts(demo, cache, tmp_path_factory.mktemp("texts"))


def train(name: str, made: TrainedOn, folder: Path, ranks: int = 1, num: int = STEPS, **settings: Any) -> list[float]:
    """Train; the losses of the steps, each of which is that of its samples alone."""
    stack = LOOPS[name]
    try:
        words = stack.words(made.packs, made.model, folder, settings)
        noted = run(stack, f"watched_{name}.py", words, folder, ranks)
    except OSError as error:
        pytest.skip(str(error))
    losses: list[float] = noted["losses"]
    pairs = list(zip(losses, noted["expected"], strict=True))
    largest = max(abs(loss - expected) for loss, expected in pairs)
    print(f"{name} {made.packs.parent.name}, {ranks} ranks, {len(pairs)} steps: {largest:.1e}, to {losses[-1]:.3f}")
    assert len(pairs) == num
    assert largest <= 1e-5
    assert losses[-1] < losses[0]
    return losses


@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_goes_on_where_it_stopped(of_media: TrainedOn, tmp_path: Path, ranks: int) -> None:
    """With its own DataLoader in place of the stateful one, an epoch would begin again."""
    settings = {"devices": ranks, "max_steps": STEPS, "save_steps": STEPS // 2}
    whole = train("lightning", of_media, tmp_path, ranks, **settings)
    stopped = f"out/step={STEPS // 2}.ckpt"
    rest = train("lightning", of_media, tmp_path, ranks, STEPS // 2, ckpt_path=stopped, **settings)
    assert rest == pytest.approx(whole[STEPS // 2 :], abs=1e-6)


def test_verl_goes_on_where_it_stopped(of_media: TrainedOn, cache: Path, tmp_path: Path) -> None:
    """Each pack has an image: verl 0.9.1 stops at a micro-batch of text in Qwen2.5-VL, at qwen2_vl.py:394."""
    settings: dict[str, Any] = {"model__rope": Rope.qwen2_5_vl, "packing__max_token_len": 2048}
    settings |= {"packing__group_by": GroupBy.none, "packing__need_image": True}
    mixed = packed(demo_config((of_media.source, of_media.model), cache, tmp_path, **settings))
    made = TrainedOn(mixed, of_media.model, of_media.source)
    words = {"trainer.total_training_steps": STEPS, "trainer.save_freq": STEPS // 2, "data.train_batch_size": 2}
    words |= {"data.max_token_len_per_gpu": 2048}
    whole = train("verl", made, tmp_path, **words)
    forget(tmp_path / "out", f"global_step_{STEPS}")
    (tmp_path / "out" / "latest_checkpointed_iteration.txt").write_text(str(STEPS // 2))
    rest = train("verl", made, tmp_path, num=STEPS // 2, **words)
    assert rest == pytest.approx(whole[STEPS // 2 :], abs=1e-6)


def test_two_ranks_of_verl(of_texts: TrainedOn, tmp_path: Path) -> None:
    words: dict[str, Any] = {"trainer.total_training_steps": STEPS, "data.train_batch_size": 4}
    train("verl", of_texts, tmp_path, 2, **words)


@pytest.mark.parametrize("ranks", [1, 2])
def test_torchtitan_goes_on_where_it_stopped(of_texts: TrainedOn, tmp_path: Path, ranks: int) -> None:
    words = {"training.steps": STEPS, "checkpoint.interval": STEPS // 2, "training.global_batch_size": 2 * ranks}
    whole = train("torchtitan", of_texts, tmp_path, ranks, **words)
    forget(tmp_path / "outputs" / "checkpoint", f"step-{STEPS}")
    rest = train("torchtitan", of_texts, tmp_path, ranks, STEPS // 2, **words)
    assert rest == pytest.approx(whole[STEPS // 2 :], abs=1e-6)


@pytest.mark.parametrize(("recipe", "ranks"), [("full_finetune_single_device", 1), ("full_finetune_distributed", 2)])
def test_torchtune_goes_on_where_it_stopped(of_texts: TrainedOn, tmp_path: Path, recipe: str, ranks: int) -> None:
    """Its checkpoints are those of epochs, so an epoch has ten steps here."""
    made = TrainedOn(of_texts.packs, qwen2(of_texts, tmp_path / "qwen2"), of_texts.source)
    words: dict[str, Any] = {"recipe": recipe, "epochs": 2, "max_steps_per_epoch": STEPS // 2}
    whole = train("torchtune", made, tmp_path, ranks, **words)
    forget(tmp_path / "out", "epoch_1")
    stopped = "checkpointer.checkpoint_files=[epoch_0/model-00001-of-00001.safetensors]"
    again = ["resume_from_checkpoint=True", stopped]
    rest = train("torchtune", made, tmp_path, ranks, STEPS // 2, words=again, **words)
    assert rest == pytest.approx(whole[STEPS // 2 :], abs=1e-6)


def test_megatron_bridge_reads_packs_by_its_own_energon_dataset(of_media: TrainedOn, tmp_path: Path) -> None:
    """Its three encoders know no packs, and say so; it never trains here, for it has no CPU."""
    stack = Stack("bridge", lambda packs, model, *_: [packs, model])
    try:
        noted = run(stack, "bridge_batches.py", stack.words(of_media.packs, of_media.model, tmp_path, {}), tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    assert noted["theirs"].startswith("FatalSampleError")
    assert noted["in the order of the plan"] == [True] * 5


def forget(folder: Path, name: str) -> None:
    """Remove a checkpoint."""
    assert len(list(folder.iterdir())) > 1
    shutil.rmtree(folder / name)


def qwen2(made: TrainedOn, folder: Path) -> Path:
    """A tiny Qwen2, for torchtune knows no Qwen3."""
    import torch
    import transformers

    shutil.copytree(made.model, folder)
    size = PackedDataset(made.packs, str(folder)).encoder.rules.num_ids
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=size, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    return folder

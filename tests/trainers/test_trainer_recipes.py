"""Recipes with each trainer's own code: every step has the loss of its samples alone, before a stop and after it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from train_tiny import tiny_model

from energon_pack.config import Rope
from energon_pack.on_disk import PackedDataset
from support.packed import demo_config, packed
from support.running import ROOT, need_torchvision
from support.samples import WORDS, chat, video, write_tar
from support.trainers.environments import python_of

pytestmark = pytest.mark.slow

STEPS = 20
#: of transformers' arguments, those that every recipe is given
COMMON: dict[str, Any] = {
    "max_steps": STEPS,
    "gradient_accumulation_steps": 2,
    "learning_rate": 2e-3,
    "save_steps": STEPS // 2,
    "logging_steps": 1,
}
OF_TRAINER = {**COMMON, "lr_scheduler_type": "constant", "report_to": "none"}
CPU = {"use_cpu": True, "bf16": False, "disable_tqdm": True}
OF_SWIFT = {
    "model_type": "qwen2_5_vl", "template": "qwen2_5_vl", "tuner_type": "full", "torch_dtype": "float32",
    "freeze_vit": False, "freeze_aligner": False, "attn_impl": "sdpa", "check_model": False,
    "dataloader_num_workers": 0,
}  # fmt: skip
OF_LLAMA_FACTORY = {
    "do_train": True, "finetuning_type": "full", "template": "qwen2_vl", "freeze_vision_tower": False,
    "freeze_multi_modal_projector": False, "per_device_train_batch_size": 1, "flash_attn": "sdpa",
    "disable_gradient_checkpointing": True, "overwrite_output_dir": True,
}  # fmt: skip
OF_AXOLOTL = {
    "processor_type": "AutoProcessor", "plugins": ["axolotl_packs.Packs"], "skip_prepare_dataset": True,
    "remove_unused_columns": False, "curriculum_sampling": True, "sample_packing": False, "sequence_len": 1024,
    "micro_batch_size": 1, "lr_scheduler": "constant", "optimizer": "adamw_torch", "bf16": False, "fp16": False,
    "tf32": False, "attn_implementation": "sdpa", "gradient_checkpointing": False, "val_set_size": 0,
    "dataloader_num_workers": 0, "use_tensorboard": False, "device": "cpu", "use_cpu": True,
}  # fmt: skip
AXOLOTL = """
import sys
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train
do_train(load_cfg(sys.argv[1]), TrainerCliArgs())
"""


@pytest.fixture(scope="module")
def made(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Packs of text, images and videos; a folder with a tiny Qwen2.5-VL and its processor."""
    need_torchvision()
    folder = tmp_path_factory.mktemp("frameworks")
    source, model = folder / "source", folder / "model"
    shutil.copytree(demo[0], source)
    clips: dict[str, bytes] = {}
    for number in range(24):
        clips[f"v{number:03d}.mp4"] = video(num_frames=10 * (1 + number % 3))
        clips[f"v{number:03d}.json"] = chat("<video>What is shown?", WORDS[: 20 + 7 * number])
    write_tar(source / "video-000000.tar", clips)
    shutil.copytree(demo[1], model)
    (model / "config.json").write_text(json.dumps({"vision_config": {"tokens_per_second": 2}}))
    settings: dict[str, Any] = {"model__rope": Rope.qwen2_5_vl, "packing__max_token_len": 1024}
    packs = packed(demo_config((source, model), cache, folder, **settings))
    tiny_model(PackedDataset(packs, str(model)).encoder).save_pretrained(model)
    return packs, model


def options(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value).lower())]


def train(trainer: str, recipe: Path, arguments: list[Any], folder: Path, ranks: int = 1, **more: str) -> Any:
    """What `support/trainers/watched.py` notes."""
    try:
        python = python_of(trainer)
    except OSError as error:
        pytest.skip(str(error))
    out = folder / "noted.json"
    out.unlink(missing_ok=True)
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "AXOLOTL_DO_NOT_TRACK": "1", **more}
    variables["PYTHONPATH"] = f"{ROOT}:{ROOT / 'recipes' / 'trainers'}"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    script = ROOT / "tests" / "support" / "trainers" / "watched.py"
    words = [str(word) for word in (python, "-W", "ignore", *launch, script, out, recipe, *arguments)]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    noted = json.loads(out.read_text())
    pairs = list(zip(noted["losses"], noted["expected"], strict=True))
    largest = max(abs(loss - expected) for loss, expected in pairs)
    print(f"{trainer} {recipe.name}, {ranks} ranks, {len(pairs)} steps: {largest:.1e}; {noted['checks']}")
    assert largest <= 1e-5
    assert pairs[-1][0] < pairs[0][0]
    assert all(line.startswith("✓") and "in the order of as_dataset" in line for line in noted["checks"])
    return noted


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["with_trl", "with_trainer"])
def test_trl_and_the_trainer_go_on_where_they_stopped(
    made: tuple[Path, Path], tmp_path: Path, name: str, ranks: int
) -> None:
    recipe = ROOT / "recipes" / "trainers" / f"{name}.py"
    common = [*made, "--output_dir", "out", *options(OF_TRAINER | CPU)]
    whole = train("trl", recipe, common, tmp_path, ranks)
    assert len(whole["losses"]) == STEPS
    rest = train("trl", recipe, [*common, "--resume_from_checkpoint", f"out/checkpoint-{STEPS // 2}"], tmp_path, ranks)
    assert rest["losses"] == pytest.approx(whole["losses"][STEPS // 2 :], abs=1e-6)


def test_ms_swift(made: tuple[Path, Path], tmp_path: Path) -> None:
    recipe = ROOT / "recipes" / "trainers" / "with_ms_swift.py"
    settings = OF_TRAINER | OF_SWIFT | {"model": made[1], "output_dir": tmp_path / "out"}
    noted = train("swift", recipe, [made[0], *options(settings)], tmp_path, HOME=str(tmp_path))
    assert len(noted["losses"]) == STEPS


def test_llama_factory(made: tuple[Path, Path], tmp_path: Path) -> None:
    settings = OF_TRAINER | CPU | OF_LLAMA_FACTORY | {"model_name_or_path": str(made[1]), "output_dir": "out"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    recipe = ROOT / "recipes" / "trainers" / "with_llama_factory.py"
    noted = train("llamafactory", recipe, [made[0], "train.yaml"], tmp_path, WATCH="positions")
    assert len(noted["losses"]) == STEPS


def test_axolotl(made: tuple[Path, Path], tmp_path: Path) -> None:
    datasets = [{"path": str(made[0]), "type": "chat_template"}]
    settings = COMMON | OF_AXOLOTL | {"base_model": str(made[1]), "datasets": datasets, "output_dir": "out"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "run_axolotl.py").write_text(AXOLOTL)
    noted = train("axolotl", tmp_path / "run_axolotl.py", ["config.yaml"], tmp_path, WATCH="positions")
    assert len(noted["losses"]) == STEPS


def test_the_tiny_model_is_in_float32(made: tuple[Path, Path]) -> None:
    """In bfloat16 no difference below 1e-2 would show."""
    assert json.loads((made[1] / "config.json").read_text())["dtype"] == str(torch.float32).removeprefix("torch.")

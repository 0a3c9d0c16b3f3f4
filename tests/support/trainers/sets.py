"""What a trainer is given: packs of 1,024 tokens, and a folder with a tiny random model and its processor."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_tiny import tiny_model

from energon_pack.config import ModelConfig, Rope
from energon_pack.on_disk import PackedDataset
from energon_pack.training.pack_encoder import PackEncoder
from support.packed import demo_config, packed
from support.samples import WORDS, chat, video, write_tar

#: files of the demo's processor that a model of texts has, too
_OF_TEXTS = ("tokenizer", "special_tokens", "chat_template", "vocab", "merges")


@dataclass(frozen=True)
class TrainedOn:
    """Packs, and a model."""

    packs: Path
    model: Path
    #: the folder that the packs were made of
    source: Path


def media(demo: tuple[Path, Path], cache: Path, folder: Path) -> TrainedOn:
    """Texts, images and videos; a Qwen2.5-VL."""
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
    return TrainedOn(packs, model, source)


def texts(demo: tuple[Path, Path], cache: Path, folder: Path) -> TrainedOn:
    """Texts of 100 to 900 tokens; a Qwen3."""
    source, model = folder / "source", folder / "model"
    chats = {f"t{i:03d}.json": chat(f"Say it {i} times.", WORDS * (1 + i * 7 % 9)) for i in range(160)}
    write_tar(source / "texts-000000.tar", chats)
    model.mkdir()
    for file in demo[1].iterdir():
        if file.name.startswith(_OF_TEXTS):
            shutil.copy(file, model)
    of_texts = ModelConfig("text", "text", "Qwen/Qwen3-8B", str(model))
    packs = packed(demo_config((source, model), cache, folder, model=of_texts, packing__max_token_len=1024))
    _tiny_qwen3(PackedDataset(packs, str(model)).encoder).save_pretrained(model)
    return TrainedOn(packs, model, source)


def _tiny_qwen3(encoder: PackEncoder) -> Any:
    import torch
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=encoder.rules.num_ids, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()


def lazy_settings(made: TrainedOn) -> str:
    """The settings, as JSON, with which the same packs are made while they are loaded."""
    model = "qwen2_5_vl" if (made.source / "video-000000.tar").exists() else "text"
    return json.dumps(
        [
            f"+model={model}", f"source.path={made.source}", "packing.max_token_len=1024", "packing.overlong=drop",
            f"cache_dir={made.model.parent / 'cache'}", "executor.num_workers=1",
        ]
    )  # fmt: skip

"""Training without packs, in transformers' own way, and what recipes on packs are compared with it by."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from energon_pack.config import Rope
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.samples.input_rules import InputRules
from energon_pack.templates.template import Template
from energon_pack.training.layout import IGNORE
from energon_pack.training.member_encoder import Encoded
from support.packed import demo_config, packed, train


def pack_demo(demo: tuple[Path, Path], cache: Path, folder: Path) -> Path:
    """60 of the demo's samples for Qwen2.5-VL, in shards of a few packs."""
    settings: dict[str, Any] = {"source__limit": 60, "packing__max_token_len": 800, "output__max_shard_packs": 2}
    return packed(demo_config(demo, cache, folder, model__rope=Rope.qwen2_5_vl, **settings))


def demo_model(tokens_of: Template | InputRules) -> Any:
    """A tiny random Qwen2.5-VL with the demo's tokens."""
    import transformers as tf

    tokens: dict[str, Any] = {name: tokens_of.token_id(f"<|{name}_pad|>") for name in ("image", "video")}
    text: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    text |= {"num_key_value_heads": 2, "vocab_size": 1100, "pad_token_id": 0, "initializer_range": 0.1}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    vision = {"depth": 1, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_heads": 2}
    config = tf.Qwen2_5_VLConfig(
        text_config=text, vision_config={**vision, "fullatt_block_indexes": [0], "tokens_per_second": 2},
        image_token_id=tokens["image"], video_token_id=tokens["video"],
    )  # fmt: skip
    torch.manual_seed(0)
    return tf.AutoModelForImageTextToText.from_config(config)


def members_of(dataset: Path, encoder: PackedTaskEncoder, wanted: Iterable[str]) -> dict[str, Encoded]:
    """These samples of a packed dataset by id, each encoded by itself, with its own media."""
    names = set(wanted)
    inputs = [member for pack in train(dataset) for member in inputs_of(pack) if member.sample_id in names]
    return {member.sample_id: encoder.members.encode_alone(member) for member in inputs}


def losses_alone(
    model: Any, optimizer: Any, members: dict[str, Encoded], steps: Sequence[Sequence[str]], weight: str = "token"
) -> list[float]:
    """Train on the members of each step, one forward for each; the weighted mean of the loss of each step's tokens.

    A forward has what the model's processor gives, and a mask of ones; the model makes positions by itself.
    """
    found = []
    for ids in steps:
        tokens = [members[name].tokens for name in ids]
        counts = [int((of.labels != IGNORE).sum()) for of in tokens]
        weights = [count ** {"token": 0.0, "sample": -1.0, "sqrt": -0.5}[weight] for count in counts]
        total = sum(each * count for each, count in zip(weights, counts, strict=True))
        losses = []
        for name, of, each in zip(ids, tokens, weights, strict=True):
            inputs = {"input_ids": of.ids[None], "mm_token_type_ids": of.types[None], **members[name].media}
            logits = model(**inputs, attention_mask=torch.ones_like(of.ids[None]), use_cache=False).logits[0, :-1]
            loss = cross_entropy(logits.double(), of.labels[1:], ignore_index=IGNORE, reduction="sum") * each / total
            loss.backward()
            losses.append(float(loss.detach()))
        for parameter in model.parameters():  # a step without images: recipes have gradients of 0, by a dummy
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(sum(losses))
    return found

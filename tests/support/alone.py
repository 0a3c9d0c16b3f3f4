"""Training without packs, in transformers' own way, and what recipes on packs are compared with it by."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from energon_pack.config import Rope
from energon_pack.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.training.layout import IGNORE
from energon_pack.training.members import Encoded
from support.packed import demo_config, packed, train


def pack_demo(demo: tuple[Path, Path], cache: Path, folder: Path) -> Path:
    """60 of the demo's samples for Qwen2.5-VL, in shards of a few packs."""
    settings: dict[str, Any] = {"source__limit": 60, "packing__max_token_len": 800, "output__max_shard_packs": 2}
    return packed(demo_config(demo, cache, folder, model__rope=Rope.qwen2_5_vl, **settings))


def members_of(dataset: Path, encoder: PackedTaskEncoder, wanted: Iterable[str]) -> dict[str, Encoded]:
    """These samples of a packed dataset by id, each encoded by itself, with its own media."""
    names = set(wanted)
    inputs = [member for pack in train(dataset) for member in inputs_of(pack) if member.sample_id in names]
    return {member.sample_id: encoder.members.encode(member) for member in inputs}


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

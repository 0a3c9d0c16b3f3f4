"""Packs that share beginnings, written and read by Energon: a step on them is a step on their samples alone."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from energon_pack import PackedTaskEncoder, guard, total_weight, use_tree_attention, weighted_loss
from energon_pack.config import Rope
from energon_pack.plan.settings import Share
from energon_pack.task_encoder import inputs_of
from energon_pack.training.layout import loss_weights
from support.alone import demo_model
from support.marks import first_of
from support.packed import demo_config, packed, train
from support.running import need_torchvision
from support.samples import chat, noise, write_tar


@pytest.fixture(scope="module")
def dataset(demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of four questions each, one of them with a second image; a trajectory; a chat of its own."""
    tar: dict[str, bytes] = {}
    for number in range(8):
        more = number == 5
        tar[f"q{number}.json"] = chat(f"<image>What is {number}?", "It is one.", f"And {'<image>' * more}?", "Two.")
        tar[f"q{number}.0.png" if more else f"q{number}.png"] = noise(number % 2, 112)
        tar |= {f"q{number}.1.png": noise(7, 84)} if more else {}
    long = "one two three four five six seven eight nine ten " * 2
    tar["t1.json"] = chat(long, "yes")
    tar["t2.json"] = chat(long, "yes", "And then?", "no")
    tar["t3.json"] = chat("alone", "yes")
    source = tmp_path_factory.mktemp("trees")
    write_tar(source / "a.tar", tar)
    settings: dict[str, Any] = {"packing__share": Share.prefix, "packing__share_min_tokens": 20}
    settings |= {"packing__max_token_len": 1024, "model__rope": Rope.qwen2_5_vl}
    return packed(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), source, **settings))


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("how", first_of(["varlen", "sdpa"]))
def test_a_step_on_packs_with_trees_is_a_step_on_their_samples(
    how: str, dataset: Path, demo: tuple[Path, Path]
) -> None:
    need_torchvision()
    encoder = PackedTaskEncoder(dataset, str(demo[1]), loss_weight="sqrt", tokens_per_second=2)
    model = demo_model(encoder.rules)
    plain = copy.deepcopy(model)
    if how == "varlen":
        use_tree_attention(model)
    guarded = guard(model, encoder)
    assert guarded.trees is not None
    inputs = [list(inputs_of(pack)) for pack in train(dataset)]
    batches = [encoder.batch([encoder.encode_sample(pack)]) for pack in train(dataset)]
    members = [encoder.members.encode(one) for pack in inputs for one in pack]
    assert len({one.sample_id for one in members}) == 11
    own = sum(batch["num_tokens"] for batch in batches)
    whole = sum(len(one.tokens) for one in members)
    assert own < 0.8 * whole
    assert sum(int(batch["n_images_per_sample"].sum()) for batch in batches) == 3
    total = torch.stack([total_weight(batch) for batch in batches]).sum()
    losses = [weighted_loss(model(**batch.model_inputs(model, labels=False)).logits, batch, total) for batch in batches]
    expected = []
    for one in members:
        given = {"input_ids": one.tokens.ids[None], "mm_token_type_ids": one.tokens.types[None], **one.media}
        logits = plain(**given, attention_mask=torch.ones_like(one.tokens.ids[None]), use_cache=False).logits[0, :-1]
        each = cross_entropy(logits, one.tokens.ids[1:], reduction="none")
        expected.append((each * loss_weights(one.tokens, "sqrt")[1:]).sum() / total)
    loss, loss_alone = torch.stack(losses).sum(), torch.stack(expected).sum()
    assert float(loss.detach()) == pytest.approx(float(loss_alone.detach()), rel=1e-5)
    found, wanted = gradients(model, loss), gradients(plain, loss_alone)
    largest = max(float(one.abs().max()) for one in wanted.values())
    far = max(float((found[name] - wanted[name]).abs().max()) for name in wanted) / largest
    print(f"{whole} → {own} tokens, gradients {far:.1e}")
    assert far <= 1e-5

"""The model that is trained runs with a batch: what was put into it, patched or hooked can't hide."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

from energon_pack.errors import format_bytes
from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import Guard, guard
from energon_pack.training.layout import IGNORE
from energon_pack.training.logit_memory import free_bytes_in_cgroups
from energon_pack.training.member_encoder import Encoded
from support.tiny import FAMILIES, TEXT, MadeEncoder, make_batch, make_members, make_model, text_members, tf

modeling: Any = tf.models.llama.modeling_llama
Attention: Any = modeling.LlamaAttention
Change = Callable[[Any], None]


def causal(attention: Any, hidden_states: Tensor, position_embeddings: Any, **_: Any) -> tuple[Tensor, None]:
    """Attend causally over the whole row, without regard to members."""
    shape = (*hidden_states.shape[:-1], -1, attention.head_dim)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = (part(hidden_states).view(shape).transpose(1, 2) for part in projections)
    query, key = modeling.apply_rotary_pos_emb(query, key, *position_embeddings)
    seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return attention.o_proj(seen.transpose(1, 2).flatten(2)), None


class Mine(nn.Module):
    """Put in the place of an attention."""

    def __init__(self, attention: Any):
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states: Tensor, position_embeddings: Any, **more: Any) -> Any:
        return causal(self.attention, hidden_states, position_embeddings, **more)


class RowNorm(nn.Module):
    def __init__(self, norm: Any):
        super().__init__()
        self.weight = norm.weight

    def forward(self, x: Tensor) -> Any:
        return x / (x.square().mean((1, 2), keepdim=True) + 1e-6).sqrt() * self.weight


def attention_of_one_layer(model: Any) -> None:
    model.model.layers[1].self_attn = Mine(model.model.layers[1].self_attn)


def a_norm_of_the_row(model: Any) -> None:
    for layer in model.model.layers:
        layer.input_layernorm = RowNorm(layer.input_layernorm)


def a_hook_without_mask(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, keywords: (args, {**keywords, "attention_mask": None}), with_kwargs=True
        )


def forward_of_an_instance(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.forward = Mine(layer.self_attn).forward


CHANGES: list[tuple[Change, str]] = [
    (attention_of_one_layer, r"model\.layers\.1\.self_attn \(Mine\)"),
    (a_norm_of_the_row, r"model\.layers\.0\.input_layernorm \(RowNorm\)"),
    (a_hook_without_mask, r"model\.layers\.0\.self_attn \(LlamaAttention\)"),
    (forward_of_an_instance, r"model\.layers\.0\.self_attn \(LlamaAttention\)"),
]


def inputs_of(name: str, model: Any, packs: list[list[Encoded]] | None = None) -> dict[str, Any]:
    batch = make_batch(name, packs or [make_members(name, model)])
    batch.mask = FAMILIES[name].mask
    return batch.model_inputs(model)


def guarded(model: Any, **options: Any) -> tuple[Guard, dict[str, Any]]:
    return guard(model, **options), inputs_of("llama", model)


@pytest.mark.parametrize(("change", "place"), CHANGES)
@pytest.mark.parametrize("is_before", [True, False])
def test_what_a_copy_does_not_have_is_refused_with_its_place(change: Change, place: str, is_before: bool) -> None:
    """Each was accepted: a small copy of class and config has none of it. Logits were off by 0.4 to 7."""
    model = make_model("llama")
    if is_before:
        change(model)
        held, inputs = guarded(model)
    else:
        held, inputs = guarded(model)
        model(**inputs)
        change(model)
    with pytest.raises(MixingError, match=rf"mixes the members of a batch: .* It first shows in {place}"):
        model(**inputs)
    held.remove()
    model(**inputs)


def test_a_model_that_is_guarded_twice_is_guarded() -> None:
    """A notebook's cell runs again: the second guard refused what the first one tried, and both let the model train."""
    model = make_model("llama")
    earlier, _ = guarded(model)
    held, inputs = guarded(model)
    a_hook_without_mask(model)
    earlier.remove()  # it has nothing left to end
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model(**inputs)
    held.remove()
    model(**inputs)


def forward_of_the_class(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modeling.LlamaAttention, "forward", lambda self, *args, **keywords: causal(self, *args, **keywords))


def a_function_of_masks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modeling, "create_causal_mask", lambda *_, **__: None)


def a_table_of_attentions(patch: pytest.MonkeyPatch) -> None:
    table = tf.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping
    old = table["sdpa"]
    patch.setitem(table, "sdpa", lambda module, q, k, v, mask, **keywords: old(module, q, k, v, None, **keywords))


@pytest.mark.parametrize("replace", [forward_of_the_class, a_function_of_masks, a_table_of_attentions])
def test_code_that_is_replaced_while_it_trains(
    replace: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is tried again where its parts run another forward; functions of its modules, within 100 batches."""
    model = make_model("llama")
    held, inputs = guarded(model)
    for _ in range(3):
        model(**inputs)
    assert len(held.trials) == 2
    replace(monkeypatch)
    batches = repeat(inputs, 1 if replace is forward_of_the_class else 97)
    with pytest.raises(MixingError, match="mixes the members"):
        deque(model(**one) for one in batches)
    monkeypatch.undo()
    model(**inputs)
    assert len(held.trials) == 3  # the first code was tried already


class Norm(nn.Module):
    """Another package's: harmless."""

    def __init__(self, weight: Any):
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


class Adapter(nn.Module):
    """An adapter like LoRA's, with dropout."""

    def __init__(self, part: Any):
        super().__init__()
        self.part, self.drop = part, nn.Dropout(0.3)
        self.down, self.up = nn.Linear(part.in_features, 2), nn.Linear(2, part.out_features)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.part(x) + self.up(self.down(self.drop(x)))
        return out


class Counting(nn.Module):
    """A module that counts its inputs, as routers of experts do."""

    def __init__(self, part: Any):
        super().__init__()
        self.part, self.num_calls = part, 0
        self.last: Tensor | None = None
        self.num_tokens = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.num_calls += 1
        self.last = x
        self.num_tokens.add_(x.shape[1])
        return self.part(x)


def harmless(model: Any) -> Any:
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.input_layernorm = Norm(layer.input_layernorm.weight)
        layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj)
        layer.self_attn.attention_dropout = 0.2
        layer.mlp = Counting(layer.mlp)
    model.model.layers[0].mlp.part.eval()  # frozen, say
    return model


def gradients(model: Any, inputs: dict[str, Any], context: Any) -> list[Tensor]:
    torch.manual_seed(7)
    with context:
        loss = model(**inputs).loss
    loss.backward()
    found = [part.grad for part in model.parameters() if part.grad is not None]
    return [loss.detach(), torch.rand(1), *found]


@pytest.mark.parametrize(
    "way", ["float32", "autocast", "bfloat16", "checkpointing", "reentrant", "reentrant of ms-swift", "eval"]
)
def test_a_training_is_the_same_with_the_trial_and_without(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters, dropout, counters: accepted, and loss, gradients, random numbers, modes and buffers are the same bits.

    Under autocast, copies of weights that were made without gradients would be taken for the real forward. ms-swift
    puts a `checkpoint` in place of torch's that takes no other way: each called the next one for ever.
    """
    found, states = [], []
    if way == "reentrant of ms-swift":
        forced = {"use_reentrant": True}
        monkeypatch.setattr(checkpoints, "checkpoint", lambda *args, **more: checkpoint(*args, **{**more, **forced}))
    for first_batch in (True, False):
        model = harmless(make_model("llama"))
        if way == "bfloat16":
            model.bfloat16()
        if way.startswith(("checkpointing", "reentrant")):
            for layer in model.model.layers:
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=way != "checkpointing")
            model.enable_input_require_grads()
        if way == "eval":
            model.eval()
        held, inputs = guarded(model, first_batch=first_batch)
        context = torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast")
        found.append(gradients(model, inputs, context))
        assert len(held.trials) == first_batch
        if first_batch:
            print(way, held.trials[0])
            finding = held.trials[0].finding
            assert finding is not None
            assert (finding.tolerance > 1e-2) == (way in ("autocast", "bfloat16"))
        counts = [(part.num_calls, part.num_tokens.clone()) for part in model.modules() if isinstance(part, Counting)]
        states.append((counts, [part.training for part in model.modules()]))
    assert all(map(torch.equal, *found))
    assert states[0] == states[1]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen3_5"])
def test_classes_that_keep_members_apart_pass(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Packs with images and clips: other pixels move one member alone, and a text is as alone in the real model."""
    model = make_model(name, "eager" if name == "gpt_oss" else "sdpa")
    members = make_members(name, model)
    held = guard(model, MadeEncoder(members, FAMILIES[name].mask))
    model(**inputs_of(name, model, [members, members[::-1]]))
    (trial,) = held.trials
    print(name, trial, trial.seconds)
    assert not trial.mixes
    assert trial.is_conclusive
    assert trial.change is not None
    assert trial.finding is not None
    assert "nothing tells whose" not in caplog.text
    assert trial.change.changed_inputs == "words and media" if FAMILIES[name].media else "words"
    assert trial.change.others_change == 0
    assert (trial.finding.gradient_difference or 1.0) < 1e-4
    assert trial.finding.leaked_gradient == 0


@pytest.mark.parametrize("in_training", [True, False])
def test_a_member_alone_has_the_prefix_that_it_has_in_its_pack(in_training: bool) -> None:
    """All of it was prefix, and PaliGemma was refused: packed and alone differed by 0.7."""
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    text = {**TEXT, "model_type": "gemma", "head_dim": 8}
    config = tf.PaliGemmaConfig(text_config=text, vision_config={**vision, "image_size": 8, "patch_size": 4})
    model = tf.PaliGemmaForConditionalGeneration(config).train(in_training)
    members = text_members(64)
    for member in members:
        member.tokens.labels[:6] = IGNORE
    held = guard(model, MadeEncoder(members, "auto"))
    batch = make_batch("llama", [members])
    batch.mask = "auto"
    model(**batch.model_inputs(model))
    (trial,) = held.trials
    assert trial.finding is not None
    assert max(trial.finding.differences) < 1e-4


def test_a_hook_that_embeds_ids_leaves_a_sample_its_positions() -> None:
    """ms-swift's: without ids a model takes an image alone for text, and a model that mixes nothing was refused."""
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    held = guard(model, MadeEncoder(members, "positions"))

    def embed(_: Any, args: Any, inputs: dict[str, Any]) -> Any:
        ids, pixels = inputs.pop("input_ids"), inputs.pop("pixel_values", None)
        embeds = model.get_input_embeddings()(ids)
        if pixels is not None:
            features = model.get_image_features(pixels, inputs.pop("image_grid_thw")).pooler_output
            is_image = (ids == model.config.image_token_id)[..., None].expand_as(embeds)
            embeds = embeds.masked_scatter(is_image, torch.cat(list(features)))
        return args, {**inputs, "inputs_embeds": embeds}

    model.register_forward_pre_hook(embed, with_kwargs=True)
    model(**inputs_of("qwen2_5_vl", model, [members]))
    assert not held.trials[0].mixes


def test_a_pack_of_one_member_goes_on_until_there_is_one_of_two() -> None:
    """There is nobody whom it could see; the first two batches in which there is are tried."""
    model = make_model("llama")
    members = make_members("llama", model)
    held = guard(model)
    num_trials = []
    for packs in ([members[:1]], [members[2:3]], [members[:1], members[2:3]], [members[:2]], [members[:2]]):
        model(**inputs_of("llama", model, packs))
        num_trials.append(len(held.trials))
    assert num_trials == [0, 0, 0, 1, 2]


def test_it_is_tried_in_train_after_it_was_in_eval() -> None:
    """Some classes take another way while they are trained."""

    class Fused(Attention):
        def forward(self, *args: Any, **keywords: Any) -> Any:
            return causal(self, *args, **keywords) if self.training else super().forward(*args, **keywords)

    model = make_model("llama").eval()
    for layer in model.model.layers:
        layer.self_attn.__class__ = Fused
    held, inputs = guarded(model)
    for _ in range(3):
        model(**inputs)
    assert len(held.trials) == 2
    with pytest.raises(MixingError, match="mixes the members"):
        model.train()(**inputs)


def test_the_switch_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model("llama")
    attention_of_one_layer(model)
    held, inputs = guarded(model, first_batch=False)
    for _ in range(2):
        model(**inputs)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in said] == [
        "LlamaForCausalLM itself is not tried, its class alone: first_batch=False"
    ]
    assert not held.trials
    held.remove()
    held, inputs = guarded(model, trust="LlamaForCausalLM")
    model(**inputs)
    assert not held.trials


def test_a_model_in_which_nothing_shows(caplog: pytest.LogCaptureFixture) -> None:
    """A head of zeros gives the same for all words: the warning says so once, and after three steps it is refused."""
    model = make_model("llama")
    nn.init.zeros_(model.lm_head.weight)
    held, inputs = guarded(model)
    other = model.get_input_embeddings().weight
    for _ in range(2):
        for _ in range(3):  # batches of one step
            model(**inputs)
        with torch.no_grad():
            other.add_(0)
    assert not held.trials[0].is_conclusive
    assert caplog.text.count("other words change nothing in a batch") == 1
    with pytest.raises(MixingError, match="other words change nothing in a batch, nor in those of 2 steps before it"):
        model(**inputs)


def test_a_head_that_begins_with_zeros_hides_nothing() -> None:
    """As muP begins: all logits were 0, a warning was all, and members were mixed by 1.6 of 5.0 in later steps."""
    model = make_model("llama")
    nn.init.zeros_(model.lm_head.weight)
    model.model.norm.register_forward_hook(lambda _, __, out: out + 0.1 * out.mean(1, keepdim=True))
    _, inputs = guarded(model)
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model(**inputs)


def test_embeddings_in_the_place_of_ids() -> None:
    """A table outside of the call trains on: a backward of the trial went through it, and it has one alone."""
    model = make_model("llama")
    held, inputs = guarded(model)
    table, ids = model.get_input_embeddings(), inputs.pop("input_ids")
    model(**inputs, inputs_embeds=table(ids)).loss.backward()
    assert held.trials[0].is_conclusive
    assert not held.trials[0].mixes
    held.remove()
    found = table.weight.grad.clone()
    table.weight.grad = None
    model(**inputs, inputs_embeds=table(ids)).loss.backward()
    assert torch.equal(table.weight.grad, found)
    guard(model)
    attention_of_one_layer(model)
    with pytest.raises(MixingError, match="mixes the members"):
        model(**inputs, inputs_embeds=table(ids))


def test_a_loss_without_logits_is_tried_with_them() -> None:
    """Fused losses give no logits where there are labels; PEFT calls the inner model."""
    model = make_model("llama")
    held, inputs = guarded(model)
    del inputs["labels"]
    model(**inputs, logits_to_keep=1)
    assert held.trials[0].is_conclusive
    attention_of_one_layer(model)
    with pytest.raises(MixingError, match="mixes the members"):
        model.model(**inputs)


def test_a_loss_of_some_tokens_alone_is_tried_with_all() -> None:
    """ms-swift cuts the labels of packs to the logits that it keeps: its recipe ended before the first step."""
    model = make_model("llama")
    held, inputs = guarded(model)
    labels = inputs["labels"][:, -9:]
    model(**{**inputs, "labels": labels}, logits_to_keep=9).loss.backward()
    assert held.trials[0].is_conclusive
    attention_of_one_layer(model)
    with pytest.raises(MixingError, match="mixes the members"):
        model(**{**inputs, "labels": labels}, logits_to_keep=9)


def test_a_stream_of_packs_is_tried_a_few_times() -> None:
    """Each batch was tried from the second trial on, if the batch of that trial was not the largest one."""
    model = make_model("llama")
    held = guard(model)
    members = make_members("llama", model)
    for number in range(60):
        model(**inputs_of("llama", model, [[*members, *members[number % 3 :]]]))
    assert len(held.trials) <= 4


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava"])
def test_a_batch_is_as_it_was_after_its_trial(name: str) -> None:
    """A trial replaces words and pixels: noise would be trained."""
    model = make_model(name)
    members = make_members(name, model)
    held = guard(model, MadeEncoder(members, "positions"))
    inputs = inputs_of(name, model, [members])
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, Tensor)}
    model(**inputs)
    assert len(held.trials) == 1
    assert all(torch.equal(value, inputs[key]) for key, value in before.items())
    assert all(value.grad is None and not value.requires_grad for value in inputs.values() if isinstance(value, Tensor))


@pytest.mark.parametrize("free", [10**9, 20_000])
def test_logits_that_exceed_the_free_memory_are_said_before_the_first_forward(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """A first step on a CPU took 10 GB for a pack of 3,876 tokens with 151,665 ids, and was killed without a word."""
    forwards, before = list[int](), list[int]()

    def free_bytes(_: torch.device) -> int:
        before.append(len(forwards))
        return free

    monkeypatch.setattr("energon_pack.training.logit_memory.free_bytes", free_bytes)
    model = make_model("llama").train()
    model.lm_head.register_forward_hook(lambda *_: forwards.append(1))
    _, inputs = guarded(model)
    for _ in range(2):
        model(**inputs)
    assert before[0] == 0 < len(forwards)
    said = [record.getMessage() for record in caplog.records if "packing.max_token_len" in record.getMessage()]
    assert len(said) == (free == 20_000)
    rows, width = inputs["input_ids"].shape
    size = format_bytes(16 * rows * width * model.config.vocab_size)
    for message in said:
        assert (
            f"the logits of {rows} × {width:,} tokens and {model.config.vocab_size:,} ids take about {size}" in message
        )
        assert "with their loss and gradients, and 20.0 kB are free on cpu" in message


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("0::/slurm/job_7", {"slurm/job_7/memory.max": "4000", "slurm/job_7/memory.current": "1500"}, [2600]),
        (
            "0::/slurm/job_7",
            {"slurm/job_7/memory.max": "max", "slurm/memory.max": "900", "slurm/memory.current": "1000"},
            [0],
        ),
        ("0::/", {"memory.max": "4000", "memory.current": "4000"}, [100]),
        (
            "5:cpu:/a\n4:memory:/docker/1f\n0::/",
            {"memory/memory.limit_in_bytes": "5000", "memory/memory.usage_in_bytes": "2000"},
            [3100],
        ),
        ("0::/", {}, []),
    ],
)
def test_the_limit_of_a_control_group_counts_as_the_memory_that_is_free(
    tmp_path: Path, groups: str, files: dict[str, str], free: list[int]
) -> None:
    """A container of 4 GB on a machine of 500 GB was killed without the warning."""
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
        (path.parent / "memory.stat").write_text("anon 1300\ninactive_file 100\n")
    assert [*free_bytes_in_cgroups(tmp_path / "cgroup", tmp_path / "fs")] == free

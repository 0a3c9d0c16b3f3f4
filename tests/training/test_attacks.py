"""Ways in which members of a pack may see each other in a model that is trained, and no class shows any of them.

Each attack is put into a tiny model after `guard`; the loss looks normal, and the trial of the first batches has to
refuse it. Those marked with `later` pass the first batch rightly, and are refused with the batch that they spoil.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.member_encoder import Encoded
from support.attacks import Function, Turned, mixed, on_norm
from support.marks import slow
from support.tiny import TEXT, MadeEncoder, make_batch, make_members, make_model, tf

Attack = Callable[[Any], Any]
Batches = Generator[dict[str, Any]]
modeling: Any = tf.models.llama.modeling_llama


def on_embeddings(model: Any, change: Callable[[Tensor], Tensor]) -> None:
    model.model.embed_tokens.register_forward_hook(lambda _, __, out: change(out))


def places(x: Tensor) -> Tensor:
    """The place of each token in the row, [1, S, 1]."""
    return torch.arange(x.shape[1], dtype=x.dtype)[None, :, None]


# --------------------------------------------------------------------------------------------------- by place, by shape


def the_place_in_the_row(model: Any) -> None:
    on_embeddings(model, lambda x: x + 0.1 * torch.sin(places(x)))


def masks_kept(key: Callable[[Any, Any], Any]) -> Attack:
    """Each attention keeps the first mask that it gets."""

    def attack(model: Any) -> None:
        kept: dict[Any, Any] = {}
        for number, layer in enumerate(model.model.layers):

            def enter(part: Any, args: Any, given: dict[str, Any], number: int = number) -> Any:
                mask, x = given["attention_mask"], given["hidden_states"] if "hidden_states" in given else args[0]
                kept_mask = kept.setdefault((number, key(x, given)), mask)
                return args, {**given, "attention_mask": kept_mask}

            layer.self_attn.register_forward_pre_hook(enter, with_kwargs=True)

    attack.__name__ = f"masks_kept_by_{key.__name__}"
    return attack


def shape(x: Tensor, _: Any) -> Any:
    return tuple(x.shape)


def identity(_: Tensor, given: Any) -> Any:
    return id(given["position_ids"])


def the_first_token_of_the_row(model: Any) -> None:
    """Only the last member sees the first one."""

    def change(x: Tensor) -> Tensor:
        y = x.clone()
        y[:, -6:] = y[:, -6:] + 0.1 * x[:, :1]
        return y

    on_norm(model, change)


def rows_of_a_batch(model: Any) -> None:
    on_norm(model, lambda x: x + 0.1 * (x.mean(0, keepdim=True) if len(x) > 1 else 0))


# -------------------------------------------------------------------------------------------------------------- by mode


def where_gradients_are_on(model: Any) -> None:
    on_norm(model, lambda x: mixed(x) if torch.is_grad_enabled() else x)


def without_dropout(model: Any) -> None:
    model.model.layers[0].self_attn.attention_dropout = 0.1
    on_norm(model, lambda x: x if model.model.layers[0].self_attn.attention_dropout else mixed(x))


def noise_by_the_length(model: Any) -> None:
    """NEFTune."""
    model.model.embed_tokens.neftune_noise_alpha = 0.1
    model.model.embed_tokens.register_forward_hook(tf.integrations.neftune.neftune_post_forward_hook)


def every_second_call(model: Any) -> None:
    calls = [0]

    def change(x: Tensor) -> Tensor:
        calls[0] += 1
        return mixed(x) if calls[0] % 2 else x

    on_norm(model, change)


def statistics_of_earlier_batches(model: Any) -> None:
    mean = nn.Buffer(torch.zeros(model.config.hidden_size))
    model.model.norm.mean = mean

    def change(x: Tensor) -> Tensor:
        mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        return x - mean

    on_norm(model, change)


def in_the_head(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda _, __, out: mixed(out, 0.02))


# ----------------------------------------------------------------------------------------------------------- backward


class Unmasked(Function):
    """sdpa with a mask, whose backward has none."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        is_causal = mask is None  # as in transformers, where each row is one text
        return nn.functional.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal, scale=scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            query, key, value = given = [one.detach().requires_grad_() for one in ctx.saved_tensors]
            out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=ctx.scale)
        return (*torch.autograd.grad(out, given, grad), None, None)


def a_backward_without_mask(model: Any) -> None:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        key, value = (one.repeat_interleave(module.num_key_value_groups, 1) for one in (key, value))
        return Unmasked.apply(query, key, value, mask, scaling).transpose(1, 2).contiguous(), None

    for layer in model.model.layers:

        def forward(
            hidden_states: Tensor,
            position_embeddings: Any,
            attention_mask: Any,
            part: Any = layer.self_attn,
            **more: Any,
        ) -> Any:
            size = (*hidden_states.shape[:-1], -1, part.head_dim)
            projected = (
                one(hidden_states).view(size).transpose(1, 2) for one in (part.q_proj, part.k_proj, part.v_proj)
            )
            query, key, value = projected
            query, key = modeling.apply_rotary_pos_emb(query, key, *position_embeddings)
            out, _ = attend(part, query, key, value, attention_mask, part.scaling)
            return part.o_proj(out.flatten(2)), None

        layer.self_attn.forward = forward


def gradients_of_the_row(model: Any) -> None:
    model.model.layers[0].mlp.register_full_backward_hook(lambda _, given, __: (mixed(given[0]),))


class LessMean(Function):
    """A product whose weight has gradients of inputs less three times the mean of their row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight, torch.einsum("bso,bsi->oi", grad, x - 3 * x.mean(1, keepdim=True))


def gradients_of_a_weight_alone(model: Any) -> None:
    head = model.model.layers[0].mlp.down_proj
    head.forward = lambda x: LessMean.apply(x, head.weight)


# --------------------------------------------------------------------------------------------------------------- losses


def a_loss_two_tokens_ahead(model: Any) -> None:
    old = model.loss_function

    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **more: Any) -> Any:
        two = nn.functional.cross_entropy(logits[:, :-2].flatten(0, 1), labels[:, 2:].flatten(), ignore_index=IGNORE)
        return old(logits, labels, vocab_size, **more) + 0.3 * two

    model.loss_function = loss


ATTACKS: list[Attack] = [
    the_place_in_the_row, the_first_token_of_the_row, rows_of_a_batch,
    where_gradients_are_on, without_dropout, noise_by_the_length, every_second_call, statistics_of_earlier_batches,
    in_the_head, a_backward_without_mask, gradients_of_the_row, gradients_of_a_weight_alone, a_loss_two_tokens_ahead,
]  # fmt: skip


def packs(model: Any, num: int = 6) -> list[list[Encoded]]:
    """Two rows of about 36 tokens for each of some rounds of five members."""
    members = make_members("llama", model)
    return [members * num, members[::-1] * num]


def inputs_of(model: Any, rows: list[list[Encoded]]) -> dict[str, Any]:
    return make_batch("llama", rows).model_inputs(model)


@pytest.mark.parametrize("way", ["float32", slow("bfloat16")])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused(attack: Attack, way: str) -> None:
    model = make_model("llama")
    held = guard(model)
    attack(model)
    inputs = inputs_of(model, packs(model))
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "bfloat16"), pytest.raises(MixingError):
        model(**inputs)
    held.remove()
    assert torch.isfinite(model(**inputs).loss)  # nothing else says so


# ---------------------------------------------------------------------------------------------------------------- later


def in_long_rows(model: Any) -> Batches:
    on_norm(model, lambda x: mixed(x) if x.shape[1] > 250 else x)
    yield inputs_of(model, packs(model, 6))
    yield inputs_of(model, packs(model, 7))


def beside_long_members(model: Any) -> Batches:
    members = make_members("llama", model)
    longest = [0]

    def note(_: Any, __: Any, given: dict[str, Any]) -> None:
        positions = given.get("position_ids")
        longest[0] = 0 if positions is None else int(positions.max())

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    on_norm(model, lambda x: mixed(x) if longest[0] > 30 else x)
    ids = torch.cat([member.tokens.ids for member in members])
    labels = torch.cat([torch.full((1,), IGNORE), ids[1:]])
    long = Encoded("long", Member(ids, labels, torch.zeros_like(ids)))
    yield inputs_of(model, [members * 4])
    yield inputs_of(model, [[*members, long]])


def in_several_rows(model: Any) -> Batches:
    rows_of_a_batch(model)
    yield inputs_of(model, packs(model)[:1])
    yield inputs_of(model, packs(model))


def with_checkpoints(model: Any) -> Batches:
    on_norm(model, lambda x: mixed(x) if model.model.layers[0].gradient_checkpointing else x)
    yield inputs_of(model, packs(model))
    model.activation_checkpointing_enable()
    yield inputs_of(model, packs(model))


def in_autocast(model: Any) -> Batches:
    on_norm(model, lambda x: mixed(x) if torch.is_autocast_enabled("cpu") else x)
    yield inputs_of(model, packs(model))
    with torch.autocast("cpu", torch.bfloat16):
        yield inputs_of(model, packs(model))


def by_a_later_hook(model: Any) -> Batches:
    yield inputs_of(model, packs(model))
    on_norm(model, mixed)
    yield inputs_of(model, packs(model))


def by_a_hook_of_all_modules(model: Any) -> Batches:
    yield inputs_of(model, packs(model))
    change: Any = lambda part, _, out: mixed(out) if type(part).__name__ == "LlamaMLP" else None  # noqa: E731
    handle = nn.modules.module.register_module_forward_hook(change)
    try:
        yield inputs_of(model, packs(model))
    finally:
        handle.remove()


def by_masks_of_the_batch_before(model: Any, key: Callable[[Any, Any], Any]) -> Batches:
    """Right in the first batch: the second one has other members in rows of the same shape."""
    masks_kept(key)(model)
    first, second = (inputs_of(model, rows) for rows in (packs(model), packs(model)[::-1]))
    yield first
    for name in ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k"):
        first[name].copy_(second[name])
    yield first


def by_masks_of_a_shape(model: Any) -> Batches:
    yield from by_masks_of_the_batch_before(model, shape)


def by_masks_of_a_tensor(model: Any) -> Batches:
    yield from by_masks_of_the_batch_before(model, identity)


def by_a_flag(model: Any) -> Batches:
    """No code changes: the trial that comes after 100 batches sees it."""
    flags = [False]
    on_norm(model, lambda x: mixed(x) if flags[0] else x)
    yield inputs_of(model, packs(model))
    flags[0] = True
    for _ in range(100):
        yield inputs_of(model, packs(model, 1))


def in_the_inner_model(model: Any) -> Batches:
    """A trainer that puts a head of its own on it."""
    called: list[Any] = [None]
    model.register_forward_pre_hook(lambda *_: called.__setitem__(0, "outer"))
    model.register_forward_hook(lambda *_: called.__setitem__(0, None))
    on_norm(model, lambda x: x if called[0] else mixed(x))
    yield inputs_of(model, packs(model))
    inner = inputs_of(model, packs(model))
    del inner["labels"]
    yield {"part": model.model, **inner}


LATER = [
    in_long_rows, beside_long_members, in_several_rows, with_checkpoints, in_autocast, by_a_later_hook,
    by_a_hook_of_all_modules, by_masks_of_a_shape, by_masks_of_a_tensor, by_a_flag, in_the_inner_model,
]  # fmt: skip


@pytest.mark.parametrize("attack", LATER, ids=lambda attack: attack.__name__)
def test_an_attack_that_begins_later_is_refused_then(attack: Callable[[Any], Batches]) -> None:
    model = make_model("llama")
    guard(model)
    batches = attack(model)
    model(**next(batches))
    with closing(batches), pytest.raises(MixingError, match="mixes the members"):
        run_all(model, batches)


def run_all(model: Any, batches: Batches) -> None:
    for inputs in batches:
        inputs.pop("part", model)(**inputs)


# ---------------------------------------------------------------------------------------------------- images, experts


def on_images(model: Any, change: Callable[[Tensor], Tensor]) -> None:
    model.model.visual.merger.register_forward_hook(lambda _, __, out: change(out))


def the_last_patches(model: Any) -> None:
    on_images(model, lambda x: x + 0.1 * x[-3:].mean(0))


def the_image_before(model: Any) -> None:
    on_images(model, lambda x: x + 0.1 * x.roll(6, 0))


def images_without_boundaries(model: Any) -> None:
    """The tower takes all images of a batch for one."""
    for block in model.model.visual.blocks:
        block.attn.register_forward_pre_hook(
            lambda _, args, given: (args, {**given, "cu_seqlens": given["cu_seqlens"][[0, -1]]}), with_kwargs=True
        )


def gradients_of_all_images(model: Any) -> None:
    on_images(model, lambda x: Turned.apply(x, lambda grad: grad + 0.1 * grad.mean(0)))


IMAGES = [
    the_last_patches, the_image_before, images_without_boundaries, gradients_of_all_images,
]  # fmt: skip


@pytest.mark.parametrize("attack", IMAGES, ids=lambda attack: attack.__name__)
def test_an_attack_on_packs_of_images_is_refused(attack: Attack) -> None:
    """Each member has an image, as in packs that are grouped by media."""
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    guard(model, MadeEncoder(members))
    attack(model)
    batch = make_batch("qwen2_5_vl", [[members[1]] * 4])
    with pytest.raises(MixingError, match="mixes the members"):
        model(**batch.model_inputs(model))


def test_packs_of_text_behind_packs_of_images_are_tried() -> None:
    """The model was marked as tried."""
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    guard(model, MadeEncoder(members))
    seen = [False]
    model.model.visual.register_forward_hook(lambda *_: seen.__setitem__(0, True))
    model.register_forward_pre_hook(lambda *_: seen.__setitem__(0, False))
    model.model.language_model.norm.register_forward_hook(
        lambda _, __, out: out if seen[0] or out.shape[1] < 30 else mixed(out)
    )
    model(**make_batch("qwen2_5_vl", [[members[1]] * 4]).model_inputs(model))
    with pytest.raises(MixingError, match="mixes the members"):
        model(**make_batch("qwen2_5_vl", [[members[0], members[2]] * 2]).model_inputs(model))


def experts() -> Any:
    torch.manual_seed(0)
    config = tf.Qwen3MoeConfig(**TEXT, head_dim=8, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
    return tf.Qwen3MoeForCausalLM._from_config(config, attn_implementation="sdpa").train()


def a_tenth_of_the_row(model: Any) -> None:
    on_norm(model, partial(mixed, share=0.1))


def routers_that_see_the_row(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda _, args: (mixed(args[0]),))


def experts_of_a_limited_capacity(model: Any) -> None:
    """An expert takes the first half of the tokens that choose it, and drops others."""
    for layer in model.model.layers:

        def limited(_: Any, __: Any, out: Any) -> Any:
            logits, scores, chosen = out
            taken = nn.functional.one_hot(chosen, 4).cumsum(0).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)[..., :1]
            return logits, scores * (taken <= len(chosen) // 3), chosen

        layer.mlp.gate.register_forward_hook(limited)


def losses_of_routers(model: Any) -> None:
    model.config.output_router_logits = True


EXPERTS = [
    a_tenth_of_the_row, routers_that_see_the_row, experts_of_a_limited_capacity,
    losses_of_routers,
]  # fmt: skip


@pytest.mark.parametrize("way", [slow("float32"), "bfloat16"])
@pytest.mark.parametrize("attack", EXPERTS, ids=lambda attack: attack.__name__)
def test_an_attack_on_experts_is_refused(attack: Attack, way: str) -> None:
    """A share of 5 % was taken for tokens that go to another expert: a tenth of the row's mean passed."""
    model = experts()
    guard(model)
    inputs = inputs_of(model, packs(model))
    model(**inputs)
    attack(model)
    guard(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "bfloat16"), pytest.raises(MixingError):
        model(**inputs)


def test_experts_that_checkpoints_run_once_more_pass() -> None:
    """Experts were chosen anew in the backward: checkpoints refused that, and so the guard refused a right model."""
    model = experts()
    model.activation_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    held = guard(model)
    with pytest.raises(MixingError, match=r"can't be tried.*checkpoints run a backward of their own"):
        model(**inputs_of(model, packs(model)))
    model.activation_checkpointing_enable({"use_reentrant": False})
    model(**inputs_of(model, packs(model))).loss.backward()
    finding = held.trials[0].finding
    assert finding is not None
    assert max(finding.differences) < 1e-4
    assert finding.leaked_gradient == 0

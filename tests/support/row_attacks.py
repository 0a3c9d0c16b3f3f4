"""Attacks on a tiny model, put in after `guard`: its members see one another by place, by shape, or in what trains."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from energon_pack.training.layout import IGNORE
from support.attacks import Function, mixed, on_norm
from support.tiny import tf

Attack = Callable[[Any], Any]
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

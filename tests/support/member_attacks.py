"""Attacks on a tiny model in which a member is not what it is alone: by rows, by words, in a loss, in a backward."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from energon_pack.training.layout import IGNORE
from support.attacks import Turned, mixed, on_norm
from support.tiny import TEXT

Attack = Callable[[Any], Any]
BOS = TEXT["bos_token_id"]


def angles_of_the_first_row(model: Any) -> None:
    """A fused RoPE that broadcasts: rotary angles of row 0 serve all rows."""
    model.model.rotary_emb.register_forward_hook(lambda _, __, out: tuple(one[:1].expand_as(one) for one in out))


def every_begin_of_a_text_is_seen(model: Any) -> None:
    """Attention sinks: tokens see each earlier BOS of their row."""
    ids: list[Tensor] = []
    model.model.embed_tokens.register_forward_pre_hook(lambda _, args: ids.__setitem__(slice(None), [args[0]]))
    on_norm(model, lambda x: x + 0.05 * (x * (ids[0] == BOS)[..., None]).cumsum(1))


def a_border_in_the_middle_of_the_row(model: Any) -> None:
    """Chunked attention whose chunks begin by the row: one middle member is cut."""

    def enter(_: Any, args: Any, given: dict[str, Any]) -> Any:
        if (mask := given["attention_mask"]) is None or mask.shape[-1] < 60:
            return args, given
        cut, mask = mask.shape[-1] // 2 - 4, mask.clone()
        mask[..., cut:, :cut] = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return args, {**given, "attention_mask": mask}

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(enter, with_kwargs=True)


def a_backward_of_later_rows(model: Any) -> None:
    def turn(grad: Tensor) -> Tensor:
        return torch.cat([grad[:1], mixed(grad[1:])])

    on_norm(model, lambda x: Turned.apply(x, turn))


def a_backward_onto_the_first_token(model: Any) -> None:
    def turn(grad: Tensor) -> Tensor:
        return torch.cat([grad[:, :1] + grad.sum(1, keepdim=True), grad[:, 1:]], 1)

    on_norm(model, lambda x: Turned.apply(x, turn))


def a_backward_where_gradients_exist(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weight = model.lm_head.weight
    on_norm(model, lambda x: Turned.apply(x, lambda grad: grad if weight.grad is None else mixed(grad)))


def a_loss_by_rows(model: Any) -> None:
    def loss(logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
        rows = zip(logits[:, :-1], labels[:, 1:], strict=True)
        means = [nn.functional.cross_entropy(one, label, ignore_index=IGNORE) for one, label in rows]
        return torch.stack(means).mean()

    model.loss_function = loss


def half_of_the_logits(model: Any) -> None:
    """The head mixes every second logit; labels are outside of the call, as in a loss of one's own."""
    is_odd = torch.arange(model.config.vocab_size) % 2
    model.lm_head.register_forward_hook(lambda _, __, out: out + 0.05 * is_odd * out.mean(1, keepdim=True))


def members_of_one_length(model: Any) -> None:
    """Members in the order of a row that are as long as the one before see its mean."""
    lengths: list[Tensor] = []

    def note(_: Any, __: Any, given: dict[str, Any]) -> None:
        positions = given.get("position_ids")
        if positions is not None:
            begins = torch.nn.functional.pad(positions.diff() != 1, (1, 0), value=True)
            lengths[:] = [begins]

    model.model.register_forward_pre_hook(note, with_kwargs=True)

    def change(x: Tensor) -> Tensor:
        if not lengths or lengths[0].shape != x.shape[:2]:
            return x
        starts = [*lengths[0][0].nonzero().flatten().tolist(), x.shape[1]]
        spans = [*pairwise(starts)]
        y = x.clone()
        for (start, end), (begin, stop) in pairwise(spans):
            if end - start == stop - begin:
                y[0, begin:stop] += 0.1 * x[0, start:end].mean(0)
        return y

    on_norm(model, change)


ATTACKS: list[Attack] = [
    angles_of_the_first_row, every_begin_of_a_text_is_seen, a_border_in_the_middle_of_the_row,
    a_backward_of_later_rows, a_backward_onto_the_first_token, a_backward_where_gradients_exist, a_loss_by_rows,
    half_of_the_logits, members_of_one_length,
]  # fmt: skip

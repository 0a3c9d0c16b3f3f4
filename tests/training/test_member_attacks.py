"""Ways in which a member of a pack is not what it is alone: in any row, in its middle, in a loss, in a backward, in
what a router chooses, or in later batches.

They were trained without a word until members of the batch itself were compared. Both doors refuse each of them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.training.forward_inputs import MixingError
from energon_pack.training.guards import guard
from energon_pack.training.layout import IGNORE, Member
from energon_pack.training.member_encoder import Encoded
from support.attacks import Turned, mixed, on_norm
from support.member_attacks import ATTACKS, half_of_the_logits, members_of_one_length
from support.tiny import TEXT, MadeEncoder, make_batch, make_members, make_model, tf

Attack = Callable[[Any], Any]
BOS = TEXT["bos_token_id"]


def texts(*lengths: int) -> list[Encoded]:
    """Members of random words behind a token that begins each of them; half of their words are trained."""
    generator = torch.Generator().manual_seed(sum(lengths))
    made = []
    for length in lengths:
        ids = torch.cat([torch.tensor([BOS]), torch.randint(8, 64, (length - 1,), generator=generator)])
        labels = torch.where(torch.arange(length) < length // 2, IGNORE, ids)
        made.append(Encoded(f"m{length}", Member(ids, labels, torch.zeros_like(ids))))
    return made


def inputs_of(*rows: list[Encoded], width: int | None = None) -> dict[str, Any]:
    return make_batch("llama", rows, width=width).model_inputs()


def two_rows() -> dict[str, Any]:
    return inputs_of(texts(20, 31, 17, 25), texts(13, 40, 22, 18))


# ------------------------------------------------------------------------------------------------- in the first batch


def refusal_of_packs(model: Any, inputs: dict[str, Any]) -> str:
    held = guard(model)
    with pytest.raises(MixingError) as info:
        model(**inputs)
    held.remove()
    return str(info.value)


def refusal_of_batches(model: Any, inputs: dict[str, Any]) -> str:
    with pytest.raises(MixingError) as info:
        guard(model, batches=[inputs])
    return str(info.value)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_member_that_is_not_as_alone_is_refused_at_both_doors(attack: Attack) -> None:
    model = make_model("llama")
    attack(model)
    inputs = two_rows()
    if attack is half_of_the_logits:
        del inputs["labels"]
    if attack is members_of_one_length:
        inputs = inputs_of(texts(20, 20, 31, 17, 17))
    said = [refusal_of_packs(model, inputs), refusal_of_batches(model, inputs)]
    assert [one for one in said if "mixes the members of" not in one] == []


def test_gradients_that_grow_along_the_row_are_refused_in_autocast() -> None:
    """By 30 % at the end of the row: hardly more than rounding in bfloat16, but rounding has no direction."""
    model = make_model("llama")
    on_norm(model, lambda x: Turned.apply(x, lambda g: g * (1 + torch.arange(g.shape[1])[None, :, None] / 300)))
    guard(model)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(MixingError, match="their size by"):
        model(**two_rows())


def test_labels_that_train_a_first_token_are_refused_for_packs() -> None:
    """A trainer that passes its ids as labels: the member before learns to predict the next one's first word."""
    model, inputs = make_model("llama"), two_rows()
    guard(model)
    with pytest.raises(MixingError, match=r"labels train the first token of 6 of 8 members \(row 0, token 20\)"):
        model(**{**inputs, "labels": inputs["input_ids"]})


# ------------------------------------------------------------------------------------------------------------- images


def on_images(model: Any, change: Callable[[Tensor], Tensor]) -> None:
    model.model.visual.merger.register_forward_hook(lambda _, __, out: change(out))


def images_in_the_middle(model: Any) -> None:
    """Images 3 and 4 of six get each other's mean: a chunk of the tower's."""
    per_image = 6

    def change(x: Tensor) -> Tensor:
        both = slice(2 * per_image, 4 * per_image)
        y = x.clone()
        y[both] = y[both] + 0.3 * x[both].mean(0)
        return y if len(x) == 6 * per_image else x

    on_images(model, change)


def rope_of_the_first_row(model: Any) -> None:
    part = model.model.language_model.rotary_emb
    part.register_forward_hook(lambda _, __, out: tuple(one[..., :1, :, :].expand_as(one) for one in out))


@pytest.mark.parametrize("attack", [images_in_the_middle, rope_of_the_first_row], ids=lambda attack: attack.__name__)
def test_an_attack_on_packs_of_images_is_refused_at_both_doors(attack: Attack) -> None:
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    attack(model)
    image, text = members[1], members[2]
    rows = [[image, text, image, image], [text, image, image, image]]
    inputs = make_batch("qwen2_5_vl", rows).model_inputs(model)
    held = guard(model, MadeEncoder(members))
    with pytest.raises(MixingError, match="mixes the members of a batch"):
        model(**inputs)
    held.remove()
    with pytest.raises(MixingError, match="mixes the members of batch 0"):
        guard(model, batches=[inputs])


# ------------------------------------------------------------------------------------------------------------ experts


def experts(num: int = 4, chosen: int = 2) -> Any:
    torch.manual_seed(0)
    sizes = {"moe_intermediate_size": 16, "num_experts": num, "num_experts_per_tok": chosen}
    return tf.Qwen3MoeForCausalLM._from_config(
        tf.Qwen3MoeConfig(**TEXT, head_dim=8, **sizes), attn_implementation="sdpa"
    ).train()


def choices_balanced_over_the_row(model: Any) -> None:
    """Sinkhorn's: a token's choice sees the row, its weights the token alone. Replayed alone, it was as in the pack."""
    for layer in model.model.layers:

        def balance(_: Any, __: Any, out: Any) -> Any:
            logits, scores, chosen = out
            each = logits.float().softmax(-1)
            shares = each.clone()
            for _ in range(8):
                shares = shares / shares.sum(0, keepdim=True)
                shares = shares / shares.sum(-1, keepdim=True)
            _, chosen = torch.topk(shares, chosen.shape[-1], dim=-1)
            return logits, each.gather(-1, chosen).to(scores.dtype), chosen

        layer.mlp.gate.register_forward_hook(balance)


@pytest.mark.parametrize("is_short", [False, True])
def test_experts_that_are_chosen_by_the_row_are_refused_at_both_doors(is_short: bool) -> None:
    model = experts()
    choices_balanced_over_the_row(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_short):
        said = [refusal_of_packs(model, two_rows()), refusal_of_batches(model, two_rows())]
    assert [one for one in said if "mixes the members of" not in one] == []


@pytest.mark.parametrize("is_short", [False, True])
def test_a_token_between_two_experts_excuses_no_member_and_refuses_none(is_short: bool) -> None:
    """With 32 experts each member has tokens that rounding sends to another one, and all of its outputs count."""
    model, inputs = experts(32, 8), two_rows()
    held = guard(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_short):
        model(**inputs)
    assert held.trials[0].is_conclusive
    on_norm(model, mixed)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_short), pytest.raises(MixingError, match="mixes"):
        model(**inputs)


# -------------------------------------------------------------------------------------------------------------- later


def only_in(model: Any, where: Callable[[Tensor], bool]) -> None:
    on_norm(model, lambda x: mixed(x) if where(x) else x)


def evaluated(model: Any, inputs: dict[str, Any]) -> None:
    model.eval()(**inputs)


def evaluated_without_gradients(model: Any, inputs: dict[str, Any]) -> None:
    with torch.no_grad():
        model(**inputs)


MODES = [
    (evaluated, lambda model, _: not model.training),
    (evaluated_without_gradients, lambda *_: not torch.is_grad_enabled()),
]


@pytest.mark.parametrize(("run", "where"), MODES, ids=["eval", "no_grad"])
def test_mixing_in_another_mode_alone_is_refused_at_once(
    run: Callable[[Any, Any], None], where: Callable[[Any, Any], bool]
) -> None:
    """Train first, then validate: a trial in train() counted for eval(), and losses of validation were wrong."""
    model, inputs = make_model("llama"), two_rows()
    on_norm(model, lambda x: mixed(x) if where(model, x) else x)
    guard(model)
    for _ in range(3):
        model(**inputs)
    with pytest.raises(MixingError, match="mixes the members"):
        run(model, inputs)


FULL = [texts(20, 31, 17, 25, 35), texts(23, 40, 22, 18, 25)]
SIZES: dict[str, tuple[Callable[[Tensor], bool], list[list[Encoded]]]] = {
    "short rows": (lambda x: 30 < x.shape[1] < 100, [texts(20, 31, 32), texts(23, 40)]),
    "three rows": (lambda x: len(x) > 2, [*FULL, texts(50, 28, 50)]),
}


@pytest.mark.parametrize("name", SIZES)
def test_mixing_by_sizes_of_later_batches_is_refused_in_the_next_slot(name: str) -> None:
    """A batch that is no larger than an earlier one was not tried."""
    where, rows = SIZES[name]
    model = make_model("llama")
    only_in(model, where)
    guard(model)
    with pytest.raises(MixingError, match="mixes the members"):
        run_all(model, chain(repeat(inputs_of(*FULL), 3), repeat(inputs_of(*rows), 5)))


def by_positions(model: Any, where: Callable[[Tensor, Tensor], bool]) -> None:
    seen: list[Tensor] = [torch.zeros(1, 1, dtype=torch.long)] * 2

    def note(_: Any, __: Any, given: dict[str, Any]) -> None:
        if given.get("position_ids") is not None:
            seen[:] = [given["input_ids"], given["position_ids"]]

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    on_norm(model, lambda x: mixed(x) if seen[0].shape == x.shape[:2] and where(*seen) else x)


def has_padding(ids: Tensor, _: Tensor) -> bool:
    return bool((ids == 0).any())


def has_many_members(_: Tensor, positions: Tensor) -> bool:
    return int((positions == 0).sum()) > 13


def has_short_members(_: Tensor, positions: Tensor) -> bool:
    return int((positions == 0)[:, :-9].sum()) > int((positions == 15).sum())


PLACES: dict[str, tuple[Callable[[Tensor, Tensor], bool], Callable[[], dict[str, Any]]]] = {
    "padding": (has_padding, lambda: inputs_of(texts(20, 31, 17), FULL[1], width=128)),
    "many members": (has_many_members, lambda: inputs_of(texts(*[16] * 8), texts(*[16] * 8))),
    "short members": (has_short_members, lambda: inputs_of(texts(20, 31, 7, 35, 35), FULL[1])),
}


@pytest.mark.parametrize("name", PLACES)
def test_mixing_by_the_layout_of_later_batches_is_refused_in_the_next_slot(name: str) -> None:
    where, later = PLACES[name]
    model = make_model("llama")
    by_positions(model, where)
    guard(model)
    with pytest.raises(MixingError, match="mixes the members"):
        run_all(model, chain(repeat(inputs_of(*FULL), 3), repeat(later(), 5)))


def test_a_hook_with_the_same_code_and_another_closure_is_another_hook() -> None:
    model, inputs = make_model("llama"), two_rows()

    def put(share: float) -> Any:
        return on_norm(model, partial(mixed, share=share))

    handle = put(0.0)
    guard(model)
    for _ in range(3):
        model(**inputs)
    handle.remove()
    put(0.1)
    with pytest.raises(MixingError, match="mixes the members"):
        model(**inputs)


def test_another_kernel_by_a_flag_of_torch_is_tried_at_once() -> None:
    model, inputs = make_model("llama"), two_rows()
    only_in(model, lambda _: not torch.backends.cuda.math_sdp_enabled())
    held = guard(model)
    for _ in range(3):
        model(**inputs)
    torch.backends.cuda.enable_math_sdp(False)
    try:
        with pytest.raises(MixingError, match="mixes the members"):
            model(**inputs)
    finally:
        torch.backends.cuda.enable_math_sdp(True)
    held.remove()


def test_a_path_by_the_precision_of_products_is_tried_as_it_is_set() -> None:
    model, inputs = make_model("llama"), two_rows()
    only_in(model, lambda _: torch.get_float32_matmul_precision() == "medium")
    guard(model)
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(MixingError, match="mixes the members"):
            model(**inputs)
    finally:
        torch.set_float32_matmul_precision("highest")


def run_all(model: Any, batches: Iterator[dict[str, Any]]) -> None:
    for inputs in batches:
        model(**inputs)

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
from energon_pack.training.model_trial import BF16_TOLERANCE, SUM_TOLERANCE
from support.attacks import Turned, mixed, on_norm
from support.marks import slow
from support.row_attacks import ATTACKS, identity, masks_kept, rows_of_a_batch, shape
from support.tiny import TEXT, MadeEncoder, make_batch, make_members, make_model, tf

Attack = Callable[[Any], Any]
Batches = Generator[dict[str, Any]]


def packs(model: Any, num: int = 6) -> list[list[Encoded]]:
    """Two rows of about 36 tokens for each of some rounds of five members."""
    members = make_members("llama", model)
    return [members * num, members[::-1] * num]


def inputs_of(model: Any, rows: list[list[Encoded]]) -> dict[str, Any]:
    return make_batch("llama", rows).model_inputs(model)


@pytest.mark.parametrize("way", ["float32", slow("bfloat16"), slow("reentrant")])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused(attack: Attack, way: str) -> None:
    model = make_model("llama")
    if way == "reentrant":
        model.activation_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
    held = guard(model)
    attack(model)
    inputs = inputs_of(model, packs(model))
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "bfloat16"), pytest.raises(MixingError):
        model(**inputs)
    held.remove()
    assert torch.isfinite(model(**inputs).loss)  # nothing else says so


def scan(x: Tensor) -> Tensor:
    """As a scan takes members apart: by differences of a sum over the row, rounded to a short type."""
    total = (x.float() + 100).cumsum(1)
    return (total.diff(dim=1, prepend=torch.zeros_like(total[:, :1])) - 100).bfloat16().to(x.dtype)


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_a_scan_that_rounds_over_the_row_is_no_mixing(share: float) -> None:
    """NemotronH with images was refused under autocast: words of one member moved roundings of the others."""
    model = make_model("llama")
    members = packs(model)[0]
    held = guard(model, MadeEncoder(members, "hybrid"))
    on_norm(model, lambda x: scan(mixed(x, share)))
    batch = make_batch("llama", [members])
    batch.mask = "hybrid"
    with torch.autocast("cpu", torch.bfloat16):
        if share:
            with pytest.raises(MixingError, match="mixes the members"):
                model(**batch.model_inputs(model))
            return
        model(**batch.model_inputs(model))
    change = held.trials[0].change
    assert change is not None
    assert SUM_TOLERANCE < change.others_change / change.own_change < change.tolerance < BF16_TOLERANCE


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
    in_long_rows, with_checkpoints, by_a_later_hook, by_masks_of_a_shape, in_the_inner_model,
    *map(slow, (
        beside_long_members, in_several_rows, in_autocast, by_a_hook_of_all_modules, by_masks_of_a_tensor, by_a_flag,
    )),
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
    slow(a_tenth_of_the_row), routers_that_see_the_row, experts_of_a_limited_capacity, slow(losses_of_routers),
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


@pytest.mark.parametrize("reentrant", [True, False])
def test_experts_that_checkpoints_run_once_more_pass(reentrant: bool) -> None:
    """Experts were chosen anew in the backward: checkpoints refused that, and so the guard refused a right model.

    A reentrant checkpoint was refused by name: its backward writes `.grad` of all weights, also in a trial.
    """
    model = experts()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    held = guard(model)
    loss = model(**inputs_of(model, packs(model))).loss
    assert all(one.grad is None for one in model.parameters())
    loss.backward()
    finding = held.trials[0].finding
    assert finding is not None
    assert max(finding.differences) < 1e-4
    assert finding.leaked_gradient == 0

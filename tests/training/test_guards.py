"""Inputs that mix members are refused; each is shown to mix them."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention.flex_attention import create_block_mask

from energon_pack.training import batch_members, guards
from energon_pack.training.batch import PackedBatch
from energon_pack.training.forward_inputs import MixingError, check_inputs
from energon_pack.training.guards import guard
from energon_pack.training.layout import Member, RowForm, lay_out_neat_rows
from energon_pack.training.masks import ImageAttention, ModelOutline
from energon_pack.training.member_encoder import Encoded
from support.tiny import TEXT, MadeEncoder, make_batch, make_members, make_model, text_members, tf


def bad_inputs(inputs: dict[str, Any], doc_ids: torch.Tensor) -> dict[str, tuple[dict[str, Any], str]]:
    """Changes that trainers make to a batch → the error."""
    width = inputs["input_ids"].shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()[None, None]
    no_boundaries = {name: value for name, value in inputs.items() if not name.endswith(("_q", "_k"))}
    ones = torch.ones_like(inputs["input_ids"])
    no_cache = {name: value for name, value in inputs.items() if name != "use_cache"}
    return {
        "cache": (no_cache, "use_cache=None"),
        "ones": ({**inputs, "attention_mask": ones}, "2-D attention_mask of ones"),
        "boolean": ({**inputs, "attention_mask": causal}, "a 4-D mask"),
        "no text row": ({**inputs, "position_ids": inputs["position_ids"][1:]}, "no text row"),
        "no positions": ({**inputs, "position_ids": None}, "position_ids are missing"),
        "float": (
            {**inputs, "attention_mask": torch.where(causal, 0.0, -1e9)},
            "token 9 see the member before it",
        ),
        "indexed": ({**inputs, "attention_mask": doc_ids}, "inputs with mask=indexed"),
        "past": ({**inputs, "past_key_values": tf.DynamicCache()}, "past_key_values"),
        "ones from 1": (
            {**no_boundaries, "position_ids": inputs["position_ids"] + 1, "attention_mask": ones},
            "2-D attention_mask of ones",
        ),
        "ones but the first": (
            {**inputs, "attention_mask": (inputs["position_ids"][0] != 0) * ones},
            "2-D attention_mask of ones",
        ),
        "cut": ({**no_boundaries, "position_ids": inputs["position_ids"][:1]}, r"position_ids \[1, 1,"),
    }


def test_what_mixes_members_is_refused() -> None:
    model = make_model("qwen2_5_vl")
    members = make_members("qwen2_5_vl", model)
    batch = make_batch("qwen2_5_vl", [members])
    good = batch.model_inputs()
    check_inputs(good, "sdpa")
    cases = bad_inputs(good, batch["doc_ids"])
    with torch.no_grad():
        logits = model(**good).logits
        for bad, said in cases.values():
            assert (model(**copy.deepcopy(bad)).logits - logits).abs().max() > 0.1, f"{said}: this would not have mixed"
    handle = guard(model, MadeEncoder(members))
    for bad, said in cases.values():
        with pytest.raises(MixingError, match=said):
            model(**bad)
    model(**good)
    handle.remove()


def test_a_token_never_sees_what_follows() -> None:
    """Of transformers' keywords that reach the kernel, this one opens the row: with it members saw each other."""
    model = make_model("qwen2")
    inputs = make_batch("qwen2", [make_members("qwen2", model)]).model_inputs()
    with torch.no_grad():
        assert (model(**inputs, is_causal=False).logits - model(**inputs).logits).abs().max() > 0.1
    guard(model)
    with pytest.raises(MixingError, match="is_causal=False"):
        model(**inputs, is_causal=False)


def test_flash_attention_of_several_rows_needs_boundaries() -> None:
    model = make_model("llama")
    members = make_members("llama", model)
    good = make_batch("llama", [members[:2], members[2:]]).model_inputs()
    check_inputs(good, "flash_attention_2")
    bad = {name: value for name, value in good.items() if name != "cu_seq_lens_q"}
    check_inputs(bad, "sdpa")
    with pytest.raises(MixingError, match="flash_attention_2 with 2 rows"):
        check_inputs(bad, "flash_attention_2")


def test_boundaries_and_positions_have_to_agree() -> None:
    model = make_model("llama")
    inputs = make_batch("llama", [make_members("llama", model)]).model_inputs()
    with pytest.raises(MixingError, match="do not start again"):
        check_inputs({**inputs, "position_ids": inputs["position_ids"] + 1})


def test_an_indexed_mask_of_one_member_is_no_mask_of_ones() -> None:
    model = make_model("llama")
    members = make_members("llama", model)
    for packs, is_good in (([members[:1]], True), ([members[:1], members[2:3]], True), ([members[:2]], False)):
        batch = make_batch("llama", packs, width=60)
        ones = (batch["doc_ids"] > 0).int()
        if is_good:
            check_inputs({**batch.model_inputs(), "attention_mask": batch["doc_ids"]})
            check_inputs({**batch.model_inputs(), "attention_mask": ones})
        else:
            with pytest.raises(MixingError, match="mask of ones"):
                check_inputs({**batch.model_inputs(), "attention_mask": ones})


def test_a_hybrid_model_needs_its_kernels() -> None:
    """The text of transformers about missing ones is passed on."""
    with pytest.raises(MixingError, match="can't keep packed sequences apart without `flash-linear-attention`"):
        guard(make_model("qwen3_5"))


def test_rows_and_boundaries_of_a_hybrid_model() -> None:
    model = make_model("llama")
    members = make_members("llama", model)
    batch = make_batch("llama", [members[:2], members[2:]])
    batch.mask = "hybrid"
    with pytest.raises(MixingError, match="one row only, not in 2"):
        check_inputs(batch.model_inputs(model))
    batch = make_batch("llama", [members])
    batch.mask = "hybrid"
    inputs = batch.model_inputs(model)
    with pytest.raises(MixingError, match="seq_idx needs cu_seq_lens_q"):
        check_inputs({**inputs, "cu_seq_lens_q": None})
    check_inputs(inputs)


def test_every_part_of_a_model_is_guarded() -> None:
    """A trainer may call the inner model and put a head of its own on it."""
    model = make_model("qwen2")
    inputs = make_batch("qwen2", [make_members("qwen2", model)]).model_inputs()
    del inputs["labels"]
    held = guard(model)
    model.model(**inputs)
    for bad, said in (({"position_ids": None}, "position_ids are missing"), ({"use_cache": None}, "use_cache=None")):
        for part in (model, model.model):
            with pytest.raises(MixingError, match=said):
                part(**{**inputs, **bad})
        model(**inputs)  # an error leaves the guard as it was
    apart = torch.full((1, 1, *[inputs["input_ids"].shape[1]] * 2), -1e9)
    with pytest.raises(MixingError, match="was shown with mask=positions"):
        model(**{**inputs, "attention_mask": {"full_attention": apart}})
    held.remove()
    model.model(**{**inputs, "use_cache": None})


def test_masks_that_are_not_ours_are_refused() -> None:
    """Each is used as it is: no model makes one of positions beside it."""
    model = make_model("gpt_oss", "eager")
    batch = make_batch("gpt_oss", [text_members(64)])
    batch.mask = "auto"
    guard(model)
    good = batch.model_inputs(model)
    model(**good)
    open_mask = {name: torch.zeros_like(mask) for name, mask in good["attention_mask"].items()}
    width = good["input_ids"].shape[1]
    block = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, width, width, device="cpu")
    for mask, said in (
        (dict.fromkeys(open_mask), "is no additive 4-D mask"),
        (open_mask, "lets token 9 see the member before it"),
        (block, "attention_mask is a BlockMask"),
    ):
        with pytest.raises(MixingError, match=said):
            model(**{**good, "attention_mask": mask})


def test_an_interrupt_leaves_the_guard_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook, the next cell goes on with the same model; hooks of an interrupted call are never ended."""
    model = make_model("qwen2")
    inputs = make_batch("qwen2", [make_members("qwen2", model)]).model_inputs()
    guard(model)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[0], "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(**inputs)
    with pytest.raises(MixingError, match="mask of ones"):
        model(**{**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])})
    model(**inputs)


def test_batch_norm_that_is_trained_is_refused() -> None:
    """Its statistics are of all images of a batch: a probe that evaluates sees none of it."""
    model = make_model("llava")
    members = make_members("llava", model)
    model.model.multi_modal_projector.act = torch.nn.Sequential(Channels(), torch.nn.GELU())
    norm = model.model.multi_modal_projector.act[0]
    inputs = make_batch("llava", [members]).model_inputs()
    alone = make_batch("llava", [members[:2]]).model_inputs()
    with torch.no_grad():
        length = alone["input_ids"].shape[1]
        assert (model(**inputs).logits[:, :length] - model(**alone).logits).abs().max() > 0.01
    guard(model, MadeEncoder(members))
    with pytest.raises(MixingError, match="batch norm takes its statistics from all members"):
        model(**inputs)
    norm.eval()
    model(**inputs)


class Channels(torch.nn.BatchNorm1d):
    """Over the last dimension."""

    def __init__(self) -> None:
        super().__init__(32)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.flatten(0, -2)).view_as(input)


def test_attention_that_changes_is_tried_anew() -> None:
    model = make_model("qwen2")
    inputs = make_batch("qwen2", [make_members("qwen2", model)]).model_inputs()
    guard(model)
    model.set_attn_implementation("eager")
    with pytest.raises(MixingError, match="attention is eager now, and was sdpa when the model was tried"):
        model(**inputs)


def test_a_member_longer_than_all_packs_changes_the_angles_of_others() -> None:
    """Unpacked samples are blended with packs; beside a longer one, Phi-3's logits of another row move by 3."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = tf.Phi3Config(
        **{**TEXT, "max_position_embeddings": 64},
        rope_parameters={**rope, "original_max_position_embeddings": 64, "factor": 16.0},
        original_max_position_embeddings=64,
    )
    config.max_position_embeddings = 1024
    model = tf.Phi3ForCausalLM(config).eval()
    members = text_members(64)
    ids = torch.arange(80) % 50 + 8
    long = Encoded("long", Member(ids, ids, torch.zeros_like(ids)))
    good, bad = (
        make_batch("qwen2", rows, width=80).model_inputs(model) for rows in ([members, members], [members, [long]])
    )
    with torch.no_grad():
        assert (model(**good).logits[0] - model(**bad).logits[0]).abs().max() > 0.1
    guard(model, MadeEncoder(members, max_token_len=64))
    model(**good)
    with pytest.raises(
        MixingError,
        match="a row of 80 tokens: Phi3ForCausalLM was shown to keep members apart in packs of 64 tokens",
    ):
        model(**bad)


def test_media_that_were_not_tried_are_refused() -> None:
    model = make_model("llava")
    inputs = make_batch("llava", [make_members("llava", model)]).model_inputs()
    guard(model)
    with pytest.raises(MixingError, match="pixel_values: not tried with this model"):
        model(**inputs)


def test_packs_of_text_in_a_model_of_images() -> None:
    """Plain positions leak in Qwen2.5-VL: its text has three rows of them, all the same."""
    model = make_model("qwen2_5_vl")
    batch = make_batch("qwen2", [text_members(64)])
    guard(model)
    with pytest.raises(MixingError, match="takes M-RoPE rows"):
        model(**batch.model_inputs())
    packed = model(**batch.model_inputs(model)).logits[0]
    first = text_members(64)[0].tokens.ids
    alone = model(input_ids=first[None], position_ids=torch.arange(len(first)).expand(4, 1, -1), use_cache=False)
    assert torch.allclose(packed[: len(first)], alone.logits[0], atol=1e-5)
    with pytest.raises(MixingError, match=r"plain positions for its media: pack with model.rope"):
        make_batch("llava", [make_members("llava", make_model("llava"))]).model_inputs(model)


# How long a guarded row is, asked of the device only where its width leaves it open.


def test_members_are_looked_for_in_wide_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forward waited for the device to find members that could not be too long."""
    asked: list[object] = []

    def member_places(inputs: object) -> list[object]:
        asked.append(inputs)
        return []

    monkeypatch.setattr(batch_members, "find_member_places", member_places)
    inputs = {"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    assert (guards._longest_row_len(inputs, 5), len(asked)) == (3, 0)
    assert (guards._longest_row_len(inputs, 4), len(asked)) == (3, 1)
    far = {"position_ids": torch.tensor([[[0, 1, 2]], [[0, 40, 80]]])}  # M-RoPE of a video counts beyond its tokens
    assert guards._longest_row_len(far, 5) == 81


# What a batch makes on its device is made there.

DEVICE = torch.device("lazy")


@pytest.mark.parametrize("mask", ["positions", "hybrid", "dict4d", "prefix4d"])
def test_inputs_are_made_on_the_device_of_the_batch(mask: str) -> None:
    """`hybrid` numbered members on the CPU: on a GPU `guard` refused every class with a state, and training stopped."""
    made = lay_out_neat_rows([[member.tokens for member in text_members(64)]], RowForm())
    outline = ModelOutline("Tiny", False, None, 4, 4, ImageAttention.IN_WINDOWS, torch.float32, DEVICE)
    with FakeTensorMode(shape_env=ShapeEnv()) as fake:
        batch = PackedBatch({k: fake.from_tensor(v) if isinstance(v, Tensor) else v for k, v in made.items()})
        batch.mask = mask
        inputs = batch.to(DEVICE).model_inputs(outline)
    masks = inputs["attention_mask"] if isinstance(inputs.get("attention_mask"), dict) else {}
    tensors = {name: value for name, value in {**inputs, **masks}.items() if isinstance(value, Tensor)}
    assert len(tensors) > 3
    assert {name: value.device.type for name, value in tensors.items()} == dict.fromkeys(tensors, "lazy")

"""Batches spare a forward its reads on the host: what a vision tower works out from grids, few shapes, one buffer."""

import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from energon_pack.training import tower as towers
from energon_pack.training.batch import PackedBatch, VisualInputs
from energon_pack.training.fixed_shapes import padded_boundaries
from energon_pack.training.guards import guard
from energon_pack.training.host_reads import HostReadCounter
from energon_pack.training.kept_memory import move_buffers_once
from energon_pack.training.masks import PROVEN_TOWERS
from energon_pack.training.member_encoder import Encoded
from energon_pack.training.tower import TowerInputMaker
from support.tiny import FAMILIES, make_batch, make_members, make_model


@dataclass
class Media:
    """A stand-in for an encoder, which `guard` tells whose values to make."""

    members: list[Encoded]
    mask: str = "positions"
    max_token_len: int | None = None
    towers: list[TowerInputMaker | None] = field(default_factory=list)

    def probe_members(self) -> list[Encoded]:
        return self.members

    def use_tower(self, tower: TowerInputMaker | None) -> None:
        self.towers.append(tower)


def guarded(name: str) -> tuple[Any, Media, list[Encoded]]:
    model = make_model(name)
    encoder = Media(members := make_members(name, model), FAMILIES[name].mask)
    guard(model, encoder, first_batch=False).remove()
    return model, encoder, members


def with_values(batch: PackedBatch, tower: TowerInputMaker) -> PackedBatch:
    return PackedBatch({**batch, **pickle.loads(pickle.dumps(tower))(batch)})  # as in a worker


def reads_in(model: Any, inputs: dict[str, Any]) -> HostReadCounter:
    kept = [value for name, value in inputs.items() if "_cu_" in name and PROVEN_TOWERS[model].keeps_boundaries_on_host]
    with torch.no_grad(), HostReadCounter(kept) as reads:
        model(**inputs)
    return reads


def outcome(model: Any, inputs: dict[str, Any]) -> list[Tensor]:
    model.zero_grad()
    logits = model(**inputs).logits
    logits.square().mean().backward()
    return [logits.detach(), *(own.grad.clone() for own in model.parameters() if own.grad is not None)]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_a_forward_reads_few_times_whatever_its_images_and_has_the_same_outcome(name: str) -> None:
    """A pack of 24 images and videos: without the values Qwen2.5-VL reads more than 70 times, for each of them anew.

    What is left: the text's masks, and for each kind the sizes by which features are split, and how many there are.
    """
    model, encoder, members = guarded(name)
    (tower,) = encoder.towers
    assert tower is not None
    batch = make_batch(name, [members * 12])
    ours, plain = with_values(batch, tower).model_inputs(model), batch.model_inputs(model)
    added = ours.keys() - plain.keys()
    assert {"image_cu_seqlens", "image_position_ids"} <= added
    assert any(value.startswith("video_") for value in added) == ("video_grid_thw" in batch)
    few = with_values(make_batch(name, [members]), tower).model_inputs(model)
    before, after = reads_in(model, plain), reads_in(model, ours)
    assert reads_in(model, few).num_reads == after.num_reads < before.num_reads
    assert after.mixes_devices is False
    if name == "qwen2_5_vl":
        assert before.num_reads > 70
        assert after.num_reads == 7
    assert PROVEN_TOWERS[model].num_host_reads[0] > PROVEN_TOWERS[model].num_host_reads[1]
    for one, other in zip(outcome(model, plain), outcome(model, ours), strict=True):
        assert float((one - other).abs().max()) <= 1e-6


def test_only_the_model_that_was_shown_gets_the_values_of_its_own_tower() -> None:
    model, encoder, members = guarded("qwen2_5_vl")
    batch = make_batch("qwen2_5_vl", [members])
    assert encoder.towers[0] is not None
    ours = with_values(batch, encoder.towers[0])
    unguarded, other = make_model("qwen2_5_vl"), make_model("qwen2_5_vl")
    other.config.vision_config.window_size = 4
    guard(other, Media(members), first_batch=False).remove()
    plain = batch.model_inputs(model).keys()
    assert ours.model_inputs(unguarded).keys() == ours.model_inputs(other).keys() == ours.model_inputs().keys() == plain
    assert ours.model_inputs(model).keys() > plain
    moved_back = ours.to("cpu")
    assert (
        moved_back["tower_image_cu_seqlens"] is ours["tower_image_cu_seqlens"]
    )  # attention without variable lengths reads it


def test_values_that_change_outputs_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of another order of windows would mix patches of an image, and the loss would look normal."""
    make = TowerInputMaker.__call__

    def backwards(self: TowerInputMaker, media: Any) -> dict[str, Any]:
        values = make(self, media)
        return {**values, "tower_image_window_index": values["tower_image_window_index"].flip(0)}

    monkeypatch.setattr(towers.TowerInputMaker, "__call__", backwards)
    model, encoder, _ = guarded("qwen2_5_vl")
    assert encoder.towers == []
    assert model not in PROVEN_TOWERS


def test_text_and_models_without_grids_have_no_tower() -> None:
    for name in ("qwen2", "gemma3"):
        model, encoder, _ = guarded(name)
        assert encoder.towers == []
        assert model not in PROVEN_TOWERS


def test_reads_are_counted_by_their_line_and_those_of_kept_tensors_are_not() -> None:
    values, kept = torch.tensor([3, 0, 2]), torch.tensor([0, 3, 5])
    with HostReadCounter([kept]) as reads:
        values.tolist()
        bool(values.any())
        values[values > 0]
        values.repeat_interleave(values)
        int(values.max())
        (kept[1:] - kept[:-1]).tolist()
        values[values.argsort()]
    assert reads.num_reads == 5
    assert len(reads.reads_by_line) == 5
    assert all(place.startswith("test_tower.py:") for place in reads.reads_by_line)
    assert not reads.mixes_devices
    with HostReadCounter([kept]) as reads:
        values + kept  # on a GPU: two devices
    assert reads.mixes_devices


def test_small_tensors_move_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty tensors a batch were twenty copies to a device, and twenty allocations of pinned memory."""
    model = make_model("qwen2_5_vl")
    batch = make_batch("qwen2_5_vl", [make_members("qwen2_5_vl", model)])
    batch |= {"bare": torch.tensor(7), "none": torch.zeros(0, 3), "visual_inputs": VisualInputs(a=torch.ones(3, 2))}
    one = batch.in_one_buffer()
    copies: list[int] = []

    def copied(tensor: Tensor) -> Tensor:
        copies.append(tensor.nbytes)
        return tensor.clone()

    monkeypatch.setattr(Tensor, "pin_memory", copied)
    pinned = one.pin_memory()
    assert len(copies) <= 2  # the empty one is by itself
    assert one.num_bytes == batch.num_bytes <= sum(copies)
    assert pinned["cu_seq_lens_q"] is pinned["cu_seq_lens_k"]
    for before, after in zip(batch._tensors(), pinned._tensors(), strict=True):
        assert before[0] == after[0]
        assert before[1].dtype == after[1].dtype
        assert torch.equal(before[1], after[1])


def test_a_part_of_a_large_tensor_moves_alone() -> None:
    large = torch.arange(1000)
    parts = [large[:3], large[5:7]]
    sizes: list[int] = []
    found = move_buffers_once(parts, lambda one: sizes.append(len(one)) or one.clone())  # type: ignore[func-returns-value]
    assert sizes == [3, 2]
    assert found[id(parts[1])].tolist() == [5, 6]


def test_empty_segments_follow_the_last_and_too_many_are_refused() -> None:
    ends = torch.tensor([0, 3, 5, 9], dtype=torch.int32)
    batch = {"input_ids": torch.zeros(1, 9), "cu_seq_lens_q": ends, "max_length_q": 4, "max_seqlen_q": torch.tensor(4)}
    filled = padded_boundaries(batch, 5)
    assert filled["cu_seq_lens_q"].tolist() == [0, 3, 5, 9, 9, 9]
    assert filled["cu_seq_lens_q"].dtype == torch.int32
    assert (filled["max_length_q"], int(filled["max_seqlen_q"])) == (9, 9)
    with pytest.raises(ValueError, match=r"3 members and paddings, more than pad_segments=2: .*packing.max_members=1"):
        padded_boundaries(batch, 2)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "llama"])
def test_fake_tensors_go_through_a_forward_and_the_host_reads_only_in_these_lines(name: str) -> None:
    """Nothing of what a batch brings is looked at; what the class looks at by itself is named by its line."""
    model, encoder, members = guarded(name)
    batch = make_batch(name, [members], width=128)
    if encoder.towers and encoder.towers[0] is not None:
        batch = with_values(batch, encoder.towers[0])
    inputs = batch.model_inputs(model, labels=False)
    with HostReadCounter([value for key, value in inputs.items() if "_cu_" in key]) as reads, torch.no_grad():
        model(**inputs)
    lines = {place.split(":")[0] for place in reads.reads_by_line}
    assert lines <= {f"modeling_{name}.py", "import_utils.py", "masking_utils.py"}
    text = make_batch(name, [[member for member in members if not member.media]], width=64).model_inputs(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fake = {key: mode.from_tensor(value) if isinstance(value, Tensor) else value for key, value in text.items()}
        assert model(**fake).logits.shape[:2] == (1, 64)


def test_a_member_alone_gets_no_values_for_the_tower(caplog: pytest.LogCaptureFixture) -> None:
    """They are of all images of a batch: members with images would be compared with nothing."""
    model = make_model("qwen2_5_vl")
    encoder = Media(members := make_members("qwen2_5_vl", model))
    held = guard(model, encoder)
    assert encoder.towers[0] is not None
    batch = with_values(make_batch("qwen2_5_vl", [members, members]), encoder.towers[0])
    model(**batch.model_inputs(model))
    assert held.trials[0].finding is not None
    assert "nothing tells whose" not in caplog.text


def test_a_forward_that_is_not_tried_reads_little(caplog: pytest.LogCaptureFixture) -> None:
    """What members of a batch there are is read where a trial may be due, not in each forward."""
    model = make_model("llama")
    held = guard(model)
    inputs = make_batch("llama", [make_members("llama", model)] * 2).model_inputs()
    for _ in range(4):
        model(**inputs)
    assert len(held.trials) == 2
    with torch.no_grad():
        held.remove()
        with HostReadCounter() as plain:
            model(**inputs)
    held = guard(model)
    for _ in range(4):
        model(**inputs)
    with HostReadCounter() as guarded_reads:
        model(**inputs)
    assert len(held.trials) == 2
    assert guarded_reads.num_reads - plain.num_reads <= 12

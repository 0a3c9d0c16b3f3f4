"""Members of trees are encoded whole, and their common media once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from energon_pack.samples.media.prepared import PreparedMedia
from energon_pack.samples.member import MemberInput, Shared
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.template import Template
from energon_pack.training.encoded import BadPack
from energon_pack.training.media_inputs import MediaProcessor
from energon_pack.training.member_encoder import Encoded, MemberEncoder, UnreadableMember
from energon_pack.training.pack_encoder import PackEncoder
from energon_pack.training.rope import RopeRule
from energon_pack.training.rope_rule import rope_rule_of
from support.models import of_model
from support.processors import glm4v
from support.running import need_torchvision
from support.trees import conversations, with_shares

MADE: dict[str, Any] = {"layout": "neat", "mask": "positions", "max_token_len": 4096, "pad_to_multiple_of": 1}
MADE |= {"content": {"model": {"rope": "qwen2_5_vl"}}}


@pytest.fixture(scope="module")
def encoder(template: Template) -> MemberEncoder:
    need_torchvision()
    return MemberEncoder(template.input_rules, RopeRule("qwen2_5_vl", tokens_per_second=2))


@pytest.fixture(scope="module")
def inputs(encoder: MemberEncoder) -> list[MemberInput]:
    return with_shares(encoder, conversations())


def fail(member: object, error: Exception) -> None:
    raise error


def assert_same_tokens(found: Encoded, whole: Encoded) -> None:
    for name in ("ids", "labels", "types", "rope"):
        some, other = getattr(found.tokens, name), getattr(whole.tokens, name)
        assert (some is None and other is None) or torch.equal(some, other), name


def test_the_tokens_are_those_alone_and_each_image_is_there_once(
    encoder: MemberEncoder, inputs: list[MemberInput]
) -> None:
    assert [one.shared.num_images for one in inputs] == [0, 1, 1, 2, 2, 3, 0]
    assert [bool(one.shared.num_tokens) for one in inputs] == [False, *[True] * 5, False]
    members, media = encoder.encode_together(inputs, fail)
    for found, one in zip(members, inputs, strict=True):
        assert_same_tokens(found, encoder.encode_alone(one))
        assert found.tokens.shared_len == one.shared.num_tokens
    assert [one.num_images for one in members] == [1, 0, 1, 0, 1, 0, 0]
    whole = encoder.encode_alone(inputs[4]).media
    assert torch.equal(media["image_grid_thw"], whole["image_grid_thw"])
    assert torch.equal(media["pixel_values"], whole["pixel_values"])


def test_what_a_lost_member_shared_is_brought_by_the_next(template: Template, inputs: list[MemberInput]) -> None:
    """Whichever is lost, the row is the one of a tree without it, and images that it brought are there."""
    encoder = PackEncoder(MADE, template.input_rules, tokens_per_second=2, on_bad_member="drop")
    kept: list[list[str]] = []
    for index in range(len(inputs)):
        for bad in (
            UnreadableMember(inputs[index].sample_id, OSError("gone"), inputs[index].shared),
            broken(inputs[index]),
        ):
            pack = encoder.encode("p", [*inputs[:index], bad, *inputs[index + 1 :]])
            assert pack is not None
            rest = [one for i, one in enumerate(inputs) if i != index]
            expected = encoder.encode("p", with_shares(encoder.members, rest))
            assert expected is not None
            assert pack.dropped == [inputs[index].sample_id]
            lens = [[one.tokens.shared_len for one in found.members] for found in (pack, expected)]
            assert lens[0] == lens[1]
            assert torch.equal(pack.media["pixel_values"], expected.media["pixel_values"])
            some, other = encoder.batch([pack]), encoder.batch([expected])
            assert torch.equal(some["input_ids"], other["input_ids"])
            assert torch.equal(some["position_ids"], other["position_ids"])
            kept.append(some["sample_ids"][0])
    assert len(kept) == 2 * len(inputs)


def broken(member: MemberInput) -> MemberInput:
    """With a turn that has no content, so that it fails before its media are processed."""
    return replace(member, messages=[*member.messages, {"role": "user"}])


def test_an_image_that_can_not_be_processed_costs_all_samples_that_have_it(
    template: Template, inputs: list[MemberInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = MediaProcessor.__call__

    def failing(self: MediaProcessor, members: Sequence[PreparedMedia]) -> dict[str, Tensor]:
        if any(image.width == 84 for member in members for image in member.of_kind("image")):
            raise OSError("broken")
        return process(self, members)

    encoder = PackEncoder(MADE, template.input_rules, tokens_per_second=2, on_bad_member="drop")
    expected = encoder.encode("p", [*inputs[:4], inputs[6]])
    monkeypatch.setattr(MediaProcessor, "__call__", failing)
    pack = encoder.encode("p", inputs)
    assert pack is not None
    assert expected is not None
    assert pack.dropped == ["a c e", "a c e again"]
    assert torch.equal(pack.media["pixel_values"], expected.media["pixel_values"])
    assert torch.equal(encoder.batch([pack])["input_ids"], encoder.batch([expected])["input_ids"])


def test_a_member_that_does_not_begin_so_is_refused_with_both_names(
    template: Template, inputs: list[MemberInput]
) -> None:
    encoder = PackEncoder(MADE, template.input_rules, tokens_per_second=2)
    wrong = replace(inputs[2], shared=Shared(inputs[2].shared.num_tokens + 9, 1))
    with pytest.raises(BadPack, match=r"^p: the .* tokens that a c shares with a b differ in their ids"):
        encoder.encode("p", [*inputs[:2], wrong])
    with pytest.raises(BadPack, match=r"a b shares .* and is the first"):
        encoder.encode("p", [inputs[1]])
    too_many = replace(inputs[1], shared=Shared(inputs[1].shared.num_tokens, 0, 1))
    with pytest.raises(BadPack, match="it shares 0 images and 1 videos, which are not its first"):
        encoder.encode("p", [inputs[0], too_many])


@pytest.mark.parametrize("options", [{"layout": "thd"}, {"layout": "mlm"}, {"attention_mask": "prefix4d"}])
def test_layouts_and_masks_without_trees_refuse_them(
    options: dict[str, Any], template: Template, inputs: list[MemberInput]
) -> None:
    encoder = PackEncoder(MADE, template.input_rules, tokens_per_second=2, **options)
    pack = encoder.encode("p", inputs)
    assert pack is not None
    name, value = next(iter(options.items()))
    said = f"for which {name.removeprefix('attention_')}={value} has no place: pack with packing.share=none"
    with pytest.raises(BadPack, match=f"a b in p: it shares tokens with the sample before it, {said}"):
        encoder.batch([pack])


def test_a_batch_of_trees_counts_what_it_holds(template: Template, inputs: list[MemberInput]) -> None:
    encoder = PackEncoder(MADE, template.input_rules, tokens_per_second=2)
    pack = encoder.encode("p", inputs)
    assert pack is not None
    batch = encoder.batch([pack, pack])
    own = sum(len(one.tokens) - one.tokens.shared_len for one in pack.members)
    assert batch["num_tokens"] == 2 * own == batch["input_ids"].numel()
    assert batch["n_images_per_sample"].tolist() == [3, 3]
    assert batch["sample_ids"][0] == [one.sample_id for one in inputs]
    assert batch["num_trained"] == int((batch["labels"] != -100).sum())
    plain = encoder.batch([pack for pack in [encoder.encode("q", conversations())] if pack])
    assert not {"tree_end", "tree_index", "k_index"} & plain.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glm4v", "internvl3_hf", "gemma3", "qwen3_vl", "granite_docling_idefics3"])
def test_other_processors_give_each_image_once(name: str, request: pytest.FixtureRequest, tmp_path: Any) -> None:
    need_torchvision()
    folder = glm4v(tmp_path) if name == "glm4v" else request.getfixturevalue("real") / "processors" / name
    family = {"qwen3_vl": "qwen3_vl", "internvl3_hf": "internvl"}.get(name, "auto")
    template = build_uncached_template(of_model(family, folder))
    encoder = MemberEncoder(template.input_rules, rope_rule_of("auto", template.input_rules))
    inputs = with_shares(encoder, conversations())
    assert [one.shared.num_images for one in inputs] == [0, 1, 1, 2, 2, 3, 0]
    members, media = encoder.encode_together(inputs, fail)
    for found, one in zip(members, inputs, strict=True):
        assert_same_tokens(found, encoder.encode_alone(one))
    whole = encoder.encode_alone(inputs[4]).media
    assert media.keys() == whole.keys()
    for key, value in whole.items():
        assert torch.equal(media[key], value), key

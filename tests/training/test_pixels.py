"""The real processors' media: they have the tokens they were given, and join as one call for them all would."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from train_tiny import tiny_model

from energon_pack.config import PackConfig, Rope
from energon_pack.flavors import MultiMixQASample
from energon_pack.loading.task_encoder import PackedTaskEncoder, inputs_of
from energon_pack.samples.media.lazy_image import LazyImage
from energon_pack.samples.media.medium import Media
from energon_pack.samples.member import MemberInput
from energon_pack.samples.skip import Skip
from energon_pack.templates.full_processor import load_full_processor
from energon_pack.templates.processor import build_uncached_template
from energon_pack.templates.sample import Sample
from energon_pack.training.batch import PackedBatch, touch_vision
from energon_pack.training.joining import JoinError, JoinRule
from energon_pack.training.member_encoder import Encoded, MemberEncoder
from energon_pack.training.processor_calls import MediaProcessorCaller
from energon_pack.training.rope import RopeRule
from support import processors
from support.hearing import HEARING
from support.marks import slow
from support.models import of_model
from support.packed import packed, train
from support.running import need_torchvision
from support.samples import picture, video
from support.tiny import tf


def num_patches(media: dict[str, Any], name: str) -> int:
    return int(media[name].prod(1).sum()) // 4 if name in media else 0


@pytest.mark.parametrize(("name", "family"), [("qwen2_5_vl", "qwen_vl"), ("qwen3_vl", "qwen3_vl")])
def test_real_processors_make_a_feature_for_each_token(real: Path, name: str, family: str) -> None:
    need_torchvision()
    template = build_uncached_template(of_model(family, real / "processors" / name))
    encoder = MemberEncoder(template.input_rules, RopeRule(name, tokens_per_second=2))
    turns = [{"role": "user", "content": "<video> and <image>, what?"}, {"role": "assistant", "content": "That."}]
    for frames in (None, [[0, 3, 9, 20]]):
        member = encoder.encode_alone(
            MemberInput("k", turns, [LazyImage(picture(300, 200), "i")], [video()], None, frames)
        )
        assert int((member.tokens.types == 1).sum()) == num_patches(member.media, "image_grid_thw")
        assert int((member.tokens.types == 2).sum()) == num_patches(member.media, "video_grid_thw")


def test_a_text_that_spells_a_feature_token_is_refused(real: Path) -> None:
    """Gemma 3 has another token for features than for an image in a text; one too many of them ends a training."""
    template = build_uncached_template(of_model("shapes", real / "processors" / "gemma3"))
    turns = [{"role": "user", "content": "<image_soft_token>?"}, {"role": "assistant", "content": "That."}]
    with pytest.raises(Skip, match="the text spells the media token <image_soft_token>"):
        template.render(Sample(turns, []))
    turns[0]["content"] = "<image>?"
    assert template.render(Sample(turns, [Media("image", 60, 60)])).num_visual_tokens == 256


def test_media_of_both_kinds_keep_their_order(real: Path) -> None:
    """InternVL has one token for both: what comes first in the text comes first in the pixels."""
    need_torchvision()
    template = build_uncached_template(of_model("internvl", real / "processors" / "internvl3_hf"))
    turns = [{"role": "user", "content": "<image> and <video> and <image>"}, {"role": "assistant", "content": "That."}]
    images = [LazyImage(picture(900, 500), "a"), LazyImage(picture(300, 300), "b")]
    member = MemberEncoder(template.input_rules).encode_alone(
        MemberInput("k", turns, images, [video()], None, [[0, 3, 9]])
    )
    pixels = member.media["pixel_values"]
    assert int((member.tokens.types > 0).sum()) == 256 * len(pixels)
    assert pixels.shape[2:] == (448, 448)  # its published video settings say 384
    is_teal = [torch.allclose(tile.mean((1, 2)), pixels[0].mean((1, 2)), atol=0.05) for tile in pixels]
    assert is_teal == [True] * (len(pixels) - 4) + [False] * 3 + [True]


def test_clips_of_several_lengths_go_into_one_pack(real: Path) -> None:
    """InternVL's processor stacks the clips of a text: a pack with two of them ended the training."""
    need_torchvision()
    encoder = MemberEncoder(
        build_uncached_template(of_model("internvl", real / "processors" / "internvl3_hf")).input_rules
    )
    turns = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "That."}]
    members = [MemberInput(str(n), turns, [], [video()], None, [[*range(n)]]) for n in (2, 5)]
    encoded, media = encoder.encode_together(members, fail)
    assert [int((member.tokens.types > 0).sum()) for member in encoded] == [256 * 2, 256 * 5]
    assert len(media["pixel_values"]) == 7


def unjoinable(calls: MediaProcessorCaller, members: Any, as_rows: bool = False) -> dict[str, torch.Tensor]:
    """A processor with a mask of each medium and each other one."""
    num_media = sum(len(member.order) for member in members)
    return {"pixel_values": torch.ones(num_media, 3), "cross_mask": torch.ones(1, num_media, num_media)}


def test_what_can_not_be_joined_is_an_error_before_any_sample(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a processor that no one has compared, all is tried at start, and nothing in the first pack with two images."""
    need_torchvision()
    template = build_uncached_template(of_model("shapes", real / "processors" / "qwen2_vl"))
    MemberEncoder(template.input_rules).check_processor()
    monkeypatch.setattr(MediaProcessorCaller, "__call__", unjoinable)
    with pytest.raises(JoinError, match="Qwen2VLProcessor: images of several members can't be joined: no rule joins"):
        MemberEncoder(template.input_rules).check_processor()


def test_what_a_model_takes_of_each_token_is_made_or_refused(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_torchvision()
    template = build_uncached_template(of_model("shapes", real / "processors" / "qwen2_vl"))
    call = type(load_full_processor(template.spec.processor)).__call__

    def more(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = call(self, *args, **kwargs)
        made["expert_ids"] = torch.zeros_like(made["input_ids"])
        return made

    monkeypatch.setattr(type(load_full_processor(template.spec.processor)), "__call__", more)
    with pytest.raises(JoinError, match="Qwen2VLProcessor gives expert_ids for each token"):
        MemberEncoder(template.input_rules).check_processor()


def test_types_of_tokens_are_the_processors_own(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GLM-4V has one token for images and for frames: by it, a video's positions would be those of images."""
    template = build_uncached_template(of_model("shapes", real / "processors" / "qwen2_vl"))
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "That."}]
    member = MemberInput("k", turns, [], [])
    assert not MemberEncoder(template.input_rules).encode_alone(member).tokens.types.any()
    monkeypatch.setattr(MediaProcessorCaller, "token_types", lambda _, ids: [2] * len(ids))
    asked = replace(template.input_rules, is_asked=True)
    assert MemberEncoder(asked).encode_alone(member).tokens.types.unique().tolist() == [2]


HEARS = {name.partition("For")[0]: name for name in HEARING}


@pytest.mark.parametrize("name", ["pixel_values", "pixel_values_images"])
def test_a_dummy_image_goes_through_the_part_that_takes_it(name: str) -> None:
    """Janus has the method in an inner part, VideoLLaMA3 names all of it there alone."""

    class Inner(torch.nn.Linear):
        def get_image_features(self, pixel_values: Any, image_sizes: Any, return_dict: bool) -> Any:
            return SimpleNamespace(pooler_output=[self(pixel_values) * image_sizes])

    class Outer(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner(3, 2)

        def get_image_features(self, pixel_values: Any, **more: Any) -> Any:
            return self.inner.get_image_features(pixel_values, **more)

    model = Outer()
    touch_vision(model, {f"dummy_{name}": torch.ones(1, 3), "dummy_image_sizes": torch.ones(1, 1)}).backward()
    assert model.inner.weight.grad is not None
    with pytest.raises(ValueError, match="Linear has no get_image_features for a dummy image"):
        touch_vision(torch.nn.Linear(1, 1), {f"dummy_{name}": torch.ones(1, 3)})


@pytest.mark.parametrize("name", [name if name == "Qwen2Audio" else slow(name) for name in HEARS])
def test_texts_take_all_towers_along(tmp_path: Path, name: str) -> None:
    """A rank whose packs have no sounds would have no gradients for the encoder of sounds: DDP and FSDP stop there.
    Qwen2.5-Omni has weights that no pack uses.
    """
    one = HEARING[HEARS[name]]
    pytest.importorskip(one.needs, reason=f"{one.needs} makes the features of {name}")
    folder = one.write(tmp_path / "processor")
    model = getattr(tf, HEARS[name])(one.config(lambda token: processors.token_id(folder, token))).float()
    ids = torch.arange(10, 20)[None]
    touched = touch_vision(model, {})
    assert float(touched.detach()) == 0.0
    out = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    (out.logits.sum() + touched).backward()
    assert [name for name, own in model.named_parameters() if own.requires_grad and own.grad is None] == []


def test_a_family_of_rules_loads_no_processor_for_texts(real: Path) -> None:
    """A dataset of texts trains where the processor's packages are not installed."""
    encoder = MemberEncoder(build_uncached_template(of_model("qwen_vl", real / "processors" / "qwen2_vl")).input_rules)
    encoder.check_processor()
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "That."}]
    members, media = encoder.encode_together([MemberInput("k", turns, [], [])] * 2, fail)
    assert len(members) == 2
    assert encoder.join_media_inputs([media, media]) == {}
    assert "_processors" not in vars(encoder.media_processor._call)


def test_inputs_of_other_names_reach_the_model() -> None:
    """Phi-4 has `image_pixel_values`: a model without it would train on texts with holes."""
    batch = PackedBatch(input_ids=torch.ones(1, 3), position_ids=torch.arange(3)[None], doc_ids=torch.ones(1, 3))
    batch |= {"image_pixel_values": torch.ones(1, 2), "note": torch.ones(1), "media_keys": ["image_pixel_values"]}
    assert batch.model_inputs().keys() == {"input_ids", "position_ids", "image_pixel_values"}


#: processor, family: rules that are not media below each other; whether a pack's images are one call, without a text
REAL = {
    "qwen2_5_vl": ("qwen_vl", {}, True),
    "internvl3_hf": ("internvl", {}, False),  # the processor asks for tiles, its image processor by itself does not
    "llava_onevision_qwen2_hf": ("llava_onevision", {"pixel_values": JoinRule(0, 0.0)}, True),
}


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl3_hf", slow("llava_onevision_qwen2_hf")])
def test_members_of_several_packs_are_joined_as_one_call_would(real: Path, name: str) -> None:
    """A batch of two packs is joined from two calls: it ended the training where the second had more tiles."""
    need_torchvision()
    family, rules, without_text = REAL[name]
    encoder = MemberEncoder(build_uncached_template(of_model(family, real / "processors" / name)).input_rules)
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "That."}]
    members = [MemberInput(str(i), turns, [LazyImage(picture(*size), "i")], []) for i, size in enumerate(SIZES)]
    every = encoder.encode_together(members, fail)[1]
    parts = [encoder.encode_together(some, fail)[1] for some in (members[:1], [], members[1:])]
    joined = encoder.join_media_inputs(parts)
    assert joined.keys() == every.keys()
    for key, value in every.items():
        torch.testing.assert_close(joined[key], value, rtol=0, atol=1e-5)
    found = encoder.media_processor.joins(every)
    assert {key: rule for key, rule in found.items() if rule != JoinRule()} == rules
    assert encoder.media_processor._tried_media("image").can_call_once
    assert encoder.media_processor._tried_media("image").needs_no_text is without_text


SIZES = ((900, 500), (60, 90), (300, 700))


def fail(member: object, error: Exception) -> None:
    raise error


def micro_batches(batch: PackedBatch, num_rows: int) -> list[dict[str, Any]]:
    """Cut as NeMo Automodel cuts them for its pipelines (nemo_automodel's chunk_vlm_media): so many rows, the media
    that `n_images_per_sample` and `n_videos_per_sample` give those rows, and the patches that these have.
    """
    inputs, found = batch.model_inputs(), []
    place = {"image": 0, "video": 0, "pixel_values": 0, "pixel_values_videos": 0}
    for first in range(0, len(batch["input_ids"]), num_rows):
        rows = slice(first, first + num_rows)
        part: dict[str, Any] = {"use_cache": False, "position_ids": inputs["position_ids"][:, rows]}
        part |= {name: inputs[name][rows] for name in ("input_ids", "mm_token_type_ids")}
        for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            media = slice(place[kind], place[kind] + int(batch[f"n_{kind}s_per_sample"][rows].sum()))
            grids = inputs.get(f"{kind}_grid_thw", torch.zeros(0, 3, dtype=torch.long))[media]
            patches = slice(place[pixels], place[pixels] + int(grids.prod(1).sum()))
            if len(grids):
                part |= {f"{kind}_grid_thw": grids, pixels: inputs[pixels][patches]}
            place |= {kind: media.stop, pixels: patches.stop}
        found.append(part)
    return found


def own_logits(row: Tensor, members: list[Encoded]) -> list[Tensor]:
    lengths = [len(member.tokens) for member in members]
    return list(row[: sum(lengths)].split(lengths))


def alone(model: Any, member: Encoded) -> Tensor:
    """With nothing of ours: the model's own positions."""
    tokens = member.tokens
    mask = torch.ones_like(tokens.ids[None])
    inputs = {"input_ids": tokens.ids[None], "mm_token_type_ids": tokens.types[None], "attention_mask": mask}
    logits: Tensor = model(**inputs, **member.media, use_cache=False).logits[0]
    return logits


def test_micro_batches_give_what_each_member_gives_alone(
    config: Callable[..., PackConfig], demo: tuple[Path, Path]
) -> None:
    """Packs of images, of a video and an image, and of text; all of one width, as pipelines want them."""
    need_torchvision()
    dataset = packed(config(model__rope=Rope.qwen2_5_vl, source__limit=40, packing__max_token_len=700))
    encoder = PackedTaskEncoder(dataset, str(demo[1]), pad_to="max_token_len", tokens_per_second=2)
    packs = list(train(dataset))
    with_media = [pack for pack in packs if pack.media_type == "image"][:2]
    text = next(pack for pack in packs if pack.media_type == "text")
    turns = [{"role": "user", "content": "<image><video>Which?"}, {"role": "assistant", "content": "both"}]
    media = {"image": [LazyImage(picture(90, 60), "x")], "video": [video()]}
    both = MultiMixQASample(__key__="k", __restore_key__=(), messages=turns, **media)
    chosen = [with_media[0], both, text, with_media[1]]
    model = tiny_model(encoder, "eager")
    batch = encoder.batch([encoder.encode_sample(pack) for pack in chosen])
    assert batch["n_images_per_sample"][1:3].tolist() == [1, 0]
    assert batch["n_videos_per_sample"].tolist() == [0, 1, 0, 0]
    members = [[encoder.members.encode_alone(member) for member in inputs_of(pack)] for pack in chosen]
    with torch.no_grad():
        single = [alone(model, member) for pack in members for member in pack]
        for num_rows in (1, 2, 4):
            rows = [row for part in micro_batches(batch, num_rows) for row in model(**part).logits]
            made = [of for row, pack in zip(rows, members, strict=True) for of in own_logits(row, pack)]
            largest = max(float((a - b).abs().max()) for a, b in zip(made, single, strict=True))
            print(f"micro-batches of {num_rows} rows of {batch['input_ids'].shape[1]}: logits {largest:.1e}")
            assert largest <= 1e-5
        batch["n_images_per_sample"] = batch["n_images_per_sample"].roll(1)
        with pytest.raises(ValueError, match="do not match"):
            [model(**part) for part in micro_batches(batch, 1)]

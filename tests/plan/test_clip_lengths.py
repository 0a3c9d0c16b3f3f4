"""Clips of several lengths, for a model whose processor stacks clips: no pack has to join them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from energon_pack import PackedTaskEncoder
from energon_pack.config import ModelConfig
from energon_pack.plan.items import Items
from energon_pack.plan.plan import group_of_items, plan_packs
from energon_pack.plan.sample_measures import SampleMeasurer, SampleMeasures
from energon_pack.plan.settings import GroupBy, PackingConfig
from energon_pack.samples.media.medium import Media
from energon_pack.samples.skip import Skip
from energon_pack.templates.families.rules import ProcessorSettings
from energon_pack.templates.families.tiles import LlavaOneVision
from energon_pack.templates.preparation import MediaPreparation
from energon_pack.templates.settings import MediaConfig
from support.packed import Make, json_lines, packed, train
from support.running import need_torchvision
from support.samples import video

LLAVA = ProcessorSettings(
    image={"size": {"height": 384, "width": 384}, "image_grid_pinpoints": [[384, 384], [384, 768]]},
    processor={"num_image_tokens": 729},
)


def items_of(clip_frames: list[int]) -> Items:
    zeros = np.zeros(len(clip_frames), np.int64)
    counts = {name: zeros for name in ("num_images", "num_visual_tokens", "num_audios", "num_audio_tokens")}
    lens = zeros + 10
    items = Items({"token_len": lens, **counts}, zeros.astype(np.int8), zeros, zeros, zeros.astype(np.int8), lens)
    return replace(items, clip_frames=np.array(clip_frames, np.int32))


@pytest.mark.parametrize("group_by", GroupBy)
def test_a_pack_holds_clips_of_one_length(group_by: GroupBy) -> None:
    frames = [8, 12, 8, 20, 12, 8, 0, 0]
    plan = plan_packs(items_of(frames), PackingConfig(max_token_len=100, group_by=group_by))
    members = np.split(plan.items, plan.starts[1:-1])
    assert sorted(sorted(frames[item] for item in pack.tolist()) for pack in members) == [
        [0, 0], [8, 8, 8], [12, 12], [20],
    ]  # fmt: skip


def test_groups_are_as_before_where_all_clips_join() -> None:
    items = items_of([8, 12, 20])
    assert group_of_items(replace(items, clip_frames=None), PackingConfig()).tolist() == [0, 0, 0]


def test_only_a_sample_with_clips_of_several_lengths_is_left_out() -> None:
    llava = MediaPreparation("llava_onevision", MediaConfig(), LlavaOneVision(LLAVA))
    eight, twelve = (Media("video", 64, 48, "mp4", number, 10.0) for number in (8, 12))
    assert [llava.clip_frames(media) for media in ([], [eight], [twelve, twelve])] == [0, 8, 12]
    with pytest.raises(Skip, match="clips of 8 and 12 frames in one sample"):
        llava.clip_frames([eight, twelve])


def test_packs_made_while_loading_keep_lengths_of_clips_apart() -> None:
    measurer = SampleMeasurer.__new__(SampleMeasurer)
    measurer.packing = PackingConfig()
    groups = [measurer.group(SampleMeasures(10, (10,), "video", frames), None) for frames in (0, 8, 12, 8)]
    assert groups == ["video", "video: clips of 8 frames", "video: clips of 12 frames", "video: clips of 8 frames"]


@pytest.mark.slow
def test_every_pack_of_clips_of_several_lengths_is_trained(real: Path, config: Make, tmp_path: Path) -> None:
    """With LLaVA-OneVision's processor; two packs in one batch are refused by their names."""
    need_torchvision()
    from megatron.energon.errors import FatalSampleError

    turns = [{"role": "user", "content": "<video>What is it?"}, {"role": "assistant", "content": "Grey."}]
    for number in (8, 12):
        (tmp_path / f"{number}.mp4").write_bytes(video(number))
    lines = [json.dumps({"messages": turns, "videos": [f"{number}.mp4"]}) for number in (8, 12, 12, 8)]
    both = [{"role": "user", "content": "<video><video>"}, turns[1]]
    lines.append(json.dumps({"messages": both, "videos": ["8.mp4", "12.mp4"]}))
    (tmp_path / "clips.jsonl").write_text("\n".join(lines))
    processor = str(real / "processors" / "llava_onevision_qwen2_hf")
    model = ModelConfig("llava_onevision", "llava_onevision", processor, processor)
    folder = packed(config(tmp_path / "clips.jsonl", model=model, packing__max_token_len=16384, max_skipped=0.5))
    assert [line["reason"] for line in json_lines(folder / "skipped.jsonl")] == ["unsupported_media"]
    encoder = PackedTaskEncoder(folder)
    packs = [encoder.encode_sample(pack) for pack in train(folder)]
    assert sorted(tuple(pack.media["pixel_values_videos"].shape[:2]) for pack in packs) == [(2, 8), (2, 12)]
    with pytest.raises(
        FatalSampleError, match=rf"{packs[0].__key__}, {packs[1].__key__}: .*can't be joined.*a pack a batch"
    ):
        encoder.batch(packs)

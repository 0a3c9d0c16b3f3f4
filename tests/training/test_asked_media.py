"""Members whose records say something of their media, and lists of frames, come out of a pack as alone.

The settings travel in the packs: were they lost on the way, training would make other lengths and end.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from energon_pack.config import Format, Frames, Rope
from energon_pack.loading.task_encoder import PackedTaskEncoder
from energon_pack.unpack import unpack
from support.alone import demo_model, members_of
from support.packed import demo_config, json_lines, packed, train
from support.running import need_torchvision
from support.samples import picture, video

FRAMES = [f"f{i}.jpg" for i in range(5)]


def turns(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}, {"role": "assistant", "content": "4 circles"}]


def part(kind: str, media: Any, **said: Any) -> dict[str, Any]:
    return {"type": kind, kind: media, **said}


SIDES = {"resized_height": 56, "resized_width": 56}
CLIP = part("video", "v.mp4", fps=2)
LINES: list[dict[str, Any]] = [
    {"messages": turns([part("image", "p.png", max_pixels=12_544), {"type": "text", "text": "How many?"}])},
    {"messages": turns([part("image", "p.png", resized_height=56, resized_width=140)])},
    {"messages": turns("<image>?"), "images": ["p.png"], "chat_template_kwargs": {"max_pixels": 6_272}},
    {"messages": turns("<image>?"), "images": ["p.png"]},
    {"messages": turns([part("video", "v.mp4", nframes=4, video_start=1, video_end=2, **SIDES)])},
    {"messages": turns("<video>?"), "videos": [FRAMES], "fps": 1},
    {"messages": turns([part("video", FRAMES[:4], sample_fps=4.0), part("image", "p.png", max_pixels=6_272), CLIP])},
    {"messages": turns("<image> then <video>"), "images": ["p.png"], "videos": [FRAMES]},
]  # fmt: skip
#: visual tokens: of squares of 28 × 28, and of two frames each
EXPECTED = [4 * 3, 2 * 5, 3 * 2, 8 * 6, 2 * 2 * 2, 3 * 3 * 2, 2 * 3 * 2 + 6 + 3 * 2 * 2, 48 + 18]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "p.png").write_bytes(picture(224, 168, "PNG"))
    (folder / "v.mp4").write_bytes(video(fps=10))
    for name in FRAMES:
        (folder / name).write_bytes(picture(84, 56))
    bad: list[dict[str, Any]] = [
        {"messages": turns([part("image", "p.png", max_pixels="all")])},
        {"messages": turns("<video>"), "videos": [["f0.jpg", "p.png"]]},
    ]
    (folder / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES + bad))
    return folder / "s.jsonl"


@pytest.fixture(scope="module")
def dataset(source: Path, demo: tuple[Path, Path], cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_torchvision()
    settings: dict[str, Any] = {"source__format": Format.jsonl, "max_skipped": 0.5, "measure__verify": 1.0}
    settings |= {"model__rope": Rope.qwen2_5_vl, "packing__max_token_len": 1024}
    return packed(demo_config(demo, cache, tmp_path_factory.mktemp("packed"), source, **settings))


@pytest.fixture(scope="module")
def encoder(dataset: Path, demo: tuple[Path, Path]) -> PackedTaskEncoder:
    return PackedTaskEncoder(dataset, str(demo[1]), tokens_per_second=2)


def test_all_are_counted_as_their_records_say(dataset: Path) -> None:
    rows = pq.read_table(dataset / "pack_plan.parquet").to_pylist()
    assert [row["num_visual_tokens"] for row in sorted(rows, key=lambda row: int(row["key"]))] == EXPECTED
    reasons = [(line["reason"], line["detail"]) for line in json_lines(dataset / "skipped.jsonl")]
    assert reasons == [
        ("bad_message", "max_pixels is 'all', no number"),
        ("unreadable_media", "the frames of a video have several sizes: 84×56, 224×168"),
    ]


def test_packed_is_alone(dataset: Path, encoder: PackedTaskEncoder) -> None:
    """Logits to 1e-5: alone is what the model's processor gives, with nothing of ours around."""
    model = demo_model(encoder.rules)
    packs = list(train(dataset))
    alone = members_of(dataset, encoder, [name for pack in packs for name in pack.sample_ids])
    assert len(alone) == len(LINES)
    for pack in packs:
        batch = encoder.batch([encoder.encode_sample(pack)])
        with torch.no_grad():
            together = model(**batch.model_inputs(model)).logits[0]
        bounds = batch["cu_seq_lens_q"].tolist()
        for name, start, end in zip(batch["sample_ids"][0], bounds[:-1], bounds[1:], strict=False):
            ids, types = alone[name].tokens.ids[None], alone[name].tokens.types[None]
            inputs = {"input_ids": ids, "mm_token_type_ids": types, **alone[name].media}
            with torch.no_grad():
                single = model(**inputs, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
            assert float((together[start:end] - single).abs().max()) <= 1e-5


def test_media_of_a_list_of_frames_are_a_videos(dataset: Path, encoder: PackedTaskEncoder) -> None:
    """At its rate: two frames take two seconds where one is taken each second."""
    (member,) = members_of(dataset, encoder, ["s.jsonl:6"]).values()
    assert member.media["video_grid_thw"].tolist() == [[3, 4, 6]]  # the fifth frame is shown twice
    assert member.media["second_per_grid_ts"].tolist() == [2.0]
    assert "image_grid_thw" not in member.media
    assert (member.num_images, member.num_videos) == (0, 1)
    (ranged,) = members_of(dataset, encoder, ["s.jsonl:5"]).values()
    assert ranged.media["second_per_grid_ts"].tolist() == pytest.approx([2 / (4 / 1.1)])


def test_unpacked_and_packed_again(dataset: Path, demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    assert unpack(dataset, tmp_path / "single") == len(LINES)
    again = packed(demo_config(demo, cache, tmp_path, tmp_path / "single", packing__max_token_len=1024))
    lens = [sorted(n for pack in train(folder) for n in pack.token_lens) for folder in (dataset, again)]
    assert lens[0] == lens[1]


def test_frames_may_stay_images(source: Path, demo: tuple[Path, Path], cache: Path, tmp_path: Path) -> None:
    """`source.frames=images`: five images and what stands around them, for one video."""
    settings: dict[str, Any] = {"source__format": Format.jsonl, "source__frames": Frames.images, "max_skipped": 0.5}
    dataset = packed(demo_config(demo, cache, tmp_path, source, **settings))
    rows = {row["key"]: row for row in pq.read_table(dataset / "pack_plan.parquet").to_pylist()}
    assert rows["6"]["num_visual_tokens"] == 5 * 6

"""Packed datasets as the peers' own tools write them, and what may be wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from energon_pack.dataset.energon import sample_loader_py
from energon_pack.samples.flavors import PACKED_FLAVORS
from support.damage import read_shard, write_index, write_shard
from support.samples import chat, npy, picture, write_tar

Damage = Callable[[Path], Any]


VIDEO = b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 90


def write_theirs(folder: Path, shards: dict[str, dict[str, bytes]], dataset_yaml: dict[str, Any]) -> Path:
    """Tars and what Energon 5 wrote beside them."""
    meta = folder / ".nv-meta"
    for name, members in shards.items():
        write_tar(folder / name, members)
        write_index(folder / name)
    meta.mkdir()
    counts = {name: len({member.partition(".")[0] for member in members}) for name, members in shards.items()}
    splits = {"exclude": [], "split_parts": {"train": list(shards), "val": [], "test": []}}
    for name, value in (
        (".info.yaml", {"shard_counts": counts}),
        ("split.yaml", splits),
        ("dataset.yaml", dataset_yaml),
    ):
        (meta / name).write_text(yaml.safe_dump(value))
    return folder


def write_llava_onevision(folder: Path) -> Path:
    """LLaVA-OneVision-2's: media first, then the JSON, no `_meta`; names in the JSON are not those in the tar."""
    value = {
        "images": [["img000_sub000.jpg", "img000_sub001.jpg"], ["img001_sub000.jpg"], []],
        "prompts": [["<image>\n<image>\nq1", "q2"], ["no placeholder"], ["text q"]],
        "captions": [["a1", "a2"], ["a"], ["text a"]],
        "sample_count": 3,
        "patch_positions": [["img000_sub000.npy", ""], [""], []],
        "fps": [[2], None, None],
        "timestamp_decimal": [1, 1, 1],
    }
    one = {
        "ps_00000000.img0_0.jpg": picture(10, 20),
        "ps_00000000.img0_0.npy": npy(6),
        "ps_00000000.img0_1.jpg": picture(30, 20, "PNG"),
        "ps_00000000.img1_0.jpg": picture(50, 20),
        "ps_00000000.json": json.dumps(value).encode(),
    }
    text = {"images": [[]], "prompts": [["q"]], "captions": [["a"]], "sample_count": 1, "patch_positions": [[]]}
    dataset_yaml = {
        "sample_type": {"__module__": "aiak_training_llm.data.multimodal", "__class__": "PackedCaptioningSample"},
        "part_filter": "sample_loader.py:part_filter",
        "sample_loader": "sample_loader.py:sample_loader",
    }
    shards = {"mine-000000.tar": one, "mine-000001.tar": {"ps_00000001.json": json.dumps(text).encode()}}
    folder = write_theirs(folder, shards, dataset_yaml)
    (folder / ".nv-meta" / "sample_loader.py").write_bytes(sample_loader_py(PACKED_FLAVORS["packed_captioning"]))
    return folder


LOONGFORGE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def write_loongforge(folder: Path, name: Callable[[str], str]) -> Path:
    """`packed_chat_mix`: the JSON first, what a source member said of its media still in it, roles as spelled there."""
    turns = [{"from": "human", "value": "<image>\nq"}, {"from": "gpt", "value": "a"}]
    chats = json.loads(chat("<image>or<image>", "b", "c", "d"))["messages"]
    tools = [{"role": "system", "content": "s"}, *json.loads(chat("t", "u"))["messages"]]
    names = [[name("s000_jpg")], [name("s001_jpeg"), name("s001_png")]]
    image = {
        "messages": [{"media": "image", "name": ["jpg"], "messages": turns}, {"messages": chats, "tools": []}],
        "media_files": names,
        "media_type": "image",
        "_meta": {
            "pack_id": "image_pack_00000000",
            "sample_ids": ["p-000001__94d1", "p-000001__94d2"],
            "token_lens": [240, 239],
            "total_token_len": 479,
        },
    }
    text = {
        "messages": [{"media": "text", "messages": tools, "tools": [{"type": "function"}]}],
        "media_files": [[]],
        "media_type": "text",
        "_meta": {"pack_id": "text_pack_00000000", "sample_ids": ["p-0__1"], "token_lens": [9], "total_token_len": 9},
    }
    video = {
        "messages": [{"messages": json.loads(chat("<video>v", "w"))["messages"]}],
        "media_files": [[name("s000_mp4")]],
        "media_type": "video",
        "_meta": {"pack_id": "video_pack_00000000", "sample_ids": ["p-0__2"], "token_lens": [7], "total_token_len": 7},
    }
    members = {
        "text_pack_00000000.json": json.dumps(text).encode(),
        "image_pack_00000000.json": json.dumps(image).encode(),
        f"image_pack_00000000.{names[0][0]}": picture(10, 20),
        f"image_pack_00000000.{names[1][0]}": picture(30, 20),
        f"image_pack_00000000.{names[1][1]}": picture(50, 20, "PNG"),
        "video_pack_00000000.json": json.dumps(video).encode(),
        f"video_pack_00000000.{name('s000_mp4')}": VIDEO,
    }
    dataset_yaml = {**LOONGFORGE, "subflavors": {"sample_type": "packed_chat_mix"}}
    return write_theirs(folder, {"pretrain-000000.tar": members}, dataset_yaml)


NAMES: dict[str, Callable[[str], str]] = {
    "without dots": lambda name: name,
    "with dots": lambda name: name.replace("_", "_0.", 1),
}


def changed(part: str, data: bytes | None) -> Callable[[Path], None]:
    """Other bytes in a part of the first shard, or none of it."""

    def damage(folder: Path) -> None:
        path = sorted(folder.glob("*.tar"))[0]
        members = [(n, d if data is None or not n.endswith(part) else data) for n, d in read_shard(path)]
        write_shard(path, [m for m in members if data is not None or not m[0].endswith(part)])

    return damage


def in_json(key: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = sorted(folder.glob("*.tar"))[0]
        members = dict(read_shard(path))
        value = json.loads(members[f"{key}.json"])
        change(value)
        members[f"{key}.json"] = json.dumps(value).encode()
        write_shard(path, list(members.items()))

    return damage

"""Real processors and real samples (../shared/real): lengths are the full processor's, and nothing valid is lost.

The tables in `truth` hold what transformers' full processor made of every sample; some are made again here.
"""

import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from energon_pack.config import OnDamaged, Overlong, PackConfig
from energon_pack.errors import PackError, SamplesLost
from energon_pack.pack import pack
from support.marks import slow
from support.packed import json_lines, train
from support.running import need_torchvision
from support.samples import structure, write_tar

Make = Callable[..., PackConfig]

SETS = {
    "text_alpaca": 2690,
    "text_toolcall": 600,
    "text_sharegpt_zh": 2000,
    "image_demo": 19,
    "image_mathv": 292,
    "image_probe": 57,
}
#: samples without any answer: text_sharegpt_zh_000780 is one user turn
NO_ANSWER = {"text_sharegpt_zh": 1}


@pytest.fixture(scope="module")
def packed(real: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Packs a set of wds/ at 4096 tokens with the Qwen2.5-VL processor, once."""
    from energon_pack.config import ModelConfig, OutputConfig, SourceConfig

    done: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("real")

    def run(name: str) -> Path:
        if name not in done:
            run = PackConfig(
                model=ModelConfig("qwen2_5_vl", "qwen_vl", "", str(real / "processors" / "qwen2_5_vl"), factor=28),
                source=SourceConfig(path=str(real / "wds" / name)),
                output=OutputConfig(dir=str(folder), name=name),
                cache_dir=str(cache),
            )
            run.packing.max_token_len, run.packing.overlong = 4096, Overlong.drop
            run.executor.num_workers = 1
            run.measure.verify = 0.0  # every length is compared below
            pack(run)
            done[name] = folder / name
        return done[name]

    return run


def truth(real: Path, name: str) -> dict[str, dict[str, Any]]:
    rows = json_lines(real / "truth" / f"{name}.qwen2_5_vl.jsonl")
    return {f"{row['shard']}/{row['key']}": row for row in rows}


@pytest.mark.parametrize("name", [slow(name) if name in ("text_sharegpt_zh", "text_alpaca") else name for name in SETS])
def test_every_length_is_the_full_processors(real: Path, packed: Callable[[str], Path], name: str) -> None:
    """And what is valid is packed."""
    expected = {sample_id: row["token_len"] for sample_id, row in truth(real, name).items()}
    folder = packed(name)
    rows = pq.read_table(folder / "pack_plan.parquet").to_pylist()
    found = {f"{row['shard']}/{row['key']}": row["token_len"] for row in rows}
    skipped = json_lines(folder / "skipped.jsonl")
    found |= {line["sample_id"]: line["token_len"] for line in skipped if line["reason"] == "overlong"}
    assert len(expected) == SETS[name]
    assert {key: length for key, length in found.items() if length != expected[key]} == {}
    assert len(found) == SETS[name] - NO_ANSWER.get(name, 0)
    report = json.loads((folder / "report.json").read_text())
    assert report["samples_in"] == SETS[name] == report["samples_packed"] + report["samples_skipped"]
    overlong = report["skipped_by_reason"].pop("overlong", 0)
    assert sum(report["skipped_by_reason"].values()) == NO_ANSWER.get(name, 0)
    assert report["samples_packed"] == SETS[name] - NO_ANSWER.get(name, 0) - overlong


@pytest.mark.parametrize("name", [slow("text_alpaca"), "text_toolcall", slow("text_sharegpt_zh")])
def test_text_is_packed_at_the_lower_bound(packed: Callable[[str], Path], name: str) -> None:
    report = json.loads((packed(name) / "report.json").read_text())
    assert report["packs"] == report["packs_lower_bound"] == -(-report["tokens"] // 4096)


@pytest.mark.parametrize("name", ["text_toolcall", "image_demo", "image_probe"])
def test_a_draw_of_samples_through_the_full_processor(real: Path, packed: Callable[[str], Path], name: str) -> None:
    """Not the tables but transformers itself, on the packs' own messages and images."""
    need_torchvision()
    from PIL import Image
    from transformers import AutoProcessor
    from transformers.image_utils import load_image

    processor = AutoProcessor.from_pretrained(real / "processors" / "qwen2_5_vl")
    members = []
    with tarfile.open(packed(name) / "packed-000000.tar") as tar:
        data = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    for part in data:
        if part.endswith(".json"):
            value, key = json.loads(data[part]), part.removesuffix(".json")
            for i, member in enumerate(value["messages"]):
                names = [f"{key}.{name}" for name in value["media_files"][i]]
                members.append((member["messages"], [data[n] for n in names], value["_meta"]["token_lens"][i]))
    for messages, images, token_len in random.Random(0).sample(members, min(12, len(members))):
        structured = [{**m, "content": structure(m["content"], bool(images))} for m in messages]
        text = processor.apply_chat_template(structured, tokenize=False, add_generation_prompt=False)
        pictures = [load_image(Image.open(io.BytesIO(image))) for image in images] or None
        assert len(processor(text=[text], images=pictures)["input_ids"][0]) == token_len


@pytest.mark.parametrize("name", ["text_toolcall", "image_demo", "image_mathv"])
def test_energon_yields_every_pack_and_every_image_opens(packed: Callable[[str], Path], name: str) -> None:
    folder = packed(name)
    report = json.loads((folder / "report.json").read_text())
    packs = {pack.__key__: pack for pack in train(folder)}
    assert len(packs) == report["packs"]
    assert sum(len(pack.messages) for pack in packs.values()) == report["samples_packed"]
    for pack_ in packs.values():
        for image in (image for images in pack_.images for image in images):
            image.convert("RGB")


def test_videos_are_packed_and_come_back(real: Path, config: Make) -> None:
    run = config(real / "wds" / "video_demo", packing__max_token_len=32768, media__video="fps", media__fps=1)
    run.model.processor = str(real / "processors" / "qwen2_5_vl")
    figures = pack(run)
    assert figures["samples_packed"] == 20
    folder = Path(run.output.dir) / "packed"
    expected = {row["key"]: row["token_len"] for row in json_lines(real / "truth" / "video_demo.qwen2_5_vl.fps1.jsonl")}
    rows = pq.read_table(folder / "pack_plan.parquet").to_pylist()
    assert {row["key"]: row["token_len"] for row in rows} == expected
    videos = [video for pack in train(folder) for member in pack.videos for video in member]
    assert len(videos) == 21
    assert all(isinstance(video, bytes) for video in videos)


def test_a_whole_modality_is_lost_with_exit_3_not_in_silence(real: Path, config: Make) -> None:
    run = config(real / "wds" / "video_demo", model__template="text")
    run.model.processor = str(real / "processors" / "qwen2_5_vl")
    with pytest.raises(SamplesLost, match="bad data cost 20 of 20"):
        pack(run)


# -------------------------------------------------------------------------------------------------- bad inputs


def pack_bad(real: Path, config: Make, name: str) -> tuple[dict[str, int], dict[str, str]]:
    """Lengths of the packed samples and reasons of the others, by key."""
    run = config(real / "bad" / name, max_skipped=1.0, source__on_damaged=OnDamaged.keep, packing__max_token_len=32768)
    run.model.processor = str(real / "processors" / "qwen2_5_vl")
    pack(run)
    folder = Path(run.output.dir) / "packed"
    rows = pq.read_table(folder / "pack_plan.parquet").to_pylist()
    by_key = {line["sample_id"].partition("/")[2]: line["reason"] for line in json_lines(folder / "skipped.jsonl")}
    return {row["key"]: row["token_len"] for row in rows}, by_key


@pytest.mark.parametrize(
    "name", [slow("03_wrong_extension"), "04_odd_but_decodable", slow("06_decompression_bomb_and_extreme_size")]
)
def test_odd_images_have_their_true_length_or_a_reason(real: Path, config: Make, name: str) -> None:
    lengths, reasons = pack_bad(real, config, f"{name}.tar")
    rows = {row["key"]: row for row in truth(real, f"bad_{name}").values()}
    assert lengths == {key: row["token_len"] for key, row in rows.items() if "token_len" in row}
    assert reasons == {key: "unreadable_media" for key, row in rows.items() if "error" in row}


@pytest.mark.parametrize(
    ("name", "packed", "reasons"),
    [
        ("01_truncated_images", 2, {"unreadable_media": 6}),
        ("02_zero_byte_image", 2, {"unreadable_media": 2, "invalid_json": 1}),
        ("07_truncated_mid_member", 1, {"truncated_tar": 1}),
        ("07b_truncated_in_header", 2, {"truncated_tar": 1}),
        ("07d_no_eof_blocks", 4, {}),
        ("07e_corrupt_header_checksum", 3, {"truncated_tar": 2}),
        ("09_gnu_long_names", 3, {}),
        ("10_pax_headers", 4, {}),
        ("11_dirs_links_appledouble", 2, {"missing_media": 2}),
        ("13_duplicate_keys", 4, {"duplicate_key": 3}),
        ("14_missing_media", 8, {"missing_media": 2, "missing_json": 1}),
        ("15_json_bad", 7, {"invalid_json": 6, "no_assistant_turn": 1}),
        ("17_overlong", 5, {"overlong": 2}),
        ("18_roles_and_schema", 12, {"no_messages": 3, "bad_message": 4, "empty_answer": 1, "no_assistant_turn": 1}),
        ("21_trailing_garbage", 4, {}),
    ],
)
def test_bad_input_costs_its_own_sample(
    real: Path, config: Make, name: str, packed: int, reasons: dict[str, int]
) -> None:
    run = config(real / "bad" / f"{name}.tar", max_skipped=1.0, source__on_damaged=OnDamaged.keep)
    run.model.processor, run.packing.max_token_len = str(real / "processors" / "qwen2_5_vl"), 32768
    figures = pack(run)
    assert (figures["samples_packed"], figures["skipped_by_reason"]) == (packed, reasons)


@pytest.mark.parametrize(
    "name",
    ["07_truncated_mid_member", "07b_truncated_in_header", "07d_no_eof_blocks", "07e_corrupt_header_checksum",
     "08_gzip_named", "21_trailing_garbage", "22_zero_length", "22c_not_a_tar"],
)  # fmt: skip
def test_damaged_and_compressed_tars_stop_the_run_by_name(real: Path, config: Make, name: str) -> None:
    with pytest.raises(PackError, match=name):
        pack(config(real / "bad" / f"{name}.tar"))


def test_many_turns(config: Make, tmp_path: Path) -> None:
    """No bad input hangs a run: one conversation of thousands of turns is one overlong sample."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": "x"} for i in range(30_000)]
    members = {"long.json": json.dumps(turns).encode()}
    members |= {"ok.json": json.dumps(turns[:2]).encode()}
    figures = pack(config(write_tar(tmp_path / "s" / "x.tar", members)))
    assert figures["skipped_by_reason"] == {"overlong": 1}
    assert figures["samples_packed"] == 1

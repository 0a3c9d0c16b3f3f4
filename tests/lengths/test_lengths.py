"""Measuring: slices and processes change nothing, and what was measured once is not measured again."""

import json
import os
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from energon_pack.config import Format, PackConfig, Stage
from energon_pack.errors import PackError
from energon_pack.lengths import measure as lengths
from energon_pack.lengths import worker as measuring
from energon_pack.lengths.index import IndexedShard, every_nth_sample, first_samples, index_shards
from energon_pack.lengths.measure import measure_shards
from energon_pack.lengths.method import Method
from energon_pack.lengths.table_cache import chunks_of_pieces
from energon_pack.pack import pack
from energon_pack.run.executors.local import LocalExecutor
from energon_pack.run.progress import Progress
from energon_pack.run.workshop import Workshop
from energon_pack.samples.settings import ReadSettings
from energon_pack.sources.find import make_shard_of_file
from energon_pack.sources.tar import num_tar_bytes
from energon_pack.templates.processor import prepare_template
from support.finding import find_shards
from support.models import of_model
from support.packed import files, json_lines
from support.running import need_torchvision
from support.samples import chat, noise, picture, write_tar


@pytest.fixture
def measure(demo: tuple[Path, Path], cache: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    folder = prepare_template(of_model("qwen_vl", demo[1]), cache)

    def measure(source: Path, settings: ReadSettings | None = None, **more: Any):  # type: ignore[no-untyped-def]
        num_workers, keep, limit = more.get("num_workers", 1), more.get("keep", False), more.get("limit")
        with LocalExecutor(num_workers) as executor:
            workshop = Workshop(executor, Progress(quiet=True), tmp_path / "cache")
            indexed = index_shards(find_shards(str(source)).shards, keep, 0, workshop)
            return measure_shards(first_samples(indexed, limit), Method(folder, settings or ReadSettings()), workshop)

    return measure


def rows(measured: list[Any]) -> Any:
    [chunk] = chunks_of_pieces(enumerate(item.pieces for item in measured))
    return chunk.read().to_pylist()


def test_slices_batches_and_processes_change_nothing(measure, demo, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    whole = rows(measure(demo[0]))
    assert len(whole) == 320
    assert all(row["reason"] is None and row["token_len"] > row["num_supervised"] > 0 for row in whole)
    for slice_size, batch, workers in ((7, 3, 1), (50, 512, 2)):
        shutil.rmtree(tmp_path / "cache")
        monkeypatch.setattr(lengths, "_JOB_SAMPLES", slice_size)
        monkeypatch.setattr(lengths, "_SMALL_COST", 0)
        monkeypatch.setattr(measuring, "_BATCH_SAMPLES", batch)
        again = rows(measure(demo[0], num_workers=workers))
        assert [{**row, "kept": 0} for row in again] == [{**row, "kept": 0} for row in whole]


def test_only_a_touched_shard_is_measured_again(measure, demo, tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    assert [item.was_cached for item in measure(source)] == [False, False, False]
    assert [item.was_cached for item in measure(source)] == [True, True, True]
    os.utime(source / "demo-000001.tar")
    assert [item.was_cached for item in measure(source)] == [True, False, True]
    assert [item.was_cached for item in measure(source, ReadSettings(messages_key="x"))] == [False, False, False]


def test_each_bad_sample_costs_itself(measure, tmp_path) -> None:  # type: ignore[no-untyped-def]
    members = {
        "good.0.png": picture(format="PNG"),
        "good.json": chat("<image>what?", "that", name=["0.png"]),
        "no_image.json": chat("<image>", "x", name=["0.jpg"]),
        "cut.0.jpg": picture(400, 300)[:900],
        "cut.json": chat("<image>", "x"),
        "broken.json": b"{",
        "wide.0.png": picture(1000, 2, "PNG"),
        "wide.json": chat("<image>", "x"),
        "token.json": chat("<|image_pad|>", "x"),
        "clip.0.mp4": b"\0\0\0\x18ftypmp42" + bytes(50),
        "clip.json": chat("<video>", "x"),
        "caption.jpg": picture(),
        "caption.txt": b"a red square\n",
        "lone.txt": b"only text",
        "literal.json": chat("write <image>", "<image>"),
        "heic.0.heic": b"\0\0\0\x18ftypheic" + bytes(50),
        "heic.json": chat("<image>", "x"),
        "named_heic.0.heic": b"\0\0\0\x18ftypheic" + bytes(50),
        "named_heic.json": chat("<image>", "x", name=["0.heic"]),
        "empty.0.jpg": b"\x89HDF\r\n\x1a\n" + bytes(2000),
        "empty.json": chat("<image>", "x"),
        "half.json": b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        "kind.json": json.dumps([{"role": "user", "content": [{"type": ["image"]}]}]).encode(),
        "deep_name.json": b'{"name": ' + b"[" * 600 + b"]" * 600 + b', "messages": []}',
        "deep_field.json": chat("a", "b")[:-1] + b', "x": ' + b"[" * 950 + b"]" * 950 + b"}",
        "deep_tools.json": chat("a", "b", tools="[" * 5000),
        "half_tools.json": chat("a", "b", tools='["\\ud800"]'),
    }
    found = {row["key"]: row for row in rows(measure(write_tar(tmp_path / "s" / "x.tar", members)))}
    assert {key: (row["reason"], row["media_type"]) for key, row in found.items()} == {
        "good": (None, "image"),
        "no_image": ("missing_media", "image"),
        "cut": ("unreadable_media", "image"),
        "broken": ("invalid_json", None),
        "wide": ("unreadable_media", "image"),
        "token": ("control_token", "text"),
        "clip": ("unreadable_media", "video"),
        "caption": (None, "image"),
        "lone": ("missing_json", "text"),
        "literal": (None, "text"),
        "heic": ("missing_media", None),  # a placeholder, and a part that no one says is an image
        "named_heic": ("unreadable_media", None),
        "empty": ("unreadable_media", "image"),
        "half": ("invalid_json", None),
        "kind": ("bad_message", "text"),
        "deep_name": ("no_messages", "text"),
        "deep_field": ("invalid_json", None),
        "deep_tools": ("bad_message", "text"),
        "half_tools": ("bad_message", "text"),
    }
    assert found["good"]["parts"] == [
        {"name": "0.png", "offset": 512, "size": len(members["good.0.png"]), "kind": "image", "extension": "png"}
    ]
    assert found["caption"]["placeholders_put_in"]
    assert [key for key, row in found.items() if row["placeholders_as_text"]] == ["literal"]
    assert "0.jpg" in found["no_image"]["detail"]


def test_a_damaged_tar_stops_before_anything_is_measured(measure, demo, tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "source"
    shutil.copytree(demo[0], source)
    damaged = source / "demo-000002.tar"
    damaged.write_bytes(damaged.read_bytes()[:-20_000])
    with pytest.raises(PackError, match=r"damaged tar .*demo-000002.*source.on_damaged=keep"):
        measure(source)
    assert not (tmp_path / "cache" / "lengths").exists()
    kept = rows(measure(source, keep=True))
    assert [row["reason"] for row in kept if row["reason"]] == ["truncated_tar"]


def test_every_third_sample_is_counted_over_all_files() -> None:
    """`try` looks at a few samples: of small files, the first of each would come."""
    items = [IndexedShard(make_shard_of_file(__file__, __file__), "key", [], num, {}) for num in (5, 1, 8)]
    items[2] = replace(items[2], rows=np.array([0, 0, 1, 2, 7]), draw_settings=(0.625,))
    first, second, third = every_nth_sample(3, items)
    assert [item.rows.tolist() for item in (first, second, third) if item.rows is not None] == [[0, 3], [], [0, 2]]
    assert [item.draw_settings for item in (first, second, third)] == [(0, 3), (1, 3), (0.625, 0, 3)]


def test_the_first_samples_are_measured_alone_and_kept_for_all(measure, demo, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """`source.limit=1000` measured the whole of a file with a million samples."""
    read, kept = [], []
    for limit in (5, 7, 108, None, 5):
        measured = measure(demo[0], limit=limit)
        read.append([sum(piece.num_rows for piece in item.pieces) for item in measured])
        files = (tmp_path / "cache" / "lengths").rglob("*.parquet")
        kept.append(sum(pq.read_metadata(file).num_rows for file in files))
    assert read == [[5], [7], [107, 1], [107, 107, 106], [5]]
    assert kept == [5, 7, 108, 320, 320]


def test_a_shard_written_anew_under_its_old_time_is_noticed(config: Callable[..., PackConfig], tmp_path: Path) -> None:
    """Same size, same time, another image: packing with the old lengths would write packs that overflow."""
    source = tmp_path / "s" / "x.tar"
    members = {"a.json": chat("<image>", "b"), "a.jpg": picture(64, 64), "b.json": chat("c", "d")}
    write_tar(source, members)
    run = config(source.parent, stage=Stage.plan, cache_dir=str(tmp_path / "cache"))
    pack(run)
    before = source.stat()
    write_tar(source, {name.replace("b", "c"): data for name, data in members.items()})
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    run.stage = Stage.all
    with pytest.raises(PackError, match="changed since it was measured: run again, it is then measured anew"):
        pack(run)
    assert pack(run)["samples_packed"] == 2


def test_bytes_in_a_tar_by_head() -> None:
    """A header and whole blocks: the size of shards and the room on the disk are estimated from it."""
    assert [num_tar_bytes([size]) for size in (0, 1, 512, 513)] == [512, 1024, 1024, 1536]
    assert num_tar_bytes([1, 513]) == 2560


Make = Callable[..., PackConfig]


def write_samples(path: Path, num: int) -> None:
    """A tar, or a file of lines, of so many texts of its own."""
    texts = [f"{path.name} {'word ' * number}" for number in range(num)]
    if path.suffix == ".tar":
        write_tar(path, {f"{number}.json": chat(text, "answer") for number, text in enumerate(texts)})
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps({'prompts': [text], 'captions': ['yes']})}\n" for text in texts))


@pytest.mark.parametrize("format", [Format.wds, Format.jsonl])
def test_only_new_files_are_measured(config: Make, tmp_path: Path, format: Format) -> None:
    """One in front, so that every shard has another number; then one goes."""
    source, end = tmp_path / "source", ".tar" if format is Format.wds else ".jsonl"
    for name in ("b", "c", "d"):
        write_samples(source / f"{name}{end}", 5)

    def packed(cache: str) -> tuple[dict[str, int], dict[str, dict[str, int]], dict[str, bytes]]:
        path = source if format is Format.wds else f"{source}/*.jsonl"
        run = config(path, source__format=format, cache_dir=str(tmp_path / cache), output__overwrite=True)
        report = pack(run)
        return report["cache"], report["throughput"], files(tmp_path / "out" / "packed")

    cache, done, _ = packed("kept")
    assert cache == {"shards_reused": 0, "shards_measured": 3}
    assert done["lengths"]["samples"] == 15

    write_samples(source / f"a{end}", 7)
    size = (source / f"a{end}").stat().st_size
    cache, done, found = packed("kept")
    assert cache == {"shards_reused": 3, "shards_measured": 1}
    assert (done["lengths"]["samples"], done["lengths"]["cached"]) == (7, 15)
    assert 0 < done["index"]["bytes"] <= 2 * size + 1024
    assert found == packed("anew")[2]

    (source / f"c{end}").unlink()
    cache, done, found = packed("kept")
    assert cache == {"shards_reused": 3, "shards_measured": 0}
    assert (done["lengths"].get("samples", 0), done["lengths"]["cached"]) == (0, 17)
    assert done.get("index", {}).get("bytes", 0) == 0
    shutil.rmtree(tmp_path / "anew")
    assert found == packed("anew")[2]


def short_of_pixels() -> bytes:
    """A PNG whose chunks are whole, and whose pixels end in the middle."""
    data = noise(1, 64)
    start = data.index(b"IDAT")
    body = b"IDAT" + data[start + 4 :][: (int.from_bytes(data[start - 4 : start], "big")) // 2]
    chunk = (len(body) - 4).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return data[: start - 4] + chunk + b"\0\0\0\0IEND" + zlib.crc32(b"IEND").to_bytes(4, "big")


def test_what_can_not_be_decoded_ends_no_run(
    config: Callable[..., PackConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All samples are drawn."""
    need_torchvision()
    whole = {format: picture(300, 200, format) for format in ("JPEG", "PNG", "WEBP")}
    lossless = picture(300, 200, "WEBP", lossless=True)
    members: dict[str, bytes] = {}
    for number, data in enumerate((*whole.values(), lossless)):
        for name, image in ((f"good{number}", data), (f"cut{number}", data[: len(data) * 3 // 4])):
            members |= {f"{name}.json": chat("<image>What?", "That."), f"{name}.0.jpg": image}
    members |= {"within.json": chat("<image>What?", "That."), "within.0.png": short_of_pixels()}
    write_tar(tmp_path / "source" / "a.tar", members)
    pack(config(tmp_path / "source", max_skipped=0.5, measure__verify=1.0))
    ledger = json_lines(tmp_path / "out" / "packed" / "skipped.jsonl")
    assert {(line["sample_id"], line["reason"]) for line in ledger} == {
        (f"a.tar/cut{number}", "unreadable_media") for number in range(4)
    }
    out = capsys.readouterr().out
    assert "verified: 4 samples in the full processor, none differs" in out
    (line,) = (line for line in out.splitlines() if "damaged within" in line)
    assert line.startswith("not verified: 1 sample with a medium that is damaged within, as a.tar/within (OSError:")
    assert "on_bad_member=drop" in line

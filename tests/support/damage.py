"""A packed dataset taken apart and put together again with one thing changed, all that belongs to it made anew."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from energon_pack.config import ModelConfig, OutputConfig, Overlong, PackConfig, SourceConfig
from energon_pack.dataset.pack_parts import group_files_by_pack
from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.pack import pack
from energon_pack.sources.storage import open_file
from energon_pack.sources.tar import TarScan
from energon_pack.verify import Options, verify
from energon_pack.verify.findings import Findings
from support.samples import chat, picture, write_tar

Members = list[tuple[str, bytes]]
#: what damages a dataset, the options of verify, and by check the words of its defects; empty: it may have some
Corruption = tuple[Callable[[Path], object], dict[str, Any], dict[str, str]]
WORDS = "one two three four five six seven eight nine ten " * 8


def packed_to_damage(demo: tuple[Path, Path], cache: Path, folder: Path) -> Path:
    """Two source shards in four packed ones: text and images, one sample cut in parts, three in the ledger."""
    talk = [text for i in range(9) for text in (f"<image>question {i}", f"{i} {WORDS}")]
    long = {"talk.json": chat(*talk), **{f"talk.{i}.png": picture(28 * (i + 2), 56, "PNG") for i in range(9)}}
    texts = {f"t{i:02d}.json": chat(f"question {i} <image>", f"answer {i} {WORDS[:150]}", id=i) for i in range(20)}
    images: dict[str, bytes] = {}
    for i in range(12):
        images |= {f"i{i:02d}.b.jpg": picture(40 + i, 30), f"i{i:02d}.a.png": picture(28, 50 + i, "PNG")}
        images |= {f"i{i:02d}.json": chat("<image> or <image>?", f"the {i}th", name=["b.jpg", "a.png"])}
    bad = {"bad.json": b"{", "word.json": chat(WORDS * 30, "no")}
    write_tar(folder / "source" / "a.tar", [*texts.items(), ("t00.json", chat("again", "a duplicate")), *long.items()])
    write_tar(folder / "source" / "sub" / "b.tar", {**images, **bad})
    run = PackConfig(
        model=ModelConfig("qwen2_5_vl", "qwen_vl", "Qwen/Qwen2.5-VL-7B-Instruct", str(demo[1])),
        source=SourceConfig(path=str(folder / "source")),
        output=OutputConfig(dir=str(folder / "out"), name="packed", max_shard_packs=3),
        cache_dir=str(cache),
        max_skipped=0.5,
    )
    run.packing.max_token_len, run.packing.overlong = 512, Overlong.split_turns
    run.packing.max_dropped_tokens = 1.0
    run.executor.num_workers, run.measure.verify = 1, 0.0
    figures = pack(run)
    assert figures["samples_cut"] == 1
    assert set(figures["skipped_by_reason"]) == {"duplicate_key", "invalid_json", "overlong"}
    assert len(list((folder / "out" / "packed").glob("*.tar"))) >= 4
    return folder / "out" / "packed"


def read_shard(path: Path) -> Members:
    with open_file(path) as file:
        return [(name, file.read(offset, size)) for name, offset, size in TarScan(file)]


def write_shard(path: Path, members: Members) -> None:
    """The shard anew, with the index that belongs to it."""
    with open(path, "wb", buffering=0) as file:
        tar = TarWriter(file.fileno())
        for name, data in members:
            tar.add(name, data)
        tar.finish()
    write_index(path)


def write_index(path: Path) -> None:
    with open_file(path) as file:
        packs = list(group_files_by_pack(TarScan(file)))
    starts = [p.start for p in packs] + [p.end for p in packs[-1:]]
    path.with_suffix(".tar.idx").write_bytes(np.array(starts, "<u8").tobytes())


def shard_with(folder: Path, media_type: str) -> tuple[Path, int]:
    """A shard with a pack of several members of this type, or with this field, and where in it that JSON is."""
    for path in sorted(folder.glob("*.tar")):
        for index, (name, data) in enumerate(read_shard(path)):
            if name.endswith(".json"):
                value = json.loads(data)
                is_of_type = value.get("media_type") == media_type and len(value.get("messages", ())) > 1
                if is_of_type or media_type in value:
                    return path, index
    raise AssertionError


def change(change_json: Callable[[dict[str, Any]], None], media_type: str = "image") -> Callable[[Path], None]:
    """Something else in the JSON of one pack."""

    def damage(folder: Path) -> None:
        path, index = shard_with(folder, media_type)
        members = read_shard(path)
        value = json.loads(members[index][1])
        change_json(value)
        members[index] = (members[index][0], json.dumps(value).encode())
        write_shard(path, members)

    return damage


def change_files(change_members: Callable[[Members, int], object], media_type: str = "image") -> Callable[[Path], None]:
    """Other files in one shard; the function gets them all, and where the JSON of a pack with images is."""

    def damage(folder: Path) -> None:
        path, index = shard_with(folder, media_type)
        members = read_shard(path)
        change_members(members, index)
        write_shard(path, members)

    return damage


def change_plan(change_rows: Callable[[list[dict[str, Any]]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        table = pq.read_table(folder / "pack_plan.parquet")
        rows = table.to_pylist()
        change_rows(rows)
        pq.write_table(pa.Table.from_pylist(rows, table.schema), folder / "pack_plan.parquet")

    return damage


def change_file(name: str, change_value: Callable[[Any], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        is_json = path.suffix == ".json"
        value = json.loads(path.read_text()) if is_json else yaml.safe_load(path.read_text())
        change_value(value)
        path.write_text(json.dumps(value) if is_json else yaml.safe_dump(value))

    return damage


def set_at(*path: Any, to: Any) -> Callable[[Any], None]:
    def damage(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return damage


def grown(*path: Any) -> Callable[[Any], None]:
    def damage(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] += 1

    return damage


def found(dataset: Path | str, **options: Any) -> Findings:
    """All that verify finds."""
    return verify(dataset, Options(num_workers=1, max_errors=1000, **options))


def is_found(folder: Path, corruption: Corruption, **more: Any) -> None:
    """Damage a dataset; the checks that have to see it do, with these words, and only those that may."""
    damage, options, expected = corruption
    damage(folder)
    defects = found(folder, **more, **options)
    needed = {check for check, words in expected.items() if words}
    assert needed <= set(defects.num_defects) <= set(expected), lines(defects)
    for check in needed:
        assert any(expected[check] in str(defect) for defect in defects.defects[check]), lines(defects)


def lines(findings: Findings) -> str:
    """A line a defect, as a user sees them."""
    return "\n".join(map(str, findings.first_defects(1000)))


#: Values that a JSON may have where another type belongs.
HOSTILE: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, "", "\ud800", "a\nb", [], [[]], [None], [{}], {}, {"a": None}, [1, "1"],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))

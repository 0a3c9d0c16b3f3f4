"""Parquet: a row is a sample, its images are cells or files beside the table."""

import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.config.schema import MediaIn, PackConfig
from energon_pack.errors import PackError
from energon_pack.pack import pack
from energon_pack.samples.raw_record import without_null_fields
from energon_pack.samples.skip import Skip
from energon_pack.sources import parquet_rows
from energon_pack.sources.find import files_of_split
from energon_pack.sources.named_bytes import json_with_media_names, replace_media_by_names
from energon_pack.sources.open_tables import find_group_of_row
from energon_pack.sources.parquet_bytes import SnappyPage, content_of
from energon_pack.sources.row_shard import TableShard
from energon_pack.sources.settings import Format, SourceConfig
from energon_pack.sources.source_path import find_forms, find_source, source_format, source_summary
from energon_pack.sources.storage import InMemoryFile, call_counting_read_bytes
from support.packed import Make, samples
from support.read_source import read
from support.running import command_here
from support.samples import picture

PNG = picture(56, 56, "PNG")
WIDE = picture(112, 56, "PNG")
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def the_cauldron() -> pa.Table:
    """Rows like those of the_cauldron and FineVision on the Hub: one with only text, one with two images."""
    texts = [[{"user": "what is it?", "assistant": "a cat"}], [{"user": "and this?", "assistant": "a dog"}]]
    columns = {
        "images": pa.array([[{"bytes": PNG, "path": None}], []], pa.list_(IMAGE)),
        "texts": pa.array(texts),
        "source": pa.array(["a", None]),
    }
    return pa.table(columns)


def output(config: PackConfig) -> Path:
    return Path(config.output.dir) / str(config.output.name)


def write_parquet(path: Path, table: pa.Table, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **how)
    return path


def test_rows_of_the_hub(tmp_path: Path) -> None:
    """Images are bytes in the row, texts are pairs: the form of the_cauldron and FineVision."""
    first, second = read(write_parquet(tmp_path / "a.parquet", the_cauldron())).values()
    assert first == (["<image>what is it?", "a cat"], [PNG])
    assert second == (["and this?", "a dog"], [])


def test_paths_and_nulls(tmp_path: Path) -> None:
    """An image without bytes is a file beside the table; a field that is null is not there."""
    (tmp_path / "a.png").write_bytes(WIDE)
    part = pa.struct({"type": pa.string(), "text": pa.string()})
    turn = pa.struct({"role": pa.string(), "content": pa.list_(part)})
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    answered = [{"role": "assistant", "content": [{"type": "text", "text": "a cat"}]}]
    rows = {
        "image": pa.array([{"bytes": None, "path": "a.png"}], IMAGE),
        "messages": pa.array([asked + answered], pa.list_(turn)),
        "tools": pa.nulls(1),
    }
    (sample,) = read(write_parquet(tmp_path / "a.parquet", pa.table(rows))).values()
    assert (len(sample[0]), sample[1]) == (2, [WIDE])


def test_texts_and_lists_of_other_writers(tmp_path: Path) -> None:
    """DuckDB writes JSON as a type of its own: it was read as bytes. Of a list view, one image a row was left."""
    turns = json.dumps([{"role": "user", "content": "?"}, {"role": "assistant", "content": "a"}])
    images = pa.array([[{"bytes": PNG, "path": None}, {"bytes": WIDE, "path": None}], []], pa.list_view(IMAGE))
    table = pa.table({"messages": pa.array([turns] * 2, pa.json_()), "images": images})
    found = read(write_parquet(tmp_path / "a.parquet", table))
    assert found == {"0": (["<image><image>?", "a"], [PNG, WIDE]), "1": (["?", "a"], [])}


def test_times_in_nanoseconds_cost_no_row(tmp_path: Path) -> None:
    """pandas has them; each row was refused, with the advice to install pandas."""
    times = [None, 1_700_000_000_123_456_789]
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        table = pa.table(
            {"text": ["a", "b"], "at": pa.array(times, kind), "all": pa.array([times] * 2, pa.list_(kind))}
        )
        assert len(read(write_parquet(tmp_path / "a.parquet", table))) == 2
        flat = table.drop_columns("all")
        with pa.ipc.new_file(str(tmp_path / "a.arrow"), flat.schema) as writer:
            writer.write_table(flat)
        for path in ("a.parquet", "a.arrow"):
            assert [*read(tmp_path / path).values()] == [(["a"], []), (["b"], [])], path
            (shard,) = find_source(SourceConfig(), str(tmp_path / path)).shards
            assert isinstance(shard, TableShard)
            *_, row = shard.first(2)
            assert json.loads(row)["at"].startswith("2023-11-14 22:13:20.123456")


def test_bad_rows_cost_themselves(tmp_path: Path) -> None:
    """No image in the cell, an image cut in base64, no text."""
    table = pa.table({"image": pa.array([b"no image", b"", PNG]), "question": ["?"] * 3, "answer": ["a", "b", None]})
    reasons = [str(why).partition(":")[0] for why in read(write_parquet(tmp_path / "a.parquet", table)).values()]
    assert reasons == ["unreadable_media", "unreadable_media", "no_messages"]


def test_packs_are_those_of_jsonl(config: Make, tmp_path: Path) -> None:
    """The same samples as files and lines have the same lengths and the same media in packs; verify reads both."""
    number = 60
    images = [picture(28 * (1 + n % 5), 28 * (1 + n % 7), "PNG") for n in range(number)]
    lines, rows = [], []
    (tmp_path / "lines").mkdir()
    for n, image in enumerate(images):
        (tmp_path / f"lines/{n}.png").write_bytes(image)
        texts = [{"user": f"what is {n}?", "assistant": "word " * (n % 7 + 1)}]
        lines.append(json.dumps({"texts": texts, "images": [f"{n}.png"]}))
        rows.append({"texts": texts, "images": [{"bytes": image, "path": f"{n}.png"}]})
    (tmp_path / "lines/a.jsonl").write_text("\n".join(lines))
    table = pa.Table.from_pylist(
        rows, pa.schema({"texts": pa.array([rows[0]["texts"]]).type, "images": pa.list_(IMAGE)})
    )
    write_parquet(tmp_path / "rows/a.parquet", table, row_group_size=7)
    packed = {}
    for name in ("lines", "rows"):
        run = config(tmp_path / name, output__dir=str(tmp_path / "out" / name), output__name="packed")
        pack(run)
        packed[name] = {
            (tuple(m["content"] for m in member["messages"]), tuple(parts[part] for part in names))
            for parts in samples(output(run)).values()
            for member, names in zip(
                *(json.loads(parts["json"])[key] for key in ("messages", "media_files")), strict=True
            )
        }
        verified = command_here("energon_pack.verify", output(run), "--source", "--num-workers", "1", cwd=tmp_path)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert packed["lines"] == packed["rows"]
    assert len(packed["rows"]) == number


def test_references_name_cells(config: Make, tmp_path: Path) -> None:
    """Packs without copies of a Parquet's images give the same bytes in training."""
    write_parquet(tmp_path / "in/a.parquet", the_cauldron().slice(0, 1))
    run = config(tmp_path / "in", output__media=MediaIn.reference)
    pack(run)
    (parts,) = samples(output(run)).values()
    refs = json.loads(parts["json"])["media_refs"]
    assert [ref for member in refs for ref in member] == [["a.parquet", "0/images/0/bytes"]]
    verified = command_here(
        "energon_pack.verify", output(run), "--source", "--decode", "--num-workers", "1", cwd=tmp_path
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_changed_table_is_noticed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", the_cauldron())
    (shard,) = find_source(SourceConfig(), str(path)).shards
    about = {key.decode(): value.decode() for key, value in shard.index().schema.metadata.items()}
    assert shard.is_unchanged(about)
    write_parquet(path, the_cauldron().slice(1))
    assert not shard.is_unchanged(about)


def test_forms_of_folders(tmp_path: Path) -> None:
    """A hub snapshot is found; a table about a tar of its name, as img2dataset writes it, is none."""
    write_parquet(tmp_path / "hub/data/train-00000-of-00001.parquet", the_cauldron())
    (tmp_path / "hub/README.md").touch()
    source = find_source(SourceConfig(), str(tmp_path / "hub"))
    assert source_format(source) is Format.table
    assert source_summary(source) == "Parquet, 1 file"
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars/00000.tar").touch()
    write_parquet(tmp_path / "tars/00000.parquet", the_cauldron())
    assert find_forms(str(tmp_path / "tars")).forms == [Format.wds]
    write_parquet(tmp_path / "tars/more.parquet", the_cauldron())
    source = find_source(SourceConfig(), str(tmp_path / "tars"))
    assert [shard.name for shard in source.shards] == ["00000.tar", "more.parquet"]


def test_splits_are_told_by_names() -> None:
    """Nobody trains on a test set because it lies beside the training set."""
    hub = ["/d/data/train-00000-of-00002.parquet", "/d/data/train-00001-of-00002.parquet", "/d/data/test-00000.parquet"]
    assert files_of_split("/d", hub, "train") == hub[:2]
    with pytest.raises(PackError, match=r"/d: train: 2 files, test: 1 file; source\.split=train takes one split"):
        files_of_split("/d", hub, None)
    with pytest.raises(PackError, match=r"source\.split=val: /d has train: 2 files"):
        files_of_split("/d", hub, "val")
    kaggle = ["/d/Train.csv", "/d/Test.csv"]
    assert files_of_split("/d", kaggle, "train") == kaggle[:1]
    with pytest.raises(PackError, match="train: 1 file, test: 1 file"):
        files_of_split("/d", kaggle, None)
    spark = ["/d/split=train/part-0.parquet", "/d/split=test/part-0.parquet"]
    assert files_of_split("/d", spark, "test") == spark[1:]
    saved = ["/d/validation/data-00000-of-00001.arrow", "/d/train/data-00000-of-00001.arrow"]
    assert files_of_split("/d", saved, "val") == saved[:1]
    assert files_of_split("/train", ["/train/a.parquet"], None) == ["/train/a.parquet"]


def test_a_damaged_table_is_one_line(config: Make, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", the_cauldron())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PackError, match=r"a\.parquet is no whole parquet file: .*; get it again"):
        pack(config(path))


@pytest.mark.parametrize("compression", ["snappy", "none", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_cells_by_page_are_those_of_pyarrow(compression: str, version: str, dictionary: bool, tmp_path: Path) -> None:
    """A wrong level, page or dictionary would be another image in training; nothing here falls back to pyarrow."""
    drawn = random.Random(0)

    def cell() -> bytes | None:
        return None if drawn.random() < 0.2 else drawn.choice([b"", b"twice", drawn.randbytes(drawn.randrange(900))])

    flat = [cell() for _ in range(700)]
    lists = [None if drawn.random() < 0.1 else [cell() for _ in range(drawn.randrange(4))] for _ in flat]
    structs = [[{"bytes": item, "path": "x"} for item in row or []] for row in lists]
    nested = [{"image": {"bytes": item, "path": None}} for item in flat]
    table = pa.table(
        {
            "flat": pa.array(flat, pa.binary()),
            "lists": pa.array(lists, pa.list_(pa.binary())),
            "structs": pa.array(structs, pa.list_(IMAGE)),
            "nested": pa.array(nested, pa.struct({"image": IMAGE})),
        }
    )
    how = {"data_page_version": version, "use_dictionary": dictionary, "dictionary_pagesize_limit": 4000}
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression=compression, row_group_size=300, data_page_size=2000, **how)
    for row in range(700):
        ways = {"flat": flat[row], "nested/image/bytes": flat[row]}
        ways |= {f"lists/{index}": item for index, item in enumerate(lists[row] or [])}
        ways |= {f"structs/{index}/bytes": item for index, item in enumerate(lists[row] or [])}
        for way, expected in ways.items():
            opened, group, number = find_group_of_row(
                parquet_rows._open_tables, str(path), str(path.stat().st_mtime_ns), row
            )
            value = parquet_rows._find_in_page(opened, group, number, way.split("/"))
            assert (value and value.read(opened.file, 0, value.size)) == expected, (row, way)
    assert len(parquet_rows._kept_columns) >= 12


def test_rows_are_those_of_pyarrow_without_their_bytes(tmp_path: Path) -> None:
    """A wrong place of a null would give a sample the image of its neighbour."""
    image, drawn = PNG, random.Random(1)
    cells: list[Any] = [
        None,
        {"bytes": None, "path": None},
        {"bytes": image, "path": "a"},
        {"bytes": image, "path": None},
    ]
    rows = [
        {
            "one": drawn.choice(cells),
            "bare": drawn.choice([None, image]),
            "many": drawn.choice([None, [], drawn.choices(cells, k=3)]),
            "bare_many": drawn.choice([[], [image], [image, None, image]]),
            "turns": [{"text": "q", "image": drawn.choice(cells)} for _ in range(drawn.randrange(3))],
        }
        for _ in range(300)
    ]
    schema = pa.schema(
        {
            "one": IMAGE,
            "bare": pa.binary(),
            "many": pa.list_(IMAGE),
            "bare_many": pa.list_(pa.binary()),
            "turns": pa.list_(pa.struct({"text": pa.string(), "image": IMAGE})),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=100)
    for number, row in enumerate(rows):
        found = json.loads(parquet_rows.row_json(str(path), str(path.stat().st_mtime_ns), number))
        expected = without_null_fields(replace_media_by_names(row, f"a.parquet::{number}"))
        if not row["bare_many"]:  # an empty list of bytes alone is none
            del expected["bare_many"]
        assert found == expected, number


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 255, 256, 257, 70_000, 1 << 20])
def test_parts_of_a_snappy_page_are_those_of_the_whole(size: int) -> None:
    """What a JPEG begins with is compressed, the rest is not: any part has to be put together from both."""
    drawn = random.Random(size)
    plain = b"".join(
        drawn.choice([*3 * [drawn.randbytes(9_000)], b"ab" * 700, bytes(3_000)]) for _ in range(size // 1_000 + 1)
    )[:size]
    packed = pa.Codec("snappy").compress(plain, asbytes=True)
    file = InMemoryFile(b"before" + packed + b"after", "1")
    content = content_of(file, ("a", str(size)), "snappy", 6, len(packed), size)
    for _ in range(300):
        start, length = drawn.randrange(size + 1), drawn.choice([0, 1, 4, 100, 5_000, size])
        assert content.read(file, start, length) == plain[start : start + length]
    assert isinstance(content, SnappyPage)
    wrong = InMemoryFile(b"before" + packed[:-1] + b"!after", "1")
    assert content_of(wrong, ("a", str(size)), "snappy", 6, len(packed) - 1, size) != content


def test_the_head_of_an_image_costs_no_page(tmp_path: Path) -> None:
    """Measuring read all of a Parquet file, and JSONL's images by their heads."""
    images = [random.Random(number).randbytes(200_000) for number in range(40)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": pa.array(images, pa.binary()), "text": ["t"] * 40}), path, row_group_size=20)

    def heads(_: int) -> list[bytes]:
        version = str(path.stat().st_mtime_ns)
        texts = [parquet_rows.row_json(str(path), version, number) for number in range(40)]
        assert json.loads(texts[7]) == {"image": "a.parquet::7/image", "text": "t"}
        return [parquet_rows.open_cell(str(path), f"{number}/image").read(0, 64) for number in range(40)]

    found, num_bytes = call_counting_read_bytes(heads, 0)
    assert found == [image[:64] for image in images]
    assert num_bytes < path.stat().st_size // 10


def test_a_shuffled_plan_costs_a_row_its_own_work_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row that was written made JSON of all rows of its group again, or opened its file again."""
    as_json, read = Mock(wraps=json_with_media_names), Mock(wraps=parquet_rows._table_of_file)
    monkeypatch.setattr(parquet_rows, "json_with_media_names", as_json)
    monkeypatch.setattr(parquet_rows, "_table_of_file", read)
    paths = [tmp_path / f"{number}.parquet" for number in range(40)]
    for path in paths:
        pq.write_table(pa.table({"text": [f"{row}" for row in range(30)]}), path, row_group_size=10)
    places = [(path, row) for row in range(29, -1, -1) for path in paths]
    for path, row in places:
        raw = parquet_rows.row_json(str(path), str(path.stat().st_mtime_ns), row)
        assert json.loads(raw) == {"text": f"{row}"}
    assert sorted(call.args[0] for call in read.mock_calls) == sorted(map(str, paths))
    assert as_json.call_count == len(places)


def test_rows_read_in_order_become_json_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also across groups; their names are their own."""
    path, as_json = tmp_path / "a.parquet", Mock(wraps=parquet_rows._rows_as_json)
    monkeypatch.setattr(parquet_rows, "_rows_as_json", as_json)
    pq.write_table(pa.table({"image": [PNG] * 50}), path, row_group_size=20)
    rows = [parquet_rows.row_json(str(path), str(path.stat().st_mtime_ns), number) for number in range(50)]
    assert [json.loads(row)["image"] for row in rows] == [f"a.parquet::{number}/image" for number in range(50)]
    assert [call.args[2] for call in as_json.mock_calls] == [0, 1, 17, 0, 16, 0]


def test_a_large_snappy_page_is_read_in_place() -> None:
    """pyarrow's pages of 1,024 images have more elements than 4,096, and each image decompressed 30 MB."""
    drawn = random.Random(0)
    plain = b"".join(bytes(1_000) + drawn.randbytes(20_000) for _ in range(400))
    packed = pa.Codec("snappy").compress(plain, asbytes=True)
    content = content_of(InMemoryFile(packed, "1"), ("a", "1"), "snappy", 0, len(packed), len(plain))
    assert isinstance(content, SnappyPage)
    assert len(content.starts) > 5_000
    assert content.read(InMemoryFile(packed, "1"), 8_000_000, 9_000) == plain[8_000_000:8_009_000]


def test_damage_in_a_parquet_file_costs_rows_or_cells(tmp_path: Path) -> None:
    """A page that can't be read ended the run; 800 files were damaged so, with two seeds."""
    drawn = random.Random(3)
    for number in range(20):
        image = {"bytes": drawn.randbytes(600), "path": None}
        table = pa.table(
            {"text": ["t"] * 40, "image": pa.array([image] * 40, IMAGE), "more": [drawn.randbytes(50)] * 40}
        )
        path = tmp_path / f"{number}.parquet"
        how: dict[str, Any] = {
            "compression": drawn.choice(["snappy", "none", "zstd"]),
            "use_dictionary": number % 2 == 0,
        }
        pq.write_table(table, path, row_group_size=20, data_page_size=900, **how)
        raw = bytearray(path.read_bytes())
        footer = int.from_bytes(raw[-8:-4], "little") + 8
        for _ in range(drawn.choice([1, 3, 20])):
            raw[drawn.randrange(4, len(raw) - footer)] = drawn.randrange(256)
        path.write_bytes(raw)
        for row in range(40):
            with suppress(Skip, KeyError, OSError):
                names = json.loads(parquet_rows.row_json(str(path), str(path.stat().st_mtime_ns), row))
                cell = parquet_rows.open_cell(str(path), names["image"].partition("::")[2])
                cell.read(0, cell.size)


def test_other_encodings_are_read_by_pyarrow(tmp_path: Path) -> None:
    """Delta lengths, and lists in lists."""
    deep = pa.array([[[PNG], []], [[WIDE, PNG]]], pa.list_(pa.list_(pa.binary())))
    table = pa.table({"delta": pa.array([PNG, WIDE]), "deep": deep})
    path = str(tmp_path / "a.parquet")
    pq.write_table(table, path, use_dictionary=False, column_encoding={"delta": "DELTA_LENGTH_BYTE_ARRAY"})
    keys = {"0/delta": PNG, "1/delta": WIDE, "0/deep/0/0": PNG, "1/deep/0/1": PNG}
    for key, expected in keys.items():
        file = parquet_rows.open_cell(path, key)
        assert file.read(0, file.size) == expected
    for key in ("2/delta", "0/deep/1/0", "0/none", "x/delta", "0/delta/0"):
        with pytest.raises(KeyError):
            parquet_rows.open_cell(path, key)


def test_a_damaged_footer_is_an_error_of_one_line(tmp_path: Path) -> None:
    """pyarrow ended the process at some: it throws across C where it is asked for a column of a row group."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": pa.array([b"1"] * 9, pa.binary()), "text": ["t"] * 9}), path, row_group_size=4)
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    drawn, refused = random.Random(0), list[str]()
    for version in range(400):
        data = bytearray(whole)
        for _ in range(drawn.choice([1, 2, 4])):
            data[drawn.randrange(start, len(data) - 8)] = drawn.randrange(256)
        path.write_bytes(data)
        os.utime(path, ns=(version, version))
        try:
            parquet_rows.table_of(str(path))
        except PackError as error:
            refused.append(str(error))
    assert 50 < len(refused) < 400
    assert [line for line in refused if not line.startswith(f"{path} is no whole parquet file: ")] == []


def test_a_group_that_would_take_all_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group of many GB of texts, or of bytes that only pyarrow reads, took as much memory, several times."""
    monkeypatch.setattr(parquet_rows, "MAX_GROUP_BYTES", 10_000)
    images, texts = pa.array([bytes(20_000)] * 4, pa.binary()), ["t"] * 4
    deep = pa.array([[[bytes(20_000)]]] * 4, pa.list_(pa.list_(pa.binary())))
    for name, column in (("flat", images), ("deep", deep), ("text", pa.array(["t" * 20_000] * 4))):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"x": column, "text": texts}), path, use_dictionary=False)
        if name == "flat":
            assert parquet_rows.table_of(str(path)).group_lens == [4]
            continue
        with pytest.raises(
            PackError, match=r"row group 0 has .* that are read at once: write it in groups of 200 rows"
        ):
            parquet_rows.table_of(str(path))

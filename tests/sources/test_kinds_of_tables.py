"""The same samples as Arrow, CSV, TSV and JSONL: on a disk and on a store, packed, packed while training, unpacked."""

import base64
import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energon_pack.config import PackConfig
from energon_pack.errors import PackError
from energon_pack.online.lazy import LazyPackedDataset
from energon_pack.pack import pack
from energon_pack.samples.settings import Columns, ReadSettings
from energon_pack.samples.skip import Skip
from energon_pack.sources.reader import SourceReader
from energon_pack.sources.sample import read_sample
from energon_pack.sources.settings import SourceConfig
from energon_pack.sources.source_file import IndexRow, rows_of
from energon_pack.sources.source_path import find_source, source_summary
from energon_pack.unpack import unpack
from support.packed import Make, files, samples
from support.read_source import read
from support.running import command_here
from support.samples import picture
from support.stores import Bucket

IMAGES = [picture(28 * (2 + n % 3), 56, "PNG") + bytes(200) for n in range(20)]  # what base64 tells is not short
TEXTS = [(f'Is it "{n}",\nor not?', "yes " * (n % 5 + 1)) for n in range(20)]
KINDS = ["arrow", "csv", "tsv"]


def write(folder: Path, kind: str) -> Path:
    """Images are cells of bytes, files, or base64."""
    folder.mkdir()
    rows = [{"question": question, "answer": answer} for question, answer in TEXTS]
    if kind == "arrow":
        table = pa.Table.from_pylist([row | {"image": image} for row, image in zip(rows, IMAGES, strict=True)])
        with pa.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=6)
        return folder
    for number, (row, image) in enumerate(zip(rows, IMAGES, strict=True)):
        row["image"] = base64.b64encode(image).decode() if kind == "tsv" else f"{number}.png"
        if kind != "tsv":
            (folder / row["image"]).write_bytes(image)
    if kind == "jsonl":
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return folder
    with (folder / f"a.{kind}").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["image", "question", "answer"], delimiter="\t" if kind == "tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def out(run: PackConfig) -> Path:
    return Path(run.output.dir) / str(run.output.name)


@pytest.mark.slow
def test_ids_and_labels_are_those_of_jsonl(config: Make, tmp_path: Path) -> None:
    folders = [str(write(tmp_path / kind, kind)) for kind in ("jsonl", *KINDS)]
    lazy = LazyPackedDataset(config(folders, source__format="auto"))
    found: dict[str, list[tuple[list[int], list[int]]]] = {}
    for member in (member for number in range(len(lazy)) for member in lazy[number].members):
        tokens = member.tokens
        found.setdefault(member.sample_id.partition(":")[0].rpartition(".")[2], []).append(
            (tokens.ids.tolist(), tokens.labels.tolist())
        )
    assert [len(found[kind]) for kind in ("jsonl", *KINDS)] == [20] * 4
    assert all(sorted(found[kind]) == sorted(found["jsonl"]) for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_a_bucket_is_packed_as_from_disk(kind: str, config: Make, bucket: Bucket, tmp_path: Path) -> None:
    """With the same bytes; unpacked, it has its images again, and verify reads the source again."""
    folder = write(tmp_path / "in", kind)
    few: dict[str, Any] = {"source__format": "auto", "cache_dir": str(tmp_path / "cache")}
    local, stored = (
        config(folder, output__name="local", **few),
        config(bucket.put_folder(folder, "data"), output__name="stored", **few),
    )
    pack(local)
    pack(stored)
    written = [
        {name: data for name, data in files(out(run)).items() if "report" not in name} for run in (local, stored)
    ]
    assert written[0] == written[1]
    assert unpack(out(local), tmp_path / "unpacked") == 20
    parts = samples(tmp_path / "unpacked").values()
    assert sorted(data for sample in parts for name, data in sample.items() if name != "json") == sorted(IMAGES)
    verified = command_here("energon_pack.verify", str(out(local)), "--source", "--num-workers", "1", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_a_file_that_names_no_split_is_in_none(extension: str, tmp_path: Path) -> None:
    """source.split=test took extra.csv beside validation.csv."""
    line = "text\nA\n" if extension == "csv" else '{"text": "A"}\n'
    for name in ("validation", "extra"):
        (tmp_path / f"{name}.{extension}").write_text(line)
    chosen = find_source(SourceConfig(split="val"), str(tmp_path)).shards
    assert [shard.name for shard in chosen] == [f"validation.{extension}"]
    with pytest.raises(PackError, match=r"source\.split=test: .* has (of no split: 1 file|validation: 1 file)"):
        find_source(SourceConfig(split="test"), str(tmp_path))


def write_rows(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows({key: item and json.dumps(item) for key, item in row.items()} for row in rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("named", ["image", "photo"])
def test_a_question_whose_picture_is_null_is_not_trained(named: str, tmp_path: Path) -> None:
    """A column has a place in each row: where it has nothing, `<image>` was trained as letters."""
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "a"}] for text in ("<image>?", "?")]
    rows = [{named: None, "messages": chat} for chat in chats]
    settings = ReadSettings(columns=Columns(images=None if named == "image" else named))
    for kind in ("jsonl", "parquet", "csv"):
        (shard,) = find_source(SourceConfig(), str(write_rows(tmp_path, kind, rows))).shards
        with SourceReader() as reader:
            lost, text = rows_of(shard.index(), IndexRow)
            assert read_sample(reader, shard, text, settings).messages == chats[1], kind
            with pytest.raises(Skip, match="missing_media: <image> stands in a question, and image"):
                read_sample(reader, shard, lost, settings)


def test_documents_without_pictures_are_those_of_jsonl(tmp_path: Path) -> None:
    """A page whose list of pictures is null was no document as a row of a table."""
    places = {"texts": ["A.", "B."], "images": None}, {"text_list": ["A.", "B."], "image_info": None}
    for row, text in zip(places, ("A.\n\nB.", "A. B."), strict=True):
        for kind in ("jsonl", "parquet", "csv"):
            assert [*read(write_rows(tmp_path, kind, [row])).values()] == [([text], [])], (kind, row)


@pytest.mark.parametrize(("role", "text"), [("role", "content"), ("from", "value")])
def test_an_answer_that_is_null_is_empty(role: str, text: str, tmp_path: Path) -> None:
    """The conversation was left out, and as lines its other answers are trained."""
    says = [("user", "?"), ("assistant", None), ("user", "And?"), ("assistant", "a")]
    row = {"messages": [{role: who, text: what, "weight": None} for who, what in says]}
    for kind in ("jsonl", "parquet"):
        assert [*read(write_rows(tmp_path, kind, [row])).values()] == [(["?", "", "And?", "a"], [])], kind


def test_bytes_are_no_text(tmp_path: Path) -> None:
    """The name of the cell was trained in place of a text: `a.parquet::0/question`."""
    for answer in (b"bytes", base64.b64encode(IMAGES[0]).decode()):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"question": ["?"], "answer": [answer]}), path)
        (why,) = read(path).values()
        assert str(why).startswith("bad_message: a text is bytes, or a medium in base64: 'a.parquet::0/answer'")
    (read_as_text,) = read(write_rows(tmp_path, "jsonl", [{"question": "a.jsonl::x?", "answer": "b"}])).values()
    assert read_as_text == (["a.jsonl::x?", "b"], [])


@pytest.mark.parametrize("name", ["a.ndjson", "a.txt", "a"])
def test_base64_is_read_from_lines_in_a_file_of_any_name(name: str, tmp_path: Path) -> None:
    """The place of the image was looked for as a file."""
    line = {"image": base64.b64encode(IMAGES[0]).decode(), "question": "?", "answer": "a"}
    (tmp_path / name).write_text(json.dumps(line))
    assert [*read(tmp_path / name).values()] == [(["<image>?", "a"], [IMAGES[0]])]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_base64_in_a_text_that_is_json_is_named(kind: str, tmp_path: Path) -> None:
    """The advice was to download it."""
    url = f"data:image/png;base64,{base64.b64encode(IMAGES[0]).decode()}"
    asked = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    turns = [asked, {"role": "assistant", "content": "a"}]
    row = {"messages": turns if kind == "csv" else json.dumps(turns)}
    (why,) = read(write_rows(tmp_path, kind, [row])).values()
    assert str(why).startswith("unsupported_media: a message lists 'data:image/png;base64,")
    assert str(why).endswith("`data:TYPE;base64,` is read from a value of its own, not from JSON that stands in a text")


def test_a_folder_is_read_in_one_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A CSV beside other samples may be about them: rows would be trained twice. It is named, not silently left out."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(IMAGES[0])
    forms = [
        ("metadata.csv", "file_name,text\nimages/a.png,A cat.\n", "CSV, 1 file"),
        ("notes.json", '[{"text": "t"}]', "JSONL, 1 file"),
        ("a.jsonl", '{"text": "t"}\n', "JSONL, 1 file"),
    ]
    for name, text, expected in forms:
        (tmp_path / name).write_text(text)
        assert source_summary(find_source(SourceConfig(), str(tmp_path))) == expected
        said = capsys.readouterr().out
        assert ("metadata.csv); a glob names them" in said) == (name != "metadata.csv")
    assert source_summary(find_source(SourceConfig(format="table"), str(tmp_path))) == "CSV, 1 file"
    (tmp_path / "metadata.tsv").write_text("file_name\ttext\n")
    with pytest.raises(PackError, match=r"metadata\.csv and .*metadata\.tsv may be the same rows: a glob names one"):
        find_source(SourceConfig(format="table"), str(tmp_path))
